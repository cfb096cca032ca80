"""Whether another order can pay: the first bytes of rows, in a third of the time that a full look takes."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np

from dray.kinds import LENGTH_FIELDS

_FIRST = (b"prompt", b"instructions", b"input", b"queries", b"query", b"text_1", b"data_1")
_TEXTS = {b'"messages":': 96, **{b'"%b":' % name: 70 for name in _FIRST}}
"""Bytes after each name: about a block of text, and the 27 that a chat's first message begins with."""
_LENGTHS = tuple(f'"{name}":'.encode() for name in (*LENGTH_FIELDS, "n"))
_NUMBER_BYTES = 12
_LEAST_ALIKE = 0.01


def may_pay(lines: Iterable[bytes]) -> bool:
    """Whether some rows begin alike, or ask for answers of different lengths. Lines are those of a spool.

    It may say so where it is not: the full look decides. Where less than one row in a hundred shares its
    first 70 bytes, no order saves a fiftieth of the prompts.
    """
    heads = array("q")
    first: list[tuple[bytes, bytes]] | None = None
    for line in lines:
        body, end = line.find(b'"b":{'), line.rfind(b',"f":')
        lengths = [_numbers(line, name, body, end) for name in _LENGTHS]
        if first is None:
            first = lengths
        elif lengths != first:
            return True
        heads.append(hash(_head(line, body, end)))  # compared within this process alone
    if not heads:
        return False
    _, counts = np.unique(np.frombuffer(heads, np.int64), return_counts=True)
    return float(counts[counts > 1].sum()) >= _LEAST_ALIKE * len(heads)


def _head(line: bytes, body: int, end: int) -> bytes:
    for name, count in _TEXTS.items():
        at = line.find(name, body, end)
        if at >= 0:
            begin = at + len(name)
            return line[begin : min(begin + count, end)]
    return b""


def _numbers(line: bytes, name: bytes, body: int, end: int) -> tuple[bytes, bytes]:
    """What follows a name, where it first stands and last: one of them may be a name in a row's metadata.

    Quotes inside of texts are escaped, so it is a name.
    """
    first = line.find(name, body, end)
    if first < 0:
        return b"", b""
    return _number(line, first + len(name)), _number(line, line.rfind(name, first, end) + len(name))


def _number(line: bytes, begin: int) -> bytes:
    return line[begin : begin + _NUMBER_BYTES].partition(b",")[0].rstrip(b"}")
