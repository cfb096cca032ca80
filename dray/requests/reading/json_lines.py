"""Lines of a file that should hold one JSON object each, and what to say of one that is written otherwise."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import chain

import orjson

from dray.errors import InputError
from dray.storage.files import open_lines, open_stream, refused
from dray.storage.objects import ObjectStoreOptions

Line = tuple[int, "bytes | None"]
"""(line number from 1, the line without its end); None for one over the limit."""

_ARRAY = re.compile(rb"\[\s*\{")
_OBJECT = re.compile(rb"\{\s*\n\s*\"")
_START_BYTES = 4096
_UNPACK = {".gz": "gzip -dc", ".zst": "zstd -dc"}


def json_lines(uri: str, *, limit: int, options: ObjectStoreOptions | None = None) -> Iterator[Line]:
    """The lines of a file, perhaps without blank ones.

    Raises:
        InputError: the file is one JSON array, or one object over many lines; says how to convert it.
    """
    found = open_lines(uri, limit=limit, options=options)
    head: list[Line] = []
    for number, line in found:
        if line is None or line.strip():
            head.append((number, line))
        if len(head) == 2:
            break
    if head:
        _refuse_document(uri, [line for _, line in head], options)
    return chain(head, found)


def _refuse_document(uri: str, first: list[bytes | None], options: ObjectStoreOptions | None) -> None:
    whole = [line.strip() for line in first if line is not None]
    start = b"\n".join(whole) if len(whole) == len(first) else _start(uri, options)
    alone = len(first) == 1 or not _is_json(first[0])  # else it is one bad row among others
    if alone and _ARRAY.match(start):
        raise _refused(uri, "one JSON array, not JSON lines", ".[]")
    if _OBJECT.match(start):
        raise _refused(uri, "one JSON object over many lines, not JSON lines", ".")


def _is_json(line: bytes | None) -> bool:
    try:
        orjson.loads(line or b"")
    except orjson.JSONDecodeError:
        return False
    return True


def _start(uri: str, options: ObjectStoreOptions | None) -> bytes:
    with open_stream(uri, options=options) as stream:
        return stream.read(_START_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip()


def _refused(uri: str, what: str, path: str) -> InputError:
    name = uri.rpartition("/")[2]
    unpack = next((command for suffix, command in _UNPACK.items() if name.lower().endswith(suffix)), None)
    stem = (name.rpartition(".")[0] if unpack else name).rpartition(".")[0]
    target = f"{stem}.jsonl" if f"{stem}.jsonl" != name else f"{stem}.rows.jsonl"
    given, written = shlex.quote(name), shlex.quote(target)
    command = f"{unpack} {given} | jq -c '{path}'" if unpack else f"jq -c '{path}' {given}"
    message = f"this file is {what}; convert it: {command} > {written}"
    return refused("not_json_lines", message, uri)
