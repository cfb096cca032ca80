"""The processes of an engine's ranks end with the process that started them, however that ends.

vLLM's own ranks watch a pipe, and only once they have loaded the model. Before that, a rank waits for the
others for up to half an hour, with its GPU. The memory that they share does not stay behind, either, nor the
file by which they meet. Why a rank does not start, vLLM writes into a log alone; here the process that
started it is told.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

from dray.engine.grammar_process import die_with
from dray.engine.start_errors import start_error
from dray.engine.vllm_adapter.core.rank_memory import name_after_owner, remove_unowned
from dray.engine.vllm_adapter.core.socket_folder import meet_in_socket_folder
from dray.failures.signs import out_of_memory
from dray.weights.loading.ranks import tell_failure

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
        WorkerProc.__init__ = _telling(WorkerProc.__init__)  # for forked ones
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

        WorkerProc.__init__ = _telling(WorkerProc.__init__)
        run = WorkerProc.worker_main
    run(*args, **options)


def _telling(start: Callable[..., None]) -> Callable[..., None]:
    """The start of a rank, which tells of its failure."""

    def told(*args: Any, **options: Any) -> None:
        try:
            start(*args, **options)
        except Exception as error:
            tell_failure(str(start_error(error)), oom=out_of_memory(error))
            raise

    return told
