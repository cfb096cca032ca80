"""What machines say while they boot: the lines of their user data on their consoles."""

from __future__ import annotations

import base64
import binascii

from dray.cluster.providers.ec2.api import Ec2Api
from dray.errors import DrayError

_MARK = "dray: "
_MOST = 400


def said_on(api: Ec2Api, instance: str) -> str | None:
    """The last line of dray's on an instance's console; None where there is none, or it cannot be read."""
    try:
        text = api.console(instance)
    except DrayError:
        return None
    return last_line(text)


def last_line(text: str) -> str | None:
    """The last line with dray's mark, without it. The API gives the text as it is, or in base64."""
    if _MARK not in text:
        try:
            text = base64.b64decode(text, validate=True).decode(errors="replace")
        except (binascii.Error, ValueError):
            return None
    lines = [line.partition(_MARK)[2] for line in text.splitlines() if _MARK in line]
    return lines[-1].strip()[:_MOST] if lines else None
