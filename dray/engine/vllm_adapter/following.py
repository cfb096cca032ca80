"""The ranks of an engine on another node than its replica's: vLLM's executor without an engine."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NoReturn

from dray.engine.adapters import adapters_of
from dray.engine.model_folder import EngineModel
from dray.engine.protocol import EngineSpec
from dray.engine.tuning import BatchLimits
from dray.engine.vllm_adapter.arguments import (
    eager_on_cpu,
    engine_arguments,
    prepare_environment,
    refused_arguments,
)
from dray.engine.vllm_adapter.core.rank_process import ranks_end_with_this_process
from dray.engine.vllm_adapter.imports import import_vllm
from dray.errors import EngineDeadError
from dray.weights.loading.ranks import Ranks, ranks_heard

logger = logging.getLogger(__name__)

_MODULES = ("vllm.v1.executor.multiproc_executor", "vllm.engine.arg_utils")


def run_ranks(spec: EngineSpec, limits: Callable[[], BatchLimits]) -> NoReturn:
    """Run this node's ranks until one of them ends, as ``vllm serve --headless`` does.

    ``limits`` waits for those of the leader's engine. vLLM's own defaults depend on the device, and ranks on
    a node with smaller GPUs would get batches that their buffers do not hold.

    Raises:
        EngineDeadError: one did.
        EngineStartError, WeightsError, ConfigError: they never ran.
    """
    prepare_environment(spec)
    adapters = adapters_of(spec.arguments, spec.model)
    with EngineModel(spec) as model:
        cpu = import_vllm(_MODULES, eager_on_cpu=eager_on_cpu(spec))
        arguments = engine_arguments(spec, model.arguments(), adapters, cpu=cpu)
        leaders = limits()
        batches = {"max_num_seqs": leaders.seqs, "max_num_batched_tokens": leaders.tokens}
        executor, ranks = _started(arguments | batches)
    logger.info("the ranks of node %d run", spec.rank.number + 1 if spec.rank else 1)
    executor.start_worker_monitor(inline=True)
    raise ranks.death() or EngineDeadError("a rank's process ended")


def _started(arguments: dict[str, Any]) -> tuple[Any, Ranks]:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor

    from dray.weights.loading.vllm_loader import register

    register()
    ranks_end_with_this_process()
    with refused_arguments():
        config = EngineArgs(**arguments).create_engine_config(UsageContext.LLM_CLASS, headless=True)
    with ranks_heard() as ranks:
        executor = MultiprocExecutor(config, monitor_workers=False)
    return executor, ranks
