"""How many replicas a user asks for: a number, or the fewest and the most, written ``MIN:MAX``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pydantic_core import PydanticCustomError

_RANGE = re.compile(r"\s*(\d+)\s*(?::\s*(\d+)\s*)?")
_ADVICE = "write how many, such as 4, or the fewest and the most, such as 1:8"


@dataclass(frozen=True, slots=True)
class ReplicaRange:
    """A job has ``least`` replicas from its start to its end, and up to ``most`` while shards wait."""

    least: int
    most: int

    @property
    def fixed(self) -> bool:
        """Whether the number never changes."""
        return self.least == self.most

    def __str__(self) -> str:
        return str(self.least) if self.fixed else f"{self.least}:{self.most}"


def read_range(given: int | str | None) -> ReplicaRange | None:
    """What was given, as a range; None for nothing.

    Raises:
        PydanticCustomError: it is not written so, or cannot be.
    """
    if given is None:
        return None
    found = _RANGE.fullmatch(str(given))
    if found is None:
        raise _refused(f"Input should be a number of replicas: {_ADVICE}")
    least, most = int(found[1]), int(found[2] or found[1])
    if least < 1:
        raise _refused(f"Input should be greater than or equal to 1: {_ADVICE}")
    if most < least:
        raise _refused(f"MIN ({least}) is greater than MAX ({most}): {_ADVICE}")
    return ReplicaRange(least, most)


def _refused(message: str) -> PydanticCustomError:
    return PydanticCustomError("replicas", message)
