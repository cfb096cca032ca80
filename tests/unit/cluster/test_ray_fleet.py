"""A replica's first answers, as its driver looks for them: at those that are there, and no others."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from dray.cluster.losses import Unreachable
from dray.cluster.ray_fleet import RayReplicaProcess
from dray.engine.replica import Whereabouts
from dray.errors import ConfigError, ReplicaLostError

pytestmark = pytest.mark.unit

WHERE = Whereabouts(node_id="node", host="host", process=1.0, ready=2.0)


class Actor:
    """An actor that is asked both questions. ``answers`` are those that have come by now."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: dict[str, object] = {}
        self.asked: list[str] = []
        monkeypatch.setattr(ray, "wait", self._wait)
        monkeypatch.setattr(ray, "get", self._get)
        handle = SimpleNamespace(ready=self._method("ready"), whereabouts=self._method("whereabouts"))
        replica: Any = SimpleNamespace(name="replica", actor=handle, actor_id="id")
        self.process = RayReplicaProcess(replica, Unreachable(), None)

    def _method(self, name: str) -> Any:
        def remote() -> str:
            self.asked.append(name)
            return name

        return SimpleNamespace(remote=remote)

    def _wait(
        self, references: Sequence[str], *, num_returns: int = 1, timeout: float
    ) -> tuple[list[str], list[str]]:
        assert timeout == 0
        there = [one for one in references if one in self.answers][:num_returns]
        return there, [one for one in references if one not in there]

    def _get(self, reference: str | Sequence[str]) -> object:
        if not isinstance(reference, str):
            return [self._get(one) for one in reference]
        assert reference in self.answers, f"the driver would wait for {reference}"
        answer = self.answers[reference]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def actor(monkeypatch: pytest.MonkeyPatch) -> Actor:
    return Actor(monkeypatch)


def test_a_replica_began_once_both_answers_are_there(actor: Actor) -> None:
    """A node that is cut off between the two held the driver's thread up until Ray called the actor dead."""
    assert actor.process.began() is None
    actor.answers["ready"] = "engine"
    assert actor.process.began() is None
    actor.answers["whereabouts"] = WHERE
    began = actor.process.began()
    assert began is not None
    assert began.info is actor.answers["ready"]
    assert began.where is WHERE
    assert actor.process.last_node == "node"
    assert actor.asked == ["ready", "whereabouts"]


def test_an_engine_that_never_starts_says_so_before_the_other_answer(actor: Actor) -> None:
    refused = ConfigError("no such model")
    actor.answers["ready"] = ray.exceptions.RayTaskError("ready", "its traceback", refused)
    with pytest.raises(ConfigError, match="no such model"):
        actor.process.began()


@pytest.mark.parametrize("lost", ["ready", "whereabouts"])
def test_both_questions_are_asked_again_where_one_did_not_come_through(lost: str, actor: Actor) -> None:
    unavailable = ray.exceptions.ActorUnavailableError("cut off", None)
    actor.answers = {"ready": "engine", "whereabouts": WHERE, lost: unavailable}
    with pytest.raises(ReplicaLostError) as raised:
        actor.process.began()
    assert raised.value.unsure
    actor.answers = {"ready": "engine", "whereabouts": WHERE}
    assert actor.process.began() is not None
    assert actor.asked == ["ready", "whereabouts"] * 2
