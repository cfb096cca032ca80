"""vLLM's own OpenAI serving layer, driven by our step loop instead of an event loop.

vLLM's serving classes read bodies, apply chat templates, build sampling parameters and answers: the
whole contract of its endpoint. They are coroutines over an ``EngineClient``. Here the client puts
requests straight into a synchronous ``LLMEngine`` and its outputs are awaited through a `Ticket`,
so that a request is one coroutine that stops once, when its prompt is in the engine, and runs to
its end once the engine is done with it. No event loop, no threads, no second reading of the contract.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator
from typing import Any, TypeVar

from vllm.entrypoints.openai.completion import serving as completion_serving
from vllm.v1.engine.llm_engine import LLMEngine

from dray.engine.grammars import Grammars
from dray.engine.vllm_adapter.core.timings import Timings, Waits
from dray.engine.vllm_adapter.grammars import grammar_of
from dray.engine.vllm_adapter.media.decoded import begin_row
from dray.engine.vllm_adapter.media.images import ImageSettings
from dray.engine.vllm_adapter.runner_limits import refuse_beyond_buffers
from dray.errors import EngineDeadError, RequestRefused

T = TypeVar("T")


class Ticket:
    """The final output of one engine request, to be awaited: an async iterator of one element."""

    def __init__(self, engine_id: str) -> None:
        self.engine_id = engine_id
        self.output: Any = None
        self.has_grammar = False
        self.core_id = ""  # of the first of its samples
        self.waits = Waits()
        self._taken = False

    def __await__(self) -> Generator[Ticket, None, Any]:
        while self.output is None:
            yield self
        return self.output

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        if self._taken:
            raise StopAsyncIteration
        self._taken = True
        return await self

    async def aclose(self) -> None:
        """An async generator has this method; there is nothing to close."""


class StepClient:
    """The part of vLLM's ``EngineClient`` that its serving classes use, over an ``LLMEngine``."""

    errored = False
    dead_error = EngineDeadError("the engine is dead")

    def __init__(self, engine: LLMEngine, images: ImageSettings) -> None:
        self.engine = engine
        self.vllm_config = engine.vllm_config
        self.model_config = engine.model_config
        self.renderer = engine.renderer
        self.input_processor = engine.input_processor
        self.tickets: dict[str, Ticket] = {}
        self.opened: list[Ticket] = []  # tickets of the request that is being submitted
        self._count = 0
        self._timings = Timings(engine)
        self.images = images
        images.prepare(engine.renderer, engine.model_config)
        self.grammars: Grammars | None = None  # whose limits the grammars of rows must keep

    def check_admission(self, n: int = 1) -> None:
        """Admission is bounded by the step loop."""

    @property
    def progress(self) -> int:
        """A number that changes as long as the engine computes."""
        return self._timings.progress

    def generate(
        self,
        prompt: Any,
        sampling_params: Any,
        request_id: str,
        *,
        lora_request: Any = None,
        priority: int = 0,
        session_id: str | None = None,
        reasoning_ended: bool | None = None,
        reasoning_parser_kwargs: dict[str, Any] | None = None,
        **_: Any,
    ) -> Ticket:
        """Put a prompt into the engine at once; the ticket gives its final output.

        Raises:
            GrammarPending: it is not known yet whether the engine may compile the row's grammar.
            RequestRefused: it may not, or vLLM's asynchronous engine would refuse the row, or end by it.
        """
        if sampling_params.prompt_logprobs and self.vllm_config.cache_config.kv_sharing_fast_prefill:
            raise _wrong_logprobs()
        if sampling_params.logprob_token_ids and not self.vllm_config.use_v2_model_runner:
            raise _wrong_logprobs_of_others()
        grammar = grammar_of(sampling_params.structured_outputs) if self.grammars is not None else None
        if self.grammars is not None and grammar is not None:
            self.grammars.require(grammar)
        processed = self.input_processor.process_inputs(
            request_id,
            prompt,
            sampling_params,
            supported_tasks=self.engine.get_supported_tasks(),
            lora_request=lora_request,
            priority=priority,
            session_id=session_id,
        )
        refuse_beyond_buffers(processed.params, self.vllm_config)
        if reasoning_ended is not None:
            processed.reasoning_ended = reasoning_ended
        if reasoning_parser_kwargs is not None:
            processed.reasoning_parser_kwargs = reasoning_parser_kwargs
        return self._enter(processed, prompt)

    def encode(
        self, prompt: Any, pooling_params: Any, *, lora_request: Any = None, priority: int = 0
    ) -> Ticket:
        """Put a prompt for a pooling model (embeddings) into the engine."""
        processed = self.input_processor.process_inputs(
            "pooling",
            prompt,
            pooling_params,
            supported_tasks=self.engine.get_supported_tasks(),
            lora_request=lora_request,
            priority=priority or 0,
        )
        return self._enter(processed, prompt)

    def _enter(self, processed: Any, prompt: Any) -> Ticket:
        # An id of our own: two rows may carry the same request_id.
        self._count += 1
        ticket = Ticket(str(self._count))
        processed.request_id = ticket.engine_id
        text = prompt.get("prompt") if isinstance(prompt, dict) else None
        ticket.has_grammar = getattr(processed.params, "structured_outputs", None) is not None
        core_id = self.engine.add_request(ticket.engine_id, processed, processed.params, prompt_text=text)
        ticket.core_id = core_id if getattr(processed.params, "n", 1) == 1 else f"0_{core_id}"
        ticket.waits = self._timings.expect(ticket.core_id)
        self.tickets[ticket.engine_id] = ticket
        self.opened.append(ticket)
        return ticket

    def landed(self, engine_id: str) -> Ticket | None:
        """The ticket whose output came, with a token or without; None for one that is not awaited."""
        ticket = self.tickets.pop(engine_id, None)
        if ticket is not None:
            self._timings.forget(ticket.core_id)
        return ticket

    def abort(self, tickets: list[Ticket]) -> None:
        """Take prompts out of the engine."""
        for ticket in tickets:
            self.landed(ticket.engine_id)
        self.engine.abort_request([ticket.engine_id for ticket in tickets])


def _wrong_logprobs() -> RequestRefused:
    return RequestRefused(
        "unsupported_field",
        "`prompt_logprobs`, or `logprobs` with `echo`, cannot be honoured: vLLM gets them wrong with the "
        "engine argument kv_sharing_fast_prefill; leave one of them out",
    )


def _wrong_logprobs_of_others() -> RequestRefused:
    """vLLM's sampler (v1/sample/sampler.py) replaces the log probabilities of all rows of the step."""
    return RequestRefused(
        "unsupported_field",
        "`logprob_token_ids` cannot be honoured: with the V1 model runner, which vLLM chose for this engine, "
        "other rows would get wrong log probabilities; leave it out",
        param="logprob_token_ids",
    )


def drive_without_event_loop(client: StepClient) -> None:
    """Replace the places where vLLM's serving layer would need a running event loop.

    The renderer's async methods hand their work to threads; in a step loop the synchronous twin is
    both simpler and free of fights over the interpreter lock. Requests with several prompts merge
    their outputs by way of asyncio tasks; ours are in the engine already, so taking them in turn
    costs nothing.
    """
    render_at_once(client.renderer)
    completion_serving.merge_async_iterators = merge_in_turn


def render_at_once(renderer: Any) -> None:
    """Have a renderer's async methods do their work in the thread that calls them."""

    async def render_chat(*args: Any, **kwargs: Any) -> Any:
        begin_row()
        return renderer.render_chat(*args, **kwargs)

    async def render_cmpl(*args: Any, **kwargs: Any) -> Any:
        return renderer.render_cmpl(*args, **kwargs)

    renderer.render_chat_async = render_chat
    renderer.render_cmpl_async = render_cmpl


async def merge_in_turn(*iterators: AsyncIterator[T]) -> AsyncGenerator[tuple[int, T], None]:
    """Each element of each iterator, with the number of its iterator: in turn, for all are in the engine."""
    for number, iterator in enumerate(iterators):
        async for item in iterator:
            yield number, item
