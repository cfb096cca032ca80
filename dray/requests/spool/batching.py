"""Lines in batches that fit into memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def batches(lines: Iterable[bytes], *, rows: int, size: int) -> Iterator[list[bytes]]:
    """The lines in their order: ``rows`` at most in a batch, which ends where it comes to ``size`` bytes."""
    batch: list[bytes] = []
    held = 0
    for line in lines:
        batch.append(line)
        held += len(line)
        if len(batch) >= rows or held >= size:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch
