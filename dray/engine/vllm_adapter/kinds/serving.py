"""OpenAI bodies in, OpenAI answers out, by vLLM's own protocol and serving classes.

Answers are the same bytes whenever they are made: ids come from the row's index, and ``created`` is 0
(the time is in the store). Counts of cached tokens depend on what ran before, so they are in the
store too, and not in the answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pydantic import TypeAdapter
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
from vllm.entrypoints.openai.models.protocol import BaseModelPath
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.parser import ParserManager
from vllm.renderers.online_renderer import OnlineRenderer
from vllm.tokenizers import cached_tokenizer_from_config

from dray.engine.body_fields import refuse_template_for_harmony, refuse_unread_by_harmony
from dray.engine.decoders import missing_libraries, refuse_without_libraries, told_of
from dray.engine.protocol import EngineSpec
from dray.engine.vllm_adapter.client import StepClient
from dray.engine.vllm_adapter.errors import refusal_of_response
from dray.engine.vllm_adapter.fields import (
    refuse_other_engines,
    refuse_other_style,
    refuse_unusable,
    settle,
)
from dray.engine.vllm_adapter.kinds.response import Responses, dumped_response
from dray.engine.vllm_adapter.kinds.response_overflow import ResponseFitter
from dray.engine.vllm_adapter.kinds.serving_options import (
    TemplateOptions,
    is_harmony,
    parser_options,
    refuse_unread_calls,
    without_null_choice,
)
from dray.engine.vllm_adapter.long_runs import refuse_long_runs
from dray.engine.vllm_adapter.media.images import media_of
from dray.engine.vllm_adapter.media.rendering import RenderThreads, files_in
from dray.engine.vllm_adapter.media.sounds import read_files_alone
from dray.engine.vllm_adapter.media.videos import read_videos_alone, refuse_other_decoders
from dray.engine.vllm_adapter.overflow import Fitter
from dray.engine.vllm_adapter.template_names import TemplateNames
from dray.errors import ConfigError, RequestRefused
from dray.kinds import GENERATION, Kind
from dray.requests.media.medium import MEDIA, SOUNDS, VIDEOS, Medium
from dray.requests.media.placing import media_in
from dray.requests.model import Request
from dray.requests.overflow import Overflow
from dray.requests.row_ids import call_id


class Serving(Protocol):
    """Reads requests and builds answers for one kind of model."""

    model_name: str

    @classmethod
    def check(cls, spec: EngineSpec, config: Any) -> None:
        """Find fault with the model and the engine arguments, before the weights are loaded.

        Raises:
            ConfigError, TypeError: what is asked cannot be served.
        """

    def start(self, request: Request) -> Coroutine[Any, Any, Any]:
        """The coroutine that answers ``request``; it waits for tickets of the step client."""

    def response(self, request: Request, answer: Any) -> bytes:
        """The OpenAI response body for what the coroutine returned."""

    def close(self) -> None:
        """End its threads."""


def serving_for(spec: EngineSpec, client: StepClient, adapters: dict[str, Any]) -> Serving:
    """The serving side for the kind of requests that ``spec`` names; ``adapters`` are vLLM's, by name."""
    name = spec.model_name or Path(spec.model).name
    models = OpenAIServingModels(client, [BaseModelPath(name=name, model_path=spec.model)])
    models.lora_requests = adapters
    found: Serving = serving_class(spec)(spec, client, models, name)
    return found


def serving_class(spec: EngineSpec) -> Any:
    """The class that serves the kind of requests that ``spec`` names."""
    module, _, name = spec.kind.engine.serving.partition(":")
    return getattr(import_module(module), name)


def _dumped(request: Request, answer: Any) -> bytes:
    """A chat or a completion in JSON."""
    answer.created = 0
    for choice in answer.choices:
        calls = getattr(getattr(choice, "message", None), "tool_calls", None) or ()
        for number, call in enumerate(calls):
            call.id = call_id(call.id, request.index, choice.index, number)
    dumped: bytes = answer.__pydantic_serializer__.to_json(answer)
    return dumped


_READERS: dict[Medium, Callable[[], None]] = {SOUNDS: read_files_alone, VIDEOS: read_videos_alone}


def _kept_to_files(media: Collection[Medium]) -> dict[Medium, list[str]]:
    """Have vLLM read nothing but the files of ``media`` themselves; the libraries that some of these lack."""
    found = {}
    for medium in media:
        if lacking := missing_libraries(medium):
            found[medium] = lacking
        elif medium in _READERS:
            _READERS[medium]()
    return found


class _Served(NamedTuple):
    """How rows of one kind are answered; their ids are ``ids`` and the row's index."""

    read: Callable[[Any], Any]
    create: Callable[[Any], Awaitable[Any]]
    dump: Callable[[Request, Any], bytes] = _dumped
    ids: str = ""


class GenerationServing:
    """Chat completions, completions and responses."""

    @classmethod
    def check(cls, spec: EngineSpec, config: Any) -> None:
        """The template is text or a file, and the parsers are known and fit the model's tokenizer."""
        refuse_without_libraries(spec.media)
        refuse_other_decoders(config.model_config)
        TemplateOptions.of(spec)
        tools = parser_options(spec, config)
        model = config.model_config
        if is_harmony(model):
            refuse_template_for_harmony(spec.arguments)
        if model.registry.is_transcription_only_model(model.architectures, model):
            raise ConfigError(
                f"this model turns sound into text ({', '.join(model.architectures)}), and nothing else: it "
                "answers rows for /v1/audio/transcriptions and /v1/audio/translations (docs/sound.md)"
            )
        ParserManager.get_parser(
            tool_parser_name=tools["tool_parser"],
            reasoning_parser_name=tools["reasoning_parser"],
            enable_auto_tools=tools["enable_auto_tools"],
            model_name=model.model,
            is_harmony=is_harmony(model),
            tokenizer=None if model.skip_tokenizer_init else cached_tokenizer_from_config(model),
        )

    def __init__(self, spec: EngineSpec, client: StepClient, models: OpenAIServingModels, name: str) -> None:
        from vllm import __version__

        self.model_name = name
        self._only_name, self._adapters = spec.model_name, models.lora_requests
        self._media = media_of(client.model_config, client.renderer, MEDIA)
        self._lacking = _kept_to_files(self._media)
        template, tools = TemplateOptions.of(spec), parser_options(spec, client.vllm_config)
        online = partial(
            OnlineRenderer,
            client.model_config,
            request_logger=None,
            chat_template=template.text,
            chat_template_content_format=template.content_format,
            **tools,
        )
        renderer = online(client.renderer)
        self._chat = OpenAIServingChat(
            client,
            models,
            "assistant",
            online_renderer=renderer,
            request_logger=None,
            chat_template=template.text,
            chat_template_content_format=template.content_format,
            **tools,
        )
        self._completion = OpenAIServingCompletion(
            client, models, online_renderer=renderer, request_logger=None
        )
        # vLLM's own hashes the whole configuration, memory sizes included: other bytes on other machines.
        self._chat.system_fingerprint = self._completion.system_fingerprint = f"vllm-{__version__}"
        # vLLM takes an adapter of the name "text" for that of all texts, and gives it to rows without any.
        self._chat._get_active_default_mm_loras = lambda request: None
        self._style, self._tools = client.vllm_config.structured_outputs_config, tools
        self._is_harmony = is_harmony(client.model_config)
        self._names = TemplateNames(client.renderer, template.text, renderer.parser)
        self._fitter = Fitter(spec.overflow, renderer, client.model_config)
        response_fitter = ResponseFitter(spec.overflow, renderer, client.model_config)
        self._fitters = {Kind.RESPONSE.url: response_fitter}
        responses = Responses(client, models, renderer, template, tools)
        self._served = {
            Kind.CHAT.url: _Served(
                TypeAdapter(ChatCompletionRequest).validate_python, self._chat.create_chat_completion
            ),
            Kind.COMPLETION.url: _Served(
                TypeAdapter(CompletionRequest).validate_python, self._completion.create_completion
            ),
            Kind.RESPONSE.url: _Served(responses.read, responses.create, dumped_response, ids="resp_"),
        }

        self._threads = (
            RenderThreads.of(online, client.vllm_config, client.renderer, client.images)
            if self._media
            else None
        )
        self._rendered: dict[int, Any] = {}  # what they made of requests that are on their way to vLLM
        self._render, renderer.render_chat = renderer.render_chat, self._rendered_or_now

    async def start(self, request: Request) -> Any:
        """Read the body and hand it to vLLM's serving class."""
        self._refuse_unusable(request)
        files = files_in(request) if self._media else ()
        if self._threads is not None and files:
            read = partial(self._read_with_files, request)
            body, overflow, rendered = await self._threads.run(files, read)
            self._rendered[id(body)] = rendered
        else:
            body, overflow = await self._read(request, self._fitters.get(request.url, self._fitter))
        try:
            answer = await self._served[request.url].create(body)
        finally:
            self._rendered.pop(id(body), None)
        if isinstance(answer, ErrorResponse):
            raise refusal_of_response(answer, request.body)
        return answer, overflow

    def _refuse_unusable(self, request: Request) -> None:
        """Refuse what vLLM would take and not honour, or what this node cannot read."""
        # What an input may hold, the class for responses judges; other kinds have none.
        asked = {name: value for name, value in request.body.items() if name != "input"}
        refuse_unusable(asked, self._only_name, self._adapters, media=self._media)
        refuse_other_engines(request, GENERATION)
        refuse_other_style(request.body, self._style)
        if request.url == Kind.CHAT.url:
            self._refuse_chat(request.body)
        if request.url != Kind.COMPLETION.url:
            self._names.refuse_unread(request.body)
        for held in media_in(request.url, request.body) if self._lacking else ():
            if lacking := self._lacking.get(held.medium):
                raise RequestRefused("unsupported_content", told_of(held.medium, lacking), param="messages")

    def _refuse_chat(self, body: dict[str, Any]) -> None:
        refuse_unread_calls(body, self._tools)
        if self._is_harmony:  # its completions take another tokenizer
            refuse_unread_by_harmony(body)
            refuse_long_runs(body)

    async def _read(self, request: Request, fitter: Fitter) -> tuple[Any, Overflow | None]:
        """The body in vLLM's class, made to fit; and what was done to it for that."""
        served = self._served[request.url]
        given, overflow = await fitter.fit(request.url, without_null_choice(request.body))
        body = served.read(given)
        settle(body, request.body, self.model_name, self._adapters)
        if request.body.get("request_id") is None:
            body.request_id = f"{served.ids}{request.index}"
        return body, overflow

    async def _read_with_files(self, request: Request, renderer: OnlineRenderer) -> Any:
        """Read a row in one of the threads: the request, and what its renderer makes of the body."""
        body, overflow = await self._read(request, self._fitter.over(renderer))
        return body, overflow, await renderer.render_chat(body)

    async def _rendered_or_now(self, request: Any, **options: Any) -> Any:
        """What a thread made of a request, or what the engine's own renderer makes of it."""
        found = self._rendered.pop(id(request), None)
        return await self._render(request, **options) if found is None else found

    def response(self, request: Request, answer: Any) -> bytes:
        """Dump vLLM's response model, with everything that changes from run to run pinned."""
        answer, overflow = answer
        answer.model = request.body.get("model") or self.model_name
        dumped = self._served[request.url].dump(request, answer)
        return dumped if overflow is None else overflow.on(dumped)

    def close(self) -> None:
        """End the threads that read the files of rows."""
        if self._threads is not None:
            self._threads.close()
