"""The options of ``dray run`` are the fields of the request, each declared once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from cyclopts import Group

from dray.cli.app import app
from dray.cli.options import OPTIONS, request_of
from dray.errors import ConfigError
from dray.job.options.forms import GROUPS, EngineOptions, RowOptions, SamplingOptions
from dray.job.options.request import JobRequest

pytestmark = pytest.mark.unit

GROUPED = {
    "Required": ["--model", "--output"],
    "Rows": ["--kind", "--prompt-column", "--template", "--reorder-fields", "--messages-column",
             "--system-prompt", "--image-column", "--image-root", "--audio-column", "--audio-root",
             "--video-column", "--video-root", "--document-column", "--id-column", "--keep-columns",
             "--query", "--delimiter", "--quoting", "--model-name", "--skip-invalid"],
    "Sampling": ["--max-tokens", "--temperature", "--top-p", "--seed", "--param"],
    "Answers": ["--overflow", "--dedupe", "--reuse"],
    "Engine": ["--engine", "--replicas", "--engine-arg", "--stall-seconds", "--shard-rows", "--order",
               "--auto", "--replica-cpus", "--replica-gpus"],
    "Cluster and store": ["--job-id", "--store", "--cluster", "--objects", "--completion-window", "--price",
                          "--plan", "--resume"],
    "Limits": ["--deadline", "--budget"],
    "Output": ["--format", "--part-bytes", "--overwrite", "--json"],
}  # fmt: skip
"""As scripts use them: these stay."""


def test_the_options_have_their_names_in_their_groups() -> None:
    found: dict[str, list[str]] = {}
    for argument in app["run"].assemble_argument_collection():
        groups = argument.parameter.group
        assert isinstance(groups, tuple)
        assert isinstance(groups[0], Group)
        for name in argument.names:
            if name.startswith("--"):
                found.setdefault(str(groups[0].name), []).append(name)
    assert found == GROUPED


def test_every_field_is_one_option_and_part_of_the_recipe() -> None:
    fields = {name for name, field in JobRequest.model_fields.items() if not field.exclude} - GROUPS.keys()
    leaves: set[tuple[str, ...]] = {(name,) for name in fields - {"input"}}
    leaves |= {(group, name) for group, form in GROUPS.items() for name in form.model_fields}
    assert Counter(option.path for option in OPTIONS) == Counter(leaves)
    recipe = JobRequest.of("in.jsonl", "m", "out").recipe()
    assert fields - recipe.keys() == {"job_id", "plan", "resume", "overwrite"}
    assert {(group, name) for group in GROUPS for name in recipe[group]} == {
        path for path in leaves if len(path) == 2
    }


VALUES: dict[str, Any] = {
    "kind": "completion", "template": "{a}", "id_column": "id", "skip_invalid": True, "max_tokens": 7,
    "top_p": 0.5, "param": ["stop=[\".\"]"], "engine": "simulated", "engine_arg": ["max-num-seqs=8"],
    "replicas": 2, "shard_rows": 10, "store": "/data/dray.db", "cluster": "10.0.0.5:6379",
    "format": "parquet", "completion_window": "90m", "overwrite": True, "model": "/m", "output": "/out",
}  # fmt: skip


def test_a_command_line_is_a_request() -> None:
    request = request_of(["/in.csv"], VALUES)
    assert request == JobRequest(
        input=["/in.csv"],
        model="/m",
        output="/out",
        rows=RowOptions(kind="completion", template="{a}", id_column="id", skip_invalid=True),
        sampling=SamplingOptions(max_tokens=7, top_p=0.5, extra={"stop": ["."]}),
        engine=EngineOptions(name="simulated", arguments={"max_num_seqs": 8}, replicas=2, shard_rows=10),
        store="/data/dray.db",
        cluster="10.0.0.5:6379",
        format="parquet",
        completion_window="90m",
        overwrite=True,
    )


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("replicas", 0, r"^--replicas 0: .*greater than or equal to 1"),
        ("engine", "other", r"^--engine: Input should be 'vllm' or 'simulated'"),
        ("engine_arg", ["max_num_seqs"], r"^--engine-arg 'max_num_seqs': write it as KEY=VALUE"),
        ("completion_window", "soon", r"^--completion-window: 'soon'"),
        ("output", "", r"^--output is empty: name a path"),
    ],
)
def test_what_is_wrong_is_named_as_it_was_typed(option: str, value: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        request_of(["/in.csv"], VALUES | {option: value})
