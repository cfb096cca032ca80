"""GCP: preemption and host maintenance, from the metadata server, which answers when a value changes.

https://cloud.google.com/compute/docs/metadata/querying-metadata
https://cloud.google.com/compute/docs/metadata/getting-live-migration-notice
https://cloud.google.com/compute/docs/gpus/gpu-host-maintenance
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from urllib.parse import quote

from dray.notices.asking import TIMEOUT, Answer, ask
from dray.notices.notice import SOON, Notice, NoticeKind, SourceError, plain

PREEMPTED = "preempted"
MAINTENANCE = "maintenance-event"
ROOT = "/computeMetadata/v1/instance/"
HEADERS = {"Metadata-Flavor": "Google"}

MINUTE = 60.0
"""Seconds between the word of maintenance and its begin."""
HOUR = 3600.0
"""The same where there are GPUs: these machines are not moved, but ended."""

_GPU = Path("/dev/nvidiactl")
_NEVER_SEEN = "0"  # no value has this ETag: the answer comes at once
# What a value says when there is something to say; else it is FALSE, or NONE.
_SAYS = {PREEMPTED: re.compile("TRUE"), MAINTENANCE: re.compile("[A-Z_]+_ON_HOST_MAINTENANCE")}


class GcpSource:
    """One value of this instance's metadata: ``preempted`` or ``maintenance-event``.

    A look waits up to ``wait`` seconds for a change, so a preemption is known the moment it is announced.
    """

    name = "gcp"
    pause = 1.0  # where the server does not wait

    def __init__(self, key: str, base_url: str, *, wait: int = 10, gpu: Path = _GPU) -> None:
        self.key = key
        self._base_url = base_url
        self._wait = wait
        self._etag = _NEVER_SEEN
        self._ahead = HOUR if gpu.exists() else MINUTE
        self._was_calm = False

    def poll(self) -> list[Notice]:
        """The notice in force, if there is one; returns when the value changes or ``wait`` seconds passed."""
        etag, self._etag = self._etag, _NEVER_SEEN  # after a fault the value is read again
        waits = 0 if etag == _NEVER_SEEN else self._wait
        query = f"?wait_for_change=true&last_etag={quote(etag, safe='')}&timeout_sec={self._wait}"
        answer = ask(self._base_url, f"{ROOT}{self.key}{query}", headers=HEADERS, timeout=waits + TIMEOUT)
        value = value_of(answer, self.key)
        self._etag = answer.headers.get("etag") or _NEVER_SEEN
        found = noticed(self.key, value, time.time(), ahead=self._ahead if self._was_calm else None)
        self._was_calm = self._was_calm or not found
        return found


def value_of(answer: Answer, key: str) -> str:
    """The value in an answer.

    Raises:
        SourceError: it is no answer of GCP's, or none now: the server says 503 while it is worked on.
    """
    if answer.status != 200 or answer.headers.get("metadata-flavor") != "Google":
        raise SourceError(f"GET {ROOT}{key}: status {answer.status}")
    return plain(answer.text)


def noticed(key: str, value: str, now: float, *, ahead: float | None = None) -> list[Notice]:
    """The notice that a value means. GCP names no time: a preempted machine has 30 s from the notice.

    ``ahead`` is how long before maintenance the value changes, in seconds; None where it was there already
    when it was first read.
    """
    if not _SAYS[key].fullmatch(value):
        return []
    preempted = key == PREEMPTED
    left = SOON if preempted else ahead
    notice = Notice(
        source=GcpSource.name,
        kind=NoticeKind.INTERRUPTION if preempted else NoticeKind.MAINTENANCE,
        action=PREEMPTED if preempted else value,
        deadline=None if left is None else now + left,
        seen_at=now,
        id=f"gcp/{key}/{value}",
    )
    return [notice]
