"""A store that the driver has opened, and the stable nodes cannot: no shard task could commit a row."""

from __future__ import annotations

from collections.abc import Callable

from dray.cluster.store_reach import Reached
from dray.driver.events import Event, Warned
from dray.driver.fleet import Fleet
from dray.errors import JobBlockedError
from dray.report.wording import plural

_ADVICE = (
    "shard tasks write to it from there: give --store an address that those nodes reach (not localhost), and "
    "a password that they have too (PGPASSWORD and .pgpass are this machine's alone)"
)


class ReachWatch:
    """Has the stable nodes say, beside the start of the engines, whether they can open the store."""

    def __init__(self, fleet: Fleet, store_url: str, emit: Callable[[Event], None]) -> None:
        self._fleet = fleet
        self._store_url = store_url
        self._emit = emit
        self._known = False
        self._doubtful = False

    def doubt(self) -> None:
        """The store is away from the driver too: what the nodes say of this time tells nothing."""
        self._doubtful = True

    def look(self) -> None:
        """Look whether all have answered, and tell what is wrong.

        Raises:
            JobBlockedError: none of them can open it.
        """
        answers = None if self._known else self._fleet.store_reach(self._store_url)
        if answers is None:
            return
        if self._doubtful:  # the next look asks again
            self._doubtful = False
            return
        self._known = True
        refusals = [one for one in answers if one.refusal is not None]
        if not refusals:
            return
        told = _told(refusals, of=len(answers))
        if len(refusals) == len(answers):
            raise JobBlockedError(f"{told}; when that is mended, `dray resume` goes on")
        self._emit(Warned(line=told))


def _told(refusals: list[Reached], *, of: int) -> str:
    first = refusals[0]
    count = plural(of, "stable node") if len(refusals) == of else f"{len(refusals)} of {of} stable nodes"
    return f"this driver can open the store, and {count} cannot (on {first.host}: {first.refusal}); {_ADVICE}"
