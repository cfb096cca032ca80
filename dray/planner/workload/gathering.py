"""Rows into :class:`RowFacts`, in files of ``TMPDIR``, mapped into memory as they are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from dray.planner.rows import RowFacts
from dray.planner.workload.counting import Counted, count
from dray.planner.workload.encoders import Bytes, Tokens
from dray.planner.workload.lengths import Bounds, Lengths
from dray.planner.workload.processes import Processes
from dray.planner.workload.worker import Setup
from dray.requests.spool.batching import batches
from dray.temporary import TemporaryFolder

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCK_TOKENS = 16
"""Tokens of a block of vLLM's KV cache, by default."""

_BATCH_ROWS = 512
_BATCH_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, eq=False)
class Gathered:
    """What is known of the rows that were read. Row ``r`` of ``facts`` is the ``r``-th of them.

    For a spool, ``r`` is its position. ``longest``, ``prompts``, ``answers`` and ``most_output`` are as in
    ``Counted``; the outputs of ``facts`` are predicted. ``refused`` rows ask for nothing that the engine can
    do. ``unbounded`` rows say no most tokens, and ``exact`` ones use all of theirs. There are ``images`` in
    all rows together. ``seconds`` is what rendering and tokenizing took, summed over processes.
    """

    facts: RowFacts
    longest: NDArray[np.uint32]
    prompts: NDArray[np.uint32]
    answers: NDArray[np.uint32]
    most_output: NDArray[np.float32]
    refused: int
    unbounded: int
    exact: int
    images: int
    seconds: float
    _folder: TemporaryFolder = field(repr=False)

    def __len__(self) -> int:
        return len(self.facts)

    def close(self) -> None:
        """Delete the files of the arrays, which cannot be read any more."""
        self._folder.remove()


def gather(
    lines: Iterable[bytes],
    tokens: Tokens,
    *,
    block_tokens: int = BLOCK_TOKENS,
    lengths: Lengths | None = None,
    processes: int | None = None,
) -> Gathered:
    """What is known of rows, given as lines of a spool, in their order.

    Args:
        lines: such as :class:`dray.planner.workload.rows.InputLines`, or those of a spool.
        tokens: the model's tokenizer, or ``Bytes()``.
        block_tokens: tokens of a block of the prefix cache.
        lengths: predicts outputs; the rows' own bounds where it is left out.
        processes: how many count tokens beside this one; as many as there are cores where it is left out.

    Raises:
        ConfigError: the tokenizer cannot be loaded, or fails.
    """
    setup = Setup(tokens, block_tokens)
    with ExitStack() as stack:
        folder = TemporaryFolder("dray-workload-")
        stack.push(lambda kind, *_: folder.remove() if kind is not None else None)
        files = stack.enter_context(_Files(folder.path, lengths or Bounds()))
        for counted in _counted(lines, setup, processes, stack):
            files.add(counted)
        files.flush()
        return files.gathered(folder, block_tokens)


def _counted(
    lines: Iterable[bytes], setup: Setup, processes: int | None, stack: ExitStack
) -> Iterator[Counted]:
    batched = batches(lines, rows=_BATCH_ROWS, size=_BATCH_BYTES)
    if isinstance(setup.tokens, Bytes):  # cheaper here than on its way to another process
        encoder = setup.tokens.encoder()
        return (count(batch, encoder, setup.block_tokens) for batch in batched)
    return stack.enter_context(Processes(setup, processes)).counted(batched)


class _Files:
    """The arrays on their way to files: one for each, written batch by batch."""

    _TYPES: dict[str, Any] = {  # noqa: RUF012
        "tokens": np.uint32,
        "longest": np.uint32,
        "prompts": np.uint32,
        "answers": np.uint32,
        "most_output": np.float32,
        "outputs": np.float32,
        "chain": np.uint64,
        "starts": np.uint64,
    }

    def __init__(self, folder: Path, lengths: Lengths) -> None:
        self._folder = folder
        self._lengths = lengths
        self._hashes = 0
        self.refused = self.unbounded = self.exact = self.images = 0
        self.seconds = 0.0

    def __enter__(self) -> _Files:
        self._open: dict[str, IO[bytes]] = {name: self._path(name).open("wb") for name in self._TYPES}
        self._write("starts", np.zeros(1, np.uint64))
        return self

    def __exit__(self, *exception: object) -> None:
        for file in self._open.values():
            file.close()

    def add(self, counted: Counted) -> None:
        """Append a batch."""
        self._write("tokens", counted.prompt_tokens)
        self._write("longest", counted.longest)
        self._write("prompts", counted.prompts)
        self._write("answers", counted.answers)
        self._write("most_output", counted.most_output)
        self._write("outputs", self._lengths.predicted(counted))
        self._write("chain", counted.chain)
        self._write("starts", np.cumsum(counted.blocks, dtype=np.uint64) + np.uint64(self._hashes))
        self._hashes += len(counted.chain)
        self.refused += counted.refused
        self.unbounded += counted.unbounded
        self.exact += counted.exact
        self.images += counted.images
        self.seconds += counted.seconds

    def flush(self) -> None:
        """What was written can be read."""
        for file in self._open.values():
            file.flush()

    def gathered(self, folder: TemporaryFolder, block_tokens: int) -> Gathered:
        """The arrays, mapped."""
        facts = RowFacts(
            prompt_tokens=self._mapped("tokens"),
            output_tokens=self._mapped("outputs"),
            block_tokens=block_tokens,
            chain=self._mapped("chain"),
            chain_starts=self._mapped("starts"),
        )
        return Gathered(
            facts=facts,
            longest=self._mapped("longest"),
            prompts=self._mapped("prompts"),
            answers=self._mapped("answers"),
            most_output=self._mapped("most_output"),
            refused=self.refused,
            unbounded=self.unbounded,
            exact=self.exact,
            images=self.images,
            seconds=self.seconds,
            _folder=folder,
        )

    def _write(self, name: str, values: NDArray[Any]) -> None:
        self._open[name].write(np.ascontiguousarray(values, self._TYPES[name]).data)

    def _mapped(self, name: str) -> Any:
        path, kind = self._path(name), self._TYPES[name]
        return np.memmap(path, kind, mode="r") if path.stat().st_size else np.empty(0, kind)

    def _path(self, name: str) -> Path:
        return self._folder / name
