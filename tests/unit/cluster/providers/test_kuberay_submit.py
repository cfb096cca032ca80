"""A job that is submitted through the API server, where answers are lost or refuse it."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import pytest

from dray.cluster.providers.kuberay import KubeRayCluster
from dray.cluster.providers.kuberay.api import Answer, KubeApi
from dray.cluster.providers.kuberay.provider import KubeRayProvider
from dray.errors import ClusterError, DrayError

pytestmark = pytest.mark.unit

THERE = """Traceback (most recent call last):
  File "job_manager.py", line 553, in submit_job
    raise ValueError(
ValueError: Job with submission_id {name} already exists. Please use a different submission_id.
.
"""


class Jobs:
    """The API server and the head's jobs API behind it. ``answers``: what each try to submit gets."""

    def __init__(self, *answers: OSError | tuple[int, str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    def send(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> Answer:
        if method == "POST":
            self.asked.append(body["submission_id"])
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            if isinstance(answer, OSError):
                raise answer
            status, text = answer
            return Answer(status=status, headers={}, body=text.replace("{name}", body["submission_id"]))
        token = base64.b64encode(b"token").decode()
        found = {"data": {"auth_token": token}, "status": {"head": {"serviceName": "test-head-svc"}}}
        return Answer(status=200, headers={}, body=found)

    def provider(self) -> KubeRayProvider:
        settings = KubeRayCluster(name="test", image="i")
        return KubeRayProvider(settings, lambda _: KubeApi("default", self.send, "the API", patience=1.0))


@pytest.mark.parametrize("status", [400, 500])
def test_a_job_whose_first_answer_was_lost_was_submitted(status: int) -> None:
    """Ray starts it once, and refuses the second try by the job's name."""
    jobs = Jobs(TimeoutError("read timed out"), (status, THERE))
    name = jobs.provider().submit(["run", "s3://b/in.jsonl"])
    assert jobs.asked == [name, name]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ((500, "No available agent to submit job, please try again later."), r"500 \(No available agent to"),
        ((500, "Traceback\n  File x\nRuntimeError: no room\n.\n"), r"500 \(RuntimeError: no room\)"),
        ((502, "<html>\nbad gateway\n</html>"), r"502 \(it gives no reason\)"),
        ((400, THERE.replace("{name}", "dray-other")), "submission_id dray-other already exists"),
        (OSError("refused"), "does not answer: refused"),
    ],
)
def test_why_a_job_was_not_submitted(answer: OSError | tuple[int, str], told: str) -> None:
    with pytest.raises(DrayError, match=told):
        Jobs(answer).provider().submit(["run", "s3://b/in.jsonl"])


def test_a_head_that_is_not_there_takes_no_job() -> None:
    settings = KubeRayCluster(name="test", image="i")
    gone = Answer(status=404, headers={}, body={})
    one = KubeRayProvider(settings, lambda _: KubeApi("default", lambda *_: gone, "the API"))
    with pytest.raises(ClusterError, match="is not there; start it first"):
        one.submit(["run", "s3://b/in.jsonl"])
