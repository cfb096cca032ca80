"""The processes of an engine's ranks end with the process that started them, however that ends.

vLLM's own ranks watch a pipe, and only once they have loaded the model. Before that, a rank waits for the
others for up to half an hour, with its GPU. The memory that they share does not stay behind, either, nor the
file by which they meet. Why a rank does not start, vLLM writes into a log alone; here the process that
started it is told.

So it is with a step that fails. vLLM hears of that from one rank only: it asks for the step's result. Another
one would log its error and go on with the next step, and the first would wait for it for five minutes.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from typing import Any

from dray.engine.grammar_process import die_with
from dray.engine.start_errors import start_error
from dray.engine.vllm_adapter.core.rank_memory import name_after_owner, remove_unowned
from dray.engine.vllm_adapter.core.socket_folder import meet_in_socket_folder
from dray.failures.signs import out_of_memory
from dray.weights.loading.ranks import tell_failure

# The calls of vLLM's to its ranks after which none of them may go on alone.
_OF_THE_START = frozenset(
    {"determine_available_memory", "initialize_from_config", "compile_or_warm_up_model"}
)
_STEPS = frozenset({"execute_model", "sample_tokens", "execute_dummy_batch", "take_draft_token_ids"})
_FAILED = 1  # exit status of a rank

_main: Callable[..., None] | None = None  # vLLM's, where this process put its own in its place


def ranks_end_with_this_process() -> None:
    """Have ranks that vLLM starts from now on begin with :func:`run_rank`.

    The thread that starts them must last as long as they: to the kernel, it is their parent.
    """
    from vllm.v1.executor.multiproc_executor import WorkerProc

    remove_unowned()
    name_after_owner()
    meet_in_socket_folder()
    global _main
    if _main is None:
        _main = WorkerProc.worker_main
        _report_failures(WorkerProc)  # for forked ones
        WorkerProc.worker_main = staticmethod(run_rank)


def run_rank(*args: Any, **options: Any) -> None:
    """A rank's process: vLLM's function, after the kernel was told. In a forked one, vLLM is ours already."""
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        die_with(parent.pid)
    name_after_owner()
    run = _main
    if run is None:
        from vllm.v1.executor.multiproc_executor import WorkerProc

        _report_failures(WorkerProc)
        run = WorkerProc.worker_main
    run(*args, **options)


def _report_failures(worker: Any) -> None:
    """Have each rank of vLLM's class ``worker`` tell why it does not start, or why a step failed."""
    worker.__init__ = _telling(worker.__init__)
    worker._execute_worker_rpc = _handing_out(worker._execute_worker_rpc)
    worker.handle_output = _ending(worker.handle_output)


def _handing_out(execute: Callable[..., None]) -> Callable[..., None]:
    """vLLM's way to carry out a call, in which each rank hands out its result: ``_ending`` looks at it."""

    def executed(rank: Any, call: tuple[Any, ...]) -> None:
        method, arguments, options, reporter = call
        rank.dray_call = method, reporter
        execute(rank, (method, arguments, options, None))

    return executed


def _ending(hand_out: Callable[..., None]) -> Callable[..., None]:
    """Report a result where vLLM asks this rank for it. A rank that failed unasked ends at once."""

    def looked_at(rank: Any, output: Any) -> None:
        method, reporter = rank.dray_call
        failed = isinstance(output, Exception) and method in _OF_THE_START | _STEPS
        if failed:
            tell_failure(_reason(output, method, rank.rank), oom=out_of_memory(output))
        if reporter is None or rank.rank == reporter:
            hand_out(rank, output)
        if failed and rank.rank != (reporter or 0):  # of all answers, vLLM waits for the first rank's first
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(_FAILED)

    return looked_at


def _reason(error: Exception, method: str, rank: int) -> str:
    """What to tell of an error. In a step that is its class alone: its text may quote a request."""
    return str(start_error(error)) if method in _OF_THE_START else f"{type(error).__name__} in rank {rank}"


def _telling(start: Callable[..., None]) -> Callable[..., None]:
    """The start of a rank, which tells of its failure."""

    def told(*args: Any, **options: Any) -> None:
        try:
            start(*args, **options)
        except Exception as error:
            tell_failure(str(start_error(error)), oom=out_of_memory(error))
            raise

    return told
