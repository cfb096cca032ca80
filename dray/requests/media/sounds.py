"""Sounds in the messages of a chat: what a row may say of them.

OpenAI's form holds the sound, ``{"type": "input_audio", "input_audio": {"data": BASE64, "format": "wav"}}``.
vLLM's has a URL, and ingest makes that of the other, as vLLM does.
"""

from __future__ import annotations

import re
from typing import Any

from dray.requests.media.medium import SOUNDS, is_data
from dray.requests.media.parts import Part, PartForm, listed

_HELD = "input_audio"
_FORM = '{"type": "input_audio", "input_audio": {"data": BASE64, "format": "wav"}}'
_FORMAT = re.compile(r"[\w.+-]{1,32}", re.ASCII)


def _held_url(part: Part, field: str) -> str:
    """The data URL for a part of OpenAI's form."""
    said = _said(part)
    held = said.pop(_HELD, None)
    if not isinstance(held, dict) or said.keys() != {"type"}:
        raise SOUNDS.bad(f"the part is no sound of the form {_FORM}", field)
    held = _said(held)
    data, name = held.pop("data", None), held.pop("format", "wav")
    if held:
        raise SOUNDS.bad(f"the sound has unknown fields: {listed(held)}", field)
    if not isinstance(data, str) or not data:
        raise SOUNDS.bad(f"the part has no data; its form is {_FORM}", f"{field}.{_HELD}.data")
    if is_data(data):
        raise SOUNDS.bad(
            "the data is a URL: give its base64 alone, or a part of the form " + SOUND.written,
            f"{field}.{_HELD}.data",
        )
    if not isinstance(name, str) or not _FORMAT.fullmatch(name):
        raise SOUNDS.bad("the format is no name such as wav or mp3", f"{field}.{_HELD}.format")
    return f"data:audio/{name};base64,{data}"


def _said(value: dict[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in value.items() if one is not None}


SOUND = PartForm(
    medium=SOUNDS,
    type="audio_url",
    plain="audio",
    names=("url", "audio", "path", "audio_url"),
    most=256,
    held=_HELD,
    held_url=_held_url,
)
"""vLLM's form of a sound, and the others that rows may give."""
