"""The order in which a job's rows run: what its user says, or what the rows tell.

The settings of the order are noted with the job: a spool that is lost is written again as it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from dray.job.options.settings import JobSettings
from dray.requests.spool.arranging import Arrange, Arrangement
from dray.store import Job

if TYPE_CHECKING:
    from dray.planner.order.arranging import RowOrder

ORDER = "order"
"""Where the job's ``info`` has the order of its rows; jobs of earlier versions have that of the input."""

LEAST_ROWS = 256
"""Fewer rows run together in most engines, in whatever order they come."""

_PIECES_PER_REPLICA = 4
"""A group of rows with a common prefix stays whole up to this part of what a replica has to do."""


@dataclass
class Ordering:
    """The order of one job's rows. It imports the planner when there are many.

    ``asked`` is input, prefix or auto, ``pieces`` how many parts of the rows each group is smaller than, and
    ``cached`` whether engines have a prefix cache.
    """

    asked: str
    pieces: int
    cached: bool
    _order: RowOrder | None = field(default=None, repr=False)

    @classmethod
    def of(cls, recorded: Job, settings: JobSettings, replicas: int) -> Ordering:
        """The order with which the job began; for a new job, the one that its settings ask for."""
        noted = recorded.info.get(ORDER, {})
        if recorded.total is not None:
            return cls(noted.get("asked", "input"), noted.get("pieces", 1), noted.get("cached", True))
        cached = settings.engine_arguments.get("enable_prefix_caching") is not False
        return cls(settings.request.engine.order, _PIECES_PER_REPLICA * replicas, cached)

    @property
    def arrange(self) -> Arrange | None:
        """Give lines of the spool their order; None for the order of the input."""
        return None if self.asked == "input" else self._arranged

    def _arranged(self, lines: Iterable[bytes]) -> Arrangement | None:
        if self.asked == "auto" and sum(1 for _ in islice(lines, LEAST_ROWS)) < LEAST_ROWS:
            return None
        if self._order is None:
            from dray.planner.order.arranging import RowOrder

            self._order = RowOrder(always=self.asked == "prefix", cached=self.cached, pieces=self.pieces)
        return self._order(lines)

    def noted(self) -> dict[str, Any]:
        """What the job's ``info`` is to have of it."""
        found: dict[str, Any] = {"asked": self.asked, "pieces": self.pieces, "cached": self.cached}
        if self._order is not None and self._order.shares is not None:
            shared, given = self._order.shares
            found |= {"ordered": self._order.ordered, "shared": round(shared, 4), "given": round(given, 4)}
        return found

    def line(self) -> str | None:
        """A line that says the order, and why; None where there is nothing to tell."""
        if self._order is None:
            return None
        if self._order.shares is None:
            return (
                "rows run in the order of the input: few of them begin alike" if self._order.apart else None
            )
        shared, given = self._order.shares
        figures = (
            f"{shared:.0%} of the prompts is shared with the row before, {given:.0%} in the input's order"
        )
        if not self._order.ordered:
            return f"rows run in the order of the input: by prefixes, {figures}"
        long_first = "; long answers begin first" if self._order.by_length else ""
        return f"rows run by their prefixes: {figures}{long_first}"
