"""A private S3 server (moto) in a process of its own, on a free loopback port."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
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
        self._listener = socket.create_server(
            ("127.0.0.1", 0)
        )  # inherited: no other process can take the port
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> S3Server:
        descriptor = self._listener.fileno()
        command = [sys.executable, "-c", _MAIN, str(descriptor)]
        self._process = subprocess.Popen(
            command, pass_fds=[descriptor], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._listener.close()
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
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

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(self.endpoint, timeout=_START_SECONDS).close()
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True

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


_MAIN = """
import sys
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.server import MotoRequestHandler
from werkzeug.serving import make_server

app = DomainDispatcherApplication(create_backend_app)
options = {"threaded": True, "request_handler": MotoRequestHandler, "fd": int(sys.argv[1])}
make_server("127.0.0.1", 0, app, **options).serve_forever()
"""
