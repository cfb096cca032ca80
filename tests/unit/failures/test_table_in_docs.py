"""The tables of docs/interruptions.md are those of the code.

``python -m tests.unit.failures.test_table_in_docs`` writes them anew.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dray.failures.effects import ALLOWANCES
from dray.failures.rules import RULES, Rule
from tests.benchmarks.results import Table, record

pytestmark = pytest.mark.unit

PAGE = Path(__file__).parents[3] / "docs/interruptions.md"


def causes() -> str:
    """The table of causes."""
    header = ("cause", "when", "shard", "its task", "charged to", "waits")
    return _bare(Table(title="", header=header, rows=[_cells(rule) for rule in RULES]))


def _cells(rule: Rule) -> list[str]:
    effect = rule.effect
    code = f" `{effect.code}`" if effect.code else ""
    waits = f"up to {effect.wait.base:g} s, doubled to {effect.wait.cap:g} s" if effect.wait.cap else ""
    return [
        f"`{rule.cause}`",
        rule.when,
        f"{effect.shard}{code}",
        str(effect.task),
        ", ".join(effect.charges) or "no budget",
        waits,
    ]


def budgets() -> str:
    """The table of budgets."""
    rows = [
        [str(budget), str(one.limit), one.scope, str(one.then), one.advice]
        for budget, one in ALLOWANCES.items()
    ]
    return _bare(Table(title="", header=("budget", "losses", "counted for", "one more", "advice"), rows=rows))


def _bare(table: Table) -> str:
    return table.markdown().partition("\n\n")[2]


@pytest.mark.parametrize("table", [causes, budgets], ids=lambda table: str(table.__name__))
def test_the_page_has_the_table_of_the_code(table: type[str]) -> None:
    assert str(table()) in PAGE.read_text(), f"write it anew: python -m {__spec__.name if __spec__ else ''}"


if __name__ == "__main__":
    for make in (causes, budgets):
        record(make.__name__, make(), PAGE)
