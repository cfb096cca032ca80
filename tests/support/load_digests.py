"""What vLLM's parameters hold after a load: ``python -m tests.support.load_digests FOLDER FORMAT [...]``.

Builds the model of each folder vLLM's own way, all in this process, and prints one JSON line for each:

    {"folder", "format", "seconds", "digests": {name: {"sha256", "dtype", "shape"}}, "untouched": [name],
     "ready": {...}}    with "unready": message in place of "ready" where vLLM cannot run what was loaded,
    {"folder", "format", "seconds", "error": message}    where the load raises.

``digests`` are of all parameters and buffers when the loader has done its work, before vLLM converts them for
its kernels: on CPU that moves most of them out of the parameters and leaves empty tensors behind. ``ready``
are those after it. Weights are filled with a pattern before the load, so that memory used before cannot stand
in for a weight that nobody loaded; ``untouched`` are the parameters that the load left as they were.

FORMAT is a load format, or a JSON object of engine arguments with ``load_format`` among them, and ``plugin``
(``MODULE:FUNCTION``) for a function to call first; entry points that are installed vLLM calls by itself.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any
from unittest import mock

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # stdout is for the JSON
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
    "TQDM_DISABLE": "1",
}
PATTERN = 0xA5

Digests = dict[str, dict[str, Any]]


def main(arguments: Sequence[str]) -> int:
    """Load each pair of folder and format, and print what came of it."""
    if not arguments or len(arguments) % 2:
        print("usage: load_digests FOLDER FORMAT [FOLDER FORMAT ...]", file=sys.stderr)
        return 2
    os.environ.update(ENVIRONMENT)
    for folder, load_format in zip(arguments[::2], arguments[1::2], strict=True):
        began = time.monotonic()
        try:
            found = load(folder, load_format)
        except Exception as error:  # noqa: BLE001  whatever a loader raises is its result
            found = {"error": _message(error)}
        seconds = round(time.monotonic() - began, 3)
        print(json.dumps({"folder": folder, "format": load_format, "seconds": seconds} | found), flush=True)
    return 0


def load(folder: str, load_format: str) -> dict[str, Any]:
    """Build the model and load its weights: the part of the JSON line that says what came of it."""
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader import get_model

    config = _config(folder, load_format)
    after: dict[str, Any]
    with set_current_vllm_config(config), _watched() as seen:
        _join()
        try:
            after = {"ready": digests(get_model(vllm_config=config))}
        except Exception as error:
            if "digests" not in seen:
                raise
            after = {"unready": _message(error)}
    if "digests" not in seen:
        raise RuntimeError("the loader takes none of vLLM's steps that this script watches")
    return seen | after


def digests(model: Any) -> Digests:
    """What each parameter and buffer holds; one that has two names stands under both."""
    parameters = model.named_parameters(remove_duplicate=False)
    return _digests(chain(parameters, model.named_buffers(remove_duplicate=False)))


def _digests(tensors: Iterable[tuple[str, Any]]) -> Digests:
    return {name: _digest(tensor.detach()) for name, tensor in tensors}


def _digest(tensor: Any) -> dict[str, Any]:
    import torch

    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return {
        "sha256": hashlib.sha256(data).hexdigest(),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
    }


def _message(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _config(folder: str, load_format: str) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    dtype = json.loads((Path(folder) / "config.json").read_text())["dtype"]  # vLLM would turn F32 into BF16
    given = json.loads(load_format) if load_format.startswith("{") else {"load_format": load_format}
    if "plugin" in given:
        module, _, function = given.pop("plugin").partition(":")
        getattr(import_module(module), function)()
    arguments: dict[str, Any] = {
        "model": folder,
        "dtype": dtype,
        "seed": 0,
        "enforce_eager": True,
        "skip_tokenizer_init": True,
        "kv_cache_memory_bytes": 1 << 26,
    }
    return EngineArgs(**arguments | given).create_engine_config()


def _join() -> None:
    """Make this process the only rank, as a worker does before it loads. The groups depend on the model."""
    from vllm.distributed import parallel_state

    if not parallel_state.model_parallel_is_initialized():
        place = tempfile.mkdtemp(prefix="dray-tests-ranks-")
        atexit.register(shutil.rmtree, place, ignore_errors=True)
        parallel_state.init_distributed_environment(1, 0, f"file://{place}/store", 0, "gloo")
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(1, 1, backend="gloo")


@contextmanager
def _watched() -> Iterator[dict[str, Any]]:
    """Note what the parameters hold after the load, and which of them held the same before it."""
    from vllm.model_executor.model_loader import base_loader

    seen: dict[str, Any] = {}
    before: Digests = {}
    build, convert = base_loader.initialize_model, base_loader.process_weights_after_loading

    def built(*args: Any, **kwargs: Any) -> Any:
        model = build(*args, **kwargs)
        _fill(model)
        before.update(_digests(model.named_parameters(remove_duplicate=False)))
        return model

    def loaded(model: Any, *args: Any, **kwargs: Any) -> None:
        seen["digests"] = digests(model)
        seen["untouched"] = [name for name, digest in before.items() if seen["digests"].get(name) == digest]
        convert(model, *args, **kwargs)

    with (
        mock.patch("torch.accelerator.empty_cache"),  # fails without an accelerator; workers replace it too
        mock.patch.object(base_loader, "initialize_model", built),
        mock.patch.object(base_loader, "process_weights_after_loading", loaded),
    ):
        yield seen


def _fill(model: Any) -> None:
    """Overwrite the weights; parameters of less than two dimensions have values that vLLM goes by."""
    import torch

    for parameter in model.parameters():
        if parameter.dim() >= 2:
            parameter.detach().reshape(-1).view(torch.uint8).fill_(PATTERN)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
