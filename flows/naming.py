"""What the names of flow runs say of a run's parameters: everyone who sees Prefect reads them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dray.storage.addresses import HUB, without_secret
from dray.storage.objects import is_object

DATABASE = "query"
"""What stands for a database: its URL may hold a login, and the ids of such jobs begin so too."""


def named_input(given: Mapping[str, Any], parts: int) -> str:
    """The first input among a run's parameters; see :func:`named`."""
    inputs = given["input"]
    first = inputs if isinstance(inputs, str) else next(iter(inputs), "nothing")
    return named(first, parts)


def named(address: str, parts: int) -> str:
    """The last parts of a path or an address, without anything that may be secret."""
    if "://" in address and not address.startswith("file://") and not _is_of_files(address):
        return DATABASE
    return "/".join(Path(without_secret(address)).parts[-parts:])


def _is_of_files(address: str) -> bool:
    return is_object(address) or address.startswith(HUB)
