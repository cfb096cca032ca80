"""Scores, rankings and classes equal those of plain transformers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from dray.engine.protocol import EngineSpec
from dray.errors import ConfigError
from dray.kinds import KINDS, Kind
from dray.requests.model import Outcome
from tests.support.engines import NAME, Runner, answer_of
from tests.support.judging_models import (
    LABELS,
    write_classifier,
    write_cross_encoder,
    write_generating_reranker,
)
from tests.support.lora import write_adapter, write_merged
from tests.support.mutations import mutations
from tests.support.tiny_model import sentence

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300), pytest.mark.heavy(one_of=3)]

CONTEXT = 256
LONG = "order refund " * 300
IMAGE = {"content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/a.png"}}]}


def _spec(model: Path, kind: Kind, **given: Any) -> EngineSpec:
    overflow = given.pop("overflow", "error")
    arguments = {"max_num_seqs": 16, "max_model_len": CONTEXT, "engine_core": "apart", **given}
    return EngineSpec(
        name="vllm", model=str(model), kind=kind, model_name=NAME, arguments=arguments, overflow=overflow
    )


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cross_encoder(tmp_path_factory.mktemp("models") / "cross-encoder")


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_classifier(tmp_path_factory.mktemp("models") / "classifier")


@pytest.fixture(scope="module")
def scoring(cross_encoder: Path) -> Iterator[Runner]:
    runner = Runner.started(_spec(cross_encoder, Kind.SCORE, overflow="cut-tail"))
    yield runner
    runner.replica.stop()


@pytest.fixture(scope="module")
def classifying(classifier: Path) -> Iterator[Runner]:
    runner = Runner.started(_spec(classifier, Kind.CLASSIFICATION))
    yield runner
    runner.replica.stop()


def _scores(outcome: Outcome) -> list[float]:
    return [entry["score"] for entry in answer_of(outcome)["data"]]


def _expected(folder: Path, texts: list[Any]) -> list[list[float]]:
    """The logits that transformers gives, of texts or of pairs."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    found = []
    with torch.inference_mode():
        for one in texts:
            given = tokenizer(*one) if isinstance(one, tuple) else tokenizer(one)
            fields = {name: torch.tensor([value]) for name, value in given.items()}
            found.append(model(**fields).logits[0].tolist())
    return found


def _softmax(logits: list[list[float]]) -> list[list[float]]:
    import torch

    found: list[list[float]] = torch.softmax(torch.tensor(logits), -1).tolist()
    return found


def _pairs(count: int) -> list[tuple[str, str]]:
    rng = random.Random(5)
    return [(sentence(rng, rng.randint(1, 12)), sentence(rng, rng.randint(1, 60))) for _ in range(count)]


def test_scores_are_those_of_transformers(scoring: Runner, cross_encoder: Path) -> None:
    pairs = _pairs(40)
    expected = [_sigmoid(logits[0]) for logits in _expected(cross_encoder, pairs)]
    assert max(expected) - min(expected) > 0.1
    singles = scoring.run(
        [{"model": NAME, "text_1": one, "text_2": other} for one, other in pairs], Kind.SCORE
    )
    assert [_scores(outcome)[0] for outcome in singles] == pytest.approx(expected, abs=1e-4)
    queries, documents = [one for one, _ in pairs], [other for _, other in pairs]
    [beside] = scoring.run([{"queries": queries, "documents": documents}], Kind.SCORE)
    assert _scores(beside) == pytest.approx(expected, abs=1e-4)
    [one] = scoring.run([{"data_1": queries[0], "data_2": documents, "use_activation": False}], Kind.SCORE)
    logits = _expected(cross_encoder, [(queries[0], document) for document in documents])
    assert _scores(one) == pytest.approx([logit[0] for logit in logits], abs=1e-3)


def _sigmoid(value: float) -> float:
    import torch

    return float(torch.sigmoid(torch.tensor(value)))


def test_the_answer_is_vllms_and_the_same_every_time(scoring: Runner) -> None:
    body = {"queries": "please help", "documents": ["order refund", "invoice"]}
    first, second = scoring.one(body, Kind.SCORE), scoring.one(body, Kind.SCORE)
    found, again = answer_of(first), answer_of(second)
    for entry, other in zip(found["data"], again["data"], strict=True):  # last digits are the batch's
        assert entry["score"] == pytest.approx(other.pop("score"), abs=1e-6)
        assert {name: value for name, value in entry.items() if name != "score"} == other
    assert {**found, "data": None} == {**again, "data": None}
    assert (found["id"], found["object"], found["created"], found["model"]) == ("score-0", "list", 0, NAME)
    assert [entry["index"] for entry in found["data"]] == [0, 1]
    assert found["usage"]["prompt_tokens"] == first.prompt_tokens > 0
    assert first.completion_tokens == 0


def test_a_ranking_is_of_the_same_scores(scoring: Runner) -> None:
    query, documents = "please help", [document for _, document in _pairs(8)]
    [scored] = scoring.run([{"queries": query, "documents": documents}], Kind.SCORE)
    whole, best, single = scoring.run(
        [
            {"query": query, "documents": documents},
            {"query": query, "documents": documents, "top_n": 3},
            {"query": query, "documents": documents[0]},
        ],
        Kind.RERANK,
    )
    ranked = sorted(enumerate(_scores(scored)), key=lambda one: -one[1])
    results = answer_of(whole)["results"]
    assert [one["index"] for one in results] == [index for index, _ in ranked]
    assert [one["relevance_score"] for one in results] == pytest.approx([score for _, score in ranked])
    assert [one["document"]["text"] for one in results] == [documents[index] for index, _ in ranked]
    assert [one["index"] for one in answer_of(best)["results"]] == [index for index, _ in ranked[:3]]
    assert [one["index"] for one in answer_of(single)["results"]] == [0]
    assert answer_of(whole)["model"] == NAME


def test_numbers_may_be_as_pandas_writes_them(scoring: Runner) -> None:
    """Floats for the whole numbers of a column with a gap, and null in the gap."""
    body: dict[str, Any] = {"query": "please help", "documents": [document for _, document in _pairs(4)]}
    lengths = ("max_tokens_per_query", "max_tokens_per_doc")
    numbers: list[dict[str, Any]] = [{"top_n": 2, **dict.fromkeys(lengths, 6)}, {}]
    written: list[dict[str, Any]] = [
        {"top_n": 2.0, **dict.fromkeys(lengths, 6.0)},
        dict.fromkeys(("top_n", *lengths)),
    ]
    asked = [body | fields for fields in (*numbers, *written)]
    found = [answer_of(outcome)["results"] for outcome in scoring.run(asked, Kind.RERANK)]
    assert [len(one) for one in found] == [2, 4, 2, 4]
    scores = [[one["relevance_score"] for one in ranked] for ranked in found]
    assert scores[0] == pytest.approx(scores[2], abs=1e-5)
    assert scores[1] == pytest.approx(scores[3], abs=1e-5)


def test_refusals_of_scores(scoring: Runner) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"queries": "a"}, "invalid_request"),
        ({"queries": ["a", "b"], "documents": ["c", "d", "e"]}, "invalid_request"),
        ({"queries": "a", "documents": []}, "invalid_request"),
        ({"queries": "a", "documents": [5]}, "unsupported_content"),
        ({"queries": "a", "documents": [IMAGE]}, "unsupported_content"),
        ({"queries": "a", "documents": "b", "max_tokens_per_doc": 10_000}, "invalid_request"),
        ({"queries": "a", "documents": "b", "max_tokens_per_query": 10_000.0}, "invalid_request"),
        ({"queries": "a", "documents": "b", "surprise": 1}, "unknown_field"),
        ({"queries": "a", "documents": "b", "model": "another"}, "model_mismatch"),
        ({"queries": "a", "documents": "b", "priority": 1}, "unsupported_field"),
        ({"queries": LONG, "documents": "b"}, "context_length_exceeded"),
        ({"queries": "a", "documents": "b", "instruction": "be strict"}, "unsupported_field"),
        ({"queries": "a", "documents": "b", "chat_template_kwargs": {"a": 1}}, "unsupported_field"),
        ({}, "invalid_request"),
    ]
    fine = {"queries": "fine", "documents": "order", "text_1": None, "n": 1, "stream": False}
    outcomes = scoring.run([body for case, _ in cases for body in (case, fine)], Kind.SCORE)
    assert [outcome.error_code for outcome in outcomes[::2]] == [code for _, code in cases]
    assert all(outcome.response for outcome in outcomes[1::2])
    missing = scoring.one({"query": "a"}, Kind.RERANK)
    assert (missing.error_code, missing.error_message) == (
        "invalid_request",
        "the body needs `query` and `documents`",
    )
    assert scoring.one({"prompt": "help"}, Kind.COMPLETION).error_code == "unsupported"


def test_the_end_of_a_document_is_cut_where_the_job_says_so(scoring: Runner) -> None:
    body = {"queries": ["please help"], "documents": ["order", LONG]}
    cut, kept = scoring.run([body, {**body, "max_tokens_per_doc": 5}], Kind.SCORE)
    assert answer_of(cut)["dray"] == {"overflow": "cut-tail"}
    assert answer_of(cut)["usage"]["prompt_tokens"] == 6 + CONTEXT  # [CLS] please help [SEP] order [SEP]
    assert "dray" not in answer_of(kept)
    [short] = scoring.run([{"queries": "please help", "documents": "order"}], Kind.SCORE)
    assert _scores(cut)[0] == pytest.approx(_scores(short)[0], abs=1e-6)


def test_a_pair_that_fits_is_not_cut_for_another_ones_sake(scoring: Runner) -> None:
    document = "order refund " * 50
    queries = ["please help", "invoice shipping " * 100]
    [alone] = scoring.run([{"queries": queries[0], "documents": document}], Kind.SCORE)
    [both] = scoring.run([{"queries": queries, "documents": [document, document]}], Kind.SCORE)
    assert answer_of(both)["dray"] == {"overflow": "cut-tail"}
    assert _scores(both)[0] == pytest.approx(_scores(alone)[0], abs=1e-6)


FIELDS = [
    *("queries", "documents", "items", "query", "text_1", "text_2", "data_1", "data_2", "top_n"),
    *(
        "truncate_prompt_tokens",
        "truncation_side",
        "max_tokens_per_query",
        "max_tokens_per_doc",
        "instruction",
    ),
    *("use_activation", "add_special_tokens", "cache_salt", "chat_template_kwargs", "padding", "made_up"),
]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(mutations(FIELDS))
def test_no_body_ends_the_engine(scoring: Runner, mutated: list[dict[str, Any]]) -> None:
    for kind, fine in (
        (Kind.SCORE, {"queries": "please help", "documents": "fine"}),
        (Kind.RERANK, {"query": "please help", "documents": "fine"}),
    ):
        bodies = [{**fine, **mutation} for mutation in mutated] + [fine]
        outcomes = scoring.run(bodies, kind)
        assert outcomes[-1].response is not None
        for outcome in outcomes:
            assert (outcome.response is None) != (outcome.error_code is None)


@pytest.mark.heavy
def test_classes_are_those_of_transformers(classifying: Runner, classifier: Path) -> None:
    import torch

    texts = [document for _, document in _pairs(30)]
    logits = torch.tensor(_expected(classifier, texts))
    expected = torch.softmax(logits, -1)
    singles = classifying.run([{"model": NAME, "input": text} for text in texts], Kind.CLASSIFICATION)
    [together] = classifying.run([{"input": texts}], Kind.CLASSIFICATION)
    for found in ([answer_of(one)["data"][0] for one in singles], answer_of(together)["data"]):
        probabilities = torch.tensor([one["probs"] for one in found])
        assert float((probabilities - expected).abs().max()) < 1e-3
        assert [one["label"] for one in found] == [LABELS[number] for number in expected.argmax(-1).tolist()]
    [chat, *refused] = classifying.run(
        [
            {"messages": [{"role": "user", "content": "help"}]},
            {"input": []},
            {"input": LONG},
            {"inputs": "a"},
        ],
        Kind.CLASSIFICATION,
    )
    [templated] = _expected(classifier, ["<|user|>help<|end|>"])
    assert answer_of(chat)["data"][0]["probs"] == pytest.approx(
        torch.softmax(torch.tensor(templated), -1).tolist(), abs=1e-3
    )
    assert [one.error_code for one in refused] == [
        "invalid_request",
        "context_length_exceeded",
        "invalid_request",
    ]


@pytest.mark.heavy
def test_an_adapter_of_a_classifier_brings_its_head(classifier: Path, tmp_path: Path) -> None:
    """In one batch with rows of the model itself, and of an adapter that leaves the head as it is."""
    modules = ("self_attn.q_proj", "mlp.down_proj")
    adapters = {
        "headed": write_adapter(tmp_path / "headed", classifier, seed=1, modules=modules, head="score"),
        "plain": write_adapter(tmp_path / "plain", classifier, seed=2, modules=modules),
    }
    folders = {NAME: classifier} | {
        name: write_merged(tmp_path / f"merged-{name}", classifier, adapter)
        for name, adapter in adapters.items()
    }
    texts = [document for _, document in _pairs(10)]
    given = {name: str(folder) for name, folder in adapters.items()}
    runner = Runner.started(_spec(classifier, Kind.CLASSIFICATION, lora_modules=given))
    try:
        rows = runner.run(
            [{"input": text, "model": name} for text in texts for name in folders], Kind.CLASSIFICATION
        )
    finally:
        runner.replica.stop()
    for number, folder in enumerate(folders.values()):
        expected = _softmax(_expected(folder, texts))
        found = [answer_of(row)["data"][0]["probs"] for row in rows[number :: len(folders)]]
        assert found == [pytest.approx(one, abs=1e-3) for one in expected]


@pytest.mark.heavy
def test_a_model_that_embeds_scores_by_the_angle(lively_model: Path) -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer

    pairs = _pairs(10)
    runner = Runner.started(_spec(lively_model, Kind.SCORE, convert="embed", overflow="cut-tail"))
    bodies = [{"queries": one, "documents": other} for one, other in pairs]
    try:
        *found, cut, too_long = runner.run(
            [*bodies, {"queries": "help", "documents": LONG}, {"queries": LONG, "documents": "help"}],
            Kind.SCORE,
        )
    finally:
        runner.replica.stop()
    tokenizer = AutoTokenizer.from_pretrained(lively_model)
    model = AutoModel.from_pretrained(lively_model, dtype=torch.float32).eval()

    def vector(text: str) -> torch.Tensor:
        state: torch.Tensor = model(torch.tensor([tokenizer(text).input_ids])).last_hidden_state[0, -1]
        return state

    with torch.inference_mode():
        angles = [torch.cosine_similarity(vector(one), vector(other), dim=0) for one, other in pairs]
    assert [_scores(one)[0] for one in found] == pytest.approx([float(one) for one in angles], abs=1e-3)
    assert answer_of(cut)["dray"] == {"overflow": "cut-tail"}
    assert answer_of(cut)["usage"]["prompt_tokens"] > CONTEXT
    assert too_long.error_code == "context_length_exceeded"


@pytest.mark.heavy
def test_late_interaction_compares_the_vectors_of_tokens(lively_model: Path) -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer

    pairs = _pairs(10)
    pooler = {"task": "token_embed"}
    runner = Runner.started(_spec(lively_model, Kind.SCORE, convert="embed", pooler_config=pooler))
    try:
        found = runner.run([{"queries": one, "documents": other} for one, other in pairs], Kind.SCORE)
    finally:
        runner.replica.stop()
    tokenizer = AutoTokenizer.from_pretrained(lively_model)
    model = AutoModel.from_pretrained(lively_model, dtype=torch.float32).eval()

    def vectors(text: str) -> torch.Tensor:
        states = model(torch.tensor([tokenizer(text).input_ids])).last_hidden_state[0]
        return torch.nn.functional.normalize(states, dim=-1)

    with torch.inference_mode():
        expected = [(vectors(one) @ vectors(other).T).amax(-1).sum() for one, other in pairs]
    assert [_scores(one)[0] for one in found] == pytest.approx([float(one) for one in expected], abs=1e-2)


@pytest.mark.heavy
def test_a_reranker_that_is_published_as_a_model_that_generates(tmp_path: Path) -> None:
    """As Qwen3's are: the score is how much likelier "yes" is than "no", after a template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = write_generating_reranker(tmp_path / "reranker")
    template = tmp_path / "reranker.jinja"
    template.write_text("Query: {{ messages[0].content }} Document: {{ messages[1].content }} Answer:")
    overrides = {
        "architectures": ["Qwen3ForSequenceClassification"],
        "classifier_from_token": ["no", "yes"],
        "is_original_qwen3_reranker": True,
    }
    runner = Runner.started(_spec(model, Kind.RERANK, hf_overrides=overrides, chat_template=str(template)))
    pairs = _pairs(10)
    try:
        found = runner.run([{"queries": one, "documents": other} for one, other in pairs], Kind.SCORE)
    finally:
        runner.replica.stop()
    tokenizer = AutoTokenizer.from_pretrained(model)
    words = [tokenizer.convert_tokens_to_ids(word) for word in ("no", "yes")]
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    expected = []
    with torch.inference_mode():
        for query, document in pairs:
            prompt = tokenizer(f"Query: {query} Document: {document} Answer:").input_ids
            last = plain(torch.tensor([prompt])).logits[0, -1, words]
            expected.append(float(torch.softmax(last, -1)[1]))
    assert [_scores(one)[0] for one in found] == pytest.approx(expected, abs=1e-3)


@pytest.mark.heavy
def test_a_reward_is_a_score_without_its_activation(tmp_path: Path) -> None:
    model = write_classifier(tmp_path / "reward", labels=("reward",))
    pooler = {"use_activation": False}
    runner = Runner.started(_spec(model, Kind.CLASSIFICATION, pooler_config=pooler))
    texts = [document for _, document in _pairs(10)]
    try:
        [found] = runner.run([{"input": texts}], Kind.CLASSIFICATION)
    finally:
        runner.replica.stop()
    expected = [logits[0] for logits in _expected(model, texts)]
    assert [one["probs"][0] for one in answer_of(found)["data"]] == pytest.approx(expected, abs=1e-3)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("url", "classes", "reason"),
    [
        ("/v1/score", 3, "gives no scores.*one class"),
        ("/v1/score", 0, "this model generates.*hf_overrides.*convert=embed"),
        ("/v1/embeddings", 3, "gives no embeddings.*gives classes"),
        ("/classify", 0, "gives no classes.*head"),
    ],
)
def test_a_model_that_cannot_is_refused_before_its_weights_are_read(
    tmp_path: Path, lively_model: Path, url: str, classes: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("dray.engine.vllm_adapter.engine.VllmEngine._started")
    model = write_cross_encoder(tmp_path / "model", classes=classes) if classes else lively_model
    with pytest.raises(ConfigError, match=reason):
        Runner.started(_spec(model, KINDS[url]))
