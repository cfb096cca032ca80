"""EC2 and Systems Manager of moto, with answers of AWS's that moto does not give: refusals and shortages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders

from dray.cluster.providers.ec2.api import Ec2Api
from dray.cluster.providers.ec2.provider import EC2Provider
from dray.cluster.providers.ec2.settings import EC2Settings


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

    def api(self, settings: EC2Settings) -> Ec2Api:
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


def provider(settings: EC2Settings, faults: Faults | None = None, *, of_job: bool = False) -> EC2Provider:
    """The cluster of these settings, on an API with these faults."""
    return EC2Provider(settings, (faults or Faults()).api, of_job=of_job)
