"""Rows that need no engine leave the spool: repeats, and those with an answer of an earlier job."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dray.kinds import Kind
from dray.requests import duplicates
from dray.requests import sharing as module
from dray.requests.duplicates import Pairs
from dray.requests.ingest import Ingested, cut, ingest
from dray.requests.pulse import ReadingPulse
from dray.requests.sameness import key_of
from dray.requests.sharing import Answer, Dedupe, Sharing, key_of_reused
from dray.requests.sources import RowDefaults, source_of
from dray.requests.spool.arranging import Arrangement
from dray.requests.spool.marks import SpoolRange
from dray.requests.spool.spool import decode, read_shard

pytestmark = pytest.mark.unit

CHAT = Kind.CHAT.url
NAMED = "m"


def body(text: object, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": str(text)}], "temperature": 0} | fields


def write(folder: Path, bodies: Sequence[dict[str, Any]]) -> str:
    path = folder / "in.jsonl"
    lines = [{"custom_id": f"row-{n}", "url": CHAT, "body": one} for n, one in enumerate(bodies)]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return str(path)


def take(folder: Path, bodies: Sequence[dict[str, Any]], sharing: Sharing, **options: Any) -> Ingested:
    spool = str(folder / "job" / "spool.jsonl")
    return ingest(source_of([write(folder, bodies)]), spool_uri=spool, sharing=sharing, **options)


def spooled(ingested: Ingested) -> list[int]:
    ranges = cut(ingested, target_rows=3)
    lines = [read_shard(part.uri, part.offset, part.length) for part in ranges]
    return [decode(line).index for chunks in lines for chunk in chunks for line in chunk]


def followers(ingested: Ingested) -> dict[int, int]:
    return {row.index: row.leader for page in ingested.followers(2) for row in page}


class Answers:
    """Answers of an earlier job to texts; those of ``gone`` are deleted when they are asked for.

    No more than ``most`` come at once.
    """

    def __init__(self, texts: Sequence[object], gone: Sequence[object] = (), most: int = 256) -> None:
        self.texts = list(texts)
        self.gone = set(gone)
        self.most = most

    def keyed(self, pulse: ReadingPulse) -> Iterator[tuple[int, bytes]]:
        for number, text in enumerate(self.texts):
            yield number, key_of(CHAT, body(text), NAMED)

    def answers(self, numbers: Sequence[int]) -> Mapping[int, Answer | None]:
        return {
            n: Answer(n, b'{"id":"sim-%d","text":"%d"}' % (n, n), 3, 4)
            if self.texts[n] not in self.gone
            else None
            for n in numbers[: self.most]
        }


@given(texts=st.lists(st.integers(0, 6), min_size=1, max_size=40), dedupe=st.sampled_from([True, "always"]))
@settings(max_examples=15)
def test_the_first_of_equal_rows_is_asked_and_the_others_follow_it(
    tmp_path_factory: pytest.TempPathFactory, texts: list[int], dedupe: Dedupe
) -> None:
    ingested = take(tmp_path_factory.mktemp("job"), [body(text) for text in texts], Sharing(dedupe=dedupe))
    leaders = {n: texts.index(text) for n, text in enumerate(texts)}
    assert spooled(ingested) == sorted(set(leaders.values()))
    assert followers(ingested) == {n: leader for n, leader in leaders.items() if n != leader}
    assert (ingested.rows, ingested.requests) == (len(texts), len(set(texts)))
    assert ingested.shared.followers == len(texts) - len(set(texts))


def test_sampled_rows_are_left_alone_and_counted_unless_all_are_wanted(tmp_path: Path) -> None:
    bodies = [body("a"), body("a"), *[body("b", temperature=1)] * 3, body("b", temperature=1, request_id="x")]
    ingested = take(tmp_path, bodies, Sharing(dedupe=True))
    assert followers(ingested) == {1: 0}
    assert ingested.shared.doubts == {"sampled": 3, "own_id": 1}
    ingested = take(tmp_path, bodies, Sharing(dedupe="always"))
    assert followers(ingested) == {1: 0, 3: 2, 4: 2}
    assert ingested.shared.doubts == {"own_id": 1}


def test_without_the_option_nothing_is_read_again_or_written(tmp_path: Path) -> None:
    ingested = take(tmp_path, [body("a")] * 3, Sharing())
    assert spooled(ingested) == [0, 1, 2]
    assert [path.name for path in (tmp_path / "job").iterdir()] == ["spool.jsonl"]


def test_a_row_without_an_id_of_its_own_leads_nobody(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    lines = [{"custom_id": name, "url": CHAT, "body": body(text)} for name, text in ("aa", "ab", "cb", "db")]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    ingested = ingest(
        source_of([str(path)]),
        spool_uri=str(tmp_path / "job" / "spool.jsonl"),
        skip_invalid=True,
        sharing=Sharing(dedupe=True),
    )
    assert (spooled(ingested), followers(ingested)) == ([0, 2], {3: 2})  # row 1 repeats the id of row 0
    assert [row.index for page in ingested.rejects() for row in page] == [1]


def test_answers_of_earlier_jobs_are_taken_as_the_rows_own(tmp_path: Path) -> None:
    earlier = Answers(["x", "b", "b"])
    sharing = Sharing(earlier=earlier, model=NAMED)
    ingested = take(tmp_path, [body(text) for text in "abcb"], sharing)
    assert spooled(ingested) == [0, 2]
    (page,) = ingested.reused()
    assert [(row.index, row.custom_id, row.response) for row in page] == [
        (1, "row-1", b'{"id":"sim-1","text":"1"}'),
        (3, "row-3", b'{"id":"sim-3","text":"1"}'),
    ]
    assert {(row.prompt_tokens, row.completion_tokens) for row in page} == {(3, 4)}
    lines = Path(str(ingested.shared.reused_uri)).read_bytes().splitlines()
    keys = [(n, key_of(CHAT, body("b"), NAMED)) for n in (1, 3)]
    assert [key_of_reused(line) for line in lines] == keys
    ingested.shared.forget_answers(None)  # twice, as where a driver died in the midst of it
    ingested.shared.forget_answers(None)
    lines = Path(str(ingested.shared.reused_uri)).read_bytes().splitlines()
    assert [key_of_reused(line) for line in lines] == keys
    assert all(b"sim" not in line and b"row" not in line for line in lines)


def test_without_dedupe_only_earlier_answers_count(tmp_path: Path) -> None:
    ingested = take(tmp_path, [body(text) for text in "aabb"], Sharing(earlier=Answers(["b"]), model=NAMED))
    assert (spooled(ingested), followers(ingested), ingested.shared.reused) == ([0, 1], {}, 2)


def test_an_answer_that_was_deleted_meanwhile_is_computed(tmp_path: Path) -> None:
    sharing = Sharing(dedupe=True, earlier=Answers(["a", "b"], gone=["a"]), model=NAMED)
    ingested = take(tmp_path, [body(text) for text in "abc"], sharing)
    assert (spooled(ingested), ingested.shared.reused) == ([0, 2], 1)


@given(texts=st.lists(st.integers(0, 9), min_size=1, max_size=40), most=st.integers(1, 5))
@settings(max_examples=15)
def test_answers_that_come_a_few_at_a_time_are_all_taken(
    tmp_path_factory: pytest.TempPathFactory, texts: list[int], most: int
) -> None:
    """Large ones do. Texts from 6 on have no answer, and that to 3 is gone."""
    sharing = Sharing(earlier=Answers(range(6), gone=[3], most=most), model=NAMED)
    ingested = take(tmp_path_factory.mktemp("job"), [body(text) for text in texts], sharing)
    found = {row.index: str(row.response) for page in ingested.reused() for row in page}
    assert sorted(found) == [n for n, text in enumerate(texts) if text < 6 and text != 3]
    assert all(f'"text":"{texts[n]}"' in answer for n, answer in found.items())
    assert spooled(ingested) == [n for n in range(len(texts)) if n not in found]


def test_pages_of_answers_end_by_their_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page is one transaction of the store."""
    ingested = take(tmp_path, [body("a")] * 5, Sharing(earlier=Answers("a"), model=NAMED))
    [size] = {len(line) for line in Path(str(ingested.shared.reused_uri)).read_bytes().splitlines()}
    monkeypatch.setattr(module, "_BATCH_BYTES", 2 * size)
    assert [[row.index for row in page] for page in ingested.reused()] == [[0, 1], [2, 3], [4]]
    assert [len(page) for page in ingested.reused(1)] == [1] * 5


def test_a_spool_that_is_written_again_holds_what_it_held(tmp_path: Path) -> None:
    bodies = [body(text) for text in "abcabcab"]
    first = take(tmp_path, bodies, Sharing(dedupe=True, earlier=Answers(["b"]), model=NAMED))
    again = take(tmp_path, bodies, Sharing(dedupe=True, settled=[1, 4, 7], model=NAMED))
    assert spooled(first) == spooled(again) == [0, 2]
    assert first.spool_sha256 == again.spool_sha256
    assert followers(first) == followers(again) == {3: 0, 5: 2, 6: 0}


def test_a_job_whose_rows_are_all_answered_has_an_empty_spool(tmp_path: Path) -> None:
    ingested = take(tmp_path, [body("a"), body("b")], Sharing(earlier=Answers("ab"), model=NAMED))
    assert (ingested.requests, cut(ingested, target_rows=3), ingested.shared.reused) == (0, [], 2)


def test_many_rows_go_to_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"spill_rows": 100, "searched_rows": 3}
    monkeypatch.setattr(duplicates.DigestIndex.__init__, "__kwdefaults__", few)
    monkeypatch.setattr(duplicates.Pairs.__init__, "__kwdefaults__", {"most": 50, "block_bits": 6})
    texts = [n % 300 for n in range(1000)]
    ingested = take(tmp_path, [body(text) for text in texts], Sharing(dedupe=True), part_bytes=20_000)
    assert spooled(ingested) == list(range(300))
    assert followers(ingested) == {n: n % 300 for n in range(300, 1000)}
    assert len(ingested.parts) > 1


numbers = st.integers(0, 2**30)


@given(st.dictionaries(numbers, st.integers(0, 2**62 + 99)), st.lists(numbers))
@settings(max_examples=30)
def test_pairs_are_found_by_the_first(pairs: dict[int, int], others: list[int]) -> None:
    with Pairs(most=4, block_bits=3) as found:
        for one in pairs.items():
            found.add(np.array([one], np.uint64))
        asked = [*others, *reversed(pairs)]
        assert found.count == len(pairs)
        assert found.partners(asked) == found.partners(asked) == [pairs.get(one) for one in asked]


def test_rows_in_another_order_are_shared_all_the_same_and_groups_stay(tmp_path: Path) -> None:
    """Of a spool that a planner has put in order: here backwards, in groups of four."""

    def backwards(lines: Iterable[bytes]) -> Arrangement:
        rows = np.arange(len(list(lines)), dtype=np.uint32)[::-1]
        starts = np.arange(0, len(rows), 4, dtype=np.uint32)
        return Arrangement(rows=rows, starts=starts, families=starts.astype(np.int64) + 1)

    bodies = [body(text) for text in "abcaxbyzabcd"]
    sharing = Sharing(dedupe=True, earlier=Answers(["b"]), model=NAMED)
    ingested = take(tmp_path, bodies, sharing, arrange=backwards)
    kept = [11, 7, 6, 4, 2, 0]
    assert [index for part in cut(ingested, target_rows=1) for index in _indexes(part)] == kept
    assert followers(ingested) == {3: 0, 8: 0, 10: 2}
    assert {mark.position: mark.family for mark in ingested.marks} == {0: 1, 1: 5, 4: 9}
    again = take(tmp_path, bodies, Sharing(dedupe=True, settled=[1, 5, 9], model=NAMED), arrange=backwards)
    assert again.spool_sha256 == ingested.spool_sha256


def _indexes(part: SpoolRange) -> list[int]:
    chunks = read_shard(part.uri, part.offset, part.length)
    return [decode(line).index for chunk in chunks for line in chunk]


def test_rows_of_two_adapters_share_no_answer(tmp_path: Path) -> None:
    """Nor does a row of the model itself; one without a model asks what the job's name stands for."""
    bodies = [body("a", model=name) for name in ("support", "sales", "support", NAMED)] + [body("a")]
    for given_, expected in ((None, {2: 0, 4: 3}), ("support", {2: 0, 4: 0})):
        defaults = RowDefaults(model_name=given_, adapters=frozenset({"support", "sales"}))
        taken = take(tmp_path, bodies, Sharing(dedupe=True, model="folder"), defaults=defaults)
        assert followers(taken) == expected, given_
