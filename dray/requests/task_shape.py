"""What requests of one task have in common: all of a body but its texts, and the length that it allows.

Of texts, the words count with which nearly all rows of a job begin or end: they say what to do with the rest.
Two jobs with one shape ask the same of a model, over other texts: their answers have about the same lengths.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from math import ceil
from typing import Any

import orjson

from dray.kinds import KINDS, LENGTH_FIELDS
from dray.requests.sameness import WITHOUT_EFFECT
from dray.requests.spool.spool import decode

LOOKED_AT = 200
"""Rows that are looked at for the shape of a job."""

_SHARE = 0.9  # of them that have one shape, where the job has it
_LOOKED_INTO = 1 << 15  # characters of a text, from either end
_LAST_WORD = re.compile(r"(?<!\w)\w+$")  # begun at its first character alone: a text may be one word
_FIRST_WORD = re.compile(r"^\w+")
_NO_MATTER = WITHOUT_EFFECT | {*LENGTH_FIELDS, "model", "seed"}
_INSTRUCTIONS = ("system", "developer")  # roles of messages that say what to do with the others


def shape_of(url: str, body: dict[str, Any]) -> str | None:
    """The shape of one request; None where its answer has the length that it allows in any case."""
    kind = KINDS[url]
    if not kind.engine.generates or body.get("ignore_eos"):
        return None
    asked = {name: value for name, value in body.items() if name not in {*kind.texts, *_NO_MATTER}}
    messages = kind.as_chat(body).get("messages")
    told = [one.get("content") for one in messages if _instructs(one)] if isinstance(messages, list) else []
    return _hashed([url, asked, told])


def shape_of_rows(lines: Iterable[bytes]) -> str | None:
    """The shape that nearly all of some rows have, given as lines of a spool; None where there is none."""
    looked_at = [_look(line) for line in lines]
    shape, rows = next(iter(Counter(one.shape for one in looked_at).most_common(1)), (None, 0))
    least = ceil(_SHARE * len(looked_at))
    if shape is None or rows < least:
        return None
    alike = [one for one in looked_at if one.shape == shape]
    begin = _LAST_WORD.sub("", _shared([one.begin for one in alike], least))
    end = _FIRST_WORD.sub("", _shared([one.end for one in alike], least)[::-1])
    return _hashed([shape, _words(begin), _words(end)])


@dataclass(frozen=True, slots=True)
class _Looked:
    """What is kept of a row, which may have megabytes: ``end`` is that of its text, read backwards."""

    shape: str | None
    begin: str
    end: str


def _look(line: bytes) -> _Looked:
    row = decode(line)
    shape = shape_of(row.url, row.body)
    text = "" if shape is None else _text(row.url, row.body)
    return _Looked(shape, text[:_LOOKED_INTO], text[: -_LOOKED_INTO - 1 : -1])


def _text(url: str, body: dict[str, Any]) -> str:
    """What a row says, but for its instructions, which are in its shape."""
    kind = KINDS[url]
    messages = kind.as_chat(body).get("messages")
    if isinstance(messages, list):
        parts = [one.get("content") for one in messages if isinstance(one, dict) and not _instructs(one)]
    else:
        parts = [body.get(name) for name in kind.texts]
    return "\n".join(part if isinstance(part, str) else orjson.dumps(part).decode() for part in parts)


def _shared(texts: list[str], least: int) -> str:
    """The longest beginning that so many of the texts have."""
    texts = sorted(texts)
    pairs = zip(texts, texts[least - 1 :], strict=False)
    return max((_begin(one, other) for one, other in pairs), key=len, default="")


def _begin(one: str, other: str) -> str:
    return one[: sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))]


def _words(text: str) -> list[str]:
    """Whole words alone: rows of two jobs may share a full stop, or half a number, by chance."""
    return re.findall(r"\w+", text)


def _hashed(parts: list[Any]) -> str:
    text = orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(text).hexdigest()[:16]


def _instructs(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") in _INSTRUCTIONS
