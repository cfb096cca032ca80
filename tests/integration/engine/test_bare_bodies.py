"""Fields of bodies without an envelope, beside those that vLLM's own class has."""

from __future__ import annotations

import pytest

from dray.requests.columns.bodies import ALWAYS, BESIDE_OTHERS
from dray.requests.sameness import WITHOUT_EFFECT

pytestmark = [pytest.mark.integration, pytest.mark.heavy(one_of=3)]


def test_every_field_of_vllms_chat_request_is_known() -> None:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    fields = set(ChatCompletionRequest.model_fields) - {"messages"}
    assert fields - ALWAYS - BESIDE_OTHERS - WITHOUT_EFFECT == set()
