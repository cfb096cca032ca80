"""How much of an engine a row takes, and how much one row may ask for.

A row is more than one sequence when it holds several prompts or inputs, or asks for several answers (``n``).
An engine keeps some KiB for each sequence that waits in it, so sequences are what is admitted, not rows.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from dray.codes import ErrorCode
from dray.errors import RequestRefused
from dray.kinds import KINDS, MAX_PAIR_CHARACTERS, MAX_SEQUENCES, Kind, characters_of
from dray.requests.model import Request

# Admit a little more than the engine runs at once, so that a finished request is replaced within the
# same step: Ray Data LLM's cap is 1.1 x max_num_seqs (ray#50270).
ADMISSION_FACTOR = 1.2
MAX_ADMITTED_BYTES = 256 * 1024 * 1024
"""Bytes of spool lines inside an engine: 16 lines of the greatest length."""

MAX_MESSAGE_ITEMS = 16_384
"""Messages and their parts in one row. vLLM's classes report up to eight faults of 1 KB for each."""
MAX_ITEMS = 262_144
"""Elements of all other lists in one row, a list of every token of a vocabulary among them."""

_TOO_LARGE: ErrorCode = "request_too_large"
_LARGEST = 2.0**63
_FREE_JSON = frozenset({"chat_template_kwargs", "response_format", "structured_outputs", "text", "tools"})
_MAY_BE_LONG = 2 * MAX_MESSAGE_ITEMS  # bytes: an element of a list takes two


@dataclass(slots=True)
class Held:
    """What an engine holds: sequences, and the bytes of their spool lines."""

    sequences: int = 0
    size: int = 0

    def add(self, sequences: int, size: int) -> None:
        """A row entered."""
        self.sequences += sequences
        self.size += size

    def remove(self, sequences: int, size: int) -> None:
        """A row left."""
        self.sequences -= sequences
        self.size -= size

    def takes(self, sequences: int, size: int, *, limit: int) -> bool:
        """Whether a row fits beside what is held; one that is larger than the limits runs alone."""
        if not self.sequences:
            return True
        return self.sequences + sequences <= limit and self.size + size <= MAX_ADMITTED_BYTES


def sequence_limit(max_num_seqs: int) -> int:
    """The sequences that an engine running ``max_num_seqs`` at a time holds."""
    return int(max_num_seqs * ADMISSION_FACTOR) + 1


def sequences_of(request: Request, size: int | None = None) -> int:
    """The sequences that a row asks for; ``size`` is that of its line in bytes, where it is known.

    Raises:
        RequestRefused: they are more than one row may ask for, a list in the body is too long to be read, or
            a number in it is beyond what the engine holds.
    """
    body, kind = request.body, KINDS[request.url]
    _refuse_huge_numbers(body, kind.texts)
    if size is None or size > _MAY_BE_LONG:
        _refuse_long_lists(body, kind)
    name, prompts = kind.prompts(body)
    copies = _copies(body["n"]) if kind.engine.answers_freely and "n" in body else 1
    if prompts > MAX_SEQUENCES:
        raise _too_large(f"`{name}` holds {prompts:,} prompts; a row may hold {MAX_SEQUENCES:,}", name)
    if prompts > 1 and prompts * copies > MAX_SEQUENCES:
        raise _too_large(
            f"`{name}` holds {prompts:,} prompts, each to be answered {copies:,} times (`n`): "
            f"a row gets at most {MAX_SEQUENCES:,} answers",
            name,
        )
    _refuse_large_pairs(body, kind)
    return min(prompts * copies, MAX_SEQUENCES)


def _refuse_large_pairs(body: dict[str, Any], kind: Kind) -> None:
    """A query is read once for each document: a short line can be hours of work for the tokenizer."""
    if kind.pairs is None or (size := characters_of(kind.pairs(body))) <= MAX_PAIR_CHARACTERS:
        return
    raise _too_large(
        f"its pairs hold {size:,} characters, the query counted with each document; a row may hold "
        f"{MAX_PAIR_CHARACTERS:,}",
        kind.documents,
    )


def _copies(n: Any) -> int:
    """The answers to each prompt, as vLLM's classes read ``n``; what they refuse counts once."""
    try:
        return max(1, int(n)) if isinstance(n, int | float | str) else 1
    except (ValueError, OverflowError):
        return 1


def _refuse_long_lists(body: dict[str, Any], kind: Kind) -> None:
    name = kind.messages
    items = _items([body.get(name)])
    if items > MAX_MESSAGE_ITEMS:
        raise _too_large(
            f"`{name}` holds {items:,} messages and parts; a row may hold {MAX_MESSAGE_ITEMS:,}", name
        )
    others = _items([value for name, value in body.items() if name not in kind.texts])
    if others > MAX_ITEMS:
        raise _too_large(f"the body's lists hold {others:,} elements; a row may hold {MAX_ITEMS:,}", None)


def _refuse_huge_numbers(body: dict[str, Any], texts: Collection[str]) -> None:
    """The engine makes whole numbers of them, and its core takes 64 bits. A schema has them as bounds."""
    for name, value in body.items():
        if name in texts or name in _FREE_JSON:
            continue
        if isinstance(value, dict | list) and _holds_huge(value):
            raise RequestRefused(
                "number_too_large", f"`{name}` holds a number beyond 64 bits; write a smaller one", param=name
            )


def _holds_huge(value: Any) -> bool:
    rest = [value]
    while rest:
        one = rest.pop()
        for item in one.values() if isinstance(one, dict) else one:
            if type(item) is float and abs(item) >= _LARGEST:
                return True
            if isinstance(item, dict | list):
                rest.append(item)
    return False


def _items(values: list[Any]) -> int:
    """The elements of all lists in some values, however deep."""
    items, rest = 0, values
    while rest:
        one = rest.pop()
        if isinstance(one, list):
            items += len(one)
            rest.extend(item for item in one if isinstance(item, list | dict))
        elif isinstance(one, dict):
            rest.extend(item for item in one.values() if isinstance(item, list | dict))
    return items


def _too_large(message: str, param: str | None) -> RequestRefused:
    return RequestRefused(_TOO_LARGE, f"{message}; cut it into several rows", param=param)
