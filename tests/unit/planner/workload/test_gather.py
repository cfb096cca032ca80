"""Rows into facts: by bytes, by a real tokenizer in processes, from inputs and from spools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dray.errors import ConfigError, InputError
from dray.planner.order import order_rows
from dray.planner.workload import Bounds, Bytes, InputLines, TokenizerAt, gather
from dray.requests.ingest import ingest
from dray.requests.sources import RowDefaults
from dray.requests.spool.spool import encode_line, lines_of
from tests.support.sources import source_of

pytestmark = pytest.mark.unit

TICKETS = Path(__file__).parents[4] / "examples/tickets"
COMPLETION = "/v1/completions"


def lines(*bodies: dict[str, Any], url: str = COMPLETION) -> list[bytes]:
    return [encode_line(index, f"r{index}", url, body, 0, index + 1) for index, body in enumerate(bodies)]


def test_token_ids_are_what_they_are() -> None:
    found = gather(
        lines({"prompt": list(range(40)), "max_tokens": 3}, {"prompt": [7], "max_tokens": None, "n": 2}),
        Bytes(),
    )
    assert found.facts.prompt_tokens.tolist() == [40, 1]
    assert np.diff(found.facts.chain_starts.astype(int)).tolist() == [2, 0]
    assert found.facts.output_tokens.tolist() == [3.0, 2 * Bounds().unknown]
    assert (found.unbounded, found.refused, found.exact) == (1, 0, 0)


def test_rows_that_the_engine_refuses_ask_for_nothing() -> None:
    found = gather(lines({"prompt": None}, {"prompt": [1], "max_tokens": 2, "ignore_eos": True}), Bytes())
    assert found.facts.prompt_tokens.tolist() == [0, 1]
    assert found.facts.output_tokens.tolist() == [0.0, 2.0]
    assert (found.refused, found.exact) == (1, 1)


def test_no_rows_are_no_facts() -> None:
    found = gather([], Bytes())
    assert len(found) == 0
    assert order_rows(found.facts).shared_tokens == 0


def test_cut_prompts_keep_their_end() -> None:
    found = gather(lines({"prompt": list(range(20)), "truncate_prompt_tokens": 16}), Bytes(), block_tokens=4)
    whole = gather(lines({"prompt": list(range(4, 20))}), Bytes(), block_tokens=4)
    assert found.facts.prompt_tokens.tolist() == [16]
    assert found.facts.chain.tolist() == whole.facts.chain.tolist()


def test_many_batches_are_the_rows_of_one() -> None:
    bodies = [{"prompt": [number % 7] * (number % 90)} for number in range(1, 3000)]
    rows = lines(*bodies)
    together, one = gather(rows, Bytes()), [gather(rows[at : at + 1], Bytes()) for at in (0, 700, 2998)]
    starts = together.facts.chain_starts.astype(int)
    for at, alone in zip((0, 700, 2998), one, strict=True):
        assert together.facts.chain[starts[at] : starts[at + 1]].tolist() == alone.facts.chain.tolist()


@pytest.fixture(scope="module")
def transformers() -> None:
    pytest.importorskip("tokenizers")


@pytest.mark.heavy(one_of=3)
@pytest.mark.usefixtures("transformers")
def test_the_tickets_have_the_tokens_of_their_real_run() -> None:
    """docs/commands.md, "Run a job": 172,919 prompt tokens, by vLLM's own counters."""
    found = gather(
        InputLines(source_of(str(TICKETS / "requests.jsonl"))),
        TokenizerAt(folder=str(TICKETS / "model")),
        processes=2,
    )
    assert int(found.facts.prompt_tokens.sum()) == 172_919
    assert found.facts.output_tokens.tolist() == [48.0] * 2000


@pytest.mark.heavy(one_of=3)
@pytest.mark.usefixtures("transformers")
def test_a_tokenizer_that_cannot_be_loaded_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no tokenizer in it"):
        gather(lines({"prompt": "a"}), TokenizerAt(folder=str(tmp_path)))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="its tokenizer cannot be loaded"):
        gather(lines({"prompt": "a"}), TokenizerAt(folder=str(tmp_path)))


def test_a_spool_and_its_input_have_the_same_facts(tmp_path: Path) -> None:
    table = tmp_path / "in.csv"
    table.write_text("text\n" + "".join(f"the same words again and again {n % 5}\n" for n in range(200)))
    source = source_of(str(table), prompt_column="text", system_prompt="Be brief. " * 20)
    defaults = RowDefaults(sampling={"max_tokens": 9})
    spooled = ingest(source, spool_uri=str(tmp_path / "spool"), defaults=defaults, part_bytes=20_000)
    assert len(spooled.parts) > 1
    one = gather((line for part in spooled.parts for line in lines_of(part)), Bytes())
    other = gather(InputLines(source, defaults), Bytes())
    for name in ("prompt_tokens", "output_tokens", "chain", "chain_starts"):
        assert getattr(one.facts, name).tolist() == getattr(other.facts, name).tolist()
    order = order_rows(one.facts)
    assert order.shared_tokens > 0.7 * order.prompt_tokens


def test_invalid_rows_are_counted_and_left_out(tmp_path: Path) -> None:
    good = {"custom_id": "a", "url": COMPLETION, "body": {"prompt": "x"}}
    (tmp_path / "in.jsonl").write_text(f"{json.dumps(good)}\nnot json\n\n{json.dumps(good | {'url': 'z'})}\n")
    rows = InputLines(source_of(str(tmp_path / "in.jsonl")))
    assert len(list(rows)) == 1
    assert (rows.rows, rows.invalid) == (3, 2)


def test_rows_that_repeat_an_id_are_counted_as_a_run_finds_them(tmp_path: Path) -> None:
    """Also those of a row that is no request, and each one but the first."""
    rows = [{"custom_id": one, "url": COMPLETION, "body": {"prompt": "x"}} for one in "abacba"]
    rows[4]["url"] = "/no/such"
    file = tmp_path / "in.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = source_of(str(file))
    lines = InputLines(source)
    assert len(list(lines)) == 5
    assert (lines.repeated, lines.first_repeated, lines.invalid) == (3, 3, 1)
    with pytest.raises(InputError) as refused:
        ingest(source, spool_uri=str(tmp_path / "spool"))
    places = [one.line for one in refused.value.problems if one.code == "duplicate_custom_id"]
    assert places == [3, 5, 6]
    file.write_text(json.dumps(rows[0]))
    assert len(list(lines)) == 1
    assert (lines.repeated, lines.first_repeated) == (0, 0)


def test_rows_for_different_engines_are_refused_as_by_a_run(tmp_path: Path) -> None:
    rows = [{"custom_id": "a", "url": COMPLETION, "body": {"prompt": "x", "model": "one"}}] * 2
    rows += [{"custom_id": "b", "url": COMPLETION, "body": {"prompt": "x", "model": "an adapter"}}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len(list(InputLines(source_of(str(tmp_path / "in.jsonl"))))) == 3
    with (tmp_path / "in.jsonl").open("a") as file:
        file.write(json.dumps({"custom_id": "c", "url": "/v1/embeddings", "body": {"input": "x"}}))
    with pytest.raises(InputError, match=r"in.jsonl:4 \[url\].*one engine cannot do both"):
        list(InputLines(source_of(str(tmp_path / "in.jsonl"))))


def test_overrides_win_in_either_spelling(tmp_path: Path) -> None:
    body = {"prompt": "x", "max_completion_tokens": 500}
    (tmp_path / "in.jsonl").write_text(json.dumps({"custom_id": "a", "url": COMPLETION, "body": body}))
    rows = InputLines(source_of(str(tmp_path / "in.jsonl")), overrides={"max_tokens": 5})
    assert gather(rows, Bytes()).facts.output_tokens.tolist() == [5.0]


def test_a_folder_is_left_by_no_error_and_by_no_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def broken() -> Iterator[bytes]:
        yield from lines({"prompt": [1]})
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        gather(broken(), Bytes())
    assert list(tmp_path.iterdir()) == []
    found = gather(lines({"prompt": [1]}), Bytes())
    assert len(list(tmp_path.iterdir())) == 1
    found.close()
    assert list(tmp_path.iterdir()) == []
