"""Where vLLM and the compilers below it keep what they compiled, so that all of it is in one folder."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER_VARIABLE = "DRAY_BUNDLE_CACHE"


def bundle_folder() -> Path:
    """Where bundles are unpacked: ``DRAY_BUNDLE_CACHE``, or ``dray/bundles`` in the user's cache folder."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get(FOLDER_VARIABLE) or base / "dray" / "bundles").absolute()


def bundle_root(key: str) -> Path:
    """The folder for the caches of one key: nothing else comes into its bundle."""
    return bundle_folder() / key


def cache_environment(root: Path) -> dict[str, str]:
    """The variables that make vLLM and the compilers below it keep their caches under ``root``.

    To be set before vLLM is imported: FlashInfer and tvm_ffi read theirs at import, and Inductor puts its
    default into the environment. Read in vLLM 0.32, torch 2.13, Triton 3.9 and FlashInfer (August 2026).
    """
    folders = {
        # torch_compile_cache (AOT, Inductor), modelinfos, startup_plan, flashinfer_autotune_cache, deep_gemm
        # (utils/deep_gemm.py: DG_JIT_CACHE_DIR follows it): vllm/envs.py.
        "VLLM_CACHE_ROOT": "vllm",
        # vLLM moves it under VLLM_CACHE_ROOT when it compiles a model (compilation/decorators.py); this one
        # is for what is compiled outside the model, by default in /tmp/torchinductor_USER.
        # Precompiled C++ headers stay in /tmp (_HEADER_DIR in torch/_inductor/codecache.py): 150 MB, cheap.
        "TORCHINDUCTOR_CACHE_DIR": "inductor",
        # triton/knobs.py. vLLM sets it only when it compiles: after a warm start its kernels would be looked
        # for in ~/.triton (InductorAdaptor.initialize_cache in compilation/compiler_interface.py).
        "TRITON_CACHE_DIR": "triton",
        "FLASHINFER_WORKSPACE_BASE": "flashinfer",  # flashinfer/jit/env.py; it adds .cache/flashinfer
        "TVM_FFI_CACHE_DIR": "tvm-ffi",  # tvm_ffi/cpp/extension.py, _optional_torch_c_dlpack.py
        "TORCH_EXTENSIONS_DIR": "torch-extensions",  # torch/utils/cpp_extension.py
        "CUTE_DSL_CACHE_DIR": "cute-dsl",  # CUTLASS 4.3.2's release notes; by default in /tmp
        "QUACK_CACHE_DIR": "quack",  # quack/cache; by default in /tmp
        "TILELANG_CACHE_DIR": "tilelang",  # tilelang/env.py
        "HUMMING_CACHE_DIR": "humming",  # humming/utils/jit.py
    }
    # The startup plan is written and read only on request (vllm/v1/worker/startup_plan.py). Not here: the
    # driver's CUDA_CACHE_PATH, whose files are the driver's, and whose version is not in the key.
    return {name: str(root / folder) for name, folder in folders.items()} | {"VLLM_ENABLE_STARTUP_PLAN": "1"}
