"""Messages call fields of a request as their reader knows them: by options, or by parameters."""

from __future__ import annotations

import pytest

from dray.errors import ConfigError, InputError, Problem
from dray.job.options.request import JobRequest
from dray.job.options.spelling import as_parameters, called_by_options, in_parameters
from dray.job_plan import PlanRequest

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ("name another one with --output, or --overwrite", "name another one with output, or overwrite"),
        ("say --delimiter ';'", "say rows.delimiter ';'"),
        ("with --prompt-column or --max-tokens", "with prompt_column or max_tokens"),
        ("--engine-arg quantization=fp8", "engine.arguments quantization=fp8"),
        ("--param x: no field", "sampling.extra x: no field"),
        ("`dray resume job --store out` (or --resume)", "`dray resume job --store out` (or resume)"),
        ("or write `--model none`", "or write `model none`"),
        (
            "zstd --long=28, --no-such, a/--output, --outputs",
            "zstd --long=28, --no-such, a/--output, --outputs",
        ),
    ],
)
def test_options_become_parameters(told: str, said: str) -> None:
    assert as_parameters(told, JobRequest) == said
    with called_by_options():
        assert as_parameters(told, JobRequest) == told


def test_a_plan_has_names_of_its_own() -> None:
    told = "--max-machines allows 2; --price a=DOLLARS, --set x, --engine-arg nnodes=2"
    assert (
        as_parameters(told, PlanRequest)
        == "max_machines allows 2; prices a=DOLLARS, overrides x, arguments nnodes=2"
    )


def test_errors_that_leave_the_block_are_the_same_ones_in_other_words() -> None:
    problem = Problem("invalid", "say --id-column", "in.csv", 3)
    refused = InputError([problem], total=7, advice="--skip-invalid makes error rows")
    plain = ConfigError("leave --auto out")
    for error in (refused, plain):
        with pytest.raises(type(error)) as raised, in_parameters(JobRequest):
            raise error
        assert raised.value is error
    assert str(refused).splitlines() == [
        "in.csv:3: say rows.id_column",
        "... and 6 more",
        "rows.skip_invalid makes error rows",
    ]
    assert str(plain) == "leave engine.auto out"
    with (
        called_by_options(),
        pytest.raises(ConfigError, match=r"^leave --auto out$"),
        in_parameters(JobRequest),
    ):
        raise ConfigError("leave --auto out")
