"""``dray plan``: what a job will take, what is said of it, and a run that holds its input to it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

import dray
from dray.cli.app import run_app
from dray.engine.argument_policy import refuse_spread
from dray.engine.ranks import nodes_of
from dray.errors import ConfigError, InputError, JobChangedError, NoStoreError
from dray.job.options import plan_file
from dray.job.options.forms import EngineOptions
from dray.job.options.request import JobRequest
from dray.job.options.resolving import NoBlocks, job_settings
from dray.job_plan import JobPlan, Known, PlanRequest, plan_job
from dray.job_plan.wording import HEADER, lines_of, markdown_of, refusal_lines, table_of
from dray.planner.efficiencies import model_key
from dray.planner.models import model_facts
from dray.planner.workload import InputLines
from dray.requests.sources import source_of
from dray.requests.task_shape import shape_of_rows
from dray.store import Efficiency, open_store
from tests.support.hybrid_configs import GEMMA4_31B
from tests.support.model_configs import LLAMA_70B

pytestmark = pytest.mark.unit

TODAY = date(2026, 2, 10)
LLAMA_8B = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "tie_word_embeddings": False,
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of 8 billion parameters: its config alone, so its tokens are guessed from bytes."""
    folder = tmp_path / "llama-8b"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA_8B))
    return folder


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    file = tmp_path / "rows.jsonl"
    bodies = [{"prompt": list(range(n, n + 2000)), "max_tokens": 100, "ignore_eos": True} for n in range(300)]
    lines = [{"custom_id": f"r{n}", "url": "/v1/completions", "body": body} for n, body in enumerate(bodies)]
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


def planned(rows: Path, model: Path, known: Known | None = None, **options: Any) -> JobPlan:
    return plan_job(PlanRequest.of(str(rows), str(model), **options), known=known, today=TODAY)


def test_the_cheapest_plan_is_first_and_says_why(rows: Path, model: Path) -> None:
    found = planned(rows, model, hardware="l40s,h100")
    assert found.best[0].dollars.likely == min(plan.dollars.likely for plan in found.found.plans)
    assert {plan.instance.device.name for plan in found.best} == {"L40S", "H100"}
    assert found.why.startswith(f"1 x {found.best[0].instance.name}")
    text = "\n".join(lines_of(found, most=5))
    assert "Hosted batch prices" in text
    assert "GPT-4o mini" in text
    assert "300 requests, 630k tokens with llama-8b" in text
    assert all(len(cells) == len(HEADER) for cells in table_of(found, 5))
    told = markdown_of(found, most=5)
    assert f"**{found.why}**" in told
    assert f"--engine-arg max_num_seqs={found.best[0].setting.max_num_seqs}" in told


def efficiency(version: str) -> Efficiency:
    """Of a long run of the same model on an L40S, at half the prediction."""
    return Efficiency(
        job="j", epoch=1, model=model_key(model_facts(LLAMA_8B)), weights="bf16", device="L40S",
        engine="vllm", version=version, phi=0.5, seconds=1e4, rows=10**5, start_seconds=60.0,
    )  # fmt: skip


def test_what_was_measured_takes_the_place_of_guesses(
    rows: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dray.job_plan.job_plan.installed_version", lambda engine: "0.32.0+cpu")
    options: dict[str, Any] = {"hardware": "g6e.xlarge", "on_demand": True, "prices": {"g6e.xlarge": 1.0}}
    guessed = planned(rows, model, **options)
    found = planned(rows, model, Known(runs=[efficiency("0.32.0")]), **options)
    other = planned(rows, model, Known(runs=[efficiency("0.30.0")]), **options)
    assert found.best[0].price.likely == 1.0
    assert found.best[0].phi.likely == pytest.approx(0.5)
    assert found.best[0].seconds.likely > guessed.best[0].seconds.likely
    assert "of engine version 0.30.0, not 0.32.0" in "\n".join(lines_of(other, most=5))
    assert other.best[0].phi.low < found.best[0].phi.low


def test_a_store_of_finished_runs_is_read(
    rows: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"no dray\.db in"):
        planned(rows, model, hardware="l40s", store=str(tmp_path))
    with open_store(f"sqlite:///{tmp_path / 'dray.db'}") as store:
        store.put_efficiency(efficiency("0.32.0"))
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    home = f"~/{tmp_path.name}"
    named: list[dict[str, Any]] = [{"store": str(tmp_path)}, {"store": home}, {"store": "env:THE_STORE"}, {}]
    for options in named:
        monkeypatch.setenv("THE_STORE", f"sqlite:///{tmp_path / 'dray.db'}")
        monkeypatch.setenv("DRAY_STORE", str(tmp_path))
        found = planned(rows, model, hardware="g6e.xlarge", **options)
        assert "1 run of this model measured" in found.best[0].phi.reason


@pytest.mark.parametrize("kind", ["file", "url", "folder", "no folder", "empty"])
def test_before_the_first_run_its_store_is_not_there(
    kind: str, rows: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/clusters.md has it: `export DRAY_STORE=...`, `dray plan`, `dray run`. The plan was refused."""
    (tmp_path / "empty.db").touch()
    named = {
        "file": "jobs.db",
        "url": f"sqlite:///{tmp_path}/jobs.db",
        "folder": str(tmp_path),
        "no folder": "out",
        "empty": f"sqlite:///{tmp_path}/empty.db",
    }[kind]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRAY_STORE", named)
    said: list[str] = []
    request = PlanRequest.of(str(rows), str(model), hardware="l40s")
    assert plan_job(request, today=TODAY, say=said.append).best
    line = "the store of $DRAY_STORE is not there yet: this plan goes without measured runs"
    assert said.count(line) == 1
    with pytest.raises(NoStoreError):
        planned(rows, model, hardware="l40s", store=named)


@pytest.mark.heavy(one_of=3)
def test_answers_are_as_long_as_those_of_earlier_jobs(model: Path, tmp_path: Path) -> None:
    """A job asked the same of the same model, over other texts: its answers had 40 tokens."""

    def write(name: str, task: str, **fields: Any) -> Path:
        told = {"role": "system", "content": task}
        bodies = [
            {"messages": [told, {"role": "user", "content": f"text {n * len(name)}"}], **fields}
            for n in range(50)
        ]
        rows = [
            {"custom_id": f"r{n}", "url": "/v1/chat/completions", "body": one} for n, one in enumerate(bodies)
        ]
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows)))
        return tmp_path / name

    shape = shape_of_rows(InputLines(source_of([str(write("monday.jsonl", "Sum up.", max_tokens=200))])))
    run = replace(efficiency("0.32.0"), shape=shape, output_tokens=40.0)
    known = Known(runs=[run])
    same = planned(write("tuesday.jsonl", "Sum up.", max_tokens=100), model, known, hardware="l40s")
    assert same.demand.output_tokens == pytest.approx(40.0)
    assert any("as long as those of 1 finished job" in note for note in same.notes)
    apart = Known(runs=[run, replace(run, job="b", output_tokens=400.0)])
    unsure = planned(write("thursday.jsonl", "Sum up."), model, apart, hardware="l40s")
    assert unsure.demand.output_error == pytest.approx(0.9)
    assert any("or 90% more or less" in note for note in unsure.notes)
    unbounded = planned(write("wednesday.jsonl", "Sum up."), model, known, hardware="l40s")
    assert unbounded.demand.output_tokens == pytest.approx(40.0)
    assert not any("set no max_tokens" in note for note in unbounded.notes)
    short = planned(write("short.jsonl", "Sum up.", max_tokens=10), model, known, hardware="l40s")
    assert short.demand.output_tokens == pytest.approx(10.0)
    cut = planned(tmp_path / "tuesday.jsonl", model, Known(runs=[replace(run, cut=True)]), hardware="l40s")
    assert (cut.demand.output_tokens, cut.demand.output_error) == (100, 0.5)
    assert any("they have 40 tokens at least, and are taken as long as" in note for note in cut.notes)
    long = Known(runs=[replace(run, output_tokens=400.0, cut=True)])
    open_ended = planned(tmp_path / "wednesday.jsonl", model, long, hardware="l40s")
    asked = open_ended.demand
    assert (asked.output_tokens, asked.output_error) == pytest.approx((400, 0.9))
    assert any("they have 400 tokens at least." in note for note in open_ended.notes)
    assert any("50 of 50 rows set no max_tokens" in note for note in open_ended.notes)
    assert any("a guess for 50 requests without a limit" in line for line in lines_of(open_ended, most=1))
    for other in (write("other.jsonl", "Translate.", max_tokens=100),
                  write("exact.jsonl", "Sum up.", max_tokens=100, ignore_eos=True)):  # fmt: skip
        assert planned(other, model, known, hardware="l40s").demand.output_tokens == pytest.approx(100.0)


def test_a_missing_tokenizer_is_said_and_widens_the_interval(rows: Path, model: Path) -> None:
    found = planned(rows, model, hardware="l40s")
    assert "Tokens are guessed from bytes" in found.notes[0]
    phi = found.best[0].phi
    assert phi.low == pytest.approx(0.65 / 1.35)
    assert phi.high == pytest.approx(1.05 * 1.35)


def test_a_model_with_long_positions_takes_what_the_engine_does(rows: Path, model: Path) -> None:
    """Rows of 2,100 tokens: vLLM starts such a model with its first 2,048, and with more if it is told so."""
    long = {"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 2048}
    (model / "config.json").write_text(json.dumps(LLAMA_8B | long))
    usual = planned(rows, model, hardware="l40s")
    assert (usual.model.max_length, usual.workload.cut, usual.demand.longest) == (2048, 300, 2048)
    told = planned(rows, model, hardware="l40s", arguments={"max_model_len": 8192})
    assert (told.model.max_length, told.workload.cut, told.workload.rows) == (8192, 0, 300)


def test_prices_of_last_year_are_said(rows: Path, model: Path) -> None:
    request = PlanRequest.of(str(rows), str(model), hardware=["g6e.xlarge"], on_demand=True)
    old = plan_job(request, today=date(2026, 11, 1))
    assert "days old" in "\n".join(lines_of(old, most=5))
    assert "days old" not in "\n".join(lines_of(plan_job(request, today=TODAY), most=5))


def test_a_model_that_fits_nowhere_lacks_so_much_on_the_nearest(rows: Path, model: Path) -> None:
    big = {"num_hidden_layers": 2000, "hidden_size": 16384, "intermediate_size": 65536}
    (model / "config.json").write_text(json.dumps(LLAMA_8B | big))
    found = planned(rows, model, hardware="b300", max_machines=4)
    assert found.best == []
    assert "fits nowhere" in found.why
    assert "GB" in found.why
    assert found.as_dict()["plans"] == []
    assert found.as_dict()["refusals"]
    small = planned(rows, model, hardware="l40s,l4", max_machines=1)
    told = [line.partition(":") for line in refusal_lines(small)]
    assert [name for name, _, _ in told] == ["g6e.12xlarge", "g6e.xlarge", "g6.xlarge"]
    assert all(" lack" in reason for _, _, reason in told)
    assert all(f"- {line}\n" in markdown_of(small, most=0) for line in refusal_lines(small))


def test_an_impossible_deadline_or_budget_has_a_nearest_plan(rows: Path, model: Path) -> None:
    for limits in ({"deadline": "5s"}, {"budget": 0.0001}):
        found = planned(rows, model, hardware="l40s", **limits)
        assert found.found.plans == ()
        assert "The fastest takes" in found.why
        assert len(table_of(found, 5)) == 2


def test_what_if_answers_were_shorter(rows: Path, model: Path) -> None:
    whole = planned(rows, model, hardware="l40s")
    short = planned(rows, model, hardware="l40s", overrides={"max_tokens": 10})
    assert (whole.demand.output_tokens, short.demand.output_tokens) == (100, 10)
    assert short.best[0].dollars.likely < whole.best[0].dollars.likely
    assert short.identity["overrides"] == "max_tokens"


def test_rows_that_will_be_error_rows_are_said(rows: Path, model: Path) -> None:
    with rows.open("a") as file:
        file.write('\nnot json\n{"custom_id": "x", "url": "/v1/completions", "body": {"prompt": []}}')
    body = {"prompt": [1] * 9, "max_tokens": 9}
    with rows.open("a") as file:
        file.write(f"\n{json.dumps({'custom_id': 'y', 'url': '/v1/completions', 'body': body})}")
    found = planned(rows, model, hardware="l40s", arguments={"max_model_len": 2000})
    assert found.workload.too_long == 300
    assert (found.workload.rows, found.workload.invalid, found.workload.refused) == (1, 1, 1)
    said = " ".join(found.notes)
    assert "custom_id" not in said
    assert "1 row is no valid request (" in said
    assert f"{rows}:301: " in said
    assert "max_tokens, of more tokens than the 2,000" in said


def test_answers_that_the_context_ends_are_said_and_paid_for(rows: Path, model: Path) -> None:
    found = planned(rows, model, hardware="l40s", arguments={"max_model_len": 2050})
    assert (found.workload.rows, found.workload.cut, found.demand.output_tokens) == (300, 300, 50)
    assert "answers end at the model's 2,050 tokens" in " ".join(found.notes)


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"hardware": "l40z"}, "nearest is L40S"),
        ({"deadline": "soon"}, "not a time"),
        ({"overrides": {"max_token": 9}}, "do you mean max_tokens"),
        ({"budget": -1}, "budget"),
        ({"weights": "fp9"}, "fp9"),
        ({"arguments": {"max_model_len": "long"}}, "max_model_len"),
        ({"arguments": {"nnodes": 0}}, "nnodes: '0' is not a whole number above zero"),
        ({"arguments": {"tensor_parallel_size": 3, "pipeline_parallel_size": 1, "nnodes": 2}}, "has 3 ranks"),
        ({"arguments": {"gpu_memory_utilization": "most"}}, "gpu_memory_utilization: 'most' is not a number"),
        ({"arguments": {"kv_cache_dtype": "int3"}}, "kv_cache_dtype: a plan knows fp32, bf16, fp8"),
        ({"arguments": {"quantization": "magic"}}, "quantization: a plan knows fp32, bf16"),
        ({"deadlines": "6h"}, "deadlines"),
    ],
)
def test_options_that_cannot_be_so_are_refused(
    rows: Path, model: Path, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        planned(rows, model, **options)


def test_a_model_or_an_input_that_is_not_there_is_refused(rows: Path, model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="hf://ORG/NAME"):
        planned(rows, tmp_path / "none")
    with pytest.raises(ConfigError, match=r"no config\.json"):
        planned(rows, tmp_path)
    with pytest.raises(InputError, match="missing"):
        planned(tmp_path / "missing.jsonl", model)


@pytest.mark.parametrize(
    ("bound", "told"),
    [
        ({"max_tokens": 9}, "Output: at most 9 tokens"),
        ({}, "longest 256), a guess for 1 request without a limit"),
    ],
)
def test_outputs_that_nothing_bounds_are_called_a_guess(
    model: Path, tmp_path: Path, bound: dict[str, int], told: str
) -> None:
    file = tmp_path / "chat.jsonl"
    body = {"messages": [{"role": "user", "content": "hello"}], **bound}
    file.write_text(json.dumps({"custom_id": "a", "url": "/v1/chat/completions", "body": body}))
    assert told in "\n".join(lines_of(planned(file, model, hardware=["l40s"]), most=1))


def test_python_plans_with_the_same_fields(rows: Path, model: Path) -> None:
    found = dray.plan(str(rows), str(model), hardware=["L40S"], max_tokens=5)
    assert found.best[0].instance.device.name == "L40S"


Run = Callable[..., dict[str, Any]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str, code: int = 0) -> dict[str, Any]:
        assert run_app([*arguments, "--json"]) == code
        found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
        return found

    return run


def test_the_command_prints_a_plan_that_a_run_takes(
    rows: Path, model: Path, tmp_path: Path, command: Run
) -> None:
    found = command("plan", str(rows), "--model", str(model), "--hardware", "l40s", "--max-tokens", "9")
    first = found["plans"][0]
    assert first["dollars"]["low"] <= first["dollars"]["likely"] <= first["dollars"]["high"]
    assert {"why", "hosted", "workload", "identity", "notes"} <= found.keys()
    kept = tmp_path / "plan.json"
    kept.write_text(json.dumps(found))
    request = JobRequest(
        input=str(rows), model=str(model), output=str(tmp_path / "out"), max_tokens=9, plan=str(kept),
        engine=EngineOptions(arguments={"max_num_seqs": 7}),
    )  # fmt: skip
    settings = job_settings(request, NoBlocks())
    assert settings.engine_arguments["max_num_seqs"] == 7
    assert settings.engine_arguments["tensor_parallel_size"] == 1
    assert settings.recipe["engine"]["arguments"] == settings.engine_arguments
    assert "plan" not in settings.recipe


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize("changed", ["the input", "the request fields", "the model's config.json", "--set"])
def test_a_plan_for_another_input_is_refused_naming_the_change(
    rows: Path, model: Path, tmp_path: Path, command: Run, changed: str
) -> None:
    given = ["--set", "max_tokens=3"] if changed == "--set" else []
    kept = tmp_path / "plan.json"
    kept.write_text(
        json.dumps(command("plan", str(rows), "--model", str(model), "--hardware", "l40s", *given))
    )
    if changed == "the input":
        rows.write_text(rows.read_text().replace("r299", "r300"))
    if changed == "the model's config.json":
        (model / "config.json").write_text(json.dumps(LLAMA_8B | {"rope_theta": 5e5}))
    tokens = 5 if changed == "the request fields" else None
    request = JobRequest(
        input=str(rows), model=str(model), output=str(tmp_path / "out"), max_tokens=tokens, plan=str(kept)
    )
    with pytest.raises(JobChangedError, match=changed):
        job_settings(request, NoBlocks())
    given = ["--max-tokens", "5"] if tokens else []
    out = str(tmp_path / "out")
    told = command(
        "run", str(rows), "--model", str(model), "--output", out, "--plan", str(kept), *given, code=2
    )
    assert changed in told["error"]["message"]


def test_a_model_in_an_object_store_is_checked_too(
    rows: Path, model: Path, tmp_path: Path, command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its config is fetched; the store itself is another test's."""
    kept = tmp_path / "plan.json"
    kept.write_text(json.dumps(command("plan", str(rows), "--model", str(model), "--hardware", "l40s")))
    asked: list[str] = []

    @contextmanager
    def fetched(uri: str, objects: Any) -> Iterator[Path]:
        asked.append(uri)
        yield model

    monkeypatch.setattr(plan_file, "configuration_of", fetched)
    uri = "s3://bucket/llama"
    request = JobRequest(input=str(rows), model=uri, output=str(tmp_path / "out"), plan=str(kept))
    assert job_settings(request, NoBlocks()).engine_arguments["tensor_parallel_size"] == 1
    (model / "config.json").write_text(json.dumps(LLAMA_8B | {"rope_theta": 5e5}))
    with pytest.raises(JobChangedError, match=r"the model's config\.json"):
        job_settings(request, NoBlocks())
    assert asked == [uri, uri]


def test_what_is_no_plan_is_refused(rows: Path, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "my plan.json"
    advice = f"this is no plan; write one with `dray plan ... --json > '{file}'`"
    for text, told in (("{}", advice), ("x", advice), (None, "No such file")):
        file.unlink(missing_ok=True)
        if text is not None:
            file.write_text(text)
        request = JobRequest(input=str(rows), model=str(model), output=str(tmp_path / "out"), plan=str(file))
        with pytest.raises(ConfigError, match=re.escape(told)):
            job_settings(request, NoBlocks())


def test_a_plan_that_nothing_keeps_is_exit_code_1(rows: Path, model: Path, command: Run) -> None:
    found = command(
        "plan", str(rows), "--model", str(model), "--hardware", "l40s", "--budget", "0.0001", code=1
    )
    assert found["plans"] == []
    assert len(found["nearest"]) == 2


def test_a_plan_over_several_nodes_is_run_as_it_is_printed(
    rows: Path, model: Path, tmp_path: Path, command: Run
) -> None:
    """A model of 140 GB on nodes with one L40S each: the run takes what the plan says of its nodes."""
    (model / "config.json").write_text(json.dumps(LLAMA_70B))
    found = command("plan", str(rows), "--model", str(model), "--hardware", "g6e.xlarge")
    planned_arguments = found["plans"][0]["engine_arguments"]
    assert planned_arguments["nnodes"] >= 4
    kept = tmp_path / "plan.json"
    kept.write_text(json.dumps(found))
    request = JobRequest(
        input=str(rows),
        model=str(model),
        output=str(tmp_path / "out"),
        plan=str(kept),
        cluster="10.0.0.5:6379",
    )
    taken = job_settings(request, NoBlocks()).engine_arguments
    assert taken == {name: planned_arguments[name] for name in planned_arguments if name in taken}
    assert nodes_of(taken) == planned_arguments["nnodes"]
    refuse_spread(taken)
    again = planned(rows, model, hardware="g6e.xlarge", arguments=taken)
    assert {plan.setting.arguments == taken for plan in again.found.plans} == {True}
    (line,) = (one for one in lines_of(again, most=1) if one.startswith("`dray run`"))
    told = dict(one.split("=") for one in line.split("--engine-arg ")[1:])
    assert {name: int(value) for name, value in told.items()} == {k: v for k, v in taken.items() if v > 1}


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        ({"nnodes": 2}, {"nodes": 2}),
        ({"tensor_parallel_size": 2}, {"tensor_parallel": 2, "nodes": 1}),
        ({"pipeline_parallel_size": 4}, {"pipeline_parallel": 4}),
        (
            {"max_num_seqs": 17, "max_num_batched_tokens": 512},
            {"max_num_seqs": 17, "max_num_batched_tokens": 512},
        ),
        ({"gpu_memory_utilization": 0.5}, {"gpu_memory_utilization": 0.5}),
        ({"kv_cache_dtype": "fp8_e4m3"}, {"kv": "fp8"}),
        ({"kv_cache_dtype": "auto"}, {"kv": "bf16"}),
        ({"quantization": "fp8"}, {"weights": "fp8"}),
    ],
)
def test_engine_arguments_of_the_run_bind_its_plan(
    rows: Path, model: Path, arguments: dict[str, Any], kept: dict[str, Any]
) -> None:
    found = planned(rows, model, hardware="h100,g6e.12xlarge", arguments=arguments).found.plans
    assert found
    for name, value in kept.items():
        assert {getattr(plan.setting, name) for plan in found} == {value}


def test_a_step_of_a_model_that_reads_videos_whole_holds_one(rows: Path, model: Path) -> None:
    """vLLM starts no Gemma 4 whose step has fewer tokens than its longest video, 2,496 of them."""
    sees = GEMMA4_31B["text_config"] | {"use_bidirectional_attention": "vision"}
    (model / "config.json").write_text(json.dumps(GEMMA4_31B | {"text_config": sees}))
    found = planned(rows, model, hardware="h200")
    assert {plan.setting.max_num_batched_tokens for plan in found.found.plans} == {4096, 8192}
    named = planned(rows, model, hardware="h200", arguments={"max_num_batched_tokens": 3000})
    assert {plan.setting.max_num_batched_tokens for plan in named.found.plans} == {3000}


@pytest.mark.parametrize(("arguments", "named"), [({}, None), ({"max_num_batched_tokens": 131072}, 131072)])
def test_where_a_step_has_to_hold_a_whole_prompt_its_tokens_are_left_to_vllm(
    rows: Path, model: Path, arguments: dict[str, Any], named: int | None
) -> None:
    """With 2,048, vLLM refused a model for embeddings that pools the mean, and takes longer prompts."""
    body = {"input": list(range(2000)), "model": "m"}
    lines = [{"custom_id": f"e{n}", "url": "/v1/embeddings", "body": body} for n in range(9)]
    rows.write_text("\n".join(map(json.dumps, lines)))
    found = planned(rows, model, hardware="l40s", arguments=arguments)
    (told,) = (line for line in lines_of(found, most=1) if line.startswith("`dray run`"))
    assert found.as_dict()["plans"][0]["engine_arguments"].get("max_num_batched_tokens") == named
    assert ("max_num_batched_tokens" in told) is (named is not None)
    assert "max_num_seqs" in told


def test_rows_that_repeat_an_id_are_said(rows: Path, model: Path) -> None:
    """A run would refuse them only after the plan was made."""
    with rows.open("a") as file:
        file.write("\n" + rows.read_text().splitlines()[7])
    (told,) = (note for note in planned(rows, model, hardware="l40s").notes if "custom_id" in note)
    assert told.startswith(
        "1 row has the custom_id of an earlier row (first: row 301 of the input): `dray run`"
    )


def test_where_no_row_is_a_request_the_first_one_is_named(model: Path, tmp_path: Path) -> None:
    """An image at an address, without --image-root."""
    file = tmp_path / "images.jsonl"
    part = {"type": "image_url", "image_url": {"url": "https://there/a.png"}}
    body = {"messages": [{"role": "user", "content": [part]}]}
    row = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    file.write_text("".join(f"{json.dumps(row | {'custom_id': str(n)})}\n" for n in range(3)))
    with pytest.raises(InputError, match=r"images\.jsonl:1 \[messages\[0\]") as refused:
        planned(file, model)
    assert len(refused.value.problems) == 1


def test_without_a_cache_no_prefix_is_served(rows: Path, model: Path) -> None:
    body = {"prompt": list(range(2000)), "max_tokens": 5}
    lines = [{"custom_id": f"s{n}", "url": "/v1/completions", "body": body} for n in range(99)]
    rows.write_text("\n".join(map(json.dumps, lines)))
    found = planned(rows, model, hardware="l40s", arguments={"enable_prefix_caching": False})
    assert (found.workload.shared > 0.9, found.demand.hit_share) == (True, 0.0)
    assert any("enable_prefix_caching" in note for note in found.notes)
    assert planned(rows, model, hardware="l40s").demand.hit_share > 0.9


@pytest.mark.parametrize("kind", ["transcription", "translation"])
def test_sound_into_text_is_refused_in_one_sentence(tmp_path: Path, kind: str) -> None:
    """In a batch file and in a table, whatever else is wrong: the sounds have no root here."""
    batch, table, model = tmp_path / "batch.jsonl", tmp_path / "sounds.csv", tmp_path / "whisper"
    row = {"custom_id": "a", "url": f"/v1/audio/{kind}s", "body": {"file_url": "data:audio/wav;base64,AAAA"}}
    batch.write_text(json.dumps(row))
    table.write_text("name\na.wav\n")
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "whisper"}))
    options: dict[str, Any] = {"rows": {"kind": kind, "audio_column": "name"}}
    for request in (
        PlanRequest.of(str(batch), str(model)),
        PlanRequest.of(str(table), str(model), **options),
    ):
        with pytest.raises(ConfigError, match="cannot price transcriptions and translations of sound"):
            plan_job(request)


def test_a_plan_for_other_weights_is_no_plan_for_the_model_as_it_is(
    rows: Path, model: Path, tmp_path: Path, command: Run
) -> None:
    """A run would put weights of twice the size onto the GPUs that the plan chose."""
    given = ("plan", str(rows), "--model", str(model), "--hardware", "l40s")
    kept = tmp_path / "plan.json"

    def run(**arguments: Any) -> dict[str, Any]:
        request = JobRequest(
            input=str(rows), model=str(model), output=str(tmp_path / "out"), plan=str(kept),
            engine=EngineOptions(arguments=arguments),
        )  # fmt: skip
        return dict(job_settings(request, NoBlocks()).engine_arguments)

    kept.write_text(json.dumps(command(*given, "--weights", "fp8")))
    with pytest.raises(ConfigError, match="supposes weights in fp8, and the model's are in bf16"):
        run()
    assert run(quantization="fp8")["quantization"] == "fp8"
    found = planned(rows, model, hardware="l40s", weights="fp8")
    assert any("supposes weights in fp8" in line for line in lines_of(found, most=1))
    (model / "config.json").write_text(json.dumps(LLAMA_8B | {"torch_dtype": "float32"}))
    kept.write_text(json.dumps(command(*given)))
    assert run()["tensor_parallel_size"] == 1
    plain = lines_of(planned(rows, model, hardware="l40s"), most=1)
    assert not any("supposes weights" in line for line in plain)
