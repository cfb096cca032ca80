"""Videos into frames by vLLM's loader: what it may read, how much, and what it says of what it cannot."""

from __future__ import annotations

import io
import random
from base64 import b64encode
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dray.errors import ConfigError, RequestRefused
from tests.support.seeing_model import picture
from tests.support.speech_model import sound
from tests.support.watching_model import as_url, film, film_in_av1

pytestmark = pytest.mark.integration

NO_VIDEO = (
    "the video cannot be decoded: it is damaged, too short, no MP4, MOV, WebM, Matroska, AVI or FLV, or of a "
    "codec that OpenCV lacks, such as AV1"
)
FORMS = ("mp4", "mov", "webm", "mkv", "avi", "flv")
LOADERS = ("Qwen2VLVideoProcessor", "Qwen3VLVideoProcessor", "Glm5NextVideoProcessor", None)
Read = Callable[..., Any]


@pytest.fixture
def read(quiet_vllm: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Read]:
    """A function that gives the frames in a data URL, as a row's own."""
    monkeypatch.setenv("OPENCV_FFMPEG_CAPTURE_OPTIONS", "")
    monkeypatch.setenv("OPENCV_FFMPEG_LOGLEVEL", "")
    from vllm.multimodal.media import connector
    from vllm.multimodal.video_decoders import opencv

    from dray.engine.vllm_adapter.media import decoded, videos

    monkeypatch.setattr(connector, "VideoMediaIO", connector.VideoMediaIO)
    monkeypatch.setattr(opencv, "OpenCVVideoBackendMixin", opencv.OpenCVVideoBackendMixin)
    videos.read_videos_alone()

    def frames(content: bytes | str, *, loader: str | None = None, **options: Any) -> Any:
        decoded.begin_row()
        url = content if isinstance(content, str) else as_url(content)
        reader = connector.MediaConnector(media_io_kwargs={"video": options})
        return reader.fetch_video(url, video_processor=loader).media[0]

    yield frames


def refused(read: Read, content: bytes | str, **options: Any) -> tuple[str, str]:
    with pytest.raises(RequestRefused) as caught:
        read(content, **options)
    return caught.value.code, caught.value.message


def jpegs(*sizes: tuple[int, int]) -> str:
    """Frames one by one, as clients send them to vLLM."""
    pictures = (picture(number, form="JPEG", size=size) for number, size in enumerate(sizes))
    return "data:video/jpeg;base64," + ",".join(b64encode(one).decode() for one in pictures)


@pytest.mark.parametrize("form", FORMS)
def test_each_container_gives_its_frames(read: Read, form: str) -> None:
    found = read(film(1, form=form), num_frames=5)
    assert found.shape == (5, 56, 56, 3)
    assert found.std() > 1
    assert read(film(1, form=form), loader="Qwen2VLVideoProcessor").shape[0] == 4  # two a second


def test_formats_and_codecs_of_which_frames_would_be_lost_are_refused(read: Read, tmp_path: Path) -> None:
    """vLLM takes some frames of the first, and none of the second, which OpenCV opens all the same."""
    for content in (film(1, form="mpegts"), film_in_av1(tmp_path)):
        assert refused(read, content) == ("invalid_video", NO_VIDEO)


def test_frames_one_by_one(read: Read) -> None:
    assert read(jpegs((40, 30), (40, 30))).shape == (2, 30, 40, 3)
    assert refused(read, jpegs((40, 30), (30, 40))) == ("invalid_video", NO_VIDEO)
    assert refused(read, jpegs((40, 30))[:-40] + ",!!") == ("invalid_video", NO_VIDEO)
    code, told = refused(read, jpegs(*[(8, 8)] * 4), num_frames=3)
    assert code == "invalid_video"
    assert told.startswith(
        "the video has 4 frames, and the engine takes 3; to take all, give the engine argument"
    )
    assert len(read(jpegs(*[(8, 8)] * 40), num_frames=-1)) == 40


@pytest.mark.parametrize(
    "content",
    [b"", b"no video", film(1)[:60], film(1)[: len(film(1)) // 2], picture(1), sound(1), film(1)[:40] * 50],
    ids=["empty", "text", "cut header", "cut in half", "image", "sound", "repeated header"],
)
@pytest.mark.parametrize("loader", LOADERS)
def test_what_is_no_video_is_refused(read: Read, content: bytes, loader: str | None) -> None:
    assert refused(read, content, loader=loader) == ("invalid_video", NO_VIDEO)


def test_a_file_that_leads_before_its_begin_does_not_end_the_process(read: Read) -> None:
    """OpenCV crashes where Python cannot go to a place in a file."""
    from dray.engine.vllm_adapter.media.videos import _File

    assert (_File(b"abc").seek(-1), _File(b"abc").seek(2)) == (-1, 2)
    content = bytearray(film(3, form="avi"))
    content[31] = 0xFF  # of the size of a part of the header
    assert len(read(bytes(content), num_frames=-1)) <= 20


def test_a_video_that_names_no_length_is_told_apart(read: Read) -> None:
    """As a browser records it: nothing goes back to the header at the end."""
    import av
    import numpy as np

    class Pipe(io.RawIOBase):
        content = b""

        def writable(self) -> bool:
            return True

        def write(self, block: Any) -> int:
            self.content += bytes(block)
            return len(block)

    pipe = Pipe()
    with av.open(pipe, "w", format="webm") as made:
        stream: Any = made.add_stream("libvpx", rate=10)
        stream.width, stream.height, stream.pix_fmt = 56, 56, "yuv420p"
        for _ in range(20):
            made.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((56, 56, 3), np.uint8), "rgb24")))
        made.mux(stream.encode(None))
    code, told = refused(read, pipe.content)
    assert code == "invalid_video"
    assert told.startswith("the video does not say how long it is, as browsers record WebM: write it anew")


def test_a_video_that_ends_too_soon_is_seen_as_far_as_it_goes(read: Read) -> None:
    whole = film(1, form="webm")
    assert 1 <= len(read(whole[: len(whole) * 2 // 3], num_frames=-1)) < 20


def test_a_video_leads_to_no_other_file(
    read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """FFmpeg opens what playlists name: files of the node, and addresses on the network."""
    import cv2

    opened, capture = [], cv2.VideoCapture

    def recorded(*arguments: Any) -> Any:
        found = capture(*arguments)
        opened.append(found.isOpened())
        return found

    monkeypatch.setattr(cv2, "VideoCapture", recorded)
    (tmp_path / "a.mp4").write_bytes(film(1))
    monkeypatch.chdir(tmp_path)
    concat = b"ffconcat version 1.0\nfile 'a.mp4'\n"
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile://{tmp_path}/a.mp4\n#EXT-X-ENDLIST\n"
    for content in (concat, playlist.encode()):
        assert refused(read, content) == ("invalid_video", NO_VIDEO)
    assert opened == [False, False]
    assert capfd.readouterr().err == "", "what a file holds is not told"
    monkeypatch.setenv("OPENCV_FFMPEG_CAPTURE_OPTIONS", "")
    assert refused(read, concat)[0] == "invalid_video"
    assert opened[2], "no playlist leads anywhere any more: the guard guards nothing"


@pytest.mark.parametrize(
    ("limit", "value"), [("FRAMES", 19), ("FRAME_PIXELS", 56 * 56 - 1), ("WALKED_PIXELS", 20 * 56 * 56 - 1)]
)
def test_a_large_video_is_refused_before_a_frame_is_decoded(
    read: Read, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    from dray.engine.vllm_adapter.media import videos

    content = film(1)
    assert len(read(content)) == 20
    monkeypatch.setattr(videos, limit, value)
    monkeypatch.setattr(videos._Bounded, "get_video_metadata", pytest.fail)
    code, told = refused(read, content)
    assert code == "invalid_video"
    assert told.startswith("the video has 20 frames of 3,136 pixels; at most ")


def test_a_video_that_says_it_lasts_for_weeks_is_refused(read: Read) -> None:
    """Some of vLLM's loaders make a list of all its seconds."""
    import av
    import numpy as np

    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as made:
        stream: Any = made.add_stream("mpeg4", rate=Fraction(1, 6000))
        stream.width, stream.height, stream.pix_fmt = 56, 56, "yuv420p"
        for _ in range(20):
            frame = av.VideoFrame.from_ndarray(np.zeros((56, 56, 3), np.uint8), "rgb24")
            made.mux(stream.encode(frame))
        made.mux(stream.encode(None))
    assert refused(read, file.getvalue()) == (
        "invalid_video",
        "the video says that it is longer than 86,400 seconds",
    )


@pytest.mark.parametrize("loader", LOADERS)
def test_the_frames_of_a_row_are_counted_before_they_are_decoded(
    read: Read, monkeypatch: pytest.MonkeyPatch, loader: str | None
) -> None:
    from dray.engine.vllm_adapter.media import decoded

    content = film(1)
    taken = read(content, loader=loader).nbytes
    monkeypatch.setattr(decoded, "ROW_BYTES", taken)
    assert read(content, loader=loader).nbytes == taken
    monkeypatch.setattr(decoded, "ROW_BYTES", taken - 1)
    monkeypatch.setattr("cv2.cvtColor", pytest.fail)
    code, told = refused(read, content, loader=loader)
    assert code == "request_too_large"
    assert told.startswith(f"the row's videos have over {taken - 1:,} bytes once they are decoded; the")


def test_frames_one_by_one_are_counted_before_they_are_decoded(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dray.engine.vllm_adapter.media import decoded

    monkeypatch.setattr(decoded, "ROW_BYTES", 2 * 3 * 40 * 30)
    assert len(read(jpegs((40, 30), (40, 30)))) == 2
    monkeypatch.setattr("PIL.JpegImagePlugin.JpegImageFile.load", pytest.fail)
    assert refused(read, jpegs(*[(40, 30)] * 3))[0] == "request_too_large"


@pytest.mark.parametrize("form", ["mp4", "webm"])
def test_no_damage_is_anything_but_a_refusal(read: Read, form: str) -> None:
    drawn, whole = random.Random(form), film(2, form=form)
    for _ in range(60):
        content = bytearray(whole)
        for _ in range(drawn.randint(1, 20)):
            content[drawn.randrange(min(len(content), drawn.choice((300, 10**9))))] = drawn.randrange(256)
        try:
            read(bytes(content[: drawn.randint(1, len(content))]), loader=drawn.choice(LOADERS))
        except RequestRefused as refusal:
            assert refusal.code in ("invalid_video", "request_too_large")


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (None, ""),
        ({"image": {}}, ""),
        ({"video": {"fps": 1, "num_frames": 8}}, ""),
        ({"video": {"backend": "opencv", "video_backend": "qwen2_vl"}}, ""),
        ({"video": {"backend": "torchcodec"}}, "dray decodes videos with OpenCV"),
        ({"video": {"video_backend": "pynvvideocodec"}}, "dray decodes videos with OpenCV"),
        (
            {"video": {"video_backend": "torchcodec"}},
            "vLLM has no video_backend 'torchcodec'; it has .*qwen2_vl",
        ),
        (
            {"video": {"seek_mode": "exact"}},
            "seek_mode is not supported by the 'opencv' backend; leave it out",
        ),
        ({"video": {"fps": "2"}}, "fps of videos is no number: '2'"),
    ],
)
def test_arguments_by_which_no_video_is_decoded_are_refused(quiet_vllm: None, asked: Any, told: str) -> None:
    from dray.engine.vllm_adapter.media.videos import refuse_other_decoders

    config = SimpleNamespace(multimodal_config=SimpleNamespace(media_io_kwargs=asked))
    refuse_other_decoders(SimpleNamespace(multimodal_config=None))
    if not told:
        refuse_other_decoders(config)
        return
    with pytest.raises(ConfigError, match=f"engine argument media_io_kwargs: {told}"):
        refuse_other_decoders(config)
