"""Interruptions: notices of a node's end, and what to do about the loss of one.

>>> host = detect()
>>> with Watcher(host.sources, on_notice=print):
...     ...
"""

from dray.spot.causes import Cause, Decision, Facts, decide
from dray.spot.detecting import BaseUrls, Host, detect
from dray.spot.notices import Kind, Notice, Source, SourceError
from dray.spot.signs import ErrorFacts, facts_of
from dray.spot.term import TermSource
from dray.spot.watcher import Watcher

__all__ = [
    "BaseUrls",
    "Cause",
    "Decision",
    "ErrorFacts",
    "Facts",
    "Host",
    "Kind",
    "Notice",
    "Source",
    "SourceError",
    "TermSource",
    "Watcher",
    "decide",
    "detect",
    "facts_of",
]
