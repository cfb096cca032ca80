"""What makes two jobs the same job."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from dray.failures.effects import ALLOWANCES
from dray.job.beginning import identity, opening
from dray.job.beginning.identity import derived_job_id, fingerprint_of
from dray.job.options.argument_files import with_contents
from dray.job.options.forms import RowOptions, SamplingOptions
from dray.job.options.request import JobRequest
from dray.job.options.resolving import NoBlocks, job_settings
from dray.job.options.settings import JobSettings
from dray.job.options.spelling import spelled
from dray.kinds import Kind
from dray.requests.row_shape import RowShape
from dray.requests.sources import RowDefaults
from dray.store import Fingerprint, open_store
from dray.weights import Manifest
from tests.support.sources import source_of

pytestmark = pytest.mark.unit

Make = Callable[..., JobSettings]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0\0\0\0")
    return folder


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"model": "another"}, "model"),
        ({"engine_arguments": {"seed": 1}}, "model"),
        ({"engine_arguments": {"max_model_len": 512}}, "model"),
        ({"engine_arguments": {"load_format": "dummy"}}, "model"),  # random weights give random text
        ({"defaults": RowDefaults(sampling={"temperature": 1})}, "sampling"),
        ({"defaults": RowDefaults(sampling={"temperature": 0}, model_name="m")}, "sampling"),
    ],
)
def test_what_changes_the_answers_makes_another_job(
    make_settings: Make, changes: dict[str, Any], part: str
) -> None:
    before, after = fingerprint_of(make_settings()), fingerprint_of(make_settings(**changes))
    assert before.differences(after) == [part]


@pytest.mark.parametrize(
    "changes",
    [
        {"replicas": 4},
        {"shard_rows": 7},
        {"replica_cpus": 2.0, "replica_gpus": 0.0},
        {"format": "parquet"},
        {"skip_invalid": True},
        {"job_id": "named"},
        {"request": JobRequest(input="x", model="m", output="o")},
        {"engine_arguments": {"max_num_seqs": 8, "seconds_per_token": 0.5, "crash_on": "x"}},
        {"engine_arguments": {"load_format": "safetensors"}},
        {
            "engine_arguments": {
                "engine_core": "apart",
                "max_num_active_seqs": 8,
                "max_num_scheduled_tokens": 64,
            }
        },
    ],
)
def test_how_it_is_run_does_not(make_settings: Make, changes: dict[str, Any]) -> None:
    assert fingerprint_of(make_settings()) == fingerprint_of(make_settings(**changes))


def test_a_job_that_an_earlier_dray_began_goes_on(
    make_settings: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three more arguments change no answer by now; they made another job."""
    arguments = {"engine_core": "apart", "max_num_seqs": 8}
    settings = make_settings(model=str(tmp_path), engine_arguments=arguments)
    now = fingerprint_of(settings)
    with monkeypatch.context() as earlier:
        earlier.setattr(identity, "_TUNING", identity._TUNING - identity._LATELY_TUNING)
        former = fingerprint_of(settings)
    assert former.differences(now) == ["model"]
    with open_store(str(tmp_path / "dray.db")) as store:
        assert opening._as_begun(store, settings, now) == now
        name = derived_job_id(settings, former)
        store.create_job(name, fingerprint=former, settings={})
        assert opening._as_begun(store, settings, now) == former
        assert opening._as_begun(store, replace(settings, job_id=name), now) == former
        assert opening._as_begun(store, replace(settings, job_id="other"), now) == now


def test_a_word_for_the_model_is_the_same_job_from_each_folder(
    make_settings: Make, job_input: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--model none`` of the simulated engine was FOLDER/none; a job that was begun so goes on there."""
    output = str(tmp_path / "out")
    request = JobRequest.of(str(job_input), "none", output, engine={"name": "simulated"})
    found = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        monkeypatch.chdir(folder)
        found.append(fingerprint_of(job_settings(request.anchored(), NoBlocks())))
    assert found[0] == found[1]
    settings = job_settings(request, NoBlocks())
    former = fingerprint_of(replace(settings, model=str(folder / "none")))
    with open_store(str(tmp_path / "dray.db")) as store:
        assert opening._as_begun(store, settings, found[0]) == found[0]
        store.create_job(derived_job_id(settings, former), fingerprint=former, settings={})
        assert opening._as_begun(store, settings, found[0]) == former
    (folder / "none").mkdir()  # a folder is a folder, and vLLM's model is none else
    assert request.anchored().model == str(folder / "none")
    assert JobRequest.of(str(job_input), "tiny", output).anchored().model == str(folder / "tiny")


def test_what_a_spent_budget_advises_to_change_leaves_the_job_what_it_is(make_settings: Make) -> None:
    advised = " ".join(one.advice.partition(";")[0] for one in ALLOWANCES.values())
    arguments = dict.fromkeys(re.findall(r"\bmax_\w+", advised), 8)
    assert arguments
    assert fingerprint_of(make_settings()) == fingerprint_of(make_settings(engine_arguments=arguments))


def test_what_adapters_hold_counts_and_not_their_place(make_settings: Make, tmp_path: Path) -> None:
    def job(place: str, weights: bytes, name: str = "support", **more: Any) -> Fingerprint:
        folder = tmp_path / place
        folder.mkdir(exist_ok=True)
        (folder / "adapter_config.json").write_text("{}")
        (folder / "adapter_model.safetensors").write_bytes(weights)
        (folder / "README.md").write_text(place)  # of no effect on an answer
        arguments = {"lora_modules": {name: str(folder)}} | more
        return fingerprint_of(make_settings(engine_arguments=arguments))

    before = job("a", b"x" * 200_000 + b"1" + b"x" * 200_000)
    assert job("b", b"x" * 200_000 + b"1" + b"x" * 200_000) == before
    assert job("b", b"x" * 200_000 + b"1" + b"x" * 200_000, max_loras=4, max_lora_rank=64) == before
    assert before.differences(job("b", b"x" * 200_000 + b"2" + b"x" * 200_000)) == ["model"]
    assert before.differences(job("a", b"x" * 200_000 + b"1" + b"x" * 200_000, "sales")) == ["model"]
    assert before.differences(fingerprint_of(make_settings())) == ["model"]
    (tmp_path / "a" / "adapter_config.json").write_text('{"r": 8}')
    again = fingerprint_of(make_settings(engine_arguments={"lora_modules": {"support": str(tmp_path / "a")}}))
    assert before.differences(again) == ["model"]


def test_adapters_that_only_nodes_have_count_by_their_path(make_settings: Make) -> None:
    here, there = (
        fingerprint_of(make_settings(engine_arguments={"lora_modules": {"support": place}}))
        for place in ("/nodes/a", "/nodes/b")
    )
    assert here.differences(there) == ["model"]


def test_the_content_counts_and_not_its_place(make_settings: Make, job_input: Path, tmp_path: Path) -> None:
    before = fingerprint_of(make_settings())
    copy = tmp_path / "elsewhere.jsonl"
    copy.write_bytes(job_input.read_bytes())
    moved = make_settings(source=source_of([str(copy)]), output=str(tmp_path / "other"))
    assert fingerprint_of(moved) == before
    copy.write_bytes(job_input.read_bytes().replace(b"prompt 49", b"prompt 50"))
    assert before.differences(fingerprint_of(moved)) == ["input"]


def test_the_template_counts(make_settings: Make, tmp_path: Path) -> None:
    table = tmp_path / "in.csv"
    table.write_text("text,other\na,b\n")

    def shaped(**shape: Any) -> JobSettings:
        return make_settings(source=source_of([str(table)], **shape))

    first = fingerprint_of(shaped(template="{text}"))
    assert first == fingerprint_of(shaped(template="{text}"))
    for shape in ({"template": "{other}"}, {"prompt_column": "text"}):
        assert first.differences(fingerprint_of(shaped(**shape))) == ["template"]
    completion = fingerprint_of(shaped(template="{text}", kind=Kind.COMPLETION))
    assert first.differences(completion) == ["template"]


def test_answers_by_another_tokenizer_are_of_another_job(make_settings: Make) -> None:
    """Mistral's models at an address had Hugging Face's; with a tokenizer of the user's, nothing changed."""

    def job(*, both: bool, **arguments: Any) -> Fingerprint:
        settings = make_settings(engine="vllm", model="s3://b/m", engine_arguments=arguments)
        return fingerprint_of(settings, Manifest(uri="s3://b/m", files=(), leaves_mistrals=both))

    assert job(both=False).differences(job(both=True)) == ["model"]
    assert job(both=False, tokenizer_mode="hf") == job(both=True, tokenizer_mode="hf")


def test_the_options_that_make_another_job_are_told() -> None:
    parts = Fingerprint(input="", model="", sampling="", template="", format="")
    told = parts.told_differences(replace(parts, model="x", sampling="x", template="x"))
    of_rows = RowOptions.model_fields.keys() & {one.name for one in fields(RowShape)}
    paths: list[tuple[str, ...]] = [("rows", one) for one in (*of_rows, "delimiter", "quoting", "model_name")]
    paths += [("sampling", one) for one in SamplingOptions.model_fields]
    paths += [("model",), ("engine", "name"), ("engine", "arguments"), ("overflow",)]
    options = {spelled(path) for path in paths}
    ends = ("-column", "-columns", "-root")
    assert set(re.findall(r"--[a-z-]+", told)) == {one for one in options if not one.endswith(ends)}
    assert all(end in told for end in ends)


def test_the_model_is_its_files_and_not_its_path(make_settings: Make, model: Path, tmp_path: Path) -> None:
    before = fingerprint_of(make_settings(engine="vllm", model=str(model)))
    moved = tmp_path / "moved"
    model.rename(moved)
    settings = make_settings(engine="vllm", model=str(moved))
    assert fingerprint_of(settings) == before
    weights = (moved / "a.safetensors").read_bytes()
    (moved / "a.safetensors").write_bytes(weights[:-1] + b"\1")
    assert before.differences(fingerprint_of(settings)) == ["model"]
    (moved / "a.safetensors").write_bytes(weights)
    assert fingerprint_of(settings) == before
    (moved / "generation_config.json").write_text('{"temperature": 0.5}')
    assert before.differences(fingerprint_of(settings)) == ["model"]


def test_the_content_of_a_template_counts_and_not_its_place(make_settings: Make, tmp_path: Path) -> None:
    def of(file: Path) -> Fingerprint:
        return fingerprint_of(make_settings(engine_arguments={"chat_template": str(file)}))

    file, copy = tmp_path / "a.jinja", tmp_path / "b.jinja"
    file.write_text("{{ messages }}")
    copy.write_text("{{ messages }}")
    before = of(file)
    assert of(copy) == before
    file.write_text("{{ messages }}!")
    assert before.differences(of(file)) == ["model"]


@pytest.mark.parametrize("name", ["tokenizer", "generation_config", "hf_config_path"])
def test_so_does_that_of_a_folder(make_settings: Make, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "tokenizer.json").write_text("{}")
    settings = make_settings(engine_arguments={name: str(folder)})
    before = fingerprint_of(settings)
    (folder / "model.safetensors").write_bytes(b"weights are the model's own")
    assert fingerprint_of(settings) == before
    (folder / "tokenizer.json").write_text('{"a": 1}')
    changed = fingerprint_of(settings)
    assert before.differences(changed) == ["model"]
    (folder / "merges.txt").write_text("a b")
    assert changed.differences(fingerprint_of(settings)) == ["model"]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"seed": 1, "max_model_len": 512},
        {"chat_template": "{{ messages }}", "tokenizer": "org/name"},
        {"chat_template": "x" * 5000},
        {"chat_template": "a\0b"},
        {"served_model_name": "."},  # no argument that names a file
    ],
)
def test_arguments_without_files_are_as_they_are(arguments: dict[str, Any]) -> None:
    assert with_contents(arguments) == arguments


def test_the_derived_id_names_the_input_and_follows_the_content(make_settings: Make) -> None:
    settings, other = make_settings(), make_settings(model="another")
    name = derived_job_id(settings, fingerprint_of(settings))
    assert name == derived_job_id(settings, fingerprint_of(settings))
    assert name.startswith("in-")
    assert len(name) == len("in-") + 12
    assert name != derived_job_id(other, fingerprint_of(other))
    assert make_settings(job_id=name).job_id == name  # a derived id is one that may be given


@pytest.mark.parametrize("name", ["_in", "__", "-in", ".in", "Ünï", "in put"])
def test_a_derived_id_may_be_given_whatever_the_inputs_name(
    name: str, make_settings: Make, tmp_path: Path
) -> None:
    """`dray resume` refused the id that the run had derived."""
    settings = make_settings(source=source_of(str(tmp_path / f"{name}.jsonl")))
    derived = derived_job_id(
        settings, Fingerprint(input="i", model="m", sampling="s", template="t", format="1")
    )
    assert make_settings(job_id=derived).job_id == derived
