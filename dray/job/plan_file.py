"""The file of a plan (``dray plan --json``): which input it was made for, and what it takes from a run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from dray.errors import ConfigError, JobChangedError
from dray.job.settings import JobSettings
from dray.requests.readers import source_digest
from dray.requests.sources import RowDefaults, Source, template_digest
from dray.storage.files import local_path
from dray.storage.objects import ObjectStoreOptions

_MEANING = {
    "input": "the input",
    "template": "how rows become requests (template, columns, kind, system prompt)",
    "sampling": "the request fields (max_tokens, temperature, ...)",
    "model": "the model's config.json",
}
"""The parts of a plan's identity, in words."""

OVERRIDES = "overrides"
"""The part that names request fields which the plan supposes, whatever the rows say."""


def identity_of(
    source: Source, defaults: RowDefaults, config: bytes | None, options: ObjectStoreOptions | None
) -> dict[str, str]:
    """What a plan depends on, as digests; reads the input once, as bytes. ``config`` is the model's."""
    sampling = orjson.dumps(dict(defaults.sampling), option=orjson.OPT_SORT_KEYS, default=str)
    found = {
        "input": source_digest(source, options=options),
        "template": template_digest(source),
        "sampling": hashlib.sha256(sampling).hexdigest(),
    }
    return found if config is None else found | {"model": hashlib.sha256(config).hexdigest()}


def read_plan(path: str) -> dict[str, Any]:
    """The plan in a file.

    Raises:
        ConfigError: it cannot be read, or is no plan.
    """
    try:
        found = orjson.loads(local_path(path).read_bytes())
    except OSError as error:
        raise ConfigError(f"plan {path}: {error.strerror or error}") from None
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("identity"), dict):
        raise ConfigError(f"plan {path}: this is no plan; write one with `dray plan ... --json > {path}`")
    return found


def refuse_changed(settings: JobSettings, path: str) -> dict[str, Any]:
    """The plan in a file, if it was made for what these settings say.

    Raises:
        ConfigError: it is no plan.
        JobChangedError: it was made for something else; names what changed.
    """
    plan = read_plan(path)
    if supposed := plan["identity"].get(OVERRIDES):
        raise JobChangedError(
            f"plan {path}: it supposes other requests than the input has (--set {supposed}); "
            "plan again without"
        )
    config = Path(settings.model) / "config.json"
    known = config.read_bytes() if config.is_file() else None
    now = identity_of(settings.source, settings.defaults, known, settings.objects)
    changed = [_MEANING[name] for name in now if _differs(plan["identity"], now, name)]
    if changed:
        raise JobChangedError(
            f"plan {path}: {' and '.join(changed)} changed since it was made, so what it says of time and "
            "dollars no longer holds. Plan again, or leave --plan out"
        )
    return plan


def _differs(planned: Mapping[str, Any], now: Mapping[str, str], name: str) -> bool:
    return planned.get(name) is not None and planned[name] != now[name]
