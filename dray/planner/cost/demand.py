"""The job as the cost model sees it, and how one replica is set up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, isfinite

from dray.errors import ConfigError

MOST_ERROR = 0.9
"""Of a mean output: with 1, the shortest outputs of an interval would have no token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """``rows`` requests of ``input_tokens`` and ``output_tokens`` in the mean.

    The engine runs a request with several prompts, or answers, as several sequences, each with a place in the
    batch and a KV cache of its own. The cost model computes with these: :meth:`by_sequence`.

    Args:
        hit_share: share of the input tokens that the prefix cache serves, 0 to 1.
        longest_tokens: input and output of the longest sequence; the mean's where it is not known.
        longest_output: output of the longest sequence; twice the mean where it is not known.
        output_error: share by which the mean output may be off, for intervals.
        sequences: of a request in the mean.
        answers: how often each input token is read in the mean: once for each answer to its prompt. The cache
            serves it from the second time on.

    Raises:
        ConfigError: a figure is out of bounds; names it.
    """

    rows: int
    input_tokens: float
    output_tokens: float
    hit_share: float = 0.0
    longest_tokens: float | None = None
    longest_output: float | None = None
    output_error: float = 0.0
    sequences: float = 1.0
    answers: float = 1.0

    def __post_init__(self) -> None:
        bounds = {
            "rows": (self.rows, 1, 1e15),
            "input_tokens": (self.input_tokens, 1, 1e9),
            "output_tokens": (self.output_tokens, 1, 1e9),
            "hit_share": (self.hit_share, 0, 1),
            "longest_tokens": (self.longest, 1, 1e10),
            "longest_output": (self.tail_output, 1, 1e10),
            "output_error": (self.output_error, 0, MOST_ERROR),
            "sequences": (self.sequences, 1, 1e9),
            "answers": (self.answers, 1, 1e6),
        }
        for name, (value, least, most) in bounds.items():
            if not isfinite(value) or not least <= value <= most:
                raise ConfigError(f"demand: {name} is {value:g}, but must be from {least:g} to {most:g}")

    @property
    def hit(self) -> float:
        """Input tokens of a request that the prefix cache serves."""
        return self.input_tokens * self.hit_share

    @property
    def mean_total(self) -> float:
        """Input and output tokens of a mean request."""
        return self.input_tokens + self.output_tokens

    @property
    def longest(self) -> float:
        """Input and output tokens of the longest request."""
        return self.mean_total if self.longest_tokens is None else self.longest_tokens

    @property
    def tail_output(self) -> float:
        """Output tokens of the longest output."""
        return 2 * self.output_tokens if self.longest_output is None else self.longest_output

    def by_sequence(self) -> Demand:
        """The same with a row for each sequence."""
        if self.sequences == 1.0:
            return self
        return replace(
            self,
            rows=ceil(self.rows * self.sequences),
            input_tokens=max(1.0, self.input_tokens * self.answers / self.sequences),
            output_tokens=max(1.0, self.output_tokens / self.sequences),
            hit_share=min(1.0, (self.answers - 1.0 + self.hit_share) / self.answers),
            sequences=1.0,
            answers=1.0,
        )

    @property
    def tokens(self) -> float:
        """Input and output tokens of the whole job."""
        return self.rows * self.mean_total


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePolicy:
    """What engines do differently.

    Args:
        reserves_outputs: a request is admitted only with KV cache for its whole output, as by TensorRT-LLM's
            default scheduler policy, GUARANTEED_NO_EVICT. vLLM admits by what is there, and preempts.
        host_seconds: overhead of one iteration: 4 ms with synchronous scheduling.
        sequence_seconds: of the host for each sequence of a step. The host works beside the device, but a
            step takes at least as long.
        fill: share of the KV cache that is planned on; vLLM recomputes what it preempts beyond.
        overhead: bytes per device beside weights and KV cache (activations, graphs, the runtime).
    """

    name: str
    reserves_outputs: bool = False
    host_seconds: float = 4e-3
    sequence_seconds: float = 0.0
    fill: float = 0.95
    overhead: float = 2.5 * 2**30


VLLM = EnginePolicy(name="vllm", sequence_seconds=40e-6)
"""Of a sequence: an H200 answered a 1B model's 1,024 sequences in steps of 40 ms, whether 80% of a prompt was
cached or not, and was busy for 15% to 60% of each (16 cores of a Xeon, vLLM 0.32: RESULTS.md, gpu)."""


MEMORY_SHARE = 0.92
"""``gpu_memory_utilization`` where nothing says it: vLLM's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How one replica is set up: vLLM's arguments of the same names; ``weights`` and ``kv`` are formats.

    It is on ``nodes``, with as many of its devices on each. ``max_model_len`` is None for the model's own.
    """

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    nodes: int = 1
    max_model_len: int | None = None
    weights: str = "bf16"
    kv: str = "bf16"
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    gpu_memory_utilization: float = MEMORY_SHARE
    engine: EnginePolicy = VLLM

    @property
    def measured_as(self) -> str:
        """What phi goes by: the format of the weights, and the split where a replica has several devices."""
        split = f" TP{self.tensor_parallel} PP{self.pipeline_parallel}" if self.devices > 1 else ""
        nodes = f" N{self.nodes}" if self.nodes > 1 else ""
        return f"{self.weights}{split}{nodes}"

    @property
    def arguments(self) -> dict[str, int]:
        """The engine arguments of it; ``nnodes`` and ``max_model_len`` where it needs them."""
        found = {
            "tensor_parallel_size": self.tensor_parallel,
            "pipeline_parallel_size": self.pipeline_parallel,
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
        }
        found |= {"nnodes": self.nodes} if self.nodes > 1 else {}
        return found | ({} if self.max_model_len is None else {"max_model_len": self.max_model_len})

    @property
    def devices(self) -> int:
        """Devices of one replica."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def on_each(self) -> int:
        """Devices of one replica on each of its nodes."""
        return self.devices // self.nodes
