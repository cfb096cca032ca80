"""Tickets with their labels: an endless training stream, and held-out requests.

    python -m examples.tickets.generate --requests 2000 --seed 7 --output examples/tickets/requests.jsonl

Held-out tickets share the sentences of the training tickets, but no combination of them (what is wrong,
how urgent, how the order is named), no name of a person, and no block of order numbers. Some of their
products are new, too.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from examples.tickets import order_numbers, phrases
from examples.tickets.labels import CATEGORIES, URGENCIES, Label
from examples.tickets.noise import untidy

TRAINING_SEED = 1
TRAINING_TICKETS = 56_000
# Copying digits is learnt early and cheaply from short texts.
EASY_TICKETS = 6_000
EASY_CHARACTERS = 180
HELD_OUT_SEED = 7
HELD_OUT_TICKETS = 2_000
HELD_OUT_SHARE = 6  # one combination in six is kept from training
# Keep a ticket between 20 and 200 tokens of the committed tokenizer, which cuts upper case finer.
MAX_CHARACTERS = 480
MAX_CHARACTERS_UPPER = 240
MIN_CHARACTERS = 70
MAX_ANSWER_TOKENS = 48
_STRAY_COMMA = re.compile(r",(?=[.,?;:])")
_SLOT = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, kw_only=True)
class Ticket:
    """A text, its label, and what it was made of."""

    text: str
    label: Label
    combination: str
    names: frozenset[str]
    numbers: tuple[str, ...]


def training_tickets(count: int = TRAINING_TICKETS, seed: int = TRAINING_SEED) -> Iterator[Ticket]:
    """The tickets that training sees, each once, in its order: short ones first, then all kinds."""
    for index in range(count):
        rng = random.Random(f"train {seed} {index}")
        ticket = _ticket(rng, held_out=False)
        while index < EASY_TICKETS and len(ticket.text) > EASY_CHARACTERS:
            ticket = _ticket(rng, held_out=False)
        yield ticket


def held_out_tickets(count: int = HELD_OUT_TICKETS, seed: int = HELD_OUT_SEED) -> list[Ticket]:
    """``count`` different tickets of combinations, names and order numbers that training never sees."""
    rng = random.Random(f"held out {seed}")
    found: dict[str, Ticket] = {}
    while len(found) < count:
        ticket = _ticket(rng, held_out=True)
        found.setdefault(ticket.text, ticket)
    return list(found.values())


def is_held_out(combination: str) -> bool:
    """Whether a combination of sentences is kept from training."""
    return zlib.crc32(combination.encode()) % HELD_OUT_SHARE == 0


def _ticket(rng: random.Random, *, held_out: bool) -> Ticket:
    while True:
        plan = _plan(rng, held_out=held_out)
        if is_held_out(plan.combination) != held_out:
            continue
        ticket = _write(plan, rng, held_out=held_out)
        limit = MAX_CHARACTERS_UPPER if ticket.text.isupper() else MAX_CHARACTERS
        if MIN_CHARACTERS <= len(ticket.text) <= limit:
            return ticket


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """The three choices that make the label, before any slot is filled."""

    category: str
    urgency: str
    core: str
    cue: str
    naming: str  # how the order is named, or not
    has_order: bool
    in_core: bool  # the naming fills the core's {item}

    @property
    def combination(self) -> str:
        return "|".join((self.core, self.cue, self.naming))


def _plan(rng: random.Random, *, held_out: bool) -> _Plan:
    category = rng.choice(CATEGORIES)
    urgency = rng.choice(URGENCIES)
    core = rng.choice(phrases.CORES[category])
    has_order = rng.random() < (0.3 if category in phrases.ORDER_IS_RARE else 0.82)
    in_core = has_order and "{item}" in core and rng.random() < 0.35
    if in_core:
        namings = phrases.ORDER_ITEMS
    elif not has_order:
        namings = phrases.ORDER_ABSENT
    elif held_out:
        namings = rng.choice((phrases.ORDER_SENTENCES, phrases.ORDER_CHOICES + phrases.ORDER_PLACES))
    else:  # training practises more of what is hard
        namings = rng.choice((phrases.ORDER_SENTENCES, phrases.ORDER_CHOICES, phrases.ORDER_PLACES))
    return _Plan(
        category=category,
        urgency=urgency,
        core=core,
        cue=rng.choice(phrases.URGENCY_CUES[urgency]),
        naming=rng.choice(namings),
        has_order=has_order,
        in_core=in_core,
    )


def _write(plan: _Plan, rng: random.Random, *, held_out: bool) -> Ticket:
    """The plan's sentences in some order, with asides, a greeting and a closing, filled and made untidy."""
    slots = _Slots(rng, held_out=held_out)
    item = plan.naming if plan.in_core else "{product}"
    sentences = [plan.core.replace("{item}", item), plan.cue]
    if not plan.in_core:
        sentences.append(plan.naming)
    sentences += rng.sample(phrases.NUMBER_ASIDES, rng.choice((0, 0, 1, 1, 2)))
    sentences += rng.sample(phrases.ASIDES, rng.choice((0, 0, 1, 1, 2)))
    rng.shuffle(sentences)
    lines = [rng.choice(phrases.GREETINGS), *sentences, rng.choice(phrases.CLOSINGS)]
    text = " ".join(slots.fill(line) for line in lines if line)
    text = untidy(_STRAY_COMMA.sub("", text), rng)
    order = slots.order if plan.has_order else None
    if order is not None and order not in text:
        order = order.lower()
    return Ticket(
        text=text,
        label=Label(category=plan.category, urgency=plan.urgency, order=order),
        combination=plan.combination,
        names=frozenset(slots.names),
        numbers=tuple(slots.numbers),
    )


class _Slots:
    """Fills the slots of one ticket, and remembers names and numbers used."""

    def __init__(self, rng: random.Random, *, held_out: bool) -> None:
        self._rng = rng
        self._held_out = held_out
        self.names: list[str] = []
        self.numbers: list[str] = []
        self.order = self._number()
        self._product = self._a_product()
        self._makers: dict[str, Callable[[], str]] = {
            "order": lambda: self.order,
            "other": self._number,
            "product": lambda: self._product,
            "other_product": self._a_product,
            "name": self._name,
            "stranger": self._name,
            "city": lambda: rng.choice(phrases.CITIES),
            "date": lambda: order_numbers.date(rng),
            "amount": lambda: order_numbers.amount(rng),
            "phone": lambda: order_numbers.phone(rng),
            "postcode": lambda: order_numbers.postcode(rng),
            "count": lambda: str(rng.randrange(2, 40)),
            "near": lambda: rng.choice(phrases.NEAR),
            "far": lambda: rng.choice(phrases.FAR),
            "event": lambda: rng.choice(phrases.EVENTS),
            "event_start": lambda: rng.choice(phrases.EVENTS).capitalize(),
        }

    def fill(self, sentence: str) -> str:
        return _SLOT.sub(lambda slot: self._makers[slot[1]](), sentence)

    def _number(self) -> str:
        number = order_numbers.order_number(self._rng, held_out=self._held_out)
        self.numbers.append(number)
        return number

    def _name(self) -> str:
        names = (
            self._rng.choice(split[self._held_out]) for split in (phrases.FIRST_NAMES, phrases.LAST_NAMES)
        )
        name = " ".join(names)
        self.names.append(name)
        return name

    def _a_product(self) -> str:
        # Held-out tickets speak of unknown products now and then; only those would be another language.
        return self._rng.choice(phrases.PRODUCTS[self._held_out and self._rng.random() < 0.3])


def request(number: int, ticket: Ticket) -> dict[str, Any]:
    """The ticket as one line of an OpenAI batch file."""
    return {
        "custom_id": custom_id(number),
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {
            "model": "tickets",
            "messages": [{"role": "user", "content": ticket.text}],
            "max_tokens": MAX_ANSWER_TOKENS,
            "temperature": 0,
        },
    }


def custom_id(number: int) -> str:
    """The id of the ``number``-th request, from 1."""
    return f"ticket-{number:04d}"


def request_lines(tickets: list[Ticket]) -> str:
    """The requests file."""
    return "".join(json.dumps(request(n, ticket)) + "\n" for n, ticket in enumerate(tickets, start=1))


def label_lines(tickets: list[Ticket]) -> str:
    """The file of right answers, one line per request."""
    return "".join(
        json.dumps({"custom_id": custom_id(n), **asdict(ticket.label)}) + "\n"
        for n, ticket in enumerate(tickets, start=1)
    )


def main() -> None:
    """Write the requests, and their labels beside them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=HELD_OUT_TICKETS)
    parser.add_argument("--seed", type=int, default=HELD_OUT_SEED)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "requests.jsonl")
    arguments = parser.parse_args()
    tickets = held_out_tickets(arguments.requests, arguments.seed)
    labels = arguments.output.with_name("labels.jsonl")
    arguments.output.write_text(request_lines(tickets), encoding="utf-8")
    labels.write_text(label_lines(tickets), encoding="utf-8")
    print(f"{len(tickets)} requests in {arguments.output}, their labels in {labels}")


if __name__ == "__main__":
    main()
