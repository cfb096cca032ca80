"""The committed model answers held-out tickets, in plain transformers and in vLLM alike."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.tickets import generate
from examples.tickets.generate import Ticket, held_out_tickets

pytestmark = pytest.mark.integration

MODEL = Path(generate.__file__).parent / "model"
COUNT = 300

# In a process of its own: vLLM binds threads and sets up torch as only the first in a process can.
VLLM = """
import json, sys
from vllm import LLM, SamplingParams
model, texts = sys.argv[1], json.load(sys.stdin)
llm = LLM(model=model, dtype="float32", max_model_len=512, enforce_eager=True)
chats = [[{"role": "user", "content": text}] for text in texts]
found = llm.chat(chats, SamplingParams(temperature=0, max_tokens=48), use_tqdm=False)
print("ANSWERS" + json.dumps([output.outputs[0].text for output in found]))
"""


@pytest.fixture(scope="module")
def tickets() -> list[Ticket]:
    return held_out_tickets()[:COUNT]


@pytest.fixture(scope="module")
def reference(tickets: list[Ticket]) -> list[str]:
    from examples.tickets.reference import greedy_answers, load

    return greedy_answers(*load(), [ticket.text for ticket in tickets])


def test_at_least_95_percent_are_right_in_all_fields(tickets: list[Ticket], reference: list[str]) -> None:
    right = sum(a == t.label.as_json() for a, t in zip(reference, tickets, strict=True))
    assert right >= 0.95 * COUNT


def test_answers_do_not_depend_on_the_batch(tickets: list[Ticket], reference: list[str]) -> None:
    from examples.tickets.reference import greedy_answers, load

    texts = [ticket.text for ticket in tickets[:20]]
    assert greedy_answers(*load(), texts, batch_size=1) == reference[:20]


def test_a_system_message_is_understood(tickets: list[Ticket]) -> None:
    from examples.tickets.phrases import SYSTEM_MESSAGES
    from examples.tickets.reference import load

    model, tokenizer = load()
    right = 0
    for ticket in tickets[:20]:
        messages = [
            {"role": "system", "content": SYSTEM_MESSAGES[0]},
            {"role": "user", "content": ticket.text},
        ]
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")
        new = model.generate(**ids, do_sample=False, max_new_tokens=48)[0, ids["input_ids"].shape[1] :]
        right += tokenizer.decode(new, skip_special_tokens=True) == ticket.label.as_json()
    assert right >= 17


def test_vllm_answers_byte_for_byte_like_transformers(tickets: list[Ticket], reference: list[str]) -> None:
    pytest.importorskip("vllm")
    run = subprocess.run(
        [sys.executable, "-c", VLLM, str(MODEL)],
        input=json.dumps([ticket.text for ticket in tickets]),
        env=os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    answers = next(line for line in run.stdout.splitlines() if line.startswith("ANSWERS"))
    assert json.loads(answers.removeprefix("ANSWERS")) == reference
