"""What the options describe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dray.errors import ConfigError, InputError
from dray.kinds import Kind
from dray.requests.row_shape import RowShape
from dray.requests.shape_digest import template_digest
from dray.requests.sources import JsonlBatch, Rows, SqlQuery
from tests.support.sources import source_of

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("a.jsonl", "jsonl"),
        ("A.NDJSON.GZ", "jsonl"),
        ("s3://b/x/*.json.zst", "jsonl"),
        ("x.csv.gz", "csv"),
        ("x.tsv", "tsv"),
        ("part-*.parquet", "parquet"),
        ("part-*.csv*", "csv"),
    ],
)
def test_the_extension_tells_the_format(name: str, found: str) -> None:
    source = source_of(name, prompt_column="p")
    assert isinstance(source, Rows)
    assert source.format == found


def test_jsonl_without_columns_is_the_batch_format() -> None:
    assert source_of(["a.jsonl", "b.jsonl.gz"]) == JsonlBatch(inputs=("a.jsonl", "b.jsonl.gz"))


def test_a_query_reads_a_database() -> None:
    source = source_of("sqlite:///x.db", query="select 1 as p", prompt_column="p")
    assert source == SqlQuery(url="sqlite:///x.db", query="select 1 as p", shape=RowShape(prompt_column="p"))
    assert "x.db" not in repr(source)


@pytest.mark.parametrize(
    ("inputs", "options"),
    [
        (["a.csv"], {}),
        (["a.csv"], {"prompt_column": "p", "template": "{p}"}),
        (["a.csv"], {"prompt_column": "p", "system_prompt": "s", "kind": Kind.EMBEDDING}),
        (["a.csv"], {"messages_column": "m", "template": "{p}"}),
        (["a.csv"], {"messages_column": "m", "kind": Kind.COMPLETION}),
        (["a.parquet"], {"kind": Kind.COMPLETION}),
        (["a.csv"], {"prompt_column": "p", "kind": Kind.SCORE}),
        (["a.csv"], {"document_column": "d", "kind": Kind.RERANK}),
        (["a.csv"], {"prompt_column": "p", "document_column": "d"}),
        (["a.csv"], {"messages_column": "m", "document_column": "d", "kind": Kind.SCORE}),
        (["a.jsonl"], {"document_column": "d"}),
        (["a.parquet"], {"document_column": "d", "kind": Kind.CLASSIFICATION}),
        (["a.jsonl"], {"messages_column": "m", "prompt_column": "p"}),
        (["a.jsonl"], {"prompt_column": "p", "delimiter": ";"}),
        (["a.jsonl"], {"prompt_column": "p", "quoting": "none"}),
        (["a.csv"], {"prompt_column": "p", "delimiter": ";;"}),
        (["a.csv"], {"prompt_column": "p", "delimiter": '"'}),
        (["sqlite:///a"], {"query": "select 1", "prompt_column": "p", "delimiter": ";"}),
        (["sqlite:///a"], {"query": "select 1", "prompt_column": "p", "quoting": "csv"}),
        (["sqlite:///a", "b"], {"query": "select 1", "prompt_column": "p"}),
        (["sqlite:///a"], {"query": "select 1"}),
    ],
)
def test_options_that_do_not_go_together(inputs: list[str], options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        source_of(inputs, **options)


@pytest.mark.parametrize(
    ("inputs", "code"),
    [(["a.jsonl", "b.csv"], "mixed_formats"), (["a.txt"], "unknown_format"), ([], "missing_input")],
)
def test_inputs_of_no_one_format(inputs: list[str], code: str) -> None:
    with pytest.raises(InputError) as caught:
        source_of(inputs, prompt_column="p")
    assert [problem.code for problem in caught.value.problems] == [code]
    assert "--format" not in str(caught.value)  # that is the outputs' one


def test_a_template_is_part_of_the_fingerprint() -> None:
    digests = {
        template_digest(source_of("a.csv", prompt_column="p")),
        template_digest(source_of("a.csv", template="{p}")),
        template_digest(source_of("a.csv", template="{p}", system_prompt="s")),
        template_digest(source_of("a.jsonl")),
    }
    digests |= {
        template_digest(source_of("a.csv", prompt_column="p", document_column=column, kind=Kind.SCORE))
        for column in ("d", "e")
    }
    assert len(digests) == 6
    assert template_digest(source_of("a.csv", template="{p}")) == template_digest(
        source_of("b.csv", template="{p}")
    )


def test_shapes_that_earlier_versions_knew_keep_their_digest() -> None:
    """As 3c5ef00 wrote them into the fingerprints of jobs, which must resume."""
    assert template_digest(source_of("a.jsonl")) == "openai-batch"
    assert template_digest(source_of("a.jsonl", kind=Kind.EMBEDDING)) == "openai-batch"
    columns = {
        "a8a8f88530480a722879d9d0239c502990568072e5d40f0fa64a4b065b87b4cf": {"prompt_column": "p"},
        "845a1566144762909f5d3bf9bd98c39413a76307a516d17b99fe21b39002dc43": {
            "template": "{p}",
            "system_prompt": "s",
        },
    }
    for digest, options in columns.items():
        assert template_digest(source_of("a.csv", **options)) == digest
        assert template_digest(source_of("a.csv", **options, delimiter=";")) != digest
        assert template_digest(source_of("a.csv", **options, quoting="csv")) == digest
        assert template_digest(source_of("a.csv", **options, quoting="none")) != digest


@pytest.mark.parametrize(
    ("given", "found"), [(";", ";"), ("tab", "\t"), ("\\t", "\t"), ("\t", "\t"), ("|", "|")]
)
def test_a_delimiter_is_one_character_or_the_word_tab(given: str, found: str) -> None:
    source = source_of("a.csv", prompt_column="p", delimiter=given)
    assert isinstance(source, Rows)
    assert source.delimiter == found


def test_a_pattern_without_a_format_is_told_with_what_it_matches(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv", "c.jsonl.gz", "d.txt"):
        (tmp_path / name).touch()
    with pytest.raises(InputError) as caught:
        source_of(f"{tmp_path}/*")
    [problem] = caught.value.problems
    assert problem.code == "unknown_format"
    assert problem.message == (
        "the pattern matches 2 .csv, 1 .jsonl.gz, and a job reads one format; end it with that: "
        f"'{tmp_path}/*.csv'"
    )
    with pytest.raises(InputError, match="matches no file that dray reads"):
        source_of(f"{tmp_path}/*.txt")
