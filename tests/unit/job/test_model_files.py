"""The model directory, as far as it can be judged without an engine."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from dray.errors import ConfigError, WeightsError
from dray.job.options.model_files import check_model, model_digest
from dray.weights.source.configuration import configuration_of
from dray.weights.source.content import content_digests

pytestmark = pytest.mark.unit


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such directory"):
        check_model(str(tmp_path / "none"))


def test_no_config(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"no config\.json"):
        check_model(str(tmp_path))


def test_a_model_in_mistrals_own_format(tmp_path: Path) -> None:
    for name in ("params.json", "consolidated.safetensors", "tekken.json"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ConfigError, match=r"in Mistral's own format .*in Hugging Face's format"):
        check_model(str(tmp_path))
    with (
        pytest.raises(ConfigError, match="in Mistral's own format"),
        configuration_of(str(tmp_path)),
    ):
        pass


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


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("modules.json", '[{"path": "1_Pooling", "type": "sentence_transformers.models.Pooling", "idx": 1}]'),
        ("1_Pooling/config.json", '{"pooling_mode_mean_tokens": true}'),
        ("config_sentence_transformers.json", '{"prompts": {"query": "Find: "}}'),
        ("preprocessor_config.json", '{"size": 224}'),
        ("vocab.txt", "a"),
        ("bpe.codes", "a b 1"),
        ("sentence_roberta_config.json", '{"max_seq_length": 128}'),
        ("additional_chat_templates/tool_use.jinja", "{{ tools }}"),
    ],
)
def test_the_digest_changes_with_what_an_engine_reads_beside_them(
    embedding: Path, name: str, text: str
) -> None:
    before = model_digest(str(embedding))
    (embedding / name).parent.mkdir(exist_ok=True)
    (embedding / name).write_text(text)
    assert model_digest(str(embedding)) != before


def test_the_digest_of_a_model_without_the_later_files_stays(embedding: Path) -> None:
    """A job that an earlier version began goes on."""
    for name in ("tokenizer.json", "vocab.txt", "sentence_bert_config.json"):
        (embedding / name).write_text("{}")
    assert model_digest(str(embedding)) == "a979271869971a572e716fcfef4c48ebdac764e1403b4983ba9ae853d6cba2df"


def test_the_digest_is_of_the_weights_of_modules_too(embedding: Path) -> None:
    before = model_digest(str(embedding))
    save_file({"linear.weight": np.ones(2)}, embedding / "2_Dense" / "model.safetensors")
    assert model_digest(str(embedding)) != before
    (embedding / "1_Pooling" / "config.json").unlink()
    with pytest.raises(WeightsError, match=r"1_Pooling/config\.json: missing"):
        model_digest(str(embedding))


@pytest.fixture
def embedding(tmp_path: Path) -> Path:
    """An embedding model with CLS pooling and a layer behind it."""
    (tmp_path / "config.json").write_text("{}")
    save_file({"a": np.zeros(2)}, tmp_path / "model.safetensors")
    modules = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense"}
    listed = [
        {"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in modules.items()
    ]
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    for name in ("1_Pooling", "2_Dense"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text('{"pooling_mode_cls_token": true}')
    save_file({"linear.weight": np.zeros(2)}, tmp_path / "2_Dense" / "model.safetensors")
    return tmp_path


def test_the_weights_of_modules_are_read_whole(embedding: Path) -> None:
    assert sorted(content_digests(embedding)) == ["2_Dense/model.safetensors", "model.safetensors"]
