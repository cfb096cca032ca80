"""Rows of sound, on a Whisper: the texts of transformers and of vLLM's own runner, whatever rows hold."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from dray.engine.protocol import EngineSpec
from dray.errors import ConfigError
from dray.kinds import Kind
from dray.requests.model import Outcome
from tests.support.engines import NAME, Runner, answer_of, generation_spec, lines, running
from tests.support.mutations import mutations
from tests.support.speech_model import RATE, as_url, container, hearing, sound, write_speech_model
from tests.support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300), pytest.mark.heavy(one_of=3)]

NO_SOUND = "the sound cannot be decoded: it is damaged, empty, or no WAV, FLAC, Ogg, MP3, MP4, M4A or WebM"
SOUNDS = [
    sound(1),
    sound(2, seconds=2.5, form="FLAC"),
    sound(3, form="OGG"),
    sound(4, seconds=3, form="MP3"),
    sound(5, channels=2),
    sound(6, seconds=29),
    sound(7, seconds=0.1),
]
FIELDS = (
    *("file_url", "language", "to_language", "prompt", "hotwords", "response_format", "temperature", "top_p"),
    *("top_k", "min_p", "seed", "max_completion_tokens", "timestamp_granularities[]", "n", "length_penalty"),
    *("use_beam_search", "include_stop_str_in_output", "frequency_penalty", "presence_penalty", "vllm_xargs"),
    *("repetition_penalty", "stream", "stream_include_usage", "watermarking", "model", "file", "request_id"),
)


def _spec(model: Path, kind: Kind = Kind.TRANSCRIPTION, **given: Any) -> EngineSpec:
    arguments = {"max_num_seqs": 16, "kv_cache_memory_bytes": 64 << 20, **given}
    return EngineSpec(name="vllm", model=str(model), kind=kind, model_name=NAME, arguments=arguments)


@pytest.fixture(scope="session")
def speech_model(tmp_path_factory: pytest.TempPathFactory, quiet_vllm: None) -> Path:
    return write_speech_model(tmp_path_factory.mktemp("model") / "speech")


@pytest.fixture(scope="session")
def speech(speech_model: Path) -> Iterator[Runner]:
    with running(_spec(speech_model)) as runner:
        yield runner


def run(runner: Runner, rows: list[dict[str, Any]], kind: Kind = Kind.TRANSCRIPTION) -> list[Outcome]:
    return runner.run(rows, kind)


def told(outcome: Outcome) -> tuple[str | None, str | None]:
    return outcome.error_code, outcome.error_message


class Reference:
    """What plain transformers hear, in float32."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoTokenizer, WhisperFeatureExtractor, WhisperForConditionalGeneration

        self._torch = torch
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self._features = WhisperFeatureExtractor.from_pretrained(folder)
        self._model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()

    @staticmethod
    def samples(content: bytes) -> Any:
        import soundfile

        found, rate = soundfile.read(io.BytesIO(content), dtype="float32")
        assert rate == RATE
        return found if found.ndim == 1 else found.mean(axis=1)

    def _logits(self, samples: Any) -> Callable[[list[int]], Any]:
        features = self._features(samples, sampling_rate=RATE, return_tensors="pt").input_features
        with self._torch.inference_mode():
            heard = self._model.model.encoder(features)

        def logits(ids: list[int]) -> Any:
            with self._torch.inference_mode():
                out = self._model(encoder_outputs=heard, decoder_input_ids=self._torch.tensor([ids]))
            return out.logits[0, -1]

        return logits

    def language(self, samples: Any) -> str:
        from vllm.model_executor.models.whisper import ISO639_1_SUPPORTED_LANGS

        logits = self._logits(samples)([self._id("<|startoftranscript|>")])
        names: list[str] = list(ISO639_1_SUPPORTED_LANGS)
        return max(names, key=lambda name: float(logits[self._id(f"<|{name}|>")]))

    def text(self, samples: Any, *, language: str = "en", task: str = "transcribe", most: int = 12) -> str:
        logits = self._logits(samples)
        said = ("startoftranscript", language, task, "notimestamps")
        begin = [self._id(f"<|{name}|>") for name in said]
        found: list[int] = []
        while len(found) < most:
            found.append(int(logits(begin + found).argmax()))
            if found[-1] == self.tokenizer.eos_token_id:
                break
        decoded: str = self.tokenizer.backend_tokenizer.decode(found, skip_special_tokens=True)
        return decoded

    def _id(self, token: str) -> int:
        found: int = self.tokenizer.convert_tokens_to_ids(token)
        return found


@pytest.fixture(scope="session")
def reference(speech_model: Path) -> Reference:
    return Reference(speech_model)


@pytest.mark.parametrize("kind", [Kind.TRANSCRIPTION, Kind.TRANSLATION], ids=str)
def test_each_row_has_the_text_of_its_own_sound(speech: Runner, reference: Reference, kind: Kind) -> None:
    task = {"transcription": "transcribe", "translation": "translate"}[kind.name]
    found = run(speech, [hearing(one, language="en") for one in SOUNDS], kind)
    expected = [reference.text(reference.samples(one), task=task) for one in SOUNDS]
    assert [answer_of(one)["text"] for one in found] == expected
    assert len(set(expected)) > len(SOUNDS) / 2, "the texts say nothing of the sounds"
    assert all(one.prompt_tokens == 4 and one.completion_tokens for one in found)


def test_the_language_is_heard_where_no_row_says_it(speech: Runner, reference: Reference) -> None:
    heard = [reference.language(reference.samples(one)) for one in SOUNDS]
    assert len(set(heard)) > 1, "one language for all sounds"
    found = run(speech, [hearing(one, response_format="verbose_json") for one in SOUNDS])
    assert [answer_of(one)["language"] for one in found] == heard
    plain = [answer_of(one)["text"] for one in run(speech, [hearing(one) for one in SOUNDS])]
    assert plain == [
        reference.text(reference.samples(one), language=language)
        for one, language in zip(SOUNDS, heard, strict=True)
    ]


def test_long_sound_is_cut_and_its_texts_are_joined(speech: Runner, reference: Reference) -> None:
    from vllm.multimodal.audio import split_audio

    long = sound(8, seconds=70)
    chunks = split_audio(reference.samples(long), RATE, 30, 1, 1600)
    assert len(chunks) == 3
    language = reference.language(chunks[0])
    given, detected, other = run(speech, [hearing(long, language="de"), hearing(long), hearing(SOUNDS[0])])
    assert answer_of(given) == {
        "text": " ".join(reference.text(one, language="de") for one in chunks),
        "usage": {"type": "duration", "seconds": 70},
    }
    assert answer_of(detected)["text"] == " ".join(reference.text(one, language=language) for one in chunks)
    assert (given.prompt_tokens, detected.prompt_tokens) == (12, 13), "the language is a request of its own"
    assert answer_of(other)["text"]


def test_verbose_answers_have_times(speech: Runner) -> None:
    fields = {"response_format": "verbose_json", "language": "en", "max_completion_tokens": 40}
    fields["timestamp_granularities[]"] = ["segment"]
    for outcome in run(speech, [hearing(one, **fields) for one in SOUNDS]):
        found = answer_of(outcome)
        assert found.keys() == {"duration", "language", "text", "segments", "words"}
        assert found["language"] == "en"
        assert found["text"] == " ".join(one["text"] for one in found["segments"])
        assert [one["id"] for one in found["segments"]] == list(range(len(found["segments"])))


@pytest.mark.heavy
def test_the_core_apart_gives_the_same_bytes(speech: Runner, speech_model: Path) -> None:
    """With weights that dray loads itself: no file has the output layer, which is the embedding."""
    rows = [hearing(one) for one in [*SOUNDS, sound(8, seconds=70), b"none", SOUNDS[0]]]
    verbose = [hearing(one, response_format="verbose_json") for one in SOUNDS[:3]]
    with running(_spec(speech_model, engine_core="apart", load_format="dray")) as runner:
        apart = [(one.response, told(one)) for one in run(runner, rows)]
        apart_verbose = [answer_of(one) for one in run(runner, verbose)]
    assert apart == [(one.response, told(one)) for one in run(speech, rows)]
    # Log-probabilities differ in their last digits with what else is in a step.
    assert _rounded(apart_verbose) == _rounded([answer_of(one) for one in run(speech, verbose)])


@pytest.mark.heavy
def test_the_engines_own_thread_hears_the_same(speech: Runner, speech_model: Path) -> None:
    """Apart: the end of a core in this process would end the other one that is in it."""
    rows = [hearing(one) for one in [*SOUNDS, sound(8, seconds=70), b"none"]]
    with running(
        _spec(speech_model, engine_core="apart", image_threads=0, mm_processor_cache_gb=0)
    ) as runner:
        found = [(one.response, told(one)) for one in run(runner, rows)]
    assert found == [(one.response, told(one)) for one in run(speech, rows)]


@pytest.mark.heavy
def test_vllms_own_runner_gives_the_same_answers(speech: Runner, speech_model: Path, tmp_path: Path) -> None:
    rows = [hearing(one) for one in [*SOUNDS, sound(8, seconds=70)]]
    rows += [hearing(SOUNDS[0], language="de", response_format="verbose_json", prompt="so")]
    kinds = {"/v1/audio/transcriptions": Kind.TRANSCRIPTION, "/v1/audio/translations": Kind.TRANSLATION}
    given, written = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    given.write_text(
        "".join(
            json.dumps({"custom_id": f"{url} {number}", "method": "POST", "url": url, "body": row}) + "\n"
            for url in kinds
            for number, row in enumerate(rows)
        )
    )
    arguments = ["-i", str(given), "-o", str(written), "--model", str(speech_model), "--enforce-eager"]
    more = ["--dtype", "float32", "--max-num-seqs", "16", "--kv-cache-memory-bytes", str(64 << 20)]
    runner = [sys.executable, "-m", "vllm.entrypoints.openai.run_batch", *arguments, *more]
    subprocess.run(runner, check=True, timeout=240, capture_output=True)
    answers = [json.loads(line) for line in written.read_text().splitlines()]
    theirs = {one["custom_id"]: one["response"]["body"] for one in answers}
    ours = {
        f"{url} {number}": answer_of(outcome)
        for url, kind in kinds.items()
        for number, outcome in enumerate(run(speech, rows, kind))
    }
    assert _rounded(theirs) == _rounded(ours)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no sound",
        b'{"a": "text file"}\n' * 100,
        sound(1)[:30],
        sound(1)[:44],
        sound(1, form="FLAC")[:3000],
        sound(1, form="OGG")[:200],
        b"RIFF" + bytes(5000),
        b"\x89PNG\r\n\x1a\n" + bytes(3000),
    ],
    ids=[
        "empty",
        "short text",
        "text",
        "cut header",
        "header alone",
        "cut FLAC",
        "cut Ogg",
        "zeros",
        "image",
    ],
)
def test_what_is_no_sound_is_an_error_row_of_its_own(speech: Runner, content: bytes) -> None:
    bad, good = run(speech, [hearing(content), hearing(SOUNDS[0], language="en")])
    assert told(bad) == ("invalid_audio", NO_SOUND)
    assert good.response is not None


def test_a_file_leads_to_no_other(speech: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FFmpeg opens what playlists name: files of the node, and addresses on the network."""
    from dray.engine.vllm_adapter.media.sounds import _OPTIONS

    (tmp_path / "a.wav").write_bytes(SOUNDS[0])
    monkeypatch.chdir(tmp_path)
    concat = b"ffconcat version 1.0\nfile 'a.wav'\n"
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile://{tmp_path}/a.wav\n#EXT-X-ENDLIST\n"
    called = b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 5004 RTP/AVP 0\n"
    rows = [concat, playlist.encode(), called, b"\xff\xfb\n" + called]
    assert [told(one) for one in run(speech, list(map(hearing, rows)))] == [("invalid_audio", NO_SOUND)] * 4
    with monkeypatch.context() as patch:
        patch.setitem(_OPTIONS, "format_whitelist", "concat,wav")
        patch.setitem(_OPTIONS, "protocol_whitelist", "file")
        [one] = run(speech, [hearing(concat)])
        assert one.response is not None, "no playlist leads anywhere any more: the guard guards nothing"


def test_mp4_and_webm_are_heard(speech: Runner) -> None:
    rows = [container("mp4", "aac"), container("webm", "libopus")]
    assert all(answer_of(one)["text"] for one in run(speech, [hearing(one, language="en") for one in rows]))


def test_a_sound_that_is_no_number_or_too_long_is_refused(speech: Runner) -> None:
    import numpy as np
    import soundfile

    def written(samples: Any, rate: int, **more: Any) -> bytes:
        file = io.BytesIO()
        soundfile.write(file, samples, rate, **more)
        return file.getvalue()

    broken = written(np.full(8000, np.nan, np.float32), RATE, format="WAV", subtype="FLOAT")
    long = written(np.zeros(700 * 1000, np.float32), 1000, format="FLAC")
    nan, too_long = run(speech, [hearing(broken), hearing(long)])
    assert told(nan) == ("invalid_audio", NO_SOUND)
    assert too_long.error_code == "invalid_audio"
    assert "maximum allowed duration of 600s" in str(too_long.error_message)


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        ({"stream": True}, "stream_unsupported", "a batch has no stream"),
        ({"file": "a.wav"}, "unsupported_field", "give `file_url`"),
        ({"file_url": "http://192.0.2.1/a.wav"}, "invalid_audio", "must be a text: a data URL"),
        ({"file_url": "/etc/passwd"}, "invalid_audio", "must be a text: a data URL"),
        ({"file_url": None}, "invalid_audio", "must be a text: a data URL"),
        ({"file_url": "data:audio/wav;base64,!!"}, "invalid_audio", NO_SOUND),
        ({"max_tokens": 3}, "unknown_field", "`max_tokens`"),
        ({"response_format": "srt"}, "invalid_request", "vLLM gives json, text, verbose_json"),
        ({"response_format": {"type": "json_object"}}, "invalid_request", "vLLM gives json"),
        ({"response_format": "diarized_json"}, "invalid_request", "Currently do not support"),
        ({"timestamp_granularities[]": ["word"]}, "unsupported_field", "no times of words"),
        ({"use_beam_search": True}, "unsupported_field", "beam search"),
        ({"n": 2}, "unsupported_field", "beam search"),
        ({"hotwords": "dray"}, "unsupported_field", "this model takes none"),
        ({"to_language": "de"}, "unsupported_field", "this model takes none"),
        ({"language": "xx"}, "invalid_request", "Unsupported language"),
        ({"prompt": "a" * 600}, "context_length_exceeded", "448"),
        ({"model": "other"}, "model_mismatch", "serves 'tiny'"),
        ({"temperature": -1}, "invalid_request", "temperature"),
    ],
)
def test_what_cannot_be_honoured_is_said(
    speech: Runner, fields: dict[str, Any], code: str, message: str
) -> None:
    bad, good = run(speech, [hearing(SOUNDS[0], language="en") | fields, hearing(SOUNDS[0], language="en")])
    assert bad.error_code == code, told(bad)
    assert message in str(bad.error_message)
    assert good.response is not None


def test_a_silent_model_has_no_segments() -> None:
    """vLLM looks for a token before the end, and fails where there is none."""
    from types import SimpleNamespace

    from dray.engine.vllm_adapter.kinds.speech import _Transcription

    own = SimpleNamespace(tokenizer=SimpleNamespace(eos_token_id=3))
    assert _Transcription._get_verbose_segments(own, tokens=(3,), log_probs=[]) == []  # type: ignore[arg-type]


def test_rows_can_be_aborted_at_every_stage(speech: Runner) -> None:
    """While they are decoded, while a language is heard, and while chunks are in the engine."""
    rows = [hearing(sound(number, seconds=65), max_completion_tokens=400) for number in range(6)]
    for running_rows in (1, 3, 6):
        session = speech.session()
        speech.replica.feed(session, lines(rows, Kind.TRANSCRIPTION), last=True)
        until(lambda least=running_rows: speech.replica.status().running >= least)  # type: ignore[misc]
        speech.replica.abort(session)
        until(lambda: speech.replica.status().running == 0)
    engine = speech.engine
    until(lambda: not engine._engine.has_unfinished_requests())
    assert (engine._flights._by_ticket, engine._flights._by_key, engine._client.tickets) == ({}, {}, {})
    assert run(speech, [hearing(SOUNDS[0])])[0].response is not None


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=mutations(FIELDS))
def test_no_body_ends_the_engine(speech: Runner, changes: list[dict[str, Any]]) -> None:
    rows = [hearing(SOUNDS[0]) | change for change in changes]
    *_, good = run(speech, [*rows, hearing(SOUNDS[0], language="en")])
    assert good.response is not None


def test_models_and_rows_that_do_not_go_together_are_refused_before_the_weights(
    speech_model: Path, lively_model: Path
) -> None:
    with pytest.raises(ConfigError, match=r"turns sound into text .*, and nothing else"):
        Runner.started(generation_spec(speech_model, max_model_len=448))
    with pytest.raises(ConfigError, match="does not turn sound into text"):
        Runner.started(_spec(lively_model))


def test_rows_of_other_engines_are_refused(speech: Runner, generation: Runner) -> None:
    chat = speech.one({"messages": [{"role": "user", "content": "hello"}]}, Kind.CHAT)
    assert told(chat) == (
        "unsupported",
        "this engine turns sound into text; it does not serve /v1/chat/completions",
    )
    [heard] = run(generation, [hearing(SOUNDS[0])])
    assert heard.error_code == "unsupported"


def test_a_missing_library_is_said_before_the_weights(
    speech_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dray.engine import decoders as needs
    from dray.requests.media.medium import SOUNDS as MEDIUM

    monkeypatch.setitem(needs._LIBRARIES, MEDIUM, ("av", "no_such_library"))
    with pytest.raises(ConfigError, match="sound needs no_such_library on every node"):
        Runner.started(_spec(speech_model))


as_flac = partial(as_url, kind="flac")


def test_the_kind_in_a_data_url_says_nothing(speech: Runner) -> None:
    one, other = run(
        speech,
        [hearing(as_flac(SOUNDS[1]), language="en"), hearing(as_url(SOUNDS[1], "mpeg"), language="en")],
    )
    assert one.response == other.response
