"""Embeddings by vLLM's own pooling classes, without their threads."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import orjson
from pydantic import TypeAdapter
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.pooling.embed.protocol import EmbeddingRequest
from vllm.entrypoints.pooling.embed.serving import ServingEmbedding

from dray.engine.protocol import EngineSpec
from dray.engine.vllm_client import StepClient
from dray.errors import RequestRefused
from dray.requests.model import Request


class EmbeddingServing:
    """The steps of ``PoolingBaseServing.__call__``, taken one after the other."""

    def __init__(self, spec: EngineSpec, client: StepClient, models: OpenAIServingModels, name: str) -> None:
        from vllm.entrypoints.chat_utils import ChatTemplateConfig

        self.model_name = name
        self._client = client
        self._serving = ServingEmbedding(
            client,
            models,
            request_logger=None,
            chat_template_config=ChatTemplateConfig(chat_template=spec.arguments.get("chat_template")),
        )
        self._read = TypeAdapter(EmbeddingRequest).validate_python

    def start(self, request: Request) -> Coroutine[Any, Any, Any]:
        """Read the body and start on it."""
        return self._answer(request)

    async def _answer(self, request: Request) -> Any:
        from dray.engine.vllm_serving import refuse_unknown

        body = self._read(request.body)
        refuse_unknown(body)
        if getattr(body, "encoding_format", "float") not in ("float", "base64"):
            raise RequestRefused(
                "unsupported_field", "encoding_format must be float or base64", param="encoding_format"
            )
        serving = self._serving
        processor = serving.get_io_processor(body)
        context = await serving._init_ctx(processor, body)
        context.engine_inputs = [
            processor.render(part) for part in processor.get_request_factory_online(context)
        ]
        if not context.engine_inputs:
            raise RequestRefused("invalid_request", "input holds no prompt", param="input")
        processor.maybe_pre_process_chunked(context)
        tickets = [
            self._client.encode(
                part["prompts"],
                part["params"],
                lora_request=part["lora_requests"],
                priority=part["priorities"],
            )
            for part in context.engine_inputs
        ]
        context.final_res_batch = [await ticket for ticket in tickets]
        return serving._postprocessing(processor, context)

    def response(self, request: Request, answer: Any) -> bytes:
        """The body of vLLM's JSON response, with id and time pinned."""
        body = orjson.loads(answer.body)
        body["id"] = f"embd-{request.index}"
        body["created"] = 0
        body["model"] = request.body.get("model") or self.model_name
        return orjson.dumps(body)
