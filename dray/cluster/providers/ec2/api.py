"""The calls to EC2 and to the parameter store of Systems Manager, with errors that say what to do.

The one seam for botocore: no other module of dray handles its errors for clusters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from dray.cluster.providers.ec2.answers import FleetResult, Found, Ran, Refused, state_reason
from dray.cluster.providers.ec2.clients import clients_of
from dray.cluster.providers.ec2.errors import CredentialsError, raising, translated
from dray.cluster.providers.ec2.requests import CLUSTER_TAG, EXPIRES_TAG, PARAMETERS, secret_request
from dray.cluster.providers.ec2.settings import EC2Settings
from dray.errors import ConfigError

_LIVE = ["pending", "running", "stopping", "stopped"]
_GONE = ["NotFound"]  # InvalidLaunchTemplateName.NotFoundException, ParameterNotFound, ...
_AT_ONCE = 200  # names in one call
_RENEW_SECONDS = 10.0
"""Between two looks for new credentials: boto3 takes 0.3 s of processor time for its clients."""
T = TypeVar("T")


class Ec2Api:
    """EC2 and SSM clients of boto3, both of one region.

    ``renew`` makes them again, with the credentials that are there by then; None: those stay as they are.
    """

    def __init__(
        self, ec2: Any, ssm: Any, region: str, renew: Callable[[], tuple[Any, Any]] | None = None
    ) -> None:
        self._ec2 = ec2
        self._ssm = ssm
        self._region = region
        self._renew = renew
        self._renewed = float("-inf")

    @classmethod
    def of(cls, settings: EC2Settings) -> Ec2Api:
        """Clients with the settings' keys, or those that boto3 finds."""
        given = settings.access_key_id is not None
        with raising("the client library"):
            ec2, ssm = clients_of(settings)
        return cls(ec2, ssm, settings.region, renew=None if given else lambda: clients_of(settings))

    def zones_of(self, subnets: Sequence[str]) -> dict[str, str]:
        """The zone of each subnet.

        Raises:
            ConfigError: one is not in this region, or they are of more than one VPC.
        """
        try:
            found = self._call("describe_subnets", SubnetIds=list(subnets))["Subnets"]
        except ConfigError as error:
            if "InvalidSubnetID" not in str(error):
                raise
            raise ConfigError(f"{error}; name subnets of {self._region}, or another region") from error
        networks = {one["SubnetId"]: one["VpcId"] for one in found}
        if len(set(networks.values())) > 1:
            named = ", ".join(f"{subnet} in {network}" for subnet, network in networks.items())
            raise ConfigError(f"ec2: subnets must be of one VPC, the security group's, and are: {named}")
        return {one["SubnetId"]: one["AvailabilityZone"] for one in found}

    def offered(self, types: Sequence[str], zones: Iterable[str]) -> set[tuple[str, str]]:
        """Type and zone of each pair that exists."""
        filters = [
            {"Name": "instance-type", "Values": list(types)},
            {"Name": "location", "Values": sorted(set(zones))},
        ]
        pages = self._pages(
            "describe_instance_type_offerings", LocationType="availability-zone", Filters=filters
        )
        return {
            (one["InstanceType"], one["Location"]) for page in pages for one in page["InstanceTypeOfferings"]
        }

    def spot_prices(self, types: Sequence[str]) -> dict[tuple[str, str], tuple[float, datetime]]:
        """The latest price of each type and zone, in dollars per hour, and since when."""
        pages = self._pages(
            "describe_spot_price_history",
            InstanceTypes=list(types),
            ProductDescriptions=["Linux/UNIX"],
            StartTime=datetime.now().astimezone(),
        )
        latest: dict[tuple[str, str], tuple[float, datetime]] = {}
        for page in pages:
            for one in page["SpotPriceHistory"]:
                place = one["InstanceType"], one["AvailabilityZone"]
                if place not in latest or one["Timestamp"] > latest[place][1]:
                    latest[place] = float(one["SpotPrice"]), one["Timestamp"]
        return latest

    def placement_scores(self, types: Sequence[str], machines: int) -> dict[str, int]:
        """How likely each zone has so many spot machines of these types, from 1 to 10."""
        found = self._call(
            "get_spot_placement_scores",
            InstanceTypes=list(types),
            TargetCapacity=machines,
            SingleAvailabilityZone=True,
            RegionNames=[self._region],
        )["SpotPlacementScores"]
        ids = self._call("describe_availability_zones")["AvailabilityZones"]
        names = {one["ZoneId"]: one["ZoneName"] for one in ids}
        return {
            names[one["AvailabilityZoneId"]]: one["Score"]
            for one in found
            if one.get("AvailabilityZoneId") in names
        }

    def create_template(self, request: Mapping[str, Any]) -> str:
        """A launch template's id; one that has the name already is of an earlier start, and is replaced."""
        found = self._unless(["AlreadyExists"], "create_launch_template", **request)
        if found is None:
            name = request["LaunchTemplateName"]
            self._unless(_GONE, "delete_launch_template", LaunchTemplateName=name)
            found = self._call("create_launch_template", **request)
        template: str = found["LaunchTemplate"]["LaunchTemplateId"]
        return template

    def create_fleet(self, request: Mapping[str, Any]) -> FleetResult:
        """Ask for machines once. Those that came are returned, whatever else the answer says.

        Raises:
            ConfigError: the request, or the right to make it, is at fault, and not what there is.
        """
        answer = self._call("create_fleet", **request)
        refused = tuple(_refused(one) for one in answer.get("Errors", ()))
        instances = []
        for group in answer.get("Instances", ()):
            override = group.get("LaunchTemplateAndOverrides", {}).get("Overrides", {})
            instances += [
                (one, group["InstanceType"], override.get("SubnetId", "")) for one in group["InstanceIds"]
            ]
        for one in refused:
            if one.shortage is None and not instances:
                raise translated(one.code, one.message, "ec2:CreateFleet")
        return FleetResult(instances=tuple(instances), refused=refused)

    def instances(self, cluster: str | None = None) -> list[Found]:
        """The machines of a cluster that are not gone, found by their tag; None: of all clusters."""
        tag = (
            {"Name": "tag-key", "Values": [EXPIRES_TAG]}
            if cluster is None
            else {"Name": f"tag:{CLUSTER_TAG}", "Values": [cluster]}
        )
        filters = [tag, {"Name": "instance-state-name", "Values": _LIVE}]
        pages = self._pages("describe_instances", Filters=filters)
        return [_found(one) for page in pages for group in page["Reservations"] for one in group["Instances"]]

    def ended(self, ids: Collection[str]) -> dict[str, str]:
        """Which of these instances have ended, or are about to, each with what EC2 says of it, or ""."""
        found = self._found_as(["shutting-down", "terminated"], ids)
        return {name: state_reason(one) for name, one in found.items()}

    def terminate(self, ids: Collection[str]) -> set[str]:
        """End these instances; those that EC2 does not know (yet, or any more) are returned.

        The policy allows it by a tag. One that EC2 does not know has no tags: it refuses the whole call then.
        """
        unknown = set[str]()
        for some in _some(ids):
            try:
                known = self._unless(["InvalidInstanceID"], "terminate_instances", InstanceIds=some)
            except ConfigError:
                live = set(self._found_as(_LIVE, some))
                if live == set(some):
                    raise
                unknown |= (set(some) - live) | self.terminate(live)
                continue
            if known is None:
                alone = len(some) == 1
                unknown |= set(some) if alone else set().union(*(self.terminate([one]) for one in some))
        return unknown

    def _found_as(self, states: list[str], ids: Collection[str]) -> dict[str, Any]:
        """Which of these instances EC2 lists in one of these states, as it describes them."""
        filters = [{"Name": "instance-state-name", "Values": states}]
        return {
            one["InstanceId"]: one
            for some in _some(ids)
            for page in self._pages(
                "describe_instances", Filters=[*filters, {"Name": "instance-id", "Values": some}]
            )
            for group in page["Reservations"]
            for one in group["Instances"]
        }

    def tag(self, ids: Collection[str], tags: Mapping[str, str]) -> None:
        """Set these tags."""
        listed = [{"Key": key, "Value": value} for key, value in tags.items()]
        for some in _some(ids):
            self._call("create_tags", Resources=some, Tags=listed)

    def templates(self) -> list[tuple[str, str, Mapping[str, str]]]:
        """Id, name and tags of the launch templates of all clusters."""
        pages = self._pages(
            "describe_launch_templates", Filters=[{"Name": "tag-key", "Values": [CLUSTER_TAG]}]
        )
        return [
            (one["LaunchTemplateId"], one["LaunchTemplateName"], _tags(one))
            for page in pages
            for one in page["LaunchTemplates"]
        ]

    def delete_template(self, template: str) -> None:
        """Delete it; one that is gone is no error."""
        self._unless(_GONE, "delete_launch_template", LaunchTemplateId=template)

    def put_secret(self, name: str, value: str, tags: Mapping[str, str]) -> None:
        """Keep a secret, encrypted, under a name; one that is there stays, with these tags."""
        request = secret_request(name, value, tags)
        if self._unless(["ParameterAlreadyExists"], "put_parameter", **request) is None:
            tagged = {"ResourceType": "Parameter", "ResourceId": name, "Tags": request["Tags"]}
            self._call("add_tags_to_resource", **tagged)

    def secret(self, name: str) -> str | None:
        """The secret of that name; None where there is none."""
        found = self._unless(_GONE, "get_parameter", Name=name, WithDecryption=True)
        return None if found is None else str(found["Parameter"]["Value"])

    def secrets(self) -> list[tuple[str, Mapping[str, str]]]:
        """Name and tags of the secrets of all clusters, without those that go meanwhile."""
        filters = [{"Key": "Name", "Option": "BeginsWith", "Values": [PARAMETERS]}]
        names = [
            one["Name"]
            for page in self._pages("describe_parameters", ParameterFilters=filters)
            for one in page["Parameters"]
        ]
        found: list[tuple[str, Mapping[str, str]]] = []
        for name in names:
            asked = {"ResourceType": "Parameter", "ResourceId": name}
            answer = self._unless([*_GONE, "InvalidResourceId"], "list_tags_for_resource", **asked)
            if answer is not None:  # else another process deleted it since it was listed
                found.append((name, {one["Key"]: one["Value"] for one in answer["TagList"]}))
        return found

    def delete_secret(self, name: str) -> bool:
        """Delete it; False where it is gone already."""
        return self._unless(_GONE, "delete_parameter", Name=name) is not None

    def console(self, instance: str) -> str:
        """What the instance has written on its console so far.

        Without ``Latest``, EC2 gives what it wrote shortly after it began to boot; old types have no other.
        """
        answer = self._unless(
            ["UnsupportedOperation"], "get_console_output", InstanceId=instance, Latest=True
        )
        if answer is None:
            answer = self._call("get_console_output", InstanceId=instance)
        found: str = answer.get("Output") or ""
        return found

    def send_command(self, instance: str, script: str) -> str | None:
        """Have the agent of Systems Manager run a shell script on an instance.

        The command's id; None where no agent has registered: the machine boots, or its image has none.
        """
        found = self._unless(
            ["InvalidInstanceId"],
            "send_command",
            InstanceIds=[instance],
            DocumentName="AWS-RunShellScript",
            Parameters={"commands": [script]},
        )
        return None if found is None else str(found["Command"]["CommandId"])

    def command_on(self, instance: str, command: str) -> Ran:
        """How far a command is; one that the service does not know yet is pending."""
        asked = {"CommandId": command, "InstanceId": instance}
        found = self._unless(["InvocationDoesNotExist"], "get_command_invocation", **asked)
        if found is None:
            return Ran(status="Pending", detail="Pending", output="")
        lines = [found.get(f"Standard{one}Content", "").strip() for one in ("Output", "Error")]
        detail = found.get("StatusDetails") or found["Status"]
        return Ran(status=found["Status"], detail=detail, output="\n".join(filter(None, lines)))

    def _unless(self, codes: Collection[str], method: str, **arguments: Any) -> Any | None:
        """The answer to a call; None where AWS refuses it with a code that holds one of these."""
        try:
            return self._call(method, **arguments)
        except ConfigError as error:
            if not any(code in str(error) for code in codes):
                raise
            return None

    def _client(self, method: str) -> Any:
        return self._ssm if not hasattr(self._ec2, method) else self._ec2

    def _call(self, method: str, **arguments: Any) -> Any:
        return self._asked(method, lambda client: getattr(client, method)(**arguments))

    def _pages(self, method: str, **arguments: Any) -> list[Any]:
        return self._asked(method, lambda client: list(client.get_paginator(method).paginate(**arguments)))

    def _asked(self, method: str, ask: Callable[[Any], T]) -> T:
        """An answer. Where AWS does not take the credentials, it is asked once more with those of now.

        botocore reads a file once, and a user renews keys there while the job runs.
        """
        client = self._client(method)
        operation = _operation(client, method)
        try:
            with raising(operation):
                return ask(client)
        except CredentialsError:
            with raising(operation):
                if self._client(method) is client and not self._has_renewed():
                    raise
        with raising(operation):
            return ask(self._client(method))

    def _has_renewed(self) -> bool:
        """Whether new clients were made now."""
        now = time.monotonic()
        if self._renew is None or now - self._renewed < _RENEW_SECONDS:
            return False
        self._renewed = now
        self._ec2, self._ssm = self._renew()
        return True


def _operation(client: Any, method: str) -> str:
    service = client.meta.service_model.service_name
    return f"{service}:{client.meta.method_to_api_mapping[method]}"


def _refused(error: Mapping[str, Any]) -> Refused:
    override = error.get("LaunchTemplateAndOverrides", {}).get("Overrides", {})
    return Refused(
        code=error.get("ErrorCode", ""),
        message=error.get("ErrorMessage", ""),
        kind=override.get("InstanceType", ""),
        subnet=override.get("SubnetId", ""),
    )


def _found(one: Mapping[str, Any]) -> Found:
    return Found(
        id=one["InstanceId"],
        kind=one["InstanceType"],
        zone=one.get("Placement", {}).get("AvailabilityZone", ""),
        state=one["State"]["Name"],
        spot=one.get("InstanceLifecycle") == "spot",
        address=one.get("PrivateIpAddress", ""),
        tags=_tags(one),
    )


def _tags(one: Mapping[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in one.get("Tags", ())}


def _some(ids: Collection[str]) -> Iterator[list[str]]:
    listed = sorted(ids)
    for first in range(0, len(listed), _AT_ONCE):
        yield listed[first : first + _AT_ONCE]
