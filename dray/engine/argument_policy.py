"""Engine arguments that dray does not pass on. Needs no engine: such a job is refused before any starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dray.engine.ranks import refuse_uneven
from dray.errors import ConfigError

# Formats that read safetensors files and nothing else. The others take pickles where there are any, which can
# run code when loaded, or weights from a place that dray has not looked at.
_LOAD_FORMATS = frozenset(
    {
        "dray",
        "dummy",
        "fastsafetensors",
        "instanttensor",
        "mistral",
        "runai_streamer",
        "runai_streamer_sharded",
        "safetensors",
        "sharded_state",
    }
)


_ENGINES = "vLLM would wait for engines that dray does not start; --replicas N runs N engines"
_OF_DRAY = ("node_rank", "master_addr", "master_port")  # other on each node: a replica says them to its parts
_RAY = (
    "distributed_executor_backend=ray asks Ray for devices beside those that the replica holds, and waits "
    "for them; leave it out: vLLM then runs its ranks in processes (mp) on the replica's devices"
)

_PLUGINS = ("reasoning_parser_plugin", "tool_parser_plugin")
_TRACES = (
    "vLLM writes traces from statistics of every request in every step, which dray leaves out; leave it out: "
    "the report says what the rows took"
)


def refuse_traces(arguments: Mapping[str, Any]) -> None:
    """Refuse traces: with their endpoint, and no statistics, vLLM ends at the first row that finishes.

    Raises:
        ConfigError: says so.
    """
    if arguments.get("otlp_traces_endpoint") is not None:
        raise ConfigError(f"otlp_traces_endpoint: {_TRACES}")


def refuse_spread(arguments: Mapping[str, Any]) -> None:
    """Refuse engine arguments that spread one engine over more than its replica: its start would hang.

    Raises:
        ConfigError: names the argument, and what to do instead.
    """
    if arguments.get("data_parallel_size") not in (None, 1):
        raise ConfigError(f"data_parallel_size={str(arguments['data_parallel_size'])[:40]}: {_ENGINES}")
    for name in _OF_DRAY:
        if arguments.get(name) is not None:
            raise ConfigError(f"{name}: dray sets it on each node of an engine; give nnodes alone")
    refuse_uneven(arguments)
    if arguments.get("distributed_executor_backend") == "ray":
        raise ConfigError(_RAY)


def format_of(name: str, arguments: Mapping[str, Any]) -> str | None:
    """An argument that names a format, in small letters, as vLLM reads it; None where it is not given."""
    given = arguments.get(name)
    return None if given is None else str(given).lower()


def load_format_of(arguments: Mapping[str, Any]) -> str | None:
    """The engine argument ``load_format``; see :func:`format_of`."""
    return format_of("load_format", arguments)


def makes_weights_up(arguments: Mapping[str, Any]) -> bool:
    """Whether the engine makes random weights, and reads none of the model's files."""
    return load_format_of(arguments) == "dummy"


def refuse_unsafe(arguments: Mapping[str, Any]) -> None:
    """Refuse engine arguments that would run a stranger's code, or show a secret.

    Raises:
        ConfigError: names the argument.
    """
    if arguments.get("trust_remote_code"):
        raise ConfigError("trust_remote_code runs code from the model's repository; dray does not offer it")
    nested = arguments.get("structured_outputs_config")
    for name in _PLUGINS:
        if arguments.get(name) or (isinstance(nested, Mapping) and nested.get(name)):
            raise ConfigError(
                f"{name} runs a Python file; dray does not offer it: install the parser on every node as a "
                "plugin package of vLLM (entry point vllm.general_plugins), and give its name alone"
            )
    form = load_format_of(arguments)
    if form is not None and form not in _LOAD_FORMATS:
        raise ConfigError(
            f"load_format {form[:40]!r} may load other files than the safetensors that were checked; "
            f"dray offers {', '.join(sorted(_LOAD_FORMATS))}"
        )
    if isinstance(arguments.get("hf_token"), str):
        raise ConfigError(
            "hf_token would be kept with the job's settings; set the variable HF_TOKEN on every node"
        )
