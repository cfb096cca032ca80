"""Made-up finished rows, seeded, as the store yields them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

START = 1_795_166_325.0


class Row(NamedTuple):
    """What the store yields for a finished row."""

    index: int  # type: ignore[assignment]  # hides tuple.index, as Outcome does
    custom_id: str | None
    response: bytes | None
    error_code: str | None
    error_message: str | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    queue_seconds: float
    first_token_seconds: float
    total_seconds: float
    shard: int
    epoch: int
    committed_at: float


def pages(
    rows: int,
    *,
    seconds: float,
    start: float = START,
    first: int = 0,
    errors: dict[str, float] | None = None,
    prompt: tuple[float, float] = (5.2, 0.4),
    completion: tuple[float, float] = (3.6, 0.5),
    seed: int = 7,
    page: int = 2000,
) -> Iterator[list[Row]]:
    """Rows in index order, committed over ``seconds``, in pages; ``errors`` maps a code to its share."""
    rng = np.random.default_rng(seed)
    codes = list(errors or {})
    shares = list((errors or {}).values())
    for at in range(0, rows, page):
        size = min(page, rows - at)
        place = np.clip((at + np.arange(size)) / rows + rng.normal(0, 0.02, size), 0, 0.9999)
        lengths = np.rint(rng.lognormal(*prompt, size)).astype(int) + 1
        answers = np.rint(rng.lognormal(*completion, size)).astype(int) + 1
        total = answers * 0.011 * rng.uniform(0.8, 1.6, size) + 0.08
        waits = rng.exponential(0.05, size)
        draws = rng.random(size)
        code_of = np.searchsorted(np.cumsum(shares), draws) if codes else np.full(size, len(codes))
        yield [
            Row(
                index=first + at + n,
                custom_id=f"ticket-{first + at + n:07d}",
                response=None if code_of[n] < len(codes) else b"{}",
                error_code=codes[code_of[n]] if code_of[n] < len(codes) else None,
                error_message="it did not fit" if code_of[n] < len(codes) else None,
                prompt_tokens=0 if code_of[n] < len(codes) else int(lengths[n]),
                cached_tokens=0 if code_of[n] < len(codes) else int(lengths[n] * 0.4),
                completion_tokens=0 if code_of[n] < len(codes) else int(answers[n]),
                queue_seconds=float(waits[n]),
                first_token_seconds=float(waits[n] + 0.05),
                total_seconds=float(total[n] + waits[n]),
                shard=int(place[n] * 64),
                epoch=1,
                committed_at=start + float(place[n]) * seconds,
            )
            for n in range(size)
        ]
