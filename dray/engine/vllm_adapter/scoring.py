"""Scores and rankings by vLLM's own pooling classes: of cross-encoders, and of models that embed."""

from __future__ import annotations

from typing import Any

import orjson
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.pooling.scoring import protocol
from vllm.entrypoints.pooling.scoring.serving import ServingScores
from vllm.entrypoints.pooling.utils import enable_scoring_api
from vllm.renderers.chat_utils import ChatTemplateConfig

from dray.engine.vllm_adapter.client import StepClient
from dray.engine.vllm_adapter.errors import is_the_engines
from dray.engine.vllm_adapter.pooling import PoolingServing
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
_TRIES = 4  # two tokens can become three where a text is cut between them


class ScoringServing(PoolingServing):
    """Each document held against its query. Late interaction is computed here, not in the engine."""

    engine = SCORING

    @classmethod
    def _check_model(cls, model: Any) -> None:
        classifies = model.convert_type == "classify" or "Classification" in model.architectures[0]
        if classifies and getattr(model.hf_config, "num_labels", 0) != 1:
            raise _no_scores(model)

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

    def _read(self, request: Request) -> Any:
        kind = KINDS[request.url].name
        form = form_of(kind, request.body)
        if form is None:
            forms = " or ".join(f"`{queries}` and `{documents}`" for queries, documents in FORMS[kind])
            raise RequestRefused("invalid_request", f"the body needs {forms}")
        for name in form:
            _refuse_other_than_texts(name, request.body[name])
        return _CLASSES[form].model_validate(request.body)

    def _content(self, response: Any) -> dict[str, Any]:
        content: dict[str, Any] = orjson.loads(response.body)
        return content

    async def _cut(self, body: Any) -> tuple[Any, Overflow] | None:
        """The ends of the documents are cut, so that the longest pair fits."""
        if self._overflow != "cut-tail":
            return None
        given = body.max_tokens_per_doc
        most = await self._room(body)
        for tokens in range(most, max(0, most - _TRIES), -1):
            body.max_tokens_per_doc = min(tokens, given or tokens)
            if (context := await self._fits(body)) is not None:
                return context, Overflow(done="cut-tail")
        return None

    async def _room(self, body: Any) -> int:
        """Tokens of a document that fit beside the longest query, and what the model puts around both."""
        body.max_tokens_per_doc = 1
        context = await self._fits(body)
        if context is None:
            return 0
        with_documents = context.engine_inputs[context.n_queries or 0 :]
        longest = max(len(part["prompts"]["prompt_token_ids"]) for part in with_documents)
        return int(self._client.model_config.max_model_len - longest) + 1

    async def _fits(self, body: Any) -> Any:
        """The rendered prompts, or None where one is too long."""
        try:
            return await self._prepare(body)
        except Exception as error:  # whatever is wrong with a body, vLLM said when it was asked first
            if is_the_engines(error):
                raise
            return None


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
