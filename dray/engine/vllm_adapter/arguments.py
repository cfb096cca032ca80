"""Engine arguments for vLLM: the user's, with dray's defaults for offline work filled in."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dray.engine import chat_template
from dray.engine.adapter_folder import Adapter
from dray.engine.adapters import ARGUMENT as ADAPTERS
from dray.engine.argument_policy import refuse_spread, refuse_traces, refuse_unsafe
from dray.engine.grammars import GRAMMAR_SECONDS
from dray.engine.prompt_day import VARIABLE as DAY_VARIABLE
from dray.engine.protocol import EngineSpec
from dray.engine.start_errors import in_one_line
from dray.engine.vllm_adapter.core import choice as core_choice
from dray.engine.vllm_adapter.lora import lora_arguments
from dray.engine.vllm_adapter.media.images import THREADS as IMAGE_THREADS
from dray.engine.vllm_adapter.media.images import WITHOUT_LIST
from dray.engine.vllm_adapter.seeds import own_seed
from dray.engine.weight_formats import formats_of, tokenizer_of
from dray.errors import ConfigError
from dray.planner.models import KV_BYTES, kv_format, least_tokens, read_model

logger = logging.getLogger(__name__)

# Before vLLM is imported. Where the engine's core runs is dray's to say (core_choice.py): with vLLM's own
# choice, a process, a CPU's start took 27 s after the import instead of 2.6 s. vLLM and Hugging Face send no
# usage data.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # Rows that would make vLLM fetch something are refused; if one came through, it would get no further.
    "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
    "VLLM_MAX_N_SEQUENCES": "128",  # answers to one row, as OpenAI has it; vLLM's own limit is 16,384
    "TOKENIZERS_PARALLELISM": "false",
    # For ranks in processes of their own: vLLM's 5 s are short on busy cores, and what it kills leaves
    # segments of shared memory.
    "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": "20",
    # The engine shares its cores with Ray, the shard task and the store. OpenMP threads that spin for long at
    # barriers then wait for whole time slices: 11 requests/s instead of 130 on 2 busy cores. A short spin
    # costs 3% on idle ones (187 instead of 193), none at all 20%.
    "GOMP_SPINCOUNT": "2000",
}
_GIB = 1 << 30
_MEETING_SECONDS = 1800  # for ranks on several nodes to meet: as long as a replica may take to start
_CPU_CACHE_LIMIT = 4 * _GIB
_CPU_BATCH = 4096  # tokens of a step, by vLLM's default
_OF_BLOCKS = 1 / 32  # of a request's cache: its last block is not full, and vLLM holds one block back
_NOT_IMPORTED = "failed to be inspected"  # of an architecture: its module cannot be imported
_TORCHVISION = (
    " torchvision is not installed, and most models that also read images need it, for text as well: install "
    "the one that goes with torch (on CPU: --index-url https://download.pytorch.org/whl/cpu)"
)
_OF_A_PARSER = "easoning parser"  # in RuntimeErrors and KeyErrors that are about an argument
# Options of vLLM's server rather than of its engine, which its serving classes take.
SERVING_OPTIONS = frozenset(
    {
        chat_template.ARGUMENT,
        "chat_template_content_format",
        "tool_call_parser",
        "reasoning_parser",
        "enable_auto_tool_choice",
        "grammar_seconds",  # dray's own: see dray/engine/grammars.py
        core_choice.ARGUMENT,  # dray's own
        IMAGE_THREADS,  # dray's own
        ADAPTERS,
    }
)
# One library for all schemas and grammars. vLLM's "auto" checks each request against the library that suits
# it, but compiles all of them with the library of the first one: answers would depend on the order of the
# rows, and keywords that the library does not know would be ignored.
STRUCTURED_BACKEND = "xgrammar"


def grammar_seconds(spec: EngineSpec) -> int:
    """Seconds of processor time that a row's schema or grammar may take to compile.

    Raises:
        ConfigError: the engine argument is not a whole number above 0.
    """
    given = spec.arguments.get("grammar_seconds", GRAMMAR_SECONDS)
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise ConfigError(f"engine argument grammar_seconds: {given!r} is not a whole number above 0")
    return given


def prepare_environment(spec: EngineSpec) -> None:
    """Set what vLLM reads at import. A value that the user set stays, but for the day: it is the job's."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if spec.prompt_day is not None:
        os.environ[DAY_VARIABLE] = spec.prompt_day
    if spec.gpus == 0:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Ray leaves the node's GPUs visible to who asked for none
    if spec.weights is not None or Path(spec.model).is_dir():
        os.environ.setdefault("HF_HUB_OFFLINE", "1")


def eager_on_cpu(spec: EngineSpec) -> bool:
    """Whether nothing is compiled at run time on CPU: dray's default there, for a compiler may be missing."""
    return bool(spec.arguments.get("enforce_eager", True))


def engine_arguments(
    spec: EngineSpec, model: dict[str, Any], adapters: Sequence[Adapter] = (), *, cpu: bool
) -> dict[str, Any]:
    """The keyword arguments for vLLM's ``EngineArgs``; ``model`` are those that say where its weights are.

    Raises:
        ConfigError: an argument that vLLM does not have, that dray does not offer, or that does not go with
            the model's files or the LoRA adapters.
    """
    refuse_unsafe(spec.arguments)
    refuse_spread(spec.arguments)
    refuse_traces(spec.arguments)
    from vllm.engine.arg_utils import EngineArgs

    given = {name: value for name, value in spec.arguments.items() if name not in SERVING_OPTIONS}
    unknown = sorted(given.keys() - {field.name for field in fields(EngineArgs)})
    if unknown:
        raise ConfigError(f"vLLM has no engine argument {', '.join(unknown)}")
    arguments: dict[str, Any] = {
        "trust_remote_code": False,
        "load_format": "safetensors",
        "disable_log_stats": False,  # per-request timings come from it
        "structured_outputs_config": {"backend": STRUCTURED_BACKEND},
        "allowed_media_domains": ["nothing.invalid"],  # rows make vLLM fetch nothing
        **model,
    }
    given["seed"] = own_seed(given.get("seed", 0), spec.replica)
    given |= enough_tokens(spec, arguments["model"])
    arguments |= spec.kind.engine.arguments
    arguments |= _place(spec)
    arguments |= _cpu_defaults(arguments["model"], given) if cpu else _share_of_a_gpu(spec, given)
    arguments |= _reasoning(spec, arguments)
    arguments |= lora_arguments(spec, adapters, cpu=cpu)
    for name in ("structured_outputs_config", "reasoning_config"):
        if isinstance(given.get(name), dict):
            given[name] = arguments.get(name, {}) | given[name]
    return arguments | given | _formats(spec, given) | WITHOUT_LIST


def _place(spec: EngineSpec) -> dict[str, Any]:
    """Which node this is, of an engine on several: vLLM's ranks on them meet there."""
    rank = spec.rank
    if rank is None:
        return {}
    meeting = {"node_rank": rank.number, "master_addr": rank.address, "master_port": rank.port}
    return meeting | {
        "distributed_executor_backend": "mp",
        # vLLM's 10 min are short where the model comes to one of the nodes later than to another.
        "distributed_timeout_seconds": _MEETING_SECONDS,
        "cpu_distributed_timeout_seconds": _MEETING_SECONDS,
    }


def _formats(spec: EngineSpec, given: dict[str, Any]) -> dict[str, str]:
    """What the files in a local folder ask for, or those at an address, of which not all are fetched."""
    local = spec.weights is None
    formats = formats_of(spec.model, given) if local else tokenizer_of(spec.weights, given)
    if formats:
        chosen = ", ".join(f"{name}={value}" for name, value in formats.items())
        logger.info("model %s: by its files, the engine reads it with %s", spec.model, chosen)
    return formats


def _reasoning(spec: EngineSpec, arguments: dict[str, Any]) -> dict[str, Any]:
    """What tells the core of the parser of reasoning: a grammar applies from the end of reasoning on.

    vLLM's own argument, ``reasoning_parser``, takes no dictionary beside it.
    """
    parser = spec.arguments.get("reasoning_parser")
    if not parser:
        return {}
    told = {"reasoning_parser": parser}
    return {
        "structured_outputs_config": arguments["structured_outputs_config"] | told,
        "reasoning_config": told,
    }


@contextmanager
def refused_arguments() -> Iterator[None]:
    """Turn what vLLM says of its arguments into ConfigError; its own first line often says nothing."""
    try:
        yield
    except (ValueError, TypeError, OSError, RuntimeError, KeyError) as error:
        said = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
        if isinstance(error, RuntimeError | KeyError) and _OF_A_PARSER not in said:
            raise
        if isinstance(error, ValidationError):
            problem = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in problem["loc"])
            said = f"{place}: {problem['msg']}" if place else problem["msg"]
        said = in_one_line(said.removeprefix("Value error, "))
        if _NOT_IMPORTED in said and find_spec("torchvision") is None:
            said += _TORCHVISION
        raise ConfigError(f"vLLM cannot run this model with these engine arguments: {said}") from error


def enough_tokens(spec: EngineSpec, model: str) -> dict[str, int]:
    """Tokens of a step that dray halved: what the model needs to start, but no more than it had before."""
    if not spec.tokens_before:
        return {}
    needed = min(spec.tokens_before, least_tokens(_config_of(model)))
    return {"max_num_batched_tokens": max(spec.arguments["max_num_batched_tokens"], needed)}


def _share_of_a_gpu(spec: EngineSpec, given: dict[str, Any]) -> dict[str, Any]:
    """Its share of the memory that vLLM would take, for a replica that asked for a part of a GPU.

    vLLM counts a GPU as its own: the second engine on it would not find the memory. At its start it looks
    for the share also where the user sizes the cache (``kv_cache_memory_bytes``).
    """
    from vllm.engine.arg_utils import EngineArgs

    if spec.gpus is None or not 0 < spec.gpus < 1:
        return {}
    if "gpu_memory_utilization" in given:
        return {}
    return {"gpu_memory_utilization": round(EngineArgs.gpu_memory_utilization * spec.gpus, 4)}


def _cpu_defaults(model: str, given: dict[str, Any]) -> dict[str, Any]:
    config = _config_of(model)
    defaults: dict[str, Any] = {"enforce_eager": True}  # compiling costs more than it gives on few cores
    dtype = config.get("dtype") or config.get("torch_dtype")
    if dtype:
        defaults["dtype"] = dtype  # vLLM would turn float32 into bfloat16
    if "kv_cache_memory_bytes" not in given and "VLLM_CPU_KVCACHE_SPACE" not in os.environ:
        wanted = _cache_bytes(config.get("text_config") or config, given)
        defaults["kv_cache_memory_bytes"] = max(wanted, _longest_bytes(model, given))
    return defaults


def _longest_bytes(model: str, given: dict[str, Any]) -> int:
    """Bytes that one request of full length keeps in a rank's cache, without which vLLM does not start.

    0 for a model that ``dray plan`` does not know. vLLM keeps the tokens of a step beside a layer's window.
    """
    try:
        facts = read_model(Path(model))
    except ConfigError:
        return 0
    length = int(given.get("max_model_len") or facts.max_length)
    batch = int(given.get("max_num_batched_tokens") or _CPU_BATCH)
    named = (kv_format(str(given.get(name))) for name in ("kv_cache_dtype", "dtype"))
    of_element = KV_BYTES[next(filter(None, named), facts.kv_format)]
    ranks = int(given.get("tensor_parallel_size") or 1)
    elements = sum(
        one.layers * one.cached * min(length, one.kept(length) + batch) * one.copies(ranks) / ranks
        for one in facts.attention
    )
    return int(elements * of_element * (1 + _OF_BLOCKS))


def _cache_bytes(config: dict[str, Any], given: dict[str, Any]) -> int:
    """Enough key-value cache for a full batch at full length, at most 4 GiB; so much for unusual models.

    Keys and values: 2 x layers x KV heads x head size x bytes, for every token. vLLM itself would take nine
    tenths of the machine's memory, and not start where less is free.
    """
    heads = config.get("num_attention_heads")
    hidden = config.get("hidden_size")
    layers = config.get("num_hidden_layers")
    if not heads or not hidden or not layers:
        return _CPU_CACHE_LIMIT
    kv_heads = config.get("num_key_value_heads") or heads
    head_size = config.get("head_dim") or hidden // heads
    per_token = 2 * layers * kv_heads * head_size * 4
    length = int(given.get("max_model_len") or config.get("max_position_embeddings") or 4096)
    sequences = int(given.get("max_num_seqs") or 256)
    return int(min(max(per_token * length * sequences, _GIB // 4), _CPU_CACHE_LIMIT))


def _config_of(model: str) -> dict[str, Any]:
    path = Path(model) / "config.json"
    if not path.is_file():
        return {}
    loaded = json.loads(path.read_text())
    return loaded if isinstance(loaded, dict) else {}
