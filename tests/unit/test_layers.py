"""The parts of dray import each other one way, and no two modules import each other, wherever that stands."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]

LAYERS = (
    {
        "durations",
        "errors",
        "imports",
        "owner",
        "places",
        "processes",
        "history",
        "machine",
        "ports",
        "proxies",
        "steady_clock",
        "temporary",
        "wording",
    },
    {"codes", "kinds", "triggers"},
    {"storage", "failures", "scheduling", "account"},
    {"notices", "requests", "weights"},
    {"store", "report"},
    {"planner"},
    {"engine"},
    {"cluster"},
    {"shard"},
    {"job"},
    {"driver", "job_plan"},
    {"cli"},
)
"""The parts of dray, the lowest first: each imports from layers below its own alone."""


def modules() -> dict[str, Path]:
    """The modules of dray, tasks, blocks and flows by name; migrations are Alembic's to load."""
    found = {}
    for folder in ("dray", "tasks", "blocks", "flows"):
        for file in (ROOT / folder).rglob("*.py"):
            parts = file.relative_to(ROOT).with_suffix("").parts
            if "migrations" not in parts:
                found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


MODULES = modules()


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """All of a module, functions included, but what only type checkers see."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        yield node
        yield from statements(node)


def imports(name: str) -> set[str]:
    """The modules of ours that a module imports."""
    found: set[str] = set()
    for node in statements(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            below = {f"{node.module}.{alias.name}" for alias in node.names} & MODULES.keys()
            found |= below
            if len(below) < len(node.names) and node.module in MODULES:
                found.add(node.module)
    return found - {name}


def part(name: str) -> str:
    """``dray.store.jobs`` is of ``store``; empty for ``dray`` itself and what is not of it."""
    parts = name.split(".")
    return parts[1] if parts[0] == "dray" and len(parts) > 1 else ""


def test_every_part_has_a_layer() -> None:
    parts = {part(name) for name in MODULES} - {""}
    assert parts == set().union(*LAYERS)


def test_the_driver_alone_finds_out_what_a_replica_died_of() -> None:
    asking = {part(name) for name in MODULES if "dray.cluster.losses" in imports(name)}
    assert asking == {"cluster", "driver"}


def test_the_parts_of_dray_import_downwards() -> None:
    height = {name: number for number, layer in enumerate(LAYERS) for name in layer}
    upwards = [
        (name, other)
        for name in MODULES
        for other in imports(name)
        if part(name) and part(other) and part(name) != part(other)
        if height[part(name)] <= height[part(other)]
    ]
    assert upwards == []


def test_no_module_is_imported_by_what_it_imports() -> None:
    """Also through others, and inside functions: two modules that import each other belong together."""
    try:
        TopologicalSorter({name: imports(name) for name in MODULES}).prepare()
    except CycleError as error:
        pytest.fail(f"modules import each other: {' -> '.join(error.args[1])}")


def test_the_map_of_the_code_has_the_same_layers() -> None:
    """docs/architecture.md lists the parts of dray in the order that holds."""
    page = (ROOT / "docs/architecture.md").read_text()
    table = page.partition("## Parts of")[2].partition("\nBeside it")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert [set(re.findall(r"`(\w+)`", cell)) for cell in cells] == list(LAYERS)
