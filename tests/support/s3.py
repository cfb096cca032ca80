"""A private S3 server (moto) in a process of its own, on a free loopback port."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from dray.storage import ObjectStoreOptions

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_START_SECONDS = 60.0


class S3Server:
    """``with S3Server() as server``: buckets, objects, and the options to reach them."""

    access_key_id = "test-key"
    secret_access_key = "test-secret"
    region = "us-east-1"

    def __init__(self) -> None:
        self.port = _free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> S3Server:
        command = [sys.executable, "-c", _MAIN, "-H", "127.0.0.1", "-p", str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + _START_SECONDS
        while not _answers(self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                raise RuntimeError("the S3 server did not start")
            time.sleep(0.1)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    @property
    def options(self) -> ObjectStoreOptions:
        """How dray reaches this server."""
        return ObjectStoreOptions(
            endpoint=self.endpoint,
            region=self.region,
            access_key_id=self.access_key_id,
            secret_access_key=self.secret_access_key,
            allow_http=True,
        )

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which any AWS client reaches this server."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": self.region,
            "AWS_ACCESS_KEY_ID": self.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret_access_key,
        }

    def client(self) -> S3Client:
        """A boto3 client: an independent witness of what lies in the store."""
        import boto3

        settings: dict[str, Any] = {
            "endpoint_url": self.endpoint,
            "region_name": self.region,
            "aws_access_key_id": self.access_key_id,
            "aws_secret_access_key": self.secret_access_key,
        }
        return boto3.client("s3", **settings)

    def bucket(self, name: str) -> S3Client:
        """Make a bucket; the client to fill it."""
        client = self.client()
        client.create_bucket(Bucket=name)
        return client


_MAIN = "import sys; from moto.server import main; sys.exit(main())"


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
