"""Classes: which of a model's labels a text or a conversation has, and what a reward model makes of it."""

from __future__ import annotations

from dray.kinds.kind import Body, EngineKind, Kind, OutputColumn, conversation, input_of, inputs
from dray.kinds.scoring import SCORE_COLUMN


def _simulated(body: Body, text: str, digest: str) -> Body:
    """Two classes."""
    first = int(digest[:2], 16) / 255
    classes = {"label": f"LABEL_{int(first < 0.5)}", "probs": [first, 1 - first], "num_classes": 2}
    return {"object": "list", "data": [{"index": index, **classes} for index in range(inputs(body)[1])]}


def _label(body: Body) -> str | None:
    """The label of the first input."""
    data = body.get("data")
    found: str | None = data[0].get("label") if data else None
    return found


CLASSIFYING = EngineKind(
    name="classification",
    does="classifies",
    serving="dray.engine.vllm_adapter.kinds.classification:ClassificationServing",
    arguments={"runner": "pooling"},
    generates=False,
    splits_prompts=False,
    fields=frozenset({"use_activation"}),
)
CLASSIFICATION = Kind(
    name="classification",
    url="/classify",
    also=("/v1/classify",),
    engine=CLASSIFYING,
    texts=("input", "messages"),
    body=input_of,
    conversation=conversation,
    prompts=inputs,
    proof={"input": "Say yes."},
    simulated=_simulated,
    columns=(OutputColumn(name="label", type="text", read=_label), SCORE_COLUMN),
)
