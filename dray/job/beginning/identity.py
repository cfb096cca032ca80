"""What makes two jobs the same job."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from dray.engine.argument_policy import makes_weights_up
from dray.engine.weight_formats import tokenizer_of
from dray.job.options.argument_files import with_contents
from dray.job.options.model_files import model_digest
from dray.job.options.settings import JobSettings
from dray.requests.reading.readers import source_digest
from dray.requests.shape_digest import template_digest
from dray.requests.sources import SqlQuery
from dray.storage.absolute_paths import absolute
from dray.store import Fingerprint
from dray.weights import Manifest

FORMAT_VERSION = "1"  # of the spool and of the outputs; another one is another job

_TUNING = frozenset(
    {
        "engine_core",
        "max_num_seqs",
        "max_num_active_seqs",
        "max_num_batched_tokens",
        "max_num_scheduled_tokens",
        "gpu_memory_utilization",
        "kv_cache_memory_bytes",
        "enforce_eager",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "nnodes",
        "block_size",
        "num_gpu_blocks_override",
        "load_format",
        "max_loras",
        "max_cpu_loras",
        "max_lora_rank",
        "fully_sharded_loras",
        "enable_prefix_caching",
        "image_threads",
        "mm_processor_cache_gb",
        "enable_chunked_prefill",
        "distributed_executor_backend",
        "seconds_per_token",
        "start_seconds",
        "crash_on",
        "stall_on",
    }
)
_LATELY_TUNING = frozenset({"engine_core", "max_num_active_seqs", "max_num_scheduled_tokens"})
"""Of these, what made another job in earlier versions of dray."""


def fingerprint_of(
    settings: JobSettings, weights: Manifest | None = None, *, taken: str | None = None
) -> Fingerprint:
    """The parts that two runs must share to be one job. Reads the input once, as bytes.

    ``weights`` is the state of a model that is not a local directory. ``taken`` is the digest of an input
    that is not to be read.
    """
    defaults = settings.defaults
    given = settings.engine_arguments
    arguments = _digest_of_arguments({**given, **tokenizer_of(weights, given)})
    model = settings.model
    if settings.engine != "simulated":
        model = weights.content if weights is not None else model_digest(model)
    policy = settings.request.overflow
    return Fingerprint(
        input=taken or source_digest(settings.source, options=settings.objects),
        model=f"{settings.engine}:{model}:{arguments}{'' if policy == 'error' else f':{policy}'}",
        sampling=_digest([defaults.model_name, dict(defaults.sampling)]),
        template=template_digest(settings.source),
        format=FORMAT_VERSION,
    )


def former_fingerprints(
    settings: JobSettings, fingerprint: Fingerprint, weights: Manifest | None
) -> list[Fingerprint]:
    """The fingerprints that earlier versions of dray made; those that are the same are left out."""
    given, now = settings.engine_arguments, fingerprint.model
    former = now
    if settings.engine == "simulated":  # a word for its model was the path of a folder
        former = now.replace(f":{settings.model}:", f":{absolute(settings.model)}:", 1)
    elif weights is not None:  # a commit made another model, and so did published checksums
        former = now.replace(weights.content, weights.former_content, 1)
    models = [former]
    if _LATELY_TUNING & given.keys():
        digest, earlier = _digest_of_arguments(given), _digest_of_arguments(given, but=_LATELY_TUNING)
        models += [model.replace(digest, earlier) for model in (now, former)]
    return [replace(fingerprint, model=model) for model in dict.fromkeys(models) if model != now]


def _digest_of_arguments(given: Mapping[str, Any], *, but: Set[str] = frozenset()) -> str:
    """A digest of the arguments that change answers, and of those in ``but``."""
    return _digest(with_contents({k: v for k, v in given.items() if k in but or not _is_tuning(k, v)}))


def _is_tuning(name: str, value: object) -> bool:
    """Whether an engine argument changes how fast an answer comes, and not what it says."""
    return name in _TUNING and not makes_weights_up({name: value})  # random weights, whatever the files say


def derived_job_id(settings: JobSettings, fingerprint: Fingerprint) -> str:
    """A job id that the same input, model and settings always give."""
    digest = _digest([fingerprint.input, fingerprint.model, fingerprint.sampling, fingerprint.template,
                      fingerprint.format])  # fmt: skip
    return f"{_stem(settings)}-{digest[:12]}"


def _stem(settings: JobSettings) -> str:
    if isinstance(settings.source, SqlQuery):
        return "query"
    name = Path(settings.source.inputs[0]).name.split(".")[0]
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:40] or "job"


def _digest(value: Any) -> str:
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS, default=str)).hexdigest()
