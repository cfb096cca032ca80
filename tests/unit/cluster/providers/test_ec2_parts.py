"""Parts of an EC2 cluster that need no API: settings, files, errors, requests, consoles."""

from __future__ import annotations

import base64
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from botocore import exceptions
from botocore.session import Session
from botocore.validate import ParamValidator
from hypothesis import given
from hypothesis import strategies as st

from dray.cluster.cluster_file import KINDS, read_cluster_file
from dray.cluster.head_jobs import driver_command, submit_there
from dray.cluster.providers import Market, ProviderSettings
from dray.cluster.providers.ec2 import EC2Cluster
from dray.cluster.providers.ec2.answers import state_reason
from dray.cluster.providers.ec2.consoles import last_line
from dray.cluster.providers.ec2.errors import raising, translated
from dray.cluster.providers.ec2.offers import Pool
from dray.cluster.providers.ec2.planning import planned
from dray.cluster.providers.ec2.prices import Offers
from dray.cluster.providers.ec2.requests import fleet_request, template_request, user_data
from dray.errors import ClusterError, ConfigError, DrayError
from dray.planner.catalogue import load_catalogue
from tests.support.waiting import until

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[4]


def settings(**changes: Any) -> EC2Cluster:
    values: dict[str, Any] = {
        "region": "us-east-1",
        "subnets": ("subnet-0123456789abcdef0",),
        "security_group": "sg-0123456789abcdef0",
        "instance_profile": "dray-node-us-east-1",
        "image": "ami-0123456789abcdef0",
    }
    return EC2Cluster(**{**values, **changes})


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"name": "Not OK"}, "name 'Not OK' must be"),
        ({"region": "us-east-1'; rm"}, "region has"),
        ({"subnets": ()}, "subnets is empty"),
        ({"subnets": ("subnet",)}, "subnets has 'subnet'"),
        ({"image": "latest"}, "image has 'latest'"),
        ({"workers": -1}, "workers is -1, but must be from 0"),
        ({"workers": 1, "minimum": 2}, "minimum is 2, and only 1 workers"),
        ({"spot": False, "on_demand": False}, "neither spot nor on_demand"),
        ({"lifetime": 10}, "lifetime is 10"),
        ({"lifetime": float("nan")}, "lifetime is nan"),
        ({"access_key_id": "a"}, "go together"),
        ({"python": "python'"}, "python has"),
        ({"instance_types": ("big",)}, "instance_types has 'big'"),
        ({"env_parameters": {"RAY_AUTH_TOKEN": "/dray/x"}}, "env_parameters has 'RAY_AUTH_TOKEN'"),
        ({"env_parameters": {"A B": "/dray/x"}}, "env_parameters has 'A B'"),
        ({"env_parameters": {f"A{one}": "/dray/x" for one in range(25)}}, "more than 24 variables"),
    ],
)
def test_settings_that_cannot_be_name_their_field(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        settings(**changes)


def test_each_region_of_aws_can_be_named() -> None:
    session = Session()
    for partition in session.get_available_partitions():
        for region in session.get_available_regions("ec2", partition):
            assert settings(region=region).region == region


def test_a_job_has_a_cluster_of_its_own_and_secrets_are_not_shown() -> None:
    one = settings(name="x" * 40, access_key_id="a", secret_access_key="canary")
    assert "canary" not in repr(one)
    found: ProviderSettings = one
    names = {found.open("abc123").where, found.open("abc124").where, found.open().where}
    assert len(names) == 3
    assert found.open("abc123").release() == ()  # nothing was made: nobody is asked


def test_the_example_file_is_read() -> None:
    found = read_cluster_file(str(ROOT / "deployments/aws/cluster.toml")).provider
    assert isinstance(found, EC2Cluster)
    assert (found.workers, found.minimum, len(found.subnets)) == (4, 1, 2)
    assert set(KINDS) >= {"ec2"}


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "kind is None, but must be one of 'ec2'"),
        ("kind = 'gcp'", "kind is 'gcp'"),
        ("kind = ", "not valid TOML"),
        ("kind = 'ec2'\nimgae = 'a'", "no field 'imgae'; the nearest is image"),
        ("kind = 'ec2'\nregion = 'us-east-1'", "subnets: "),
        ("kind = 'ec2'\nregion = 1\nsubnets = ['s']", "region: "),
    ],
)
def test_a_file_that_cannot_be_used_names_the_field(text: str, match: str, tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=match):
        read_cluster_file(str(file))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_cluster_file(str(tmp_path / "none.toml"))


def of_code(code: str, message: str = "no") -> exceptions.ClientError:
    return exceptions.ClientError({"Error": {"Code": code, "Message": message}}, "CreateFleet")


@pytest.mark.parametrize(
    ("error", "kind", "match"),
    [
        (
            of_code("UnauthorizedOperation"),
            ConfigError,
            "may not ec2:CreateFleet; deployments/aws",
        ),
        (
            of_code("AccessDenied", "User x is not authorized to perform: iam:PassRole on y"),
            ConfigError,
            "may not iam:PassRole",
        ),
        (of_code("ExpiredToken"), ConfigError, "have expired"),
        (of_code("InvalidClientTokenId"), ConfigError, "not valid"),
        (of_code("RequestLimitExceeded"), ClusterError, "again and again"),
        (of_code("VcpuLimitExceeded"), ClusterError, "quota"),
        (of_code("Whatever", "x" * 999), ConfigError, "refused: Whatever: x{300}$"),
        (exceptions.NoCredentialsError(), ConfigError, "no credentials"),
        (exceptions.EndpointConnectionError(endpoint_url="http://x"), ClusterError, "out of reach"),
        (exceptions.ConnectTimeoutError(endpoint_url="http://x"), ClusterError, "out of reach"),
        (exceptions.NoRegionError(), ConfigError, "region"),
        (exceptions.TokenRetrievalError(provider="sso", error_msg="x"), ConfigError, "have expired"),
    ],
)
def test_errors_of_aws_say_what_to_do(error: Exception, kind: type[DrayError], match: str) -> None:
    with pytest.raises(kind, match=match), raising("ec2:CreateFleet"):
        raise error


_NOT_ALLOWED = "You are not authorized to perform this operation. User: u is not authorized to perform: "


@pytest.mark.parametrize(
    ("code", "message", "match"),
    [
        (
            "RequestExpired",
            "Request has expired.",
            r"expired, or this machine's clock is wrong \(ec2:RunInstances: Request has expired\.\); renew",
        ),
        (
            "InvalidSignatureException",
            "Signature expired: 20261121T080000Z is now earlier than 20261121T081500Z",
            r"this machine's clock is wrong \(ec2:RunInstances: Signature expired: 20261121T080000Z is now ",
        ),
        (
            "SignatureDoesNotMatch",
            "Signature not yet current: 20261121T090000Z is still later than 20261121T081500Z",
            r"this machine's clock is wrong \(.*still later than 20261121T081500Z\)",
        ),
        (
            "AuthFailure",
            "AWS was not able to validate the provided access credentials",
            r"AuthFailure: AWS was not able .*\); check key and secret, and this machine's clock$",
        ),
        (
            "AuthFailure",
            "Not authorized for images: [ami-1]",
            r"refused: AuthFailure: Not authorized for images: \[ami-1\]$",
        ),
        (
            "UnauthorizedOperation",
            f"{_NOT_ALLOWED}ec2:RunInstances on resource: arn:aws:ec2:us-east-1:1:instance/* because no "
            "identity-based policy allows the action",
            r"may not ec2:RunInstances on arn:aws:ec2:us-east-1:1:instance/\*; deployments/aws/policy.json",
        ),
        (
            "UnauthorizedOperation",
            f"{_NOT_ALLOWED}ec2:RunInstances on resource: arn:aws:ec2:us-east-1:1:instance/* with an "
            "explicit deny in a service control policy. Encoded authorization failure message: xyz",
            r"instance/\*: an explicit deny in a service control policy forbids it; an administrator",
        ),
        (
            "OptInRequired",
            "In order to use this product you need to subscribe. Please visit https://aws.amazon.com/x?sku=abc",
            r"refused: OptInRequired: .*https://aws\.amazon\.com/x\?sku=abc$",
        ),
    ],
)
def test_what_aws_says_decides_the_advice(code: str, message: str, match: str) -> None:
    assert re.search(match, str(translated(code, message, "ec2:RunInstances")))


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "SignatureDoesNotMatch",
            "The request signature we calculated does not match.\n\nThe Canonical String for this request "
            "should have been\n'POST\n/\n\nx-amz-security-token:secret",
        ),
        (
            "IncompleteSignature",
            "'secret' not a valid key=value pair (missing equal-sign) in Authorization header: 'secret'",
        ),
    ],
)
def test_what_aws_quotes_of_a_signed_request_is_not_shown(code: str, message: str) -> None:
    told = str(translated(code, message, "ssm:GetParameter"))
    assert f"not valid (ssm:GetParameter: {code}" in told
    assert "secret" not in told.replace("key and secret", "")


types = st.sampled_from(["g6.xlarge", "p5.48xlarge", "g6e.12xlarge"])


@given(
    market=st.sampled_from([Market.SPOT, Market.ON_DEMAND]),
    role=st.sampled_from(["head", "worker"]),
    pools=st.lists(st.tuples(types, st.just("subnet-0123456789abcdef0")), min_size=1, max_size=9),
    machines=st.integers(1, 1000),
)
def test_requests_are_of_the_form_that_aws_publishes(
    market: Market, role: str, pools: Sequence[tuple[str, str]], machines: int
) -> None:
    one = settings()
    script = user_data(one, role, market, "10.0.0.4")
    template = template_request(one, role, market, script, 1.8e9)
    terms = {"client_token": "t", "expires": 1.8e9}
    fleet = fleet_request(one, role, "lt-0123456789abcdef0", pools, machines, market, terms)
    machine = {**template["LaunchTemplateData"], "MinCount": 1, "MaxCount": machines}
    assert wrong("ec2", "CreateLaunchTemplate", template) == []
    assert wrong("ec2", "CreateFleet", fleet) == []
    assert wrong("ec2", "RunInstances", machine) == []
    assert base64.b64decode(template["LaunchTemplateData"]["UserData"]).decode() == script
    [interface] = template["LaunchTemplateData"]["NetworkInterfaces"]
    assert interface["AssociatePublicIpAddress"] is False
    assert template["LaunchTemplateData"]["MetadataOptions"]["HttpTokens"] == "required"
    tags = {tag["Key"]: tag["Value"] for tag in fleet["TagSpecifications"][0]["Tags"]}
    assert tags["dray-expires"] == "1800000000"


MODELS = {name: Session().get_service_model(name) for name in ("ec2", "ssm")}
"""What botocore knows of the services, as AWS publishes it."""


def wrong(service: str, operation: str, request: Mapping[str, Any]) -> list[str]:
    """What the service's own model has against a request."""
    shape = MODELS[service].operation_model(operation).input_shape
    assert shape is not None
    report = ParamValidator().validate(request, shape)
    misshapen = [report.generate_report()] if report.has_errors() else []
    return misshapen or unknown_values(shape, request)


def unknown_values(shape: Any, value: Any, path: str = "") -> list[str]:
    """Words that are none of those which the model lists; botocore itself leaves them to the service."""
    if isinstance(value, Mapping):
        parts = [(shape.members[name], part, f"{path}.{name}") for name, part in value.items()]
    elif isinstance(value, list):
        parts = [(shape.member, part, path) for part in value]
    else:
        listed = getattr(shape, "enum", [])
        return [f"{path}: {value!r}"] if listed and value not in listed else []
    return [one for part in parts for one in unknown_values(*part)]


def test_the_model_is_asked() -> None:
    assert wrong("ec2", "CreateFleet", {"Type": "never"}) != []
    misspelt = {"SpotOptions": {"AllocationStrategy": "cheapest"}}
    assert unknown_values(MODELS["ec2"].operation_model("CreateFleet").input_shape, misspelt) == [
        ".SpotOptions.AllocationStrategy: 'cheapest'"
    ]


@pytest.mark.parametrize("market", [Market.SPOT, Market.ON_DEMAND])
def test_what_a_plan_shows_is_what_the_services_take(market: Market) -> None:
    """Each object of it but the list of offers, which is dray's own."""
    pools = [
        Pool(kind=kind, zone="us-east-1a", subnet="subnet-0123456789abcdef0", market=market, hourly=1, rate=1)
        for kind in sorted(load_catalogue().instances)
    ]
    calls = {
        "parameter": ("ssm", "PutParameter"),
        "launch template": ("ec2", "CreateLaunchTemplate"),
        "fleet": ("ec2", "CreateFleet"),
    }
    objects = [one for one in planned(settings(workers=2), Offers(pools=tuple(pools))) if one.kind in calls]
    assert [one.kind for one in objects] == ["parameter", *["launch template", "fleet"] * 2]
    assert [wrong(*calls[one.kind], one.body) for one in objects] == [[]] * 5


def test_user_data_is_a_script_and_holds_no_secret() -> None:
    one = settings(access_key_id="id", secret_access_key="canary")
    for role in ("head", "worker"):
        script = user_data(one, role, Market.SPOT, "10.0.0.4")
        assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
        assert "canary" not in script
        assert "RAY_AUTH_MODE=token" in script


def test_a_secret_in_the_place_of_a_parameters_name_is_not_shown() -> None:
    with pytest.raises(ConfigError, match="HF_TOKEN names no parameter") as error:
        settings(env_parameters={"HF_TOKEN": "hf_canary"})
    assert "canary" not in str(error.value)


def test_user_data_with_the_most_variables_is_not_too_long() -> None:
    most = {f"{'N' * 60}{number}": f"/{'p' * 255}" for number in range(24)}
    script = user_data(settings(name="x" * 40, env_parameters=most), "worker", Market.SPOT, "10.0.0.4")
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


def test_ray_starts_with_the_environments_programs_on_its_path(tmp_path: Path) -> None:
    """Engines call ninja by its name, and the environment alone has it."""
    ended = boot(tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "path").read_text().startswith(f"{tmp_path}/env/bin:{tmp_path}/tools:")
    assert "is up at" in (tmp_path / "console").read_text()


def test_a_machine_that_boots_again_ends_itself(tmp_path: Path) -> None:
    """cloud-init runs user data once in an instance's life: nothing would end it when it expires."""
    script = tmp_path / "cloud/scripts/per-boot/dray"
    script.parent.mkdir(parents=True)
    assert boot(tmp_path).returncode == 0
    identity, off = tmp_path / "cloud/data/instance-id", tmp_path / "off"
    until(off.exists)  # its own watch of the expiry has ended, too
    identity.parent.mkdir()
    for name, ends in (("i-2", False), ("1", True)):  # "i-2" was made of an image of this machine
        identity.write_text(f"{name}\n")
        off.unlink(missing_ok=True)
        assert subprocess.run([script], check=False).returncode == 0
        assert off.exists() is ends


def boot(folder: Path) -> subprocess.CompletedProcess[str]:
    """A head's user data, with a Python and a metadata service that are played."""
    one = settings(python=str(folder / "env/bin/python"))
    script = user_data(one, "head", Market.ON_DEMAND)
    found = re.search(r"RAY_WANTED='(.*)' PYTHON_WANTED='(.*)' ", script)
    assert found is not None
    programs = {
        "env/bin/python": f"""case "$*" in
            *"import ray"*) echo {found[1]} {found[2]} ;;
            *" start "*) printf %s "$PATH" >{folder}/path ;;
            *) echo export RAY_AUTH_TOKEN=token ;;
        esac""",
        "tools/curl": "echo 1",  # also as the time of expiry: the machine's watch ends at once
    }
    for name, text in programs.items():
        file = folder / name
        file.parent.mkdir(parents=True)
        file.write_text(f"#!/bin/bash\n{text}\n")
        file.chmod(0o755)
    environment = {
        "PATH": f"{folder}/tools:{os.environ['PATH']}",
        "HOME": str(folder),
        "DRAY_CONSOLE": str(folder / "console"),
        "DRAY_TURN_OFF": f"touch {folder}/off",
        "DRAY_BOOT": str(folder / "cloud"),
    }
    return subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=30, check=False
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", None),
        ("boot\nlogin:", None),
        ("[ 1.0] cloud-init: dray: a\nx\ndray: b \n", "b"),
        (base64.b64encode(b"dray: c").decode(), "c"),
        ("not base64!", None),
    ],
)
def test_the_last_line_of_a_console(text: str, line: str | None) -> None:
    assert last_line(text) == line


def test_a_driver_for_the_head() -> None:
    command = driver_command(["run", "a b.jsonl", "--model", "m"], "/opt/dray/bin/python")
    assert command == "/opt/dray/bin/python -m dray.cli run 'a b.jsonl' --model m --cluster auto"
    assert driver_command(["resume", "job"]).endswith(" resume job --cluster auto")
    name, line = submit_there(command, "/py", 600)
    assert subprocess.run(["sh", "-n"], input=line, text=True, check=False).returncode == 0
    assert f"--submission-id={name} -- /opt/dray/bin/python -m dray.cli run 'a b.jsonl'" in line
    for wrong in ([], ["status"]):
        with pytest.raises(ConfigError, match="name what is to run"):
            driver_command(wrong)
    with pytest.raises(ConfigError, match="leave --cluster out"):
        driver_command(["run", "x", "--cluster=local"])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["run", "x", "--store", "postgresql://me:hidden-word@host/dray"], "argument 4, after --store,"),
        (["run", "x", "--store=postgresql://host/dray?password=hidden-word"], "--store"),
        (["resume", "job", "-s=postgresql://me:hidden-word@host/dray"], "argument 3"),
        (["run", "https://host/in.jsonl?sig=hidden-word", "--model", "m"], "argument 2"),
        (["run", "--json", "s3://me:hidden-word@bucket/in.jsonl"], "argument 3, after --json,"),
    ],
)
def test_a_driver_for_the_head_shows_no_login(arguments: list[str], named: str) -> None:
    """Ray and Systems Manager keep the command."""
    with pytest.raises(ConfigError, match=f"^{named} shows a login or a signature.* env:NAME") as told:
        driver_command(arguments)
    assert "hidden-word" not in str(told.value)
    given = ["run", "x", "--model", "hf://org/name@main", "--store", "env:DRAY_STORE_URL"]
    assert driver_command(given).endswith("--store env:DRAY_STORE_URL --cluster auto")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (None, ""),
        ({"Code": "Client.X"}, "Client.X"),
        ({"Code": "Client.X", "Message": "Client.X: too many volumes"}, "Client.X: too many volumes"),
        ({"Code": "Client.X", "Message": "too many volumes"}, "Client.X: too many volumes"),
    ],
)
def test_the_reason_of_an_instance_is_told_with_its_code_once(said: Any, told: str) -> None:
    assert state_reason({"StateReason": said}) == told
