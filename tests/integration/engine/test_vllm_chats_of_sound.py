"""Chats with sounds, on a model that hears: the answers of transformers and of ``LLM.chat``, row by row."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dray.errors import ConfigError, RequestRefused
from dray.kinds import Kind
from dray.requests.model import Outcome
from tests.support.engines import Runner, generation_spec, lines, running
from tests.support.listening_model import asking, write_listening_model, write_patient_model
from tests.support.seeing_model import as_url as picture_url
from tests.support.seeing_model import picture
from tests.support.speech_model import RATE, as_url, container, sound
from tests.support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.heavy, pytest.mark.timeout(300)]

NO_SOUND = "the sound cannot be decoded: it is damaged, empty, or no WAV, FLAC, Ogg, MP3, MP4, M4A or WebM"
ONLY = "messages can hold parts of text, and sounds, only"
FORMS = ("WAV", "FLAC", "OGG")
DAMAGED = [*(sound(1, form=form) for form in (*FORMS, "MP3")), container("mp4", "aac")]
FILES = [sound(number, seconds=0.4 + number, form=FORMS[number % 3]) for number in range(6)]
HEARD = [[file] for file in FILES] + [[FILES[0], FILES[4]], [FILES[4], FILES[0]], [], [FILES[2]]]
WITH_LLM_CHAT = """
import json, sys
from vllm import LLM, SamplingParams
given = json.load(open(sys.argv[1]))
llm = LLM(given["model"], dtype="float32", enforce_eager=True, max_model_len=1024, max_num_seqs=16,
          kv_cache_memory_bytes=128 << 20)
found = [llm.chat(one, SamplingParams(temperature=0, max_tokens=8), use_tqdm=False) for one in given["chats"]]
json.dump([list(one[0].outputs[0].token_ids) for one in found], open(sys.argv[2], "w"))
"""


def spec_of(model: Path, **arguments: Any) -> Any:
    return generation_spec(model, **{"max_model_len": 1024, **arguments})


@pytest.fixture(scope="session")
def listening_model(tmp_path_factory: pytest.TempPathFactory, quiet_vllm: None) -> Path:
    return write_listening_model(tmp_path_factory.mktemp("model") / "listening")


@pytest.fixture(scope="session")
def listening(listening_model: Path) -> Iterator[Runner]:
    with running(spec_of(listening_model)) as runner:
        yield runner


def tokens(outcome: Outcome) -> list[int]:
    assert outcome.response is not None, told(outcome)
    found: list[int] = json.loads(outcome.response)["choices"][0]["token_ids"]
    return found


def told(outcome: Outcome) -> tuple[str | None, str | None]:
    return outcome.error_code, outcome.error_message


def rows_about(heard: list[list[bytes]]) -> list[dict[str, Any]]:
    return [
        asking(*files, f"what is it? {number % 3}", return_token_ids=True)
        for number, files in enumerate(heard)
    ]


def samples_of(file: bytes) -> Any:
    """The samples of a file, as many a second as the model takes."""
    import soundfile
    import soxr

    found, rate = soundfile.read(io.BytesIO(file), dtype="float32")
    mono = found if found.ndim == 1 else found.mean(axis=1)
    return mono if rate == RATE else soxr.resample(mono, rate, RATE)


def greedy(folder: Path, rows: list[dict[str, Any]], heard: list[list[bytes]]) -> list[list[int]]:
    """What plain transformers answer, in float32."""
    import torch
    import transformers

    processor = transformers.AutoProcessor.from_pretrained(folder)
    (name,) = transformers.AutoConfig.from_pretrained(folder).architectures
    model = getattr(transformers, name).from_pretrained(folder, dtype=torch.float32).eval()
    found = []
    for row, files in zip(rows, heard, strict=True):
        text = processor.apply_chat_template(row["messages"], add_generation_prompt=True, tokenize=False)
        sounds = list(map(samples_of, files))
        more = {"audio": sounds, "sampling_rate": RATE} if sounds else {}
        inputs = processor(text=text, return_tensors="pt", **more)
        with torch.inference_mode():
            out = model.generate(**inputs, max_new_tokens=row["max_tokens"], do_sample=False, pad_token_id=0)
        found.append(out[0, inputs["input_ids"].shape[1] :].tolist())
    return found


def test_each_row_is_answered_about_its_own_sounds(listening: Runner, listening_model: Path) -> None:
    """One sound or two, of many lengths and three formats, some in several rows, beside rows without."""
    rows = rows_about(HEARD)
    found = list(map(tokens, listening.run(rows)))
    assert found == greedy(listening_model, rows, HEARD)
    assert len({tuple(one) for one in found}) > 7, "the answers say nothing of the sounds"
    assert list(map(tokens, listening.run(rows))) == found, "the second time, from the front's cache"


@pytest.mark.skipif(find_spec("torchaudio") is not None, reason="vLLM's own resampler is here")
def test_sounds_of_other_rates_are_heard_without_torchaudio(listening: Runner, listening_model: Path) -> None:
    """vLLM for CPUs does not bring it; its own chats fail then."""
    heard = [[sound(2, rate=8000)], [sound(3, rate=44_100, channels=2)], [sound(4, rate=48_000, form="FLAC")]]
    rows = rows_about(heard)
    assert list(map(tokens, listening.run(rows))) == greedy(listening_model, rows, heard)
    for file in (container("mp4", "aac"), container("webm", "libopus"), sound(1, rate=15_999)):
        assert tokens(listening.one(asking(file, "x", return_token_ids=True)))


def test_odd_rates_make_no_table_of_gigabytes(quiet_vllm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchaudio, which is vLLM's for chats, gets the usual rates alone."""
    import numpy as np

    from dray.engine.vllm_adapter.media import sounds

    given: list[float] = []

    def torchaudio(samples: Any, *, orig_sr: float, target_sr: float) -> Any:
        given.append(orig_sr)
        return samples

    monkeypatch.setattr(sounds, "_HAS_TORCHAUDIO", True)
    monkeypatch.setattr(sounds, "_OF_VLLM", torchaudio)
    for rate in (8000, 11_025, 44_100, 47_999, 15_999, 1, 2_147_483_647):
        sounds._resampled(np.zeros(rate % 1000 + 1, np.float32), orig_sr=rate, target_sr=RATE)
    assert given == [8000, 11_025, 44_100]


@pytest.mark.heavy
def test_llm_chat_gives_the_same_answers(listening: Runner, listening_model: Path, tmp_path: Path) -> None:
    """vLLM reads OpenAI's form itself, and other formats and channels."""
    others = [sound(3, channels=2), sound(4, form="MP3")]
    heard = [*HEARD, *([one] for one in others)]
    rows = rows_about(heard)
    held = [json.loads(json.dumps(row["messages"])) for row in rows]
    for part in (part for chat in held for part in chat[0]["content"] if part["type"] == "audio_url"):
        data = part.pop("audio_url")["url"].partition(",")[2]
        part |= {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    given, written = tmp_path / "given.json", tmp_path / "written.json"
    given.write_text(json.dumps({"model": str(listening_model), "chats": held}))
    script = [sys.executable, "-c", WITH_LLM_CHAT, str(given), str(written)]
    subprocess.run(script, check=True, timeout=240, capture_output=True)
    assert list(map(tokens, listening.run(rows))) == json.loads(written.read_text())


@pytest.mark.heavy
@pytest.mark.parametrize("how", [{}, {"image_threads": 0}, {"load_format": "dray"}], ids=str)
def test_the_core_apart_gives_the_same_bytes(
    listening: Runner, listening_model: Path, how: dict[str, Any]
) -> None:
    rows = [*rows_about(HEARD), asking(b"none", "x"), asking("no sound"), *rows_about(HEARD[:2])]
    with running(spec_of(listening_model, engine_core="apart", **how)) as runner:
        apart = [(one.response, told(one)) for one in runner.run(rows)]
    assert apart == [(one.response, told(one)) for one in listening.run(rows)]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no sound",
        sound(1)[:30],
        sound(1)[:44],
        sound(1, form="FLAC")[:3000],
        sound(1, form="OGG")[:200],
        picture(1),
    ],
    ids=["empty", "text", "cut header", "header alone", "cut FLAC", "cut Ogg", "image"],
)
def test_what_is_no_sound_is_an_error_row_of_its_own(listening: Runner, content: bytes) -> None:
    bad, good = listening.run([asking(FILES[1], content, "x"), asking(FILES[1], "x")])
    assert told(bad) == ("invalid_audio", NO_SOUND)
    assert good.response is not None


def test_a_sound_that_is_no_number_or_too_long_or_short_is_refused(listening: Runner) -> None:
    import numpy as np
    import soundfile

    def written(samples: Any, rate: int, **more: Any) -> bytes:
        file = io.BytesIO()
        soundfile.write(file, samples, rate, **more)
        return file.getvalue()

    broken = written(np.full(8000, np.nan, np.float32), RATE, format="WAV", subtype="FLOAT")
    long = written(np.zeros(700 * 1000, np.float32), 1000, format="FLAC")
    rows = [broken, long, sound(1, seconds=0.001)]
    nan, too_long, short, spoilt = listening.run(
        [*(asking(one, "x") for one in rows), asking("url:data:audio/wav;base64,!!", "x")]
    )
    assert told(nan) == told(spoilt) == ("invalid_audio", NO_SOUND)
    assert too_long.error_code == "invalid_audio"
    assert "maximum allowed duration of 600s" in str(too_long.error_message)
    assert told(short) == ("invalid_audio", "a sound is too short: the model makes no token of it")


def test_what_the_sounds_of_a_row_are_once_decoded_is_bounded(
    listening: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silence takes next to nothing in a file; and few samples a second become many at the model's rate."""
    import numpy as np
    import soundfile

    from dray.engine.vllm_adapter.media import decoded

    file = io.BytesIO()
    soundfile.write(file, np.zeros(20_000), 1000, format="FLAC")
    slow = file.getvalue()  # 20 seconds
    monkeypatch.setattr(decoded, "ROW_BYTES", 2_000_000)  # 31 seconds
    one, two, other = listening.run([asking(slow, "x"), asking(slow, slow, "x"), asking(slow, "y")])
    assert one.response is not None and other.response is not None
    assert told(two) == (
        "request_too_large",
        "the row's sounds have over 2,000,000 bytes once they are decoded",
    )


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_no_damaged_sound_ends_the_engine(listening: Runner, seed: int) -> None:
    drawn, rows = random.Random(seed), []
    for _ in range(8):
        content = bytearray(drawn.choice(DAMAGED))
        for _ in range(drawn.randint(1, 30)):
            content[drawn.randrange(min(len(content), drawn.choice((60, 10**9))))] = drawn.randrange(256)
        rows.append(asking(bytes(content[: drawn.randint(1, len(content))]), "x"))
    *damaged, good = listening.run([*rows, asking(FILES[1], "x")])
    assert good.response is not None
    assert {one.error_code for one in damaged} <= {None, "invalid_audio", "context_length_exceeded"}


def test_a_sound_leads_to_no_other_file(
    listening: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FFmpeg opens what playlists name: files of the node, and addresses on the network."""
    from dray.engine.vllm_adapter.media.sounds import _OPTIONS

    (tmp_path / "a.wav").write_bytes(FILES[0])
    monkeypatch.chdir(tmp_path)
    concat = b"ffconcat version 1.0\nfile 'a.wav'\n"
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile://{tmp_path}/a.wav\n#EXT-X-ENDLIST\n"
    found = listening.run([asking(concat, "x"), asking(playlist.encode(), "x")])
    assert [told(one) for one in found] == [("invalid_audio", NO_SOUND)] * 2
    with monkeypatch.context() as patch:
        patch.setitem(_OPTIONS, "format_whitelist", "concat,wav")
        patch.setitem(_OPTIONS, "protocol_whitelist", "file")
        one = listening.one(asking(concat, "x"))
        assert one.response is not None, "no playlist leads anywhere any more: the guard guards nothing"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "audio_url", "audio_url": {"url": "http://192.0.2.1/a.wav"}},
        {"type": "audio_url", "audio_url": {"url": "file:///etc/passwd"}},
        {"type": "audio_url", "audio_url": {"url": as_url(FILES[0])}, "uuid": "the same for all"},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "audio_embeds", "audio_embeds": "aaaa"},
        {"audio_url": as_url(FILES[0])},
        {"type": "image_url", "image_url": {"url": picture_url(picture(1))}},
        {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}},
    ],
)
def test_other_media_and_other_forms_are_refused(listening: Runner, part: dict[str, Any]) -> None:
    """Ingest makes one form of all that rows may write; the engine takes that alone."""
    body = asking("x")
    body["messages"][0]["content"].append(part)
    assert told(listening.one(body)) == ("unsupported_content", ONLY)


def test_a_model_of_both_takes_images_and_sounds_in_one_row(quiet_vllm: None) -> None:
    """No such model runs here: they need torchvision. What the engine lets through is known without one."""
    from dray.engine.vllm_adapter.fields import refuse_unusable
    from dray.requests.media.medium import IMAGES, SOUNDS

    body = asking(FILES[0], "x")
    content = body["messages"][0]["content"]
    content.append({"type": "image_url", "image_url": {"url": picture_url(picture(1))}})
    refuse_unusable(body, None, media=(IMAGES, SOUNDS))
    content.append({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}})
    with pytest.raises(RequestRefused, match="parts of text, and images and sounds, only"):
        refuse_unusable(body, None, media=(IMAGES, SOUNDS))


def test_a_model_of_text_says_that_it_takes_no_sounds(generation: Runner) -> None:
    outcome = generation.one(asking(FILES[0], "x"))
    assert told(outcome) == ("unsupported_content", "this model reads text parts only")


def test_a_long_row_with_a_sound_is_refused_by_its_tokens(listening: Runner) -> None:
    long, good = listening.run([asking(sound(1, seconds=29), sound(2, seconds=29), "x"), asking(FILES[0])])
    assert long.error_code == "context_length_exceeded"
    assert good.response is not None


@pytest.mark.heavy
def test_a_model_that_takes_long_sound_hears_all_of_it(tmp_path: Path, quiet_vllm: None) -> None:
    model = write_patient_model(tmp_path / "patient")
    heard = [[sound(1, seconds=70)], [sound(1, seconds=71)], [FILES[1]], []]
    rows = rows_about(heard)
    with running(spec_of(model, max_model_len=2048, engine_core="apart")) as runner:
        *found, two = runner.run([*rows, asking(FILES[0], FILES[1], "x")])
    assert list(map(tokens, found)) == greedy(model, rows, heard)
    assert found[1].prompt_tokens == found[0].prompt_tokens + 25
    assert told(two) == ("invalid_request", "At most 1 audio(s) may be provided in one prompt.")


def test_rows_whose_sounds_are_read_can_be_aborted(listening: Runner) -> None:
    session = listening.session()
    rows = [asking(sound(number, seconds=29), "x", max_tokens=100) for number in range(12)]
    listening.replica.feed(session, lines(rows), last=True)
    until(lambda: listening.replica.status().running > 0)
    listening.replica.abort(session)
    until(lambda: listening.replica.status().running == 0)
    assert listening.one(asking(FILES[3], "x")).response is not None


def test_a_long_text_beside_a_sound_is_cut(listening: Runner) -> None:
    fitter = listening.engine._serve._fitter
    before, fitter._policy = fitter._policy, "cut-tail"
    try:
        outcome = listening.one(asking(FILES[1], "y" * 2000, max_tokens=64))
    finally:
        fitter._policy = before
    assert outcome.response is not None, told(outcome)
    assert json.loads(outcome.response)["dray"]["overflow"] == "cut-tail"


def test_a_missing_library_is_said_before_the_weights_where_the_job_asks_for_sound(
    listening_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dray.engine import decoders as needs
    from dray.requests.media.medium import SOUNDS

    monkeypatch.setitem(needs._LIBRARIES, SOUNDS, ("av", "no_such_library"))
    with pytest.raises(ConfigError, match="sound needs no_such_library on every node"):
        Runner.started(replace(spec_of(listening_model), media=frozenset({SOUNDS})))


def test_a_missing_library_is_an_error_row_where_only_rows_say_that_there_is_sound(listening: Runner) -> None:
    from dray.requests.media.medium import SOUNDS

    serve = listening.engine._serve
    serve._lacking = {SOUNDS: ["soundfile"]}
    try:
        bad, good = listening.run([asking(FILES[0], "x"), asking("x")])
    finally:
        serve._lacking = {}
    assert bad.error_code == "unsupported_content"
    assert "sound needs soundfile on every node" in str(bad.error_message)
    assert good.response is not None


def test_embeddings_of_sounds_are_refused(listening: Runner) -> None:
    outcome = listening.one({"messages": asking(FILES[0])["messages"]}, Kind.EMBEDDING)
    assert outcome.error_code == "unsupported"
