"""What an engine that did not start says."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from dray.engine.start_errors import _ON_CPU, start_error
from dray.engine.vllm_adapter.arguments import refused_arguments
from dray.engine.vllm_adapter.core.process import LastWords
from dray.errors import ConfigError, EngineStartError
from dray.failures.signs import _NO_CACHE, out_of_memory

pytestmark = pytest.mark.unit


def test_an_error_of_drays_own_stays() -> None:
    own = ConfigError("no such model")
    assert start_error(own) is own


@pytest.mark.parametrize(
    ("error", "told", "oom"),
    [
        (ValueError("the first line\nand another"), "ValueError: the first line", False),
        (MemoryError("no room"), "MemoryError: no room", True),
        (KeyError(), "KeyError: no reason given", False),
    ],
)
def test_another_is_told_by_its_class_and_first_line(error: Exception, told: str, oom: bool) -> None:
    found = start_error(error)
    assert isinstance(found, EngineStartError)
    assert str(found).startswith(told)
    assert "another" not in str(found)
    assert found.oom is oom


CUSTOM = (
    "The repository /models/m contains custom code which must be executed to correctly load the model. "
    "You can inspect the repository content at https://hf.co//models/m.\n"
    "Please pass the argument `trust_remote_code=True` to allow custom code to be run."
)
TOKENIZER = (
    "Failed to load the tokenizer. If the tokenizer is a custom tokenizer not yet available in the "
    "HuggingFace transformers library, consider setting `trust_remote_code=True` in LLM"
)


@pytest.mark.parametrize(
    ("said", "begin"),
    [(CUSTOM, "The repository /models/m contains custom code"), (TOKENIZER, "Failed to load")],
)
def test_an_engine_does_not_advise_to_set_what_dray_refuses(said: str, begin: str) -> None:
    with pytest.raises(ConfigError) as refused, refused_arguments():
        raise ValueError(said)
    for told in (str(refused.value), str(start_error(RuntimeError(said)))):
        assert begin in told
        assert "dray runs no code of a model; name one that" in told
        assert "trust_remote_code" not in told


LENGTH = (
    "To serve at least one request with the model's max seq len (40960), (4.38 GiB KV cache is needed, which "
    "is larger than the available KV cache memory (3.99 GiB). Based on the available memory, the estimated "
    "maximum model length is 37248. Try increasing `gpu_memory_utilization` (which also controls CPU memory "
    "on the CPU backend) or decreasing `max_model_len` when initializing the engine. See https://docs.vllm.ai"
)
MEMORY = (
    "Available memory on node 0 (3/8 GiB) on kv cache allocation is less than requested memory for kv "
    "(4 GiB). Decrease --kv-cache-memory-bytes, VLLM_CPU_KVCACHE_SPACE, or reduce CPU memory used by other "
    "processes."
)


NO_CACHE = "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when"


def test_a_step_that_leaves_the_cache_no_memory_may_be_halved() -> None:
    """vLLM raises a ValueError, as for an argument that is wrong: the job failed at once."""
    told = start_error(ValueError(NO_CACHE))
    assert isinstance(told, EngineStartError)
    assert told.oom
    assert str(told).startswith("ValueError: No available memory for the cache blocks.")
    assert LastWords.of(ValueError(NO_CACHE)).oom  # of a core apart
    assert not out_of_memory(ValueError(LENGTH))  # a smaller step seldom helps there, a shorter length does
    assert not out_of_memory(RuntimeError(NO_CACHE))


@pytest.mark.parametrize(
    ("said", "helps"),
    [(LENGTH, "or `kv_cache_memory_bytes` (on CPU), or decreasing `max_model_len`"),
     (MEMORY, "Decrease `max_model_len` or `kv_cache_memory_bytes`, or reduce")],
)  # fmt: skip
def test_a_cache_that_is_too_small_names_what_helps_on_cpu(said: str, helps: str) -> None:
    told = str(start_error(ValueError(said)))
    assert helps in told
    assert "on the CPU backend" not in told
    assert "VLLM_CPU_KVCACHE_SPACE" not in told


def test_vllm_still_says_what_is_reworded() -> None:
    vllm = find_spec("vllm")
    if vllm is None or vllm.origin is None:
        pytest.skip("needs vLLM")
    folder = Path(vllm.origin).parent
    files = (folder / "v1/core/kv_cache_utils.py", folder / "v1/worker/cpu_worker.py")
    source = "".join(re.sub(r'"\s+f?"', "", file.read_text()) for file in files)
    assert [advice for advice in (*_ON_CPU, _NO_CACHE) if advice not in source] == []
