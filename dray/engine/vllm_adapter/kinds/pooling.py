"""What embeddings, scores and classes have in common: vLLM's own pooling classes, without their threads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from math import isfinite
from typing import Any, ClassVar

import orjson
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.exceptions import VLLMValidationError
from vllm.renderers.chat_utils import ChatTemplateConfig

from dray.engine.protocol import EngineSpec
from dray.engine.vllm_adapter.client import StepClient
from dray.engine.vllm_adapter.errors import is_too_long
from dray.engine.vllm_adapter.fields import refuse_other_engines, refuse_unusable, settle
from dray.engine.vllm_adapter.kinds.serving_options import TemplateOptions
from dray.engine.vllm_adapter.media.decoded import begin_row
from dray.engine.vllm_adapter.media.images import media_of
from dray.engine.vllm_adapter.media.rendering import RenderThreads
from dray.engine.vllm_adapter.overflow import SpecialKept
from dray.engine.vllm_adapter.template_names import TemplateNames
from dray.errors import RequestRefused
from dray.kinds import EngineKind
from dray.requests.media.medium import IMAGES
from dray.requests.model import Request
from dray.requests.overflow import Overflow

Render = Callable[[Any, int, Any], Any]
"""Makes tokens of a prompt, given vLLM's context of its request, and the prompt's number in it."""


def classifies(model: Any) -> bool:
    """Whether a model has a head for classes, as far as its config tells."""
    native = model.convert_type == "none" and "Classification" in model.architectures[0]
    return bool(native or model.convert_type == "classify")


class PoolingServing(ABC):
    """The steps of ``PoolingBaseServing.__call__``, taken one after the other."""

    engine: ClassVar[EngineKind]

    @classmethod
    def check(cls, spec: EngineSpec, config: Any) -> None:
        """The template is text or a file, and the model does what is asked, as far as its config tells.

        Raises:
            ConfigError: one of these is not so.
        """
        TemplateOptions.of(spec)
        cls._check_model(spec, config.model_config)

    @classmethod
    @abstractmethod
    def _check_model(cls, spec: EngineSpec, model: Any) -> None:
        """Find fault with vLLM's ``ModelConfig``."""

    def __init__(self, spec: EngineSpec, client: StepClient, models: OpenAIServingModels, name: str) -> None:
        template = TemplateOptions.of(spec)
        self.model_name = name
        self._only_name, self._adapters = spec.model_name, models.lora_requests
        self._media = media_of(client.model_config, client.renderer, (IMAGES,))
        self._overflow = spec.overflow
        self._client = client
        self._serving = self._of_vllm(
            client, models, ChatTemplateConfig(template.text, template.content_format)
        )
        self._names = TemplateNames(client.renderer, template.text)
        self._threads = self._render_threads()

    def _render_threads(self) -> RenderThreads | None:
        """Threads that render prompts; None where the engine's own does."""
        return None

    @abstractmethod
    def _of_vllm(self, client: StepClient, models: OpenAIServingModels, template: ChatTemplateConfig) -> Any:
        """vLLM's serving class."""

    @abstractmethod
    def _read(self, request: Request) -> Any:
        """vLLM's form of a body.

        Raises:
            RequestRefused, ValidationError: it is none.
        """

    def _content(self, response: Any) -> dict[str, Any]:
        """The answer that vLLM's response holds."""
        content: dict[str, Any] = orjson.loads(response.body)
        return content

    async def start(self, request: Request) -> Any:
        """Read the body and start on it."""
        refuse_other_engines(request, self.engine)
        refuse_unusable(request.body, self._only_name, self._adapters, media=self._media)
        if "messages" in request.body:  # pairs have templates of their own
            self._names.refuse_unread(request.body)
        body = self._read(request)
        settle(body, request.body, self.model_name, self._adapters)
        if "request_id" not in request.body:
            body.request_id = str(request.index)
        fit = partial(self._fitting, body)
        if self._threads is None:
            context, overflow = await fit(self._processor(body))
        else:
            context, overflow = await self._threads.run(request.index, fit)
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
        return self._content(self._built(body, context)), overflow

    def _built(self, body: Any, context: Any) -> Any:
        """vLLM's response."""
        try:
            return self._serving._postprocessing(self._processor(body), context)
        except ValueError as error:
            if "JSON" not in str(error):
                raise
            raise _no_number() from None

    async def _fitting(self, body: Any, processor: Any) -> tuple[Any, Overflow | None]:
        """The prompts as ``processor`` renders them; made to fit where one does not, and the job says so."""
        try:
            return await self._prepare(body, processor), None
        except VLLMValidationError as error:
            given = body.truncate_prompt_tokens is not None
            if self._overflow not in ("cut-head", "cut-tail") or given or not is_too_long(error):
                raise
            fitted = await self._cut(body, processor)
            if fitted is None:
                raise
            return fitted

    async def _cut(self, body: Any, processor: Any) -> tuple[Any, Overflow] | None:
        """The prompts of a row that does not fit, cut by vLLM; None where that cannot be done."""

        def cut(context: Any, number: int, part: Any) -> Any:
            return processor.render({**part, "tok_params": SpecialKept.of(part["tok_params"])})

        body.truncate_prompt_tokens = -1
        if self._overflow == "cut-head":
            body.truncation_side = "left"
        elif self._client.renderer.tokenizer.truncation_side != "right":
            body.truncation_side = "right"  # its own keeps all special tokens at the end
        done: Any = self._overflow
        return await self._prepare(body, processor, cut), Overflow(done=done)

    def _processor(self, body: Any) -> Any:
        return self._serving.get_io_processor(body)

    async def _prepare(self, body: Any, processor: Any, render: Render | None = None) -> Any:
        """vLLM's context for this request, with its prompts rendered."""
        begin_row()
        context = await self._serving._init_ctx(processor, body)
        parts = processor.get_request_factory_online(context)
        context.engine_inputs = [
            processor.render(part) if render is None else render(context, number, part)
            for number, part in enumerate(parts)
        ]
        if not context.engine_inputs:
            raise RequestRefused("invalid_request", "input holds no prompt", param="input")
        if hasattr(processor, "maybe_pre_process_chunked"):
            processor.maybe_pre_process_chunked(context)
        context.pooling_params.verify(self._client.model_config)
        return context

    def response(self, request: Request, answer: Any) -> bytes:
        """vLLM's answer in JSON, with its time pinned."""
        answer, overflow = answer
        if "created" in answer:
            answer["created"] = 0
        answer["model"] = request.body.get("model") or self.model_name
        dumped = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
        return dumped if overflow is None else overflow.on(dumped)

    def close(self) -> None:
        """End its threads."""
        if self._threads is not None:
            self._threads.close()


def _check(context: Any) -> None:
    """Pass on vLLM's verdicts, and give outputs the names that chunked processing looks for."""
    for number, output in enumerate(context.final_res_batch):
        if output.error is not None:
            raise RequestRefused("generation_failed", "vLLM ended this request with an internal error")
        if not _is_finite(output.outputs.data):  # vectors would be dumped with null in its place
            raise _no_number()
        if context.prompt_request_ids is not None:
            output.request_id = context.prompt_request_ids[number]


def _is_finite(data: Any) -> bool:
    """Whether all of a tensor are numbers. Their sum takes 4 us to say so, and asking each takes 16."""
    return isfinite(data.sum().item()) or bool(data.isfinite().all())


def _no_number() -> RequestRefused:
    return RequestRefused(
        "invalid_response", "the model's answer is no number (NaN or infinite): JSON has no form for it"
    )
