"""Stable nodes that cannot open the store: the driver hears of it within its first steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from dray.cluster.reach import Needs, Reached
from dray.driver.events import Event, StoreAway, Warned
from dray.driver.shard_tasks.reach import ReachWatch
from dray.errors import JobBlockedError, StoreTransientError
from dray.job.options.settings import JobSettings
from tests.unit.driver.scripted import ScriptedFleet
from tests.unit.driver.test_run import Scene

NEEDS = Needs(store_url="postgresql://dray:secret@localhost/dray", requests="/srv/out/requests.jsonl")
WELL, AWAY = Reached("head"), Reached("worker", "store dray (PostgreSQL): the connection failed")


def _told(*answers: Reached) -> list[Event]:
    told, fleet = list[Event](), ScriptedFleet()
    fleet.reaching = list(answers)
    watch = ReachWatch(fleet, NEEDS, told.append)
    watch.look()
    watch.look()
    return told


def test_nodes_that_open_the_store_are_not_told_of() -> None:
    assert _told() == _told(WELL) == _told(WELL, WELL) == []


def test_a_node_among_others_that_cannot_open_the_store_is_named_once() -> None:
    [event] = _told(WELL, AWAY)
    assert isinstance(event, Warned)
    assert event.text.startswith(
        "this driver can open the store, and 1 of 2 stable nodes cannot "
        "(on worker: store dray (PostgreSQL): the connection failed); shard tasks write to it from there"
    )


def test_a_store_that_no_stable_node_can_open_blocks_the_job() -> None:
    with pytest.raises(JobBlockedError, match=r"and 1 stable node cannot \(on worker: .*not localhost"):
        _told(AWAY)


def test_an_output_folder_of_this_machine_alone_blocks_the_job() -> None:
    with pytest.raises(JobBlockedError) as blocked:
        _told(Reached("worker", None, "no such file"))
    assert str(blocked.value).startswith(
        "this driver can read the requests in /srv/out/requests.jsonl, and 1 stable node cannot "
        "(on worker: no such file); shard tasks read them there: the output folder, in which they lie, must"
    )


def test_answers_of_a_time_without_a_store_for_the_driver_too_are_asked_for_again() -> None:
    told, fleet = list[Event](), ScriptedFleet()
    watch = ReachWatch(fleet, NEEDS, told.append)
    fleet.reaching = None
    watch.look()
    watch.doubt()
    fleet.reaching = [AWAY]
    watch.look()
    with pytest.raises(JobBlockedError):
        watch.look()


def test_nothing_is_said_while_a_node_has_to_answer() -> None:
    told, fleet = list[Event](), ScriptedFleet()
    watch = ReachWatch(fleet, NEEDS, told.append)
    fleet.reaching = None
    watch.look()
    fleet.reaching = [AWAY]
    with pytest.raises(JobBlockedError):
        watch.look()


def test_a_driver_asks_its_nodes_for_what_its_shards_need(
    make_settings: Callable[..., JobSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is blocked in its first steps, before a replica is ready."""
    settings = make_settings(shard_rows=25, job_id="job")
    scene = Scene(settings, monkeypatch, [])
    scene.fleet.reaching = [Reached("worker", None, "no such file")]
    with pytest.raises(JobBlockedError, match="read the requests in"):
        scene.play(scene.until(lambda: False))
    [needs] = {id(one): one for one in scene.fleet.asked}.values()
    assert needs == Needs(store_url=settings.store_url, requests=scene.shards[0].uri)


def test_a_driver_without_its_store_asks_again(
    make_settings: Callable[..., JobSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(make_settings(shard_rows=25, job_id="job"), monkeypatch, [])
    scene.fleet.reaching = None

    def steps() -> Iterator[None]:
        yield from scene.until(lambda: bool(scene.fleet.asked))
        scene.store.error = StoreTransientError("away")
        yield from scene.until(lambda: bool(scene.told(StoreAway)))
        scene.fleet.reaching, asked = [AWAY], len(scene.fleet.asked)
        scene.store.error = None
        yield from scene.until(lambda: len(scene.fleet.asked) > asked)
        scene.fleet.reaching = [WELL]

    scene.play(steps())
    assert not scene.told(Warned)
