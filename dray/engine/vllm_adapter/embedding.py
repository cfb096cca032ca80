"""Embeddings by vLLM's own pooling classes, without their threads."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Annotated, Any

import orjson
from pydantic import BeforeValidator, TypeAdapter
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.pooling.embed import protocol
from vllm.entrypoints.pooling.embed.serving import ServingEmbedding
from vllm.exceptions import VLLMValidationError

from dray.engine.protocol import EngineSpec
from dray.engine.vllm_adapter.client import StepClient
from dray.engine.vllm_adapter.errors import is_too_long
from dray.engine.vllm_adapter.fields import refuse_other_engines, refuse_unknown, refuse_unusable
from dray.engine.vllm_adapter.images import sees_images
from dray.engine.vllm_adapter.lora import adapter_of
from dray.engine.vllm_adapter.serving_options import TemplateOptions
from dray.errors import RequestRefused
from dray.kinds import EMBEDDING
from dray.requests.model import Request
from dray.requests.overflow import Overflow


class ORJSONResponse:
    """Takes vLLM's answer as it is. The name tells vLLM to leave vectors as arrays."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content


class EmbeddingServing:
    """The steps of ``PoolingBaseServing.__call__``, taken one after the other."""

    def __init__(self, spec: EngineSpec, client: StepClient, models: OpenAIServingModels, name: str) -> None:
        from vllm.renderers.chat_utils import ChatTemplateConfig

        template = TemplateOptions.of(spec)
        self.model_name = name
        self._only_name, self._adapters = spec.model_name, models.lora_requests
        self._sees = sees_images(client.model_config, client.renderer)
        self._overflow = spec.overflow
        self._client = client
        self._serving = ServingEmbedding(
            client,
            models,
            request_logger=None,
            chat_template_config=ChatTemplateConfig(template.text, template.content_format),
        )
        self._serving.json_response_cls = ORJSONResponse
        self._read_any = TypeAdapter(protocol.EmbeddingRequest).validate_python
        # Pydantic tries all five forms of vLLM's union on each element: 28 s and 5 GB for a million ids.
        plain = Annotated[
            protocol.EmbeddingCompletionRequest, BeforeValidator(protocol.reject_removed_pooling_parameters)
        ]
        self._read_plain = TypeAdapter(plain).validate_python

    def start(self, request: Request) -> Coroutine[Any, Any, Any]:
        """Read the body and start on it."""
        return self._answer(request)

    async def _answer(self, request: Request) -> Any:
        refuse_other_engines(request, EMBEDDING)
        refuse_unusable(request.body, self._only_name, self._adapters, sees=self._sees)
        body = (self._read_plain if _is_plain(request.body) else self._read_any)(request.body)
        refuse_unknown(body)
        if body.encoding_format not in ("float", "base64"):
            raise RequestRefused(
                "unsupported_field", "encoding_format must be float or base64", param="encoding_format"
            )
        # Checked above; None is the model itself to vLLM, which looks for no adapter then.
        body.model = adapter_of(request.body, self.model_name, self._adapters)
        if "request_id" not in request.body:
            body.request_id = str(request.index)
        context, overflow = await self._fitting(body)
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
        _check(context)
        return self._serving._postprocessing(self._processor(body), context).content, overflow

    async def _fitting(self, body: Any) -> tuple[Any, Overflow | None]:
        """The rendered prompts; cut by vLLM where one does not fit, and the job says so."""
        try:
            return await self._prepare(body), None
        except VLLMValidationError as error:
            given = body.truncate_prompt_tokens is not None
            if self._overflow not in ("cut-head", "cut-tail") or given or not is_too_long(error):
                raise
        body.truncate_prompt_tokens = -1
        if self._overflow == "cut-head":
            body.truncation_side = "left"
        elif self._client.renderer.tokenizer.truncation_side != "right":
            body.truncation_side = "right"  # its own keeps the special token at the end
        return await self._prepare(body), Overflow(done=self._overflow)

    def _processor(self, body: Any) -> Any:
        return self._serving.get_io_processor(body)

    async def _prepare(self, body: Any) -> Any:
        """vLLM's context for this request, with its prompts rendered."""
        processor = self._processor(body)
        context = await self._serving._init_ctx(processor, body)
        context.engine_inputs = [
            processor.render(part) for part in processor.get_request_factory_online(context)
        ]
        if not context.engine_inputs:
            raise RequestRefused("invalid_request", "input holds no prompt", param="input")
        processor.maybe_pre_process_chunked(context)
        context.pooling_params.verify(self._client.model_config)
        return context

    def response(self, request: Request, answer: Any) -> bytes:
        """vLLM's answer in JSON, with its time pinned."""
        answer, overflow = answer
        answer["created"] = 0
        answer["model"] = request.body.get("model") or self.model_name
        dumped = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
        return dumped if overflow is None else overflow.on(dumped)

    def close(self) -> None:
        """It has no threads."""


def _is_plain(body: dict[str, Any]) -> bool:
    """Whether the inputs are texts or token ids, and no conversations."""
    given = body.get("input")
    if "messages" in body or not isinstance(given, str | list):
        return False
    return isinstance(given, str) or not any(
        isinstance(one, dict) or (isinstance(one, list) and any(isinstance(part, dict) for part in one))
        for one in given
    )


def _check(context: Any) -> None:
    """Pass on vLLM's verdicts, and give outputs the names that chunked processing looks for."""
    for number, output in enumerate(context.final_res_batch):
        if output.error is not None:
            raise RequestRefused("generation_failed", "vLLM ended this request with an internal error")
        if context.prompt_request_ids is not None:
            output.request_id = context.prompt_request_ids[number]
