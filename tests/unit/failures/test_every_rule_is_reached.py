"""Each rule of the table of causes decides in a run: a small scenario makes it, on real parts.

A rule without a scenario fails here, and so does one that no run can bring about.
"""

from __future__ import annotations

import ast
import inspect
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import fields
from pathlib import Path

import pytest

from dray.driver.replicas import losses
from dray.engine.ray_errors import import_error, ray_errors
from dray.errors import DrayError, InterruptedShardError, JobPausedError
from dray.failures import rules
from dray.failures.conditions import INTERRUPTIONS, NO_ROOM_TRIES
from dray.failures.effects import SHRINK_STEPS
from dray.failures.facts import Facts
from dray.failures.foreign import FOREIGN, Sign
from dray.failures.rules import RULES, Rule
from dray.failures.signs import OURS
from dray.shard import commit_outage, ending
from dray.shard.backoff import Backoff
from dray.store import StoredNotice, open_store
from dray.store.database import sqlite_file
from tests.support.thread_fleet import Death, ThreadReplica
from tests.unit.failures.scene import ANYTHING, JOB, Scene

pytestmark = pytest.mark.unit

ENGINE, MEMORY, NODE = Death.ENGINE, Death.MEMORY, Death.NODE
MANY = 4
"""Rows of a shard whose halves can be cut in two as well."""
PATIENCE = 0.05
"""Seconds here for the half hour for which a store may be away."""

# -- scenarios: each brings about one decision, and gives its reason --------------------------------


def another_driver_takes_the_job(scene: Scene) -> str:
    return scene.attempt(then=lambda _: scene.store.claim_job(JOB, "another", takeover=lambda owner: True))


def a_user_cancels(scene: Scene) -> str:
    return scene.attempt(then=lambda _: scene.store.request_cancel(JOB))


def the_time_ends(scene: Scene) -> str:
    return scene.attempt(then=lambda _: scene.store.set_expiry(scene.job, 0.0))


def ray_refuses_the_token(scene: Scene) -> str:
    from ray.exceptions import AuthenticationError

    return scene.attempt(then=_fails_by(AuthenticationError("no token")))


def ray_has_no_room(*, tries: int) -> Callable[[Scene], str]:
    """For the answers of a replica, after so many attempts that it had none for either."""
    from ray.exceptions import OutOfDiskError, RayTaskError

    error = RayTaskError("results", "a trace", OutOfDiskError())
    return lambda scene: scene.attempt(then=_fails_by(error), tries=tries)


def rays_environment_fails(scene: Scene) -> str:
    from ray.exceptions import RuntimeEnvSetupError

    return scene.attempt(then=_fails_by(RuntimeEnvSetupError("no")))


def the_replica_is_drained(scene: Scene) -> str:
    return scene.attempt(then=lambda replica: replica.drain(0.0))


def noticed_nodes_are_lost(scene: Scene) -> str:
    def notice(replica: ThreadReplica) -> None:
        told = StoredNotice(
            node=replica.node() or "", source="aws", action="terminate", deadline=None, seen_at=0.0
        )
        scene.store.record_notice(JOB, told)

    return scene.attempts(*[NODE] * INTERRUPTIONS, then=notice)


def died(*deaths: Death) -> Callable[[Scene], str]:
    """Engines die under the rows, one after the other. Such a death makes the shard a suspect at once."""
    return lambda scene: scene.attempts(*deaths)


def dies_before_its_rows(death: Death) -> Callable[[Scene], str]:
    """An engine died under the rows; the next one dies under dray's own request."""

    def scenario(scene: Scene) -> str:
        scene.attempt(ENGINE)
        return scene.attempt(death, under=ANYTHING)

    return scenario


def does_not_start(*, of: int) -> Callable[[Scene], str]:
    """All but the first, which still starts: the engines are to sleep for so long, which Python refuses."""
    return lambda scene: scene.start(of, start_seconds=-1.0)


def is_not_imported(*, of: int) -> Callable[[Scene], str]:
    """On two nodes, of which all but the first of so many replicas cannot import dray."""
    return lambda scene: scene.start(of, import_error("node b", "ModuleNotFoundError: dray"))


def the_store_is_gone(scene: Scene) -> str:
    task = scene.task(Backoff())
    with _moved_away(scene.file), pytest.raises(InterruptedShardError) as ended:
        task()
    return str(ended.value)


def the_store_stays_away(scene: Scene) -> str:
    task = scene.task(Backoff())
    with _moved_away(scene.file), _short_patience():
        while True:
            try:
                task()
            except InterruptedShardError:
                continue
            except JobPausedError as ended:
                return str(ended)


def another_session_keeps_a_lock(scene: Scene) -> str:
    with (
        _short_patience(),
        closing(sqlite3.connect(scene.file, isolation_level=None)) as other,
        open_store(scene.url, patience=PATIENCE) as impatient,
    ):
        return scene.attempt(then=lambda _: other.execute("BEGIN IMMEDIATE"), store=impatient)


def a_table_is_dropped(scene: Scene) -> str:
    def drop(_: object) -> None:
        with closing(sqlite3.connect(scene.file)) as other:
            other.execute("DROP TABLE results")

    return scene.attempt(then=drop)


def the_requests_are_gone(scene: Scene) -> str:
    return scene.attempt(then=lambda _: scene.spool.unlink())


def _fails_by(error: Exception) -> Callable[[ThreadReplica], None]:
    """The replica's calls fail by what the engine's client makes of an error of Ray's."""

    def fail(replica: ThreadReplica) -> None:
        try:
            with ray_errors(replica.name):
                raise error
        except DrayError as found:
            replica.lost = found

    return fail


@contextmanager
def _short_patience() -> Iterator[None]:
    """The half hour for which a store may be away is over soon."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (commit_outage, rules):
            patch.setattr(module, "STORE_PATIENCE", PATIENCE)
        patch.setattr(sqlite_file, "BUSY_SECONDS", PATIENCE)
        yield


@contextmanager
def _moved_away(file: Path) -> Iterator[None]:
    elsewhere = file.rename(file.with_suffix(".away"))
    try:
        yield
    finally:
        elsewhere.rename(file)


# -- which rule each of them is about ----------------------------------------------------------------

_FULL = "Ray's object store and disk on a node were full"

OF_MANY: dict[str, Callable[[Scene], str]] = {
    "the lease belongs to another attempt": another_driver_takes_the_job,
    "the job was cancelled": a_user_cancels,
    "the job's time is over": the_time_ends,
    "the job cannot be done as it is": ray_refuses_the_token,
    f"taken back {INTERRUPTIONS} times without a new row": noticed_nodes_are_lost,
    "the node was taken back": the_replica_is_drained,
    "memory did not suffice for the engine itself": dies_before_its_rows(MEMORY),
    "memory did not suffice, and a smaller engine may do": died(MEMORY),
    "memory did not suffice under this suspect": died(ENGINE, MEMORY),
    "memory did not suffice in the smallest engine": died(*[MEMORY] * (SHRINK_STEPS + 1)),
    "nodes were lost under this suspect": died(ENGINE, NODE),
    f"nodes were lost {INTERRUPTIONS} times without a new row": died(*[NODE] * INTERRUPTIONS),
    "the node or the way to it was lost without notice": died(NODE),
    "its node cannot import what the driver has": is_not_imported(of=2),
    "no node is left that can import what the driver has": is_not_imported(of=3),
    "the engine did not start, and others do or still may": does_not_start(of=2),
    "the engine did not start": does_not_start(of=3),
    "engines died under this suspect": died(ENGINE, ENGINE),
    "the engine died before it was given a row": dies_before_its_rows(ENGINE),
    "the engine died": died(ENGINE),
    "the store was away for 30 minutes": the_store_stays_away,
    "the store answered, and took no row for 30 minutes": another_session_keeps_a_lock,
    "the store was away": the_store_is_gone,
    "the store takes no writes until an operator acts": a_table_is_dropped,
    "the run was ended": the_requests_are_gone,
    f"{_FULL} {NO_ROOM_TRIES} times in a row": ray_has_no_room(tries=NO_ROOM_TRIES - 1),
    _FULL: ray_has_no_room(tries=0),
    "nothing that dray knows": rays_environment_fails,
}
"""By the words of their rules, on a shard of many rows."""

OF_ONE: dict[str, Callable[[Scene], str]] = {
    f"taken back {INTERRUPTIONS} times without its one row": noticed_nodes_are_lost,
    "memory did not suffice under this one request": died(ENGINE, MEMORY, MEMORY),
    "memory did not suffice under this suspect of one request, to be tried again": died(ENGINE, MEMORY),
    "nodes were lost under this one request": died(ENGINE, NODE, NODE),
    "nodes were lost under this suspect of one request, to be tried again": died(ENGINE, NODE),
    f"nodes were lost {INTERRUPTIONS} times without its one row": died(*[NODE] * INTERRUPTIONS),
    "engines died under this one request": died(ENGINE, ENGINE, ENGINE),
    "engines died under this suspect of one request, to be tried again": died(ENGINE, ENGINE),
}
"""The same on a shard of one row."""


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize("rule", RULES, ids=[rule.when for rule in RULES])
def test_the_rule_decides_in_a_run(rule: Rule, tmp_path: Path) -> None:
    one = rule.when in OF_ONE
    scenario = (OF_ONE if one else OF_MANY)[rule.when]
    with closing(Scene(tmp_path, 1 if one else MANY)) as scene:
        told = scenario(scene)
    prefix = f"{rule.cause}: {rule.when}"
    assert told.startswith(prefix)
    assert told == prefix or told.startswith((f"{prefix} (", f"{prefix}; "))  # the error's name, or its words


def test_each_scenario_is_of_a_rule_and_each_rule_has_one() -> None:
    assert sorted([*OF_MANY, *OF_ONE]) == sorted(rule.when for rule in RULES)


def test_a_full_node_is_told_of_and_makes_no_suspect(tmp_path: Path) -> None:
    """It was called an engine's crash, for which innocent rows were searched."""
    with closing(Scene(tmp_path, 1)) as scene:
        told, shard = ray_has_no_room(tries=0)(scene), scene.shard
    assert "OutOfDiskError on its node); free disk on that node, or start Ray there with" in told
    assert (shard.crashes, shard.remaining) == (0, 1)


def test_a_job_that_fails_for_its_requests_says_which_and_where(tmp_path: Path) -> None:
    """A user whose nodes do not share the output folder read the error's class alone."""
    with closing(Scene(tmp_path, MANY)) as scene:
        ended = scene.ended(then=lambda _: scene.spool.unlink())
    assert f"{scene.spool}: the job's requests are not there on " in ended.note


def test_what_rules_ask_for_is_found_out() -> None:
    """The end of an attempt sets each fact, or the driver does, and each sign is that of an error."""
    found = {
        keyword.arg
        for module in (ending, losses)
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Facts", "replace")
        for keyword in node.keywords
    }
    assert {field.name for field in fields(Facts)} - found == set()
    assert set(Sign) == {*OURS.values(), *FOREIGN.values()}
