"""A machine's entry is fitted to probes, kept in a file, and read back into the catalogue."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dray.cli import calibrating
from dray.errors import ConfigError
from dray.planner.calibrating import Probe, calibration_of, model_seconds
from dray.planner.catalogue import Measured, calibrated, known_catalogue, save, saved
from dray.planner.cost import ModelledReplica, Setting
from dray.planner.models import model_facts

pytestmark = pytest.mark.unit

CONFIG = (Path(__file__).parents[3] / "examples/tickets/model/config.json").read_text()
DAY = date(2026, 11, 24)
SHAPES = ((1, 16, 48), (32, 16, 48), (256, 16, 32), (256, 16, 1), (64, 256, 1), (16, 448, 1), (32, 256, 32))


def found(step: float, sampled: float, prompt: float, request: float) -> dict[str, Any]:
    """What the measuring process would print of a machine that is just as the cost model says."""
    base = {
        "name": "Some CPU (2 cores)", "gemm": {"bf16": 2e11, "fp32": 9e10}, "bandwidth": 2e10, "memory": 2e10,
        "start": 9.0, "version": "0.32.0", "gpu": False, "config": CONFIG, "seqs": 256,
        "batched_tokens": 4096,
    }  # fmt: skip
    machine = Measured(name="x", gemm=base["gemm"], bandwidth=2e10, memory=2e10, step=0, day=DAY)  # type: ignore[arg-type]
    replica = ModelledReplica(
        model=model_facts(json.loads(CONFIG)),
        device=calibrated(machine).device,
        link=None,
        setting=Setting(max_num_seqs=256, max_num_batched_tokens=4096),
    )
    probes = []
    for rows, tokens, output in SHAPES:
        probe = Probe(rows=rows, prompt=tokens, output=output, steps=output, seconds=1)
        host = step * output + rows * (sampled * output + prompt * tokens + request)
        probes.append(
            {
                "rows": rows,
                "prompt": tokens,
                "output": output,
                "steps": output,
                "seconds": model_seconds(replica, probe) + host,
                "seqs": 256,
            }
        )
    return base | {"probes": probes}


@given(st.floats(1e-3, 1e-1), st.floats(1e-5, 1e-3), st.floats(1e-6, 1e-4), st.floats(1e-5, 1e-2))
@settings(max_examples=30, deadline=None)
def test_the_host_s_share_is_found(step: float, sampled: float, prompt: float, request: float) -> None:
    calibration = calibration_of(found(step, sampled, prompt, request), day=DAY)
    one = calibration.measured
    assert calibration.error < 1e-6
    assert (one.step, one.sampled) == pytest.approx((step, sampled), rel=1e-3)
    assert (one.prompt, one.request) == pytest.approx((prompt, request), rel=1e-2)


def test_of_repeated_probes_the_fastest_counts() -> None:
    told = found(0.01, 1e-4, 2e-5, 1e-4)
    slower = [{**one, "seconds": one["seconds"] * 3} for one in told["probes"]]
    again = calibration_of({**told, "probes": slower + told["probes"]}, day=DAY)
    assert again.measured == calibration_of(told, day=DAY).measured


def test_nothing_is_negative_where_the_model_has_too_much() -> None:
    told = found(0.0, 0.0, 0.0, 0.0)
    faster = [{**one, "seconds": one["seconds"] / 2} for one in told["probes"]]
    one = calibration_of({**told, "probes": faster}, day=DAY).measured
    assert (one.step, one.sampled, one.prompt, one.request) == (0, 0, 0, 0)


def test_a_calibrated_machine_is_in_the_catalogue(tmp_path: Path) -> None:
    measured = calibration_of(found(0.01, 1e-4, 2e-5, 1e-4), day=DAY, dollars_per_hour=0.25).measured
    file = save(measured, tmp_path)
    assert file.name == "some-cpu-2-cores.json"
    assert saved(tmp_path) == [measured]
    instance = known_catalogue(tmp_path).instances["Some CPU (2 cores)"]
    assert instance.start_seconds == 9
    assert instance.device.host_seconds == measured.step > 0
    assert instance.device.host_sampled == measured.sampled > 0
    price = instance.list_price(DAY)
    assert price is not None
    assert (price.likely, price.day) == (0.25, DAY)
    save(replace(measured, version="0.33.0"), tmp_path)
    assert [one.version for one in saved(tmp_path)] == ["0.33.0"]


def test_a_gpu_is_told_from_a_processor() -> None:
    told = found(0.01, 1e-4, 2e-5, 1e-4)
    devices = [
        calibrated(calibration_of(told | {"gpu": gpu}, day=DAY).measured).device for gpu in (True, False)
    ]
    assert [one.keeps_dtype for one in devices] == [False, True]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"name": 1}', '{"day": "2026-11-24", "speed": 3}'])
def test_a_file_that_is_no_calibration_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "odd.json").write_text(text)
    with pytest.raises(ConfigError, match=r"odd\.json: is no calibration .* --calibrate"):
        known_catalogue(tmp_path)


def test_a_figure_that_cannot_be_is_refused_with_its_file(tmp_path: Path) -> None:
    measured = calibration_of(found(0.01, 1e-4, 2e-5, 1e-4), day=DAY).measured
    file = save(measured, tmp_path)
    file.write_text(file.read_text().replace('"bandwidth": 20000000000.0', '"bandwidth": -1.0'))
    with pytest.raises(ConfigError, match=r"\.json: .*bandwidth is -1"):
        saved(tmp_path)


def test_the_command_says_what_it_found_as_lines_or_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(calibrating, "measured_with", lambda _: found(0.01, 1e-4, 2e-5, 1e-4))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object())
    assert calibrating.calibrate("any", 2.5, json=False) == 0
    lines = capsys.readouterr().out
    assert "an engine step takes 10 ms beside the model's work" in lines
    assert "200 GFLOP/s in bf16, 90 GFLOP/s in fp32; 20.0 GB/s" in lines
    assert calibrating.calibrate("any", 2.5, json=True) == 0
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert facts["host_seconds"]["step"] == pytest.approx(0.01, rel=1e-3)
    assert (facts["dollars_per_hour"], facts["start_seconds"]) == (2.5, 9.0)
    assert Path(facts["file"]).is_relative_to(tmp_path)
