"""A model whose answers vary, engines on it, and a runner that feeds bodies and gathers outcomes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from dray.engine.protocol import Engine, EngineSpec
from dray.engine.replica import Replica, build_engine
from dray.kinds import Kind
from dray.requests.model import Outcome, Request
from dray.requests.spool.spool import encode
from tests.support.tiny_model import write_tiny_model

NAME = "tiny"
CONTEXT = 512
MAX_NUM_SEQS = 32
DAY = "2001-02-03"
"""What prompts of the generation engine have as today."""

_EXTRAS = "{{ mood | default('') }}{% if clock is defined %}{{ strftime_now(clock) }}{% endif %}"


def write_lively_model(folder: Path) -> Path:
    """The tiny model with wider weights: its answers vary, and some end by themselves."""
    import torch
    from transformers import LlamaForCausalLM

    write_tiny_model(folder)
    template = folder / "chat_template.jinja"
    template.write_text(_EXTRAS + template.read_text())
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.dim() == 2:
                weights.normal_(0, 0.1 if "embed" in name else 0.12)
    model.save_pretrained(folder)
    return folder


def generation_spec(model: Path, **arguments: Any) -> EngineSpec:
    """An engine for chat and completions."""
    defaults = {
        "max_num_seqs": MAX_NUM_SEQS,
        "max_model_len": CONTEXT,
        "kv_cache_memory_bytes": 128 << 20,
        "tool_call_parser": "hermes",
        "grammar_seconds": 2,
        # Random weights would fill an answer with the white space that a schema allows.
        "structured_outputs_config": {"disable_any_whitespace": True},
    }
    return EngineSpec(
        name="vllm",
        model=str(model),
        kind=Kind.CHAT,
        model_name=NAME,
        arguments=defaults | arguments,
        prompt_day=DAY,
    )


def embedding_spec(model: Path) -> EngineSpec:
    """An engine for embeddings: a Llama turned into an embedding model, last token, normalised."""
    return EngineSpec(
        name="vllm",
        model=str(model),
        kind=Kind.EMBEDDING,
        model_name=NAME,
        arguments={"max_num_seqs": MAX_NUM_SEQS, "max_model_len": CONTEXT, "convert": "embed"},
    )


def request(index: int, body: dict[str, Any], kind: Kind | None = None) -> Request:
    """A request around a body; the kind follows from its fields where it is not given."""
    if kind is None:
        kind = Kind.CHAT if "messages" in body else Kind.EMBEDDING if "input" in body else Kind.COMPLETION
    return Request(index=index, custom_id=f"row-{index}", url=kind.url, body=body)


def lines(bodies: list[dict[str, Any]], kind: Kind | None = None) -> list[bytes]:
    """Bodies as lines of a spool."""
    return [encode(request(number, body, kind)) for number, body in enumerate(bodies)]


def answer_of(outcome: Outcome) -> dict[str, Any]:
    """The body of a row's answer, which it has."""
    assert outcome.response is not None, (outcome.error_code, outcome.error_message)
    found: dict[str, Any] = json.loads(outcome.response)
    return found


class Runner:
    """Feeds bodies to a replica and gathers the outcomes, by index."""

    def __init__(self, replica: Replica, engine: Any = None) -> None:
        self.replica = replica
        self.engine = engine  # to look at, never to call: it belongs to the replica's thread
        self._sessions = 0

    @classmethod
    def started(cls, spec: EngineSpec) -> Self:
        """On a replica in this process, whose engine is ready; the caller stops it."""
        engines: list[Engine] = []

        def build(spec: EngineSpec) -> Engine:
            engines.append(build_engine(spec))
            return engines[0]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("dray.engine.replica.build_engine", build)
            replica = Replica(str(spec.kind), spec, exit_when_dead=False)
            replica.ready()
        return cls(replica, engines[0])

    def session(self) -> str:
        """A session name not used yet."""
        self._sessions += 1
        return f"session-{self._sessions}"

    def run(self, bodies: list[dict[str, Any]], kind: Kind | None = None) -> list[Outcome]:
        """One outcome per body, in order."""
        session = self.session()
        self.replica.feed(session, lines(bodies, kind), last=True)
        outcomes = [outcome for batch in self.replica.results(session, 64, 0.05) for outcome in batch]
        assert sorted(outcome.index for outcome in outcomes) == list(range(len(bodies)))
        return sorted(outcomes, key=lambda outcome: outcome.index)

    def one(self, body: dict[str, Any], kind: Kind | None = None) -> Outcome:
        """The outcome of one body."""
        return self.run([body], kind)[0]


@contextmanager
def running(spec: EngineSpec) -> Iterator[Runner]:
    """A replica in this process for as long as the block lasts."""
    runner = Runner.started(spec)
    yield runner
    runner.replica.stop()
