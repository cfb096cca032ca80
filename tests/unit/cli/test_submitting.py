"""``dray cluster submit``: the job ends with its cluster, which its user is told before."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from dray.cli.cluster import submit
from dray.cluster.providers.kuberay.provider import KubeRayProvider
from dray.cluster.providers.protocol import Machine, Market, Phase
from dray.errors import ClusterError

pytestmark = pytest.mark.unit

FILE = """
kind = "kuberay"
name = "test"
image = "dray:1"
[spot_selector]
a = "b"
[on_demand_selector]
"""


def machine(*, head: bool, expires: float | None) -> Machine:
    return Machine(
        name="one", kind="head", market=Market.ON_DEMAND, phase=Phase.UP, head=head, expires=expires
    )


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of a cluster whose head ends in ten minutes."""

    def taken(self: KubeRayProvider, arguments: Sequence[str]) -> str:
        return "submission"

    def nodes(self: KubeRayProvider) -> tuple[Machine, ...]:
        return machine(head=True, expires=time.time() + 600), machine(head=False, expires=None)

    monkeypatch.setattr(KubeRayProvider, "submit", taken)
    monkeypatch.setattr(KubeRayProvider, "nodes", nodes)
    written = tmp_path / "cluster.toml"
    written.write_text(FILE)
    return str(written)


def test_when_its_cluster_ends_is_said(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert submit(file, "run") == 0
    said = capsys.readouterr()
    assert said.out == "submission\n"
    assert "ends by itself in 10 min, under this job as well" in said.err
    assert f"a longer `lifetime` in {file}, and then `dray cluster up {file}`" in said.err


@pytest.mark.parametrize("machines", [(), (machine(head=True, expires=None),)])
def test_nothing_is_said_of_an_end_that_is_unknown(
    machines: tuple[Machine, ...],
    file: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(KubeRayProvider, "nodes", lambda _: machines)
    assert submit(file, "run") == 0
    assert capsys.readouterr().err == ""


def test_a_look_that_fails_keeps_no_job_from_its_cluster(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(_: KubeRayProvider) -> tuple[Machine, ...]:
        raise ClusterError("list pods is not allowed")

    monkeypatch.setattr(KubeRayProvider, "nodes", refused)
    assert submit(file, "run") == 0
    assert (
        "when this cluster ends by itself is not known: list pods is not allowed" in capsys.readouterr().err
    )
