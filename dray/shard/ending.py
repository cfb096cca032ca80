"""The early end of an attempt: what it was, and what is done about it."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from dray.codes import ErrorCode
from dray.errors import DrayError, ExpiredError, JobFailedError, StoreError, raised_at
from dray.failures.causes import Decision, decide
from dray.failures.conditions import is_spot
from dray.failures.effects import OnShard, OnTask, Wait
from dray.failures.facts import Cause, Facts
from dray.failures.foreign import Sign
from dray.failures.rules import STORE_PATIENCE
from dray.failures.signs import ErrorFacts, facts_of
from dray.places import place_of
from dray.requests.media.medium import MEDIA
from dray.requests.model import Outcome
from dray.requests.spool.spool import decode
from dray.shard import budgets
from dray.shard.commit_outage import CommitOutage, advised
from dray.shard.committing import publish
from dray.shard.media_files import MediaAwayError
from dray.shard.open_rows import Finished, open_lines
from dray.shard.placing import Place
from dray.shard.pump import Fed
from dray.shard.splitting import parts_of
from dray.shard.verdicts import evidence, node_alive, verdict_on
from dray.shard.work import AttemptEnd, AttemptResult, OpenWork, ShardReceipt
from dray.store import AttemptCause, Charge, ShardLease, ShardSnapshot, Verdict, own_event
from dray.triggers import Point, reach

_DEATHS = frozenset({Sign.LOST, Sign.ENGINE_DEAD, Sign.OOM})
_UNREAD = Wait(5.0, 60.0)  # before a shard whose requests could not be read is tried again


@dataclass(frozen=True)
class Ending:
    """The end of an attempt that did not finish its shard: what it was, and what is done about it."""

    work: OpenWork
    lease: ShardLease
    place: Place
    fed: Fed
    tries: int
    unread_seconds: float
    outage: CommitOutage

    @property
    def node(self) -> str | None:
        """The replica's."""
        return self.place.node

    @property
    def at(self) -> str | None:
        """The replica's place, as budgets have it."""
        return place_of(self.node, self.place.client.name)

    def of(self, error: BaseException) -> AttemptResult:
        """Decide what follows from ``error``, and do it: release, split or refuse what is left of the shard.

        Where the store does not answer, nothing is written: the shard's lease ends by itself.
        """
        told = _told(error)
        try:
            verdict = self._verdict(told) if told.sign in _DEATHS else None
            snapshot = self.work.store.snapshot(self.lease)
        except StoreError:
            return self._without_store(told, error)
        decision, unread = self._decide(error, told, snapshot, verdict)
        charged = self._charges(decision, verdict)
        try:
            cause = AttemptCause.SPOOL_AWAY if unread else decision.cause
            receipt = self._carry_out(decision, snapshot, charged, cause)
        except OSError as cannot:
            decision, receipt, unread = self._put_off(decision, cannot, charged), None, True
        return AttemptResult(
            how=_how(decision, receipt),
            receipt=receipt,
            decision=decision,
            note=self._note(error, snapshot),
            unread=unread,
            moved=snapshot.shard.terminal > self.lease.terminal,
        )

    def _without_store(self, told: ErrorFacts, error: BaseException) -> AttemptResult:
        outage = 0.0 if _is_unread(error) else self.outage.seconds
        decision = advised(decide(told, Facts(untaken_seconds=outage, tries=self.tries)))
        return AttemptResult(how=AttemptEnd.INTERRUPTED, decision=decision, note="the store is away")

    def _decide(
        self, error: BaseException, told: ErrorFacts, snapshot: ShardSnapshot, verdict: Verdict | None
    ) -> tuple[Decision, bool]:
        """What is to be done, and whether it is because the shard's requests cannot be read."""
        unread = _is_unread(error)
        facts = replace(
            self._facts(snapshot, verdict),
            expired=isinstance(error, ExpiredError) or snapshot.signals.expired,
            store_seconds=self.unread_seconds if unread else 0.0,
            untaken_seconds=0.0 if unread else self.outage.seconds,
        )
        decision = decide(told, facts)
        if unread and decision.cause in (Cause.STORE_TRANSIENT, Cause.STORE_FATAL):  # not cancelled
            return replace(decision, reason=self._unread_reason(decision, told, error)), True
        return advised(decision), False

    def _note(self, error: BaseException, snapshot: ShardSnapshot) -> str:
        """A line that says the node, and what was kept."""
        shard = snapshot.shard
        done = shard.rows - shard.remaining
        kept = f"it ran on node {self.place.host}; {done} of {shard.rows} rows are kept"
        own_words = isinstance(error, StoreError | JobFailedError)  # they say what to do, and quote nothing
        return f"{error}; {kept}" if own_words else kept

    def _verdict(self, told: ErrorFacts) -> Verdict | None:
        """Say what the end of the replica looked like, and hear what it was; None without a judgement.

        A node that is being taken back explains all that ends there: the driver may have ended the replica.
        """
        store = self.work.store
        store.testify(self.lease, evidence(told, self.lease, proven=self.fed.proven))
        snapshot = store.snapshot(self.lease)
        if is_spot(told, Facts(now=snapshot.now, notices=snapshot.notices)):
            return None
        return verdict_on(store, self.lease, self.work.verdict_seconds)

    def _facts(self, snapshot: ShardSnapshot, verdict: Verdict | None) -> Facts:
        """What the store knows about the shard, and the driver about its replica."""
        store, job_id, shard = self.work.store, self.lease.job_id, snapshot.shard
        event = verdict.event if verdict else self._event  # this loss is not among those before it
        return Facts(
            now=snapshot.now,
            notices=snapshot.notices,
            preempted=verdict is not None and verdict.cause == Cause.SPOT,
            node_alive=node_alive(verdict),
            oom=verdict is not None and verdict.cause == Cause.OOM,
            cancelled=snapshot.signals.cancelled,
            rows=shard.remaining,
            alone=self.lease.suspect,  # the store has placed it so
            proven=self.fed.proven,
            elsewhere=snapshot.elsewhere,
            new_rows=snapshot.new_rows,
            interruptions=shard.interruptions,
            crashes=shard.crashes,
            tries=self.tries,
            shrinks=budgets.shrinks(store, job_id, event=event),
            spent=budgets.spent(store, job_id, self.at, event=event),
        )

    @property
    def _event(self) -> str:
        """What names the losses that are this attempt's own."""
        return own_event(self.lease.number, self.lease.epoch)

    def _charges(self, decision: Decision, verdict: Verdict | None) -> list[Charge]:
        """What the driver has not charged: it charges all losses but those of nodes that are taken back."""
        if verdict is not None and verdict.cause != Cause.SPOT:
            return []
        return budgets.charges(decision, self.at, event=self._event)

    def _unread_reason(self, decision: Decision, told: ErrorFacts, error: BaseException) -> str:
        paused = decision.effect.task is OnTask.PAUSE
        since = f" for {STORE_PATIENCE / 60:.0f} minutes" if self.unread_seconds >= STORE_PATIENCE else ""
        advice = "; look at its disk or object store: network, address, keys" if paused else ""
        away = getattr(error, "filename2", None)
        medium = next((one for one in MEDIA if away and self.work.roots.get(one.root) == away), None)
        what = f"the {medium.name}s below {away}" if medium else f"the requests in {self.work.shard.uri}"
        # Other errors may name a row's file.
        why = str(error) if isinstance(error, MediaAwayError) else told.name
        return f"{decision.cause}: {what} cannot be read{since} ({why}){advice}"

    def _carry_out(
        self, decision: Decision, snapshot: ShardSnapshot, charged: Sequence[Charge], cause: str
    ) -> ShardReceipt | None:
        store, lease = self.work.store, self.lease
        on_shard = decision.effect.shard
        if on_shard is OnShard.DROP:
            return None
        with suppress(StoreError):  # the lease ends by itself
            if on_shard in (OnShard.SPLIT, OnShard.HALVE):
                reach(Point.SPLIT_BEFORE)
                parts = parts_of(
                    snapshot.shard, self._finished(snapshot), self.fed.position, self.work.objects
                )
                store.split_shard(
                    lease,
                    parts,
                    cause=decision.cause,
                    detail=decision.reason,
                    suspect=on_shard is OnShard.SPLIT,
                    charged=charged,
                )
                reach(Point.SPLIT_AFTER)
            elif on_shard is OnShard.REFUSE:
                store.charge(lease, charged)
                return self._refuse_rows(decision, snapshot)
            else:
                self._release(decision, charged, cause)
        return None

    def _put_off(self, decision: Decision, unread: OSError, charged: Sequence[Charge]) -> Decision:
        """Release the shard with its cause: the rows to split or refuse cannot be read just now."""
        reason = f"{decision.reason}; its requests cannot be read just now ({type(unread).__name__})"
        too_long = self.unread_seconds >= STORE_PATIENCE
        effect = replace(
            decision.effect,
            code=None,
            shard=OnShard.RELEASE,
            task=OnTask.PAUSE if too_long else OnTask.RETRY,
            wait=_UNREAD,
        )
        delay = _UNREAD.seconds(self.tries, random.Random())  # noqa: S311  spreads load
        later = replace(decision, effect=effect, delay=delay, reason=reason)
        with suppress(StoreError):  # the lease ends by itself
            self._release(later, charged, later.cause)
        return later

    def _release(self, decision: Decision, charged: Sequence[Charge], cause: str) -> None:
        reach(Point.RELEASE_BEFORE)
        self.work.store.release_shard(
            self.lease,
            cause=cause,
            detail=decision.reason,
            suspect=decision.effect.shard is OnShard.SUSPECT,
            charged=charged,
        )
        reach(Point.RELEASE_AFTER)

    def _finished(self, snapshot: ShardSnapshot) -> Finished:
        return Finished.of(self.work.store, self.lease.job_id, snapshot.shard.terminal)

    def _refuse_rows(self, decision: Decision, snapshot: ShardSnapshot) -> ShardReceipt:
        """Error rows for what is left of the shard: the one request that engines die under."""
        shard, began = snapshot.shard, time.monotonic()
        code = decision.effect.code or "poison"
        rows = [
            refused(line, code, VERDICTS[code])
            for chunk in open_lines(shard, self._finished(snapshot), self.work.objects)
            for line in chunk.lines
        ]
        publish(self.work.store, self.lease, rows)
        self.work.store.finish_shard(self.lease)
        return ShardReceipt(
            number=shard.number,
            rows=len(rows),
            skipped=shard.terminal,
            seconds=time.monotonic() - began,
            last_commit=time.time(),
            replica=self.lease.replica or "",
        )


VERDICTS = {
    "poison": "engines died under this request, alone in an engine each time",
    "out_of_memory": "memory did not suffice for this request, alone in an engine each time",
}
"""What the error rows say of requests that end engines, by their code."""


def refused(line: bytes, code: ErrorCode, message: str) -> Outcome:
    """The error row of a line of the spool."""
    return decode(line).refused(code, message)


def _is_unread(error: BaseException) -> bool:
    """Whether the shard's requests could not be read: nothing else that an attempt touches raises these."""
    return isinstance(error, OSError)


def _told(error: BaseException) -> ErrorFacts:
    """What the error says, as the table of causes has it."""
    told = facts_of(error)
    if told.sign is not Sign.OTHER:
        return told
    if _is_unread(error):  # of a network's file system: stale, not connected
        return replace(told, sign=Sign.STORE_AWAY)
    if not isinstance(error, DrayError):  # its class alone leads nowhere
        return replace(told, name=f"{told.name}{raised_at(error)}")
    return told


def _how(decision: Decision, receipt: ShardReceipt | None) -> AttemptEnd:
    if receipt is not None:
        return AttemptEnd.DONE
    return AttemptEnd.STOPPED if decision.cause is Cause.CANCEL else AttemptEnd.INTERRUPTED
