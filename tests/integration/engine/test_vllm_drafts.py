"""A draft that proposes tokens beside its target, loaded as the target is: by load format ``dray``."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from dray.engine.protocol import EngineSpec
from dray.errors import DrayError
from tests.support.checkpoints import Shapes
from tests.support.engines import NAME, Runner, generation_spec, running

pytestmark = [
    pytest.mark.integration,
    pytest.mark.heavy,
    pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM"),
]
LAYER = "layers.0"


def eagle(folder: Path, target: Path, *, without: str | None = None) -> Path:
    """EAGLE's own weights: one layer, and what joins embeddings and hidden states; no embeddings, no head."""
    config = json.loads((target / "config.json").read_text())
    hidden, width = config["hidden_size"], config["intermediate_size"]
    shapes: Shapes = {
        "fc.weight": (hidden, 2 * hidden),
        f"{LAYER}.post_attention_layernorm.weight": (hidden,),
    }
    shapes |= {f"{LAYER}.self_attn.{name}_proj.weight": (hidden, hidden) for name in "qkvo"}
    shapes |= {f"{LAYER}.mlp.{name}_proj.weight": (width, hidden) for name in ("gate", "up")}
    shapes[f"{LAYER}.mlp.down_proj.weight"] = (hidden, width)
    if without is not None:
        del shapes[without]
    folder.mkdir()
    own = {"num_hidden_layers": 1, "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config | own))
    random = np.random.default_rng(0)
    tensors = {name: random.normal(0, 0.05, shape).astype(np.float32) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    return folder


def spec(target: Path, draft: Path) -> EngineSpec:
    speculative = {"method": "eagle", "model": str(draft), "num_speculative_tokens": 2}
    return generation_spec(target, load_format="dray", speculative_config=speculative)


def test_a_draft_without_embeddings_of_its_own(
    tmp_path: Path, lively_model: Path, generation: Runner
) -> None:
    """Its target's take their place once it is loaded; the answers are those of the target alone."""
    body = {"model": NAME, "prompt": "the customer waits for a refund", "max_tokens": 8, "temperature": 0}
    expected = generation.one(body)
    with running(spec(lively_model, eagle(tmp_path / "draft", lively_model))) as runner:
        found = runner.one(body)
    assert found.error_message is None
    assert json.loads(found.response or b"")["choices"] == json.loads(expected.response or b"")["choices"]


def test_a_draft_that_lacks_weights_of_its_own(tmp_path: Path, lively_model: Path) -> None:
    draft = eagle(tmp_path / "draft", lively_model, without=f"{LAYER}.mlp.up_proj.weight")
    with pytest.raises(DrayError, match=r"lacks weights, or parts of them, for model\.layers\.\d+\.mlp"):
        Runner.started(spec(lively_model, draft))
