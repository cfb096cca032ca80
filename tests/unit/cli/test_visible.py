"""What rows and files say of themselves moves no cursor of the terminal that shows it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from dray.cli import deleting, output, status, terminal
from dray.errors import DrayError, InputError
from dray.kinds import Kind
from dray.requests.ingest import ingest
from tests.support.sources import source_of

pytestmark = pytest.mark.unit

FILLS_THE_CLIPBOARD = "x\x1b]52;c;cm0gLXJmIH4K\x07\x1b[2K\rdray: all fine\x9b2J\u202e"


def test_a_row_sends_the_terminal_no_orders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,eA=="}, FILLS_THE_CLIPBOARD: 1}
    body = {"model": "m", "messages": [{"role": "user", "content": [image]}]}
    line = {"custom_id": "a", "method": "POST", "url": Kind.CHAT.url, "body": body}
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps(line) + "\n")
    with pytest.raises(InputError) as caught:
        ingest(source_of(str(path)), spool_uri=str(tmp_path / "spool"))
    output.explain(caught.value)
    output.tell(FILLS_THE_CLIPBOARD)
    said = "".join(capsys.readouterr())
    for sign in "\x1b\x07\r\x9b\u202e":
        assert sign not in said
    told = r"x\x1b]52;c;cm0gLXJmIH4K\x07\x1b[2K\rdray: all fine\x9b2J\u202e"
    assert said.count(told) == 2
    assert len(said.splitlines()) == 4


def test_tabs_and_lines_stay(capsys: pytest.CaptureFixture[str]) -> None:
    output.say("a\tb\nc")
    output.explain(DrayError("größer\u00a0als"))
    assert capsys.readouterr().err == "a\tb\nc\ndray: größer\u00a0als\n"


def test_json_keeps_every_sign(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"name": FILLS_THE_CLIPBOARD})
    said = capsys.readouterr().out
    assert json.loads(said) == {"name": FILLS_THE_CLIPBOARD}
    assert "\x1b" not in said


def test_a_screen_that_is_rewritten_shows_them_as_lines_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """`dray status --watch`: reason, model and output come from a store that others may write to."""
    seen = Console(file=io.StringIO(), force_terminal=True, width=200, highlight=False, color_system=None)
    monkeypatch.setattr(terminal, "_console", lambda: seen)
    monkeypatch.setattr(terminal, "is_plain", lambda *, json: False)
    monkeypatch.setattr(status, "_looks", lambda *_: iter([({"state": "completed", "undriven": False}, "")]))
    monkeypatch.setattr(status, "status_lines", lambda *_, **__: ["job a", FILLS_THE_CLIPBOARD])
    assert status.watch_status("a", None, json=False) == 0
    assert isinstance(seen.file, io.StringIO)
    shown = seen.file.getvalue()
    assert r"x\x1b]52;c;cm0gLXJmIH4K\x07\x1b[2K\rdray: all fine\x9b2J\u202e" in shown
    assert "job a" in shown
    assert "\x1b]52" not in shown
    assert "\x9b" not in shown


def test_a_question_shows_them_as_lines_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True, readline=lambda: "y\n"))
    deleting._ask([FILLS_THE_CLIPBOARD])
    told = capsys.readouterr().err
    assert told.startswith(r"Delete 1 job (x\x1b]52;c;")
    assert told.endswith("? [y/N] ")
    assert "\x1b" not in told
