"""Sound files into samples by vLLM's own loader, which is kept from reading anything else.

FFmpeg's libraries take a playlist for sound: a few lines of text have them open other files of the node, or
addresses on the network. So here they open formats alone that hold their sound themselves.
"""

from __future__ import annotations

from base64 import b64decode
from importlib.util import find_spec
from math import gcd
from typing import Any

import numpy as np
from vllm.multimodal import audio as resampling
from vllm.multimodal.media import audio, connector

from dray.engine.vllm_adapter.errors import is_the_engines
from dray.engine.vllm_adapter.media import decoded
from dray.engine.vllm_adapter.media.images import tell_once
from dray.errors import RequestRefused
from dray.kinds.speech import SOUND
from dray.requests.media.medium import SOUNDS

# FFmpeg's names. mov is MP4 and M4A too, and follows no references to other files; matroska is WebM.
_FORMATS = "aac,aiff,amr,au,caf,flac,matroska,mov,mp3,ogg,w64,wav"
_OPTIONS = {"format_whitelist": _FORMATS, "protocol_whitelist": "pipe"}
_BYTES_A_SECOND = 4 * 16_000  # at the rate that models take
_OF_VLLM = resampling.resample_audio_torchaudio
_HAS_TORCHAUDIO = find_spec("torchaudio") is not None
_COMMON = 1000  # 11,025 to 16,000 is 441 to 640
_ABOUT_LENGTH = ("Audio exceeds", "Audio would allocate", "Audio decode exceeded")


class _Alone:
    """PyAV, whose files lead to no others."""

    def __init__(self, av: Any) -> None:
        self._av = av

    def __getattr__(self, name: str) -> Any:
        return getattr(self._av, name)

    def open(self, file: Any, **options: Any) -> Any:
        """A file of one of the formats above."""
        return self._av.open(file, **options, options=_OPTIONS)


class _Sounds(audio.AudioMediaIO):  # type: ignore[misc]  # vLLM has no types
    """vLLM's reader of the sounds in chats, whose verdicts are dray's."""

    def get_max_bytes(self) -> int:
        """dray's own limit: vLLM's is one of its server."""
        return SOUNDS.most_bytes

    def load_base64(self, media_type: str, data: str) -> tuple[Any, float]:
        """The samples and their rate.

        Raises:
            RequestRefused: they are none that can be decoded.
        """
        try:
            samples, rate = super().load_base64(media_type, data)
        except Exception as error:  # noqa: BLE001  the seam: three libraries raise what they like
            raise _verdict(error, "messages") from None
        if not samples.size or not np.isfinite(samples).all():
            raise _no_sound("messages")
        decoded.add(SOUNDS, max(samples.nbytes, int(len(samples) / rate * _BYTES_A_SECOND)))
        return samples, rate


def _resampled(samples: Any, *, orig_sr: float, target_sr: float) -> Any:
    """A chat's sound at the model's rate: by torchaudio, as in vLLM, or by soxr where that cannot be.

    vLLM for CPUs comes without torchaudio. And for odd rates torchaudio makes a table of gigabytes: the
    product of both rates, each divided by what they have in common.
    """
    rates = round(orig_sr), round(target_sr)
    odd = max(rates) // gcd(*rates) > _COMMON
    resample = resampling.resample_audio_soxr if odd or not _HAS_TORCHAUDIO else _OF_VLLM
    return resample(samples, orig_sr=orig_sr, target_sr=target_sr)


def read_files_alone() -> None:
    """Have vLLM's loader open no file but the one that it is given, by the same libraries on every node."""
    if not isinstance(audio.av, _Alone):
        audio.av = _Alone(audio.av)
    audio.AudioDecoder = None  # torchcodec's, which opens playlists, too
    connector.AudioMediaIO = _Sounds
    resampling.resample_audio_torchaudio = _resampled
    tell_once(audio.__name__)  # that there is none, for each sound


def chunks_of(serving: Any, url: str) -> tuple[list[Any], float]:
    """The sound in a data URL, cut as ``serving``'s model takes it, and its seconds.

    Raises:
        RequestRefused: it is none that can be decoded.
    """
    try:
        chunks, seconds = serving._decode_and_chunk_speech(b64decode(url.partition(",")[2], validate=True))
    except ValueError as error:
        cause = error.__cause__
        if isinstance(cause, Exception) and is_the_engines(cause):
            raise cause from None
        raise _verdict(error, SOUND) from None
    if not all(chunk.size and np.isfinite(chunk).all() for chunk in chunks):
        raise _no_sound(SOUND)
    return chunks, seconds


def _verdict(error: Exception, param: str) -> Exception:
    """What an error in decoding means: the sound in ``param`` is none, or the engine is at its end."""
    if is_the_engines(error):
        return error
    message = str(error.args[0]) if error.args else ""
    if isinstance(error, ValueError) and message.startswith(_ABOUT_LENGTH):
        return RequestRefused(SOUNDS.invalid, message, param=param)
    return _no_sound(param)


def _no_sound(param: str) -> RequestRefused:
    return RequestRefused(
        SOUNDS.invalid,
        "the sound cannot be decoded: it is damaged, empty, or no WAV, FLAC, Ogg, MP3, MP4, M4A or WebM",
        param=param,
    )
