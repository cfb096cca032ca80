"""Whether a Ray cluster keeps strangers out: its API runs any code it is sent."""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
from contextlib import suppress
from pathlib import Path

from dray.errors import ClusterError, ConfigError

_CALL = "/ray.rpc.NodeInfoGcsService/CheckAlive"
_SECONDS = 10.0
_DIRECT = (("grpc.enable_http_proxy", 0),)  # as Ray's own channels: a proxy's refusal is not the head's


def answers_anybody(address: str) -> bool:
    """Whether the head at ``address`` (host:port), which this process has joined, answers without a token.

    Raises:
        ClusterError: it neither answers nor refuses, so that cannot be known.
    """
    import grpc  # type: ignore[import-untyped]  # comes with Ray

    tls = os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")
    with grpc.insecure_channel(address, options=_DIRECT) as channel:
        try:
            channel.unary_unary(_CALL)(b"", timeout=_SECONDS, wait_for_ready=not tls)
        except grpc.RpcError as error:
            code = error.code()
            refusals = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}
            if code in refusals or (tls and code is grpc.StatusCode.UNAVAILABLE):  # it wants a certificate
                return False
            raise ClusterError(
                f"the Ray cluster at {address} does not say whether it wants a token ({code.name}), and dray "
                "uses none that may be open: look whether its head is up, then start the job again"
            ) from error
    return True


def refuse_missing_token(address: str) -> None:
    """Ray's API runs any code it is sent: dray joins it without a token on loopback only.

    Whether the cluster wants one is not asked here.

    Raises:
        ConfigError: the cluster is elsewhere, and this process has no token for it.
    """
    host = _host(address)
    if os.environ.get("RAY_AUTH_MODE") == "token" or host in ("auto", "local") or is_loopback(host):
        return
    raise ConfigError(
        f"this process has no token for the Ray cluster at {address}: set RAY_AUTH_MODE=token and "
        "RAY_AUTH_TOKEN as on its head, or use a block. If the head was started without a token, start it "
        "again with one: dray joins no open cluster beyond this machine"
    )


def answers_strangers(given: str, found: str) -> bool:
    """Whether the cluster, at ``found``, is beyond loopback and wants no token.

    It has the last word: ours may be the only side that wants one.
    """
    return not (is_loopback(_host(given)) or is_loopback(_host(found))) and answers_anybody(found)


def open_cluster_error(address: str) -> ConfigError:
    """Why a cluster that wants no token is not joined."""
    return ConfigError(
        f"the Ray cluster at {address} is open: it wants no token, and its address is not a loopback one. "
        "Start it with RAY_AUTH_MODE=token, and set RAY_AUTH_MODE and RAY_AUTH_TOKEN here, or use a block"
    )


def _host(address: str) -> str:
    return address.rsplit(":", 1)[0]


def is_loopback(host: str) -> bool:
    """Whether a name or an address means the machine that uses it; not where it is no name of a host."""
    try:
        found = {info[4][0] for info in socket.getaddrinfo(host.strip("[]"), None)}
    except OSError:
        return False
    return all(ipaddress.ip_address(str(address).split("%")[0]).is_loopback for address in found)


def close_token_file() -> None:
    """Make the file of this user's token where it is missing, and let no other user read it.

    Ray makes it readable to every user of the machine. Where no file can be made, this process and those that
    it starts have a token of their own in their environment.
    """
    if os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH"):
        return
    try:
        file = Path.home() / ".ray" / "auth_token"
        _close(file)
        readable = os.access(file, os.R_OK)
    except RuntimeError:  # this user has no home
        readable = False
    if not readable:
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def _close(file: Path) -> None:
    with suppress(OSError):  # a home that cannot be written to
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
