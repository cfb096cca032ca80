"""The model directory, as far as it can be judged without an engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from dray.errors import ConfigError
from dray.job.model_files import check_model, model_digest

pytestmark = pytest.mark.unit


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such directory"):
        check_model(str(tmp_path / "none"))


def test_no_config(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"no config\.json"):
        check_model(str(tmp_path))


def test_a_config_that_is_not_json(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="not valid JSON"):
        check_model(str(tmp_path), dummy_weights=True)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth", "model.pt", "last.ckpt"])
def test_weights_only_as_pickle(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_bytes(b"\x80\x04.")
    with pytest.raises(ConfigError, match=f"pickle files.*{name}.*convert them to safetensors"):
        check_model(str(tmp_path))
    save_file({"a": np.zeros(2)}, tmp_path / "model.safetensors")
    assert check_model(str(tmp_path)) == tmp_path  # safetensors beside pickles: those are loaded


def test_no_weights_at_all(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"no \*\.safetensors"):
        check_model(str(tmp_path))
    assert check_model(str(tmp_path), dummy_weights=True) == tmp_path


def test_weights_that_are_not_safetensors(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(ConfigError, match="not a safetensors file"):
        check_model(str(tmp_path))


def test_the_digest_changes_with_the_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    digests = set()
    for value in (0.0, 1.0, 1.0):
        save_file({"a": np.full(2, value)}, tmp_path / "model.safetensors")
        digests.add(model_digest(str(tmp_path)))
    assert len(digests) == 2
