"""``dray doctor``: what it says of a model and of servers, without any engine."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dray.cli import doctor

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[3]
MODEL = ROOT / "examples" / "tickets" / "model"
_EXAMINE = """
import sys
from dray.cli.app import run_app

for model in sys.argv[1:]:
    run_app(["doctor", "--json", "--model", model])
"""


def _of_models(*models: Path) -> list[dict[str, Any]]:
    """In a process of its own: a tokenizer is loaded there as if there were no torch."""
    command = [sys.executable, "-c", _EXAMINE, *map(str, models)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    found = [json.loads(line)["checks"] for line in done.stdout.splitlines()]
    return [next(check for check in checks if check["name"] == "model") for checks in found]


@pytest.mark.heavy(one_of=3)
@pytest.mark.skipif(find_spec("transformers") is None, reason="it comes with the engine")
def test_a_tokenizer_that_cannot_be_loaded(tmp_path: Path) -> None:
    broken = tmp_path / "model"
    shutil.copytree(MODEL, broken)
    (broken / "tokenizer.json").write_text('{"model": {}}')
    good, bad = _of_models(MODEL, broken)
    assert (good["ok"], good["detail"]) == (True, "config and safetensors found, tokenizer loaded")
    assert not bad["ok"]
    assert bad["detail"].startswith(f"{broken}: its tokenizer cannot be loaded")


def test_a_build_for_cpus_beside_gpus_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "vllm_build", lambda: "cpu")
    monkeypatch.setattr(doctor, "_DEVICES", tmp_path)
    alone = doctor._vllm()
    for number in range(8):
        (tmp_path / f"nvidia{number}").touch()
    assert (
        doctor._vllm()
        == f"{alone}, the build for CPUs: the extra gpu in a new environment would use the 8 GPUs"
    )
