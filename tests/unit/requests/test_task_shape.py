"""What requests of one task have in common."""

from __future__ import annotations

from typing import Any

import pytest

from dray.requests.model import Request
from dray.requests.spool.spool import encode
from dray.requests.task_shape import shape_of, shape_of_rows

pytestmark = pytest.mark.unit

CHAT = "/v1/chat/completions"


def body(text: str, task: str = "Sum up.", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": task}, {"role": "user", "content": text}], **fields}


def test_texts_and_lengths_do_not_matter() -> None:
    shape = shape_of(CHAT, body("one", max_tokens=5))
    assert shape == shape_of(CHAT, body("two", max_completion_tokens=500, seed=3, user="u", model="m"))
    assert shape is not None


@pytest.mark.parametrize(
    "other",
    [body("one", "Translate."), body("one", temperature=1.0), body("one", response_format={"type": "x"})],
)
def test_what_is_asked_matters(other: dict[str, Any]) -> None:
    assert shape_of(CHAT, other) != shape_of(CHAT, body("one"))


def test_the_instructions_of_a_response_matter_and_its_input_does_not() -> None:
    def shape(instructions: str, **fields: Any) -> str | None:
        return shape_of("/v1/responses", {"instructions": instructions} | fields)

    one = shape("Sum up.", input="one", max_output_tokens=5)
    assert one == shape("Sum up.", input="two") == shape("Sum up.", input=[{"role": "user", "content": "a"}])
    assert one != shape("Translate.", input="one")
    assert one != shape("Sum up.", input=[{"role": "developer", "content": "a"}])


def test_answers_of_a_known_length_have_no_shape() -> None:
    assert shape_of(CHAT, body("one", ignore_eos=True)) is None
    assert shape_of("/v1/embeddings", {"input": "one"}) is None


@pytest.mark.parametrize(("others", "has"), [(0, True), (5, True), (50, False)])
def test_nearly_all_rows_have_the_shape_of_a_job(others: int, has: bool) -> None:
    bodies = [body(f"text {n}", "Translate." if n < others else "Sum up.") for n in range(100)]
    lines = [
        encode(Request(index=n, custom_id=f"r{n}", url=CHAT, body=one)).rstrip(b"\n")
        for n, one in enumerate(bodies)
    ]
    assert shape_of_rows(lines) == (shape_of(CHAT, body("any")) if has else None)


def test_no_rows_have_no_shape() -> None:
    assert shape_of_rows([]) is None
