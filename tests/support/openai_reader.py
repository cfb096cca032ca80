"""How a user of OpenAI's client reads the files of a batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
from openai._legacy_response import HttpxBinaryResponseContent


def as_openai_reads(path: Path) -> list[dict[str, Any]]:
    """A batch's file, as ``client.files.content(file_id).iter_lines()`` reads it."""
    content = HttpxBinaryResponseContent(httpx2.Response(200, content=path.read_bytes()))
    return [json.loads(line) for line in content.iter_lines()]
