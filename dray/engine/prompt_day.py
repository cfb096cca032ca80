"""The day that prompts have as today's: one for all rows of a job. Imports no engine.

gpt-oss has it in the system message of every chat. Chat templates ask for it with ``strftime_now``. Left
alone, each replica would look at its own clock, in its own time zone, at every row.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from datetime import UTC, date, datetime

from dray.engine.chat_template import HARMONY
from dray.errors import ConfigError

VARIABLE = "VLLM_SYSTEM_START_DATE"
"""vLLM's own variable for gpt-oss: it sets the day of a job that begins."""

_ASKS = b"strftime_now"  # transformers' function for chat templates


def day_asked() -> str | None:
    """The day that the user's environment sets, as YYYY-MM-DD; None where it sets none.

    Raises:
        ConfigError: it sets something else.
    """
    given = os.environ.get(VARIABLE)
    if not given:
        return None
    try:
        found = date.fromisoformat(given).isoformat()
    except ValueError:
        found = None
    if found != given:
        raise ConfigError(
            f"{VARIABLE}={given!r} in the environment is no day of the form YYYY-MM-DD, and prompts are to "
            "have it as today; set one, such as 2026-01-31, or none: then they have the day on which the job "
            "begins, in UTC"
        )
    return found


def day_at(seconds: float) -> str:
    """The day in UTC, as YYYY-MM-DD; ``seconds`` are since 1970."""
    return datetime.fromtimestamp(seconds, UTC).date().isoformat()


def asks_for_the_day(config: bytes, templates: Iterable[bytes]) -> bool:
    """Whether a model's conversations may hold the day; ``templates`` are the files that hold its templates.

    Raises:
        ValueError: ``config``, its ``config.json``, is no JSON.
    """
    found = json.loads(config)
    if isinstance(found, dict) and found.get("model_type") == HARMONY:  # vLLM renders its chats with the day
        return True
    return any(_ASKS in template for template in templates)
