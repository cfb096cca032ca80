"""LoRA adapters of rows: each answers as the model with the adapter in its weights, in both arrangements."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from dray.engine.adapter_folder import read_adapter
from dray.engine.adapters import adapters_of
from dray.engine.replica import build_engine
from dray.engine.vllm_adapter.arguments import engine_arguments
from dray.engine.vllm_adapter.lora import load_adapters, refuse_model_without_lora
from dray.errors import ConfigError
from dray.kinds import Kind
from dray.requests.model import Outcome
from tests.support.engines import NAME, Runner, answer_of, embedding_spec, generation_spec, running
from tests.support.lora import CONFIG, WEIGHTS, write_adapter, write_merged
from tests.support.tiny_model import sentence

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300), pytest.mark.heavy(one_of=3)]

TOKENS = 12
NAMES = (NAME, "support", "text")
"""The model itself, and two adapters. vLLM's chat would give "text" to rows whose content has parts."""


class Models:
    """The model's folder, two adapters of other ranks, and what each comes to in the weights."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.adapters = {
            "support": write_adapter(folder / "support", model, seed=1, rank=4),
            "text": write_adapter(folder / "text", model, seed=2, rank=9, modules=("q_proj", "gate_proj")),
        }
        self.folders = {NAME: model} | {
            name: write_merged(folder / f"merged-{name}", model, adapter)
            for name, adapter in self.adapters.items()
        }
        self.modules = {name: str(place) for name, place in self.adapters.items()}


@pytest.fixture(scope="session")
def models(lively_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(lively_model, tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="session")
def inside(models: Models) -> Iterator[Runner]:
    """For as long as other engines of this process: the end of one takes vLLM's globals from the others.

    Those that end earlier have their core in a process of its own.
    """
    with running(generation_spec(models.folders[NAME], lora_modules=models.modules)) as runner:
        yield runner


def texts() -> list[str]:
    rng = random.Random(8)
    return [sentence(rng, rng.randint(1, 40)) for _ in range(8)]


def chat(text: Any, model: str | None = None) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": TOKENS, "temperature": 0}
    return body | {"return_token_ids": True} | ({} if model is None else {"model": model})


def completion(text: str, model: str | None = None) -> dict[str, Any]:
    body = {"prompt": text, "max_tokens": TOKENS, "temperature": 0, "return_token_ids": True}
    return body | ({} if model is None else {"model": model})


def tokens(outcome: Outcome) -> list[int]:
    found: list[int] = answer_of(outcome)["choices"][0]["token_ids"]
    return found


def greedy(folder: Path, prompts: list[str]) -> list[list[int]]:
    """What plain transformers answer to prompts and then to chats, in float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    chats = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False
        )
        for text in prompts
    ]
    found = []
    with torch.inference_mode():
        for text in prompts + chats:
            ids = tokenizer(text, add_special_tokens=False).input_ids
            out = model.generate(torch.tensor([ids]), max_new_tokens=TOKENS, do_sample=False, pad_token_id=0)
            found.append(out[0, len(ids) :].tolist())
    return found


def mixed(prompts: list[str]) -> list[dict[str, Any]]:
    """Rows of all models in turn, completions and then chats."""
    return [make(text, name) for make in (completion, chat) for text in prompts for name in NAMES]


def test_each_row_gets_the_adapter_that_it_names(inside: Runner, models: Models) -> None:
    found = list(map(tokens, inside.run(mixed(texts()))))
    expected = {name: greedy(folder, texts()) for name, folder in models.folders.items()}
    for number, name in enumerate(NAMES):
        assert found[number :: len(NAMES)] == expected[name], name
    assert len({str(answers) for answers in expected.values()}) == len(NAMES), "adapters change the answers"


def test_rows_of_the_model_are_the_bytes_of_an_engine_without_adapters(
    inside: Runner, generation: Runner
) -> None:
    """In one batch with adapters, and also where a text stands in parts, as vLLM's media do."""
    parts = [[{"type": "text", "text": text}] for text in texts()]
    bodies = [
        body for text in [*texts(), *parts] for body in (chat(text), chat(text, "support"), chat(text, NAME))
    ]
    with_adapters, without = inside.run(bodies), generation.run([body | {"model": NAME} for body in bodies])
    for number in (0, 2):
        assert [outcome.response for outcome in with_adapters[number::3]] == [
            outcome.response for outcome in without[number::3]
        ]
    assert [tokens(outcome) for outcome in with_adapters[1::3]] != [
        tokens(outcome) for outcome in without[1::3]
    ]


def test_the_answer_names_the_adapter(inside: Runner) -> None:
    named, unnamed = inside.run([chat("please help", "support"), chat("please help")])
    assert (answer_of(named)["model"], answer_of(unnamed)["model"]) == ("support", NAME)


def test_responses_are_those_of_chats(inside: Runner) -> None:
    def text(outcome: Outcome) -> str:
        found: str | None = Kind.CHAT.columns[0].read(answer_of(outcome))
        return found or ""

    names = [None, *NAMES]
    chats = inside.run([chat(one, name) for one in texts() for name in names])
    bodies = [{"input": one, "max_output_tokens": TOKENS, "temperature": 0} for one in texts()]
    rows = [body | ({} if name is None else {"model": name}) for body in bodies for name in names]
    responses = inside.run(rows, Kind.RESPONSE)
    assert list(map(text, responses)) == list(map(text, chats))
    assert [answer_of(one)["model"] for one in responses] == [answer_of(one)["model"] for one in chats]
    assert len(set(map(text, responses[: len(names)]))) > 1


def test_rows_load_no_other_adapter(inside: Runner, models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the machine lets vLLM's own server load them."""
    monkeypatch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")
    bodies = [chat("please help", name) for name in (str(models.adapters["support"]), "suport", "org/name")]
    refused = inside.run(bodies)
    assert {outcome.error_code for outcome in refused} == {"model_mismatch"}
    assert refused[1].error_message == "this job serves 'tiny' and the adapters 'support', 'text' only"
    assert inside.engine._engine.list_loras() == {1, 2}


@pytest.mark.heavy
def test_apart_gives_the_same_bytes(inside: Runner, models: Models) -> None:
    """With dray's own load format too."""
    spec = generation_spec(
        models.folders[NAME], lora_modules=models.modules, engine_core="apart", load_format="dray"
    )
    bodies = mixed(texts())
    with running(spec) as apart:
        there = apart.run(bodies)
    assert [outcome.response for outcome in there] == [outcome.response for outcome in inside.run(bodies)]


@pytest.mark.heavy
def test_the_name_of_the_job_may_be_an_adapters(models: Models) -> None:
    """As ``--model-name support`` has it for rows without a model; others of them name any adapter."""
    spec = generation_spec(models.folders[NAME], lora_modules=models.modules, engine_core="apart")
    with running(replace(spec, model_name="support")) as runner:
        rows = [completion("order customer", name) for name in (None, "support", "text", NAME)]
        unnamed, named, other, base = runner.run(rows)
    expected = {name: greedy(models.folders[name], ["order customer"])[0] for name in models.adapters}
    assert tokens(unnamed) == tokens(named) == expected["support"] != tokens(other)
    assert tokens(other) == expected["text"]
    assert (answer_of(unnamed)["model"], answer_of(other)["model"]) == ("support", "text")
    assert (base.error_code, base.error_message) == (
        "model_mismatch",
        "this job serves 'support' and the adapters 'text' only",
    )


@pytest.mark.heavy
def test_embeddings(lively_model: Path, models: Models) -> None:
    spec = embedding_spec(lively_model)
    spec = replace(spec, arguments=spec.arguments | {"lora_modules": models.modules, "engine_core": "apart"})
    with running(spec) as runner:
        rows = [{"input": text, "model": name} for text in texts() for name in NAMES]
        found = [np.array(answer_of(outcome)["data"][0]["embedding"]) for outcome in runner.run(rows)]
    for number, name in enumerate(NAMES):
        expected = embedded(models.folders[name], texts())
        assert np.abs(np.stack(found[number :: len(NAMES)]) - expected).max() < 1e-3, name
    assert np.abs(found[0] - found[1]).max() > 0.01, "the adapter changes the vector"


def embedded(folder: Path, prompts: list[str]) -> np.ndarray[Any, Any]:
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        last = [model(torch.tensor([tokenizer(text).input_ids])).last_hidden_state[0, -1] for text in prompts]
        return np.stack([torch.nn.functional.normalize(one, dim=0).numpy() for one in last])


@pytest.mark.heavy
def test_an_adapter_that_vllm_cannot_load_is_said_at_the_start(models: Models, tmp_path: Path) -> None:
    """A sound file that vLLM alone finds fault with: the model has no modules of this name."""
    odd = write_adapter(tmp_path / "odd", models.folders[NAME], modules=("q_proj",))
    content = (odd / WEIGHTS).read_bytes()
    (odd / WEIGHTS).write_bytes(content.replace(b"layers.0.self_attn.q_proj", b"xxxxxx.0.self_attn.qq_roj"))
    with pytest.raises(ConfigError, match=r"adapter 'odd' in .*: vLLM cannot load it: .*qq_roj"):
        build_engine(
            generation_spec(models.folders[NAME], lora_modules={"odd": str(odd)}, engine_core="apart")
        )


def test_an_engine_that_ends_while_it_loads_adapters_blames_none(models: Models, quiet_vllm: None) -> None:
    """A wrong argument fails the job; a lost engine is started again."""
    from vllm.v1.engine.exceptions import EngineDeadError

    class Ending:
        def __init__(self, error: Exception) -> None:
            self._error = error

        def add_lora(self, request: Any) -> None:
            raise self._error

    adapters = [read_adapter("support", models.adapters["support"])]
    apart = Exception("Call to add_lora method failed: CUDA out of memory.")
    for error in (MemoryError(), EngineDeadError(), apart):
        with pytest.raises(type(error)) as raised:
            load_adapters(Ending(error), adapters)
        assert raised.value is error
    with pytest.raises(ConfigError, match="vLLM cannot load it: no module qq_roj"):
        load_adapters(Ending(ValueError("no module qq_roj")), adapters)


def test_a_node_without_the_folder_says_so_before_vllm_is_imported(models: Models, tmp_path: Path) -> None:
    moved = tmp_path / "support"
    shutil.copytree(models.adapters["support"], moved)
    shutil.rmtree(moved)
    with pytest.raises(ConfigError, match=r"adapter 'support' in .*/support: no such directory"):
        build_engine(generation_spec(models.folders[NAME], lora_modules={"support": str(moved)}))


CONFIGS: list[dict[str, Any]] = [
    {},
    {"r": 8},
    {"lora_alpha": 0.5},
    {"target_modules": "all-linear"},
    {"use_rslora": True},
    {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"q_proj": 3}},
    {"rank_pattern": {"q_proj": 0}},
    {"rank_pattern": {"q_proj": 2.5}},
    {"r": 0},
    {"bias": "lora_only"},
    {"use_dora": True},
    {"lora_bias": True},
    {"modules_to_save": ["embed_tokens"]},
    {"modules_to_save": []},
    {"alora_invocation_tokens": [5]},
    {"layer_replication": [[0, 4], [2, 5]]},
    {"use_bdlora": {"target_modules_bd_a": []}},
    {"use_qalora": True},
    *({"init_lora_weights": value} for value in (True, False, "gaussian", "Eva", "orthogonal", "lora_ga")),
    *({"init_lora_weights": value} for value in ("pissa", "olora", "loftq", "corda", "pissa_niter_16")),
]


def test_what_vllm_refuses_of_a_configuration_is_refused_before(quiet_vllm: None, tmp_path: Path) -> None:
    """And nothing else of these: the driver has no vLLM to ask."""
    from vllm.config.lora import LoRAConfig
    from vllm.lora.peft_helper import PEFTHelper

    for number, config in enumerate(CONFIGS):
        folder = tmp_path / str(number)
        folder.mkdir()
        save_file({"base_model.model.w.lora_B.weight": np.zeros((2, 2), np.float32)}, folder / WEIGHTS)
        whole = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["w"]} | config
        (folder / CONFIG).write_text(json.dumps(whole))
        try:
            PEFTHelper.from_local_dir(str(folder), None).validate_legal(LoRAConfig(max_lora_rank=512))
        except (ValueError, TypeError):
            with pytest.raises(ConfigError):
                read_adapter("a", folder)
        else:
            assert read_adapter("a", folder).rank == config.get("r", 4), config


def test_arguments_that_adapters_need(models: Models, quiet_vllm: None) -> None:
    """A place that stays empty on a CPU alone; and what the user gave stays."""

    def arguments(cpu: bool, modules: dict[str, str] = models.modules, **given: Any) -> dict[str, Any]:
        spec = generation_spec(models.folders[NAME], lora_modules=modules, **given)
        adapters = adapters_of(spec.arguments, spec.model)
        found = engine_arguments(spec, {"model": spec.model}, adapters, cpu=cpu)
        assert "lora_modules" not in found
        return {name: value for name, value in found.items() if "lora" in name}

    common = {"enable_lora": True, "max_lora_rank": 16, "max_cpu_loras": 3}
    assert arguments(True) == common | {"max_loras": 3}
    assert arguments(False) == common | {"max_loras": 2}
    assert arguments(False, max_loras=1, max_lora_rank=64) == common | {"max_loras": 1, "max_lora_rank": 64}
    assert arguments(False, max_loras=40) == common | {"max_loras": 40, "max_cpu_loras": 40}
    many = {f"a{number}": models.modules["support"] for number in range(20)}
    assert arguments(False, many) == common | {"max_loras": 16, "max_lora_rank": 8, "max_cpu_loras": 21}
    with pytest.raises(ConfigError, match="max_loras: on a CPU vLLM needs 3, one more than there are"):
        arguments(True, max_loras=2)


def test_a_model_for_which_vllm_has_no_adapters(
    models: Models, quiet_vllm: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Odd:
        pass

    monkeypatch.setattr("vllm.model_executor.model_loader.utils.get_model_cls", lambda config: Odd)
    config = SimpleNamespace(model_config=None)
    spec = generation_spec(models.folders[NAME], lora_modules=models.modules)
    with pytest.raises(ConfigError, match="vLLM offers no LoRA adapters for models of the class Odd"):
        refuse_model_without_lora(spec, config)
    refuse_model_without_lora(generation_spec(models.folders[NAME]), config)
