"""Files in rows that are counted: the tokens that the user says, and one prefix for one file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dray.planner.order import order_rows
from dray.planner.workload import Bytes, TokenizerAt, Tokens, gather
from dray.requests.spool.spool import encode_line
from tests.support import listening_model, watching_model
from tests.support.seeing_model import asking

pytestmark = pytest.mark.unit

TICKETS = Path(__file__).parents[4] / "examples/tickets/model"


def lines(*bodies: dict[str, Any]) -> list[bytes]:
    return [
        encode_line(index, f"r{index}", "/v1/chat/completions", body, 0, index + 1)
        for index, body in enumerate(bodies)
    ]


@pytest.fixture(params=["bytes", "tokenizer"])
def tokens(request: pytest.FixtureRequest) -> Tokens:
    if request.param == "bytes":
        return Bytes(image_tokens=64)
    pytest.importorskip("transformers")
    return TokenizerAt(folder=str(TICKETS), image_tokens=64)


@pytest.mark.heavy(one_of=3)
def test_an_image_counts_as_it_is_said_and_its_url_does_not(tokens: Tokens) -> None:
    rows = lines(
        asking("what is it?"),
        asking("what is it?", "url:/data/1.png"),
        asking(b"\x89PNG" * 5000, b"another", "what is it?"),
    )
    found = gather(rows, tokens, processes=1)
    plain, one, two = found.facts.prompt_tokens.tolist()
    assert (found.refused, found.images) == (0, 3)
    assert one - plain == pytest.approx(64, abs=2)
    assert two - plain == pytest.approx(128, abs=4)


@pytest.mark.heavy(one_of=3)
def test_rows_about_one_image_share_it_as_a_prefix(tokens: Tokens) -> None:
    rows = lines(*(asking(f"url:/data/{row % 2}.png", f"question {row}") for row in range(6)))
    found = gather(rows, tokens, block_tokens=16, processes=1)
    ordered = order_rows(found.facts)
    assert np.diff(np.append(ordered.group_starts.astype(int), 6)).tolist() == [3, 3]
    assert ordered.shared_tokens > 0.5 * ordered.prompt_tokens


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize("hearing", [listening_model.asking, watching_model.asking], ids=["sound", "video"])
def test_sounds_and_videos_count_as_images_do(tokens: Tokens, hearing: Callable[..., dict[str, Any]]) -> None:
    rows = lines(hearing("who is it?"), hearing("url:/data/1.wav", b"RIFF" * 5000, "who is it?"))
    found = gather(rows, tokens, processes=1)
    plain, both = found.facts.prompt_tokens.tolist()
    assert (found.refused, found.images) == (0, 2)
    assert both - plain == pytest.approx(128, abs=4)
    rows = lines(*(hearing(f"url:/data/{row % 2}.wav", f"question {row}") for row in range(6)))
    ordered = order_rows(gather(rows, tokens, block_tokens=16, processes=1).facts)
    assert np.diff(np.append(ordered.group_starts.astype(int), 6)).tolist() == [3, 3]
