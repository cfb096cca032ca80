"""What this process's vLLM and transformers take for today."""

from __future__ import annotations

import logging
from datetime import datetime, tzinfo
from typing import Any

logger = logging.getLogger(__name__)

_ASKED = '{{ strftime_now("%Y-%m-%d") }}'


def show_day(day: str) -> None:
    """Have ``strftime_now`` of all chat templates give ``day`` (YYYY-MM-DD), at 0:00.

    Templates that are compiled already give it, too. vLLM reads the day of gpt-oss from the environment
    (``prepare_environment``).
    """
    from transformers.utils import chat_template_utils

    shown = datetime.fromisoformat(day)

    class OfTheJob(datetime):
        """The one that transformers asks."""

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> OfTheJob:
            return cls.combine(shown.date(), shown.time(), tz)

    chat_template_utils.datetime = OfTheJob
    if _rendered(chat_template_utils) != day:
        logger.warning(
            "this version of transformers takes today from the node's clock, and not the job's day (%s): "
            "rows that run on other days may get other prompts",
            day,
        )


def _rendered(transformers: Any) -> str | None:
    """What a template gets; None where this version of transformers compiles them in another way."""
    try:
        return str(transformers._compile_jinja_template(_ASKED).render())
    except AttributeError:
        return None
