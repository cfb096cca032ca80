"""What ends the start of an EC2 cluster: each ends in one error that says what to do, and leaves nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dray.cluster import ray_nodes
from dray.cluster.providers import Access
from dray.errors import ClusterError, ConfigError, DrayError
from tests.support.ec2_faults import Faults, provider, refusal, short
from tests.support.moto_ec2 import MotoEc2

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

NONE_LEFT = "InsufficientInstanceCapacity"
NO_QUOTA = "VcpuLimitExceeded"


def of_workers(answer: dict[str, Any]) -> Callable[[str], dict[str, Any] | None]:
    """The head comes, and each fleet after it gets this answer."""
    fleets: list[str] = []

    def judge(operation: str) -> dict[str, Any] | None:
        if operation == "CreateFleet":
            fleets.append(operation)
        return answer if operation == "CreateFleet" and len(fleets) > 1 else None

    return judge


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize(
    ("operation", "answer", "error", "match"),
    [
        (
            "CreateFleet",
            refusal("UnauthorizedOperation"),
            ConfigError,
            "may not ec2:CreateFleet.*policy.json",
        ),
        ("CreateFleet", short("UnauthorizedOperation"), ConfigError, "may not ec2:CreateFleet"),
        ("CreateFleet", short(NONE_LEFT), ClusterError, "no head can be had.*no capacity"),
        ("CreateFleet", short(NO_QUOTA), ClusterError, "no head.*quota is used up.*Service Quotas"),
        ("CreateLaunchTemplate", refusal("InvalidAMIID.NotFound", "ami-1"), ConfigError, "ami-1"),
        ("PutParameter", refusal("AccessDeniedException"), ConfigError, "may not ssm:PutParameter"),
        (
            "DescribeInstances",
            refusal("RequestExpired"),
            ConfigError,
            "have expired, or .*clock.*aws sso login",
        ),
        ("DescribeInstances", refusal("ExpiredToken"), ConfigError, "have expired .*aws sso login"),
        ("DescribeInstances", refusal("AuthFailure"), ConfigError, "credentials are not valid"),
    ],
)
def test_a_refused_call_says_why_and_leaves_nothing(
    moto: MotoEc2, operation: str, answer: dict[str, Any], error: type[DrayError], match: str
) -> None:
    with pytest.raises(error, match=match):
        provider(moto.settings(), Faults().answer(operation, answer)).start()


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        (short(NONE_LEFT), r"0 of at least 1 workers can be had: .*spot: AWS has no capacity.*on-demand"),
        (short(NO_QUOTA), r"0 of at least 1 workers can be had: .*quota is used up: ask .* Service Quotas"),
    ],
)
def test_no_worker_anywhere_names_the_shortages_and_releases_the_head(
    moto: MotoEc2, answer: dict[str, Any], match: str
) -> None:
    faults = Faults()
    faults.judge = of_workers(answer)
    began = time.monotonic()
    with pytest.raises(ClusterError, match=match):
        provider(moto.settings(workers=2), faults).start()
    assert time.monotonic() - began < 30


def test_a_token_that_expires_in_the_midst_is_said_with_what_is_left(moto: MotoEc2) -> None:
    """The head is there, and cannot be released with a token that is no good any more."""
    faults = Faults()
    fleets = of_workers(refusal("ExpiredToken"))
    expired: list[dict[str, Any]] = []

    def judge(operation: str) -> dict[str, Any] | None:
        if not expired and (answer := fleets(operation)):
            expired.append(answer)
        return expired[0] if expired else None

    faults.judge = judge
    one = provider(moto.settings(), faults)
    said = "credentials have expired .*test is not released: .* end by themselves .*dray cluster sweep"
    with pytest.raises(ConfigError, match=said):
        one.start()
    assert len(moto.live()) == 1
    expired.clear()
    faults.judge = lambda operation: None  # renewed
    assert len(one.release()) == 4  # the head, both templates and the token


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


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"instance_types": ("g9z.large",)}, r"'g9z.large' is not in dray's catalogue.*g6\.xlarge"),
        ({"head_type": "m7i.huge"}, r"head_type: AWS offers none of m7i\.huge in us-east-1a"),
        (
            {"subnets": ("subnet-0123456789abcdef0",)},
            "subnet-0123456789abcdef0.*; name subnets of us-east-1, or another region",
        ),
    ],
)
def test_an_unknown_type_or_subnet_is_refused_before_anything_is_made(
    moto: MotoEc2, changes: dict[str, Any], match: str
) -> None:
    faults = Faults()
    with pytest.raises(ConfigError, match=match):
        provider(moto.settings(**changes), faults).start()
    assert not {action for action in faults.actions if ":Create" in action or ":Put" in action}


def test_a_subnet_outside_the_zones_of_the_types_is_noted_or_refused(moto: MotoEc2) -> None:
    zones = {
        zone: subnet for subnet, zone in provider(moto.settings())._api.zones_of(moto.network.subnets).items()
    }
    without = zones["us-east-1f"]  # it has no g6e, by moto's table of offerings
    one = provider(moto.settings(instance_types=("g6e.xlarge",), subnets=(without, zones["us-east-1a"])))
    [offers] = [planned.body for planned in one.plan() if planned.kind == "offers"]
    assert f"no worker comes from {without}: AWS offers none of the types in us-east-1f" in offers["notes"]
    assert {pool["zone"] for pool in offers["pools"]} == {"us-east-1a"}
    with pytest.raises(ConfigError, match=rf"none of g6e\.xlarge in us-east-1f \({without}\); name other"):
        provider(moto.settings(instance_types=("g6e.xlarge",), subnets=(without,))).start()


def test_types_that_no_zone_of_the_subnets_has_are_refused(moto: MotoEc2) -> None:
    head = {"InstanceType": "m7i.xlarge", "Location": "us-east-1a"}
    faults = Faults().answer("DescribeInstanceTypeOfferings", {"InstanceTypeOfferings": [head]})
    with pytest.raises(ConfigError, match=r"instance_types: AWS offers none of g5\.xlarge, .* in us-east-1a"):
        provider(moto.settings(), faults).start()


def test_subnets_of_two_networks_are_refused(moto: MotoEc2) -> None:
    vpc = moto.ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    there = {"CidrBlock": "10.9.0.0/24", "AvailabilityZone": "us-east-1a"}
    subnet = moto.ec2.create_subnet(VpcId=vpc, **there)["Subnet"]["SubnetId"]
    with pytest.raises(ConfigError, match=f"subnets must be of one VPC.*{subnet} in {vpc}"):
        provider(moto.settings(subnets=(*moto.network.subnets, subnet))).start()


@pytest.mark.heavy(one_of=3)
def test_a_cluster_that_never_reaches_its_minimum(moto: MotoEc2, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its machines run, and none of them joins Ray."""
    access = Access(address="a", minimum=2, patience=0.0)
    one = provider(moto.settings())
    one.start()
    monkeypatch.setattr(ray_nodes, "live_nodes", lambda: ((), "dray_stable"))
    with pytest.raises(ClusterError, match=r"0 of at least 2 workers joined Ray in 0 s .*: i-\w+\)"):
        ray_nodes.await_workers(one, access, lambda: None)
    one.release()
