"""EC2 and Systems Manager as moto emulates them, in a process of its own.

::

    python -m tests.support.moto_ec2      prints its port, and ends when its stdin does
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import boto3

from dray.cluster.providers.ec2 import EC2Cluster

REGION = "us-east-1"
ZONES = ("a", "b", "c", "d", "e", "f")
KEYS = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}


@dataclass(frozen=True, slots=True)
class Network:
    """What a user has made before: subnets, one in each zone, a security group, an image."""

    subnets: tuple[str, ...]
    security_group: str
    image: str


class MotoEc2:
    """The server, seen from a test."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.moto_ec2"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        self.endpoint = f"http://127.0.0.1:{self._process.stdout.readline().strip()}"
        self.ec2 = self.client("ec2")
        self.ssm = self.client("ssm")
        self.network = self._network()

    def client(self, service: str) -> Any:
        """One of boto3's clients for it."""
        session: Any = boto3.session.Session()
        return session.client(service, region_name=REGION, endpoint_url=self.endpoint, **KEYS)

    def values(self) -> dict[str, Any]:
        """Fields of a cluster's settings on it, as a file has them."""
        return {
            "name": "test",
            "region": REGION,
            "subnets": list(self.network.subnets),
            "security_group": self.network.security_group,
            "instance_profile": "dray-node-us-east-1",
            "image": self.network.image,
            "instance_types": ["g6.xlarge", "g6e.xlarge", "g5.xlarge"],
            "endpoint": self.endpoint,
            "access_key_id": "test",
            "secret_access_key": "test",
        }

    def settings(self, **changes: Any) -> EC2Cluster:
        """Of a cluster on it."""
        return settings_of(json.dumps({**self.values(), **changes}))

    def live(self) -> list[dict[str, Any]]:
        """All instances that are not gone, whoever made them."""
        return [
            one for one in self.instances() if one["State"]["Name"] not in ("terminated", "shutting-down")
        ]

    def instances(self) -> list[dict[str, Any]]:
        """All instances, also those that are gone."""
        pages = self.ec2.get_paginator("describe_instances").paginate()
        return [one for page in pages for group in page["Reservations"] for one in group["Instances"]]

    def left(self) -> list[str]:
        """Names of all that is there: instances, launch templates, parameters."""
        templates = self.ec2.describe_launch_templates()["LaunchTemplates"]
        parameters = self.ssm.describe_parameters()["Parameters"]
        return [
            *(one["InstanceId"] for one in self.live()),
            *(one["LaunchTemplateName"] for one in templates),
            *(one["Name"] for one in parameters),
        ]

    def stop(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def _network(self) -> Network:
        """On loopback addresses: an instance's is one that a raylet on this machine can have."""
        vpc = self.ec2.create_vpc(CidrBlock="127.16.0.0/16")["Vpc"]["VpcId"]
        subnets = [
            self.ec2.create_subnet(
                VpcId=vpc, CidrBlock=f"127.16.{number}.0/24", AvailabilityZone=f"{REGION}{zone}"
            )["Subnet"]["SubnetId"]
            for number, zone in enumerate(ZONES)
        ]
        group = self.ec2.create_security_group(GroupName="dray", Description="dray", VpcId=vpc)["GroupId"]
        image = self.ec2.describe_images()["Images"][0]["ImageId"]
        return Network(tuple(subnets), group, image)


def settings_of(text: str) -> EC2Cluster:
    """From JSON."""
    given: dict[str, Any] = json.loads(text)
    values: dict[str, Any] = {key: tuple(one) if isinstance(one, list) else one for key, one in given.items()}
    return EC2Cluster(**values)


def main() -> None:
    """Serve until stdin ends."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    print(server.get_host_and_port()[1], flush=True)
    sys.stdin.read()
    os._exit(0)  # all of it is in memory, and an end in order waits for connections that clients keep open


if __name__ == "__main__":
    main()
