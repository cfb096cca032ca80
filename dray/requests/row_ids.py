"""The ids in an answer that come from its row's index, and how the same answer of another row has them.

An answer of vLLM begins with ``{"id":"chatcmpl-INDEX"``, and its tool calls are ``call_INDEX_CHOICE_NUMBER``.
Quotes inside of texts are escaped in JSON, so these bytes stand nowhere else. The rest stays as it is, byte
by byte: an answer that is read and written again may have its numbers in another form.
"""

from __future__ import annotations

import re

_HEAD = re.compile(rb'\{"id":"([a-z]+-)(\d+)"')


def with_index(response: bytes, old: int, new: int) -> bytes:
    """The answer to row ``old`` as row ``new`` would have got it."""
    head = _HEAD.match(response)
    if head is not None and int(head[2]) == old:
        response = b'{"id":"%b%d"%b' % (head[1], new, response[head.end() :])
    return response.replace(b'"id":"call_%d_' % old, b'"id":"call_%d_' % new)
