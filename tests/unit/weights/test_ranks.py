"""What a rank of an engine says of its load reaches the process that started it."""

from __future__ import annotations

import pytest

from dray.errors import EngineStartError, WeightsError
from dray.weights.loading.ranks import LoadTimes, ranks_heard, tell_failure, tell_times, told

pytestmark = pytest.mark.unit


def _rank(error: Exception) -> None:
    """As in a process of its own: vLLM says nothing of the error to the one that waits."""
    with pytest.raises(type(error)), told():
        raise error
    raise RuntimeError("WorkerProc initialization failed due to an exception in a background process.")


def test_a_lack_of_memory_is_known_for_what_it_is() -> None:
    with pytest.raises(EngineStartError) as caught, ranks_heard():
        _rank(MemoryError())
    assert caught.value.oom


def test_weights_that_are_wrong_are_named() -> None:
    with pytest.raises(WeightsError, match="model m: it lacks weights"), ranks_heard():
        _rank(WeightsError("model m: it lacks weights"))


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="WorkerProc"), ranks_heard():
        _rank(KeyError("k"))


def test_why_a_rank_did_not_start_is_told() -> None:
    with pytest.raises(EngineStartError, match=r"^ValueError: free memory is less") as caught, ranks_heard():
        tell_failure("ValueError: free memory is less than desired", oom=True)
        _rank(KeyError("k"))
    assert caught.value.oom
    with pytest.raises(WeightsError, match="it lacks weights"), ranks_heard():
        tell_failure("model m: it lacks weights", oom=False)
        _rank(WeightsError("model m: it lacks weights"))


@pytest.mark.heavy
def test_the_times_of_a_load_arrive() -> None:
    with ranks_heard() as ranks:
        tell_times(2.5, 1.0)
    assert ranks.loads == [LoadTimes(seconds=2.5, waited=1.0)]
    tell_times(2.5, 1.0)  # nobody waits: nothing happens
