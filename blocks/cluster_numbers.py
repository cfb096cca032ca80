"""Numbers in the forms of cluster blocks: with the defaults and bounds of the settings that they become."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from dray.cluster.providers.checking import Bounds


def number(settings: type[Any], bounds: Bounds, name: str, description: str) -> Any:
    """The field ``name`` of a block: Prefect's page refuses what ``settings`` would refuse."""
    least, most = bounds[name]
    default = settings.__dataclass_fields__[name].default
    return Field(default=default, ge=least, le=most, description=description)
