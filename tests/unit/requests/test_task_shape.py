"""What requests of one task have in common."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator, Sequence
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


def _lines(bodies: Sequence[dict[str, Any]], url: str = CHAT) -> list[bytes]:
    requests = [Request(index=n, custom_id=f"r{n}", url=url, body=one) for n, one in enumerate(bodies)]
    return [encode(one).rstrip(b"\n") for one in requests]


@pytest.mark.parametrize(("others", "has"), [(0, True), (5, True), (50, False)])
def test_nearly_all_rows_have_the_shape_of_a_job(others: int, has: bool) -> None:
    bodies = [body(f"text {n}", "Translate." if n < others else "Sum up.") for n in range(100)]
    assert shape_of_rows(_lines(bodies)) == (shape_of_rows(_lines(bodies[50:])) if has else None)


def _of(template: str, *, own: str = "text {}", rows: int = 200, url: str = "/v1/completions") -> str | None:
    texts = [template.format(own.format(n * n)) for n in range(rows)]
    messages: list[dict[str, Any]] = [{"messages": [{"role": "user", "content": text}]} for text in texts]
    return shape_of_rows(_lines([{"prompt": text} for text in texts] if "chat" not in url else messages, url))


@pytest.mark.parametrize("url", [CHAT, "/v1/completions"])
@pytest.mark.parametrize("place", ["{task} {{}}", "{{}}\n{task}"], ids=["begins", "ends"])
def test_the_words_with_which_all_texts_begin_or_end_matter(url: str, place: str) -> None:
    """Instructions need not be a system message: a spam filter's two tokens are no report's 800 words."""
    spam, report = place.format(task="Is it spam? Yes or no."), place.format(task="Write a report on this.")
    assert _of(spam, url=url) is not None
    assert _of(spam, url=url) == _of(spam, url=url, rows=100)
    assert _of(spam, url=url) != _of(report, url=url)


def test_a_sample_of_a_job_has_its_shape() -> None:
    """Its texts share more, or less, by chance: half a number, or a full stop."""
    whole = _of("Sum up: {}", own="{}.")
    assert whole == _of("Sum up: {}", own="1{}.", rows=9) == _of("Sum up: {}", own="{}")


def test_no_rows_have_no_shape() -> None:
    assert shape_of_rows([]) is None


def test_of_large_rows_the_ends_alone_are_held() -> None:
    """The driver looks at 200 of them while it writes the files: photographs have megabytes each."""

    def photographs() -> Iterator[bytes]:
        for number in range(40):
            image = {"type": "image_url", "image_url": {"url": f"data:;base64,{number}" + "A" * (1 << 20)}}
            yield from _lines([{"messages": [{"role": "user", "content": [image]}]}])

    tracemalloc.start()
    try:
        assert shape_of_rows(photographs()) is not None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 40 << 20  # half of it is of making a row


def test_a_text_without_marks_takes_no_longer() -> None:
    began = time.thread_time()
    assert _of("x" * 30_000 + ".", rows=1) is not None
    assert time.thread_time() - began < 0.5
