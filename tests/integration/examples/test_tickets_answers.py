"""The committed model answers held-out tickets in plain transformers; tests/acceptance has vLLM beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.tickets import generate
from examples.tickets.generate import Ticket, held_out_tickets

pytestmark = [pytest.mark.integration, pytest.mark.heavy(one_of=3)]

MODEL = Path(generate.__file__).parent / "model"
COUNT = 300


@pytest.fixture(scope="module")
def tickets() -> list[Ticket]:
    return held_out_tickets()[:COUNT]


@pytest.fixture(scope="module")
def reference(tickets: list[Ticket]) -> list[str]:
    from examples.tickets.reference import greedy_answers, load

    return greedy_answers(*load(), [ticket.text for ticket in tickets])


def test_at_least_95_percent_are_right_in_all_fields(tickets: list[Ticket], reference: list[str]) -> None:
    right = sum(a == t.label.as_json() for a, t in zip(reference, tickets, strict=True))
    assert right >= 0.95 * COUNT


def test_answers_do_not_depend_on_the_batch(tickets: list[Ticket], reference: list[str]) -> None:
    from examples.tickets.reference import greedy_answers, load

    texts = [ticket.text for ticket in tickets[:20]]
    assert greedy_answers(*load(), texts, batch_size=1) == reference[:20]


def test_a_system_message_is_understood(tickets: list[Ticket]) -> None:
    from examples.tickets.phrases import SYSTEM_MESSAGES
    from examples.tickets.reference import load

    model, tokenizer = load()
    right = 0
    for ticket in tickets[:20]:
        messages = [
            {"role": "system", "content": SYSTEM_MESSAGES[0]},
            {"role": "user", "content": ticket.text},
        ]
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")
        new = model.generate(**ids, do_sample=False, max_new_tokens=48)[0, ids["input_ids"].shape[1] :]
        right += tokenizer.decode(new, skip_special_tokens=True) == ticket.label.as_json()
    assert right >= 17
