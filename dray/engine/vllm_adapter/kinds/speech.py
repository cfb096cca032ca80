"""Sound into text by vLLM's own serving classes, with the slow parts in threads of their own.

vLLM decodes a sound, cuts it into chunks of what its model takes at once (30 s for Whisper), and makes
features of each. Rows that name no language have it told from the first chunk, by a request of its own. Then
all chunks are in the engine at once, and their texts are joined.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from copy import copy
from typing import Any

from vllm.entrypoints.launchers.run_batch import BatchTranscriptionRequest, BatchTranslationRequest
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.entrypoints.speech_to_text.base import serving as base
from vllm.entrypoints.speech_to_text.transcription.serving import OpenAIServingTranscription
from vllm.entrypoints.speech_to_text.translation.serving import OpenAIServingTranslation
from vllm.renderers.inputs.preprocess import parse_model_prompt

from dray.engine.decoders import refuse_without_libraries
from dray.engine.protocol import EngineSpec
from dray.engine.vllm_adapter.client import StepClient, merge_in_turn
from dray.engine.vllm_adapter.errors import refusal_of_response
from dray.engine.vllm_adapter.fields import refuse_other_engines, refuse_unusable, settle
from dray.engine.vllm_adapter.media.images import tell_once
from dray.engine.vllm_adapter.media.rendering import RenderThreads
from dray.engine.vllm_adapter.media.sounds import chunks_of, read_files_alone
from dray.errors import ConfigError, RequestRefused
from dray.kinds import KINDS, SPEECH, Kind
from dray.kinds.speech import SOUND
from dray.requests.media.medium import SOUNDS, is_data
from dray.requests.model import Request

_FORMATS = ("json", "text", "verbose_json", "diarized_json")
_OF_BEAMS = {"n": (None, 1), "include_stop_str_in_output": (None, False), "length_penalty": (None, 1)}

Render = Callable[[Any], Coroutine[Any, Any, Any]]


class SpeechServing:
    """Transcriptions and translations."""

    @classmethod
    def check(cls, spec: EngineSpec, config: Any) -> None:
        """The model turns sound into text, and the libraries that decode sound are there.

        Raises:
            ConfigError: one of these is not so.
        """
        model = config.model_config
        if not model.registry.is_transcription_model(model.architectures, model):
            raise ConfigError(
                f"this model ({', '.join(model.architectures)}) does not turn sound into text: rows for "
                "/v1/audio/transcriptions and /v1/audio/translations need Whisper, or another model that "
                "vLLM lists for transcription"
            )
        refuse_without_libraries((SOUNDS,))

    def __init__(self, spec: EngineSpec, client: StepClient, models: OpenAIServingModels, name: str) -> None:
        self.model_name = name
        self._only_name, self._adapters = spec.model_name, models.lora_requests
        self._client = client
        self._threads = RenderThreads.of(_itself, client.vllm_config, client.renderer, client.images)
        base.merge_async_iterators = merge_in_turn
        read_files_alone()
        tell_once(base.__name__)  # each language that is heard
        self._served: dict[str, tuple[Any, Any, str]] = {
            Kind.TRANSCRIPTION.url: (
                BatchTranscriptionRequest,
                _Transcription(client, models, request_logger=None),
                "create_transcription",
            ),
            Kind.TRANSLATION.url: (
                BatchTranslationRequest,
                _Translation(client, models, request_logger=None),
                "create_translation",
            ),
        }

    async def start(self, request: Request) -> Any:
        """Read the body and hand it to vLLM's serving class."""
        refuse_other_engines(request, SPEECH)
        refuse_unusable(request.body, self._only_name, self._adapters)
        read, serving, create = self._served[KINDS[request.url].url]
        self._refuse_without_effect(request.body, serving.model_cls)
        body = read.model_validate(dict(request.body))  # vLLM's validators change it
        settle(body, request.body, self.model_name, self._adapters)
        answer = await getattr(self._of_row(serving, request.index), create)(body.file_url, body)
        if isinstance(answer, ErrorResponse):
            raise refusal_of_response(answer, request.body)
        return answer

    def _of_row(self, serving: Any, index: int) -> Any:
        """vLLM's serving class for one row, whose slow parts run in one thread: its cache knows the sound."""

        def run(read: Render) -> Awaitable[Any]:
            return read(self._client.renderer) if self._threads is None else self._threads.run(index, read)

        own = copy(serving)
        own._decode_and_chunk_speech_async = lambda url: run(lambda _: _chunks(serving, url))
        own.renderer = _Renderer(run)
        own.engine_client = _Client(self._client, own.renderer)
        return own

    def _refuse_without_effect(self, body: dict[str, Any], model: Any) -> None:
        """Refuse what vLLM's classes take, and this model or any other ignores."""
        url = body.get(SOUND)
        if "file" in body:
            told = f"`file` is for uploads: give `{SOUND}`, a data URL, or a name below --audio-root"
            raise RequestRefused("unsupported_field", told, param="file")
        if not isinstance(url, str) or not is_data(url):
            told = f"`{SOUND}` must be a text: a data URL, or a name below --audio-root"
            raise RequestRefused(SOUNDS.invalid, told, param=SOUND)
        if body.get("response_format", "json") not in _FORMATS:
            told = f"response_format: vLLM gives {', '.join(_FORMATS)} here"
            raise RequestRefused("invalid_request", told, param="response_format")
        for name, idle in _OF_BEAMS.items():
            if body.get(name) not in idle:
                told = f"`{name}` is for beam search, which is not offered in a batch"
                raise RequestRefused("unsupported_field", told, param=name)
        for name in ("hotwords", "to_language"):
            if body.get(name) and name not in model.get_generation_prompt.__code__.co_names:
                told = f"`{name}` cannot be honoured: this model takes none"
                raise RequestRefused("unsupported_field", told, param=name)
        grain = body.get("timestamp_granularities[]")
        if isinstance(grain, list) and "word" in grain:
            told = "vLLM tells no times of words; leave `word` out of `timestamp_granularities[]`"
            raise RequestRefused("unsupported_field", told, param="timestamp_granularities[]")

    def response(self, request: Request, answer: Any) -> bytes:
        """vLLM's response: nothing in it changes from run to run."""
        dumped: bytes = answer.__pydantic_serializer__.to_json(answer)
        return dumped

    def close(self) -> None:
        """End the threads that read sound."""
        if self._threads is not None:
            self._threads.close()
        for _, serving, _ in self._served.values():
            serving.shutdown()


class _OfBatches:
    """What both of vLLM's classes are given here."""

    def _get_verbose_segments(self, tokens: Any, *args: Any, **options: Any) -> Any:
        """None where the model says nothing at all; vLLM looks for a token before the end."""
        if len(tokens) == 1 and tokens[0] == self.tokenizer.eos_token_id:  # type: ignore[attr-defined]
            return []
        return super()._get_verbose_segments(tokens, *args, **options)  # type: ignore[misc]


class _Transcription(_OfBatches, OpenAIServingTranscription):  # type: ignore[misc]  # vLLM has no types
    """vLLM's transcriptions."""


class _Translation(_OfBatches, OpenAIServingTranslation):  # type: ignore[misc]
    """vLLM's translations."""


class _Renderer:
    """What a row sees of a renderer: ``run`` has it do its work where it is to be done."""

    def __init__(self, run: Callable[[Render], Awaitable[Any]]) -> None:
        self._run = run

    async def render_cmpl_async(self, prompts: Any) -> Any:
        """Inputs of the engine for parsed prompts."""

        async def render(renderer: Any) -> Any:
            return renderer.render_cmpl(prompts)

        return await self._run(render)


class _Client:
    """What a row sees of the step client: it takes prompts that are not rendered yet, too."""

    def __init__(self, client: StepClient, renderer: _Renderer) -> None:
        self._client = client
        self._renderer = renderer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def generate(self, prompt: Any, params: Any, request_id: str, **options: Any) -> Any:
        """The ticket for a prompt."""
        if isinstance(prompt, dict) and "type" in prompt:
            return self._client.generate(prompt, params, request_id, **options)
        return _Once(self._rendered(prompt, params, request_id, **options))

    async def _rendered(self, prompt: Any, params: Any, request_id: str, **options: Any) -> Any:
        parsed = parse_model_prompt(self._client.model_config, prompt)
        (rendered,) = await self._renderer.render_cmpl_async([parsed])
        return await self._client.generate(rendered, params, request_id, **options)


class _Once:
    """An async iterator of one element."""

    def __init__(self, element: Coroutine[Any, Any, Any]) -> None:
        self._element: Coroutine[Any, Any, Any] | None = element

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        if self._element is None:
            raise StopAsyncIteration
        element, self._element = self._element, None
        return await element


async def _chunks(serving: Any, url: str) -> tuple[list[Any], float]:
    return chunks_of(serving, url)


def _itself(renderer: Any) -> Any:
    return renderer
