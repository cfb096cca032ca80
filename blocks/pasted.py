"""What people paste into a field of a block may end in a blank or a newline, which is none of the value."""

from __future__ import annotations

from pydantic import ConfigDict

PASTED = ConfigDict(str_strip_whitespace=True)
"""The ``model_config`` of each block: the ends of its texts, secrets too, are without blanks."""
