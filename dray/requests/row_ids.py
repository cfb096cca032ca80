"""The ids in an answer that come from its row's index, and how the same answer of another row has them.

An answer of vLLM begins with ``{"id":"chatcmpl-INDEX"``, and its tool calls are ``call_INDEX_CHOICE_NUMBER``,
or, for Mistral's models, nine letters and digits: older tokenizers of theirs take no others in a history.
Kimi K2 writes ``functions.NAME:NUMBER`` itself, and is to see the same again: these stay.
Quotes inside of texts are escaped in JSON, so these bytes stand nowhere else. A response repeats objects of
its request, which may hold anything: of it, ids are changed at its begin and in its output alone. The rest
stays as it is, byte by byte: an answer that is read and written again may have its numbers in another form.
"""

from __future__ import annotations

import re

_HEAD = re.compile(rb'\{"id":"([a-z]+[-_])(\d+)"')
_OUTPUT = re.compile(rb'"object":"response","output":\[.*?\],"parallel_tool_calls":', re.DOTALL)
_OF_THE_MODEL = re.compile(r"functions\.[^:]+:\d+")
_MISTRALS = re.compile(r"[a-zA-Z0-9]{9}")
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_ROW_DIGITS, _PLACE_DIGITS = 6, 3  # the nine of Mistral's


def call_id(given: str, index: int, *place: int) -> str:
    """The id of a tool call at ``place`` of the answer to row ``index``; vLLM has ``given`` it another."""
    if _OF_THE_MODEL.fullmatch(given):
        return given
    if not _MISTRALS.fullmatch(given):
        return "_".join(map(str, ("call", index, *place)))
    number = 0
    for one in place:
        number = number * len(_DIGITS) + one
    return _digits(index, _ROW_DIGITS) + _digits(number, _PLACE_DIGITS)


def _digits(number: int, count: int) -> str:
    """The last digits of a number, which need not be told from those of every other row."""
    found = ""
    for _ in range(count):
        number, digit = divmod(number, len(_DIGITS))
        found = _DIGITS[digit] + found
    return found


def with_index(response: bytes, old: int, new: int) -> bytes:
    """The answer to row ``old`` as row ``new`` would have got it."""
    head = _HEAD.match(response)
    if head is not None and int(head[2]) == old:
        response = b'{"id":"%b%d"%b' % (head[1], new, response[head.end() :])
    output = _OUTPUT.search(response)
    if output is None:
        response = response.replace(b'"id":"call_%d_' % old, b'"id":"call_%d_' % new)
        return _with_mistrals(response, b"id", old, new)
    ids = re.compile(rb'("(?:id|call_id)":"[a-z]+_)%d_' % old)
    changed = ids.sub(lambda found: b"%b%d_" % (found[1], new), output[0])
    changed = _with_mistrals(changed, b"call_id", old, new)
    return response[: output.start()] + changed + response[output.end() :]


def _with_mistrals(answer: bytes, name: bytes, old: int, new: int) -> bytes:
    before, after = (_digits(index, _ROW_DIGITS).encode() for index in (old, new))
    ids = re.compile(rb'"%b":"%b([0-9a-z]{%d})"' % (name, before, _PLACE_DIGITS))
    return ids.sub(lambda found: b'"%b":"%b%b"' % (name, after, found[1]), answer)
