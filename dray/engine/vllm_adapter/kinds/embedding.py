"""Embeddings by vLLM's own pooling classes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, TypeAdapter
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.pooling.embed import protocol
from vllm.entrypoints.pooling.embed.serving import ServingEmbedding
from vllm.renderers.chat_utils import ChatTemplateConfig

from dray.engine.protocol import EngineSpec
from dray.engine.vllm_adapter.client import StepClient
from dray.engine.vllm_adapter.kinds.pooling import PoolingServing, classifies
from dray.errors import ConfigError, RequestRefused
from dray.kinds import EMBEDDING
from dray.requests.model import Request

_read_any = TypeAdapter(protocol.EmbeddingRequest).validate_python
# Pydantic tries all five forms of vLLM's union on each element: 28 s and 5 GB for a million ids.
_removed = BeforeValidator(protocol.reject_removed_pooling_parameters)
_read_plain = TypeAdapter(Annotated[protocol.EmbeddingCompletionRequest, _removed]).validate_python


class ORJSONResponse:
    """Takes vLLM's answer as it is. The name tells vLLM to leave vectors as arrays."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content


class EmbeddingServing(PoolingServing):
    """Vectors of texts and conversations."""

    engine = EMBEDDING

    @classmethod
    def _check_model(cls, spec: EngineSpec, model: Any) -> None:
        if classifies(model):
            raise ConfigError(
                f"this model gives no embeddings: its config names {', '.join(model.architectures)}. It "
                "gives classes (--kind classification), and scores if it has one class"
            )

    def _of_vllm(self, client: StepClient, models: OpenAIServingModels, template: ChatTemplateConfig) -> Any:
        serving = ServingEmbedding(client, models, request_logger=None, chat_template_config=template)
        serving.json_response_cls = ORJSONResponse
        return serving

    def _read(self, request: Request) -> Any:
        body = (_read_plain if _is_plain(request.body) else _read_any)(request.body)
        if body.encoding_format not in ("float", "base64"):
            raise RequestRefused(
                "unsupported_field", "encoding_format must be float or base64", param="encoding_format"
            )
        return body

    def _content(self, response: Any) -> dict[str, Any]:
        content: dict[str, Any] = response.content
        return content


def _is_plain(body: dict[str, Any]) -> bool:
    """Whether the inputs are texts or token ids, and no conversations."""
    given = body.get("input")
    if "messages" in body or not isinstance(given, str | list):
        return False
    return isinstance(given, str) or not any(
        isinstance(one, dict) or (isinstance(one, list) and any(isinstance(part, dict) for part in one))
        for one in given
    )
