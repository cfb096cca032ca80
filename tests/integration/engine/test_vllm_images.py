"""Rows with images, on a model that sees: the answers of transformers, whatever else the rows hold."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dray.kinds import Kind, Overflow
from dray.requests.model import Outcome
from tests.support.engines import Runner, embedding_spec, generation_spec, lines, running
from tests.support.seeing_model import SIDE, as_url, asking, blank, photograph, picture, write_seeing_model
from tests.support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300), pytest.mark.heavy(one_of=3)]

SCHEMA = {
    "type": "json_schema",
    "json_schema": {"name": "x", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}
REFUSED_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "sandwich"}}}
APART = {"max_num_seqs": 8, "max_model_len": 512, "convert": "embed", "engine_core": "apart"}
NO_IMAGE = (
    "an image cannot be decoded: it is damaged, too large, or no JPEG, PNG, WebP, AVIF, GIF, BMP or TIFF"
)


@pytest.fixture(scope="session")
def seeing_model(tmp_path_factory: pytest.TempPathFactory, quiet_vllm: None) -> Path:
    return write_seeing_model(tmp_path_factory.mktemp("model") / "seeing")


@pytest.fixture(scope="session")
def seeing(seeing_model: Path) -> Iterator[Runner]:
    with running(generation_spec(seeing_model)) as runner:
        yield runner


def tokens(outcome: Outcome) -> list[int]:
    assert outcome.response is not None, (outcome.error_code, outcome.error_message)
    found: list[int] = json.loads(outcome.response)["choices"][0]["token_ids"]
    return found


def vectors(outcome: Outcome) -> list[list[float]]:
    found = [] if outcome.response is None else json.loads(outcome.response)["data"]
    return [one["embedding"] for one in found]


def greedy(folder: Path, rows: list[dict[str, Any]], pictures: list[list[bytes]]) -> list[list[int]]:
    """What plain transformers answer, in float32."""
    import torch
    from PIL import Image
    from transformers import AutoProcessor, Idefics3ForConditionalGeneration

    processor = AutoProcessor.from_pretrained(folder)
    model = Idefics3ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    found = []
    for row, files in zip(rows, pictures, strict=True):
        messages = [
            {
                **one,
                "content": [
                    {"type": "image"} if part["type"] == "image_url" else part for part in one["content"]
                ],
            }
            for one in row["messages"]
        ]
        text = processor.apply_chat_template(messages, add_generation_prompt=True)
        images = [Image.open(io.BytesIO(file)).convert("RGB") for file in files] or None
        inputs = processor(text=text, images=images, return_tensors="pt", add_special_tokens=False)
        with torch.inference_mode():
            out = model.generate(**inputs, max_new_tokens=row["max_tokens"], do_sample=False, pad_token_id=0)
        found.append(out[0, inputs["input_ids"].shape[1] :].tolist())
    return found


def rows_about(pictures: list[list[bytes]]) -> list[dict[str, Any]]:
    return [
        asking(*files, f"what is it? {number % 3}", return_token_ids=True)
        for number, files in enumerate(pictures)
    ]


def test_each_row_is_answered_about_its_own_images(seeing: Runner, seeing_model: Path) -> None:
    """One image or two, of many sizes and three formats, some in several rows, beside rows without."""
    files = [picture(number, form=("PNG", "JPEG", "WEBP")[number % 3]) for number in range(9)]
    pictures = [[file] for file in files] + [[files[0], files[4]], [files[4], files[0]], [], [files[2]]]
    rows = rows_about(pictures)
    found = list(map(tokens, seeing.run(rows)))
    assert found == greedy(seeing_model, rows, pictures)
    assert len({tuple(one) for one in found}) > 8, "the answers say nothing of the images"
    assert list(map(tokens, seeing.run(rows))) == found, "the second time, from the front's cache"


@pytest.mark.heavy
def test_the_core_apart_gives_the_same_bytes(seeing: Runner, seeing_model: Path) -> None:
    rows = [*rows_about([[picture(number)] for number in (1, 2, 1)]), asking("no image")]
    rows += rows
    with running(generation_spec(seeing_model, engine_core="apart")) as runner:
        apart = [outcome.response for outcome in runner.run(rows)]
    assert apart == [outcome.response for outcome in seeing.run(rows)]


@pytest.mark.heavy
@pytest.mark.parametrize(
    "how",
    [
        {"image_threads": 0},
        {"image_threads": 4, "mm_processor_cache_gb": 0.001},
        {
            "image_threads": 4,
            "mm_processor_cache_gb": 0,
            "enable_prefix_caching": False,
        },  # images are numbered
    ],
    ids=["none", "four", "four, no names"],
)
def test_threads_that_read_images_change_no_answer(
    seeing: Runner, seeing_model: Path, how: dict[str, Any]
) -> None:
    rows = rows_about([[picture(number % 30), picture(number // 30)] for number in range(150)])
    with running(generation_spec(seeing_model, engine_core="apart", **how)) as runner:
        found = [outcome.response for outcome in runner.run(rows)]
    assert found == [outcome.response for outcome in seeing.run(rows)]


def test_an_image_that_a_row_found_in_the_cache_stays_for_the_row(quiet_vllm: None) -> None:
    """vLLM puts the row's new images in before it takes that one out: it was gone, and the row refused."""
    from vllm.multimodal.inputs import MultiModalKwargsItem

    from dray.engine.vllm_adapter.media.image_cache import RowCache

    config = SimpleNamespace(mm_processor_cache_gb=1000 / 2**30)
    cache = RowCache(SimpleNamespace(get_multimodal_config=lambda: config))

    def read(*names: str) -> list[bool]:
        """As vLLM's processor does (``_get_cache_missing_items``, ``_merge_mm_kwargs``)."""
        found: list[bool] = cache.is_cached(list(names))
        for name in names:
            cache.touch_sender_cache_item(name)
        for name, is_there in zip(names, found, strict=True):
            made: Any = None if is_there else (MultiModalKwargsItem.dummy(600), [])
            assert cache.get_and_update_item(made, name)[0]["dummy"].data.nbytes == 600
        return found

    assert read("old") == [False]
    assert read("new", "old") == [False, True]
    assert read("new", "new") == [True, True]
    assert read("old") == [False], "more is kept than was asked for"


def test_rows_whose_images_are_read_can_be_aborted(seeing: Runner) -> None:
    session = seeing.session()
    rows = [asking(photograph(number, (2000, 1500)), "x") for number in range(12)]
    seeing.replica.feed(session, lines(rows), last=True)
    until(lambda: seeing.replica.status().running > 0)
    seeing.replica.abort(session)
    until(lambda: seeing.replica.status().running == 0)
    assert seeing.one(asking(picture(3), "x")).response is not None


def test_a_row_that_never_reaches_the_core_takes_no_image_from_others(seeing: Runner) -> None:
    """vLLM's own lists of images part here: the front has one that the core has not."""
    file = picture(77)
    refused, fine, constrained, too_long = seeing.run(
        [
            asking(file, "x", response_format=REFUSED_SCHEMA),
            asking(file, "x", return_token_ids=True),
            asking(file, "x", response_format=SCHEMA),
            asking(file, "x" * 600),
        ]
    )
    assert refused.error_code == "invalid_json_schema"
    assert too_long.error_code == "context_length_exceeded"
    assert constrained.response is not None
    assert tokens(fine) == tokens(seeing.one(asking(file, "x", return_token_ids=True)))


@pytest.mark.parametrize(
    ("make", "code", "message"),
    [
        (lambda: as_url(b"no image"), "invalid_image", NO_IMAGE),
        (lambda: as_url(picture(1)[:200]), "invalid_image", NO_IMAGE),
        (lambda: as_url(picture(1, form="PPM")), "invalid_image", NO_IMAGE),
        (lambda: "data:image/png;base64,!!", "invalid_image", NO_IMAGE),
        (lambda: as_url(blank(20_000, 10_000)), "invalid_image", NO_IMAGE),
        (
            lambda: "http://192.0.2.1/a.png",
            "unsupported_content",
            "messages can hold parts of text, and images, only",
        ),
        (
            lambda: "file:///etc/passwd",
            "unsupported_content",
            "messages can hold parts of text, and images, only",
        ),
    ],
)
def test_what_is_no_image_is_an_error_row_of_its_own(
    seeing: Runner, make: Callable[[], str], code: str, message: str
) -> None:
    bad, good = seeing.run([asking(f"url:{make()}", "x"), asking(picture(3), "x")])
    assert (bad.error_code, bad.error_message) == (code, message)
    assert good.response is not None


def test_the_images_of_a_row_are_counted_before_they_are_decoded(
    seeing: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """256 images of 179 million pixels were decoded, and all kept, before the first was made smaller."""
    from dray.engine.vllm_adapter.media import decoded

    monkeypatch.setattr(decoded, "ROW_BYTES", 2 * 3 * 40 * 30)
    files = [picture(number, size=(40, 30)) for number in range(3)]
    rows = [asking(*files[:2], "x"), asking(*files, "x"), asking(files[2], "x"), asking(blank(60, 60), "x")]
    two, three, one, large = seeing.run(rows)
    assert two.response and one.response
    assert (three.error_code, large.error_code) == ("request_too_large", "request_too_large")
    assert (three.error_message or "").startswith("the row's images have over 7,200 bytes once")


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": as_url(picture(1))}, "uuid": "the same for all"},
        {"type": "image_url", "image_url": {"url": as_url(picture(1)), "detail": "low"}},
        {"image_url": as_url(picture(1))},
        {"type": "image_embeds", "image_embeds": "aaaa"},
        {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    ],
)
def test_other_media_and_other_forms_are_refused(seeing: Runner, part: dict[str, Any]) -> None:
    body = asking("x")
    body["messages"][0]["content"].append(part)
    assert seeing.one(body).error_code == "unsupported_content"


@pytest.mark.heavy
def test_embeddings_are_of_images_too(seeing_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def row(*parts: str | bytes) -> dict[str, Any]:
        return {"messages": asking(*parts)["messages"]}

    one, other = row(picture(1), "x"), row(picture(2), "x")
    several = {"messages": [one["messages"], other["messages"]]}
    elsewhere = {"messages": [one["messages"], row("url:http://192.0.2.1/1.png")["messages"]]}
    spec = replace(embedding_spec(seeing_model), arguments=APART)
    with running(spec) as runner:
        found = runner.run([one, other, one, several, elsewhere, {"input": "x"}], Kind.EMBEDDING)
        monkeypatch.setattr("dray.engine.vllm_adapter.media.decoded.ROW_BYTES", 3 * (3 * SIDE) ** 2)
        assert all(row.response for row in runner.run([one] * 9, Kind.EMBEDDING)), "each has its own count"
    first, second, again, both, refused, text = [vectors(outcome) for outcome in found]
    assert first == again != second
    assert both == first + second
    assert refused == [] and found[4].error_code == "unsupported_content"
    assert text and text != first


def test_a_model_of_text_says_that_it_takes_no_images(generation: Runner) -> None:
    outcome = generation.one(asking(picture(1), "x"))
    assert (outcome.error_code, outcome.error_message) == (
        "unsupported_content",
        "this model reads text parts only",
    )


@pytest.mark.parametrize("policy", ["shorten", "cut-head", "cut-tail"])
def test_a_long_row_with_an_image_is_made_to_fit(seeing: Runner, policy: Overflow) -> None:
    fitter = seeing.engine._serve._fitter
    before, fitter._policy = fitter._policy, policy
    try:
        outcome = seeing.one(asking(picture(5), "y" * (440 if policy == "shorten" else 900), max_tokens=64))
    finally:
        fitter._policy = before
    assert outcome.response is not None, (outcome.error_code, outcome.error_message)
    answer = json.loads(outcome.response)
    assert answer["dray"]["overflow"] == ("shortened" if policy == "shorten" else policy)
