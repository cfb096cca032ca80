"""The ids in an answer that come from its row's index, and how the same answer of another row has them.

An answer of vLLM begins with ``{"id":"chatcmpl-INDEX"``, and its tool calls are ``call_INDEX_CHOICE_NUMBER``.
Quotes inside of texts are escaped in JSON, so these bytes stand nowhere else. A response repeats objects of
its request, which may hold anything: of it, ids are changed at its begin and in its output alone. The rest
stays as it is, byte by byte: an answer that is read and written again may have its numbers in another form.
"""

from __future__ import annotations

import re

_HEAD = re.compile(rb'\{"id":"([a-z]+[-_])(\d+)"')


_OUTPUT = re.compile(rb'"object":"response","output":\[.*?\],"parallel_tool_calls":', re.DOTALL)


def with_index(response: bytes, old: int, new: int) -> bytes:
    """The answer to row ``old`` as row ``new`` would have got it."""
    head = _HEAD.match(response)
    if head is not None and int(head[2]) == old:
        response = b'{"id":"%b%d"%b' % (head[1], new, response[head.end() :])
    output = _OUTPUT.search(response)
    if output is None:
        return response.replace(b'"id":"call_%d_' % old, b'"id":"call_%d_' % new)
    ids = re.compile(rb'("(?:id|call_id)":"[a-z]+_)%d_' % old)
    changed = ids.sub(lambda found: b"%b%d_" % (found[1], new), output[0])
    return response[: output.start()] + changed + response[output.end() :]
