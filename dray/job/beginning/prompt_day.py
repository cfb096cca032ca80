"""The day that a job's prompts have as today's. It stays the job's, whenever and wherever its rows run."""

from __future__ import annotations

import os
from collections.abc import Callable, Set
from dataclasses import dataclass
from pathlib import Path

from dray.engine.chat_template import ARGUMENT, template_text
from dray.engine.prompt_day import VARIABLE, asks_for_the_day, day_asked, day_at
from dray.errors import DrayError
from dray.job.open_job import OpenJob
from dray.storage.objects import ObjectStoreOptions
from dray.store import Job
from dray.weights import Manifest
from dray.weights.source.listing import content_of
from dray.weights.source.modules import names_in
from dray.weights.source.names import TEMPLATES, named_templates

DAY = "prompt_day"
"""Where a job's ``info`` has it. Jobs that an earlier version of dray began have none."""

_CONFIG = "config.json"
_WITH_TEMPLATES = (
    "chat_template.jinja",
    "chat_template.json",
    "tokenizer_config.json",
    "processor_config.json",
)


def asked_of(known: Job | None) -> str | None:
    """The day that the environment sets for a job that begins; None for one that has its rows.

    Raises:
        ConfigError: it sets no day.
    """
    return day_asked() if known is None or known.total is None else None


def day_of(recorded: Job, asked: str | None) -> str:
    """The job's day: noted where it has its rows; else as ``asked``, or that on which it was created."""
    created = day_at(recorded.created_at)
    if recorded.total is None:
        return asked or created
    return str(recorded.info.get(DAY) or created)


def told_day(job: OpenJob) -> list[str]:
    """Lines that say that a job keeps its day, where the environment sets another one."""
    given = os.environ.get(VARIABLE)
    if not given or job.settings.engine != "vllm" or given == job.prompt_day:
        return []
    return [
        f"prompts keep {job.prompt_day} as today, as when the job began, and not {VARIABLE}={given}; give "
        "another --job-id to change that"
    ]


def may_hold_day(job: OpenJob) -> bool:
    """Whether the day may be in conversations with the job's model: also where its files cannot be read."""
    settings, given = job.settings, job.settings.engine_arguments
    if settings.engine != "vllm":
        return False
    try:
        model = _in_folder(settings.model)
        if job.weights is not None:
            model = _at_address(job.weights, settings.model_access)
        config = model.read(_CONFIG) if _CONFIG in model.names else b"{}"
        if given.get(ARGUMENT) is not None:
            return asks_for_the_day(config, [template_text(given[ARGUMENT]).encode()])
        tokenizer = model if given.get("tokenizer") is None else _in_folder(str(given["tokenizer"]))
        templates = [tokenizer.read(name) for name in tokenizer.names if _holds_template(name)]
        return not tokenizer.names or asks_for_the_day(config, templates)
    except (DrayError, OSError, ValueError):
        return True


@dataclass(frozen=True)
class _Files:
    """The files of a model, wherever it lies, by their names."""

    names: Set[str]
    read: Callable[[str], bytes]


def _in_folder(place: str) -> _Files:
    folder = Path(place)
    named = named_templates(names_in(folder / TEMPLATES))
    return _Files(names_in(folder).union(named), lambda name: (folder / name).read_bytes())


def _at_address(model: Manifest, access: ObjectStoreOptions) -> _Files:
    files = {file.name: file for file in model.files}
    return _Files(files.keys(), lambda name: content_of(model.uri, files[name], access))


def _holds_template(name: str) -> bool:
    return name in _WITH_TEMPLATES or name.startswith(f"{TEMPLATES}/")
