"""AWS: spot interruption notices and rebalance recommendations, from the instance metadata service (IMDSv2).

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html
"""

from __future__ import annotations

import time

from dray.notices.asking import TIMEOUT, Answer, ask, json_object
from dray.notices.instants import instant, on_this_clock
from dray.notices.notice import Notice, NoticeKind, SourceError, plain

INTERRUPTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
LIFE_CYCLE = "/latest/meta-data/instance-life-cycle"
INSTANCE_ID = "/latest/meta-data/instance-id"
TOKEN = "/latest/api/token"  # noqa: S105  a path
TOKEN_TTL = 21600
"""Seconds that a token lives: the most that AWS grants."""

_TTL_HEADER = "X-aws-ec2-metadata-token-ttl-seconds"
_TOKEN_HEADER = "X-aws-ec2-metadata-token"  # noqa: S105  a header


class Imds:
    """The metadata service, asked with a token. Version 1, without one, is never tried."""

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url
        self._token: str | None = None

    def get(self, path: str) -> Answer | None:
        """One document, None where there is none.

        Raises:
            SourceError: the service cannot be asked.
        """
        answer = self._ask(path)
        if answer.status == 401:  # the token has expired, or the service forgot it
            self._token = None
            answer = self._ask(path)
        if answer.status == 404:  # nothing to say
            return None
        if answer.status != 200:
            raise SourceError(f"GET {path}: status {answer.status}")
        return answer

    def _ask(self, path: str) -> Answer:
        token = self._token = self._token or self._new_token()
        return ask(self._base_url, path, headers={_TOKEN_HEADER: token}, timeout=TIMEOUT)

    def _new_token(self) -> str:
        wanted = {_TTL_HEADER: str(TOKEN_TTL)}
        answer = ask(self._base_url, TOKEN, method="PUT", headers=wanted, timeout=TIMEOUT)
        # Others answer a PUT too; only AWS says how long its token lives.
        if answer.status != 200 or not answer.text or _TTL_HEADER.lower() not in answer.headers:
            raise SourceError(f"PUT {TOKEN}: status {answer.status}")
        return answer.text


class AwsSource:
    """One document about this instance: :data:`INTERRUPTION` or :data:`REBALANCE`.

    AWS asks for a look every 5 s; a document that is not there is cheap to ask for every 2 s.
    """

    name = "aws"
    pause = 2.0

    def __init__(self, path: str, imds: Imds) -> None:
        self.path = path
        self._imds = imds

    def poll(self) -> list[Notice]:
        """The notice in force, if there is one."""
        answer = self._imds.get(self.path)
        notice = None if answer is None else _PARSERS[self.path](answer, time.time())
        return [] if notice is None else [notice]


def interruption(answer: Answer, now: float) -> Notice | None:
    """``{"action": "terminate", "time": "2026-11-21T08:22:00Z"}``; the time may be missing or unreadable.

    The action may also be ``stop``, or ``hibernate``, which begins at once.
    """
    found = json_object(answer.body)
    if "action" not in found:
        return None
    action, stated = plain(found["action"]), instant(found.get("time"))
    return Notice(
        source=AwsSource.name,
        kind=NoticeKind.INTERRUPTION,
        action=action,
        deadline=on_this_clock(stated, said_at=answer.said_at, now=now),
        seen_at=now,
        id=f"aws/{action}@{plain(found.get('time'))}",
    )


def rebalance(answer: Answer, now: float) -> Notice | None:
    """``{"noticeTime": "2026-11-21T08:22:00Z"}``: the risk is raised; no deadline is known."""
    found = json_object(answer.body)
    if "noticeTime" not in found:
        return None
    return Notice(
        source=AwsSource.name,
        kind=NoticeKind.REBALANCE,
        action="rebalance",
        deadline=None,
        seen_at=now,
        id=f"aws/rebalance@{plain(found['noticeTime'])}",
    )


_PARSERS = {INTERRUPTION: interruption, REBALANCE: rebalance}
