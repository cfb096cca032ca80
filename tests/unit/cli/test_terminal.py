"""What a run says, and when: its first line before anything heavy, a bar on terminals, lines elsewhere."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from dray.cli import output, terminal
from dray.cli.app import run_app
from dray.cli.introduction import introduction, starting
from dray.cluster import connect
from dray.job import current_job
from dray.job.options.request import JobRequest
from dray.report import Pulse

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[3]
PULSE = Pulse(
    finished=500, failed=3, total=2000, tokens=9000, rows_per_second=100.0, tokens_per_second=11_400.0
)


@pytest.mark.heavy(one_of=3)
def test_the_first_line_comes_before_the_heavy_imports(tmp_path: Path) -> None:
    code = """
import sys
seen = []
class Watched:
    def __init__(self, stream): self.stream = stream
    def __getattr__(self, name): return getattr(self.stream, name)
    def write(self, text):
        seen.append((text, {name.split('.')[0] for name in sys.modules}))
        return self.stream.write(text)
sys.stderr = Watched(sys.stderr)
from dray.cli.app import run_app
code = run_app(sys.argv[1:])
text, loaded = seen[0]
assert 'a/in.jsonl through models/none, into b/out' in text, text
heavy = {'prefect', 'ray', 'vllm', 'torch', 'sqlalchemy', 'pandas', 'numpy', 'pyarrow', 'boto3'} & loaded
assert not heavy, heavy
assert code == 2, code
"""
    inputs = tmp_path / "a" / "in.jsonl"
    arguments = ["run", str(inputs), "--model", str(tmp_path / "models" / "none")]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments, "--output", str(tmp_path / "b" / "out")],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert "checking input, model, output and store" in lines[1]
    assert "no such directory" in lines[2]


def test_the_first_line_shows_no_secret() -> None:
    told = introduction(
        JobRequest(
            job_id="nightly",
            input=["postgresql://me:hidden@host/db", "b"],
            model="s3://key:hidden@bucket/model?token=hidden",
            output="/data/out",
        )
    )
    assert told == "job nightly: postgresql://host/db and 1 more through s3://bucket/model, into data/out"
    joined = starting("10.0.0.5:6379", "https://me:hidden@prefect.host/api", flows=True)
    assert joined == "joining the Ray cluster 10.0.0.5:6379; Prefect is at https://prefect.host/api"
    assert starting("local", None, flows=True) == "starting Ray; starting Prefect"
    assert starting("local", None, flows=False).startswith("starting Ray; without Prefect")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("hf://ORG/NAME@main", "hf://ORG/NAME@main"),
        ("hf://datasets/ORG/NAME@v1/data/a.parquet", "hf://datasets/ORG/NAME@v1/data/a.parquet"),
        ("s3://bucket/day@1/x.jsonl", "s3://bucket/day@1/x.jsonl"),
        ("postgresql://host/db?password=a@hidden", "postgresql://"),
        ("postgresql://me:hid?den@host/db", "postgresql://"),
    ],
)
def test_the_first_line_names_what_is_meant_and_no_secret(given: str, told: str) -> None:
    assert introduction(JobRequest(input=given, model="m", output="o")) == f"{told} through m, into o"


@pytest.mark.parametrize("name", ["NO_COLOR", "CI"])
def test_what_moves_is_for_terminals(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("NO_COLOR", "CI"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert terminal.is_plain()  # a test's stderr is none
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert not terminal.is_plain()
    assert terminal.is_plain(json=True)
    monkeypatch.setenv(name, "1")
    assert terminal.is_plain()
    monkeypatch.delenv(name)
    monkeypatch.setenv("TERM", "dumb")
    assert terminal.is_plain()


def _screen(width: int) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, highlight=False, color_system=None)


def _text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [200, 100, 60, 20])
def test_the_bar_on_terminals_of_all_widths(width: int) -> None:
    console = _screen(width)
    shown = terminal.Bar(console)
    shown.hear(PULSE)
    console.print(shown.face())
    lines = _text(console).splitlines()
    assert len(lines) == 1
    assert len(lines[0].rstrip()) <= width
    assert "500 of 2,000" in lines[0]
    assert ("━" in lines[0]) == (width >= 100)
    if width >= 100:
        assert "100 rows/s · 11.4k tokens/s · 15 s left · 3 errors" in lines[0]


def test_a_clock_before_the_first_row() -> None:
    console = _screen(80)
    console.print(terminal.Bar(console).face())
    assert "0 s" in _text(console)


def test_lines_go_above_the_bar_which_is_gone_at_the_end() -> None:
    console = _screen(120)
    with terminal.bar(plain=False, console=console) as shown:
        assert shown is not None
        with current_job.listening(shown.hear):
            current_job.tell(PULSE)
            output.stage("replica-0 ready [bold]")
            _log("1 of 2 rows", pulse=True)
            _log("ingest: 2 requests")
    text = _text(console)
    assert "replica-0 ready [bold]" in text
    assert "ingest: 2 requests" in text
    assert "1 of 2 rows" not in text  # the bar says it
    assert text.endswith("\x1b[2K")  # the bar's line is wiped
    assert "\x1b[?25h" in text  # and the cursor is back
    assert not terminal.is_live()


def test_without_a_terminal_the_same_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with terminal.bar(plain=True) as shown:
        assert shown is None
        _log("1 of 2 rows", pulse=True)
    assert capsys.readouterr().err.endswith("s  1 of 2 rows\n")


def test_what_a_rented_cluster_could_not_release_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    text = "the EC2 cluster x is not released"
    record = logging.LogRecord(connect._LOGGER.name, logging.WARNING, "dray/x.py", 1, text, None, None)
    output.RunLog().emit(record)
    assert capsys.readouterr().err.endswith(f"s  warning: {text}\n")


def _log(text: str, *, pulse: bool = False) -> None:
    record = logging.LogRecord("prefect.flow_runs", logging.INFO, "tasks/x.py", 1, text, None, None)
    setattr(record, current_job.PULSE_RECORD, pulse)
    output.RunLog().emit(record)


def test_the_help_is_in_groups_with_examples(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert run_app(["run", "--help"]) == 0
    text = capsys.readouterr().out
    heads = ["Required", "Rows", "Sampling", "Engine", "Cluster and store", "Output", "Examples:"]
    places = [text.index(f"─ {head} ─" if head != "Examples:" else head) for head in heads]
    assert places == sorted(places)
    assert "Parameters" not in text  # an option in no group
    assert "dray run requests.jsonl --model /models/llama --output out" in text
    assert run_app(["--help"]) == 0
    assert "dray status --store out --watch" in capsys.readouterr().out
