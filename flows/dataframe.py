"""The flow for a DataFrame: rows in, answers out, in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from dray.errors import ConfigError, InputError, Problem
from dray.job.ending.result import JobResult
from dray.job.options.dated import dated
from dray.kinds import output_columns
from dray.requests.reading.frames import frame_to_source
from dray.storage.files import check_writable, local_path
from dray.storage.folders import WORK, refuse_foreign
from dray.storage.layout import published_names
from dray.storage.objects import is_object
from dray.storage.retiring import remove_folder
from flows.batch_inference import batch_inference
from flows.parameters import EngineOptions, RowOptions, SamplingOptions

if TYPE_CHECKING:
    import pandas
    import pyarrow

_FRAMES = "frame"
_LABEL_SHOWN = 40  # characters of a row's index
_ERRORS = {"code": "error_code", "message": "error_message"}
_KEPT = {name: f"row_{name}" for name in _ERRORS.values()}  # as the files have columns of names of dray's own


def batch_inference_frame(
    frame: pandas.DataFrame,
    *,
    model: str,
    output: str,
    rows: RowOptions,
    sampling: SamplingOptions | None = None,
    engine: EngineOptions | None = None,
    job_id: str | None = None,
    store: str | None = None,
    cluster: str = "local",
    overwrite: bool = False,
) -> pandas.DataFrame:
    """Run every row of ``frame`` through the model, once; the result has its index and its order.

    Columns of ``frame`` that no row is made of may hold anything.

    Columns of the result: custom_id, text, embedding, score, label, finish_reason, prompt_tokens,
    completion_tokens, response (the whole answer as JSON), the columns that ``rows`` keeps, error_code and
    error_message. A row has either a response or an error. The files stay in ``output``, a local folder; the
    same call again resumes the job, or reads its results without an engine. ``overwrite`` takes a folder that
    holds the files of other rows, which is refused otherwise, before anything is written to it.

    Raises:
        ConfigError: ``output`` is not a local folder, or the frame or the options cannot be used.
        InputError: rows that cannot be requests.
        DrayError: the job did not finish; its finished rows are kept.
    """
    output = dated(output, datetime.now(UTC))
    if is_object(output):
        raise ConfigError(f"output {output} is an object store; a DataFrame's job needs a local folder")

    def check() -> None:
        check_writable(output)
        if not overwrite:
            refuse_foreign(output, None, published_names())

    folder = local_path(output) / WORK / _FRAMES
    source = frame_to_source(frame, folder, rows.shape(), before_writing=check)
    with _rows_named(frame, source.inputs[0]):
        result = batch_inference(
            input=source.inputs[0],
            model=model,
            output=output,
            job_id=job_id,
            rows=rows,
            sampling=sampling or SamplingOptions(),
            engine=engine or EngineOptions(),
            store=store,
            cluster=cluster,
            format="parquet",
            overwrite=overwrite,
        )
    assert isinstance(result, JobResult)  # a job that was cancelled raises instead
    if overwrite:
        _remove_others(local_path(source.inputs[0]).parent)
    return _in_order(frame, result)


@contextmanager
def _rows_named(frame: pandas.DataFrame, file: str) -> Iterator[None]:
    """Problems of rows name the frame's rows: the file that dray makes of it is no file of the user's."""
    try:
        yield
    except InputError as error:
        problems = [_in_frame(one, frame) if one.file == file else one for one in error.problems]
        raise InputError(problems, total=error.total, advice=error.advice) from None


def _in_frame(problem: Problem, frame: pandas.DataFrame) -> Problem:
    row = problem.line
    place = "the frame"
    if row is not None and row <= len(frame):
        place = f"row {row} of the frame (index {str(frame.index[row - 1])[:_LABEL_SHOWN]})"
    return replace(problem, file=place, line=None)


def _remove_others(kept: Path) -> None:
    """Remove the frames of jobs that have lost the folder: each has a folder beside ``kept``."""
    for folder in kept.parent.iterdir():
        if folder.is_dir() and folder != kept and kept.parent.name == _FRAMES:
            remove_folder(folder)


def _in_order(frame: pandas.DataFrame, result: JobResult) -> pandas.DataFrame:
    import pandas

    from dray.requests.outputs.parquet import ERRORS_SCHEMA, output_schema

    assert result.output is not None
    assert result.errors is not None
    answers = _read(result.output, output_schema(output_columns())).rename(columns=_KEPT)
    errors = _read(result.errors, ERRORS_SCHEMA).rename(columns=_KEPT | _ERRORS)
    both = pandas.concat([answers, errors]).sort_values("index").drop(columns="index")
    columns = [*answers.columns.drop("index"), *_ERRORS.values()]
    return both.set_axis(frame.index, axis="index")[columns]


def _read(output: str, schema: pyarrow.Schema) -> pandas.DataFrame:
    """A file, or all that a pattern of parts names; ``schema`` has dray's own columns."""
    import pandas

    path = local_path(output)
    return pandas.concat([_part(file, schema) for file in sorted(path.parent.glob(path.name))])


def _part(file: Path, schema: pyarrow.Schema) -> pandas.DataFrame:
    """Kept columns with a null stay whole numbers, or true and false: pandas' usual types round ids."""
    import pandas
    import pyarrow
    from pyarrow import parquet

    types = {pyarrow.int64(): pandas.Int64Dtype(), pyarrow.bool_(): pandas.BooleanDtype()}
    table = parquet.read_table(file, partitioning=None)
    kept = table.drop_columns([name for name in table.column_names if name in schema.names])
    return table.select(schema.names).to_pandas().join(kept.to_pandas(types_mapper=types.get))
