"""No message advises to install `dray` by its name: the public index has another project under it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
FOLDERS = ("dray", "blocks", "tasks", "flows", "deployments")
KINDS = {".py", ".sh", ".toml", ".yaml"}
BY_NAME = re.compile(r"""pip install\s+(-\S+\s+)*['"]*dray\b(?!-)|\bdray\[""")
"""dray's own wheel is a file, `dray-0.1.0-py3-none-any.whl`."""


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_message_installs_dray_by_its_name(folder: str) -> None:
    files = [file for file in sorted((ROOT / folder).rglob("*")) if file.suffix in KINDS]
    assert files, f"no source in {folder}/"
    found = {
        f"{file.relative_to(ROOT)}: {match.group()}"
        for file in files
        for match in BY_NAME.finditer(file.read_text(encoding="utf-8"))
    }
    assert found == set()


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ('pip install "dray[postgres]"', True),
        ("pip install dray", True),
        ("pip install -U 'dray[gpu]'", True),
        ("install dray[gpu] or dray[cpu]", True),
        ("pip install 'dray-0.1.0-py3-none-any.whl[gpu]'", False),
        ("pip install 'psycopg[binary]'", False),
    ],
)
def test_what_counts_as_by_its_name(text: str, matches: bool) -> None:
    assert (BY_NAME.search(text) is not None) is matches
