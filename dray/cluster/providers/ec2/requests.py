"""The requests that make a cluster, as EC2 takes them: pure data, for a person or for the API."""

from __future__ import annotations

import base64
import json
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dray.cluster.providers.ec2.offers import Pool
from dray.cluster.providers.ec2.settings import EC2Settings
from dray.cluster.providers.protocol import Market

CLUSTER_TAG = "dray-cluster"
ROLE_TAG = "dray-role"
EXPIRES_TAG = "dray-expires"  # seconds since 1970; without a slash: the instance reads it from its metadata
PARAMETERS = "/dray/"

_USER_DATA = Path(__file__).with_name("user_data.sh")
_MOST_BYTES = 16384  # of user data, as EC2 takes it


def parameter_of(cluster: str) -> str:
    """Where the token of a cluster is kept."""
    return f"{PARAMETERS}{cluster}/token"


def tags_of(cluster: str, role: str, expires: float) -> dict[str, str]:
    """The tags of everything that belongs to a cluster."""
    return {
        "Name": f"dray-{cluster}-{role}",
        CLUSTER_TAG: cluster,
        ROLE_TAG: role,
        EXPIRES_TAG: str(int(expires)),
    }


def user_data(settings: EC2Settings, role: str, market: Market, head: str = "") -> str:
    """The script that a machine runs when it boots."""
    values = {
        "CLUSTER": settings.name,
        "ROLE": role,
        "REGION": settings.region,
        "PARAMETERS": json.dumps({"RAY_AUTH_TOKEN": parameter_of(settings.name), **settings.env_parameters}),
        "HEAD": head,
        "PORT": str(settings.port),
        "PYTHON": settings.python,
        "RAY": version("ray"),
        "PYTHON_VERSION": ".".join(platform.python_version_tuple()[:2]),
        "MARKET": market.value,
        "LIFETIME": str(int(settings.lifetime)),
        "JOIN_SECONDS": str(int(settings.join_seconds)),
        "ENDPOINT": settings.endpoint or "",
    }
    text = _USER_DATA.read_text(encoding="utf-8")
    for name, value in values.items():
        assert "'" not in value, "settings are checked"
        text = text.replace(f"@{name}@", value)
    assert len(text.encode()) < _MOST_BYTES
    return text


def template_request(
    settings: EC2Settings, role: str, market: Market, script: str, expires: float
) -> dict[str, Any]:
    """``CreateLaunchTemplate``: all of a machine but its type and its subnet, which a fleet chooses."""
    name = template_name(settings.name, role, market)
    tags = _listed(tags_of(settings.name, role, expires))
    data: dict[str, Any] = {
        "ImageId": settings.image,
        "IamInstanceProfile": {"Name": settings.instance_profile},
        "UserData": base64.b64encode(script.encode()).decode(),
        "NetworkInterfaces": [
            {
                "DeviceIndex": 0,
                "Groups": [settings.security_group],
                "AssociatePublicIpAddress": False,
                "DeleteOnTermination": True,
            }
        ],
        "BlockDeviceMappings": [
            {
                "DeviceName": settings.root_device,
                "Ebs": {
                    "VolumeSize": settings.disk_gb,
                    "VolumeType": "gp3",
                    "Encrypted": True,
                    "DeleteOnTermination": True,
                },
            }
        ],
        "MetadataOptions": {
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": 1,
            "InstanceMetadataTags": "enabled",
        },
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": tags} for kind in ("volume", "network-interface")
        ],
    }
    if market is Market.ON_DEMAND:  # a spot machine that is shut down ends anyhow, and may not say so
        data["InstanceInitiatedShutdownBehavior"] = "terminate"
    return {
        "LaunchTemplateName": name,
        "LaunchTemplateData": data,
        "TagSpecifications": [{"ResourceType": "launch-template", "Tags": tags}],
    }


def secret_request(name: str, value: str, tags: Mapping[str, str]) -> dict[str, Any]:
    """``PutParameter``: a secret, encrypted with the account's own key."""
    return {"Name": name, "Value": value, "Type": "SecureString", "Tags": _listed(tags)}


def template_name(cluster: str, role: str, market: Market) -> str:
    """One per role and market: what a machine does when it is shut down differs."""
    return f"dray-{cluster}-{role}-{market.value}"


def fleet_request(
    settings: EC2Settings,
    role: str,
    template: str,
    pools: Sequence[tuple[str, str]],
    machines: int,
    market: Market,
    terms: Mapping[str, Any],
) -> dict[str, Any]:
    """``CreateFleet`` of type instant: one attempt at so many machines of these types and subnets.

    ``terms`` are its token against a second attempt with the same content, and when its machines expire.
    """
    tags = _listed(tags_of(settings.name, role, terms["expires"]))
    request: dict[str, Any] = {
        "Type": "instant",
        "ClientToken": terms["client_token"],
        "LaunchTemplateConfigs": [
            {
                "LaunchTemplateSpecification": {"LaunchTemplateId": template, "Version": "$Latest"},
                "Overrides": [{"InstanceType": kind, "SubnetId": subnet} for kind, subnet in pools],
            }
        ],
        "TargetCapacitySpecification": {
            "TotalTargetCapacity": machines,
            "DefaultTargetCapacityType": market.value,
        },
        "TagSpecifications": [{"ResourceType": "instance", "Tags": tags}],
    }
    if market is Market.SPOT:
        request["SpotOptions"] = {
            "AllocationStrategy": "price-capacity-optimized",
            "InstanceInterruptionBehavior": "terminate",
        }
    else:
        request["OnDemandOptions"] = {"AllocationStrategy": "lowest-price"}
    return request


def places(pools: Sequence[Pool]) -> list[tuple[str, str]]:
    """Type and subnet of each pool, as a fleet takes them."""
    return [(one.kind, one.subnet) for one in pools]


def _listed(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]
