"""Texts that gpt-oss's own tokenizer would stand still over. Imports no engine.

openai-harmony cuts a text into pieces: runs of letters, of white space, or of other characters; numbers by
threes. What a piece costs grows with the square of its length: 0.4 s for 20,000 characters, 10 minutes for a
million. Until then it holds the interpreter's lock, and so all of the replica.
"""

from __future__ import annotations

import re
from typing import Any

from dray.engine.redaction import texts_in
from dray.errors import RequestRefused

LONGEST = 20_000
"""Characters of the longest run that is taken."""

_STEP = LONGEST // 2  # a run that is too long has all of such a stretch in it, wherever it begins
_RUN = re.compile(r"[^\W\d_]++|\s++|(?:[^\w\s]|_)++")


def refuse_long_runs(body: dict[str, Any]) -> None:
    """Refuse a row that holds such a text. A text of other sorts costs one look for every 10,000 characters.

    Raises:
        RequestRefused: it does.
    """
    for text in texts_in(body):
        if len(text) > LONGEST and (length := _long_run(text)):
            raise RequestRefused(
                "request_too_large",
                f"a text holds {length:,} letters, spaces or other characters of one sort without a break; "
                f"gpt-oss's tokenizer takes very long for over {LONGEST:,}: break or shorten them",
            )


def _long_run(text: str) -> int:
    """The length of the first run that is too long; 0 where there is none."""
    for start in range(0, len(text) - _STEP + 1, _STEP):
        if not _RUN.fullmatch(text, start, start + _STEP):
            continue
        runs = _RUN.finditer(text, max(0, start - _STEP))
        length = next(len(run[0]) for run in runs if run.end() > start)
        if length > LONGEST:
            return length
    return 0
