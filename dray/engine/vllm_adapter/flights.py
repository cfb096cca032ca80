"""Requests on their way through vLLM's serving layer: as bodies into its engine, and out as outcomes."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dray.engine.grammars import GrammarPending
from dray.engine.vllm_adapter.media.rendering import Rendering, RowsRead
from dray.errors import EngineDeadError, RequestRefused
from dray.requests.model import Outcome, Request

if TYPE_CHECKING:
    from dray.engine.vllm_adapter.client import StepClient
    from dray.engine.vllm_adapter.kinds.serving import Serving

_VERDICT_SECONDS = 0.05  # for a grammar to be judged, before aborts and new rows are looked at again


@dataclass(slots=True)
class _Flight:
    """One request on its way through vLLM's serving layer."""

    key: int
    request: Request
    coroutine: Coroutine[Any, Any, Any]
    tickets: list[Any]
    admitted: float
    awaiting: Any = None


class Flights:
    """What has become of each request that was submitted, until its outcome is taken.

    In messages the model's name stands for its ``folder``, which is another one on every machine. ``death``
    says what an error of the engine means; ``wake`` has a step return that waits for the engine's core.
    """

    def __init__(
        self,
        client: StepClient,
        serve: Serving,
        folder: str,
        death: Callable[[Exception], EngineDeadError],
        wake: Callable[[], object],
    ) -> None:
        self._client = client
        self._serve = serve
        self._folder = folder
        self._death = death
        self._reading = RowsRead(wake)
        self._by_key: dict[int, _Flight] = {}
        self._by_ticket: dict[str, _Flight] = {}
        self._parked: dict[bytes, list[_Flight]] = {}  # by the grammar that they wait for
        self._judged = 0  # grammars
        self._finished: list[tuple[int, Outcome]] = []

    @property
    def in_engine(self) -> bool:
        """Whether the engine has anything to compute."""
        return bool(self._by_ticket)

    def begin(self, key: int, request: Request) -> None:
        """Read the body, apply the template, and put the prompts into the engine."""
        self._advance(_Flight(key, request, self._serve.start(request), [], time.monotonic()))

    def go_on(self) -> None:
        """Go on with rows whose grammar has a verdict, or whose images are read.

        Waits briefly for one where the engine has no other work.
        """
        if self._parked:
            self._unpark()
        if self._reading.count:
            for flight in self._reading.arrived(0 if self._by_ticket else _VERDICT_SECONDS):
                self._relaunch(flight)

    def land(self, output: Any) -> None:
        """Go on with the row that waited for this output."""
        ticket = self._client.landed(output.request_id)
        flight = self._by_ticket.pop(output.request_id, None)
        if ticket is None or flight is None:
            return
        ticket.output = output
        if flight.awaiting is not ticket:
            return
        try:
            self._advance(flight)
        except RequestRefused as refusal:
            self._forget(flight)
            self._refuse(flight, refusal)

    def take_finished(self) -> list[tuple[int, Outcome]]:
        """The rows that have ended since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def moved(self) -> int:
        """Grows with what happens to rows outside of the engine.

        While a grammar is judged, which has a limit of its own, every second counts.
        """
        judging = int(time.monotonic()) if self._parked else 0
        return self._judged + judging + self._reading.read

    def abort(self, keys: Iterable[int]) -> None:
        """Take requests out of the engine."""
        for key in keys:
            flight = self._by_key.get(key)
            if flight is not None:
                self._forget(flight)
                flight.coroutine.close()
                if isinstance(flight.awaiting, Rendering):
                    flight.awaiting.cancel()

    def _advance(self, flight: _Flight) -> None:
        """Run the coroutine until it waits for the engine again, for the verdict on its grammar, or ends.

        What it puts into the engine leaves it again where this raises.

        Raises:
            RequestRefused: the request cannot be honoured.
        """
        from vllm.v1.engine.exceptions import EngineDeadError as VllmDeadError

        opened: list[Any] = []
        self._client.opened = opened
        try:
            self._run_on(flight)
        except VllmDeadError as error:
            raise self._death(error) from error
        except BaseException:
            self._abort_tickets(opened)
            raise
        if self._by_key.get(flight.key) is flight:
            flight.tickets += opened
            for ticket in opened:
                self._by_ticket[ticket.engine_id] = flight

    def _run_on(self, flight: _Flight) -> None:
        from dray.engine.vllm_adapter.client import Ticket
        from dray.engine.vllm_adapter.errors import is_the_engines, refusal_of

        try:
            awaited = flight.coroutine.send(None)
        except StopIteration as stop:
            self._complete(flight, stop.value)
            return
        except GrammarPending as pending:
            self._by_key[flight.key] = flight
            self._parked.setdefault(pending.key, []).append(flight)
            return
        except BaseException as error:  # the seam: everything a body can provoke is a verdict on its row
            if is_the_engines(error):
                raise
            has_grammar = any(ticket.has_grammar for ticket in flight.tickets)
            raise self._named(refusal_of(error, flight.request.body, has_grammar=has_grammar)) from None
        flight.awaiting = awaited
        if isinstance(awaited, Rendering):
            self._reading.add(flight, awaited)
        elif not isinstance(awaited, Ticket):
            flight.coroutine.close()
            raise RequestRefused("unsupported", "this combination of fields is not supported in a batch")
        self._by_key[flight.key] = flight

    def _unpark(self) -> None:
        """Start again the rows whose grammars have a verdict."""
        assert self._client.grammars is not None
        for key in self._client.grammars.arrived(0 if self._by_ticket else _VERDICT_SECONDS):
            self._judged += 1
            for flight in self._parked.pop(key, []):
                if self._by_key.get(flight.key) is flight:
                    flight.coroutine = self._serve.start(flight.request)
                    self._relaunch(flight)

    def _relaunch(self, flight: _Flight) -> None:
        """Go on with a row that waited for a verdict, or for its images, unless it was aborted meanwhile."""
        if self._by_key.pop(flight.key, None) is not flight:
            return
        try:
            self._advance(flight)
        except RequestRefused as refusal:
            self._refuse(flight, refusal)

    def _complete(self, flight: _Flight, answer: Any) -> None:
        from dray.engine.vllm_adapter.errors import is_the_engines, refusal_of_answer

        try:
            outcome = self._outcome(flight, answer)
        except Exception as error:  # the model's text is at fault, not the engine
            if is_the_engines(error):
                raise
            raise refusal_of_answer(error) from None
        self._forget(flight)
        self._finished.append((flight.key, outcome))

    def _outcome(self, flight: _Flight, answer: Any) -> Outcome:
        """The terminal row of a request whose coroutine ended with ``answer``."""
        request = flight.request
        outputs = [ticket.output for ticket in flight.tickets]
        queue, first = flight.tickets[0].waits.seconds() if flight.tickets else (0.0, 0.0)
        return Outcome(
            index=request.index,
            custom_id=request.custom_id,
            response=self._serve.response(request, answer),
            prompt_tokens=sum(len(output.prompt_token_ids or ()) for output in outputs),
            cached_tokens=sum(output.num_cached_tokens or 0 for output in outputs),
            completion_tokens=sum(_generated(output) for output in outputs),
            queue_seconds=queue,
            first_token_seconds=first,
            total_seconds=time.monotonic() - flight.admitted,
        )

    def _named(self, refusal: RequestRefused) -> RequestRefused:
        """The refusal with the model's name for its folder, which is another one on every machine."""
        message = refusal.message.replace(self._folder, self._serve.model_name)
        return RequestRefused(refusal.code, message, param=refusal.param)

    def _refuse(self, flight: _Flight, refusal: RequestRefused) -> None:
        self._finished.append((flight.key, flight.request.refused(refusal.code, refusal.message)))

    def _forget(self, flight: _Flight) -> None:
        self._by_key.pop(flight.key, None)
        self._abort_tickets([ticket for ticket in flight.tickets if ticket.output is None])

    def _abort_tickets(self, tickets: list[Any]) -> None:
        if not tickets:
            return
        for ticket in tickets:
            self._by_ticket.pop(ticket.engine_id, None)
        self._client.abort(tickets)


def _generated(output: Any) -> int:
    parts = getattr(output, "outputs", None)
    return sum(len(part.token_ids) for part in parts) if isinstance(parts, list) else 0
