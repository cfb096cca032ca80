"""A cluster's life against moto's EC2: created, grown, kept, released and swept, and what goes wrong."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders

from dray.cli.app import run_app
from dray.cluster import ClusterSettings, ray_nodes
from dray.cluster.connect import RayCluster
from dray.cluster.providers import Access, Market, Phase
from dray.cluster.providers.ec2 import EC2Cluster
from dray.cluster.providers.ec2.api import Ec2Api
from dray.cluster.providers.ec2.provider import EC2Provider
from dray.cluster.providers.ec2.releasing import sweep
from dray.errors import CancelledError, ClusterError, ConfigError, DrayError
from tests.support.moto_ec2 import MotoEc2

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def moto() -> Iterator[MotoEc2]:
    server = MotoEc2()
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def _nothing_is_left(moto: MotoEc2) -> Iterator[None]:
    yield
    assert moto.left() == []


class Faults:
    """An API whose calls fail as AWS's do, after botocore has judged each request by its service model."""

    def __init__(self) -> None:
        self.actions: set[str] = set()
        self.answers: dict[str, list[dict[str, Any]]] = {}
        self.judge: Callable[[str], dict[str, Any] | None] = lambda operation: None

    def answer(self, operation: str, *answers: dict[str, Any]) -> Faults:
        """The next answers to an operation, in place of moto's."""
        self.answers[operation] = list(answers)
        return self

    def api(self, settings: EC2Cluster) -> Ec2Api:
        api = Ec2Api.of(settings)
        for client in (api._ec2, api._ssm):
            client.meta.events.register("before-call", self._before)
        return api

    def _before(self, model: Any, **_: Any) -> tuple[AWSResponse, dict[str, Any]] | None:
        self.actions.add(f"{model.service_model.service_name}:{model.name}")
        waiting = self.answers.get(model.name)
        parsed = waiting.pop(0) if waiting else self.judge(model.name)
        if parsed is None:
            return None
        status = 400 if "Error" in parsed else 200
        return AWSResponse("", status, HTTPHeaders(), None), {
            "ResponseMetadata": {"HTTPStatusCode": status},
            **parsed,
        }


def refusal(code: str, message: str = "no") -> dict[str, Any]:
    return {"Error": {"Code": code, "Message": message}}


def short(code: str, kind: str = "", subnet: str = "") -> dict[str, Any]:
    override = {"InstanceType": kind, "SubnetId": subnet} if kind else {}
    error = {"ErrorCode": code, "ErrorMessage": "no", "LaunchTemplateAndOverrides": {"Overrides": override}}
    return {"Errors": [error], "Instances": []}


def provider(settings: EC2Cluster, faults: Faults | None = None) -> EC2Provider:
    return EC2Provider(settings, (faults or Faults()).api)


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


@pytest.mark.parametrize(
    ("operation", "answers", "error", "match"),
    [
        (
            "CreateFleet",
            [refusal("UnauthorizedOperation")],
            ConfigError,
            "may not ec2:CreateFleet.*policy.json",
        ),
        ("PutParameter", [refusal("AccessDeniedException")], ConfigError, "may not ssm:PutParameter"),
        ("DescribeInstances", [refusal("RequestExpired")], ConfigError, "have expired .*aws sso login"),
        ("DescribeInstances", [refusal("AuthFailure")], ConfigError, "credentials are not valid"),
        (
            "DescribeSubnets",
            [refusal("InvalidSubnetID.NotFound", "subnet-1 is not there")],
            ConfigError,
            "subnet-1",
        ),
        (
            "DescribeInstanceTypeOfferings",
            [{"InstanceTypeOfferings": []}],
            ConfigError,
            "is offered in us-east-1a",
        ),
        ("CreateFleet", [short("UnauthorizedOperation")], ConfigError, "may not ec2:CreateFleet"),
        (
            "CreateFleet",
            [short("InsufficientInstanceCapacity")],
            ClusterError,
            "no head can be had.*no capacity",
        ),
        (
            "CreateFleet",
            [short("VcpuLimitExceeded")],
            ClusterError,
            "no head.*quota is used up.*Service Quotas",
        ),
        ("CreateLaunchTemplate", [refusal("InvalidAMIID.NotFound", "ami-1")], ConfigError, "ami-1"),
    ],
)
def test_a_start_that_fails_says_why_and_leaves_nothing(
    moto: MotoEc2, operation: str, answers: list[dict[str, Any]], error: type[DrayError], match: str
) -> None:
    began = time.monotonic()
    with pytest.raises(error, match=match):
        provider(moto.settings(), Faults().answer(operation, *answers)).start()
    assert time.monotonic() - began < 10


def test_no_capacity_anywhere_names_the_shortages_and_releases_the_head(moto: MotoEc2) -> None:
    faults = Faults()
    one = provider(moto.settings(workers=2, spot=False), faults)
    made: list[str] = []

    def judge(operation: str) -> dict[str, Any] | None:
        if operation == "CreateFleet":
            made.append(operation)
            if len(made) > 1:  # the first one is the head's
                return short("InsufficientInstanceCapacity")
        return None

    faults.judge = judge
    with pytest.raises(ClusterError, match=r"0 of at least 1 workers can be had: .*AWS has no capacity"):
        one.start()
    assert len(made) > 2


def test_no_credentials(moto: MotoEc2, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    settings = moto.settings(access_key_id=None, secret_access_key=None)
    with pytest.raises(ConfigError, match="no credentials were found"):
        provider(settings).start()


def test_an_unreachable_api(moto: MotoEc2) -> None:
    with pytest.raises(ClusterError, match="out of reach"):
        provider(moto.settings(endpoint="http://127.0.0.1:9")).nodes()


def test_an_unknown_type_is_refused_before_anything_is_made(moto: MotoEc2) -> None:
    with pytest.raises(ConfigError, match=r"'g9z.large' is not in dray's catalogue.*g6\.xlarge"):
        provider(moto.settings(instance_types=("g9z.large",))).start()


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


def _expire(moto: MotoEc2) -> None:
    ids = [one["InstanceId"] for one in moto.live()]
    if ids:
        moto.ec2.create_tags(
            Resources=ids, Tags=[{"Key": "dray-expires", "Value": str(int(time.time()) - 1)}]
        )


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


def test_release_whatever_happens(moto: MotoEc2, request: pytest.FixtureRequest) -> None:
    """Random lives: errors of any call, growth and shrinking, drivers that just stop. Nothing is left."""
    rounds = 50 if request.config.option.chaos_rounds >= 10 else 6
    for round_ in range(rounds):
        random = Random(request.config.option.seed * 1000 + round_)
        faults = Faults()
        faults.judge = _trouble(random)
        one = provider(moto.settings(name=f"r{round_}", workers=random.randint(0, 4), minimum=0), faults)
        killed = random.random() < 0.3
        try:
            one.start()
            for _ in range(random.randint(0, 3)):
                one.desire(random.randint(0, 5))
            if random.random() < 0.2:
                raise CancelledError("cancelled")
        except (DrayError, CancelledError):
            pass
        if not killed:
            faults.judge = lambda operation: None  # AWS is back
            one.release()
        else:
            _expire(moto)
            sweep(Ec2Api.of(moto.settings()), time.time() + 4000)
        assert moto.left() == [], f"round {round_}, seed {request.config.option.seed}"


def _trouble(random: Random) -> Callable[[str], dict[str, Any] | None]:
    rate = random.choice((0.0, 0.1, 0.3))

    def judge(operation: str) -> dict[str, Any] | None:
        if random.random() >= rate:
            return None
        if operation == "CreateFleet":
            return random.choice(
                [
                    short("InsufficientInstanceCapacity"),
                    short("VcpuLimitExceeded"),
                    refusal("UnauthorizedOperation"),
                ]
            )
        return refusal(random.choice(["UnauthorizedOperation", "RequestExpired", "InvalidParameterValue"]))

    return judge


def test_the_commands(
    moto: MotoEc2, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cluster.toml"
    lines = [f"{key} = {json.dumps(value)}" for key, value in moto.values().items()]
    file.write_text("\n".join(['kind = "ec2"', *lines, "workers = 2"]))

    def told(*command: str) -> Any:
        assert run_app(["cluster", *command, str(file), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    assert run_app(["cluster", "plan", str(file)]) == 0
    text = capsys.readouterr().out
    assert "dollars_per_million_tokens" in text
    assert "#!/bin/bash" in text
    assert [one["kind"] for one in told("plan")["objects"]][-1] == "fleet"
    assert len(told("up")["machines"]) == 3
    assert len(told("up", "--workers", "1")["machines"]) == 2
    assert run_app(["cluster", "status", str(file)]) == 0
    assert "ends in 30 min" in capsys.readouterr().out
    assert told("sweep") == {"expired": []}
    assert len(told("down")["released"]) == 5
    assert told("status") == {"machines": []}
    file.write_text('kind = "ec2"\nregoin = "x"')
    assert run_app(["cluster", "plan", str(file)]) == 2
    assert "no field 'regoin'; the nearest is region" in capsys.readouterr().err


def test_a_cluster_that_never_reaches_its_minimum(moto: MotoEc2) -> None:
    access = Access(address="a", minimum=2, patience=0.0)
    one = provider(moto.settings())
    one.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray_nodes, "live_nodes", lambda: ((), "dray_stable"))
        with pytest.raises(ClusterError, match=r"0 of at least 2 workers joined Ray in 0 s .*: i-\w+\)"):
            ray_nodes.await_workers(one, access, lambda: None)
    one.release()
