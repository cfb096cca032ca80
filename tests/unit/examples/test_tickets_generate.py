"""The tickets: what is held out is unknown to training, and the committed files are the generator's."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.tickets import order_numbers, phrases
from examples.tickets.generate import (
    EASY_CHARACTERS,
    EASY_TICKETS,
    Ticket,
    held_out_tickets,
    is_held_out,
    label_lines,
    main,
    request_lines,
    training_tickets,
)
from examples.tickets.labels import CATEGORIES, URGENCIES, Label

pytestmark = [pytest.mark.unit, pytest.mark.heavy(one_of=9)]

TICKETS = Path(phrases.__file__).parent


@pytest.fixture(scope="module")
def training() -> list[Ticket]:
    return list(training_tickets())


@pytest.fixture(scope="module")
def held_out() -> list[Ticket]:
    return held_out_tickets()


@pytest.mark.heavy
def test_no_held_out_text_combination_name_or_number_is_trained_on(
    training: list[Ticket], held_out: list[Ticket]
) -> None:
    assert {t.text for t in held_out}.isdisjoint(t.text for t in training)
    assert {t.combination for t in held_out}.isdisjoint(t.combination for t in training)
    names = frozenset().union(*(t.names for t in held_out))
    assert names and names.isdisjoint(frozenset().union(*(t.names for t in training)))
    numbers = {number for t in held_out for number in t.numbers}
    assert numbers and numbers.isdisjoint(number for t in training for number in t.numbers)


@pytest.mark.heavy
def test_no_part_of_a_held_out_name_stands_in_a_training_text(training: list[Ticket]) -> None:
    parts = {name.lower() for split in (phrases.FIRST_NAMES, phrases.LAST_NAMES) for name in split[1]}
    typed = {word.lower() for t in training for word in re.findall(r"[A-Za-z]+", t.text)}
    assert not parts & typed


def test_a_held_out_order_is_never_an_answer_of_training(
    training: list[Ticket], held_out: list[Ticket]
) -> None:
    trained = {t.label.order.upper() for t in training if t.label.order}
    assert all(order_numbers.is_held_out(t.label.order) for t in held_out if t.label.order)
    assert not any(order_numbers.is_held_out(order) for order in trained)


def test_the_committed_files_are_what_the_generator_writes(held_out: list[Ticket]) -> None:
    assert (TICKETS / "requests.jsonl").read_text(encoding="utf-8") == request_lines(held_out)
    assert (TICKETS / "labels.jsonl").read_text(encoding="utf-8") == label_lines(held_out)


def test_the_command_writes_requests_and_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_out: list[Ticket]
) -> None:
    output = tmp_path / "requests.jsonl"
    arguments = ["generate", "--requests", "5", "--seed", "7", "--output", str(output)]
    monkeypatch.setattr("sys.argv", arguments)
    main()
    assert output.read_text(encoding="utf-8") == request_lines(held_out[:5])
    assert (tmp_path / "labels.jsonl").read_text(encoding="utf-8") == label_lines(held_out[:5])


def test_requests_are_in_the_batch_format(held_out: list[Ticket]) -> None:
    requests = [json.loads(line) for line in request_lines(held_out).splitlines()]
    assert [r["custom_id"] for r in requests] == [f"ticket-{n:04d}" for n in range(1, 2001)]
    for request, ticket in zip(requests, held_out, strict=True):
        assert (request["method"], request["url"]) == ("POST", "/v1/chat/completions")
        body = request["body"]
        assert body["messages"] == [{"role": "user", "content": ticket.text}]
        assert (body["model"], body["temperature"], body["max_tokens"]) == ("tickets", 0, 48)


def test_an_order_is_written_as_in_the_text(training: list[Ticket], held_out: list[Ticket]) -> None:
    for ticket in training + held_out:
        assert ticket.label.order is None or ticket.label.order in ticket.text


def test_the_tickets_are_hard_in_the_ways_the_readme_says(held_out: list[Ticket]) -> None:
    count = len(held_out)
    assert min(Counter(t.label.category for t in held_out).values()) > count / len(CATEGORIES) / 2
    assert min(Counter(t.label.urgency for t in held_out).values()) > count / len(URGENCIES) / 2
    without = [t for t in held_out if t.label.order is None]
    assert 0.15 < len(without) / count < 0.5
    assert sum(len(t.numbers) > 1 for t in without) > count / 20, "numbers that are no orders"
    assert sum(len(t.numbers) > 1 for t in held_out) > count / 2, (
        "more than one number that looks like an order"
    )
    assert sum(t.text.islower() for t in held_out) > count / 20
    assert sum(t.text.isupper() for t in held_out) > count / 50


def test_training_starts_with_short_tickets_and_goes_on_with_all(training: list[Ticket]) -> None:
    assert max(len(t.text) for t in training[:EASY_TICKETS]) <= EASY_CHARACTERS
    assert max(len(t.text) for t in training[EASY_TICKETS:]) > 2 * EASY_CHARACTERS


def test_the_same_seed_gives_the_same_tickets_and_another_seed_others() -> None:
    assert list(training_tickets(20, 3)) == list(training_tickets(20, 3))
    assert list(training_tickets(20, 3)) != list(training_tickets(20, 4))
    assert held_out_tickets(20, 3) != held_out_tickets(20, 4)


def test_a_core_belongs_to_one_category_and_a_cue_to_one_urgency() -> None:
    for groups in (phrases.CORES, phrases.URGENCY_CUES):
        owners = Counter(sentence for group in groups.values() for sentence in set(group))
        assert max(owners.values()) == 1
    assert tuple(phrases.CORES) == CATEGORIES
    assert tuple(phrases.URGENCY_CUES) == URGENCIES


@given(st.randoms(use_true_random=False), st.booleans())
def test_order_numbers_keep_to_their_split(rng: object, held_out: bool) -> None:
    number = order_numbers.order_number(rng, held_out=held_out)  # type: ignore[arg-type]
    assert order_numbers.is_held_out(number) is held_out
    assert re.fullmatch(r"[A-Z0-9-]{7,11}", number)


@given(st.text(max_size=40))
def test_a_combination_is_on_one_side_for_ever(combination: str) -> None:
    assert is_held_out(combination) is is_held_out(combination)


def test_the_schema_names_the_classes_of_the_labels() -> None:
    schema = json.loads((TICKETS / "schema.json").read_text(encoding="utf-8"))
    fields = schema["properties"]
    assert tuple(fields["category"]["enum"]) == CATEGORIES
    assert tuple(fields["urgency"]["enum"]) == URGENCIES
    assert tuple(fields) == tuple(schema["required"]) == tuple(Label.__dataclass_fields__)


def test_every_label_fits_the_schema(held_out: list[Ticket]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((TICKETS / "schema.json").read_text(encoding="utf-8"))
    validator = jsonschema.Draft202012Validator(schema)
    for ticket in held_out:
        validator.validate(json.loads(ticket.label.as_json()))
    assert not validator.is_valid({"category": "other", "urgency": "low", "order": None})
    assert not validator.is_valid({"category": "refund", "urgency": "low", "order": "12"})
