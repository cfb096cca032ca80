"""Load format ``dray`` in processes that vLLM spawns: the ranks of a model, and an engine core of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from dray.errors import WeightsError
from dray.weights import LocalModel, read_manifest
from dray.weights.loading import streamed
from dray.weights.loading.ranks import ranks_heard
from dray.weights.node.description import Description, read_description
from dray.weights.node.places import CACHE_VARIABLE
from dray.weights.source.manifest import Manifest
from tests.support.engines import write_lively_model
from tests.support.s3_emulator import EmulatorProcess

pytestmark = [pytest.mark.integration, pytest.mark.heavy, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[3]
URI = "s3://bucket/lively"
CHUNK_BYTES = 8 << 10  # so small that none is under way for long, however slowly they come
TRICKLE = 100e3  # bytes/s: the model of 10 MB is still arriving when a slow machine's ranks look for it
RANKS = 2
PROMPTS = ["please help", "my order is late", "the battery of my laptop", "refund for the invoice"]
SAMPLING = {"max_tokens": 12, "temperature": 0}
ARGUMENTS = {"max_model_len": 128, "max_num_seqs": 8, "kv_cache_memory_bytes": 1 << 26}
IN_RANKS = {"tensor_parallel_size": RANKS, "distributed_executor_backend": "mp"}
ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # by itself vLLM wants a NUMA node for each rank
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": "60",  # what is killed leaves its shared memory behind
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # stdout is for the JSON
}


# ---- what runs in processes of its own: vLLM reads the variables above when it is imported --------


GIVEN = """
import json, psutil, sys
given = json.loads(sys.argv[1])

def processes():
    below = psutil.Process().children(recursive=True)
    found = {process.pid: " ".join(process.cmdline()) for process in below}
    return {pid: command for pid, command in found.items() if "resource_tracker" not in command}
"""

ENGINES = f"""{GIVEN}
from dataclasses import replace
from dray.engine.protocol import EngineSpec
from dray.engine.vllm_adapter.engine import VllmEngine
from dray.storage import ObjectStoreOptions
from dray.kinds import Kind
from dray.requests.model import Request
from dray.weights import read_manifest

def spec_of(model, arguments):
    basic = EngineSpec(name="vllm", model=model, kind=Kind.COMPLETION, arguments=arguments)
    if not model.startswith("s3://"):
        return basic
    keys = dict(access_key_id="key", secret_access_key="secret")
    options = ObjectStoreOptions(endpoint=given["url"], region="r", allow_http=True, **keys)
    manifest = replace(read_manifest(model, options), chunk_bytes=given["chunk_bytes"])
    return replace(basic, weights=manifest, objects=options)

def answer(engine):
    for number, prompt in enumerate(given["prompts"]):
        body = dict(given["sampling"], prompt=prompt, logprobs=1)
        engine.submit(number, Request(index=number, custom_id=str(number), url="/v1/completions", body=body))
    outcomes = dict()
    while len(outcomes) < len(given["prompts"]):
        outcomes |= engine.step()
    return [json.loads(outcomes[number].response)["choices"][0] for number in sorted(outcomes)]

def run(model, arguments):
    engine = VllmEngine(spec_of(model, arguments))
    choices = answer(engine)
    found = dict(
        texts=[choice["text"] for choice in choices],
        logprobs=[choice["logprobs"]["token_logprobs"] for choice in choices],
        waited=[load.waited for load in engine.loads],
        processes=processes(),
    )
    engine.close()
    print(json.dumps(dict(found, left=processes())), flush=True)

if __name__ == "__main__":
    for model, arguments in given["engines"]:
        run(model, arguments)
"""

CORE = f"""{GIVEN}
if __name__ == "__main__":
    import vllm
    asked = dict(given["arguments"], load_format="dray", dtype="float32", enforce_eager=True)
    llm = vllm.LLM(given["folder"], **asked)
    outputs = llm.generate(given["prompts"], vllm.SamplingParams(**given["sampling"]), use_tqdm=False)
    found = dict(texts=[output.outputs[0].text for output in outputs], processes=processes())
    print(json.dumps(found), flush=True)
    llm.llm_engine.engine_core.shutdown(timeout=60)
"""

RANK = f"""{GIVEN}
from multiprocessing import get_context
from pathlib import Path
from dray.weights.loading.streamed import StreamedWeights

def load(folder):
    for _ in StreamedWeights.of(Path(folder)).tensors():
        pass

if __name__ == "__main__":
    rank = get_context("spawn").Process(target=load, args=(given["folder"],), daemon=True)
    rank.start()
    rank.join()
"""

FAILS_TO_START = f"""{GIVEN}
from dray.engine.protocol import EngineSpec
from dray.engine.vllm_adapter.engine import VllmEngine
from dray.kinds import Kind

if __name__ == "__main__":
    asked = dict(given["arguments"], engine_core="apart", **given["ranks"])
    spec = EngineSpec(name="vllm", model=given["folder"], kind=Kind.COMPLETION, arguments=asked)
    try:
        VllmEngine(spec)
    except Exception as error:
        print(json.dumps(dict(kind=type(error).__name__, said=str(error))), flush=True)
"""

FAILS = """
from dray.errors import WeightsError
from dray.weights.loading.ranks import told
with told():
    raise WeightsError("model m: it lacks weights")
"""


@contextmanager
def _script(code: str, cache: Path, **given: Any) -> Iterator[subprocess.Popen[str]]:
    """It runs from a file, so that what it spawns can import it."""
    file = cache.with_suffix(".py")
    file.write_text(code)
    given |= {"prompts": PROMPTS, "sampling": SAMPLING, "arguments": ARGUMENTS, "chunk_bytes": CHUNK_BYTES}
    environment = os.environ | ENVIRONMENT | {CACHE_VARIABLE: str(cache)}
    process = subprocess.Popen(
        [sys.executable, str(file), json.dumps(given)],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        below = _below(process)
        process.kill()
        process.wait()
        for pid in below:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert process.stdout is not None
        process.stdout.close()


def _line(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    text = process.stdout.readline()
    assert text, "the script ended before its time"
    found: dict[str, Any] = json.loads(text)
    return found


def _loading(process: subprocess.Popen[str], count: int) -> list[int]:
    """Wait until so many processes below it have mapped the file of weights that is being filled."""
    deadline = time.monotonic() + 90
    while len(found := [pid for pid in _below(process) if _maps(pid, ".partial/model.safetensors")]) < count:
        assert process.poll() is None, "the script ended before its time"
        assert time.monotonic() < deadline, f"only {found} load it while it arrives"
        time.sleep(0.02)
    return found


def _below(process: subprocess.Popen[str]) -> list[int]:
    with suppress(psutil.NoSuchProcess):
        return [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    return []


def _maps(pid: int, name: str) -> bool:
    with suppress(OSError):
        return name in Path(f"/proc/{pid}/maps").read_text()
    return False


def _left(pids: list[int], seconds: float) -> list[int]:
    """Those that are still there after that time."""
    deadline = time.monotonic() + seconds
    while (left := [pid for pid in pids if psutil.pid_exists(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


# ---- the model, and an origin that has it --------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatorProcess]:
    pytest.importorskip("vllm")
    root = tmp_path_factory.mktemp("origin")
    write_lively_model(root / "bucket/lively")
    found = EmulatorProcess(root)
    yield found
    found.stop()


@pytest.fixture(scope="module")
def manifest(server: EmulatorProcess) -> Manifest:
    return replace(read_manifest(URI, server.options), chunk_bytes=CHUNK_BYTES)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


ONCE = pytest.approx(1.0, abs=0.1)
"""In models: each engine that read for itself would add 1; a request that trickles is sent again at times."""


def _models_served(server: EmulatorProcess, manifest: Manifest) -> float:
    return round(sum(server.served().values()) / manifest.size, 2)


def _sends_all(server: EmulatorProcess) -> int:
    """It does so from now on; returns the bytes that it had sent until now."""
    before: dict[str, int] = server.ask("GET", "served")["served"]
    server.ask("PUT", "behaviour", {})
    return sum(before.values())


@dataclass(frozen=True, kw_only=True)
class Runs:
    """One engine by vLLM's own loader, and then the ranks; ``early`` bytes had come when they looked."""

    alone: dict[str, Any]
    ranks: dict[str, Any]
    loading: list[int]
    early: int
    models_served: float
    exit_code: int


@pytest.fixture(scope="module")
def runs(server: EmulatorProcess, manifest: Manifest, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    engines = [(str(server.root / "bucket/lively"), ARGUMENTS), (URI, ARGUMENTS | IN_RANKS)]
    server.behave(node_rate=TRICKLE)
    cache = tmp_path_factory.mktemp("ranks") / "cache"
    with _script(ENGINES, cache, engines=engines, url=server.url) as process:
        alone = _line(process)
        loading = _loading(process, RANKS)
        early = _sends_all(server)
        ranks = _line(process)
        exit_code = process.wait(60)
    return Runs(
        alone=alone,
        ranks=ranks,
        loading=loading,
        early=early,
        models_served=_models_served(server, manifest),
        exit_code=exit_code,
    )


# ---- ranks ---------------------------------------------------------------------------------------


def test_ranks_answer_like_one_process_with_vllms_own_loader(runs: Runs) -> None:
    assert len(set(runs.alone["texts"])) == len(PROMPTS)
    assert runs.ranks["texts"] == runs.alone["texts"]
    for mine, theirs in zip(runs.ranks["logprobs"], runs.alone["logprobs"], strict=True):
        assert mine == pytest.approx(theirs, abs=1e-3)  # ranks add up in another order


def test_ranks_load_while_the_origin_sends_and_it_sends_everything_once(
    runs: Runs, manifest: Manifest
) -> None:
    assert runs.early < 0.9 * manifest.size
    assert len(runs.ranks["waited"]) == RANKS
    assert all(seconds > 0 for seconds in runs.ranks["waited"])
    assert runs.models_served == ONCE


def test_no_rank_is_left_when_the_engine_is_closed(runs: Runs) -> None:
    workers = {int(pid) for pid, name in runs.ranks["processes"].items() if "VLLM::Worker_TP" in name}
    assert workers == set(runs.loading)
    assert runs.ranks["left"] == {}
    assert runs.exit_code == 0
    assert _left(list(workers), seconds=0) == []


@pytest.mark.usefixtures("cache")
def test_a_rank_whose_starter_is_killed_does_not_wait_for_weights(
    server: EmulatorProcess, manifest: Manifest, tmp_path: Path
) -> None:
    server.behave(node_rate=TRICKLE)
    with LocalModel(manifest, server.options) as model:
        folder = str(model.wait_engine())
        with _script(RANK, tmp_path / "rank", folder=folder) as process:
            ranks = _loading(process, 1)
            process.kill()
            process.wait()
            assert _left(ranks, seconds=10) == []
        assert model.progress()[0] < manifest.size


def test_what_a_rank_says_of_its_weights_is_what_the_engine_raises() -> None:
    with pytest.raises(WeightsError, match="model m: it lacks weights") as caught, ranks_heard():
        subprocess.run([sys.executable, "-c", FAILS], stderr=subprocess.DEVNULL, check=True)
    assert isinstance(caught.value.__cause__, subprocess.CalledProcessError)
    with pytest.raises(KeyError), ranks_heard():
        raise KeyError("of another kind")


def test_why_a_rank_does_not_start_is_what_the_engine_raises(server: EmulatorProcess, tmp_path: Path) -> None:
    """vLLM's own error says that the reason is in some log."""
    ranks = IN_RANKS | {"worker_extension_cls": "no_such_module.Extension"}
    folder = str(server.root / "bucket/lively")
    with _script(FAILS_TO_START, tmp_path / "start", folder=folder, ranks=ranks) as process:
        found = _line(process)
    assert found == {
        "kind": "EngineStartError",
        "said": "ModuleNotFoundError: No module named 'no_such_module'",
    }


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_model_may_be_published_while_a_rank_looks_at_it(
    moment: str, server: EmulatorProcess, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.behave()
    with LocalModel(manifest, server.options) as model:
        partial, whole = model.paths.partial, model.wait_whole()
        whole.rename(partial)

        def published(file: Path) -> Description:
            """The moment: when the description is read, or when it has been read and the map has not."""
            if moment == "before" and partial.exists():
                partial.rename(whole)
            found = read_description(file)
            if partial.exists():
                partial.rename(whole)
            return found

        monkeypatch.setattr(streamed, "read_description", published)
        weights = streamed.StreamedWeights.of(model.paths.engine)
        assert sum(tensor.nbytes for _, tensor in weights.tensors()) > 0.9 * sum(
            f.size for f in weights.files
        )


# ---- an engine core of its own -------------------------------------------------------------------


def test_an_engine_core_of_its_own_loads_what_another_process_fetches(
    runs: Runs, server: EmulatorProcess, manifest: Manifest, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder that it is given holds headers alone: only this load format can load from it."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    server.behave(node_rate=TRICKLE)
    with LocalModel(manifest, server.options) as model:
        folder = str(model.wait_engine())
        with _script(CORE, cache, folder=folder) as process:
            loading = _loading(process, 1)
            _sends_all(server)
            found = _line(process)
            assert process.wait(60) == 0
    assert found["texts"] == runs.alone["texts"]
    assert any("VLLM::EngineCore" in name for name in found["processes"].values())
    assert set(loading) < {int(pid) for pid in found["processes"]}
    assert _models_served(server, manifest) == ONCE
