"""How Prefect's retries follow the table of causes."""

from __future__ import annotations

from typing import Any

from dray.errors import InterruptedShardError

RETRIES = 1_000_000
"""No limit of Prefect's: the budgets in the store say when a job has failed."""

_reason = ""


def worth_retrying(task: Any, task_run: Any, state: Any) -> bool:
    """Whether an attempt ended early, by a decision that another follows.

    A plain function of this module: Prefect silently turns retries off for anything else.
    """
    global _reason
    try:
        state.result(raise_on_failure=True)
    except InterruptedShardError as error:
        _reason = str(error)
        return True
    except BaseException:  # noqa: BLE001  the verdict on every other error is the same: no
        return False
    return False


def say_why() -> None:
    """Have the state of a retry say why there is one: Prefect leaves its message empty.

    Its engine takes the state from a name of its own module, which a test holds to.
    """
    import prefect.task_engine

    engine: Any = prefect.task_engine
    plain = engine.Retrying
    if getattr(plain, "says_why", False):
        return

    def retrying(*arguments: Any, **settings: Any) -> Any:
        return plain(*arguments, **{"message": _reason or None, **settings})

    retrying.says_why = True  # type: ignore[attr-defined]
    engine.Retrying = retrying
