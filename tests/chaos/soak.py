"""The soak: many jobs on spot nodes under random faults, each checked to the byte.

::

    python -m tests.chaos.soak --runs 300 [--lanes 2] [--seed S] [--first N] [--rows 2000] [--record]
    python -m tests.chaos.soak --runs 300 --seed S --kept FOLDER      goes on where it was broken off

Each run is a job of 2,000 requests on three spot nodes beside a stable head, one simulated replica each
(``--engine vllm``: engines on CPU, each with its core in a process of its own, which is killed as well). At
random moments, 0.2 to 2 s apart: a replica is killed, or stopped for up to 5 s; a node is killed; AWS takes a
node back, or only says so; the driver is killed and started again; the store is locked, or its connections
are cut; a user exports the job, or starts another one with its folder. In some runs leases are short, and
the driver or a shard task is stopped for longer than its lease, while a second driver takes the job. In some,
up to three rows kill every engine that they enter, or take its memory. All is drawn from the seed and the
run's number, so that a run can be had again: ``--seed S --first N --runs 1`` (the moments are the same; what
they hit depends on the machine as well).

After each run: I1 to I9 of the fault matrix, and output files that are the bytes of an undisturbed run.

This is the library's whole path except Prefect's task engine (see ``soak_driver``), so that a run takes
seconds. ``test_nodes.py`` and ``test_kill9.py`` run the whole command.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import pickle
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Self

from dray.processes import kill_descendants
from tests.benchmarks import machine
from tests.benchmarks.results import record
from tests.chaos.soak_checks import Wanted, check_run
from tests.chaos.soak_cloud import SPOT, Cloud, Driver, Store, Stores
from tests.chaos.soak_plan import SIMULATED, VLLM, Plan, group_word
from tests.chaos.soak_run import Run
from tests.chaos.soak_totals import Totals
from tests.support.command import write_requests

RESULTS = Path(__file__).with_name("RESULTS.md")
MAX_TOKENS = 8
RUNS_A_CLUSTER = 60
_BASE = -1  # the number of the undisturbed run
_MANY_RUNS = 30  # in which every kind of fault comes about
_CONDITIONS = (
    "Of the times: retries do not wait (`DRAY_NO_WAIT=1`), Ray is told to find dead nodes after some 2 s, "
    "and a driver's successor is on the same machine, so that it need not wait for the lease to end."
)


class Soak:
    """The cluster, the driver and the stores, kept between runs."""

    def __init__(self, folder: Path, *, rows: int, seed: int, engine: str = SIMULATED) -> None:
        self._folder = folder
        self._engine = engine
        self._rows = rows
        self._seed = seed
        self._groups = groups_of(rows)
        # Prompts name their row's group: so one word makes a few rows kill engines.
        words = {row: group_word(number) for number, group in enumerate(self._groups) for row in group}
        # Greedy, so that answers of vLLM do not depend on when a row runs.
        inputs = folder / "in.jsonl"
        self._inputs = write_requests(inputs, rows, words=words, max_tokens=MAX_TOKENS, temperature=0)
        self._wanted: Wanted | None = None
        self._on_cluster = 0
        self.totals = Totals()

    def __enter__(self) -> Self:
        self._start_drivers()
        self._stores = Stores()
        self._cloud = Cloud(self._folder)
        return self

    def __exit__(self, *_: object) -> None:
        self._cloud.close()
        self._stores.close()
        self._end_drivers()

    def _start_drivers(self) -> None:
        self._driver = Driver()
        self._understudy = Driver()

    def _end_drivers(self) -> None:
        self._driver.close()
        self._understudy.close()

    def run(self, number: int) -> bool:
        """One run, checked; whether all is well. What failed keeps its folder."""
        if self._wanted is None:
            self._wanted = self._undisturbed()
        self._have_nodes()
        plan = Plan.draw(self._seed, number, self._groups, self._engine)
        folder = self._folder / f"run-{number}"
        with self._stores.made(folder, postgres=plan.postgres) as store:
            run = self._made(plan, folder, store)
            try:
                run.go()
                self.totals.take(run, check_run(run, self._wanted))
            except Exception as error:  # noqa: BLE001  the next runs may say more
                self._end_drivers()  # one may drive still, or have an end that nobody has heard of
                self._start_drivers()
                if self._cloud.raylets.up or _is_certain(error):
                    self._failed(run, error)
                    self.totals.count(run)
                    return False
                print(f"run {number}: the cluster's own process ended; once more, with another", flush=True)
                self.totals.again += 1
                again = True
            else:
                self.totals.count(run)
                again = False
            finally:
                run.close()
        shutil.rmtree(folder)
        return self.run(number) if again else True

    def _have_nodes(self) -> None:
        """All nodes; on another cluster now and then, and where one of Ray's nodes did not come up."""
        if self._on_cluster >= RUNS_A_CLUSTER or not self._cloud.raylets.up:
            self._cloud.renew()
            self._on_cluster = 0
        self._on_cluster += 1
        try:
            self._cloud.fill()
        except RuntimeError:
            if self._cloud.raylets.up:
                raise
            self._cloud.renew()
            self._cloud.fill()

    def _made(self, plan: Plan, folder: Path, store: Store, *, faulty: bool = True) -> Run:
        return Run(
            plan=plan, folder=folder, inputs=self._inputs, rows=self._rows, cloud=self._cloud,
            driver=self._driver, understudy=self._understudy, store=store, faulty=faulty,
        )  # fmt: skip

    def _undisturbed(self) -> Wanted:
        folder = self._folder / "undisturbed"
        plan = Plan(
            seed=self._seed, number=_BASE, mix="all", shards=18, postgres=False, poison=(), word="",
            engine=self._engine,
        )  # fmt: skip
        self._cloud.fill()
        with self._stores.made(folder, postgres=False) as store:
            run = self._made(plan, folder, store, faulty=False)
            run.go()
            run.close()
            return Wanted.of(run)

    def _failed(self, run: Run, error: Exception) -> None:
        told = f"run {run.plan.number} ({run.plan.mix}): {type(error).__name__}: {error}"
        self.totals.failures.append(told)
        again = f"--seed {self._seed} --first {run.plan.number} --runs 1 --rows {self._rows}"
        again += f" --engine {self._engine}"
        print(f"FAILED {told}\n  again with {again}; kept: {run.folder}", flush=True)
        if not isinstance(error, AssertionError):
            traceback.print_exc()


def _is_certain(error: Exception) -> bool:
    """Whether an invariant is broken that holds whatever becomes of the cluster. I6 and I7 ask that."""
    return isinstance(error, AssertionError) and re.match(r"I[1-589]: ", str(error)) is not None


def groups_of(rows: int) -> list[tuple[int, ...]]:
    """The rows in groups of one to three: neighbours in the second half of the input, strewn in the first."""
    rng = random.Random("groups")
    strewn = list(range(rows // 2))
    rng.shuffle(strewn)
    left = [*strewn, *range(rows // 2, rows)]
    groups = []
    while left:
        size = rng.choice((1, 1, 2, 3))
        groups.append(tuple(left[:size]))
        del left[:size]
    return groups


def soak(
    folder: Path,
    *,
    runs: int,
    seed: int,
    first: int = 0,
    rows: int = 2000,
    every: int = 10,
    kept: Path | None = None,
    engine: str = SIMULATED,
) -> Totals:
    """Do so many runs, and say every ``every`` of them how far it is.

    ``kept`` is a file for what they came to so far: with one of an earlier time it goes on from there.
    """
    with Soak(folder, rows=rows, seed=seed, engine=engine) as soaking:
        if kept is not None and kept.exists():
            soaking.totals = pickle.loads(kept.read_bytes())
        for number_ in range(first + soaking.totals.runs, first + runs):
            began = time.monotonic()
            soaking.run(number_)
            soaking.totals.spent += time.monotonic() - began
            if kept is not None:
                kept.write_bytes(pickle.dumps(soaking.totals))
            if (number_ - first + 1) % every == 0:
                print(soaking.totals.line(), flush=True)
    return soaking.totals


def lanes(
    folder: Path,
    count: int,
    *,
    runs: int,
    seed: int,
    first: int,
    rows: int,
    every: int,
    kept: Path | None,
    engine: str,
) -> Totals:
    """The same as :func:`soak`, by ``count`` processes with a cluster each."""
    totals = Totals()
    bounds = [first + runs * lane // count for lane in range(count + 1)]
    with ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = []
        for lane, (begin, end) in enumerate(pairwise(bounds)):
            own = folder / f"lane-{lane}"
            own.mkdir()
            file = kept / f"{seed}-{begin}-{end}.totals" if kept else None
            told = partial(
                soak, own, runs=end - begin, seed=seed, first=begin, rows=rows, every=every, kept=file,
                engine=engine,
            )  # fmt: skip
            futures.append(pool.submit(told))
        for future in as_completed(futures):
            totals.add(future.result())
    return totals


def _end(*_: object) -> None:
    """At once, with all that was started: lanes would else go on to their last run."""
    kill_descendants()
    os._exit(143)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--first", type=int, default=0, help="the number of the first run")
    parser.add_argument("--rows", type=int, default=2000, help="of each run")
    parser.add_argument(
        "--lanes", type=int, default=1, help="clusters at a time, with a share of the runs each"
    )
    parser.add_argument("--record", action="store_true", help="write the section of tests/chaos/RESULTS.md")
    parser.add_argument("--kept", type=Path, default=None, help="a folder: go on with what was done before")
    parser.add_argument(
        "--engine", choices=(SIMULATED, VLLM), default=SIMULATED,
        help="vllm: real engines on CPU, each with its core in a process of its own, which is killed as well",
    )  # fmt: skip
    parser.add_argument("--every", type=int, default=10, help="runs between two lines of progress")
    return parser.parse_args(argv)


def main() -> int:
    given = parse()
    signal.signal(signal.SIGTERM, _end)
    facts = machine.describe()
    command = f"python -m tests.chaos.soak --runs {given.runs} --seed {given.seed} --first {given.first} --rows {given.rows} --lanes {given.lanes} --engine {given.engine}"  # fmt: skip # noqa: E501
    print(command, flush=True)
    if given.kept is not None:
        given.kept.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="dray-soak-"))
    totals = lanes(
        folder,
        given.lanes,
        runs=given.runs,
        seed=given.seed,
        first=given.first,
        rows=given.rows,
        every=given.every,
        kept=given.kept,
        engine=given.engine,
    )
    text = "\n\n".join(table.markdown() for table in totals.tables())
    print(f"\n{totals.line()}\n\n{text}")
    if given.record:
        RESULTS.touch()
        where = f"{given.lanes} clusters with {SPOT} spot nodes each"
        head = f"{machine.sentence(facts)}.\n\n`{command}`: {where}. {_CONDITIONS}"
        failed = "".join(f"\n\n- {text.splitlines()[0]}" for text in totals.failures)
        record("soak" if given.engine == SIMULATED else "soak-vllm", f"{head}\n\n{text}{failed}", RESULTS)
    if totals.runs >= _MANY_RUNS and totals.unseen():
        print(f"never came about: {', '.join(totals.unseen())}", file=sys.stderr)
        return 1
    if totals.failures:
        print(f"{len(totals.failures)} runs failed; their folders are in {folder}", file=sys.stderr)
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
