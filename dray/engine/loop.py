"""The step loop: one thread owns the engine, feeds it between steps, hands out what finished."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from dray import history
from dray.engine.admission import Held, sequence_limit, sequences_of
from dray.engine.batches import BATCH_BYTES, bounded, cut
from dray.engine.intake import Intake
from dray.engine.loop_stats import LoopStats, RowClock
from dray.engine.protocol import Engine, EngineInfo
from dray.engine.sessions import SILENCE_SECONDS, Session, Sessions, Taken
from dray.errors import EngineDeadError, ReplicaLeftError, RequestRefused
from dray.failures.signs import death_by
from dray.requests.model import Outcome, Request
from dray.requests.spool.spool import decode
from dray.triggers import Point, reach

_LOOK_SECONDS = 1.0  # between looks at an engine that holds nothing
_ADMIT_SECONDS = 0.5  # between two steps: rows that are refused at once could be admitted without an end


class StepLoop(threading.Thread):
    """Runs one engine for many sessions.

    ``build`` makes the engine inside the thread that steps it: thread pools of the engine's
    libraries belong to the thread that created them. ``on_dead`` is called, in that thread, when the
    engine cannot go on. ``silence`` is how many seconds a shard task elsewhere may say nothing.
    """

    def __init__(
        self,
        build: Callable[[], Engine],
        *,
        on_dead: Callable[[BaseException], None],
        trace: Path | None = None,
        silence: float = SILENCE_SECONDS,
    ) -> None:
        super().__init__(name="dray-step-loop", daemon=True)
        self._build = build
        self._on_dead = on_dead
        self._trace = trace
        self._silence = silence
        self._wake: Callable[[], object] = bool  # the engine's, once there is one
        self._changed = threading.Condition()
        self._sessions = Sessions()
        self._owners: dict[int, Session] = {}
        self._keys = itertools.count()
        self._held = Held()
        self._intake = Intake(self._sessions, self._held)  # its rows are of the loop's thread alone
        self._admits = False  # whether the engine reads rows now
        self._stopping = False
        self._to_abort: list[int] = []
        self._end: EngineDeadError | None = None  # why nothing more will come out
        self._leave_at: float | None = None  # monotonic; drained by then, set by ``drain``
        self._produced = 0
        self._moved_at = time.monotonic()
        self.started = threading.Event()
        self.start_error: BaseException | None = None
        self.info: EngineInfo | None = None
        self.ready_at = 0.0  # when the engine could take work, in seconds since 1970
        self.stats = LoopStats()
        self._clock = RowClock(self.stats)

    # -- called by other threads ------------------------------------------------------------

    def check(self) -> None:
        """Raise what keeps the loop from taking work: EngineDeadError or ReplicaLeftError."""
        if self._end is not None:
            raise self._end
        if self._leave_at is not None:
            raise ReplicaLeftError("the replica is being drained")

    def feed(self, name: str, lines: list[bytes], *, last: bool, number: int | None = None) -> None:
        """Queue spool lines; ``last`` says that no more follow.

        ``number`` counts the calls for this session from 0, where they come from another process and may
        overtake each other. If that process falls silent, the session ends.
        """
        with self._changed:
            session = self._sessions.of(name)
            if session.aborted:
                return
            if number is not None:
                session.heard = time.monotonic()
            if self._leave_at is None:
                session.waiting.extend(lines)
            else:
                session.left = True  # the next attempt at the shard feeds them
            session.fed += 1
            if last:
                session.feeds = session.fed if number is None else number + 1
            self._rouse()

    def heartbeat(self, name: str) -> None:
        """The shard task of this session lives."""
        with self._changed:
            self._sessions.heartbeat(name)

    def end_silent(self, late: float = 0.0) -> None:
        """Abort sessions whose shard tasks elsewhere said nothing too long, ``late`` seconds not counted."""
        with self._changed:
            for name in self._sessions.silent(self._silence, late):
                self.abort(name, silent=True)

    def abort(self, name: str, *, silent: bool = False) -> None:
        """Drop everything unfinished of a session; its readers see its end."""
        with self._changed:
            session = self._sessions.abort(name, silent=silent)
            if session is not None:
                self._to_abort.extend(session.unfinished)
                self._rouse()

    def batches(self, name: str, *, rows: int, seconds: float) -> Iterator[list[Outcome]]:
        """Yield finished outcomes in micro-batches, until the session is over.

        A batch leaves when it holds ``rows`` outcomes or `BATCH_BYTES`, or ``seconds`` after its first one
        finished. None holds more than `BATCH_BYTES`, except one of a single row.

        Raises:
            EngineDeadError: the loop has ended, and rows of this session are unfinished.
            ReplicaLeftError: the replica was drained, and rows of this session are unfinished.
            LeaseLapsedError: the reader was silent for too long, and the session was aborted.
        """
        with self._changed:
            session = self._sessions.of(name)
        while True:
            with self._changed:
                self._await_batch(session, rows, seconds)
                if self._intake.is_full():
                    self._changed.notify_all()  # the engine gets rows again
                batch, session.finished, session.ready = session.finished, [], 0
                over, drained, end = session.over, self._drained(session), self._end
                if over or drained:
                    self._sessions.forget(name)
            yield from cut(batch)
            session.check_heard()
            if over:
                return
            if end is not None:
                raise end
            if drained:
                raise ReplicaLeftError("the replica was drained")

    def _await_batch(self, session: Session, rows: int, seconds: float) -> None:
        """Wait, with the lock, for a first outcome; then ``seconds`` at most, until a batch is full."""

        def ended() -> bool:
            return session.over or self._end is not None or self._drained(session)

        def is_full() -> bool:
            return len(session.finished) >= rows or session.ready >= BATCH_BYTES

        self._changed.wait_for(lambda: session.finished or ended())
        self._changed.wait_for(lambda: is_full() or ended(), timeout=seconds)

    def load(self) -> tuple[int, int]:
        """Requests inside the engine, and requests waiting to enter it."""
        with self._changed:
            waiting = sum(len(session.waiting) + session.in_hand for session in self._sessions)
            return len(self._owners), waiting

    @property
    def sessions(self) -> int:
        """Sessions whose readers have not seen their end yet."""
        return len(self._sessions)

    def drain(self, seconds: float) -> None:
        """Admit nothing more; what is not finished in ``seconds`` is dropped, and every session ends."""
        with self._changed:
            if self._leave_at is not None:
                return
            self._leave_at = time.monotonic() + seconds
            for session in self._sessions:
                session.left = session.left or bool(session.waiting) or not session.fed_all
                session.waiting.clear()
            self._changed.notify_all()
        timer = threading.Timer(seconds, self._drop_all)
        timer.daemon = True
        timer.start()

    def _drop_all(self) -> None:
        with self._changed:
            for session in self._sessions:
                session.left = session.left or session.busy
                self._to_abort.extend(session.unfinished)
            self._rouse()

    def _drained(self, session: Session) -> bool:
        """Whether nothing more comes of a session because the replica leaves."""
        if self._leave_at is None or not session.left:
            return False
        return not session.busy or time.monotonic() >= self._leave_at

    def idle_seconds(self) -> float | None:
        """Seconds since the engine got further with what it holds; None where it holds nothing."""
        with self._changed:
            return time.monotonic() - self._moved_at if self._owners or self._admits else None

    def fail(self, end: EngineDeadError) -> None:
        """End every session with this error: its readers wake, and nothing more will come."""
        with self._changed:
            self._end = end
            self._changed.notify_all()

    def fail_start(self, error: BaseException) -> bool:
        """The engine that is being built will never be ready; False where it is."""
        with self._changed:
            if self.started.is_set():
                return False
            self.start_error = error
            self.fail(EngineDeadError("the engine did not start"))
            self.started.set()
            return True

    def stop(self) -> None:
        """End the loop after the step that is under way."""
        with self._changed:
            self._stopping = True
            self._rouse()

    def _rouse(self) -> None:
        self._changed.notify_all()
        self._wake()

    # -- the loop ---------------------------------------------------------------------------

    def run(self) -> None:
        """Build the engine, then step it until stopped."""
        try:
            engine = self._build()
        except BaseException as error:  # noqa: BLE001  process edge: raised where the start is awaited
            self.fail_start(error)
            return
        self.info = engine.info
        self._wake = engine.wake
        self.ready_at = time.time()
        with self._changed:
            self.started.set()
        try:
            while self._turn(engine):
                pass
            self.fail(EngineDeadError("the engine was stopped"))
        except BaseException as error:  # noqa: BLE001  process edge: a broken engine ends the process
            self.fail(death_by(error))
            self._on_dead(error)
        finally:
            engine.close()

    def _turn(self, engine: Engine) -> bool:
        while not self._wait_for_work():
            engine.check()
        if self._stopping:
            return False
        if self._to_abort:
            self._abort_in(engine)
        self._admit(engine)
        if self._owners:
            began = time.monotonic()
            finished = engine.step()
            self._note_progress(engine)
            self._clock.step(time.monotonic() - began)
            if finished:
                self._deliver(finished)
        return True

    def _note_progress(self, engine: Engine) -> None:
        produced = engine.produced()
        if produced != self._produced:
            self._produced, self._moved_at = produced, time.monotonic()
        self.stats.note_tuned(engine.tuned())

    def _wait_for_work(self) -> bool:
        """Whether there is something to do; False after a while without."""
        with self._changed:
            return self._changed.wait_for(self._has_work, _LOOK_SECONDS)

    def _has_work(self) -> bool:
        return bool(self._owners or self._to_abort or self._stopping) or self._intake.has_more()

    def _abort_in(self, engine: Engine) -> None:
        with self._changed:
            keys, self._to_abort = self._to_abort, []
        engine.abort(keys)
        for key in keys:
            session = self._owners.pop(key, None)
            self._clock.leave(key, answered=False)
            if session is not None:
                self._held.remove(*session.unfinished.pop(key))

    def _admit(self, engine: Engine) -> None:
        """Put rows into the engine until it has enough, or the next step is due."""
        if not self._owners:
            self._moved_at = time.monotonic()  # an idle engine does not stand still
        limit, until = sequence_limit(engine.info.max_num_seqs), time.monotonic() + _ADMIT_SECONDS
        self._admits = True
        while self._take(limit) and self._admit_taken(engine, limit, until):
            pass
        self._admits = False

    def _take(self, limit: int) -> bool:
        """Have rows in hand. False where nothing is left to admit."""
        with self._changed:
            if self._intake.drop(leaving=self._leave_at is not None):
                self._changed.notify_all()
            return self._intake.take(limit)

    def _admit_taken(self, engine: Engine, limit: int, until: float) -> bool:
        """Put rows in hand into the engine, in order; False where the next one has to wait."""
        rows = self._intake.rows
        while rows:
            if time.monotonic() > until:
                return False
            taken = rows[0]
            if taken.request is not None or self._read(taken):
                if not self._held.takes(taken.sequences, len(taken.line), limit=limit):
                    return False
                self._submit(engine, taken)
            rows.popleft()
        return True

    def _read(self, taken: Taken) -> bool:
        """Decode a row and weigh it; False when it was refused and is finished already."""
        request = taken.request = decode(taken.line)
        try:
            taken.sequences = sequences_of(request, len(taken.line))
        except RequestRefused as error:
            self._begin(taken, request)
            self._refuse(taken, error)
            return False
        return True

    def _begin(self, taken: Taken, request: Request) -> None:
        reach(Point.REPLICA_ADMIT)
        self._note("admit", request)
        history.admitted(taken.session.name, [request])
        self.stats.admitted += 1

    def _submit(self, engine: Engine, taken: Taken) -> None:
        """Put one row into the engine; a refused one is finished already."""
        assert taken.request is not None
        self._begin(taken, taken.request)
        key = next(self._keys)
        try:
            engine.submit(key, taken.request)
        except RequestRefused as error:
            self._refuse(taken, error)
            return
        session, weight = taken.session, (taken.sequences, len(taken.line))
        with self._changed:
            session.in_hand -= 1
            session.unfinished[key] = weight
            self._owners[key] = session
            self._clock.enter(key)
            self._held.add(*weight)
            if session.aborted:
                self._to_abort.append(key)

    def _refuse(self, taken: Taken, error: RequestRefused) -> None:
        assert taken.request is not None
        refusal = taken.request.refused(error.code, error.message)
        with self._changed:
            taken.session.in_hand -= 1
            taken.session.finish(refusal)
            self.stats.finished += 1
            self._changed.notify_all()

    def _deliver(self, finished: list[tuple[int, Outcome]]) -> None:
        reach(Point.REPLICA_DELIVER)
        now = time.time()
        with self._changed:
            for key, answer in finished:
                session = self._owners.pop(key, None)
                self._clock.leave(key, answered=True)
                if session is None:
                    continue
                outcome = bounded(answer)
                self._held.remove(*session.unfinished.pop(key))
                session.finish(outcome)
                self.stats.count(outcome, now)
            self._changed.notify_all()

    def _note(self, event: str, request: Request) -> None:
        """Append ``event index`` to the trace file, if one is kept: evidence for tests of resumption."""
        if self._trace is not None:
            with self._trace.open("a") as trace:
                trace.write(f"{event} {request.index}\n")
