"""Order numbers in several formats, and other numbers that get in their way."""

from __future__ import annotations

import random
import re

# Ranges of the first three digits of an order number that are kept for held-out tickets.
HELD_OUT_BLOCKS = (range(150, 200), range(430, 480), range(860, 910))
# L is a letter, a digit says how many digits. The first is the most common.
_FORMATS = ("L7", "L7", "LL-6", "8", "4-5", "LLL4", "3-7", "L4-4")
_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"


def is_held_out(number: str) -> bool:
    """Whether ``number`` is of the blocks that training never sees."""
    block = int(re.sub(r"\D", "", number)[:3])
    return any(block in blocks for blocks in HELD_OUT_BLOCKS)


def order_number(rng: random.Random, *, held_out: bool) -> str:
    """A number in one of the formats, of the blocks of its split."""
    layout = rng.choice(_FORMATS)
    while True:
        number = _fill(layout, rng)
        if is_held_out(number) == held_out:
            return number


def _fill(layout: str, rng: random.Random) -> str:
    parts = []
    for mark in layout:
        if mark == "L":
            parts.append(rng.choice(_LETTERS))
        elif mark.isdigit():
            parts.append("".join(rng.choice("0123456789") for _ in range(int(mark))))
        else:
            parts.append(mark)
    return "".join(parts)


def phone(rng: random.Random) -> str:
    """A telephone number."""
    layout = rng.choice(
        ("+44 20 {:04d} {:04d}", "0171-{:03d}{:04d}", "(555) {:03d}-{:04d}", "+49 30 {:03d}{:04d}")
    )
    return layout.format(rng.randrange(1000), rng.randrange(10000))


def amount(rng: random.Random) -> str:
    """An amount of money."""
    value = rng.choice((rng.randrange(5, 100), rng.randrange(100, 2000)))
    return rng.choice(("${}", "{} euros", "EUR {}.50", "{}.99 dollars", "£{}")).format(value)


def date(rng: random.Random) -> str:
    """A day."""
    day, month, year = rng.randrange(1, 29), rng.randrange(1, 13), rng.choice((2024, 2025))
    name = ("January", "March", "May", "June", "July", "October")[month % 6]
    return rng.choice(
        (f"{day} {name}", f"{year}-{month:02d}-{day:02d}", f"{day}/{month}/{year}", f"{name} {day}")
    )


def postcode(rng: random.Random) -> str:
    """A postcode."""
    return rng.choice((f"{rng.randrange(10000, 99999)}", f"LS{rng.randrange(1, 20)} {rng.randrange(1, 9)}QT"))
