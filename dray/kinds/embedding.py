"""Embeddings: texts and conversations as vectors."""

from __future__ import annotations

from base64 import b64encode
from hashlib import shake_128

from dray.errors import RequestRefused
from dray.kinds.kind import Body, EngineKind, Kind, OutputColumn, input_of, inputs


def _simulated_embedding(body: Body, text: str, digest: str) -> Body:
    """Eight numbers, or as many as ``dimensions`` says; in base64 they are little-endian float32."""
    import numpy as np  # here alone: the table is read at every start

    wanted = body.get("dimensions")
    wanted = 8 if wanted is None else wanted
    if type(wanted) is not int or not 1 <= wanted <= 65_536:
        raise RequestRefused("invalid_request", "dimensions must be from 1 to 65536", param="dimensions")
    drawn = np.frombuffer(shake_128(bytes.fromhex(digest)).digest(wanted), dtype=np.uint8)
    vector = drawn.astype("<f4") / np.float32(255)
    asked = body.get("encoding_format", "float")
    given = b64encode(vector.tobytes()).decode() if asked == "base64" else vector.tolist()
    return {"object": "list", "data": [{"index": 0, "object": "embedding", "embedding": given}]}


def _embedding(body: Body) -> list[float] | None:
    """The first embedding. One in base64 stays in the response alone."""
    data = body.get("data")
    found = data[0].get("embedding") if data else None
    return found if isinstance(found, list) else None


EMBEDDING = EngineKind(
    name="embedding",
    does="embeds",
    serving="dray.engine.vllm_adapter.kinds.embedding:EmbeddingServing",
    arguments={"runner": "pooling"},
    generates=False,
    fields=frozenset({"dimensions", "encoding_format", "use_activation"}),
    splits_prompts=False,  # many of these models attend to the whole prompt at once
)
OF_TEXTS = Kind(
    name="embedding",
    url="/v1/embeddings",
    also=("/embeddings",),
    engine=EMBEDDING,
    texts=("input", "messages"),
    body=input_of,
    prompts=inputs,
    proof={"input": "Say yes."},
    simulated=_simulated_embedding,
    columns=(OutputColumn(name="embedding", type="numbers", read=_embedding),),
)
