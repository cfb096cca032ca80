"""Transcriptions and translations: sound as text, in its own language or in another."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from binascii import Error
from dataclasses import replace
from math import ceil
from struct import pack
from typing import Any, Final

from dray.kinds.generation import TEXT_COLUMN
from dray.kinds.kind import Body, EngineKind, Kind

SOUND: Final = "file_url"
"""The field that holds a sound, or says where it is: the name that vLLM's batch runner has for it."""

CHUNK_SECONDS = 30.0
"""Sound of one sequence: Whisper's. Other models take more at once, and are counted as many."""

_HEAD = 64  # characters of base64: 48 bytes
_BASE64 = re.compile(r"data:[^,]{0,256},", re.IGNORECASE)
_BYTES_PER_SECOND = 16_000  # of sound whose header does not tell: 128 kbit/s
_MOST_CHUNKS = 240  # two hours


def sequences(body: Body) -> tuple[str, int]:
    """The chunks that a sound will be cut into, as far as its first bytes tell."""
    url = body.get(SOUND)
    found = _BASE64.match(url) if isinstance(url, str) else None
    if found is None or not isinstance(url, str):
        return SOUND, 1
    size = (len(url) - found.end()) * 3 // 4
    try:
        head = b64decode(url[found.end() : found.end() + _HEAD])
    except (Error, ValueError):
        return SOUND, 1
    return SOUND, min(_MOST_CHUNKS, max(1, ceil(_seconds(head, size) / CHUNK_SECONDS)))


def _seconds(head: bytes, size: int) -> float:
    """How long a sound is: exact for WAV and FLAC, and else what its bytes are at a usual rate."""
    if head[:4] == b"RIFF" and head[12:16] == b"fmt ":
        rate = int.from_bytes(head[28:32], "little")
        return size / rate if rate else 0.0
    if head[:4] == b"fLaC":
        # 20 bits of rate, 3 and 5 of channels and width, 36 of length (RFC 9639, 8.2)
        packed = int.from_bytes(head[18:26], "big")
        rate, length = packed >> 44, packed & ((1 << 36) - 1)
        return length / rate if rate else 0.0
    return size / _BYTES_PER_SECOND


def _silence() -> str:
    """A quarter of a second, as a WAV file of 8,000 samples a second in a data URL."""
    samples = bytes([128]) * 2000
    form = pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, 8000, 8000, 1, 8)
    content = b"WAVE" + form + pack("<4sI", b"data", len(samples)) + samples
    return f"data:audio/wav;base64,{b64encode(pack('<4sI', b'RIFF', len(content)) + content).decode()}"


def _body(prompt: str) -> Body:
    return {"prompt": prompt}


def _simulated(body: Body, text: str, digest: str) -> Body:
    return {"object": "transcription", "text": text}


_FIELDS = frozenset(
    {
        *("language", "to_language", "prompt", "hotwords", "response_format", "timestamp_granularities[]"),
        *("temperature", "top_p", "top_k", "min_p", "seed", "max_completion_tokens", "vllm_xargs"),
        *("frequency_penalty", "presence_penalty", "repetition_penalty"),
    }
)
SPEECH = EngineKind(
    name="speech",
    does="turns sound into text",
    serving="dray.engine.vllm_adapter.kinds.speech:SpeechServing",
    generates=True,
    splits_prompts=False,
    fields=_FIELDS,
    greedy=True,
)
_PROOF: dict[str, Any] = {SOUND: _silence(), "language": "en", "max_completion_tokens": 4, "temperature": 0}
TRANSCRIPTION = Kind(
    name="transcription",
    url="/v1/audio/transcriptions",
    engine=SPEECH,
    texts=(SOUND,),
    body=_body,
    sound=SOUND,
    spelled=dict.fromkeys(("max_tokens", "max_output_tokens"), "max_completion_tokens"),
    prompts=sequences,
    proof=_PROOF,
    simulated=_simulated,
    columns=(TEXT_COLUMN,),
)
TRANSLATION = replace(TRANSCRIPTION, name="translation", url="/v1/audio/translations")
