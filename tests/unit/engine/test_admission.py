"""What an engine is given at a time: sequences and bytes, never more than it may hold."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dray.engine import admission, intake
from dray.engine.admission import MAX_ITEMS, MAX_MESSAGE_ITEMS, sequences_of
from dray.engine.batches import BATCH_BYTES, MAX_RESPONSE_BYTES, bounded
from dray.engine.protocol import EngineSpec
from dray.engine.replica import Replica
from dray.errors import ReplicaLeftError, RequestRefused
from dray.kinds import MAX_SEQUENCES, Kind
from dray.requests.model import Outcome, Request
from dray.requests.spool.spool import decode, encode
from tests.support.engines import request
from tests.unit.engine.test_loop import RandomEngine, drain, started

pytestmark = pytest.mark.unit


class WeighingEngine(RandomEngine):
    """Notes the most that it held."""

    def __init__(self, seed: int = 0, max_num_seqs: int = 4) -> None:
        super().__init__(seed, max_num_seqs)
        self.loads: list[tuple[int, int, int]] = []  # rows, sequences, bytes after each row

    def submit(self, key: int, request: Request) -> None:
        super().submit(key, request)
        held = self.running.values()
        self.loads.append((len(held), sum(map(sequences_of, held)), sum(len(encode(row)) for row in held)))


@settings(max_examples=60)
@given(
    rows=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3), st.integers(0, 900)), max_size=25),
    seed=st.integers(0, 99),
)
def test_an_engine_holds_no_more_than_its_limits_or_one_row(
    rows: list[tuple[int, int, int]], seed: int
) -> None:
    """Prompts times n, and bytes: whatever one take would bring (a limit of 5 sequences and 1,000 bytes)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(admission, "MAX_ADMITTED_BYTES", 1000)
        patch.setattr(intake, "MAX_ADMITTED_BYTES", 1000)
        engine = WeighingEngine(seed)
        runner = started(engine)
        bodies = [{"prompt": ["a" * size] * count, "n": n} for count, n, size in rows]
        runner.feed("s", [encode(request(number, body)) for number, body in enumerate(bodies)], last=True)
        assert sorted(drain(runner, "s")) == list(range(len(rows)))
        runner.stop()
        runner.join(5)
    for held, sequences, size in engine.loads:
        assert held == 1 or (sequences <= int(1.2 * 4) + 1 and size <= 1000)
    assert runner._held == admission.Held()


def test_rows_of_many_mib_are_admitted_by_their_bytes() -> None:
    """60 rows of 16 MiB would be 960 MiB in one take; 256 may be held."""
    arguments = {"max_num_seqs": 256, "seconds_per_token": 60.0, "max_model_len": 10**9}
    spec = EngineSpec(name="simulated", model="m", kind=Kind.COMPLETION, arguments=arguments)
    replica = Replica("r", spec, exit_when_dead=False)
    replica.ready()
    line = encode(request(0, {"prompt": "a" * (16 << 20), "max_tokens": 1}))
    replica.feed("s", [line] * 60, last=True)  # one object in memory: the loop counts each
    end = time.monotonic() + 20
    while replica.status().running < 15:
        assert time.monotonic() < end
        time.sleep(0.01)
    time.sleep(0.2)
    status = replica.status()
    assert (status.running, status.waiting) == (15, 45)
    replica.abort("s")
    replica.stop()


def test_a_row_that_waits_for_room_is_dropped_by_abort_and_handed_back_by_drain() -> None:
    for leave in "abort", "drain":
        arguments = {"max_num_seqs": 4, "seconds_per_token": 0.4}
        spec = EngineSpec(name="simulated", model="m", kind=Kind.COMPLETION, arguments=arguments)
        replica = Replica("r", spec, exit_when_dead=False)
        replica.ready()
        small = [encode(request(number, {"prompt": "a", "max_tokens": 1})) for number in range(2)]
        large = encode(request(2, {"prompt": "a", "n": 5, "max_tokens": 1}))
        replica.feed("first", small, last=True)
        replica.feed("second", [large], last=True)
        while replica.status().running < 2:
            time.sleep(0.005)
        assert replica.status().waiting == 1  # read, and waiting for room
        if leave == "abort":
            replica.abort("second")
            assert list(replica.results("second", 9, 0.01)) == []
        else:
            replica.drain(2.0)
            with pytest.raises(ReplicaLeftError):
                list(replica.results("second", 9, 0.01))
        assert sorted(o.index for batch in replica.results("first", 9, 0.01) for o in batch) == [0, 1]
        assert replica._loop._held == admission.Held()
        replica.stop()


COUNTED: list[tuple[Kind, dict[str, Any], int]] = [
    (Kind.COMPLETION, {"prompt": "a"}, 1),
    (Kind.COMPLETION, {"prompt": [1, 2, 3]}, 1),
    (Kind.COMPLETION, {"prompt": [1, 2, 3] * 100_000}, 1),
    (Kind.COMPLETION, {"prompt": ["a", "b"], "n": 3}, 6),
    (Kind.COMPLETION, {"prompt": [[1, 2], [3]], "n": None}, 2),
    (Kind.COMPLETION, {"prompt": "a", "n": "7"}, 7),  # vLLM's classes read both of these
    (Kind.COMPLETION, {"prompt": "a", "n": 7.0}, 7),
    (Kind.COMPLETION, {"prompt": "a", "n": "many"}, 1),
    (Kind.COMPLETION, {"prompt": "a", "n": float("inf")}, 1),
    (Kind.COMPLETION, {"prompt": "a", "n": -5}, 1),
    (Kind.COMPLETION, {"prompt": "a", "n": 10**30}, MAX_SEQUENCES),  # refused by the engine
    (Kind.CHAT, {"messages": [{"role": "user", "content": "a"}], "n": 5}, 5),
    (Kind.RESPONSE, {"input": [{"role": "user", "content": "a"}] * 3}, 1),
    (Kind.EMBEDDING, {"input": ["a"] * MAX_SEQUENCES}, MAX_SEQUENCES),
    (Kind.EMBEDDING, {"input": "a", "n": 5}, 1),
    (Kind.EMBEDDING, {"messages": [[{"role": "user", "content": "a"}]] * 3}, 3),
    (Kind.EMBEDDING, {"messages": [{"role": "user", "content": "a"}] * 3}, 1),
    (Kind.SCORE, {"queries": "a", "documents": ["b"] * 9}, 9),
    (Kind.SCORE, {"text_1": ["a"] * 4, "text_2": ["b"] * 4}, 4),
    (Kind.SCORE, {"queries": "a"}, 1),  # refused by the engine
    (Kind.RERANK, {"query": "a", "documents": ["b"] * 9, "n": 3}, 9),
    (Kind.CLASSIFICATION, {"input": ["a", "b"]}, 2),
]


@pytest.mark.parametrize(("kind", "body", "count"), COUNTED, ids=lambda value: str(value)[:40])
def test_sequences_are_prompts_times_answers(kind: Kind, body: dict[str, Any], count: int) -> None:
    assert sequences_of(request(0, body, kind)) == count


TOO_LARGE: list[tuple[Kind, dict[str, Any], str]] = [
    (Kind.EMBEDDING, {"input": ["a"] * 40_000}, r"`input` holds 40,000 prompts; a row may hold 2,048"),
    (Kind.EMBEDDING, {"input": ["a", 5] * 1025}, "2,050 prompts"),
    (Kind.EMBEDDING, {"messages": [[]] * 2049}, "`messages` holds 2,049"),
    (Kind.COMPLETION, {"prompt": ["a"] * 1024, "n": 128}, r"1,024 prompts, each to be answered 128 times"),
    (Kind.COMPLETION, {"prompt": [[5]] * 2049}, "2,049 prompts"),
    (Kind.SCORE, {"queries": ["a"] * 2049, "documents": ["b"] * 2049}, "`documents` holds 2,049"),
    (Kind.RERANK, {"query": "a", "documents": ["b"] * 2049}, "`documents` holds 2,049"),
    (Kind.SCORE, {"queries": "a" * 100_000, "documents": ["b"] * 2048}, "204,802,048 characters"),
    (Kind.CHAT, {"messages": [5] * (MAX_MESSAGE_ITEMS + 1)}, "16,385 messages and parts"),
    (Kind.CHAT, {"messages": [{"role": "user", "content": [5] * MAX_MESSAGE_ITEMS}]}, "messages and parts"),
    (Kind.RESPONSE, {"input": [5] * (MAX_MESSAGE_ITEMS + 1)}, "`input` holds 16,385 messages and parts"),
    (Kind.CHAT, {"messages": [], "stop": ["a"] * (MAX_ITEMS + 1)}, "262,145 elements"),
    (Kind.CHAT, {"messages": [], "tools": [{"a": {"b": [[5] * MAX_ITEMS]}}]}, "elements"),
]


@pytest.mark.parametrize(("kind", "body", "said"), TOO_LARGE, ids=lambda value: str(value)[:40])
def test_a_row_that_asks_for_too_much_is_an_error_row(kind: Kind, body: dict[str, Any], said: str) -> None:
    """In front of every engine, so that nothing is read, let alone admitted."""
    with pytest.raises(RequestRefused, match=said):
        sequences_of(request(0, body, kind))
    spec = EngineSpec(name="simulated", model="m", kind=kind)
    replica = Replica("r", spec, exit_when_dead=False)
    replica.ready()
    replica.feed("s", [encode(request(0, body, kind)), encode(request(1, kind.proof, kind))], last=True)
    found = sorted((o for batch in replica.results("s", 9, 0.01) for o in batch), key=lambda o: o.index)
    assert [outcome.error_code for outcome in found] == ["request_too_large", None]
    replica.stop()


def test_a_number_beyond_64_bits_is_an_error_row_where_the_engine_reads_it() -> None:
    """There it would become a whole number that the engine's core cannot be told."""

    def weigh(field: str, value: Any) -> int:
        return sequences_of(decode(encode(request(0, {"messages": [], field: value}, Kind.CHAT))))

    for field, value in ("stop_token_ids", [2.0**70]), ("repetition_detection", {"min_count": -1e300}):
        with pytest.raises(RequestRefused, match=f"`{field}` holds a number beyond 64 bits") as refused:
            weigh(field, value)
        assert refused.value.code == "number_too_large"
    assert weigh("stop_token_ids", [2**64 - 1, -(2**63), 1.5e18]) == 1


@pytest.mark.parametrize("number", [1e20, 1.7976931348623157e308])
def test_a_schema_may_hold_floats_of_any_size(number: float) -> None:
    """A whole number that was rounded is found as the input is read."""
    limited = {"type": "number", "maximum": number}
    tools = [{"type": "function", "function": {"name": "f", "parameters": limited}}]
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": limited}}
    for field, value in (
        ("tools", tools),
        ("response_format", schema),
        ("structured_outputs", {"json": limited}),
    ):
        assert sequences_of(request(0, {"messages": [], field: value}, Kind.CHAT)) == 1
    text = {"format": {"type": "json_schema", "name": "x", "schema": limited}}
    assert sequences_of(request(0, {"input": "a", "text": text}, Kind.RESPONSE)) == 1


class BigAnswers(RandomEngine):
    """All answers at once, of the sizes that the rows name."""

    def step(self) -> list[tuple[int, Outcome]]:
        time.sleep(0.05)
        done, self.running = self.running, {}
        return [
            (key, Outcome(index=row.index, custom_id=None, response=bytes(row.body["size"])))
            for key, row in done.items()
        ]


def test_a_micro_batch_is_bounded_by_bytes() -> None:
    """It is one message of Ray's, and one transaction of the store's."""
    sizes = [10, 20 << 20, 20 << 20, BATCH_BYTES + 1, 10, 10, 30 << 20, 10]
    runner = started(BigAnswers(max_num_seqs=64))
    rows: Iterable[Request] = (request(n, {"prompt": "a", "size": size}) for n, size in enumerate(sizes))
    runner.feed("s", [encode(row) for row in rows], last=True)
    batches = [[len(o.response or b"") for o in batch] for batch in runner.batches("s", rows=64, seconds=1)]
    assert [size for batch in batches for size in batch] == sizes
    assert all(sum(batch) <= BATCH_BYTES or len(batch) == 1 for batch in batches)
    runner.stop()


def test_an_answer_that_no_database_holds_is_an_error_row_and_the_others_are_kept() -> None:
    sizes = [10, MAX_RESPONSE_BYTES, MAX_RESPONSE_BYTES + 1, 10]
    runner = started(BigAnswers(max_num_seqs=64))
    rows: Iterable[Request] = (request(n, {"prompt": "a", "size": size}) for n, size in enumerate(sizes))
    runner.feed("s", [encode(row) for row in rows], last=True)
    found = [outcome for batch in runner.batches("s", rows=64, seconds=1) for outcome in batch]
    assert [outcome.error_code for outcome in found] == [None, None, "response_too_large", None]
    assert found[2].response is None
    assert "268,435,457 bytes" in (found[2].error_message or "")
    assert runner.stats.finished == 4
    runner.stop()
    told = bounded(Outcome(index=0, custom_id=None, response=bytes(MAX_RESPONSE_BYTES + 1), prompt_tokens=7))
    assert told.prompt_tokens == 7  # they were computed, and paid for
