"""Clusters of EC2 that end in every way there is: whatever ended them, no instance is left.

Each round draws what happens to one cluster on moto's EC2: it succeeds, fails, is cancelled while it starts,
or its driver is killed with SIGKILL at a call drawn from the seed, before AWS has done it or after. Calls
fail as AWS's do in between. What a driver could not release, a sweep does once it has expired.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dray.cluster.providers.ec2.api import Ec2Api
from dray.cluster.providers.ec2.provider import EC2Provider
from dray.cluster.providers.ec2.releasing import sweep
from dray.errors import ClusterError, DrayError
from tests.support.ec2_faults import Faults, provider, refusal, short
from tests.support.moto_ec2 import MotoEc2, settings_of
from tests.support.rounds import MANY_ROUNDS

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
FEW, MANY = 4, 50  # one of each end at least
ENDS = ("kill", "cancel", "failure", "success")
"""In turn, so that a short form has the worst of them."""

CALLS = (6, 24)
"""The calls between which a driver is killed or cancelled. The first five of a start's twelve only ask."""
LIFETIME = 300.0

Judge = Callable[[str], dict[str, Any] | None]


@pytest.fixture(scope="module")
def moto() -> Iterator[MotoEc2]:
    server = MotoEc2()
    yield server
    server.stop()


@pytest.mark.heavy
def test_no_instance_outlives_a_cluster(moto: MotoEc2, seed: int, chaos_rounds: int) -> None:
    rounds = MANY if chaos_rounds >= MANY_ROUNDS else FEW
    ends = Counter[str]()
    made = 0
    for number in range(rounds):
        drawn = seed * 1000 + number
        end = ENDS[number % len(ENDS)]
        _live(moto, end, drawn, calm=rounds == FEW and end == "success")
        there = len(moto.live())
        swept = sweep(Ec2Api.of(moto.settings()), time.time() + LIFETIME + 1)
        ends[f"{end}, {'swept' if swept else 'nothing to sweep'}"] += 1
        assert not (end == "success" and there), f"round {number}: {end}, seed {drawn}"
        assert moto.left() == [], f"round {number}: {end}, seed {drawn}"
        made += there
    total = len(moto.instances())
    assert total > (rounds if rounds == MANY else 0)  # kills, cancels and shortages may come before the first
    print(f"{rounds} rounds of seed {seed}: {total} instances, 0 left; {made} were swept; {dict(ends)}")


def _live(moto: MotoEc2, end: str, drawn: int, *, calm: bool) -> None:
    """One cluster, until its end. In a ``calm`` round AWS has what is asked for."""
    random = Random(drawn)
    values = {
        **moto.values(),
        "name": f"r{drawn % 10**9}",
        "workers": random.randint(0, 4),
        "minimum": 0,
        "lifetime": LIFETIME,
        "spot": random.random() < 0.8,
    }
    if end == "kill":
        _killed(values, drawn)
        return
    faults = Faults()
    one = provider(settings_of(json.dumps(values)), faults, of_job=True)
    faults.judge = _trouble(random) if end != "success" else _none if calm else _shortages(random)
    if end == "cancel":
        faults.judge = _shortages(random)
        faults.judge = _cancelled(one, random.randint(*CALLS), faults.judge)
    with suppress(DrayError):
        _used(one, random)
    if end == "success" or random.random() < 0.5:
        faults.judge = _none  # AWS is back
    with suppress(ClusterError):  # it says what is left: the sweep ends that
        one.release()


def _used(one: EC2Provider, random: Random) -> None:
    one.start()
    for _ in range(random.randint(0, 3)):
        one.desire(random.randint(0, 5))


def _cancelled(one: EC2Provider, call: int, judge: Judge) -> Judge:
    """As a job's flow does it: another thread leaves what is being started, here at a call of its start."""
    seen = 0

    def leave() -> None:
        with suppress(DrayError):
            one.release()

    def counted(operation: str) -> dict[str, Any] | None:
        nonlocal seen
        seen += 1
        if seen == call:
            threading.Thread(target=leave, daemon=True).start()
        return judge(operation)

    return counted


def _killed(values: dict[str, Any], drawn: int) -> None:
    """A driver of its own process, which ends at a call that is drawn there."""
    command = [sys.executable, "-m", "tests.chaos.test_ec2_release", json.dumps(values), str(drawn)]
    code = subprocess.run(command, cwd=ROOT, check=False, timeout=300).returncode
    assert code == -signal.SIGKILL


def _none(operation: str) -> None:
    return None


def _trouble(random: Random) -> Judge:
    """Each call may fail."""
    rate = random.choice((0.02, 0.05, 0.1))
    shortages = _shortages(random)
    codes = ("UnauthorizedOperation", "RequestExpired", "InvalidParameterValue", "ExpiredToken")

    def judge(operation: str) -> dict[str, Any] | None:
        if random.random() < rate:
            return refusal(random.choice(codes))
        return shortages(operation)

    return judge


def _shortages(random: Random) -> Judge:
    codes = ("InsufficientInstanceCapacity", "VcpuLimitExceeded", "MaxSpotInstanceCountExceeded")

    def judge(operation: str) -> dict[str, Any] | None:
        return short(random.choice(codes)) if operation == "CreateFleet" and random.random() < 0.2 else None

    return judge


def _kill_at(random: Random) -> Callable[[Any], None]:
    """SIGKILL around one of the first calls: before AWS has it, or after AWS has done it."""
    calls = random.randint(*CALLS)
    before, seen = random.random() < 0.5, 0

    def count(**_: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == calls:
            os.kill(os.getpid(), signal.SIGKILL)

    def register(client: Any) -> None:
        client.meta.events.register_last("before-send" if before else "after-call", count)

    return register


def main() -> None:
    """The driver that is killed."""
    values, drawn = json.loads(sys.argv[1]), int(sys.argv[2])
    random = Random(drawn)
    faults = Faults()
    faults.judge = _shortages(random)
    register = _kill_at(random)
    one = EC2Provider(settings_of(json.dumps(values)), lambda given: _armed(faults.api(given), register))
    with suppress(DrayError):
        _used(one, random)
    os.kill(os.getpid(), signal.SIGKILL)  # it lived: so it dies in its work


def _armed(api: Ec2Api, register: Callable[[Any], None]) -> Ec2Api:
    for client in (api._ec2, api._ssm):
        register(client)
    return api


if __name__ == "__main__":
    main()
