"""The file of a plan (``dray plan --json``): which input it was made for, and what it takes from a run."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from dray.errors import ConfigError, JobChangedError
from dray.job.options.request import JobRequest
from dray.job.options.settings import Resolved
from dray.requests.reading.readers import source_digest
from dray.requests.shape_digest import template_digest
from dray.requests.sources import RowDefaults, Source
from dray.storage.files import local_path
from dray.storage.objects import ObjectStoreOptions, is_object
from dray.weights.source.configuration import configuration_of
from dray.weights.source.hub import is_hub

_MEANING = {
    "input": "the input",
    "template": "how rows become requests (template, columns, kind, system prompt)",
    "sampling": "the request fields (max_tokens, temperature, ...)",
    "model": "the model's config.json",
}
"""The parts of a plan's identity, in words."""

_TAKEN = (
    "tensor_parallel_size", "pipeline_parallel_size", "nnodes", "max_num_seqs", "max_num_batched_tokens",
    "max_model_len",
)  # fmt: skip
"""The engine settings that a run takes from a plan. None changes an answer; the last one may end one."""

OVERRIDES = "overrides"
"""The part that names request fields which the plan supposes, whatever the rows say."""


def identity_of(
    source: Source, defaults: RowDefaults, config: bytes | None, options: ObjectStoreOptions | None
) -> dict[str, str]:
    """What a plan depends on, as digests; reads the input once, as bytes. ``config`` is the model's."""
    sampling = orjson.dumps(dict(defaults.sampling), option=orjson.OPT_SORT_KEYS, default=str)
    source = replace(source, shape=replace(source.shape, keep_columns=()))  # they change no request
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
        raise ConfigError(
            f"plan {path}: this is no plan; write one with `dray plan ... --json > {shlex.quote(path)}`"
        )
    return found


def as_planned(request: JobRequest, places: Resolved) -> JobRequest:
    """The request with the engine settings of its plan, where it says none itself.

    Raises:
        ConfigError: its file is no plan, a plan that nothing can run, or one for weights in another format.
        JobChangedError: it was made for something else; names what changed.
    """
    assert request.plan is not None
    plan = read_plan(request.plan)
    _refuse_changed(request, places, plan["identity"])
    if not plan.get("plans"):
        raise ConfigError(
            f"plan {request.plan}: no configuration is within its limits; plan again, with others"
        )
    _refuse_other_weights(request, plan)
    planned = plan["plans"][0]["engine_arguments"]
    arguments = {name: planned[name] for name in _TAKEN if name in planned} | request.engine.arguments
    engine = request.engine.model_copy(update={"arguments": arguments})
    return request.model_copy(update={"engine": engine})


def _refuse_other_weights(request: JobRequest, plan: Mapping[str, Any]) -> None:
    """A plan with ``--weights`` may suppose other weights than the model has, and GPUs that hold those."""
    planned, own = plan["plans"][0].get("weights"), (plan.get("model") or {}).get("format")
    if planned is None or own is None or planned == own or (own, planned) == ("fp32", "bf16"):
        return  # of fp32, engines on GPUs make bf16
    if request.engine.arguments.get("quantization") != planned:
        raise ConfigError(
            f"plan {request.plan}: it supposes weights in {planned}, and the model's are in {own}. Give a "
            f"model in {planned}, or --engine-arg quantization={planned} if the engine can make it, or plan "
            "again without --weights"
        )


def _config_of(places: Resolved) -> bytes | None:
    """The model's config, from wherever it is; None for a folder that has none."""
    config = Path(places.model) / "config.json"
    if config.is_file() or not (is_object(places.model) or is_hub(places.model)):
        return config.read_bytes() if config.is_file() else None
    with configuration_of(places.model, places.model_objects or places.objects) as folder:
        return (folder / "config.json").read_bytes()


def _refuse_changed(request: JobRequest, places: Resolved, planned: Mapping[str, Any]) -> None:
    if supposed := planned.get(OVERRIDES):
        raise JobChangedError(
            f"plan {request.plan}: it was made with --set {supposed}, which `dray run` does not apply; "
            "plan again without it"
        )
    defaults = RowDefaults(model_name=request.rows.model_name, sampling=request.sampling.fields())
    known = _config_of(places)
    now = identity_of(request.rows.source(places.inputs), defaults, known, places.objects)
    changed = [_MEANING[name] for name in now if planned.get(name) not in (None, now[name])]
    if changed:
        raise JobChangedError(
            f"plan {request.plan}: {' and '.join(changed)} changed since it was made, so its time and "
            "dollars no longer hold. Plan again, or leave --plan out"
        )
