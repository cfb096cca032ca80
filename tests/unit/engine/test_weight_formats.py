"""Which engine arguments follow from the files in a model's folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from dray.engine.weight_formats import formats_of
from dray.errors import ConfigError
from dray.weights.source.checkpoint import INDEX

pytestmark = pytest.mark.unit

SINGLE = ("config.json", "model.safetensors")
VARIANTS = ("model.fp32-00001-of-00002.safetensors", "model.fp32-00002-of-00002.safetensors")


def folder(path: Path, *names: str) -> str:
    for name in names:
        (path / name).write_bytes(b"")
    return str(path)


@pytest.mark.parametrize("copies", [VARIANTS, ("model.fp16.safetensors",), ("consolidated.safetensors",)])
def test_a_folder_with_second_copies_is_loaded_by_dray(tmp_path: Path, copies: tuple[str, ...]) -> None:
    model = folder(tmp_path, *SINGLE, *copies)
    assert formats_of(model, {}) == {"load_format": "dray"}
    for loaded in ("dray", "dummy"):
        assert formats_of(model, {"load_format": loaded}) == {}


@pytest.mark.parametrize("load_format", ["safetensors", "Safetensors", "fastsafetensors", "runai_streamer"])
def test_a_format_that_would_read_all_copies_is_refused(tmp_path: Path, load_format: str) -> None:
    model = folder(tmp_path, *SINGLE, *VARIANTS)
    with pytest.raises(ConfigError, match=r"would read model\.fp32-00001.* leave load_format out"):
        formats_of(model, {"load_format": load_format})


@pytest.mark.parametrize(
    "names", [(), SINGLE, (*SINGLE, "more.safetensors"), (*SINGLE, *VARIANTS, INDEX), VARIANTS]
)
def test_other_folders_are_left_to_vllms_own_format(tmp_path: Path, names: tuple[str, ...]) -> None:
    model = folder(tmp_path, *names)
    assert formats_of(model, {}) == {}
    assert formats_of(model, {"load_format": "safetensors"}) == {}
    assert formats_of(f"{model}/none", {}) == {}
