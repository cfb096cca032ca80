"""Classes by vLLM's own pooling classes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, TypeAdapter
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.pooling.classify import protocol
from vllm.entrypoints.pooling.classify.serving import ServingClassification
from vllm.renderers.chat_utils import ChatTemplateConfig

from dray.engine.protocol import EngineSpec
from dray.engine.vllm_adapter.client import StepClient
from dray.engine.vllm_adapter.kinds.pooling import PoolingServing
from dray.errors import ConfigError
from dray.kinds import CLASSIFYING
from dray.requests.model import Request

_removed = BeforeValidator(protocol.reject_removed_pooling_parameters)
_read_chat = TypeAdapter(Annotated[protocol.ClassificationChatRequest, _removed]).validate_python
_read_texts = TypeAdapter(Annotated[protocol.ClassificationCompletionRequest, _removed]).validate_python


class ClassificationServing(PoolingServing):
    """Which of the model's labels a text or a conversation has."""

    engine = CLASSIFYING

    @classmethod
    def _check_model(cls, spec: EngineSpec, model: Any) -> None:
        if model.convert_type == "embed":
            raise _no_classes(model)

    def _of_vllm(self, client: StepClient, models: OpenAIServingModels, template: ChatTemplateConfig) -> Any:
        if "classify" not in client.engine.get_supported_tasks():
            raise _no_classes(client.model_config)
        return ServingClassification(client, models, request_logger=None, chat_template_config=template)

    def _read(self, request: Request) -> Any:
        body = {
            name: value for name, value in request.body.items() if value is not None or name != "messages"
        }
        return (_read_chat if "messages" in body else _read_texts)(body)


def _no_classes(model: Any) -> ConfigError:
    return ConfigError(
        f"this model gives no classes: its config names {', '.join(model.architectures)}, and classification "
        "needs a head for it (...ForSequenceClassification)"
    )
