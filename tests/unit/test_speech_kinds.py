"""How many sequences a sound is, as far as its first bytes tell."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.engine.admission import sequences_of
from dray.kinds import Kind
from dray.kinds.speech import sequences
from dray.requests.media.medium import data_url
from dray.requests.model import Request
from tests.support.speech_model import sound

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("form", ["WAV", "FLAC"])
@pytest.mark.parametrize(
    ("seconds", "rate", "channels", "chunks"), [(1, 16_000, 1, 1), (29.9, 44_100, 2, 1), (65, 8_000, 2, 3)]
)
def test_wav_and_flac_say_how_long_they_are(
    form: str, seconds: float, rate: int, channels: int, chunks: int
) -> None:
    content = sound(1, seconds=seconds, form=form, rate=rate, channels=channels)
    assert sequences({"file_url": data_url(content)}) == ("file_url", chunks)


def test_others_are_counted_by_their_bytes() -> None:
    assert sequences({"file_url": data_url(b"ID3" + bytes(16_000 * 60))})[1] == 3
    assert sequences({"file_url": data_url(sound(1, form="MP3"))})[1] == 1


@pytest.mark.heavy(one_of=3)
@given(st.binary(max_size=80) | st.text(max_size=80) | st.none() | st.integers())
def test_any_value_is_a_few_sequences(value: object) -> None:
    for url in (value, f"data:;base64,{value!r}", data_url(value) if isinstance(value, bytes) else "data:"):
        assert 1 <= sequences({"file_url": url})[1] <= 240


def test_a_row_takes_as_many_as_its_chunks() -> None:
    def taken(**body: object) -> int:
        return sequences_of(Request(index=0, custom_id="a", url=Kind.TRANSLATION.url, body=dict(body)))

    long = data_url(sound(1, seconds=65, rate=8000))
    assert taken(file_url=long) == 3
    assert taken(file_url=long, n=5) == 3, "beams are not sequences, and refused"
