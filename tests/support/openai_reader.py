"""How a user of OpenAI's client reads the files of a batch.

The client takes a second of CPU to import, in each process that collects tests: so functions do it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2


def as_openai_reads(path: Path) -> list[dict[str, Any]]:
    """A batch's file, as ``client.files.content(file_id).iter_lines()`` reads it."""
    from openai._legacy_response import HttpxBinaryResponseContent

    content = HttpxBinaryResponseContent(httpx2.Response(200, content=path.read_bytes()))
    return [json.loads(line) for line in content.iter_lines()]


def response_class() -> Any:
    """What OpenAI's client makes of an answer of /v1/responses."""
    from openai.types.responses import Response

    return Response


def chat_class() -> Any:
    """What it makes of an answer of /v1/chat/completions."""
    from openai.types.chat import ChatCompletion

    return ChatCompletion
