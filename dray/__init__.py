"""dray: offline batch inference of large language models, on Ray and vLLM, resumable from SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dray.job_plan import plan
    from dray.store.named import open_existing as open_store

__version__ = "0.1.0"
__all__ = ["__version__", "open_store", "plan"]


def __getattr__(name: str) -> Any:
    # Resolved on first use, so that `import dray` stays free of SQLAlchemy and friends.
    if name == "open_store":
        from dray.store.named import open_existing

        return open_existing
    if name == "plan":
        from dray.job_plan import plan

        return plan
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
