"""How people type: slips of the finger, all lower or upper case, missing points."""

from __future__ import annotations

import random
import re

_WORD = re.compile(r"[^\W\d_]{4,}")


def untidy(text: str, rng: random.Random) -> str:
    """``text`` as somebody in a hurry types it; numbers keep their digits."""
    rate = rng.choice((0.0, 0.0, 0.0, 0.03, 0.08))
    if rate:
        text = " ".join(_slip(word, rng) if rng.random() < rate else word for word in text.split(" "))
    style = rng.random()
    if style < 0.15:
        text = text.lower()
    elif style < 0.27:
        text = text.upper()
    if rng.random() < 0.1:
        text = text.replace(". ", " ")
    return text


def _slip(word: str, rng: random.Random) -> str:
    """One letter swapped, left out or doubled, never the first; short words and numbers stay as they are."""
    if not _WORD.fullmatch(word.strip(".,;:!?()")):
        return word
    at = rng.randrange(1, len(word) - 1)
    kind = rng.randrange(3)
    if kind == 0:
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    if kind == 1:
        return word[:at] + word[at + 1 :]
    return word[:at] + word[at] + word[at:]
