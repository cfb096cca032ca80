"""What is known of a batch of rows: the part that may run in any process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dray.planner.workload.chains import chains
from dray.planner.workload.encoders import Encoder
from dray.planner.workload.images import count_images
from dray.planner.workload.prompts import Asked, Rendered, Text, Unreadable, asked
from dray.requests.spool.spool import decode

if TYPE_CHECKING:
    from numpy.typing import NDArray

UNBOUNDED = np.float32(-1.0)
"""Stands for the output of a row that nothing bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Figures of ``n`` rows, in their order; ``blocks`` says how many hashes of ``chain`` each has.

    ``most_output`` is the most that a row generates, or ``UNBOUNDED``. The engine runs a row as ``prompts``
    times ``answers`` sequences; the longest of its prompts has ``longest`` tokens. Of ``refused`` rows the
    engine will make nothing but an error. ``exact`` answers have their most tokens in any case. There are
    ``images`` in all rows together. ``seconds`` is what rendering and tokenizing took.
    """

    prompt_tokens: NDArray[np.uint32]
    longest: NDArray[np.uint32]
    prompts: NDArray[np.uint32]
    answers: NDArray[np.uint32]
    most_output: NDArray[np.float32]
    blocks: NDArray[np.uint32]
    chain: NDArray[np.uint64]
    refused: int
    exact: int
    images: int
    seconds: float

    @property
    def sequences(self) -> NDArray[np.uint32]:
        """How many sequences each row has: 1, or more with several prompts or answers."""
        return self.prompts * self.answers

    @property
    def unbounded(self) -> int:
        """Rows whose output nothing bounds."""
        return int(np.count_nonzero(self.most_output == UNBOUNDED))


def count(lines: Sequence[bytes], encoder: Encoder, block_tokens: int) -> Counted:
    """The figures of rows, given as lines of a spool."""
    spent = 0.0
    rows: list[Asked | None] = []
    for line in lines:
        request = decode(line)
        rendering = time.perf_counter()
        try:
            rows.append(asked(request.url, request.body, encoder.render))
        except Unreadable:
            rows.append(None)
        spent += time.perf_counter() - rendering
    began = time.perf_counter()
    tokens = encoder.encode([prompt for row in rows if row is not None for prompt in row.prompts])
    spent += time.perf_counter() - began
    return _counted(rows, tokens, block_tokens, spent)


def _counted(
    rows: Sequence[Asked | None],
    tokens: Sequence[NDArray[np.uint32]],
    block_tokens: int,
    seconds: float,
) -> Counted:
    prompt_tokens = np.zeros(len(rows), np.uint32)
    longest = np.zeros(len(rows), np.uint32)
    prompts, answers = np.ones(len(rows), np.uint32), np.ones(len(rows), np.uint32)
    most_output = np.zeros(len(rows), np.float32)
    firsts: list[NDArray[np.uint32]] = []
    none = np.empty(0, np.uint32)
    at = 0
    for place, row in enumerate(rows):
        if row is None:
            firsts.append(none)
            continue
        own = [_cut(one, row.cut) for one in tokens[at : at + len(row.prompts)]]
        at += len(own)
        firsts.append(own[0])
        prompt_tokens[place], longest[place] = sum(map(len, own)), max(map(len, own))
        prompts[place], answers[place] = len(own), row.answers
        most_output[place] = UNBOUNDED if row.most_output is None else row.most_output
    chain, blocks = chains(firsts, block_tokens)
    return Counted(
        prompt_tokens=prompt_tokens,
        longest=longest,
        prompts=prompts,
        answers=answers,
        most_output=most_output,
        blocks=blocks,
        chain=chain,
        refused=sum(row is None for row in rows),
        images=sum(_images(row) for row in rows if row is not None),
        exact=sum(row is not None and row.exact for row in rows),
        seconds=seconds,
    )


def _images(row: Asked) -> int:
    texts = sum(count_images(prompt.text) for prompt in row.prompts if isinstance(prompt, Text))
    return texts + sum(prompt.images for prompt in row.prompts if isinstance(prompt, Rendered))


def _cut(tokens: NDArray[np.uint32], kept: int | None) -> NDArray[np.uint32]:
    return tokens if kept is None else tokens[len(tokens) - min(kept, len(tokens)) :]
