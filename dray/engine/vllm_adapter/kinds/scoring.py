"""Scores and rankings by vLLM's own pooling classes: of cross-encoders, and of models that embed."""

from __future__ import annotations

from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.pooling.scoring import protocol
from vllm.entrypoints.pooling.scoring.serving import ServingScores
from vllm.entrypoints.pooling.utils import enable_scoring_api
from vllm.exceptions import VLLMValidationError
from vllm.renderers.chat_utils import ChatTemplateConfig

from dray.engine.protocol import EngineSpec
from dray.engine.vllm_adapter.client import StepClient
from dray.engine.vllm_adapter.errors import is_the_engines, is_too_long
from dray.engine.vllm_adapter.kinds.pooling import PoolingServing, classifies
from dray.engine.vllm_adapter.media.rendering import RenderThreads
from dray.engine.vllm_adapter.overflow import SpecialKept
from dray.errors import ConfigError, RequestRefused
from dray.kinds import KINDS, SCORING
from dray.kinds.scoring import FORMS, Form, form_of
from dray.requests.model import Request
from dray.requests.overflow import Overflow

_CLASSES: dict[Form, Any] = {
    ("queries", "documents"): protocol.ScoreQueriesDocumentsRequest,
    ("queries", "items"): protocol.ScoreQueriesItemsRequest,
    ("text_1", "text_2"): protocol.ScoreTextRequest,
    ("data_1", "data_2"): protocol.ScoreDataRequest,
    ("query", "documents"): protocol.RerankRequest,
}
_FOR_TEMPLATES = ("instruction", "chat_template_kwargs")
_RESERVED = frozenset({"chat_template", "tools", "tokenize"})  # vLLM names them in an order that changes
_LENGTHS = ("max_tokens_per_query", "max_tokens_per_doc")
_NUMBERS = ("top_n", *_LENGTHS)  # vLLM takes no null for them, as pandas writes it where a row has none
_TRIES = 4  # two tokens can become three where a text is cut between them


class ScoringServing(PoolingServing):
    """Each document held against its query. Late interaction is computed here, not in the engine."""

    engine = SCORING

    @classmethod
    def _check_model(cls, spec: EngineSpec, model: Any) -> None:
        if classifies(model) and getattr(model.hf_config, "num_labels", 0) != 1:
            raise _no_scores(model)
        given = spec.arguments.keys() & {"convert", "hf_overrides"}
        if not given and model._get_default_runner_type(model.architectures) == "generate":
            raise ConfigError(
                f"this model generates ({', '.join(model.architectures)}): as it is, a score would be the "
                "angle between two of its hidden states. A reranker that is published as such a model needs "
                "the engine argument hf_overrides (docs/scores.md); convert=embed makes a model of "
                "embeddings of it"
            )

    def _of_vllm(self, client: StepClient, models: OpenAIServingModels, template: ChatTemplateConfig) -> Any:
        tasks = client.engine.get_supported_tasks()
        if not enable_scoring_api(tasks, client.model_config):
            raise _no_scores(client.model_config)
        return ServingScores(
            client,
            models,
            supported_tasks=tasks,
            enable_flash_late_interaction=False,
            request_logger=None,
            chat_template_config=template,
        )

    def _render_threads(self) -> RenderThreads | None:
        """One: making tokens of texts holds the interpreter's lock most of the time, and two are slower."""
        config, own = self._client.vllm_config, self._client.renderer
        return RenderThreads.of(self._processor_over, config, own, self._client.images, most=1)

    def _processor_over(self, renderer: Any) -> Any:
        """vLLM's processor of pairs, with a renderer of its own."""
        processor = self._serving.init_io_processor(
            vllm_config=self._client.vllm_config,
            renderer=renderer,
            chat_template_config=self._serving.chat_template_config,
        )
        # vLLM's processor takes a fifth of its time to decode the tokens of each pair, and drops the text.
        processor.tokenizer = copy(processor.tokenizer)
        processor.tokenizer.decode = lambda *given, **options: ""
        return processor

    def _read(self, request: Request) -> Any:
        kind = KINDS[request.url]
        form = form_of(kind.name, request.body)
        if form is None:
            forms = " or ".join(f"`{queries}` and `{documents}`" for queries, documents in FORMS[kind.name])
            raise RequestRefused("invalid_request", f"the body needs {forms}")
        for name in form:
            _refuse_other_than_texts(name, request.body[name])
        self._refuse_unusable_fields(request.body)
        body = request.body.items()
        nulls = {*kind.texts, *_NUMBERS}
        read = _CLASSES[form].model_validate(
            {name: value for name, value in body if value is not None or name not in nulls}
        )
        self._refuse_long_parts(read)
        return read

    def _refuse_unusable_fields(self, body: dict[str, Any]) -> None:
        for name in _FOR_TEMPLATES:
            if body.get(name) and not self._reads_instructions:
                raise RequestRefused(
                    "unsupported_field",
                    f"`{name}` cannot be honoured: it is for a template, and this engine has none for pairs",
                    param=name,
                )
        options = body.get("chat_template_kwargs")
        if isinstance(options, dict) and not _RESERVED.isdisjoint(options):
            told = f"`chat_template_kwargs` may hold none of {', '.join(sorted(_RESERVED))}"
            raise RequestRefused("unsupported_field", told, param="chat_template_kwargs")

    def _refuse_long_parts(self, read: Any) -> None:
        """Judged as vLLM read them: 512.0 is 512."""
        context = self._client.model_config.max_model_len
        for name in _LENGTHS:
            if getattr(read, name) >= context:
                told = f"`{name}` must be less than the context of {context:,} tokens"
                raise RequestRefused("invalid_request", told, param=name)

    @property
    def _reads_instructions(self) -> bool:
        processor = self._serving.io_processor
        templated = processor.name == "cross-encoder" and processor.chat_template is not None
        return templated or processor.name == "jina-reranking-scoring"

    async def _cut(self, body: Any, processor: Any) -> tuple[Any, Overflow] | None:
        """The end of each document is cut that does not fit beside its query."""
        if self._overflow != "cut-tail":
            return None
        try:
            cut = partial(self._cut_part, processor)
            return await self._prepare(body, processor, cut), Overflow(done="cut-tail")
        except Exception as error:  # whatever is wrong with a body, vLLM said when it was asked first
            if is_the_engines(error):
                raise
            return None

    def _cut_part(self, processor: Any, context: Any, number: int, part: Any) -> Any:
        """The prompt of a pair, or of one side; as it is where it fits.

        Raises:
            VLLMValidationError: it cannot be made to fit.
        """
        try:
            return processor.render(part)
        except VLLMValidationError as error:
            if not is_too_long(error):
                raise
            if "data_2" in part:
                return self._cut_pair(processor, part, error)
            if number < (context.n_queries or 0):  # a query stays whole, and so does what holds all documents
                raise
            side = "right" if processor.tokenizer.truncation_side != "right" else None
            whole = SpecialKept.of(part["tok_params"])
            cut = replace(whole, truncate_prompt_tokens=-1, truncation_side=side)
            return processor.render({**part, "tok_params": cut})

    def _cut_pair(self, processor: Any, part: Any, error: VLLMValidationError) -> Any:
        """A pair with as much of its document as fits beside the query, and what is put around both."""
        given = part["max_tokens_per_doc"]
        shortest = processor.render({**part, "max_tokens_per_doc": 1})
        room = self._client.model_config.max_model_len - len(shortest["prompts"]["prompt_token_ids"]) + 1
        for tokens in range(room, max(0, room - _TRIES), -1):
            with suppress(VLLMValidationError):
                return processor.render({**part, "max_tokens_per_doc": min(tokens, given or tokens)})
        raise error


def _no_scores(model: Any) -> ConfigError:
    return ConfigError(
        f"this model gives no scores: its config names {', '.join(model.architectures)}. A model for "
        "embeddings gives some, and a cross-encoder or reranker of one class (num_labels 1)"
    )


def _refuse_other_than_texts(name: str, value: Any) -> None:
    """What is no text may name a file, which vLLM would fetch."""
    listed = value if isinstance(value, list) else [value]
    if not listed:
        raise RequestRefused("invalid_request", f"`{name}` is empty", param=name)
    if not all(isinstance(one, str) for one in listed):
        raise RequestRefused("unsupported_content", f"`{name}` holds texts only", param=name)
