"""The environment of the driver's own process, from which Ray takes its settings."""

from __future__ import annotations

import os

from dray.cluster.auth import close_token_file, refuse_missing_token
from dray.cluster.base import ClusterSettings
from dray.cluster.ray_private import enable_token_auth


def prepare_local() -> None:
    """Set this process's environment for a cluster of our own, which its processes inherit."""
    prepare_environment(ClusterSettings())


def prepare_environment(settings: ClusterSettings) -> None:
    """Ray reads these at import and at init; its worker processes inherit them."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if settings.provider is not None:  # its token comes with its address
        os.environ.pop("RAY_ADDRESS", None)
        return
    if settings.address is None:
        # Ray starts workers at nice 15; engines here must not wait behind everything else on the machine.
        os.environ.setdefault("RAY_worker_niceness", "0")
        # Never an open port: a token, in ~/.ray/auth_token where the environment names no other.
        close_token_file()
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ.pop("RAY_ADDRESS", None)
        return
    if settings.auth_token is not None:
        enable_token_auth(settings.auth_token)
    refuse_missing_token(settings.address)  # before Ray is asked for anything
