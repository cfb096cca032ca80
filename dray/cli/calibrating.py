"""``dray doctor --calibrate``: this machine as an entry of the catalogue, measured with a real engine."""

from __future__ import annotations

import importlib.util
import json as json_
import os
import subprocess
import sys
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dray.cli import output
from dray.errors import ConfigError, EngineStartError

if TYPE_CHECKING:
    from dray.planner.calibrating import Calibration

_SECONDS = 900  # for an engine on a busy machine; it takes about one minute


def calibrate(model: str | None, price: float | None, *, json: bool) -> int:
    """Measure for about a minute, keep what was found, and say it.

    Raises:
        ConfigError: there is no model to measure with, or vLLM is not installed.
        EngineStartError: the engine did not start, or did not answer.
    """
    from dray.planner.calibrating import calibration_of
    from dray.planner.catalogue import save

    if importlib.util.find_spec("vllm") is None:
        raise ConfigError("--calibrate runs vLLM: install dray with its extra gpu or cpu (README, Install)")
    folder = model or _example()
    output.stage(f"measuring this machine with {folder}: about a minute; let nothing else run meanwhile")
    found = measured_with(folder)
    day = datetime.now(UTC).date()
    calibration = calibration_of(found, day=day, dollars_per_hour=price or 0.0)
    file = save(calibration.measured)
    if json:
        output.print_json(_facts(calibration, file, day))
    else:
        output.tell(*_lines(calibration, file, day))
    return 0


def _facts(found: Calibration, file: Path, day: date) -> dict[str, Any]:
    one = found.measured
    return {
        "name": one.name,
        "file": str(file),
        "day": day.isoformat(),
        "version": one.version,
        "gemm": dict(one.gemm),
        "bandwidth": one.bandwidth,
        "memory": one.memory,
        "host_seconds": {
            "step": one.step,
            "sampled_token": one.sampled,
            "prompt_token": one.prompt,
            "request": one.request,
        },
        "start_seconds": one.start,
        "dollars_per_hour": one.dollars_per_hour,
        "median_error": found.error,
    }


def _lines(found: Calibration, file: Path, day: date) -> list[str]:
    one = found.measured
    rates = ", ".join(f"{rate / 1e9:,.0f} GFLOP/s in {name}" for name, rate in one.gemm.items())
    return [
        f"{one.name}, on {day} with vLLM {one.version}",
        f"  {rates}; {one.bandwidth / 1e9:,.1f} GB/s",
        f"  an engine step takes {one.step * 1e3:.2g} ms beside the model's work, a sampled token "
        f"{one.sampled * 1e6:.3g} us, a prompt token {one.prompt * 1e6:.3g} us, a request "
        f"{one.request * 1e6:.3g} us",
        f"  the engine starts in {one.start or 0:.0f} s; the figures are off the {found.probes} "
        f"measurements by {found.error:.0%} in the median",
        f"  kept in {file}",
    ]


def _example() -> str:
    """The model of the checkout's example.

    Raises:
        ConfigError: this is no checkout.
    """
    folder = Path(__file__).parents[2] / "examples/tickets/model"
    if not (folder / "config.json").is_file():
        raise ConfigError("--calibrate needs a model: name the folder of a small one with --model")
    return str(folder)


def measured_with(folder: str) -> dict[str, Any]:
    """What the process that measures prints on its last line."""
    if not (Path(folder) / "config.json").is_file():
        raise ConfigError(f"--model {folder}: no config.json there; --calibrate takes the folder of a model")
    path = os.pathsep.join(filter(None, sys.path))
    environment = os.environ | {"VLLM_LOGGING_LEVEL": "ERROR", "PYTHONPATH": path}
    command = [sys.executable, "-P", "-m", "dray.engine.calibration", str(Path(folder).absolute())]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise EngineStartError(f"measuring took longer than {_SECONDS} s") from None
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise EngineStartError(f"measuring failed: {said[-1][:500] if said else 'no reason given'}")
    found: dict[str, Any] = json_.loads(lines[-1])
    return found
