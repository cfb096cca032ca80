"""What all tests share: one printed seed, no telemetry, no model hub, nothing of the user's own set-up."""

from __future__ import annotations

import atexit
import gc
import os
import random
import shutil
import signal
import tempfile
from collections.abc import Generator
from typing import Any

import hypothesis
import pytest

from tests.support.heavy import chosen_heavy, heavy_unit
from tests.support.packages import missing_packages
from tests.support.rounds import MANY_ROUNDS
from tests.support.spare_worker import spare_worker

# Set before anything imports Prefect, Ray or vLLM, and inherited by every process that a test starts.
os.environ.update(
    {
        "DO_NOT_TRACK": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_OFFLINE": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        # Profiles and the server's database live here: tests neither read nor fill the user's own.
        "PREFECT_HOME": tempfile.mkdtemp(prefix="dray-tests-prefect-"),
    }
)
atexit.register(shutil.rmtree, os.environ["PREFECT_HOME"], ignore_errors=True)
for name in ("PREFECT_API_URL", "PREFECT_API_KEY", "PREFECT_PROFILE", "RAY_ADDRESS"):
    os.environ.pop(name, None)  # a test must not reach a server or a cluster that somebody uses

# Started in the background by a shell, the tests ignore Ctrl-C, and so would the commands that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline per example: a machine with two cores, running Ray beside, has pauses that mean nothing.
hypothesis.settings.register_profile("dray", deadline=None, print_blob=True)
hypothesis.settings.load_profile("dray")
# Each run draws others, so that few examples in each of them come to many.
hypothesis.settings.register_profile("short", hypothesis.settings.get_profile("dray"), max_examples=40)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("dray")
    group.addoption("--seed", type=int, default=None, help="draw the same as the run that printed this seed")
    group.addoption("--chaos-rounds", type=int, default=10, help="how often each chaos test kills something")
    group.addoption("--record", action="store_true", help="write what chaos tests measure into RESULTS.md")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What seven thousand tests are made of stays to the end: the garbage collector need not look at it.

    An engine of vLLM's that ends would undo that, and then collect twice: seconds for each engine.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.unfreeze = lambda: None
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """``make test`` runs no long tests, and a share of the heavy ones; pytest by itself runs them all."""
    if config.option.chaos_rounds >= MANY_ROUNDS:
        return
    all_of_them = f"all run with --chaos-rounds {MANY_ROUNDS} or more"
    skip_long = pytest.mark.skip(reason=f"takes minutes; {all_of_them}")
    skip_heavy = pytest.mark.skip(reason=f"heavy, and not among those that the seed chose; {all_of_them}")
    chosen = chosen_heavy(items, config.option.seed)
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(skip_long)
        elif (unit := heavy_unit(item)) and unit not in chosen:
            item.add_marker(skip_heavy)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    of_controller: dict[str, int] = getattr(config, "workerinput", {})
    if "seed" in of_controller:
        config.option.seed = of_controller["seed"]
    elif config.option.seed is None:
        config.option.seed = random.SystemRandom().randrange(2**32)
    if config.option.hypothesis_seed is None:  # one seed for all; --hypothesis-seed still goes before it
        config.option.hypothesis_seed = config.option.seed
    if config.option.chaos_rounds < MANY_ROUNDS:
        hypothesis.settings.load_profile("short")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Each process of pytest-xdist draws as the one that prints the seed."""
    node.workerinput["seed"] = node.config.option.seed


_SPARE = spare_worker(os.environ.get("PYTEST_XDIST_WORKER"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """A worker without a core of its own begins a test while one is idle; the time limit starts then."""
    if _SPARE:
        _SPARE.wait()
    if nextitem is None:
        gc.freeze()  # the engines of all tests end with the last one, and the process after them
    return (yield)


_POLICY = os.sched_getscheduler(0)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Each test leaves its process at the priority that it had."""
    if os.sched_getscheduler(0) != _POLICY:  # SVT-AV1, as root: see film_in_av1 in tests/support
        os.sched_setscheduler(0, _POLICY, os.sched_param(0))
        raise AssertionError(f"{item.nodeid} gave its process another scheduling policy: later tests starve")


def pytest_report_header(config: pytest.Config) -> list[str]:
    seed = f"seed: {config.option.seed} (the same again with --seed {config.option.seed})"
    return [seed, *missing_packages()]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A test that failed, and passed when it ran again, has a fault all the same: here is what it said."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.write_sep("_", f"{report.nodeid} ({report.when}), before it ran again")
        terminalreporter.write_line(report.longreprtext)


@pytest.fixture(scope="session")
def seed(pytestconfig: pytest.Config) -> int:
    """The run's seed, printed in pytest's header."""
    return int(pytestconfig.option.seed)


@pytest.fixture
def rng(seed: int, request: pytest.FixtureRequest) -> random.Random:
    """Randomness of this test alone: it does not depend on which tests ran before."""
    return random.Random(f"{seed} {request.node.nodeid}")


@pytest.fixture(scope="session")
def chaos_rounds(pytestconfig: pytest.Config) -> int:
    """How often a chaos test kills something: few in ``make test``, more in ``make chaos``."""
    return int(pytestconfig.option.chaos_rounds)
