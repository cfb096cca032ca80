"""Azure: Scheduled Events of this VM, from the instance metadata service.

https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events
"""

from __future__ import annotations

import time
from typing import Any

from dray.notices.asking import TIMEOUT, Answer, ask, json_object
from dray.notices.instants import instant, on_this_clock
from dray.notices.notice import Notice, NoticeKind, SourceError, plain

EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
COMPUTE = "/metadata/instance/compute?api-version=2021-02-01"
HEADERS = {"Metadata": "true"}
FIRST_TIMEOUT = 125.0
"""Seconds for an answer after none came: the first call switches the events on, in up to 2 minutes."""

KINDS = {
    "Preempt": NoticeKind.INTERRUPTION,
    "Terminate": NoticeKind.INTERRUPTION,
    "Freeze": NoticeKind.MAINTENANCE,
    "Reboot": NoticeKind.MAINTENANCE,
    "Redeploy": NoticeKind.MAINTENANCE,
}


class AzureSource:
    """The events of the VM ``vm``: each machine of a scale set sees those of all its siblings too.

    Azure asks for a look every second, because a preemption is announced 30 s ahead.
    """

    name = "azure"
    pause = 1.0

    def __init__(self, vm: str, base_url: str, *, first_timeout: float = FIRST_TIMEOUT) -> None:
        self.vm = vm
        self._base_url = base_url
        self._first_timeout = first_timeout
        self._answers = False
        self._incarnation: object = None
        self._found: list[Notice] = []

    def poll(self) -> list[Notice]:
        """The notices in force for this VM."""
        timeout = TIMEOUT if self._answers else self._first_timeout
        self._answers = False
        answer = ask(self._base_url, EVENTS, headers=HEADERS, timeout=timeout)
        if answer.status != 200:
            raise SourceError(f"GET {EVENTS.partition('?')[0]}: status {answer.status}")
        self._answers = True
        incarnation = json_object(answer.body).get("DocumentIncarnation")
        if incarnation is None or incarnation != self._incarnation:  # else nothing has changed
            self._found = scheduled(answer, self.vm, time.time())
            self._incarnation = incarnation
        return list(self._found)


def scheduled(answer: Answer, vm: str, now: float) -> list[Notice]:
    """The notices for ``vm`` in a document of events.

    An event that has started may have done so before the time first named, so it is another notice, due now.
    """
    events = json_object(answer.body).get("Events")
    if not isinstance(events, list):
        return []
    ours = [event for event in events if isinstance(event, dict) and _concerns(event, vm)]
    return [_notice(event, answer, now) for event in ours]


def _concerns(event: dict[str, Any], vm: str) -> bool:
    resources = event.get("Resources")
    if _word(event, "EventType") not in KINDS or not isinstance(resources, list):
        return False
    return vm.casefold() in [name.casefold() for name in resources if isinstance(name, str)]


def _notice(event: dict[str, Any], answer: Answer, now: float) -> Notice:
    action, started = _word(event, "EventType"), event.get("EventStatus") == "Started"
    stated = on_this_clock(instant(event.get("NotBefore")), said_at=answer.said_at, now=now)
    return Notice(
        source=AzureSource.name,
        kind=KINDS[action],
        action=action,
        deadline=now if started else stated,
        seen_at=now,
        id=f"azure/{_word(event, 'EventId').replace('/', '_')}{'/started' if started else ''}",
    )


def _word(event: dict[str, Any], name: str) -> str:
    return plain(event.get(name))
