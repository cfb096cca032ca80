"""Whether a Ray cluster keeps strangers out: its API runs any code it is sent."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

_CALL = "/ray.rpc.NodeInfoGcsService/CheckAlive"
_SECONDS = 5.0


def answers_anybody(address: str) -> bool:
    """Whether the head at ``address`` (host:port) answers a call that shows no token."""
    import grpc  # type: ignore[import-untyped]  # comes with Ray

    with grpc.insecure_channel(address) as channel:
        try:
            channel.unary_unary(_CALL)(b"", timeout=_SECONDS)
        except grpc.RpcError:  # it wants a token or a certificate, or is out of reach: joining says so
            return False
    return True


def close_token_file() -> None:
    """Make the file of this user's token where it is missing, and let no other user read it.

    Ray makes it readable to every user of the machine.
    """
    if os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH"):
        return
    file = Path.home() / ".ray" / "auth_token"
    with suppress(OSError):  # a home that cannot be written to: Ray says so
        file.parent.mkdir(exist_ok=True)
        if not file.exists():
            _make(file)
        file.chmod(0o600)


def _make(file: Path) -> None:
    """Whole or not at all: another run may be making it too."""
    new = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
            stream.write(secrets.token_hex(32))
        with suppress(FileExistsError):
            os.link(new, file)
    finally:
        new.unlink(missing_ok=True)
