"""The catalogue that dray ships, and what is refused in one of the user's."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from dray.errors import ConfigError
from dray.planner import catalogue
from dray.planner.catalogue import Measured, calibrated, hosted_prices, load_catalogue, read_catalogue

pytestmark = pytest.mark.unit

FILE = Path(catalogue.__file__).with_name("hardware.toml")
TABLES = tomllib.loads(FILE.read_text())
TODAY = date(2026, 11, 24)
MEASURED = Measured(name="here", gemm={"bf16": 1e11}, bandwidth=2e10, step=0.001, memory=8e9, day=TODAY)


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    tables = copy.deepcopy(TABLES)
    change(tables)
    return tables


def test_every_instance_has_a_price_and_a_host() -> None:
    instances = load_catalogue().instances
    assert len(instances) == 15
    for one in instances.values():
        assert one.list_price(TODAY) is not None
        assert one.ram >= 16 * 2**30
        assert one.devices == 1 or one.link is not None
        assert one.interruptions.low <= one.interruptions.likely <= one.interruptions.high


def test_efficiencies_are_shares() -> None:
    for device in load_catalogue().devices().values():
        assert device.gemm.keys() == device.peak.keys() >= {"bf16"}
        shares = [share for pair in device.gemm.values() for share in pair]
        shares += [*device.attention, *device.weights.values(), *device.kv.values()]
        assert all(0.2 < share < 1 for share in shares)


def test_measured_gpus_have_no_doubtful_figure() -> None:
    devices = load_catalogue().devices()
    assert {name for name, one in devices.items() if not one.doubts} == {"L40S", "A100-80", "H100", "H200"}


def test_int8_is_faster_than_bf16_and_doubted_alone() -> None:
    """vLLM multiplies in int8 where weights and activations are: it was planned in bf16 everywhere."""
    devices = load_catalogue().devices()
    for name in ("L4", "A10G", "L40S", "A100-40", "A100-80", "H100", "H200"):
        assert devices[name].gemm_rate("int8", 4096) > 1.2 * devices[name].gemm_rate("bf16", 4096)
    a100 = devices["A100-80"]
    assert (a100.doubts_of({"bf16"}), a100.doubts_of({"bf16", "int8"})) == ((), ("gemm",))
    assert devices["L4"].doubts_of({"bf16"}) == ("gemm", "attention", "weights", "kv")


def test_the_price_of_a_day_is_the_latest_before_it() -> None:
    p5 = load_catalogue().instances["p5.48xlarge"]
    prices = [p5.list_price(day) for day in (date(2024, 1, 1), date(2024, 9, 30), TODAY)]
    assert [price and price.likely for price in prices] == [None, 98.32, 55.04]
    assert p5.spot_price(date(2024, 9, 30)) is None


def test_rates_lie_between_the_measured_shapes() -> None:
    l40s = load_catalogue().devices()["L40S"]
    assert l40s.gemm_rate("fp8", 1024) == pytest.approx(733e12 * 0.46)
    assert l40s.gemm_rate("fp8", 6144) == pytest.approx(733e12 * 0.495)
    assert l40s.gemm_rate("fp8", 16384) == pytest.approx(733e12 * 0.53)
    assert l40s.attention_rate(4096) == pytest.approx(362e12 * 0.47)
    assert load_catalogue().devices()["A100-80"].gemm_rate("fp8", 4096) == pytest.approx(312e12 * 0.82)


def test_hosted_prices_of_a_day() -> None:
    then = {one.name: one for one in hosted_prices(date(2024, 9, 30))}
    now = {one.name: one for one in hosted_prices(TODAY)}
    assert then.keys() == {"GPT-4o mini", "Bedrock Llama 3.1 8B", "Bedrock Llama 3.1 70B"}
    assert then["GPT-4o mini"].dollars(2000, 100) == pytest.approx(1.80e-4)
    assert then["Bedrock Llama 3.1 8B"].dollars(2000, 100) == pytest.approx(2.31e-4)
    assert then["Bedrock Llama 3.1 70B"].dollars(2000, 100) == pytest.approx(1.0395e-3)
    assert now["Bedrock Llama 3.1 70B"].dollars(2000, 100) == pytest.approx(0.36 * 2.1e-3)
    assert now["GPT-5.4 nano"].dollars(2000, 100) == pytest.approx(2.625e-4)


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "no sources": (lambda t: t.pop("source"), r"table \[source\] is missing"),
    "no GPUs": (lambda t: t.pop("gpu"), r"table \[gpu\] is missing"),
    "source without a day": (
        lambda t: t["source"]["aic"].pop("date"),
        "source.aic: the field 'title' or 'date'",
    ),
    "missing figure": (lambda t: t["gpu"]["L4"].pop("bandwidth"), "gpu.L4: the field 'bandwidth' is missing"),
    "figure without a source": (
        lambda t: t["gpu"]["L4"].update(bandwidth=3e11),
        r"'bandwidth' is not \[value",
    ),
    "unknown source": (
        lambda t: t["gpu"]["L4"].update(bandwidth=[3e11, "me"]),
        "'bandwidth' names the source 'me'",
    ),
    "no number": (lambda t: t["gpu"]["L4"].update(bandwidth=["x", "aic"]), "'bandwidth' is not a number"),
    "negative": (
        lambda t: t["gpu"]["L4"].update(bandwidth=[-1, "aic"]),
        "'bandwidth' is -1, but must be above 0",
    ),
    "share above one": (lambda t: t["gpu"]["L4"]["kv"].update(bf16=[1.2, "aic"]), "gpu.L4.kv: .* at most 1"),
    "peak without gemm": (lambda t: t["gpu"]["L4"]["peak"].update(fp4=[1e15, "aic"]), "same arithmetic"),
    "unknown GPU": (lambda t: t["instance"]["g5.xlarge"].update(gpu="A11"), "instance.g5.xlarge: .*'gpu'"),
    "several GPUs, no link": (lambda t: t["instance"]["p5.48xlarge"].pop("link"), "'link' is missing"),
    "no GPUs in it": (lambda t: t["instance"]["g5.xlarge"].update(gpus=0), "'gpus' is not a whole number"),
    "no prices": (lambda t: t["instance"]["g5.xlarge"].update(on_demand=[]), "'on_demand' is not a list"),
    "spot falls": (lambda t: t["instance"]["g5.xlarge"].update(spot=[[2, 1], "sky"]), "'spot' is not in asc"),
    "rates fall": (
        lambda t: t["instance"]["g5.xlarge"].update(interruptions=[[3, 2, 1], "sky"]),
        "'interruptions' is not in ascending order",
    ),
    "size of a link": (
        lambda t: t["link"]["pcie4"]["all_reduce"].update(many=[1e9, "aic"]),
        "link.pcie4: the field 'all_reduce' has a size",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_wrong_table_is_refused_by_name(name: str) -> None:
    change, said = CHANGES[name]
    with pytest.raises(ConfigError, match=f"mine.toml: .*{said}"):
        read_catalogue(changed(change), file="mine.toml")


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.toml: cannot be read"):
        load_catalogue(tmp_path / "gone.toml")
    (tmp_path / "bad.toml").write_text("[")
    with pytest.raises(ConfigError, match=r"bad\.toml: is not valid TOML"):
        load_catalogue(tmp_path / "bad.toml")


def test_a_calibrated_machine_computes_at_the_measured_rates() -> None:
    device = calibrated(MEASURED).device
    assert device.gemm_rate("bf16", 4096) == device.gemm_rate("fp8", 128) == 1e11
    assert device.attention_rate(500) == 1e11
    assert device.weight_rate(16) == device.kv_rate("fp8") == 2e10
    assert device.host_seconds == 0.001


@pytest.mark.parametrize(
    ("figures", "named"),
    [
        ({"gemm": {}}, "no GEMM"),
        ({"gemm": {"bf16": 0.0}}, "gemm.bf16 is 0"),
        ({"bandwidth": float("nan")}, "bandwidth is nan"),
        ({"step": -1.0}, "step is -1"),
        ({"attention": 0.0}, "attention is 0"),
        ({"memory": float("inf")}, "memory is inf"),
    ],
)
def test_a_measurement_that_cannot_be_is_named(figures: dict[str, Any], named: str) -> None:
    values: dict[str, Any] = {
        "name": "here", "gemm": {"bf16": 1e11}, "bandwidth": 2e10, "step": 0.001, "memory": 8e9, "day": TODAY,
    }  # fmt: skip
    with pytest.raises(ConfigError, match=f"calibration of here: {named}"):
        calibrated(Measured(**{**values, **figures}))
