"""Notices of a node's end: what clouds and Kubernetes announce, and a watcher that asks them.

>>> host = detect_cloud(BaseUrls())
>>> with Watcher(host.sources, on_notice=print):
...     ...
"""

from __future__ import annotations

from dray.notices.detecting import BaseUrls, Host, detect_cloud, pod_sources
from dray.notices.notice import Notice, NoticeKind, Source, SourceError
from dray.notices.watcher import Watcher

__all__ = [
    "BaseUrls",
    "Host",
    "NoticeKind",
    "Notice",
    "Source",
    "SourceError",
    "Watcher",
    "detect_cloud",
    "pod_sources",
]
