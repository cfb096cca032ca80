"""The commands that the measurements name can be given again: their programs take these arguments."""

from __future__ import annotations

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

from tests.benchmarks.__main__ import NAMES

pytestmark = pytest.mark.unit

TESTS = Path(__file__).parents[1]
PAGES = ("benchmarks/RESULTS.md", "chaos/RESULTS.md")


def named(page: str) -> list[str]:
    """What follows ``python -m`` in a page."""
    return re.findall(r"`python -m ([^`]+)`", (TESTS / page).read_text())


def commands(page: str) -> list[str]:
    """Those of a page. NAME stands for each of the benchmarks."""
    return [
        command.replace(".NAME", f".{name}")
        for command in named(page)
        for name in (NAMES if ".NAME" in command else NAMES[:1])
    ]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_seen(page: str) -> None:
    seen = len(named(page))
    assert seen > 0
    assert seen == (TESTS / page).read_text().count("python -m ")


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize("command", dict.fromkeys(line for page in PAGES for line in commands(page)))
def test_its_program_takes_the_arguments(command: str) -> None:
    module, *given = shlex.split(command)
    import_module(module).parse(given)


@pytest.mark.parametrize(
    "command",
    [
        "tests.benchmarks.store --no-such-option",
        "tests.benchmarks.weights --only nobody",
        "tests.benchmarks.throughput --only nobody",
        "tests.benchmarks.interruptions --only nobody",
        "tests.chaos.soak --lanes many",
    ],
)
def test_a_command_that_is_out_of_date_is_found(command: str) -> None:
    module, *given = shlex.split(command)
    with pytest.raises(SystemExit):
        import_module(module).parse(given)
