"""The flow for a DataFrame: rows in, answers out, in the same order."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dray.errors import ConfigError, InputError, Problem
from dray.job.ending.result import JobResult
from dray.requests.reading.frames import frame_to_source
from dray.requests.row_shape import refuse_same
from dray.storage.absolute_paths import absolute
from dray.storage.files import local_path
from dray.storage.folders import WORK, refuse_foreign
from dray.storage.layout import published_names
from dray.storage.objects import is_object
from dray.storage.retiring import remove_folder
from dray.storage.writable import check_writable
from flows.batch_inference import batch_inference
from flows.parameters import EngineOptions, JobRequest, RowOptions, SamplingOptions
from tasks.prefect_run import scheduled_time

if TYPE_CHECKING:
    import pandas

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
    request = JobRequest.of(
        input=_FRAMES,  # until there is a file
        model=model,
        output=output,
        job_id=job_id,
        rows=rows,
        sampling=sampling,
        engine=engine,
        store=store,
        cluster=cluster,
        format="parquet",
        overwrite=overwrite,
    )
    request = request.dated(scheduled_time())
    place = _local(request.output)

    def check() -> None:
        check_writable(place)
        if not overwrite:
            refuse_foreign(place, None, published_names())

    shape = request.rows.shape()
    _refuse_clash(shape.keep_columns)
    source = frame_to_source(frame, local_path(place) / WORK / _FRAMES, shape, before_writing=check)
    file = source.inputs[0]
    with _rows_named(frame, file):
        result = batch_inference(**dict(request) | {"input": file, "output": place})
    assert isinstance(result, JobResult)  # a job that was cancelled raises instead
    if overwrite:
        _remove_others(local_path(file).parent)
    return _told(_in_order(frame, result), frame, file)


def _local(output: str) -> str:
    if is_object(output):
        raise ConfigError(f"output {output} is an object store; a DataFrame's job needs a local folder")
    return absolute(output)


def _refuse_clash(columns: Sequence[str]) -> None:
    """Refuse kept columns that would have one name in the result."""
    if columns:
        from dray.requests.outputs.parquet import names_beside

        refuse_same(columns, [_KEPT.get(name, name) for name in names_beside(columns)], "the result")


@contextmanager
def _rows_named(frame: pandas.DataFrame, file: str) -> Iterator[None]:
    """Problems of rows name the frame's rows: the file that dray makes of it is no file of the user's."""
    try:
        yield
    except InputError as error:
        problems = [_problem(one, frame, file) for one in error.problems]
        raise InputError(problems, total=error.total, advice=error.advice) from None


def _problem(problem: Problem, frame: pandas.DataFrame, file: str) -> Problem:
    problem = replace(problem, message=_in_frame(problem.message, frame, file))
    if problem.file != file:
        return problem
    return replace(problem, file=_place(frame, problem.line), line=None)


def _told(answers: pandas.DataFrame, frame: pandas.DataFrame, file: str) -> pandas.DataFrame:
    """The answers, whose error messages name the frame's rows, too."""
    failed = answers["error_message"].notna()
    told = [_in_frame(text, frame, file) for text in answers.loc[failed, "error_message"]]
    answers.loc[failed, "error_message"] = told
    return answers


def _in_frame(text: str, frame: pandas.DataFrame, file: str) -> str:
    """``text`` with rows of the frame in place of lines of its file."""
    lines = rf"{re.escape(file)}(?::(\d+))?"
    return re.sub(lines, lambda found: _place(frame, int(found[1]) if found[1] else None), text)


def _place(frame: pandas.DataFrame, row: int | None) -> str:
    if row is None or row > len(frame):
        return "the frame"
    return f"row {row} of the frame (index {str(frame.index[row - 1])[:_LABEL_SHOWN]})"


def _remove_others(kept: Path) -> None:
    """Remove the frames of jobs that have lost the folder: each has a folder beside ``kept``."""
    for folder in kept.parent.iterdir():
        if folder.is_dir() and folder != kept and kept.parent.name == _FRAMES:
            remove_folder(folder)


def _in_order(frame: pandas.DataFrame, result: JobResult) -> pandas.DataFrame:
    import pandas

    assert result.output is not None
    assert result.errors is not None
    answers = _read(result.output).rename(columns=_KEPT)
    errors = _read(result.errors).rename(columns=_KEPT | _ERRORS)
    both = pandas.concat([answers, errors]).sort_values("index").drop(columns="index")
    columns = [*answers.columns.drop("index"), *_ERRORS.values()]
    return both.set_axis(frame.index, axis="index")[columns]


def _read(output: str) -> pandas.DataFrame:
    """A file, or all that a pattern of parts names."""
    import pandas

    path = local_path(output)
    return pandas.concat([_part(file) for file in sorted(path.parent.glob(path.name))])


def _part(file: Path) -> pandas.DataFrame:
    """Columns with a null stay whole numbers, or true and false: pandas' usual types round ids."""
    import pandas
    import pyarrow
    from pyarrow import parquet

    types = {pyarrow.int64(): pandas.Int64Dtype(), pyarrow.bool_(): pandas.BooleanDtype()}
    return parquet.read_table(file, partitioning=None).to_pandas(types_mapper=types.get)
