"""A cluster's life against moto's EC2: created, grown, kept, released and swept, and what goes wrong."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dray.cluster import ClusterSettings
from dray.cluster.cluster_file import read_cluster_file
from dray.cluster.connect import RayCluster, provider_of
from dray.cluster.providers import Market, Phase
from dray.cluster.providers.ec2.answers import state_reason
from dray.cluster.providers.ec2.releasing import sweep
from dray.cluster.providers.standing import StandingProvider
from dray.cluster.ray_nodes import unjoined
from dray.errors import CancelledError, ClusterError, ConfigError
from tests.support.ec2_faults import Faults, provider, refusal, short
from tests.support.moto_ec2 import MotoEc2

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[4]


def test_the_life_of_a_cluster_and_the_permissions_that_it_takes(moto: MotoEc2) -> None:
    faults = Faults()
    one = provider(moto.settings(workers=2), faults)
    one.start()
    head, *workers = one.nodes()
    assert (head.head, head.market, head.kind) == (True, Market.ON_DEMAND, "m7i.xlarge")
    assert [(worker.market, worker.phase) for worker in workers] == [(Market.SPOT, Phase.UP)] * 2
    assert all(worker.address and worker.zone and worker.hourly for worker in workers)
    for instance in moto.live():
        tags = {tag["Key"]: tag["Value"] for tag in instance["Tags"]}
        assert tags["dray-cluster"] == "test"
        assert time.time() + 1700 < int(tags["dray-expires"]) <= time.time() + 1800
    one.start()  # again: nothing is made twice
    assert len(moto.live()) == 3
    assert len(one.desire(4).machines) == 4
    assert len(one.desire(1).machines) == 1
    assert len(moto.live()) == 2
    one.keep()  # not due yet
    one._kept -= 601
    one.keep()
    assert one.sweep() == ()
    assert "test" in one.where
    released = one.release()
    assert {head.name, "/dray/test/token"} <= set(released)
    assert one.release() == ()
    with pytest.raises(ClusterError, match="being released"):
        one.desire(1)
    policy = json.loads((ROOT / "deployments/aws/policy.json").read_text())
    allowed = {action for part in policy["Statement"] for action in part["Action"]}
    assert faults.actions <= allowed


def test_what_is_planned_is_what_is_asked_for(moto: MotoEc2) -> None:
    one = provider(moto.settings(workers=3))
    objects = one.plan()
    assert moto.left() == []
    kinds = ["parameter", "launch template", "fleet", "offers", "launch template", "fleet"]
    assert [planned.kind for planned in objects] == kinds
    fleet = objects[-1].body
    assert fleet["Type"] == "instant"
    assert fleet["SpotOptions"]["AllocationStrategy"] == "price-capacity-optimized"
    assert fleet["TargetCapacitySpecification"]["TotalTargetCapacity"] == 3
    script = objects[1].body["LaunchTemplateData"]["UserData"]
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    assert "@" not in script.replace("$@", "")
    notes = objects[3].body["notes"]
    assert any("placement scores are unknown" in note for note in notes)  # moto has none
    json.dumps([dict(planned.body) for planned in objects])


def test_shortages_lead_to_the_next_offer_and_to_machines_on_demand(moto: MotoEc2) -> None:
    faults = Faults()
    one = provider(moto.settings(workers=2), faults)
    one._put_token()
    one._buy_head()
    faults.answer("CreateFleet", short("MaxSpotInstanceCountExceeded"))  # all three types are of one quota
    grant = one.desire(2)
    assert [machine.market for machine in grant.machines] == [Market.ON_DEMAND] * 2
    assert grant.reasons == ()
    one.release()


def test_a_job_counts_on_workers_that_are_not_to_be_had_yet(moto: MotoEc2) -> None:
    """The driver goes on to ask for them. Nothing does that for a cluster that `dray cluster up` made."""
    one = provider(moto.settings(workers=3), of_job=True)
    one.start()
    one.drain([one.nodes()[-1].name])  # two of three are left
    assert unjoined(one, ()) == (1, 1, 1)
    made = provider(moto.settings(workers=3))
    assert unjoined(StandingProvider(made), ()) == (1, 1)
    one.release()


def test_a_busy_ec2_is_asked_again_and_keeps_no_machine_that_came(
    moto: MotoEc2, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CreateFleet says so in an answer of its own, with what went wrong with one of the types."""
    monkeypatch.setattr("dray.cluster.providers.ec2.provider._BUSY_SECONDS", 0.1)
    faults = Faults()
    one = provider(moto.settings(workers=1), faults)
    one._put_token()
    one._buy_head()
    busy = short("RequestLimitExceeded", "g6.xlarge", "subnet-1")
    faults.answer("CreateFleet", busy, busy)
    assert len(one.desire(1).machines) == 1
    group = {"InstanceIds": ["i-0aaaaaaaaaaaaaaaa"], "InstanceType": "g6.xlarge"}
    faults.answer("CreateFleet", {**busy, "Instances": [group]}, {**short("SomethingNew"), "Instances": []})
    with pytest.raises(ConfigError, match="SomethingNew"):
        one.desire(3)
    assert "i-0aaaaaaaaaaaaaaaa" in one._ids  # it is released with the others
    one._ids.pop("i-0aaaaaaaaaaaaaaaa")
    one.release()


@pytest.mark.heavy
def test_with_time_to_the_deadline_machines_wait_for_spot(moto: MotoEc2) -> None:
    faults = Faults()
    one = provider(moto.settings(workers=2), faults)
    one._put_token()
    one._buy_head()
    for on_demand, markets in ((0, []), (1, [Market.ON_DEMAND])):
        faults.answer("CreateFleet", short("MaxSpotInstanceCountExceeded"))
        grant = one.desire(2, on_demand)
        assert [machine.market for machine in grant.machines] == markets
        assert f"{2 - on_demand} wait for spot: no more may be on demand yet" in grant.reasons
    assert {machine.market for machine in one.desire(2, 1).machines} == {Market.ON_DEMAND, Market.SPOT}
    one.release()


def test_a_head_that_does_not_come_says_so_in_time_and_what_its_console_says(moto: MotoEc2) -> None:
    settings = moto.settings(start_seconds=1)
    said = "x\n[1.0] dray: the image has Ray and Python 2.59.0 and 3.11, and the driver 2.60.0 and 3.12"
    faults = Faults()
    one = provider(settings, faults)
    one.start()
    began = time.monotonic()
    with pytest.raises(ClusterError, match=r"took no connection from here in 1 s.*run the job on the head"):
        one.access()
    faults.judge = lambda operation: {"Output": said} if operation == "GetConsoleOutput" else None
    with pytest.raises(ClusterError, match=r"head i-\w+ cannot start: the image has Ray and Python 2\.59\.0"):
        one.access()
    assert time.monotonic() - began < 10
    one.release()


@pytest.mark.heavy
def test_a_job_that_joins_what_up_made_puts_off_its_end_and_changes_nothing(
    moto: MotoEc2, tmp_path: Path
) -> None:
    """Without this, the machines shut down under the job when their lifetime is over."""
    file = tmp_path / "cluster.toml"
    lines = [f"{key} = {json.dumps(one)}" for key, one in moto.values().items()]
    file.write_text("\n".join(['kind = "ec2"', *lines]))
    joined = provider_of(read_cluster_file(f"up:{file}"))
    with pytest.raises(ConfigError, match="has no head; start it with `dray cluster up`"):
        joined.start()
    made = provider(moto.settings(workers=3))
    made.start()
    ids = [one["InstanceId"] for one in moto.live()]
    moto.ec2.create_tags(Resources=ids, Tags=[{"Key": "dray-expires", "Value": "1"}])
    joined.start()
    assert all((one.expires or 0) > time.time() + 60 for one in made.nodes())
    assert joined.desire(5).short == 2
    joined.drain(ids)
    joined.leave()
    joined.release()
    assert [one["InstanceId"] for one in moto.live()] == ids
    made.release()


RUN = ["run", "in.jsonl", "--model", "m"]


def test_a_submit_waits_for_a_head_that_boots_and_for_the_end_of_its_command(
    moto: MotoEc2, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent registers a minute after boot; its command begins later than the call that sends it."""
    monkeypatch.setattr("dray.cluster.providers.ec2.commands._LOOK_SECONDS", 0.01)
    faults = Faults()
    one = provider(moto.settings(workers=0, minimum=0), faults)
    one.start()
    faults.answer("SendCommand", *[refusal("InvalidInstanceId")] * 2)
    faults.answer("GetCommandInvocation", refusal("InvocationDoesNotExist"), {"Status": "InProgress"})
    assert one.submit(RUN).startswith("dray-")
    assert faults.answers["SendCommand"] == faults.answers["GetCommandInvocation"] == []
    policy = json.loads((ROOT / "deployments/aws/policy.json").read_text())
    assert faults.actions <= {action for part in policy["Statement"] for action in part["Action"]}
    one.release()


@pytest.mark.heavy
def test_a_submit_that_the_head_does_not_take_says_why(
    moto: MotoEc2, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dray.cluster.providers.ec2.commands._LOOK_SECONDS", 0.01)
    monkeypatch.setattr("dray.cluster.providers.ec2.commands._END_SECONDS", 0.0)
    faults = Faults()
    one = provider(moto.settings(workers=0, minimum=0, start_seconds=1), faults)
    one.start()
    failed = {"Status": "Failed", "StatusDetails": "Failed", "StandardErrorContent": "e\nno Ray\n"}
    faults.answer("GetCommandInvocation", {**failed, "StandardOutputContent": "a\nb\nc\nd\n"})
    said = r"job dray-\w+ was not submitted to its head i-\w+: .*\(Failed\); it said: b / c / d / e / no Ray$"
    with pytest.raises(ClusterError, match=said):
        one.submit(RUN)
    faults.judge = lambda operation: {"Status": "Delayed"} if operation == "GetCommandInvocation" else None
    with pytest.raises(ClusterError, match=r"\(Delayed\); it said: nothing"):
        one.submit(RUN)
    faults.judge = lambda operation: refusal("InvalidInstanceId") if operation == "SendCommand" else None
    with pytest.raises(ClusterError, match=r"did not register in 1 s; the image needs the agent"):
        one.submit(RUN)
    faults.answer("SendCommand", refusal("AccessDeniedException"))
    with pytest.raises(ConfigError, match="may not ssm:SendCommand"):
        one.submit(RUN)
    one.release()


@pytest.mark.heavy
def test_a_cancel_while_it_starts_releases_all(moto: MotoEc2) -> None:
    """As a job does it: the cluster is joined in the background, and left by the flow."""
    cluster = RayCluster(ClusterSettings(provider=moto.settings(name="job", workers=2)))
    cluster.start()

    def cancelled() -> None:
        if len(moto.live()) == 3:
            raise CancelledError("the job was cancelled")

    with pytest.raises(CancelledError):
        cluster.wait(cancelled)
    cluster.leave()
    cluster.release()


def test_a_cancel_before_anything_is_bought_buys_nothing(moto: MotoEc2) -> None:
    """A start asks for prices and offers first."""
    faults = Faults()
    one = provider(moto.settings(), faults, of_job=True)

    def cancel(operation: str) -> None:
        if operation == "DescribeSpotPriceHistory":
            one.leave()

    faults.judge = cancel
    with pytest.raises(ClusterError, match="being released"):
        one.start()
    assert {"ec2:DescribeSpotPriceHistory"} <= faults.actions
    assert not {"ec2:CreateFleet", "ssm:PutParameter"} & faults.actions


@pytest.mark.heavy
def test_a_release_that_fails_is_said_and_the_sweep_ends_what_it_left(moto: MotoEc2) -> None:
    faults = Faults()
    one = provider(moto.settings(), faults)
    one.start()
    faults.answer("TerminateInstances", refusal("UnauthorizedOperation"))
    with pytest.raises(ClusterError, match=r"not released: .*may not ec2:TerminateInstances.*expire"):
        one.release()
    _expire(moto)
    swept = {found.kind for found in provider(moto.settings()).sweep()}
    assert swept == {"instance"}  # its templates and its token were deleted
    assert provider(moto.settings()).sweep() == ()


def test_a_token_that_another_job_deletes_meanwhile_stops_no_release_and_no_sweep(moto: MotoEc2) -> None:
    """It is listed, and gone when its tags are asked for."""
    faults = Faults()
    one, other = provider(moto.settings(), faults), provider(moto.settings(name="other"))
    one._put_token()
    other._put_token()
    gone = refusal("InvalidResourceId")
    faults.answer("ListTagsForResource", gone, refusal("ParameterNotFound"))
    assert one.sweep() == ()
    faults.answer("ListTagsForResource", gone)
    [swept] = sweep(one._api, time.time() + 2000)
    assert swept.kind == "parameter"
    faults.actions.clear()
    one.release()
    assert "ssm:DescribeParameters" not in faults.actions
    assert "ssm:ListTagsForResource" not in faults.actions
    other.release()
    faults.answer("ListTagsForResource", refusal("AccessDeniedException"))
    other._ending.clear()
    other._put_token()
    with pytest.raises(ConfigError, match="may not ssm:ListTagsForResource"):
        one.sweep()
    other.release()


def _expire(moto: MotoEc2) -> None:
    ids = [one["InstanceId"] for one in moto.live()]
    if ids:
        moto.ec2.create_tags(
            Resources=ids, Tags=[{"Key": "dray-expires", "Value": str(int(time.time()) - 1)}]
        )


@pytest.mark.heavy
def test_what_a_killed_driver_left_is_swept_once_it_has_expired(moto: MotoEc2) -> None:
    """SIGKILL in the midst of it: by tags and the clock alone, from a process that knows nothing of it."""
    code = (
        "import sys; from tests.support.moto_ec2 import settings_of; from time import sleep\n"
        "one = settings_of(sys.argv[1]).open('killed'); one.start(); print('started', flush=True); sleep(60)"
    )
    arguments = json.dumps({**moto.values(), "lifetime": 300, "workers": 2})
    process = subprocess.Popen(
        [sys.executable, "-c", code, arguments], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(moto.live()) == 3
    one = provider(moto.settings())
    assert one.sweep() == ()
    swept = sweep(one._api, time.time() + 301)
    assert {found.cluster for found in swept} == {"test-killed"}
    assert sorted(found.kind for found in swept) == [
        *["instance"] * 3, "launch template", "launch template", "parameter",
    ]  # fmt: skip


@pytest.mark.heavy
def test_workers_whose_head_is_gone_are_replaced_with_it(moto: MotoEc2) -> None:
    one = provider(moto.settings(workers=2))
    one.start()
    head, *lost = one.nodes()
    moto.ec2.terminate_instances(InstanceIds=[head.name])
    provider(moto.settings(workers=2)).start()  # as `up` again does it
    there = {found["InstanceId"] for found in moto.live()}
    assert len(there) == 3
    assert not there & {head.name, *(worker.name for worker in lost)}
    one.release()


@pytest.mark.heavy
def test_what_ec2_lists_late_is_waited_for_and_released(moto: MotoEc2) -> None:
    """Of the real EC2: for seconds it may not know what it has just made."""
    faults = Faults()
    one = provider(moto.settings(workers=2), faults)
    faults.answer("CreateFleet", refusal("InvalidLaunchTemplateId.NotFound"))
    nothing: dict[str, Any] = {"Reservations": []}
    faults.answer("DescribeInstances", *[nothing] * 3)  # a head? workers of one that is gone? the new head?
    one.start()
    assert len(moto.live()) == 3
    faults.answer("DescribeInstances", nothing)
    assert len(one.desire(2).machines) == 2  # bought a moment ago: not bought again
    assert len(moto.live()) == 3
    faults.answer("DescribeInstances", nothing, nothing)
    faults.answer("TerminateInstances", *[refusal("InvalidInstanceID.NotFound")] * 4)
    assert len(one.release()) == 6


def test_a_machine_that_ec2_ended_is_known_with_what_ec2_says(moto: MotoEc2) -> None:
    """A full quota of volumes, or a key that EC2 may not use, shows after it gave the machine."""
    faults = Faults()
    one = provider(moto.settings(workers=2), faults)
    one.start()
    assert one.ended() == {}
    gone = one.nodes()[1].name
    moto.ec2.terminate_instances(InstanceIds=[gone])
    [(name, why)] = one.ended().items()
    assert name == gone
    assert why.startswith("Client.UserInitiatedShutdown: User initiated")
    assert gone not in {machine.name for machine in one.nodes()}
    one.release()
    said = {
        "Code": "Client.VolumeLimitExceeded",
        "Message": "Client.VolumeLimitExceeded: Volume limit exceeded",
    }
    assert state_reason({"StateReason": said}) == said["Message"]
    assert state_reason({"StateReason": {"Code": "Server.X", "Message": "a fault"}}) == "Server.X: a fault"
    assert state_reason({}) == ""


def test_a_machine_that_is_gone_already_does_not_keep_the_others_from_their_release(moto: MotoEc2) -> None:
    """The policy allows an end by a tag: of what is gone AWS finds no tags, and refuses the whole call."""
    faults = Faults()
    one = provider(moto.settings(workers=2), faults)
    one.start()
    head, gone, left = [machine.name for machine in one.nodes()]
    moto.ec2.terminate_instances(InstanceIds=[gone])  # taken back
    faults.answer("TerminateInstances", refusal("UnauthorizedOperation"))
    assert {head, left} <= set(one.release())
    assert moto.live() == []


def _unknown(faults: Faults, calls: int) -> None:
    """EC2 neither lists nor knows what it made, until it was asked so often to terminate it."""
    asked = 0

    def judge(operation: str) -> dict[str, Any] | None:
        nonlocal asked
        asked += operation == "TerminateInstances"
        if asked > calls:
            return None
        refused = refusal("InvalidInstanceID.NotFound")
        return {"DescribeInstances": {"Reservations": []}, "TerminateInstances": refused}.get(operation)

    faults.judge = judge


@pytest.mark.heavy
def test_a_release_asks_for_a_minute_for_what_ec2_does_not_know_yet(
    moto: MotoEc2, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dray.cluster.providers.ec2.releasing._PAUSE", 0.01)
    faults = Faults()
    one = provider(moto.settings(), faults)
    one.start()
    bought = {machine.name for machine in one.nodes()}
    _unknown(faults, 12 * (len(bought) + 1))  # a call for all, and then for each one: more than five looks
    assert bought <= set(one.release())


@pytest.mark.heavy
def test_what_ec2_does_not_know_after_a_minute_is_named(
    moto: MotoEc2, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dray.cluster.providers.ec2.releasing._PAUSE", 0.01)
    monkeypatch.setattr("dray.cluster.providers.ec2.provider._LISTED_SECONDS", 5.0)
    faults = Faults()
    one = provider(moto.settings(), faults)
    one.start()
    bought = sorted(machine.name for machine in one.nodes())
    _unknown(faults, 10**6)
    with pytest.raises(ClusterError, match=f"instances {', '.join(bought)} are still there, or EC2"):
        one.release()
    faults.judge = lambda operation: None
    assert set(bought) <= set(one.release())  # it is still known what was bought
