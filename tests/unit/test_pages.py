"""Links of the documents lead somewhere; options and messages that they name are those of the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from cyclopts import App

from dray.cli.app import app

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    str(page.relative_to(ROOT))
    for folder in ("", "docs", ".github", "deployments", "deployments/images", "examples/tickets")
    for page in (ROOT / folder).glob("*.md")
)
OF_OTHERS = {
    "--build-arg", "--editable", "--gpus", "--head", "--metrics-export-port", "--parameter-overrides", "--rm",
    "--shm-size", "--standalone",
}  # fmt: skip
"""Options of Ray, Docker, pip and the like."""


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings, and those that a page sets itself."""
    text = page.read_text()
    found: set[str] = set(re.findall(r'<a id="([^"]+)"', text))
    for heading in re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        found.add(re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    lost = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if re.match(r"[a-z]+://|mailto:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (ROOT / page).parent / name if name else ROOT / page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            lost.append(target)
    assert lost == []


def every(command: App, *path: str) -> Iterator[tuple[tuple[str, ...], set[str]]]:
    """Each command of the tree, with its options."""
    for name in command:
        if name.startswith("-"):
            continue
        found = command[name]
        yield from every(found, *path, name)
        if found.default_command is not None:
            arguments = found.assemble_argument_collection()
            yield (*path, name), {option for one in arguments for option in one.names}


OPTIONS = dict(every(app))
KNOWN = set().union(*OPTIONS.values()) | {"--help", "--version"}


@pytest.mark.parametrize("page", PAGES)
def test_options_that_are_named_exist(page: str) -> None:
    named = set(re.findall(r"`(--[a-z][a-z-]*)[ `=]", text_of(page)))
    assert named - KNOWN - OF_OTHERS == set()


def calls(page: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """The command of each ``dray COMMAND ...`` in code, and what follows it."""
    text = text_of(page)
    blocks = re.findall(r"```(?:bash|console|text)?\n(.*?)```", text, re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    lines = [line.partition("#")[0].removeprefix("$ ") for line in lines]
    lines += [
        " ".join(one.split())
        for one in re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    ]
    for line in lines:
        _, found, rest = line.partition("dray ")
        words = rest.split()
        for length in (2, 1):
            if found and tuple(words[:length]) in OPTIONS:
                yield tuple(words[:length]), rest
                break


@pytest.mark.parametrize("page", PAGES)
def test_a_command_has_the_options_that_it_is_given(page: str) -> None:
    wrong = []
    for command, rest in calls(page):
        own, _, inner = rest.partition(" -- ")  # `dray cluster submit FILE -- run ...`
        given = set(re.findall(r"(?<=\s)(--[a-z][a-z-]*)", own))
        wrong += [(" ".join(command), option) for option in given - OPTIONS[command] - {"--help"}]
        words = inner.split()
        if words and (words[0],) in OPTIONS:
            given = set(re.findall(r"(?<=\s)(--[a-z][a-z-]*)", f" {inner}"))
            wrong += [(words[0], option) for option in given - OPTIONS[(words[0],)]]
    assert wrong == []


def test_commands_are_seen() -> None:
    """Else the test above would look at nothing."""
    seen = {command for page in PAGES for command, _ in calls(page)}
    assert {("run",), ("resume",), ("export",), ("cluster", "submit"), ("jobs", "delete")} <= seen


def texts() -> list[str]:
    """All texts in dray's code; `…` stands for what is put into them."""
    found = []
    for file in (ROOT / "dray").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def test_messages_of_the_page_are_in_the_code() -> None:
    lines = text_of("docs/troubleshooting.md").splitlines()
    told = [
        re.match(r"\| (?:`([^`]+)`)?", line) for line in lines if line.startswith("| ") and "|---" not in line
    ]
    quoted = [found[1] for found in told if found is not None and found[1]]
    assert len(quoted) > 30
    code = "\n".join(texts())
    lost = [one for one in quoted if any(part not in code for part in re.split(r" ?… ?", one))]
    assert lost == []
