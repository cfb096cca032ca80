"""The shipped files for AWS: what a service would refuse, as far as its published model says it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from botocore.session import Session

from dray.cluster.cluster_file import read_cluster_file
from dray.cluster.providers.ec2 import EC2Cluster

pytestmark = pytest.mark.unit

AWS = Path(__file__).parents[3] / "deployments" / "aws"
NO_CALLS = {"iam:PassRole"}
"""Rights that other calls take, and that are no calls themselves."""


def test_cloudformation_takes_the_network() -> None:
    from cfnlint.api import lint_file  # a second of CPU in each process that collects tests

    assert lint_file(AWS / "network.yaml") == []


def test_nodes_reach_the_buckets_that_the_stack_names_and_no_others() -> None:
    """With the rights that docs/operating.md lists: of a bucket on it, the others on its objects."""
    template = network()
    policy = template["Resources"]["BucketsPolicy"]
    assert policy["Condition"] == "HasBuckets"
    assert template["Parameters"]["Buckets"]["Default"] == ""
    bucket, objects = policy["Properties"]["PolicyDocument"]["Statement"]
    named = re.findall(r"`(s3:\w+)`", (AWS.parents[1] / "docs/operating.md").read_text())
    assert {*bucket["Action"], *objects["Action"]} == set(named)
    assert {one for one in named if "Bucket" in one} == set(bucket["Action"])
    assert worth(bucket["Resource"], ["a", "b"]) == ["arn:*:s3:::a", "arn:*:s3:::b"]
    assert worth(objects["Resource"], ["a", "b"]) == ["arn:*:s3:::a/*", "arn:*:s3:::b/*"]
    assert worth(template["Conditions"]["HasBuckets"], ["a"]) is True
    assert worth(template["Conditions"]["HasBuckets"], []) is False


def test_an_account_has_a_stack_in_each_region() -> None:
    """IAM's names are of an account: with one name for all regions, the second stack is refused."""
    template = network()["Resources"]
    named = [template["NodeRole"]["Properties"]["RoleName"]]
    named.append(template["NodeProfile"]["Properties"]["InstanceProfileName"])
    assert named == [{"Fn::Sub": "dray-node-${AWS::Region}"}] * 2
    settings = read_cluster_file(str(AWS / "cluster.toml")).provider
    assert isinstance(settings, EC2Cluster)
    assert settings.instance_profile == f"dray-node-{settings.region}"
    parts = json.loads((AWS / "policy.json").read_text())["Statement"]
    [role] = [part for part in parts if part["Action"] == ["iam:PassRole"]]
    assert role["Resource"] == "arn:*:iam::*:role/dray-node*"
    # In China's regions EC2 passes it as the second. https://github.com/aws/karpenter-provider-aws/issues/6843
    services = role["Condition"]["StringEquals"]["iam:PassedToService"]
    assert services == ["ec2.amazonaws.com", "ec2.amazonaws.com.cn"]


def network() -> Any:
    from cfnlint.decode import decode

    return decode(str(AWS / "network.yaml"))[0]


def worth(part: Any, buckets: list[str]) -> Any:
    """What CloudFormation makes of its own functions, with these buckets."""
    if isinstance(part, list):
        return [worth(one, buckets) for one in part]
    if not isinstance(part, Mapping):
        return part
    [(function, given)] = part.items()
    if function == "Ref":
        return buckets
    values = worth(given, buckets)
    if function == "Fn::Join":
        return values[0].join(values[1])
    if function == "Fn::Split":
        return values[1].split(values[0])
    if function == "Fn::Equals":
        return values[0] == values[1]
    assert function == "Fn::Not"
    return not values[0]


def test_each_action_of_the_policy_is_a_call_of_its_service() -> None:
    policy = json.loads((AWS / "policy.json").read_text())
    named = {action for part in policy["Statement"] for action in part["Action"]} - NO_CALLS
    session = Session()
    calls = {
        f"{service}:{name}"
        for service in {action.partition(":")[0] for action in named}
        for name in session.get_service_model(service).operation_names
    }
    assert named - calls == set()


def test_what_is_made_is_allowed_only_with_its_tags() -> None:
    """A machine without an expiry would have nothing that ends it."""
    parts = json.loads((AWS / "policy.json").read_text())["Statement"]
    guarded = [
        part
        for part in parts
        if "instance/*" in str(part["Resource"]) and "ec2:RunInstances" in part["Action"]
    ]
    assert guarded
    for part in guarded:
        assert set(part["Condition"]["Null"]) == {
            "aws:RequestTag/dray-cluster",
            "aws:RequestTag/dray-expires",
        }
