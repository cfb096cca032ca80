"""What is packed for a machine without a network arrives there as it was, or is refused."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.gpu import offline

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[3]


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three archives in parts of 200 bytes."""
    monkeypatch.setattr(offline, "PART_BYTES", 200)
    site, folder = tmp_path / "site", tmp_path / "parts"
    for name in ("ray", "vllm", "prefect"):
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").write_text(f"NAME = {name!r}\n")
    folder.mkdir()
    assert len(offline._split(offline._packed(site, folder), folder)) > 1
    return folder


def unpacked(parts: Path, environment: Path) -> subprocess.CompletedProcess[str]:
    """The first half of unpack.sh; the second needs PyTorch and a minute."""
    script = (ROOT / "tests/gpu/unpack.sh").read_text().partition("python3 -m venv")[0]
    return subprocess.run(
        ["bash", "-c", script, "unpack.sh", parts, environment], capture_output=True, text=True, timeout=60
    )


def test_all_files_arrive(parts: Path, tmp_path: Path) -> None:
    done = unpacked(parts, tmp_path / "there")
    assert done.returncode == 0, done.stderr
    found = sorted((tmp_path / "there/site").rglob("*.py"))
    assert [file.read_text() for file in found] == [
        f"NAME = {name!r}\n" for name in ("prefect", "ray", "vllm")
    ]


def test_a_part_that_is_missing_is_an_error(parts: Path, tmp_path: Path) -> None:
    sorted(parts.glob("part?"))[-1].unlink()
    done = unpacked(parts, tmp_path / "there")
    assert done.returncode != 0
    assert "is damaged, or a part is missing" in done.stderr


def test_what_the_machine_has_and_what_no_test_needs_stays_here(tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("ray==2.60.0, Typing_Extensions\n")
    wanted = {line.partition("==")[0] for line in offline._missing(offline._names(names))}
    assert {"vllm", "prefect"} <= wanted
    assert not wanted & {"ray", "typing-extensions", "torch", "flashinfer-python", "nvidia-cublas"}


def test_a_folder_of_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(SystemExit, match="holds other files"):
        offline._make_room(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "mine"
