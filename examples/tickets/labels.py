"""What a ticket is answered with: the classes, the answer text, and its reading."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

CATEGORIES = (
    "delivery",
    "damaged",
    "wrong_item",
    "refund",
    "return",
    "cancellation",
    "billing",
    "account",
    "technical",
    "question",
)
URGENCIES = ("low", "normal", "high", "critical")


@dataclass(frozen=True, kw_only=True)
class Label:
    """The right answer to one ticket; ``order`` is written as in the text, or None."""

    category: str
    urgency: str
    order: str | None

    def as_json(self) -> str:
        """The answer text, byte for byte what the model is trained to write."""
        return json.dumps(asdict(self))
