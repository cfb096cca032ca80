"""What a command was asked for comes on stdout, so that `dray models list | grep` finds it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from dray.cli.app import run_app
from dray.weights.node.places import CacheRoot

pytestmark = pytest.mark.unit


def test_the_models_that_are_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = SimpleNamespace(
        key="0123456789abcdef", size=2e9, in_use=False, whole=True, uri="s3://bucket/llama"
    )
    place = CacheRoot(root=Path("/models"), memory=False)
    monkeypatch.setattr("dray.weights.node.places.cache_roots", lambda: [place])
    monkeypatch.setattr("dray.weights.node.cache.cached_models", lambda _: [model])
    monkeypatch.setattr("dray.weights.node.cache.evict", lambda _, chosen: sorted(chosen))
    assert run_app(["models", "list"]) == 0
    said = capsys.readouterr()
    assert said.out.split() == ["0123456789ab", "2.00", "GB", "disk", "whole", "s3://bucket/llama"]
    assert said.err == ""
    assert run_app(["models", "remove", "0123"]) == 0
    assert capsys.readouterr().out == "removed 0123456789ab\n"


_PRINT = """
from dray.cli import output
output.print_json({"job": "müll", "folder": "注文"})
output.tell("müll 注文")
"""


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-8"])
def test_json_is_utf_8_in_every_locale_and_lines_end_no_command(encoding: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PRINT],
        env={**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"},
        capture_output=True,
        check=True,
    )
    json_line, line = done.stdout.splitlines()
    assert json.loads(json_line) == {"job": "müll", "folder": "注文"}
    assert line == "müll 注文".encode(encoding, "backslashreplace")


def test_the_checks_of_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    run_app(["doctor"])
    said = capsys.readouterr()
    assert [line.split()[:2] for line in said.out.splitlines()][:2] == [["ok", "python"], ["ok", "prefect"]]
    assert said.err == ""
