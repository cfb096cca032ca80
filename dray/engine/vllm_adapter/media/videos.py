"""Videos into frames by vLLM's own loader, which is kept from reading too much, or anything else.

vLLM decodes with OpenCV, and takes what a file says of itself. Here its size, its length and its rate are
bounded before a frame is decoded. OpenCV has FFmpeg's libraries, which take a playlist for a video: a few
lines of text have them open other files of the node. So they open formats alone that hold their frames
themselves.
"""

from __future__ import annotations

import io
import os
from base64 import b64decode
from collections.abc import Mapping
from functools import cache
from math import isfinite
from typing import Any

from PIL import Image
from vllm import envs
from vllm.multimodal.media import connector, video
from vllm.multimodal.media.image import ImageMediaIO
from vllm.multimodal.video import VIDEO_LOADER_REGISTRY
from vllm.multimodal.video_decoders import opencv, resolve_video_backend_kwargs

from dray.engine.vllm_adapter.errors import is_the_engines
from dray.engine.vllm_adapter.media import decoded
from dray.engine.vllm_adapter.media.images import tell_once
from dray.errors import ConfigError, RequestRefused
from dray.requests.media.medium import VIDEOS

ARGUMENT = "media_io_kwargs"
"""vLLM's engine argument: how many frames of a video are taken, and by what."""

FRAME_PIXELS = 1 << 26
"""A frame of 8192 x 8192."""

FRAMES = 1 << 18
"""Frames that a file may have: two hours and more, with 30 a second."""

WALKED_PIXELS = 1 << 38
"""Pixels of all frames, as each one up to the last that is taken is decoded: an hour of 1920 x 1080."""

SECONDS = 24 * 3600.0
"""vLLM makes a list of moments, as long as a file says that it is."""

# FFmpeg's names. mov is MP4 too, and follows no references to other files; matroska is WebM. Of mpegts vLLM
# loses frames in silence: it seeks the end, and does not find back.
_FORMATS = "avi,flv,matroska,mov"
_OPTIONS = f"format_whitelist;{_FORMATS}|protocol_whitelist;none"
_JPEG = "video/jpeg"  # frames one by one, in base64 with commas between
_CHANNELS = 3
_NUMBERS = ("fps", "num_frames", "min_frames", "max_frames", "max_duration")
_WITHOUT_LENGTH = (
    "the video does not say how long it is, as browsers record WebM: write it anew, as with "
    "`ffmpeg -i IN -c copy OUT`"
)
_FEWER = f"; the engine argument {ARGUMENT} takes fewer frames (docs/video.md)"


class _File(io.BytesIO):
    """A file in memory. OpenCV 5.0 ends the process where ``seek`` raises, as it does for places before 0."""

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place; -1 where there is none, as FFmpeg has it."""
        try:
            return super().seek(offset, whence)
        except (ValueError, OverflowError):
            return -1


class _Bounded(opencv.OpenCVVideoBackendMixin):  # type: ignore[misc]  # vLLM has no types
    """OpenCV, for files within the limits above."""

    @classmethod
    def open_video_capture(cls, data: bytes) -> Any:
        """A video that says of itself what can be.

        Raises:
            RequestRefused: it is too large, or none.
        """
        import cv2

        file: Any = _File(data)  # OpenCV's types name another class
        capture = cv2.VideoCapture(file, cls.get_cv2_video_api(), [])
        if not capture.isOpened():
            raise _no_video()
        pixels = capture.get(cv2.CAP_PROP_FRAME_WIDTH) * capture.get(cv2.CAP_PROP_FRAME_HEIGHT)
        frames, rate = capture.get(cv2.CAP_PROP_FRAME_COUNT), capture.get(cv2.CAP_PROP_FPS)
        if frames < 0:  # FFmpeg knows no length, and vLLM takes frames by it
            raise RequestRefused(VIDEOS.invalid, _WITHOUT_LENGTH, param="messages")
        if not (isfinite(rate) and pixels > 0 and frames > 0):
            raise _no_video()
        if pixels > FRAME_PIXELS or frames > FRAMES or pixels * frames > WALKED_PIXELS:
            raise RequestRefused(
                VIDEOS.invalid,
                f"the video has {frames:,.0f} frames of {pixels:,.0f} pixels; at most {FRAMES:,} frames are "
                f"taken, of {FRAME_PIXELS:,} pixels, and {WALKED_PIXELS:,} pixels in all: cut it, or make it "
                "smaller",
                param="messages",
            )
        if rate > 0 and frames / rate > SECONDS:
            raise RequestRefused(
                VIDEOS.invalid,
                f"the video says that it is longer than {SECONDS:,.0f} seconds",
                param="messages",
            )
        return capture


@cache
def _measured(loader: Any) -> Any:
    """One of vLLM's loaders, which counts the frames that it takes before it decodes them."""

    class Measured(loader):  # type: ignore[misc]  # vLLM has no types
        @classmethod
        def read_frames(cls, cap: Any, frame_idx: list[int], *args: Any, **options: Any) -> Any:
            import cv2

            pixels = int(cap.get(cv2.CAP_PROP_FRAME_WIDTH)) * int(cap.get(cv2.CAP_PROP_FRAME_HEIGHT))
            decoded.add(VIDEOS, len(set(frame_idx)) * pixels * _CHANNELS, _FEWER)
            return super().read_frames(cap, frame_idx, *args, **options)

    return Measured


class _Videos(video.VideoMediaIO):  # type: ignore[misc]  # vLLM has no types
    """vLLM's reader of the videos in chats, whose verdicts are dray's."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        loader: Any = type(vars(self)["video_loader"])
        self.video_loader = _measured(loader)()
        # Of frames in the row itself: they are counted here, and not with the row's images.
        given: Any = vars(self)["image_io"]
        self.image_io = ImageMediaIO(given.image_mode, **given.kwargs)

    def load_base64(self, media_type: str, data: str) -> Any:
        """The frames, and what is known of them.

        Raises:
            RequestRefused: they are none that can be decoded, or too many.
        """
        try:
            if media_type.lower() == _JPEG:
                self._refuse_lost_frames(data)
            found = super().load_base64(media_type, data)
        except Exception as error:  # noqa: BLE001  the seam: OpenCV, Pillow and vLLM raise what they like
            raise _verdict(error) from None
        if not len(found.media[0]):
            raise _no_video()
        return found

    def _refuse_lost_frames(self, data: str) -> None:
        """Frames in the row itself: vLLM drops those after ``num_frames``, and decodes each by itself."""
        count = data.count(",") + 1
        if 0 < self.num_frames < count:
            raise RequestRefused(
                VIDEOS.invalid,
                f"the video has {count:,} frames, and the engine takes {self.num_frames:,}; to take all, "
                f'give the engine argument {ARGUMENT}={{"video": {{"num_frames": -1}}}}',
                param="messages",
            )
        for frame in data.split(","):
            with Image.open(io.BytesIO(b64decode(frame, validate=True))) as image:
                decoded.add(VIDEOS, image.width * image.height * _CHANNELS)


def refuse_other_decoders(model_config: Any) -> None:
    """Refuse engine arguments by which OpenCV can decode no video, or another library would.

    Each row with a video would be an error row.

    Raises:
        ConfigError: there are some.
    """
    config = model_config.multimodal_config
    asked: Mapping[str, Any] = ((config.media_io_kwargs if config else None) or {}).get("video") or {}
    for name in _NUMBERS:
        value = asked.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(
                f"engine argument {ARGUMENT}: {name} of videos is no number: {str(value)[:40]!r}"
            )
    loader = asked.get("video_backend") or envs.VLLM_VIDEO_LOADER_BACKEND
    if loader not in VIDEO_LOADER_REGISTRY.name2class:
        known = ", ".join(sorted(VIDEO_LOADER_REGISTRY.name2class))
        raise ConfigError(
            f"engine argument {ARGUMENT}: vLLM has no video_backend {str(loader)[:40]!r}; it has {known}"
        )
    if asked.get("backend", "opencv") != "opencv" or VIDEO_LOADER_REGISTRY.backend_requires_gpu(loader):
        raise ConfigError(
            f"engine argument {ARGUMENT}: dray decodes videos with OpenCV alone, which it keeps to the file "
            "and to its limits; leave backend out"
        )
    try:
        resolve_video_backend_kwargs("opencv", dict(asked))
    except ValueError as error:  # options of other decoders
        raise ConfigError(f"engine argument {ARGUMENT}: {error}; leave it out") from None


def read_videos_alone() -> None:
    """Have vLLM's loader open no file but the one that it is given, and say nothing of what it holds."""
    import cv2

    # Read whenever a file is opened.
    os.environ["OPENCV_FFMPEG_CAPTURE_OPTIONS"] = _OPTIONS
    os.environ["OPENCV_FFMPEG_LOGLEVEL"] = "-8"
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    opencv.OpenCVVideoBackendMixin = _Bounded
    connector.VideoMediaIO = _Videos
    tell_once(opencv.__name__)  # frames that a file lacks, for each of them
    tell_once(VIDEO_LOADER_REGISTRY.load("opencv").__module__)


def _verdict(error: Exception) -> Exception:
    """What an error in decoding means: the video is none, or the engine is at its end."""
    return error if isinstance(error, RequestRefused) or is_the_engines(error) else _no_video()


def _no_video() -> RequestRefused:
    return RequestRefused(
        VIDEOS.invalid,
        "the video cannot be decoded: it is damaged, too short, no MP4, MOV, WebM, Matroska, AVI or FLV, or "
        "of a codec that OpenCV lacks, such as AV1",
        param="messages",
    )
