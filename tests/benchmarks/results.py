"""What a benchmark came to: tables, targets, a JSON file, and its section of RESULTS.md."""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import orjson

from tests.benchmarks import machine

RESULTS = Path(__file__).with_name("RESULTS.md")
FOLDER = Path("out/benchmarks")


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table with a title; cells are text."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """As Markdown, aligned so that it reads well in a terminal too."""
        cells = [list(self.header), *[list(row) for row in self.rows]]
        widths = [max(len(row[column]) for row in cells) for column in range(len(self.header))]
        lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
                 for row in cells]  # fmt: skip
        lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
        return f"**{self.title}**\n\n" + "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class Target:
    """A figure that is asked for. ``bound`` None: shown, but nothing is asked of it."""

    name: str
    value: float
    bound: float | None = None
    at_least: bool = True

    @property
    def met(self) -> bool:
        """Whether the figure is good enough."""
        if self.bound is None:
            return True
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def cells(self) -> list[str]:
        """Its row in the table of targets."""
        if self.bound is None:
            return [self.name, number(self.value), "", ""]
        sign = ">=" if self.at_least else "<="
        return [
            self.name,
            number(self.value),
            f"{sign} {number(self.bound)}",
            "met" if self.met else "MISSED",
        ]


@dataclass(kw_only=True)
class Report:
    """Everything that one benchmark has to say."""

    name: str
    machine: dict[str, object] = field(default_factory=machine.describe)
    tables: list[Table] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    raw: list[dict[str, object]] = field(default_factory=list)

    def markdown(self) -> str:
        """The section for RESULTS.md."""
        parts = [machine.sentence(self.machine) + "."]
        parts += [table.markdown() for table in self.tables]
        if self.targets:
            rows = [target.cells() for target in self.targets]
            parts.append(
                Table(title="Targets", header=("what", "measured", "asked", ""), rows=rows).markdown()
            )
        parts += [f"- {note}" for note in self.notes[:1]] if len(self.notes) == 1 else []
        if len(self.notes) > 1:
            parts.append("\n".join(f"- {note}" for note in self.notes))
        if self.failures:
            parts.append("Failed runs:\n\n" + "\n".join(f"- {_brief(text)}" for text in self.failures))
        return "\n\n".join(parts)


def _brief(text: str) -> str:
    """The first and the last line of a failure: what, and what it said."""
    lines = text.splitlines()
    return lines[0] if len(lines) == 1 else f"{lines[0]} {lines[-1].strip()}"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that every benchmark takes."""
    parser.add_argument("--quick", action="store_true", help="small and once: does it work at all?")
    parser.add_argument(
        "--smoke", action="store_true", help="dray alone, as small as it gets, in seconds: what CI starts"
    )
    parser.add_argument(
        "--repeats", type=int, default=None, help="rounds; the order within a round is fixed (3)"
    )
    parser.add_argument(
        "--record", action="store_true", help="rewrite this benchmark's section of RESULTS.md"
    )
    parser.add_argument(
        "--json", type=Path, default=None, help="where the figures go (out/benchmarks/NAME.json)"
    )
    parser.add_argument("--folder", type=Path, default=None, help="where temporary files go; a real disk")


def publish(report: Report, arguments: argparse.Namespace) -> int:
    """Print the report and write its files; the exit code: 1 when a run failed."""
    print(f"\n## {report.name}\n\n{report.markdown()}")
    for failure in report.failures:
        print(f"FAILED {failure}", file=sys.stderr)
    path: Path = arguments.json or FOLDER / f"{report.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(orjson.dumps(asdict(report), option=orjson.OPT_INDENT_2))
    print(f"\nfigures in {path}")
    if arguments.record:
        record(report.name, report.markdown())
    return 1 if report.failures else 0


def record(name: str, text: str, path: Path = RESULTS) -> None:
    """Put ``text`` between the markers of ``name``; what stands around them was written by hand."""
    page = path.read_text()
    pattern = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
    if not pattern.search(page):
        page += f"\n## {name}\n\n<!-- begin {name} -->\n<!-- end {name} -->\n"
    path.write_text(pattern.sub(lambda match: f"{match[1]}{text}\n{match[2]}", page))


def say(text: str) -> None:
    """A line about what goes on."""
    print(text, file=sys.stderr, flush=True)


def median(values: Sequence[float]) -> float:
    """The median; 0 of nothing."""
    return statistics.median(values) if values else 0.0


def spread(values: Sequence[float], unit: str = "") -> str:
    """Median, and min..max where there are several."""
    if not values:
        return "-"
    middle = f"{number(median(values))}{unit}"
    return middle if len(values) == 1 else f"{middle} ({number(min(values))}..{number(max(values))})"


def number(value: float) -> str:
    """Three digits that mean something."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
