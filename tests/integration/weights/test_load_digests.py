"""Parameters that vLLM has loaded: the same whichever load format brought them, and those of the files."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dray.weights import check_checkpoint
from dray.weights.loading.streamed import StreamedWeights
from tests.support.checkpoints import LOADABLE, Stored, llama, odd, write_file
from tests.support.reference import deserialize

pytestmark = [pytest.mark.integration, pytest.mark.heavy]

ROOT = Path(__file__).parents[3]
REFERENCE = "safetensors"  # vLLM's own loader
DRAY = "dray"  # by the entry point of the installed package
AGAIN = "again"  # the reference once more: does the measure itself repeat?
FORMATS = {REFERENCE: REFERENCE, DRAY: DRAY, AGAIN: REFERENCE}
FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
LACKING = "model.layers.0.mlp.down_proj.weight"
LACKING_PART = "model.layers.1.self_attn.k_proj.weight"  # of a fused parameter
VARIANT = "model.w32.safetensors"  # vLLM reads it behind model.safetensors
REPEATED = ["llama-f32", "mixtral"]
DENSE = [name for name in LOADABLE if not name.startswith(("fp8", "mixtral", "qwen3"))]

Results = dict[tuple[str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """All checkpoints; one with a bit flipped, and one without a weight."""
    parent = tmp_path_factory.mktemp("checkpoints")
    found = {name: write(parent / name) for name, write in LOADABLE.items()}
    found["flipped"] = llama(parent / "flipped")
    file = found["flipped"] / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    found["variants"] = llama(parent / "variants", seed=1)  # beside it a copy of another precision
    (found["variants"] / "model.safetensors").rename(found["variants"] / VARIANT)
    llama(found["variants"])
    found["lacking"] = _without(llama(parent / "lacking"), LACKING)
    found["lacking-part"] = _without(llama(parent / "lacking-part"), LACKING_PART)
    return found


def _without(folder: Path, tensor: str) -> Path:
    file = folder / "model.safetensors"
    tensors = {
        name: Stored(found["dtype"], tuple(found["shape"]), bytes(found["data"]))
        for name, found in deserialize(file.read_bytes())
        if name != tensor
    }
    write_file(file, tensors)
    return folder


@pytest.fixture(scope="module")
def results(folders: dict[str, Path]) -> Results:
    """Every load, by checkpoint and by format, in one process: a start of vLLM is what costs."""
    pytest.importorskip("vllm")
    pairs = [(name, label) for name in folders for label in (REFERENCE, DRAY)]
    pairs += [(name, AGAIN) for name in REPEATED]
    arguments = [text for name, label in pairs for text in (str(folders[name]), FORMATS[label])]
    ended = subprocess.run(
        [sys.executable, "-m", "tests.support.load_digests", *arguments],
        cwd=ROOT, env=os.environ, stdout=subprocess.PIPE, timeout=500, check=True,
    )  # fmt: skip
    return dict(zip(pairs, map(json.loads, ended.stdout.splitlines()), strict=True))


def _loaded(results: Results, name: str, label: str = REFERENCE) -> dict[str, Any]:
    reference = results[name, REFERENCE].get("error")
    if reference and name.startswith("fp8"):
        pytest.skip(f"this build of vLLM, or this processor, has no kernel for it: {reference}")
    found = results[name, label]
    assert "error" not in found, found["error"]
    return found


@pytest.mark.parametrize(
    ("name", "label"), [*((name, DRAY) for name in LOADABLE), *((name, AGAIN) for name in REPEATED)]
)
def test_a_format_gives_the_parameters_of_the_default_loader(results: Results, name: str, label: str) -> None:
    expected = _loaded(results, name)
    found = _loaded(results, name, label)
    for part in ("digests", "ready", "unready", "untouched"):
        assert found.get(part) == expected.get(part), part


@pytest.mark.parametrize("name", LOADABLE)
def test_every_weight_was_loaded(results: Results, name: str) -> None:
    found = _loaded(results, name)
    assert len(found["digests"]) >= 25
    for untouched in found["untouched"]:  # of the key-value cache; a checkpoint may have them
        assert re.search(r"\.attn\.[a-z]+_(scale|zero_point)$", untouched), untouched


@pytest.mark.parametrize("name", DENSE)
def test_digests_are_those_of_the_bytes_in_the_files(
    results: Results, folders: dict[str, Path], name: str
) -> None:
    stored = _stored(folders[name])
    for parameter, digest in _loaded(results, name)["digests"].items():
        if parameter.endswith((".weight", ".bias")):
            data = b"".join(stored[source] for source in _sources(parameter, stored))
            assert digest["sha256"] in _padded(data, digest), parameter


def test_quantized_weights_stay_as_they_are_in_the_files(results: Results, folders: dict[str, Path]) -> None:
    for name in ("fp8-tensor", "fp8-channel", "fp8-block"):
        stored = _stored(folders[name])
        digests = _loaded(results, name)["digests"]
        parameter = "model.layers.1.mlp.down_proj.weight"
        assert digests[parameter]["dtype"] == "float8_e4m3fn"
        assert digests[parameter]["sha256"] == hashlib.sha256(stored[parameter]).hexdigest()


def test_a_flipped_bit_shows_in_one_digest(results: Results) -> None:
    flipped = _loaded(results, "flipped")["digests"]
    sound = _loaded(results, "llama-f32")["digests"]
    assert flipped.keys() == sound.keys()
    assert [name for name in sound if sound[name] != flipped[name]] == ["lm_head.weight"]


def test_of_a_folder_with_variants_the_single_file_is_loaded(results: Results) -> None:
    single = _loaded(results, "llama-f32")["digests"]
    assert _loaded(results, "variants", DRAY)["digests"] == single
    last = _loaded(results, "variants")["digests"]  # vLLM's own formats read both: why dray takes its own
    assert last["lm_head.weight"] != single["lm_head.weight"]


def test_a_weight_that_is_not_loaded_shows(results: Results) -> None:
    """vLLM's own check exempts the weights of linear layers."""
    found = results["lacking", REFERENCE]
    assert "error" in found or found["untouched"] == [LACKING]


def test_what_vllm_does_not_notice_is_refused_by_name(results: Results) -> None:
    assert "error" not in results["lacking-part", REFERENCE]
    assert f"lacks weights, or parts of them, for {LACKING};" in results["lacking", "dray"]["error"]
    fused = "model.layers.1.self_attn.qkv_proj.weight"
    assert f"lacks weights, or parts of them, for {fused};" in results["lacking-part", "dray"]["error"]


def test_odd_files_are_read_like_the_reference_implementation_reads_them(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors import safe_open

    weights = StreamedWeights.of(odd(tmp_path))
    found = list(weights.tensors())
    reference: dict[str, Any] = {}
    for file in check_checkpoint(tmp_path):
        with safe_open(tmp_path / file, framework="pt") as opened:
            reference |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    assert len(found) == len(reference)
    for name, tensor in found:
        expected = reference[name]
        assert (tensor.dtype, tensor.shape) == (expected.dtype, expected.shape), name
        assert _bytes(torch, tensor) == _bytes(torch, expected), name
        assert tensor.data_ptr() % tensor.element_size() == 0, name  # also where the file's data begin oddly


def test_a_model_that_edits_its_weights_edits_its_own(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    before = (llama(tmp_path) / "model.safetensors").read_bytes()
    first = dict(StreamedWeights.of(tmp_path).tensors())
    for tensor in first.values():
        tensor.zero_()
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert any(tensor.any() for _, tensor in StreamedWeights.of(tmp_path).tensors())


def _bytes(torch: Any, tensor: Any) -> bytes:
    data: bytes = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return data


def test_odd_files_hold_what_the_reference_implementation_reads(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    import torch
    from safetensors import safe_open

    headers = check_checkpoint(odd(tmp_path))
    assert headers["model.safetensors"].data_start % 8 == 0
    assert headers["misaligned.safetensors"].data_start % 2 == 1
    seen = set()
    for file in headers:
        stored = dict(deserialize((tmp_path / file).read_bytes()))
        with safe_open(tmp_path / file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118  it is no mapping
                tensor = opened.get_tensor(name).contiguous()
                seen.add(tensor.dtype)
                assert tensor.reshape(-1).view(torch.uint8).numpy().tobytes() == stored[name]["data"], name
    assert len(seen) == 20


def _stored(folder: Path) -> dict[str, bytes]:
    """The bytes of every tensor, read by the reference implementation."""
    files = [folder / file for file in check_checkpoint(folder)]
    return {name: bytes(tensor["data"]) for file in files for name, tensor in deserialize(file.read_bytes())}


def _sources(parameter: str, stored: Mapping[str, bytes]) -> list[str]:
    """The tensors of the checkpoint that make up a parameter."""
    for fused, parts in FUSED.items():
        if fused in parameter:
            return [parameter.replace(fused, part) for part in parts]
    return ["model.embed_tokens.weight" if parameter not in stored else parameter]


def _padded(data: bytes, digest: Mapping[str, Any]) -> set[str]:
    """Digests of the bytes as they are, and with the rows of zeros that vLLM adds to a vocabulary."""
    full = data.ljust(len(data) // 100 * 128, b"\0")
    return {hashlib.sha256(found).hexdigest() for found in (data, full)}
