"""What an engine that did not start, or a part that ended, says in one line for people."""

from __future__ import annotations

from copy import copy

from dray.errors import DrayError, EngineStartError, first_line, raised_at
from dray.failures.signs import out_of_memory

_LONGEST = 800  # characters of an engine's own message
_UNSAFE_ADVICE = "To allow overriding this maximum"  # names a variable that lets a model run past its length
_OWN_CODE = ("trust_remote_code=True", "contains custom code")
_NO_CODE = "dray runs no code of a model; name one that transformers or vLLM has the code for"
# What vLLM advises on the key-value cache has no effect on CPU, where dray says how many bytes it has.
_ON_CPU = {
    "Try increasing `gpu_memory_utilization` (which also controls CPU memory on the CPU backend) or": (
        "Try increasing `gpu_memory_utilization` (on GPUs) or `kv_cache_memory_bytes` (on CPU), or"
    ),
    "Decrease --kv-cache-memory-bytes, VLLM_CPU_KVCACHE_SPACE, or": (
        "Decrease `max_model_len` or `kv_cache_memory_bytes`, or"
    ),
}


def in_one_line(said: str) -> str:
    """What an engine said, in one line, not too long, and without advice that does not hold here."""
    said = " ".join(said.partition(_UNSAFE_ADVICE)[0].split())
    if any(phrase in said for phrase in _OWN_CODE):
        said = f"{said.partition('. ')[0]}; {_NO_CODE}"
    for advice, better in _ON_CPU.items():
        said = said.replace(advice, better)
    return said[:_LONGEST]


def start_error(error: BaseException) -> DrayError:
    """The error of a start as others are told of it: one of dray's as it is, another by class and line."""
    if isinstance(error, DrayError):
        return error
    line = in_one_line(first_line(error))[:500] or f"no reason given{raised_at(error)}"
    return EngineStartError(f"{type(error).__name__}: {line}", oom=out_of_memory(error))


def with_log(error: DrayError, log: str) -> DrayError:
    """The same error, which also says where the log is."""
    told = copy(error)
    told.args = (f"{error}; its log: {log}", *error.args[1:])
    return told
