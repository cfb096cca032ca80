"""The shipped files for AWS: what a service would refuse, as far as its published model says it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from botocore.session import Session
from cfnlint.api import lint_file

pytestmark = pytest.mark.unit

AWS = Path(__file__).parents[3] / "deployments" / "aws"
NO_CALLS = {"iam:PassRole"}
"""Rights that other calls take, and that are no calls themselves."""


def test_cloudformation_takes_the_network() -> None:
    assert lint_file(AWS / "network.yaml") == []


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
