"""Imports run one way, `flows -> tasks -> blocks -> dray`, and stay light until an engine runs."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dray.imports import own_program

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
FOLDERS = ("dray", "blocks", "tasks", "flows")
ABOVE = {  # folder -> what it must not import
    "dray": {"prefect", "prefect_ray", "blocks", "tasks", "flows"},
    "blocks": {"tasks", "flows"},
    "tasks": {"flows"},
}
CLOUD_LIBRARIES = {"boto3", "botocore", "moto", "kubernetes"}
ENGINE_LIBRARIES = {"torch", "vllm", "transformers"}
SCRIPTS = {"__main__.py", "env.py"}  # run as they are read: the second one by Alembic, inside its own context
INSIDE_THE_ACTOR = ROOT / "dray/engine/vllm_adapter"  # what only a replica's process loads
ENGINE_PLACES = ("engine", "weights/loading", "planner/workload")  # what may name those libraries at all
FIXED_NAMES = {"requests"}  # dray/requests is named by the design; it is never on the path by itself


def sources(folder: str) -> list[Path]:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files, f"no source in {folder}/"
    return files


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(node: ast.AST) -> list[str]:
    """Top-level names that this statement imports at run time; relative imports stay in their folder."""
    if isinstance(node, ast.Import):
        return [alias.name.split(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.level == 0:
        return [(node.module or "").split(".")[0]]
    return []


def walk(tree: ast.AST, function: str | None = None) -> Iterator[tuple[ast.AST, str | None]]:
    """Every node, with the outermost function that it stands in."""
    for node in ast.iter_child_nodes(tree):
        inside = function
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside = function or node.name
        yield node, inside
        yield from walk(node, inside)


def upward_imports(folder: str) -> list[tuple[Path, str | None, str]]:
    found = []
    for file in sources(folder):
        for node, function in walk(ast.parse(file.read_text())):
            names = ABOVE[folder].intersection(imported(node))
            found += [(file.relative_to(ROOT), function, name) for name in names]
    return found


@pytest.mark.parametrize("folder", ["blocks", "tasks"])
def test_nothing_imports_upwards(folder: str) -> None:
    assert upward_imports(folder) == []


def test_one_function_of_the_command_line_knows__the_flow() -> None:
    found = {(str(file), function, name) for file, function, name in upward_imports("dray")}
    assert found == {("dray/cli/with_prefect.py", "_the_flow", "flows")}


def loaded_after(code: str) -> set[str]:
    """Top-level modules that a fresh process has loaded after running ``code``."""
    report = "\nimport json, sys; print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    done = subprocess.run(
        [sys.executable, "-c", code + report],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_only_the_engine_imports_engine_libraries() -> None:
    found = [
        (str(file.relative_to(ROOT)), name)
        for folder in FOLDERS
        for file in sources(folder)
        if not any(file.is_relative_to(ROOT / "dray" / place) for place in ENGINE_PLACES)
        for node in ast.walk(ast.parse(file.read_text()))
        for name in ENGINE_LIBRARIES.intersection(imported(node))
    ]
    assert found == []


def loaded_by_the_driver(file: Path) -> bool:
    return not file.is_relative_to(INSIDE_THE_ACTOR) and file.name not in SCRIPTS


def test_no_module_of_the_driver_loads_an_engine() -> None:
    files = [file for folder in FOLDERS for file in sources(folder) if loaded_by_the_driver(file)]
    names = [module_name(file) for file in files]
    loaded = loaded_after(f"import importlib\nfor name in {names}: importlib.import_module(name)")
    assert {"dray", "blocks", "tasks", "flows"} <= loaded
    assert not loaded & ENGINE_LIBRARIES


def test_importing_dray_alone_is_light() -> None:
    loaded = loaded_after("import dray, dray.errors")
    assert "dray" in loaded
    heavy = {"sqlalchemy", "ray", "pandas", "pyarrow", "prefect", "pydantic"}
    assert not loaded & {*heavy, *CLOUD_LIBRARIES, *ENGINE_LIBRARIES}


def test_clusters_load_the_library_of_a_cloud_when_it_is_called() -> None:
    """So a job on this machine neither waits for boto3 nor needs it; moto is for tests alone."""
    names = [module_name(file) for file in sources("dray/cluster") if loaded_by_the_driver(file)]
    names += [
        "dray.cli.app",
        "dray.cli.cluster",
        "dray.job.options.resolving",
        "blocks.ec2_ray_cluster",
        "blocks.kuberay_cluster",
    ]
    loaded = loaded_after(f"import importlib\nfor name in {names}: importlib.import_module(name)")
    assert not loaded & CLOUD_LIBRARIES


def test_the_command_begins_light() -> None:
    """What runs before the first line of a run, beside the processes that are warmed up meanwhile."""
    loaded = loaded_after("import dray.cli.warming, dray.cluster")
    heavy = {"sqlalchemy", "ray", "pandas", "numpy", "pyarrow", "prefect", "pydantic", "cyclopts", "boto3"}
    assert not loaded & {*heavy, *ENGINE_LIBRARIES}


def test_a_run_of_the_flow_imports_no_tables() -> None:
    loaded = loaded_after("from dray.cli.with_prefect import _the_flow\n_the_flow()")
    assert {"flows", "prefect", "ray"} <= loaded
    assert not loaded & {"pandas", "pyarrow"}


def test_what_is_hidden_is_there_again_afterwards() -> None:
    code = """
from dray.imports import without
import json
with without("json", "pandas"):
    import json
    try:
        import pandas
    except ImportError:
        pass
    else:
        raise AssertionError("pandas was imported")
"""
    assert "pandas" not in loaded_after(code)
    assert "pandas" in loaded_after(f"{code}\nimport pandas")


def test_every_public_name_of_dray_resolves() -> None:
    loaded_after("import dray\nfor name in dray.__all__: getattr(dray, name)")


def test_every_public_name_of_dray_is_listed_before_it_is_used() -> None:
    """So a notebook completes it."""
    loaded = loaded_after("import dray\nassert set(dray.__all__) <= set(dir(dray))")
    assert not loaded & {"sqlalchemy", "pydantic"}


def test_no_process_looks_for_modules_in_the_current_folder_first() -> None:
    """There may lie a downloaded model's files; -I is -P and more."""
    commands = [
        (file.name, first.value if isinstance(first := node.elts[1], ast.Constant) else ast.dump(first))
        for folder in FOLDERS
        for file in sources(folder)
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.List) and node.elts and ast.unparse(node.elts[0]) == "sys.executable"
    ]
    assert len(commands) >= 7
    assert [command for command in commands if command[1] not in ("-P", "-I")] == []


def test_dray_starts_its_programs_from_a_checkout_that_is_not_installed(tmp_path: Path) -> None:
    """``-S``: without what is installed, as dray itself is here."""
    (tmp_path / "threading.py").write_text("raise SystemExit('of the current folder')")
    python, *rest = own_program("dray.processes", "end_without_teardown")
    done = subprocess.run([python, "-S", *rest], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_no_module_shares_a_name_with_the_standard_library_or_an_installed_one() -> None:
    taken = (set(sys.stdlib_module_names) | set(importlib.metadata.packages_distributions())) - FIXED_NAMES
    clashes = []
    for file in (file for folder in FOLDERS for file in sources(folder)):
        inner = file.relative_to(ROOT).with_suffix("").parts[1:]
        clashes += [str(file.relative_to(ROOT)) for name in inner if name in taken and name != "__main__"]
    assert clashes == []


def test_top_level_folders_share_no_name_with_an_installed_module() -> None:
    owners = importlib.metadata.packages_distributions()
    assert {folder: owners[folder] for folder in FOLDERS if set(owners.get(folder, [])) - {"dray"}} == {}
