"""Rows 9 to 11: answers that are none."""

from __future__ import annotations

import socket
import struct
import time
from pathlib import Path

import pytest

from dray.errors import WeightsError
from dray.weights import LocalModel
from dray.weights.fetch.chunks import ChunkPlan
from dray.weights.loading.streamed import StreamedWeights
from tests.integration.weights.bad_inputs.support import (
    Answer,
    Limiter,
    Wanted,
    Webs,
    arrives,
    asked,
    comes_from,
    is_refused,
    known,
    sound,
)
from tests.support.s3_emulator import EmulatorProcess

pytestmark = pytest.mark.integration


def _reset(wanted: Wanted) -> None:
    wanted.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raise ConnectionError


def _cut(wanted: Wanted) -> None:
    wanted.say(206, wanted.data[:1000], Content_Length=len(wanted.data))
    raise ConnectionError


def _closed(wanted: Wanted) -> None:
    raise ConnectionError


def _silent(wanted: Wanted) -> None:
    time.sleep(30)


def _garbage(wanted: Wanted) -> None:
    wanted.connection.sendall(b"\0\xff what is this?\r\n\r\n")
    raise ConnectionError


def _says(status: int) -> Answer:
    return lambda wanted: wanted.say(status)


TROUBLE: dict[str, Answer] = {
    **{str(status): _says(status) for status in (429, 500, 502, 503, 504)},
    "reset": _reset,
    "cut": _cut,
    "closed": _closed,
    "garbage": _garbage,
}


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize("kind", TROUBLE)
def test_row_09_a_store_in_trouble_is_asked_again(kind: str, web: Webs) -> None:
    troubled = web(sound, *[sound, TROUBLE[kind]] * 4)
    model = comes_from(troubled)
    assert model.outcome is not None
    faults = sum(model.outcome.faults.values())
    assert faults == 4 or (kind in ("reset", "closed") and faults < 4)  # a kept connection may be closed
    assert troubled.requests == len(model.plan.chunks) - 1 + 4


def test_row_09_an_answer_that_does_not_come_is_asked_for_twice(web: Webs) -> None:
    silent = web(sound, _silent, sound, _silent)
    began = time.monotonic()
    model = comes_from(silent)
    assert time.monotonic() - began < 8
    assert model.outcome is not None
    assert model.outcome.hedges == 2


@pytest.mark.parametrize("kind", ["reset", "cut", "closed", "garbage"])
def test_row_09_trouble_that_does_not_end_is_told_with_file_and_range(
    kind: str, web: Webs, cache: Path, limited: Limiter
) -> None:
    limited(tries=3)
    broken = web(TROUBLE[kind], sound, sound)
    says = r"/m/model\.safetensors, bytes [\d,]+ to [\d,]+: could not be read in 3 tries: "
    is_refused(broken.manifest, None, cache, says)
    assert broken.requests <= 2 * 3 * len(ChunkPlan(broken.manifest).chunks)


def test_row_09_a_store_that_stays_busy_is_left_in_peace_and_told(
    server: EmulatorProcess, origin: Path, cache: Path, limited: Limiter
) -> None:
    limited(stall_seconds=4.0)
    manifest = known(server)
    server.behave(busy_share=1.0)
    is_refused(
        manifest, server.options, cache, r"bytes 0 to [\d,]+: nothing arrived for a long time \(\d+ x busy\)"
    )
    assert asked(server) < 25 * 8  # each waits twice as long as the time before


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_row_09_a_store_that_is_busy_at_times_gives_the_whole_model(
    share: float, server: EmulatorProcess, origin: Path
) -> None:
    manifest = known(server)
    server.behave(busy_share=share, first_byte_seconds=0.02)
    arrives(manifest, server.options, origin)


def _whole(wanted: Wanted) -> None:
    wanted.say(200, wanted.content, Content_Range=None)


def _short(wanted: Wanted) -> None:
    wanted.say(206, wanted.data[:-1])


def _short_and_honest(wanted: Wanted) -> None:
    total = len(wanted.content)
    wanted.say(206, wanted.data[:-1], Content_Range=f"bytes {wanted.start}-{wanted.end - 2}/{total}")


def _long(wanted: Wanted) -> None:
    wanted.say(206, wanted.data + b"\0")


def _long_without_length(wanted: Wanted) -> None:
    wanted.say(206, wanted.data + b"\0", Content_Length=None)
    raise ConnectionError


def _chunked(wanted: Wanted, data: bytes) -> None:
    body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (data[:7], data[7:])) + b"0\r\n\r\n"
    wanted.say(206, body, Content_Length=None, Transfer_Encoding="chunked")


def _elsewhere(wanted: Wanted) -> None:
    total = len(wanted.content)
    wanted.say(206, wanted.data, Content_Range=f"bytes {wanted.start + 1}-{wanted.end}/{total}")


WRONG: dict[str, Answer] = {
    "200": _whole,
    "short": _short,
    "short and honest": _short_and_honest,
    "long": _long,
    "long without length": _long_without_length,
    "short in pieces": lambda wanted: _chunked(wanted, wanted.data[:-1]),
    "long in pieces": lambda wanted: _chunked(wanted, wanted.data + b"\0"),
    "another range": _elsewhere,
    "no range": lambda wanted: wanted.say(206, wanted.data, Content_Range=None),
    "of another size": lambda wanted: wanted.say(
        206, wanted.data, Content_Range=f"bytes {wanted.start}-{wanted.end - 1}/{len(wanted.content) + 1}"
    ),
    "encoded": lambda wanted: wanted.say(206, wanted.data, Content_Encoding="gzip"),
    "204": lambda wanted: wanted.say(204),
    "302": lambda wanted: wanted.say(302, Location="http://127.0.0.1:9/"),
    "408": lambda wanted: wanted.say(408),
}


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize("kind", WRONG)
def test_row_10_an_answer_that_is_not_the_range_is_asked_for_again(kind: str, web: Webs) -> None:
    wrong = web(sound, *[WRONG[kind], sound] * 3)
    model = comes_from(wrong)
    assert model.outcome is not None
    assert sum(model.outcome.faults.values()) == 3


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize("kind", WRONG)
def test_row_10_a_store_that_never_gives_the_range_is_told_with_file_and_range(
    kind: str, web: Webs, cache: Path, limited: Limiter
) -> None:
    limited(tries=3)
    wrong = web(WRONG[kind])
    says = r"/m/model\.safetensors, bytes [\d,]+ to [\d,]+: could not be read in 3 tries: "
    is_refused(wrong.manifest, None, cache, says)


def test_row_10_pieces_and_no_length_are_fine_if_the_bytes_are_right(web: Webs) -> None:
    def closing(wanted: Wanted) -> None:
        wanted.say(206, wanted.data, Content_Length=None)
        raise ConnectionError

    odd_ones = web(sound, *[closing, lambda wanted: _chunked(wanted, wanted.data)] * 3)
    model = comes_from(odd_ones)
    assert model.outcome is not None
    assert model.outcome.faults == {}


def test_row_11_a_model_that_is_replaced_while_it_is_read(
    server: EmulatorProcess, origin: Path, cache: Path
) -> None:
    manifest = known(server)
    server.behave(changes_after=12)
    with LocalModel(manifest, server.options) as model:
        says = r"s3://bucket/models/m/model-[12]\.safetensors was replaced since the job was opened; start"
        with pytest.raises(WeightsError, match=says):
            list(StreamedWeights.of(model.wait_engine()).tensors())
    assert not (cache / manifest.key).exists()
    assert known(server).key != manifest.key  # another state is another model
    arrives(known(server), server.options, origin)


def test_row_11_a_server_that_does_not_mind_if_match_is_found_out_by_its_answer(
    web: Webs, cache: Path
) -> None:
    changing = web(lambda wanted: wanted.say(206, wanted.data, ETag='"2"'), *[sound] * 5)
    says = r"/m/model\.safetensors was replaced since the job was opened"
    is_refused(changing.manifest, None, cache, says)
