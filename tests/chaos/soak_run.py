"""One run of the soak: a job, and the faults that befall it."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dray import store as stores
from dray.errors import DrayError
from dray.job.beginning.opening import open_job
from tests.chaos.soak_cloud import Cloud, Driver, Store
from tests.chaos.soak_driver import Order
from tests.chaos.soak_plan import SIMULATED, VLLM, Fault, Kind, Plan
from tests.chaos.soak_seen import Seen, core_of, held_of, is_tried
from tests.chaos.soak_user import exported, refused_with
from tests.support.command import ROOT

SEQS = 16
SECONDS_PER_TOKEN = 0.01
FAULTS_A_RUN = 8
"""So many and no more, so that a run ends: undisturbed it takes about as long as these."""
LIMIT_SECONDS = {SIMULATED: 240.0, VLLM: 1200.0}
"""A run that takes longer hangs. vLLM starts in 20 s of a core, again for each replica that is lost."""
MODEL = ROOT / "examples/tickets/model"
_CORE_APART = {"engine_core": "apart", "max_model_len": 256, "kv_cache_memory_bytes": 64 << 20}
LEASES = (4.0, 6.0)
"""Seconds of the driver's lease and of a shard's in runs with stalls."""
STALLS_A_RUN = 3
_SLEEPER_SECONDS = 60.0
NODES_A_RUN = 3  # that a run may lose: each costs seconds
DRIVERS_A_RUN = 2
_ENDED = (stores.ReplicaState.GONE, stores.ReplicaState.RETIRED)


@dataclass(kw_only=True)
class Run:
    """A job under faults.

    ``given_up`` are the nodes that no fault killed and Ray found dead, by its names. ``exports`` are the
    lines that each export had.
    """

    plan: Plan
    folder: Path
    inputs: Path
    rows: int
    cloud: Cloud
    driver: Driver
    understudy: Driver
    store: Store
    faulty: bool = True
    faults: list[Fault] = field(default_factory=list)
    given_up: dict[str, str] = field(default_factory=dict)
    exports: list[tuple[bytes, ...]] = field(default_factory=list)
    skipped: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.job = f"soak-{self.plan.number}"
        self.output = self.folder / "out"
        self.history = self.folder / "history"
        self.history.mkdir(parents=True)
        self.log = self.folder / "driver.log"
        self._report = self.folder / "report.json"
        self._opened: stores.Store | None = None
        self._seen = Seen(self.job, self.history, self.opened, self.cloud)
        self._stopped: set[int] = set()
        self._threads: list[threading.Thread] = []
        self._over = threading.Event()
        self._pid = 0

    @property
    def report(self) -> dict[str, Any]:
        """What the last driver said."""
        found: dict[str, Any] = json.loads(self._report.read_text())
        return found

    def go(self) -> None:
        """Run the job to its end."""
        began = time.monotonic()
        try:
            self._go(began)
        except BaseException:
            self._kill_driver()
            raise
        finally:
            self.seconds = time.monotonic() - began
            self._over.set()
            for thread in self._threads:
                thread.join()
            for pid in list(self._stopped):
                self._continue(pid)
            self.given_up = self.cloud.given_up()
            self._note_faults()
            self.cloud.end_condemned()
            self.cloud.settle()

    def close(self) -> None:
        """Let go of the store."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def opened(self) -> stores.Store:
        """The job's store, seen from here."""
        if self._opened is None:
            self._opened = stores.open_store(self.store.url, create=False)
        return self._opened

    # -- the driver -----------------------------------------------------------------------

    def _go(self, began: float) -> None:
        self._start()
        coming = self.plan.faults()
        delay, kind, rng = next(coming)
        due = began + delay
        while True:
            now = time.monotonic()
            faulty = self.faulty and len(self.faults) < FAULTS_A_RUN
            code = self.driver.wait((due if faulty else now + 1.0) - now)
            if code == 0:
                return
            if code is not None:
                assert code == -signal.SIGKILL, f"the driver ended with {code}:\n{self._tail()}"
                self._start()
            elif time.monotonic() - began > LIMIT_SECONDS[self.plan.engine]:
                raise AssertionError(f"not done after {time.monotonic() - began:.0f} s:\n{self._tail()}")
            elif faulty and time.monotonic() >= due:
                self._befall(kind, rng)
                delay, kind, rng = next(coming)
                due = time.monotonic() + delay

    def _start(self) -> None:
        self._pid = self.driver.start(self._order())

    def _order(self) -> Order:
        engine: dict[str, Any] = {"max_num_seqs": SEQS}
        vllm = self.plan.engine == VLLM
        engine |= _CORE_APART if vllm else {"seconds_per_token": SECONDS_PER_TOKEN}
        if self.plan.word:
            engine["oom_on" if self.plan.memory else "crash_on"] = self.plan.word
        settings = self.cloud.raylets.settings
        assert settings.address is not None
        assert settings.auth_token is not None
        return Order(
            job=self.job,
            inputs=str(self.inputs),
            output=str(self.output),
            store=self.store.through,
            history=str(self.history),
            log=str(self.log),
            report=str(self._report),
            address=settings.address,
            token=settings.auth_token,
            shard_rows=-(-self.rows // self.plan.shards),
            engine=engine,
            notices=self.plan.notices,
            model=str(MODEL) if vllm else "simulated",
            leases=LEASES if self.plan.stalls else None,
            apart=self.plan.stalls,
        )

    def _kill_driver(self) -> None:
        if self.driver.running and self._pid:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        while self.driver.running:
            self.driver.wait(10)

    def _tail(self) -> str:
        return self.log.read_text()[-4000:] if self.log.exists() else ""

    def _note_faults(self) -> None:
        lines = [json.dumps(asdict(self.plan))] + [
            json.dumps(asdict(fault), default=sorted) for fault in self.faults
        ]
        lines += [json.dumps({"given up": self.given_up})]
        (self.folder / "faults.jsonl").write_text("\n".join(lines) + "\n")

    # -- the faults -----------------------------------------------------------------------

    def _befall(self, kind: Kind, rng: random.Random) -> None:
        acts: dict[Kind, Callable[[random.Random], bool]] = {
            Kind.REPLICA: self._kill_replica,
            Kind.NODE: self._kill_node,
            Kind.OBEYED: lambda rng: self._announce(rng, obeyed=True),
            Kind.LYING: lambda rng: self._announce(rng, obeyed=False),
            Kind.STOPPED: self._stop_replica,
            Kind.DRIVER: self._end_driver,
            Kind.STALLED: self._stall_driver,
            Kind.TASK: self._stall_task,
            Kind.EXPORT: self._export,
            Kind.SECOND: self._second_job,
            Kind.STORE: self._trouble_store,
        }
        try:
            done = acts[kind](rng)
        except (DrayError, ProcessLookupError):  # no store yet, or no job in it; or the victim has just ended
            done = False
        self.skipped += not done

    def _kill_replica(self, rng: random.Random) -> bool:
        found = sorted(self._seen.at_work().items())
        rng.shuffle(found)
        for name, pid in found:
            if pid in self._stopped:
                continue
            held = self._seen.held([name])
            if any(map(is_tried, held)):
                continue
            node = next((row.node for row in self.opened().replicas(self.job) if row.name == name), None)
            core = core_of(pid) if self.plan.engine == VLLM and rng.random() < 0.5 else None
            at = time.monotonic_ns()
            os.kill(core or pid, signal.SIGKILL)
            self.faults.append(
                Fault(
                    kind=Kind.REPLICA, at=at, replica=name, node=node, held=held_of(held),
                    core=core is not None,
                )
            )  # fmt: skip
            return True
        return False

    def _kill_node(self, rng: random.Random) -> bool:
        number = self._spare_node(rng)
        if number is None:
            return False
        node = self.cloud.node_id(number)
        there = self._seen.replicas_on(node)
        names = [row.name for row in there]
        held = self._seen.held(names)
        if any(map(is_tried, held)):
            return False
        at = self.cloud.kill(number)
        went = [row.name for row in there if row.state not in _ENDED]
        self.faults.append(
            Fault(kind=Kind.NODE, at=at, node=node, replicas=names, went=went, held=held_of(held))
        )
        self.cloud.refill()
        return True

    def _announce(self, rng: random.Random, *, obeyed: bool) -> bool:
        number = self._spare_node(rng)
        if number is None:
            return False
        node = self.cloud.node_id(number)
        fault = Fault(kind=Kind.OBEYED if obeyed else Kind.LYING, at=time.monotonic_ns(), node=node)
        self.cloud.announce(number, rng.choice((10, 30, 120)))
        self.faults.append(fault)
        self.cloud.refill()
        if obeyed:
            self._later(lambda: self._take_back(fault, number, rng.uniform(0.0, 4.0)))
        return True

    def _take_back(self, fault: Fault, number: int, seconds: float) -> None:
        """End an announced node, some time after somebody has heard of it."""
        assert fault.node is not None
        while not self._over.wait(0.1) and not fault.noticed:
            with suppress(DrayError):
                fault.noticed = any(one.node == fault.node for one in self.opened().notices(self.job))
        if fault.noticed and not self._over.wait(seconds):
            self.cloud.kill(number)

    def _stop_replica(self, rng: random.Random) -> bool:
        found = [pid for _, pid in sorted(self._seen.at_work().items()) if pid not in self._stopped]
        if not found:
            return False
        pid, seconds = rng.choice(found), rng.uniform(0.5, 5.0)
        os.kill(pid, signal.SIGSTOP)
        self._stopped.add(pid)
        self.faults.append(Fault(kind=Kind.STOPPED, at=time.monotonic_ns()))

        def go_on() -> None:
            self._over.wait(seconds)
            self._continue(pid)

        self._later(go_on)
        return True

    def _continue(self, pid: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        self._stopped.discard(pid)

    def _end_driver(self, rng: random.Random) -> bool:
        if sum(fault.kind is Kind.DRIVER for fault in self.faults) >= DRIVERS_A_RUN:
            return False
        at = time.monotonic_ns()
        os.kill(self._pid, signal.SIGKILL)
        code = self.driver.wait(30)
        assert code is not None, "the driver survives SIGKILL"
        if code != -signal.SIGKILL:  # it had ended by then
            self.driver.tell_again(code)
            return False
        self.faults.append(Fault(kind=Kind.DRIVER, at=at))
        time.sleep(rng.uniform(0.0, 0.3))
        self._start()
        return True

    def _stall_driver(self, rng: random.Random) -> bool:
        """The driver stands still for longer than its lease, and a second one takes the job."""
        stopped, sleeper = self._pid, self.driver
        if self._stalls() >= STALLS_A_RUN or sleeper.ended(stopped):
            return False
        seen = self.opened().get_job(self.job).epoch  # raises before there is a job to take
        os.kill(stopped, signal.SIGSTOP)
        self._stopped.add(stopped)
        at = time.monotonic_ns()
        try:
            time.sleep(LEASES[0] + 0.5)
            if not self.store.takes_writes():  # it was stopped in the midst of one
                return False
            self.faults.append(Fault(kind=Kind.STALLED, at=at))
            self.driver, self.understudy = self.understudy, self.driver
            self._start()
            self._await_epoch(above=seen)
            time.sleep(rng.uniform(0.0, 4.0))
        finally:
            self._continue(stopped)
        if self.driver is not sleeper:
            self._let_go(sleeper)
        return True

    def _await_epoch(self, *, above: int) -> None:
        deadline = time.monotonic() + _SLEEPER_SECONDS
        while self.opened().get_job(self.job).epoch <= above:
            assert time.monotonic() < deadline, f"nobody takes a job whose lease has ended:\n{self._tail()}"
            time.sleep(0.1)

    def _let_go(self, sleeper: Driver) -> None:
        """A driver that stood still finds that another has the job, and ends by itself."""
        code = sleeper.wait(_SLEEPER_SECONDS)
        assert code is not None, f"a driver that lost its job does not end:\n{self._tail()}"
        assert code in (0, 1), f"a driver that lost its job ended with {code}:\n{self._tail()}"

    def _stall_task(self, rng: random.Random) -> bool:
        found = [pid for pid in sorted(self._seen.shard_tasks(self._pid)) if pid not in self._stopped]
        if not found or self._stalls() >= STALLS_A_RUN:
            return False
        pid, seconds = rng.choice(found), LEASES[1] * rng.uniform(1.1, 1.6)
        os.kill(pid, signal.SIGSTOP)
        self._stopped.add(pid)
        self.faults.append(Fault(kind=Kind.TASK, at=time.monotonic_ns()))

        def go_on() -> None:
            self._over.wait(seconds)
            self._continue(pid)

        self._later(go_on)
        return True

    def _stalls(self) -> int:
        return sum(fault.kind in (Kind.STALLED, Kind.TASK) for fault in self.faults)

    def _export(self, rng: random.Random) -> bool:
        """A user writes what is done to a folder of its own, and may not write it to the job's."""
        target = self.folder / f"export-{len(self.faults)}"
        at = time.monotonic_ns()
        if not any(self.output.iterdir() if self.output.exists() else ()):
            return False
        refused_with(self.job, lambda: exported(self.job, self.store.url, self.output))
        self.exports.append(exported(self.job, self.store.url, target))
        shutil.rmtree(target)
        self.faults.append(Fault(kind=Kind.EXPORT, at=at))
        return True

    def _second_job(self, rng: random.Random) -> bool:
        """A user starts another job with the output folder of this one, and is refused."""
        if self.opened().get_job(self.job).total is None:
            return False
        at = time.monotonic_ns()
        settings = replace(self._order().settings(), job_id=f"{self.job}-second")
        refused_with(self.job, lambda: open_job(settings))
        self.faults.append(Fault(kind=Kind.SECOND, at=at))
        return True

    def _trouble_store(self, rng: random.Random) -> bool:
        kind = rng.choice(self.store.kinds)
        act: Callable[[], bool] = getattr(self.store, kind)
        fault = Fault(kind=f"{Kind.STORE} {kind}", at=time.monotonic_ns())

        def do() -> None:
            if act():
                self.faults.append(fault)

        self._later(do)
        return True

    def _later(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    # -- who is there ---------------------------------------------------------------------

    def _spare_node(self, rng: random.Random) -> int | None:
        gone = sum(fault.kind in (Kind.NODE, Kind.OBEYED, Kind.LYING) for fault in self.faults)
        usable = sorted(self.cloud.usable)
        return rng.choice(usable) if len(usable) > 1 and gone < NODES_A_RUN else None
