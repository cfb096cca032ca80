"""Models with Mistral's own tokenizer: read as vLLM reads them, with a template or with mistral-common."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dray.planner.workload import Counting, TokenizerAt, estimate
from dray.planner.workload.mistral import MistralEncoder, reads_mistrals
from dray.planner.workload.prompts import Text, Unreadable
from dray.requests.spool.spool import encode_line
from tests.support.seeing_model import asking

pytestmark = pytest.mark.unit

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
HI = {"role": "user", "content": "hi"}


@pytest.fixture(scope="module")
def tekken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as Mistral publishes it, but for the second copy of its weights."""
    if find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    common = pytest.importorskip("mistral_common")
    folder = tmp_path_factory.mktemp("tekken")
    shutil.copy(Path(common.__file__).parent / "data/tekken_240911.json", folder / "tekken.json")
    (folder / "config.json").write_text('{"model_type": "mistral"}')
    return folder


@pytest.fixture(scope="module")
def encoder(tekken: Path) -> MistralEncoder:
    return MistralEncoder(str(tekken), image_tokens=10)


@pytest.mark.parametrize(
    ("names", "mode", "mistrals"),
    [
        (["consolidated.safetensors", "tekken.json"], "auto", True),
        (["consolidated-00001-of-00002.safetensors", "tokenizer.model.v3"], "auto", True),
        (["original/consolidated.safetensors", "tekken.json"], "auto", True),
        (["consolidated.safetensors", "tokenizer.json"], "auto", False),
        (["model.safetensors", "tekken.json"], "auto", False),
        (["model.safetensors", "tekken.json"], "mistral", True),
        (["consolidated.safetensors", "tekken.json"], "hf", False),
    ],
)
def test_the_tokenizer_is_the_one_that_vllm_takes(
    names: list[str], mode: str, mistrals: bool, tmp_path: Path
) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert reads_mistrals(tmp_path, mode) is mistrals


@pytest.mark.parametrize("mode", [pytest.param("auto", marks=pytest.mark.heavy), "mistral"])
def test_a_plan_counts_the_tokens_of_a_tekken_model(tekken: Path, mode: str) -> None:
    """``auto`` is transformers here: it reads a completion, and has no template for a chat."""
    rows = [
        encode_line(0, "a", COMPLETION, {"prompt": "hello you", "max_tokens": 1}, 0, 1),
        encode_line(1, "b", CHAT, {"messages": [HI], "max_tokens": 1}, 0, 2),
    ]
    tokenizer = TokenizerAt(folder=str(tekken), tokenizer_mode=mode)
    found, notes = estimate(rows, Counting(tokenizer=tokenizer, processes=1))
    assert (notes, found.refused) == ((), 1 if mode == "auto" else 0)
    assert found.counted == "every row by the model's tokenizer"


def test_conversations_have_the_tokens_of_vllm(encoder: MistralEncoder) -> None:
    """Literals: of vLLM 0.32's MistralTokenizer with this file."""
    messages = [{"role": "system", "content": "Be brief."}, {"role": "developer", "content": "x"}, HI]
    assert encoder.render({"messages": [HI]}, True) == [1, 3, 8101, 4]
    assert encoder.render({"messages": messages}, True) == [1, 3, 5934, 13426, 1338, 1120, 1267, 8101, 4]
    function = {"name": "f", "arguments": '{"a": 1}'}
    called: dict[str, Any] = {
        "messages": [
            {"role": "user", "content": "w?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "call-123456789", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": "call-123456789", "content": "ok"},
            {"role": "user", "content": "and?"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {"name": "f", "parameters": {"type": "object", "properties": {}}},
            }
        ],
    }
    assert len(encoder.render(called, True)) == 102
    begun = {"messages": [HI, {"role": "assistant", "content": "b"}], "add_generation_prompt": False}
    assert encoder.render({**begun, "continue_final_message": True}, True)[-1] == 1098
    assert [
        one.tolist() for one in encoder.encode([Text("hi", special=True), Text("hi", special=False)])
    ] == [
        [1, 8101],
        [8101],
    ]


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [HI, {"role": "assistant", "content": "b"}]},
        {"messages": [HI], "continue_final_message": True, "add_generation_prompt": False},
        {"messages": [HI], "chat_template_kwargs": {"a": 1}},
        {"messages": [{"role": "critic", "content": "b"}]},
    ],
)
def test_what_vllm_refuses_of_mistrals_is_refused(encoder: MistralEncoder, body: dict[str, Any]) -> None:
    with pytest.raises(Unreadable):
        encoder.render(body, True)


def test_images_have_their_tokens_where_they_stand(encoder: MistralEncoder) -> None:
    one, other = (encoder.render(asking("see", f"url:/data/{name}.png", "?"), True) for name in "ab")
    assert one.images == 1
    assert [*one[:4], *one[14:]] == [*other[:4], *other[14:]] == [1, 3, 6270, 1267, 1267, 1063, 4]
    assert not set(one[4:14]) & set(other[4:14])
