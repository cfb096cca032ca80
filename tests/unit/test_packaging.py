"""The wheel holds `dray` alone, and what is committed names versions, not machines."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import dray

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
COMMITTED = ("blocks", "dray", "examples", "flows", "tasks", "tests", "deployments", ".ci", ".github")


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder, cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_dray_alone(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    info = f"dray-{dray.__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {"dray", info}
    sources = {str(file.relative_to(ROOT)) for file in (ROOT / "dray").rglob("*.py")}
    assert sources <= names
    assert {"dray/py.typed", f"{info}/licenses/LICENSE"} <= names


def test_type_checkers_read_all_that_users_import() -> None:
    """Flows and what they need are in a checkout and the source archive, not in the wheel."""
    folders = ("dray", "flows", "tasks", "blocks")
    assert [folder for folder in folders if not (ROOT / folder / "py.typed").is_file()] == []


def test_data_files_of_dray_travel_in_the_wheel(wheel: Path) -> None:
    kept = {".sql", ".html", ".css", ".js", ".j2", ".mako", ".svg", ".json", ".ini"}
    data = {str(file.relative_to(ROOT)) for file in (ROOT / "dray").rglob("*") if file.suffix in kept}
    with zipfile.ZipFile(wheel) as archive:
        assert data <= set(archive.namelist())


def test_the_wheel_imports_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "empty", cwd=tmp_path)
    python = tmp_path / "empty" / "bin" / "python"
    install = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--offline", "--no-deps"]
    run(*install, "--python", python, wheel, cwd=tmp_path)
    code = """
import importlib.metadata, importlib.util, json, dray, dray.errors
names = ["flows", "tasks", "blocks", "tests", "deployments", "examples", "prefect"]
present = [name for name in names if importlib.util.find_spec(name)]
print(json.dumps([dray.__version__, importlib.metadata.version("dray"), present]))
"""
    version, metadata, present = json.loads(run(python, "-I", "-c", code, cwd=tmp_path))
    assert version == metadata == PROJECT["version"]
    assert present == []
    assert (tmp_path / "empty" / "bin" / "dray").exists()


def test_the_installed_version_is_the_one_of_the_source() -> None:
    assert dray.__version__ == PROJECT["version"] == importlib.metadata.version("dray")


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_constraints_are_names_and_versions_only() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    odd = [line for line in lines if not re.fullmatch(r"[a-z0-9][a-z0-9-]*==[0-9][0-9a-z.+]*", line)]
    assert odd == []
    names = [line.split("==")[0] for line in lines]
    assert names == sorted(set(names))
    assert "dray" not in names


def test_every_direct_dependency_is_pinned_within_its_range() -> None:
    extras = PROJECT["optional-dependencies"]
    wanted = PROJECT["dependencies"] + [
        line for name in ("cpu", "postgres", "dev", "bench") for line in extras[name]
    ]
    pinned = pins()
    for requirement in map(Requirement, wanted):
        assert requirement.specifier.contains(pinned[requirement.name.lower()]), str(requirement)


def committed_text() -> Iterator[tuple[Path, str]]:
    """What git holds, found without git: this test also runs in an unpacked archive."""
    top = [file for file in ROOT.iterdir() if file.is_file()]
    below = [file for folder in COMMITTED for file in (ROOT / folder).rglob("*") if file.is_file()]
    for file in top + below:
        if "__pycache__" in file.parts or file.suffix in {".safetensors", ".png", ".zst", ".gz", ".parquet"}:
            continue
        try:
            yield file.relative_to(ROOT), file.read_text()
        except UnicodeDecodeError:
            continue


def test_no_path_of_a_machine_is_committed() -> None:
    private = re.compile(r"(?<![\w.])/(?:home/(?!ray\b)\w+|Users/\w+|root)/[\w.]")
    here = f"{ROOT}/"
    found = []
    for file, text in committed_text():
        if file == Path(__file__).relative_to(ROOT):
            continue
        if private.search(text) or (len(ROOT.parts) > 2 and here in text):
            found.append(str(file))
    assert found == []


def test_no_unfinished_mark_is_committed() -> None:
    mark = re.compile(r"\b(?:TODO|FIXME|XXX|NotImplementedError)\b")
    library = {"blocks", "dray", "examples", "flows", "tasks", "deployments"}
    found = [str(file) for file, text in committed_text() if file.parts[0] in library and mark.search(text)]
    assert found == []
