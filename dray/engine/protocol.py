"""What an engine is to the rest of dray: admit requests, step, hand out what finished."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from dray.engine.ranks import NodeRank
from dray.engine.tuning import Tuned, Tuning
from dray.kinds import Kind, Overflow
from dray.requests.media.medium import Medium
from dray.requests.model import Outcome, Request
from dray.storage.objects import ObjectStoreOptions
from dray.weights.source.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """Which engine a replica runs, and how.

    ``name`` is ``vllm`` or ``simulated``. ``replica`` names the replica that has the engine: no other one of
    the job draws the same random numbers. ``model`` is a local directory, or the URI of one in an object
    store, whose state ``weights`` pins and ``objects`` gives access to; for ``weights_patience`` seconds the
    fetch is left to others of this node. ``model_name`` is the name that
    rows may carry in ``body.model`` (None: any). ``arguments`` go to the engine as they are: vLLM's engine
    arguments, or the settings of the simulated engine. ``overflow`` says what becomes of rows that do not
    fit into the context. An engine that holds requests and gets no further with
    them for ``stall_seconds`` is ended. The job's options ask for ``media``, so a node without the
    libraries for them is refused. ``tuning`` has the engine find its best limits on its first rows. Of an
    engine on several nodes, ``rank`` says which of them this is. ``tokens_before`` is what a step had before
    memory did not suffice and dray halved it; 0 where it did not. Prompts have ``prompt_day`` (YYYY-MM-DD) as
    today; None for what the node's clock says.
    """

    name: str
    model: str
    kind: Kind
    replica: str = ""
    model_name: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    weights: Manifest | None = None
    weights_patience: float = 0.0
    stall_seconds: float = 600.0
    cpus: float | None = None
    gpus: float | None = None
    overflow: Overflow = "error"
    tuning: Tuning | None = None
    media: frozenset[Medium] = frozenset()
    rank: NodeRank | None = None
    tokens_before: int = 0
    prompt_day: str | None = None
    objects: ObjectStoreOptions | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What an engine says of itself once it is ready.

    ``timeline`` holds the seconds that each part of the start took, in order; ``weights`` is when their fetch
    began and ended (seconds since 1970), where they were fetched. ``device`` names what it computes on, and
    ``config`` is the model's ``config.json``; both are empty where there is none.
    """

    engine: str
    version: str
    model: str
    max_num_seqs: int
    max_model_len: int
    timeline: dict[str, float]
    weights: tuple[float, float] | None = None
    device: str = ""
    config: str = ""
    max_num_batched_tokens: int = 0


class Engine(Protocol):
    """One inference engine, owned by one thread.

    Keys are whole numbers given by the caller, unique among unfinished requests.
    """

    info: EngineInfo

    def submit(self, key: int, request: Request) -> None:
        """Admit one request.

        Raises:
            RequestRefused: the request cannot be honoured; the engine goes on.
            EngineDeadError: the engine cannot go on.
        """

    def step(self) -> list[tuple[int, Outcome]]:
        """Advance all admitted requests by one iteration and return the finished ones.

        Raises:
            EngineDeadError: the engine cannot go on.
        """

    def produced(self) -> int:
        """A number that changes as long as the engine gets on with what it holds, finished or not."""

    def tuned(self) -> Tuned | None:
        """The limits that it found, once it has."""

    def wake(self) -> None:
        """Interrupt a step that waits for its device, because work has come. Other threads may call it."""

    def check(self) -> None:
        """Check that an idle engine is alive.

        Raises:
            EngineDeadError: it has died.
        """

    def abort(self, keys: Iterable[int]) -> None:
        """Forget unfinished requests; unknown keys are ignored."""

    def close(self) -> None:
        """Release memory and threads."""
