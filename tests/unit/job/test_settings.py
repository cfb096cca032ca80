"""What a job runs with, made of what was asked for."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any, Literal

import pytest

from dray.engine.protocol import EngineSpec
from dray.errors import ConfigError
from dray.job.beginning.opening import describe
from dray.job.options.checks import check_arguments
from dray.job.options.forms import EngineOptions
from dray.job.options.request import JobRequest
from dray.job.options.settings import JobSettings, Resolved
from dray.kinds import Kind
from dray.requests.media.medium import IMAGES, SOUNDS, VIDEOS, Medium
from dray.requests.sources import RowDefaults
from dray.weights import Manifest
from tests.support.sources import source_of

pytestmark = pytest.mark.unit

REQUEST = JobRequest(
    input=["/in.jsonl"],
    model="/m",
    output="/out",
    overflow="shorten",
    engine=EngineOptions(
        name="simulated",
        arguments={"max_num_seqs": 8},
        stall_seconds=5.0,
        replica_cpus=2.0,
        replica_gpus=0.5,
    ),
)
PLACES = Resolved(inputs=["/in.jsonl"], model="s3://b/m", store_url="sqlite:////s.db")


def test_an_engine_is_told_all_that_was_asked_for() -> None:
    settings = JobSettings.of(REQUEST, PLACES)
    weights = Manifest(uri="s3://b/m", files=())
    spec = settings.engine_spec(Kind.EMBEDDING, "name", weights=weights, weights_patience=3.0)
    unset = [
        field.name
        for field in fields(EngineSpec)
        if field.default is not MISSING and getattr(spec, field.name) == field.default
    ]
    # A replica sets its name and rank, the next test has the media, and the driver sets the others.
    assert unset == ["replica", "tuning", "media", "rank", "tokens_before", "prompt_day"]
    assert spec == EngineSpec(
        name="simulated",
        model="s3://b/m",
        kind=Kind.EMBEDDING,
        model_name="name",
        arguments={"max_num_seqs": 8},
        weights=weights,
        weights_patience=3.0,
        stall_seconds=5.0,
        cpus=2.0,
        gpus=0.5,
        overflow="shorten",
        objects=settings.model_access,
    )


@pytest.mark.parametrize(
    ("options", "asks"),
    [
        ({"prompt_column": "q"}, set()),
        ({"prompt_column": "q", "image_column": "i", "image_root": "/i"}, {IMAGES}),
        ({"prompt_column": "q", "audio_column": "s"}, {SOUNDS}),
        ({"prompt_column": "q", "audio_root": "/s", "video_column": "v"}, {SOUNDS, VIDEOS}),
    ],
)
def test_a_replica_knows_which_media_the_options_ask_for(options: dict[str, Any], asks: set[Medium]) -> None:
    rows = REQUEST.rows.model_copy(update=options)
    asked = REQUEST.model_copy(update={"input": ["/in.csv"], "rows": rows})
    places = replace(PLACES, inputs=["/in.csv"])
    assert JobSettings.of(asked, places).engine_spec(Kind.CHAT, None).media == asks


def test_replicas_get_the_text_of_a_chat_template_and_the_job_keeps_its_path(tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text("{{ messages }}")
    asked = REQUEST.model_copy(
        update={"engine": EngineOptions(name="vllm", arguments={"chat_template": str(file)})}
    )
    settings = JobSettings.of(asked, PLACES)
    assert settings.engine_spec(Kind.CHAT, None).arguments == {"chat_template": "{{ messages }}"}
    assert settings.engine_arguments == {"chat_template": str(file)}  # of which the job's id is made
    check_arguments(settings)
    file.unlink()
    with pytest.raises(ConfigError, match="no file"):
        check_arguments(settings)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"data_parallel_size": 2}, "data_parallel_size=2: .*--replicas N"),
        ({"nnodes": 2}, "nnodes=2: the engine has 1 ranks"),
        ({"nnodes": 0}, "nnodes=0: give a whole number"),
        ({"nnodes": True}, "nnodes=True: give a whole number"),
        ({"nnodes": 3, "tensor_parallel_size": 2, "pipeline_parallel_size": 2}, "the engine has 4 ranks"),
        ({"nnodes": 2, "tensor_parallel_size": "two"}, "tensor_parallel_size, .* are whole numbers"),
        (
            {"nnodes": 2, "tensor_parallel_size": 2, "distributed_executor_backend": "uni"},
            "nnodes=2 does not go with distributed_executor_backend=uni",
        ),
        ({"node_rank": 0}, "node_rank: dray sets it on each node"),
        ({"master_addr": "10.0.0.1"}, "master_addr: dray sets it"),
        ({"distributed_executor_backend": "ray"}, "distributed_executor_backend=ray asks Ray for devices"),
    ],
)
def test_an_engine_over_more_than_its_replica_is_refused(arguments: dict[str, Any], told: str) -> None:
    """Its start would hang, for up to half an hour."""
    engine = EngineOptions(name="vllm", arguments=arguments)
    with pytest.raises(ConfigError, match=told):
        check_arguments(JobSettings.of(REQUEST.model_copy(update={"engine": engine}), PLACES))
    usual = {"data_parallel_size": 1, "nnodes": None, "distributed_executor_backend": "mp"}
    engine = EngineOptions(name="vllm", arguments=usual)
    check_arguments(JobSettings.of(REQUEST.model_copy(update={"engine": engine}), PLACES))


@pytest.mark.parametrize("name", ["vllm", "simulated"])
def test_an_engine_on_several_nodes_is_refused_for_this_machine_alone(
    name: Literal["vllm", "simulated"],
) -> None:
    ranks = {"tensor_parallel_size": 4} if name == "vllm" else {}
    engine = EngineOptions(name=name, arguments={"nnodes": 2, **ranks})
    settings = JobSettings.of(REQUEST.model_copy(update={"engine": engine}), PLACES)
    check_arguments(settings)
    with pytest.raises(ConfigError, match=r"nnodes=2: each replica needs 2 nodes, .* on a cluster"):
        check_arguments(settings, local=True)


@pytest.mark.parametrize("named", ["dummy", "Dummy"])
def test_dummy_weights_are_known_however_they_are_written(named: str) -> None:
    """vLLM reads ``load_format`` in small letters."""
    engine = EngineOptions(name="vllm", arguments={"load_format": named})
    assert JobSettings.of(REQUEST.model_copy(update={"engine": engine}), PLACES).has_dummy_weights


def test_what_was_asked_for_is_there_to_be_read_and_kept() -> None:
    settings = JobSettings.of(REQUEST, PLACES)
    assert settings.request.engine.stall_seconds == 5.0
    assert settings.recipe == REQUEST.recipe()


def test_a_program_that_fills_settings_in_asks_for_nothing_and_leaves_no_recipe() -> None:
    settings = JobSettings(
        source=source_of("in.jsonl"), defaults=RowDefaults(), model="m", output="o", store_url=""
    )
    assert settings.recipe == {}
    assert settings.request.engine.stall_seconds == 600.0


def test_prompts_and_logins_are_not_in_the_repr() -> None:
    request = JobRequest.of(["/in.csv"], "/m", "/out", rows={"template": "hidden-word {a}"})
    places = Resolved(inputs=["/in.csv"], model="/m", store_url="postgresql://me:hidden-word@host/dray")
    assert "hidden-word" not in repr(places)
    settings = JobSettings.of(request, places)
    assert "store_url" not in repr(settings)
    assert "request=" not in repr(settings)


@pytest.mark.parametrize(
    ("gpus", "fine"), [(0.5, True), (1.0, True), (2.0, True), (1.5, False), (-1.0, False)]
)
def test_a_replica_gets_a_part_of_one_gpu_or_whole_ones(gpus: float, fine: bool) -> None:
    """Ray refuses others, and only once the cluster is there."""
    settings = JobSettings.of(REQUEST, PLACES)
    if fine:
        assert replace(settings, replica_gpus=gpus).replica_gpus == gpus
    else:
        with pytest.raises(ConfigError, match="replica_gpus must be a part of one GPU, or a whole number"):
            replace(settings, replica_gpus=gpus)


@pytest.mark.parametrize(
    ("inputs", "options", "told"),
    [
        (["/in.jsonl"], {}, ("/in.jsonl", None)),
        (
            ["a.csv"],
            {"prompt_column": "text", "id_column": "no"},
            ("a.csv", "prompt_column=text, id_column=no"),
        ),
        (
            ["a.csv"],
            {"prompt_column": "text", "keep_columns": ["day", "n"]},
            ("a.csv", "prompt_column=text, keep_columns=day, keep_columns=n"),
        ),
        (["a.csv"], {"template": "Private: {text}"}, ("a.csv", None)),
        (
            [f"{n}.jsonl" for n in range(7)],
            {},
            ("0.jsonl, 1.jsonl, 2.jsonl, 3.jsonl, 4.jsonl and 2 more", None),
        ),
        (
            ["postgresql://me:hidden@db/rows"],
            {"query": "select private", "messages_column": "chat"},
            ("postgresql+psycopg://me:***@db/rows", "messages_column=chat"),
        ),
    ],
)
def test_a_report_says_what_was_read_and_no_prompt(
    inputs: list[str], options: dict[str, Any], told: tuple[str, str | None]
) -> None:
    settings = replace(JobSettings.of(REQUEST, PLACES), source=source_of(inputs, **options))
    described = describe(settings)
    assert (described["input"], described["columns"]) == told
    assert "rivate" not in str(described)
