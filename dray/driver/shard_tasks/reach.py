"""What the driver reaches and the stable nodes do not: without it no shard task could commit a row there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dray.cluster.reach import Needs
from dray.driver.events import Event, Warned
from dray.driver.fleet import Fleet
from dray.errors import JobBlockedError
from dray.job.options.settings import JobSettings
from dray.store import Shard
from dray.wording import plural

_STORE = (
    "shard tasks write to it from there: give --store an address that those nodes reach (not localhost), and "
    "a password that they have too (PGPASSWORD and .pgpass are this machine's alone); "
    "then `dray resume JOB` goes on"
)
_REQUESTS = (
    "shard tasks read them there: the output folder, in which they lie, must be one that those nodes have at "
    "the same path, or an object store that they may read; the same command with such an --output goes on"
)
_FILES = (
    "shard tasks read them there: the folder must be one that those nodes have at the same path, or an "
    "object store; start the job anew with another one, under a new id"
)


class ReachWatch:
    """Has the stable nodes say, beside the start of the engines, whether they reach all that tasks need."""

    def __init__(self, fleet: Fleet, needs: Needs, emit: Callable[[Event], None]) -> None:
        self._fleet = fleet
        self._needs = needs
        self._emit = emit
        self._known = False
        self._doubtful = False

    def doubt(self) -> None:
        """The store is away from the driver too: what the nodes say of this time tells nothing."""
        self._doubtful = True

    def look(self) -> None:
        """Look whether all have answered, and tell what is wrong.

        Raises:
            JobBlockedError: none of them reaches the store, the requests, or the files that rows name.
        """
        answers = None if self._known else self._fleet.reached(self._needs)
        if answers is None:
            return
        if self._doubtful:  # the next look asks again
            self._doubtful = False
            return
        self._known = True
        self._tell("open the store", [(one.host, one.store) for one in answers], _STORE)
        read = f"read the requests in {self._needs.requests}"
        self._tell(read, [(one.host, one.requests) for one in answers], _REQUESTS)
        self._tell("read the files that rows name", [(one.host, one.files) for one in answers], _FILES)

    def _tell(self, what: str, answers: Sequence[tuple[str, str | None]], advice: str) -> None:
        """``answers`` has what is wrong on each node, None where nothing is."""
        refusals = [f"on {host}: {why}" for host, why in answers if why is not None]
        if not refusals:
            return
        everywhere = len(refusals) == len(answers)
        nodes = plural(len(answers), "stable node")
        count = nodes if everywhere else f"{len(refusals)} of {nodes}"
        told = f"this driver can {what}, and {count} cannot ({refusals[0]}); {advice}"
        if everywhere:
            raise JobBlockedError(told)
        self._emit(Warned(line=told))


def needs_of(settings: JobSettings, shards: Sequence[Shard]) -> Needs:
    """What shard tasks of the job need: the first of the shards stands for all."""
    requests = shards[0].uri if shards else None
    roots = tuple(settings.media_roots.values())
    return Needs(store_url=settings.store_url, requests=requests, roots=roots, options=settings.objects)
