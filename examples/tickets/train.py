"""Train the tickets model on CPU.

    python -m examples.tickets.train            # train, save to examples/tickets/model, print the accuracy
    python -m examples.tickets.train --check    # only print the accuracy of the saved model

Every ticket of the training stream is seen once. The loss is that of the answer, and a little of that of
the ticket itself, which teaches the words faster. Matrices are trained by Muon, which gets further in few
steps, the rest by AdamW. Products are computed in bfloat16, in two thirds of the time on processors with
AVX512-BF16; weights are kept, saved and used in float32.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from examples.tickets import phrases
from examples.tickets.generate import (
    TRAINING_SEED,
    TRAINING_TICKETS,
    Ticket,
    held_out_tickets,
    training_tickets,
)
from examples.tickets.reference import MODEL, greedy_answers, load
from examples.tickets.vocabulary import ASSISTANT, END, SYSTEM, TOKENIZER_TICKETS, USER, train_tokenizer

MAX_LENGTH = 512
SYSTEM_SHARE = 0.1  # of the training tickets come with a system message

BATCH_TOKENS = 4096
CHUNK = 2048  # tickets sorted by length together, so that batches need little padding
PEAK_RATE = 2e-3  # of AdamW, units of its step
MUON_RATE = 1e-2
WARM_UP = 0.05  # share of the run
LAST_RATE = 0.02  # of the peak
TICKET_LOSS = 0.2  # weight of the loss on the ticket, beside 1 for the answer
REPORT_EVERY = 50  # steps


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Token ids of prompt and answer, and where the answer starts."""

    ids: list[int]
    answer_at: int


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Token ids padded on the right; ``progress`` is the share of the run that lies behind."""

    ids: torch.Tensor
    in_ticket: torch.Tensor
    in_answer: torch.Tensor
    progress: float


def new_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """1.5 million parameters, with heads of 32: a size that vLLM's CPU attention takes."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=160,
        intermediate_size=448,
        num_hidden_layers=4,
        num_attention_heads=5,
        num_key_value_heads=5,
        head_dim=32,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        initializer_range=0.04,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        do_sample=False, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    )
    return model


def batches(tokenizer: PreTrainedTokenizerFast, seed: int, tickets: int) -> Iterator[Batch]:
    """The training stream in batches of about ``BATCH_TOKENS``."""
    stream = training_tickets(tickets, seed)
    rng = random.Random(seed)
    done = 0
    while chunk := list(itertools.islice(stream, CHUNK)):
        groups = _groups(_encode(tokenizer, chunk, rng))
        rng.shuffle(groups)
        for group in groups:
            yield _batch(group, tokenizer.pad_token_id, done / tickets)
            done += len(group)


def _encode(
    tokenizer: PreTrainedTokenizerFast, tickets: Sequence[Ticket], rng: random.Random
) -> list[Sample]:
    prompts = [f"{_system(rng)}{USER}{ticket.text}{END}{ASSISTANT}" for ticket in tickets]
    answers = [f"{ticket.label.as_json()}{END}" for ticket in tickets]
    heads = tokenizer(prompts, add_special_tokens=False)["input_ids"]
    tails = tokenizer(answers, add_special_tokens=False)["input_ids"]
    return [Sample(ids=head + tail, answer_at=len(head)) for head, tail in zip(heads, tails, strict=True)]


def _system(rng: random.Random) -> str:
    return f"{SYSTEM}{rng.choice(phrases.SYSTEM_MESSAGES)}{END}" if rng.random() < SYSTEM_SHARE else ""


def _groups(samples: list[Sample]) -> list[list[Sample]]:
    groups: list[list[Sample]] = [[]]
    for sample in sorted(samples, key=lambda sample: len(sample.ids)):
        if groups[-1] and (len(groups[-1]) + 1) * len(sample.ids) > BATCH_TOKENS:
            groups.append([])
        groups[-1].append(sample)
    return groups


def _batch(group: list[Sample], pad: int, progress: float) -> Batch:
    length = max(len(sample.ids) for sample in group)
    ids = torch.tensor([sample.ids + [pad] * (length - len(sample.ids)) for sample in group])
    place = torch.arange(length)
    answer_at = torch.tensor([[sample.answer_at] for sample in group])
    end = torch.tensor([[len(sample.ids)] for sample in group])
    return Batch(
        ids=ids,
        in_ticket=place < answer_at,
        in_answer=(place >= answer_at) & (place < end),
        progress=progress,
    )


def train(model: LlamaForCausalLM, stream: Iterator[Batch]) -> None:
    """One pass over ``stream``, in place; prints the loss of the answers now and then."""
    optimizers = _optimizers(model)
    peaks = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
    model.train()
    begin = time.monotonic()
    for step, batch in enumerate(stream):
        for group, peak in zip((g for o in optimizers for g in o.param_groups), peaks, strict=True):
            group["lr"] = peak * _rate(batch.progress)
        answer_loss, ticket_loss = _losses(model, batch)
        torch.autograd.backward(answer_loss + TICKET_LOSS * ticket_loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if step % REPORT_EVERY == 0:
            seconds = time.monotonic() - begin
            where = f"{seconds:6.0f} s  {batch.progress:4.0%}  step {step:5d}"
            print(f"{where}  loss {answer_loss.item():.4f}", flush=True)


def _optimizers(model: LlamaForCausalLM) -> list[torch.optim.Optimizer]:
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    rest = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    return [
        torch.optim.Muon(matrices, lr=MUON_RATE, weight_decay=0.05, momentum=0.9, adjust_lr_fn="original"),
        torch.optim.AdamW(rest, lr=PEAK_RATE, weight_decay=0.0, betas=(0.9, 0.98)),
    ]


def _losses(model: LlamaForCausalLM, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean loss per token of the answers, and of the tickets."""
    # Padding stands on the right, where causal attention never looks: no mask is needed.
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(input_ids=batch.ids, use_cache=False).logits[:, :-1]
    losses = cross_entropy(logits.float().flatten(0, 1), batch.ids[:, 1:].flatten(), reduction="none")
    losses = losses.view(batch.ids.shape[0], -1)
    return losses[batch.in_answer[:, 1:]].mean(), losses[batch.in_ticket[:, 1:]].mean()


def _rate(progress: float) -> float:
    """Share of the peak: linear warm-up, then half a cosine."""
    if progress < WARM_UP:
        return max(progress, 1e-3) / WARM_UP
    wave = 0.5 * (1 + math.cos(math.pi * (progress - WARM_UP) / (1 - WARM_UP)))
    return LAST_RATE + (1 - LAST_RATE) * wave


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write weights, configuration and tokenizer, the chat template inside its configuration."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder, save_jinja_files=False)
    for path in folder.iterdir():
        path.chmod(0o644)  # the weights are written for their owner alone


def accuracy(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> float:
    """The share of the held-out tickets that are answered byte for byte right."""
    tickets = held_out_tickets()
    answers = greedy_answers(model, tokenizer, [ticket.text for ticket in tickets])
    right = sum(answer == ticket.label.as_json() for answer, ticket in zip(answers, tickets, strict=True))
    return right / len(tickets)


def main() -> None:
    """Train and save, or only check; then print the accuracy."""
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    begin = time.monotonic()
    if not arguments.check:
        seed, tickets = arguments.seed, arguments.tickets
        tokenizer = train_tokenizer(training_tickets(TOKENIZER_TICKETS, seed), MAX_LENGTH)
        model = new_model(tokenizer, seed)
        print(f"seed {seed}: {model.num_parameters():,} parameters, {tickets:,} tickets", flush=True)
        train(model, batches(tokenizer, seed, tickets))
        save(model, tokenizer, arguments.output)
        print(f"trained in {time.monotonic() - begin:.0f} s, saved in {arguments.output}", flush=True)
    print(f"held-out tickets right in all three fields: {accuracy(*load(arguments.output)):.2%}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="train nothing, evaluate the saved model")
    parser.add_argument("--tickets", type=int, default=TRAINING_TICKETS)
    parser.add_argument("--seed", type=int, default=TRAINING_SEED)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--output", type=Path, default=MODEL, help="folder of the model")
    return parser.parse_args()


if __name__ == "__main__":
    main()
