"""RayClusters that end in every way there is: whatever ended them, nothing is left in Kubernetes.

Each round draws what happens to one cluster: it succeeds, fails, is cancelled while it starts, or its driver
is killed with SIGKILL at a call drawn from the seed, before the API server has done it or after. Calls fail
in between, and some of them are done all the same. Pods find no node now and then. What a driver could not
delete, a sweep does once it has expired. The operator's part makes pods without processes.
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dray.cluster.providers.kuberay import KubeRayCluster
from dray.cluster.providers.kuberay.api import Answer, KubeApi, Send
from dray.cluster.providers.kuberay.objects import EXPIRES
from dray.cluster.providers.kuberay.provider import KubeRayProvider
from dray.errors import DrayError
from tests.support.kube_operator import KubeOperator, kubernetes
from tests.support.kube_server import KubeServer
from tests.support.rounds import MANY_ROUNDS

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800)]

pytest.importorskip("kubernetes")

ROOT = Path(__file__).parents[2]
PATH = "/apis/ray.io/v1/namespaces/default/rayclusters"
FEW, MANY = 4, 50  # one of each end at least
ENDS = ("kill", "cancel", "failure", "success")
CALLS = (2, 12)
"""The calls between which a driver is killed or cancelled: the third of a start makes the cluster."""

Meddle = Callable[[str, Callable[[], Answer]], Answer]
"""What becomes of a call: its method, and how to do it."""


@pytest.fixture(scope="module")
def operator() -> Iterator[KubeOperator]:
    with kubernetes() as found:
        yield found


@pytest.fixture(scope="module")
def server(operator: KubeOperator) -> KubeServer:
    return operator.server


def test_nothing_outlives_a_cluster(
    server: KubeServer, operator: KubeOperator, tmp_path: Path, seed: int, chaos_rounds: int
) -> None:
    rounds = MANY if chaos_rounds >= MANY_ROUNDS else FEW
    ends = Counter[str]()
    for number in range(rounds):
        drawn = seed * 1000 + number
        end = ENDS[number % len(ENDS)]
        operator.capacity(spot=Random(drawn).randint(0, 4))
        _live(server, tmp_path, end, drawn)
        swept = _swept(server, tmp_path)
        ends[f"{end}, {'swept' if swept else 'nothing to sweep'}"] += 1
        assert not (end == "success" and swept), f"round {number}: {end}, seed {drawn}"
        deadline = time.monotonic() + 20
        while server.left():
            assert time.monotonic() < deadline, f"round {number}: {end}, seed {drawn}: {server.left()}"
            time.sleep(0.05)
            if end == "kill":  # its last call may have come behind the sweep; they run on a schedule
                _swept(server, tmp_path)
    print(f"{rounds} rounds of seed {seed}: nothing left; {dict(ends)}")


def _swept(server: KubeServer, folder: Path) -> int:
    """What a sweep finds after the clusters' lifetime."""
    for one in server.objects("rayclusters"):
        change = {"metadata": {"annotations": {EXPIRES: "1"}}}
        server.ask("PATCH", f"{PATH}/{one['metadata']['name']}", change)
    settings = KubeRayCluster(image="dray:1", kubeconfig=server.kubeconfig(folder))
    return len(KubeRayProvider(settings).sweep())


def _live(server: KubeServer, folder: Path, end: str, drawn: int) -> None:
    """One cluster, until its end."""
    random = Random(drawn)
    values = {
        "name": f"r{drawn % 10**9}",
        "image": "dray:1",
        "kubeconfig": server.kubeconfig(folder),
        "workers": random.randint(0, 4),
        "minimum": 0,
        "spot": random.random() < 0.8,
        "spot_seconds": 1,
    }
    if end == "kill":
        _killed(values, drawn)
        return
    meddling = _Meddling(_trouble(random) if end == "failure" else _nothing)
    one = _provider(values, meddling, of_job=True)
    if end == "cancel":
        meddling.meddle = _cancelled(one, random.randint(*CALLS))
    with suppress(DrayError):
        _used(one, random)
    if end == "success" or random.random() < 0.5:
        meddling.meddle = _nothing
    with suppress(DrayError):  # it says what is left: the sweep ends that
        one.release()


def _used(one: KubeRayProvider, random: Random) -> None:
    one.start()
    one.access()
    for _ in range(random.randint(0, 3)):
        one.desire(random.randint(0, 5), random.choice((None, 0, 2)))
        names = [node.name for node in one.nodes() if not node.head]
        one.drain(random.sample(names, min(1, len(names))))


class _Meddling:
    def __init__(self, meddle: Meddle) -> None:
        self.meddle = meddle

    def api(self, settings: Any) -> KubeApi:
        api = KubeApi.of(settings)
        send: Send = api._send

        def meddled(method: str, path: str, body: Any, headers: Mapping[str, str]) -> Answer:
            return self.meddle(method, lambda: send(method, path, body, headers))

        api._send, api._patience = meddled, 1.0
        return api


def _provider(values: dict[str, Any], meddling: _Meddling, *, of_job: bool) -> KubeRayProvider:
    return KubeRayProvider(KubeRayCluster(**values), meddling.api, of_job=of_job)


def _nothing(method: str, do: Callable[[], Answer]) -> Answer:
    return do()


def _trouble(random: Random) -> Meddle:
    """Each call may fail, with or without an effect."""
    rate = random.choice((0.05, 0.1, 0.3))

    def meddle(method: str, do: Callable[[], Answer]) -> Answer:
        if random.random() >= rate:
            return do()
        if random.random() < 0.5:
            do()
        status = random.choice((0, 401, 403, 409, 429, 500, 503))
        if status == 0:
            raise ConnectionResetError("the connection was closed")
        return Answer(status=status, headers={}, body={"message": "as drawn"})

    return meddle


def _cancelled(one: KubeRayProvider, call: int) -> Meddle:
    """As a job's flow does it: another thread leaves what is being started, here at a call of its start."""
    seen = 0

    def leave() -> None:
        with suppress(DrayError):
            one.leave()

    def meddle(method: str, do: Callable[[], Answer]) -> Answer:
        nonlocal seen
        seen += 1
        if seen == call:
            threading.Thread(target=leave, daemon=True).start()
        return do()

    return meddle


def _killed(values: dict[str, Any], drawn: int) -> None:
    """A driver of its own process, which ends at a call that is drawn there."""
    command = [sys.executable, "-m", "tests.chaos.test_kuberay_release", json.dumps(values), str(drawn)]
    assert subprocess.run(command, cwd=ROOT, check=False, timeout=300).returncode == -signal.SIGKILL


def _kill_at(random: Random) -> Meddle:
    """SIGKILL around one of the first calls: before the server has it, or after it has done it."""
    calls = random.randint(*CALLS)
    before, seen = random.random() < 0.5, 0

    def meddle(method: str, do: Callable[[], Answer]) -> Answer:
        nonlocal seen
        seen += 1
        if seen == calls and before:
            os.kill(os.getpid(), signal.SIGKILL)
        answer = do()
        if seen == calls:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    return meddle


def main() -> None:
    """The driver that is killed."""
    values, random = json.loads(sys.argv[1]), Random(int(sys.argv[2]))
    one = _provider(values, _Meddling(_kill_at(random)), of_job=False)
    with suppress(DrayError):
        _used(one, random)
    os.kill(os.getpid(), signal.SIGKILL)  # it lived: so it dies in its work


if __name__ == "__main__":
    main()
