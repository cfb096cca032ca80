"""One attempt at a shard: get it a replica, run it, and decide what follows when that ends early."""

from __future__ import annotations

from collections.abc import Callable

from dray.shard.commit_outage import CommitOutage
from dray.shard.ending import Ending
from dray.shard.placing import Place, wait_for_place
from dray.shard.pump import Fed, run_shard
from dray.shard.work import AttemptEnd, AttemptResult, OpenWork
from dray.store import ShardLease


def attempt(
    work: OpenWork,
    *,
    tries: int = 0,
    unread_seconds: float = 0.0,
    outage: CommitOutage | None = None,
    on_answer: Callable[[], None] = lambda: None,
    on_start: Callable[[str], None] = lambda replica: None,
) -> AttemptResult:
    """Wait for a place on a replica, and run the shard there. ``tries``: attempts of one cause before this.

    ``unread_seconds``: for so long, attempts at this shard could not read its requests. ``outage``: the same
    of rows that could not be committed. ``on_answer``: the store has taken a write.

    Raises:
        FencedError: another driver has the job.
        StoreError: the store is away, or takes no writes; a lease that there is by then is left to lapse.
    """
    outage = outage or CommitOutage()
    while True:
        lease = wait_for_place(work, on_answer)
        if not isinstance(lease, ShardLease):
            return AttemptResult(how=lease)
        place = Place.of(work, lease)
        if place is not None:
            break
    on_start(place.client.name)
    fed = Fed()
    try:
        receipt = run_shard(work, lease, place, fed, outage)
    except Exception as error:  # noqa: BLE001  the table of causes knows what to do with each
        return Ending(work, lease, place, fed, tries, unread_seconds, outage).of(error)
    return AttemptResult(how=AttemptEnd.DONE, receipt=receipt)
