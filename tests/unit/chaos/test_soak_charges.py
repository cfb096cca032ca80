"""The soak's own check of charges (I6): a loss that was charged twice, or not at all, is seen."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dray.store import Charge, own_event
from tests.chaos.soak_charges import check_charges
from tests.chaos.soak_plan import Fault, Held, Kind
from tests.chaos.soak_totals import Totals

pytestmark = pytest.mark.unit

SECOND = 10**9
BEGAN = 1000 * SECOND
HELD = (Held(number=0, epoch=1, indexes=frozenset({0})),)
KILLED = Fault(kind=Kind.REPLICA, at=BEGAN + 3 * SECOND, replica="a", node="n", held=HELD)
NODE = Fault(kind=Kind.NODE, at=BEGAN + 3 * SECOND, node="n", replicas=("old", "a"), went=("a",), held=HELD)
STALLED = Fault(kind=Kind.STALLED, at=BEGAN)
DRIVER = Fault(kind=Kind.DRIVER, at=BEGAN + 10 * SECOND)
OF_A = [Charge(budget="infra", event="replica a", cause="NODE_LOSS")]
OF_NODE = [Charge(budget="infra", event="node n", cause="NODE_LOSS")]
OF_TASKS = [Charge(budget="infra", event=own_event(shard, 1), cause="NODE_LOSS") for shard in (0, 1)]


def run_of(folder: Path, faults: Sequence[Fault], charges: Sequence[Charge], *, seconds: float = 24.0) -> Any:
    """A run whose shards 0 and 1 were on the replica ``a``, ``seconds`` long."""
    line = {"event": "ack", "job": "job", "shard": 0, "epoch": 1, "indexes": [0], "pid": 1}
    (folder / "1.history").write_text(json.dumps({**line, "at": BEGAN + int(seconds * SECOND)}) + "\n")
    attempts = [SimpleNamespace(shard=shard, epoch=1, replica="a", cause="NODE_LOSS") for shard in (0, 1)]
    store = SimpleNamespace(
        charges=lambda job: list(charges), attempts=lambda job: attempts, replicas=lambda job: []
    )
    return SimpleNamespace(
        faults=list(faults), given_up={}, job="job", rows=10, history=folder, opened=lambda: store,
        plan=SimpleNamespace(memory=False, poison=()),
        cloud=SimpleNamespace(raylets=SimpleNamespace(dead=dict)),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("faults", "charges"),
    [
        ([KILLED], [*OF_A, OF_TASKS[0]]),  # the driver, and a shard task that was not replaced
        ([KILLED, STALLED], [*OF_A, OF_TASKS[0]]),
        ([KILLED], OF_TASKS),  # no driver stood still
        ([NODE], [*OF_NODE, *OF_A]),
        ([NODE], [*OF_NODE, OF_TASKS[0]]),
    ],
)
def test_a_loss_that_was_charged_twice_is_seen(
    faults: list[Fault], charges: list[Charge], tmp_path: Path
) -> None:
    with pytest.raises(AssertionError, match="I6: charged more than once for one loss: "):
        check_charges(run_of(tmp_path, faults, charges))


@pytest.mark.parametrize(
    ("faults", "charges"),
    [
        ([KILLED], OF_A),
        ([KILLED], [*OF_A, Charge(budget="node", event="replica a", cause="NODE_LOSS", scope="n")]),
        ([KILLED, STALLED], OF_TASKS),  # that driver lost its job, and judged nothing
        ([KILLED, NODE], [*OF_A, *OF_NODE]),  # the node went later, with another replica
        ([NODE], [*OF_NODE, Charge(budget="infra", event="replica old", cause="NODE_LOSS")]),
    ],
)
def test_losses_that_were_charged_once_pass(
    faults: list[Fault], charges: list[Charge], tmp_path: Path
) -> None:
    check_charges(run_of(tmp_path, faults, charges))


@pytest.mark.parametrize("fault", [KILLED, NODE], ids=["replica", "node"])
def test_a_loss_that_was_not_charged_is_seen_and_others_are_counted(fault: Fault, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="I6: no budget has a charge for "):
        check_charges(run_of(tmp_path, [fault], []))
    found = check_charges(run_of(tmp_path, [fault], OF_A))
    assert found.held == {fault.kind: 1}
    totals = Totals()
    assert "a loss that had to be charged" in totals.unseen()
    totals.held += found.held
    assert "a loss that had to be charged" not in totals.unseen()
    assert ("losses that had to be charged, and were", f"{fault.kind} 1") in totals.tables()[0].rows


@pytest.mark.parametrize(("faults", "seconds"), [([KILLED], 22.0), ([KILLED, DRIVER], 60.0)])
def test_a_loss_near_the_end_of_the_run_or_of_its_driver_is_not_held(
    faults: list[Fault], seconds: float, tmp_path: Path
) -> None:
    assert not check_charges(run_of(tmp_path, faults, [], seconds=seconds)).held
