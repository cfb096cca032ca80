"""safetensors headers: what the reference implementation refuses, we refuse, and what we take, it takes."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError

from dray.errors import WeightsError
from dray.weights import parse_header, read_header
from dray.weights.source.header import BITS, HEADER_LIMIT
from tests.support.reference import deserialize

pytestmark = pytest.mark.unit

FUZZED = 10_000


def _file(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def _ours(content: bytes) -> str | None:
    """None where we take the file; else what we say."""
    try:
        parse_header(content, len(content), file="f")
    except WeightsError as error:
        return str(error)
    return None


def _reference_takes(content: bytes) -> bool:
    try:
        deserialize(content)
    except SafetensorError:
        return False
    return True


def _tensor(dtype: str = "U8", shape: Any = (2,), offsets: Any = (0, 2)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


SOUND = _file(
    {
        "__metadata__": {"format": "pt"},
        "b": _tensor("F32", (2, 3), (4, 28)),
        "a": _tensor("BF16", (2, 1), (0, 4)),
        "scalar": _tensor("I64", (), (28, 36)),
        "empty": _tensor("F16", (0, 7), (36, 36)),
        "é": _tensor("F4", (4,), (36, 38)),
    },
    bytes(38),
)


def test_tensors_come_in_the_order_of_their_data() -> None:
    header = parse_header(SOUND, len(SOUND), file="f")
    assert [tensor.name for tensor in header.tensors] == ["a", "b", "scalar", "empty", "é"]
    assert (header.tensors[1].dtype, header.tensors[1].shape) == ("F32", (2, 3))
    assert header.data_start == len(SOUND) - 38
    assert _reference_takes(SOUND)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "0 bytes are too few"),
        (b"1234567", "7 bytes are too few"),
        (_file(b""), "not valid"),
        ((HEADER_LIMIT + 1).to_bytes(8, "little") + b"{}", "would have 100,000,001 bytes"),
        (b"\xff" * 16, "would have"),
        ((100).to_bytes(8, "little") + b"{}", "truncated: a header of 100 bytes in a file of 10"),
        (SOUND[:-1], "truncated: tensors take 38 bytes, the file has 37"),
        (SOUND + b"\0", "longer than its header says"),
        (_file(b"[1]"), "not a JSON object"),
        (_file(b"\xff{}"), "not valid"),
        (_file(b"\xef\xbb\xbf{}"), "not valid"),
        (_file(b'{"a":NaN}'), "NaN is no JSON"),
        (_file(b"[" * 100_000), "nested too deeply|not valid"),
        (_file({"__metadata__": {"a": 1}}), "__metadata__ is not an object of strings"),
        (_file(b'{"__metadata__":{"a":"\\ud800"}}'), "not valid"),
        (_file({"a": 3}), "tensor 'a': is not an object of"),
        (_file({"a": {"dtype": "U8", "shape": [1]}}, b"0"), "tensor 'a': is not an object of"),
        (_file({"a": _tensor("U7")}, b"00"), "unknown dtype 'U7'"),
        (_file({"a": _tensor(shape=[True, 2])}, b"00"), "not lists of counts"),
        (_file({"a": _tensor(shape=[2.0])}, b"00"), "not lists of counts"),
        (_file({"a": _tensor(shape=[-2])}, b"00"), "-2 is no 64-bit count"),
        (_file({"a": _tensor(offsets=[0])}, b"00"), "not lists of counts"),
        (_file({"a": _tensor(offsets=[0, 1, 2])}, b"00"), "not lists of counts"),
        (_file({"a": _tensor(shape=[2**64])}, b"00"), "no 64-bit count"),
        (_file({"a": _tensor(shape=[2**63, 4, 0], offsets=[0, 0])}), "overflows"),
        (_file({"a": _tensor(offsets=[2, 0])}, b"00"), "before its start"),
        (_file({"a": _tensor(shape=[3])}, b"00"), r"2 bytes of data for U8 \[3\]"),
        (_file({"a": _tensor("F4", [3])}, b"00"), "does not end on a byte"),
        (_file({"a": _tensor(), "b": _tensor()}, b"00"), "tensor 'b': starts at 0, which overlaps"),
        (_file({"a": _tensor(offsets=[1, 3])}, b"000"), "leaves a gap"),
        (_file(b'{"a":1,"a":1}'), "'a' stands in it twice"),
    ],
)
def test_what_is_refused(content: bytes, says: str) -> None:
    import re

    told = _ours(content)
    assert told is not None
    assert told.startswith("f: ")
    assert re.search(says, told), told


def test_every_type_has_the_size_of_the_reference() -> None:
    for dtype, bits in BITS.items():
        assert _reference_takes(_file({"a": _tensor(dtype, [8], [0, bits])}, bytes(bits))), dtype


def test_a_file_is_read_without_its_data(tmp_path: Path) -> None:
    path = tmp_path / "big.safetensors"
    header = _file({"a": _tensor("U8", [2**40], [0, 2**40])})
    path.write_bytes(header)
    with pytest.raises(WeightsError, match=r"big\.safetensors: truncated"):
        read_header(path)
    with path.open("r+b") as file:
        file.truncate(len(header) + 2**40)  # sparse
    assert read_header(path).tensors[0].end == 2**40


def test_ten_thousand_mutations_are_judged_like_the_reference_does(rng: random.Random) -> None:
    refused = 0
    for _ in range(FUZZED):
        content = _mutated(SOUND, rng)
        ours = _ours(content)
        refused += ours is not None
        assert ours is not None or _reference_takes(content), content
        if ours is not None and _reference_takes(content):
            assert "twice" in ours or "is not an object of" in ours or "__metadata__" in ours, (ours, content)
    assert FUZZED / 10 < refused < FUZZED


def _mutated(content: bytes, rng: random.Random) -> bytes:
    found = bytearray(content)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(found))
        kind = rng.randrange(6)
        if kind == 0:
            found[at] = rng.randrange(256)
        elif kind == 1:
            del found[at : at + rng.randint(1, 4)]
        elif kind == 2:
            found[at:at] = rng.choice(
                [b"0", b"9", b'"', b",", b"}", b"[", b"-", b"\\u0041", b" ", b"e1", b"null"]
            )
        elif kind == 3:
            found[at:at] = found[at : at + rng.randint(1, 40)]
        elif kind == 4:
            length = len(found) - 8 - 38 + rng.randint(-2, 2)
            found[:8] = max(length, 0).to_bytes(8, "little")
        else:
            text = bytes(found)
            old = rng.choice([b"F32", b"BF16", b"28", b"36", b"[2, 3]", b"shape", b"0"])
            found = bytearray(
                text.replace(old, rng.choice([b"F16", b"F4", b"29", b"[]", b"[0]", b"[3, 2]", b"4"]), 1)
            )
        if not found:
            break
    if (
        rng.random() < 0.7 and len(found) > 46
    ):  # most with a true length, so that more than the length is tested
        found[:8] = (len(found) - 8 - 38).to_bytes(8, "little")
    return bytes(found)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
_TENSORS = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(sorted(BITS)) | _JSON,
        "shape": st.lists(st.integers(0, 5), max_size=3) | _JSON,
        "data_offsets": st.lists(st.integers(0, 40), min_size=2, max_size=2) | _JSON,
    }
)


_ANY = st.tuples(
    st.dictionaries(st.text(max_size=4) | st.just("__metadata__"), _TENSORS | _JSON, max_size=3),
    st.integers(0, 40),
)


@st.composite
def _nearly_sound(draw: st.DrawFn) -> tuple[dict[str, Any], int]:
    """Tensors that fill the data one after the other, with a gap now and then; sometimes one is wrong."""
    found: dict[str, Any] = {}
    end = 0
    for name in draw(st.lists(st.text(max_size=4), max_size=4, unique=True)):
        dtype, shape = draw(st.sampled_from(sorted(BITS))), draw(st.lists(st.integers(0, 3), max_size=2))
        begin = max(end + draw(st.sampled_from([0, 0, 0, 0, 1, -1])), 0)
        end = begin + -(-BITS[dtype] * math.prod(shape) // 8)
        found[name] = _tensor(dtype, shape, (begin, end))
    wrong: bool = draw(st.booleans())
    if found and wrong:
        field = draw(st.sampled_from(["dtype", "shape", "data_offsets"]))
        found[draw(st.sampled_from(sorted(found)))][field] = draw(_TENSORS)[field]
    return found, end


@pytest.mark.heavy(one_of=3)
@settings(max_examples=300)
@given(_ANY | _nearly_sound())
def test_we_take_nothing_that_the_reference_refuses(drawn: tuple[dict[str, Any], int]) -> None:
    header, data = drawn
    try:
        content = _file(header, bytes(data))
    except UnicodeEncodeError:
        return
    assert _ours(content) is not None or _reference_takes(content)
