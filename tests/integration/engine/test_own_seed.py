"""Rows without a seed of their own: each replica answers them by random numbers of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dray.engine import replica as replicas
from dray.engine.protocol import Engine, EngineSpec
from dray.engine.ranks import NodeRank
from dray.engine.replica import Replica, build_engine
from dray.kinds import Kind
from dray.places import replica_name

pytestmark = pytest.mark.integration

NAMES = [replica_name("job/1", 0), replica_name("job/1", 1), replica_name("job/1", 0, 1), "job/2/replica-0"]
"""A replica, one beside it, its successor, and that of a resume."""


def seed(name: str, rank: NodeRank | None = None, **given: Any) -> Any:
    from dray.engine.vllm_adapter.arguments import engine_arguments

    spec = EngineSpec(name="vllm", model="m", kind=Kind.COMPLETION, arguments=given, replica=name, rank=rank)
    return engine_arguments(spec, {"model": "m"}, cpu=False)["seed"]


def test_no_two_replicas_of_a_job_have_the_same_seed() -> None:
    pytest.importorskip("vllm")
    seeds = [seed(name) for name in NAMES]
    assert len(set(seeds)) == len(NAMES)
    assert seeds == [1704687965, 1291343634, 1072953121, 1196832392]  # on every machine
    assert all(0 <= seed(f"job/1/replica-{lane}") < 1 << 31 for lane in range(64))
    assert seed("", seed=7) == 7  # an engine by itself
    assert seed(NAMES[0], NodeRank(1, "10.0.0.5", 20000)) == seeds[0]  # all ranks of an engine draw alike


def test_a_users_seed_gives_other_answers_and_what_is_none_is_left_to_vllm() -> None:
    pytest.importorskip("vllm")
    seeds = {seed(name, seed=given) for name in NAMES for given in (0, 7, 2**40)}
    assert len(seeds) == 12
    assert seed(NAMES[0], seed=0) == seed(NAMES[0])
    assert seed(NAMES[0], seed="x") == "x"


def test_the_engine_knows_whose_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[EngineSpec] = []

    def build(spec: EngineSpec) -> Engine:
        built.append(spec)
        return build_engine(spec)

    monkeypatch.setattr(replicas, "build_engine", build)
    spec = EngineSpec(name="simulated", model="m", kind=Kind.COMPLETION)
    replica = Replica(NAMES[0], spec, exit_when_dead=False)
    replica.ready()
    replica.stop()
    assert built == [replace(spec, replica=NAMES[0])]
