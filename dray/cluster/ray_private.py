"""The one place that touches Ray's private modules; tests fail when Ray renames what is used here."""

from __future__ import annotations

import os


def enable_token_auth(token: str | None = None) -> None:
    """Turn token authentication on for this process and its children, also after Ray was imported.

    Ray reads RAY_AUTH_MODE at import and caches it: the variable alone would come too late, and the head's
    processes, which see the variable, would then refuse to start without a token.
    """
    os.environ["RAY_AUTH_MODE"] = "token"
    if token is not None:
        os.environ["RAY_AUTH_TOKEN"] = token
    import ray  # noqa: F401  the package before its part: two threads importing both could each wait for the other
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]  # compiled, no stubs

    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def keep_off_stdout() -> None:
    """Drop what Ray prints about dead workers: it goes to stdout, whatever ``log_to_driver`` says.

    The replica pool and the shard tasks report deaths in the run's log; stdout belongs to ``--json``.
    """
    from ray._private import worker

    worker.print_to_stdstream = _dropped


def _dropped(data: object, ignore_prefix: bool) -> None:
    pass
