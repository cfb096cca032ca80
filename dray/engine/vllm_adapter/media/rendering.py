"""Rows with files, and pairs of texts, are read in threads of their own, beside the engine.

An image of a megapixel takes some 25 ms to decode and to make pixels of, in C code without the interpreter
lock. In the engine's thread one row after the other would wait for that. Each thread has a renderer of its
own, since tokenizers and processors are not for several threads at once. Rows about the same image go to the
same thread, whose cache knows it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Generator, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from dray.engine.vllm_adapter.media.images import ImageSettings
from dray.errors import EngineDeadError
from dray.requests.media.placing import media_in
from dray.requests.model import Request

# Their processors run numba's parallel loops, which end the process where two threads enter them at once
# (vllm/renderers/base.py, 0.32).
_ONE_AT_A_TIME = ("kimi", "inkling")


class Rendering:
    """A row that a thread reads; awaiting it gives what vLLM's renderer makes of it."""

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def __await__(self) -> Generator[Rendering, None, Any]:
        while not self._future.done():
            yield self
        return self._future.result()

    def tell(self, told: Callable[[], None]) -> None:
        """Call ``told`` at its end, from the thread that reads it."""
        self._future.add_done_callback(lambda _: told())

    def cancel(self) -> None:
        """Do not begin with it, if no thread has begun."""
        self._future.cancel()


class RowsRead:
    """Rows on their way through those threads. ``wake`` has a step return that waits for the engine."""

    def __init__(self, wake: Callable[[], object]) -> None:
        self.count = 0
        self.read = 0
        self._wake = wake
        self._done: SimpleQueue[Any] = SimpleQueue()

    def add(self, row: Any, rendering: Rendering) -> None:
        """A row that waits for its rendering."""
        self.count += 1

        def told() -> None:
            self._done.put(row)
            self._wake()

        rendering.tell(told)

    def arrived(self, seconds: float) -> Iterator[Any]:
        """Rows whose rendering has ended; the first one is waited for, ``seconds`` at most."""
        wait = seconds
        while self.count:
            try:
                row = self._done.get(timeout=wait) if wait else self._done.get_nowait()
            except Empty:
                return
            wait, self.count, self.read = 0, self.count - 1, self.read + 1
            yield row


class RenderThreads:
    """Renderers, each in a thread of its own. ``online`` makes what reads rows of a renderer.

    ``own`` is the engine's renderer.
    """

    def __init__(
        self, online: Callable[[Any], Any], vllm_config: Any, own: Any, images: ImageSettings, count: int
    ) -> None:
        self._online = online
        self._config = vllm_config
        self._own = own
        self._images = images
        self._renderers: dict[int, Any] = {}
        self._pools = [
            ThreadPoolExecutor(1, thread_name_prefix=f"dray-render-{number}", initializer=self._unbind)
            for number in range(count)
        ]

    @classmethod
    def of(
        cls,
        online: Callable[[Any], Any],
        vllm_config: Any,
        own: Any,
        images: ImageSettings,
        most: int = 2**31,
    ) -> RenderThreads | None:
        """Threads, as many as ``images`` says, at most ``most``; None where the engine's own thread reads."""
        kind = str(vllm_config.model_config.hf_config.model_type)
        if not images.threads or kind.startswith(_ONE_AT_A_TIME):
            return None
        return cls(online, vllm_config, own, images, min(images.threads, most))

    def run(self, key: Hashable, read: Callable[[Any], Coroutine[Any, Any, Any]]) -> Rendering:
        """Have a thread do what ``read`` does with its renderer: the same one for equal keys."""
        number = hash(key) % len(self._pools)
        return Rendering(self._pools[number].submit(self._done, number, read))

    def close(self) -> None:
        """End the threads after the row that each has in hand."""
        for pool in self._pools:
            pool.shutdown(wait=False, cancel_futures=True)

    def _unbind(self) -> None:
        """vLLM binds the thread that makes these to one core, and so them."""
        with suppress(OSError):  # cores that were taken away since
            os.sched_setaffinity(0, self._images.cores)

    def _done(self, number: int, read: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        if number not in self._renderers:
            self._renderers[number] = self._made()
        try:
            read(self._renderers[number]).send(None)
        except StopIteration as stop:
            return stop.value
        raise RuntimeError("vLLM's renderer waits for something")

    def _made(self) -> Any:
        """A renderer. That there is none is not the row's fault, but the engine's end."""
        from vllm.renderers.registry import renderer_from_config

        from dray.engine.vllm_adapter.client import render_at_once

        try:
            renderer = renderer_from_config(self._config)
            # Images that are not named by what they hold have numbers: one count for all threads.
            if hasattr(self._own, "_mm_req_counter"):  # the model sees
                renderer._mm_req_counter = self._own._mm_req_counter
            render_at_once(renderer)
            self._images.prepare(renderer, self._config.model_config)
            return self._online(renderer)
        except Exception as error:
            raise EngineDeadError(f"{type(error).__name__} in making a renderer for a thread") from error


def files_in(request: Request) -> tuple[str, ...]:
    """The URLs of the files of a row, in their order."""
    return tuple(held.holder[held.name] for held in media_in(request.url, request.body))
