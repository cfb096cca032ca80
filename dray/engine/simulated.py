"""A deterministic engine without a model, behind the same protocol as vLLM.

For chaos tests, scale tests and plans. The text of an answer is a function of prompt and seed
alone, so a job gives the same bytes however often it is interrupted.
"""

from __future__ import annotations

import hashlib
import heapq
import logging
import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NoReturn

import orjson

from dray import __version__
from dray.engine.protocol import EngineInfo, EngineSpec
from dray.engine.tuning import Tuned
from dray.errors import ConfigError, EngineDeadError, RequestRefused
from dray.kinds import KINDS, LENGTH_FIELDS
from dray.kinds import Overflow as Policy
from dray.requests.media.placing import is_file
from dray.requests.model import Outcome, Request
from dray.requests.overflow import Overflow
from dray.requests.precision import whole

logger = logging.getLogger(__name__)

_CHARS_PER_TOKEN = 4  # the usual rule of thumb for English text


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedSettings:
    """Engine arguments of the simulated engine.

    ``seconds_per_token`` is the time of one decode iteration, whatever the batch;
    ``start_seconds`` the time until ready. A prompt containing ``crash_on`` kills the process,
    ``lose_node_on`` its Ray node too (as a container does that is out of memory), ``stall_on`` never
    finishes, ``error_on`` gets an error row, and one containing ``oom_on`` finds no memory while more than
    ``oom_above`` requests run. ``response_bytes`` pads answers to about that size; 0 leaves them as they are.
    ``nnodes`` has it hold so many nodes, as an engine does whose ranks are on several.
    """

    seconds_per_token: float = 0.0
    max_num_seqs: int = 256
    max_model_len: int = 1_000_000
    start_seconds: float = 0.0
    seed: int = 0
    crash_on: str | None = None
    lose_node_on: str | None = None
    stall_on: str | None = None
    error_on: str | None = None
    oom_on: str | None = None
    oom_above: int = 0
    response_bytes: int = 0
    nnodes: int = 1

    @classmethod
    def parse(cls, arguments: dict[str, Any]) -> SimulatedSettings:
        """Check and convert engine arguments.

        Raises:
            ConfigError: an unknown argument, or a value of the wrong type.
        """
        types = {f.name: str(f.type) for f in fields(cls)}
        values: dict[str, Any] = {}
        for name, value in arguments.items():
            if name not in types:
                raise ConfigError(
                    f"simulated engine: unknown engine argument {name!r}; it takes {', '.join(sorted(types))}"
                )
            convert = {"float": float, "int": int}.get(types[name], str)
            try:
                values[name] = convert(value)
            except (TypeError, ValueError):
                raise ConfigError(f"simulated engine: {name} must be a {types[name]}") from None
        settings = cls(**values)
        if settings.max_num_seqs < 1:
            raise ConfigError("simulated engine: max_num_seqs must be at least 1")
        if settings.nnodes < 1:
            raise ConfigError("simulated engine: nnodes must be at least 1")
        return settings


def _end_node() -> NoReturn:
    """End this process and the raylet that started it, where one did."""
    parent = os.getppid()
    with suppress(OSError):
        if Path(f"/proc/{parent}/comm").read_text().strip() == "raylet":
            os.kill(parent, signal.SIGKILL)
    os._exit(70)


class SimulatedEngine:
    """Runs up to ``max_num_seqs`` requests at a time; each ends after its tokens' time."""

    def __init__(self, spec: EngineSpec) -> None:
        self._settings = settings = SimulatedSettings.parse(spec.arguments)
        self._spec = spec
        self._running: list[tuple[float, int, Outcome]] = []  # heap by end time
        self._waiting: list[tuple[int, Outcome, float]] = []
        self._aborted: set[int] = set()
        self._stalled: set[int] = set()
        self._hungry: set[int] = set()
        self._produced = 0
        started = time.monotonic()
        time.sleep(settings.start_seconds)
        self.info = EngineInfo(
            engine="simulated",
            version=__version__,
            model=spec.model_name or spec.model,
            max_num_seqs=settings.max_num_seqs,
            max_model_len=settings.max_model_len,
            timeline={"engine": time.monotonic() - started},
        )
        logger.info("simulated engine ready: %d requests at a time", settings.max_num_seqs)

    def submit(self, key: int, request: Request) -> None:
        """Admit one request; its answer is computed at once and handed out when its time is up."""
        settings = self._settings
        body = request.body
        prompt = _prompt_of(request)
        if settings.crash_on is not None and settings.crash_on in prompt:
            os._exit(70)
        if settings.lose_node_on is not None and settings.lose_node_on in prompt:
            _end_node()
        if settings.error_on is not None and settings.error_on in prompt:
            raise RequestRefused("simulated_error", "the simulated engine was told to refuse this request")
        _refuse_what_no_engine_takes(body, self._spec.model_name)
        prompt, limit, overflow = _fitted(prompt, request, self._spec.overflow, settings)
        prompt_tokens = max(1, len(prompt) // _CHARS_PER_TOKEN)
        if prompt_tokens >= settings.max_model_len:
            raise RequestRefused(
                "context_length_exceeded",
                f"the prompt has {prompt_tokens} tokens; the context is {settings.max_model_len}",
            )
        outcome, tokens = _answer(request, prompt, prompt_tokens, limit, self._spec, settings)
        if overflow is not None and outcome.response is not None:
            outcome = outcome._replace(response=overflow.on(outcome.response))
        if settings.stall_on is not None and settings.stall_on in prompt:
            self._stalled.add(key)
            return
        if settings.oom_on is not None and settings.oom_on in prompt:
            self._hungry.add(key)
        self._waiting.append((key, outcome, tokens * settings.seconds_per_token))

    def step(self) -> list[tuple[int, Outcome]]:
        """Start what fits, and hand out what is due."""
        now = time.monotonic()
        self._produced += bool(self._running)
        free = self._settings.max_num_seqs - len(self._running) - len(self._stalled)
        if free > 0 and self._waiting:
            for key, outcome, duration in self._waiting[:free]:
                heapq.heappush(self._running, (now + duration, key, outcome))
            del self._waiting[:free]
        if self._running and self._running[0][0] > now:
            time.sleep(min(self._running[0][0] - now, 0.05))
            now = time.monotonic()
        elif not self._running:
            time.sleep(0.01)  # only stalled requests are left
        self._fail_if_asked()
        finished: list[tuple[int, Outcome]] = []
        while self._running and self._running[0][0] <= now:
            _, key, outcome = heapq.heappop(self._running)
            if key in self._aborted:
                self._aborted.discard(key)
            else:
                finished.append((key, outcome))
        return finished

    def _fail_if_asked(self) -> None:
        running = {key for _, key, _ in self._running}
        if running & self._hungry and len(running) > self._settings.oom_above:
            raise EngineDeadError("out of simulated memory") from MemoryError()

    def tuned(self) -> Tuned | None:
        """None: it is as fast as its settings say."""
        return None

    def wake(self) -> None:
        """Do nothing: its steps are short."""

    def check(self) -> None:
        """It dies with its process."""

    def produced(self) -> int:
        """Steps with a request that is not stalled."""
        return self._produced

    def abort(self, keys: Iterable[int]) -> None:
        """Forget requests; a running one gives its place back when its time is up."""
        gone = set(keys)
        self._stalled -= gone
        self._waiting = [entry for entry in self._waiting if entry[0] not in gone]
        self._aborted |= gone & {key for _, key, _ in self._running}

    def close(self) -> None:
        """Nothing to release."""


def _prompt_of(request: Request) -> str:
    body = request.body
    kind = KINDS[request.url]
    messages, sound = kind.as_chat(body).get("messages"), kind.sound
    if messages is not None:
        if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
            raise RequestRefused("invalid_request", "messages must be a list of objects", param="messages")
        return "\n".join(_content_of(message.get("content", "")) for message in messages)
    texts = kind.texts
    prompts = [body[name] for name in texts if body.get(name) is not None]
    if not prompts:
        raise RequestRefused("invalid_request", f"the body has no {' or '.join(texts)}")
    if sound is not None:
        prompts = [_digest(str(body[sound])), str(body.get("prompt", ""))]
    return "\n".join(one if isinstance(one, str) else orjson.dumps(one).decode() for one in prompts)


def _content_of(content: Any) -> str:
    """A content as text; a file counts as its digest of 64 characters."""
    if not isinstance(content, list):
        return str(content)
    return "\n".join(_digest(str(part)) if is_file(part) else str(part) for part in content)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()


def _refuse_what_no_engine_takes(body: dict[str, Any], model_name: str | None) -> None:
    """The few checks that chaos tests rely on; vLLM's own protocol classes do the real ones."""
    model = body.get("model")
    if model_name is not None and model is not None and model != model_name:
        raise RequestRefused("model_mismatch", f"this job serves {model_name!r} only", param="model")
    if body.get("stream"):
        raise RequestRefused("stream_unsupported", "a batch has no stream; remove `stream`", param="stream")


def _fitted(
    prompt: str, request: Request, policy: Policy, settings: SimulatedSettings
) -> tuple[str, int, Overflow | None]:
    """Prompt and length of the answer, made to fit as the job says; a token is 4 characters."""
    generates = KINDS[request.url].engine.generates
    wanted = _limit(request.body, settings) if generates else 0
    size, most = max(1, len(prompt) // _CHARS_PER_TOKEN), settings.max_model_len
    if policy == "error" or size + max(1, wanted) <= most:
        return prompt, wanted, None
    if policy == "shorten":
        left = most - size
        fits = generates and left >= 1
        return prompt, left if fits else wanted, Overflow(done="shortened", max_tokens=left) if fits else None
    room = most - max(1, wanted)
    if room < 1:
        return prompt, wanted, None
    chars = room * _CHARS_PER_TOKEN
    cut = prompt[-chars:] if policy == "cut-head" else prompt[:chars]
    return cut, wanted, Overflow(done=policy, dropped_tokens=size - room)


def _answer(
    request: Request,
    prompt: str,
    prompt_tokens: int,
    limit: int,
    spec: EngineSpec,
    settings: SimulatedSettings,
) -> tuple[Outcome, int]:
    body, kind = request.body, KINDS[request.url]
    digest = hashlib.blake2b(prompt.encode(), digest_size=32, key=str(settings.seed).encode()).hexdigest()
    tokens = limit if kind.engine.generates else 0
    text = (digest * (tokens * _CHARS_PER_TOKEN // len(digest) + 1))[: tokens * _CHARS_PER_TOKEN]
    if settings.response_bytes > len(text):
        text = (digest * (settings.response_bytes // len(digest) + 1))[: settings.response_bytes]
    usage = {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + tokens,
        "completion_tokens": tokens,
    }
    asked = {name: whole(value) for name, value in body.items() if value is not None}
    answer = kind.simulated(asked, text, digest)
    response = {
        "id": f"sim-{request.index}",
        "object": answer.pop("object"),
        "created": 0,
        "model": body.get("model") or spec.model_name or spec.model,
        **answer,
        "usage": usage,
    }
    outcome = Outcome(
        index=request.index,
        custom_id=request.custom_id,
        response=orjson.dumps(response),
        prompt_tokens=prompt_tokens,
        completion_tokens=tokens,
        total_seconds=tokens * settings.seconds_per_token,
        first_token_seconds=settings.seconds_per_token,
    )
    return outcome, tokens


def _limit(body: dict[str, Any], settings: SimulatedSettings) -> int:
    limit = next((body[name] for name in LENGTH_FIELDS if body.get(name)), 16)
    limit = whole(limit)
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
        raise RequestRefused("invalid_request", "max_tokens must be a whole number", param="max_tokens")
    return min(limit, settings.max_model_len)
