"""moto's EC2 instances as machines: the user data of each one runs here, and starts a real raylet.

::

    python -m tests.support.ec2_machines ENDPOINT FOLDER      ends when its stdin does

An instance has a folder as its home, a metadata service that tells its tags and address as EC2's does, and a
console. When the instance is terminated, or its user data turns it off, its processes are killed.
"""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import psutil

from tests.support.moto_ec2 import KEYS, REGION
from tests.support.stdin import stdin_ended

_LOOK_SECONDS = 0.3
_MARK = "DRAY_TEST_INSTANCE"


class Ec2Machines:
    """The machines, seen from a test."""

    def __init__(self, endpoint: str, folder: Path) -> None:
        self.folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.ec2_machines", endpoint, str(folder)],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def console(self, instance: str) -> str:
        """What an instance has said."""
        file = self.folder / instance / "console"
        return file.read_text() if file.exists() else ""

    def running(self) -> set[str]:
        """Instances of which a process lives."""
        found = set()
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                found.add(process.environ().get(_MARK, ""))
        return found - {""}

    def stop(self) -> None:
        """End all of them."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


class _Machines:
    def __init__(self, endpoint: str, folder: Path) -> None:
        session: Any = boto3.session.Session()
        self._ec2 = session.client("ec2", region_name=REGION, endpoint_url=endpoint, **KEYS)
        self._folder = folder
        self._known: set[str] = set()
        self._seen: dict[str, Mapping[str, Any]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def look(self) -> None:
        """Start what runs, and end what does not."""
        pages = self._ec2.get_paginator("describe_instances").paginate()
        found = [one for page in pages for group in page["Reservations"] for one in group["Instances"]]
        self._seen = {one["InstanceId"]: one for one in found if one["State"]["Name"] == "running"}
        for gone in self._known - self._seen.keys():
            _kill(gone)
            self._known.discard(gone)
        for fresh in self._seen.keys() - self._known:
            self._known.add(fresh)
            self._boot(fresh)

    def end(self) -> None:
        """Kill all."""
        for one in self._known:
            _kill(one)

    def _boot(self, instance: str) -> None:
        found = self._ec2.describe_instance_attribute(InstanceId=instance, Attribute="userData")
        home = self._folder / instance
        home.mkdir()
        script = home / "user-data"
        script.write_bytes(base64.b64decode(found["UserData"]["Value"]))
        tags = {one["Key"]: one["Value"] for one in self._seen[instance]["Tags"]}
        head = tags.get("dray-role") == "head"
        metadata = f"http://127.0.0.1:{self._server.server_address[1]}/{instance}"
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            _MARK: instance,
            "DRAY_METADATA": metadata,
            "DRAY_CONSOLE": str(home / "console"),
            "DRAY_TURN_OFF": f"curl -sf -X DELETE {metadata}",
            "DRAY_BOOT": str(home / "cloud"),  # not there: a test writes nothing for this machine's boot
            "DRAY_LOOK_SECONDS": "1",
            "DRAY_RAY_START": f"--temp-dir={self._folder / 'r'} --include-dashboard=false"
            if head
            else "--num-cpus=1",
        }
        subprocess.Popen(
            ["bash", str(script)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=(home / "out").open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        machines = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                """A token of IMDSv2."""
                self._answer("token")

            def do_GET(self) -> None:
                """A tag, the address or the type: only where the request shows a token."""
                instance, _, path = self.path.lstrip("/").partition("/")
                one = machines._seen.get(instance)
                if one is None or not self.headers.get("X-aws-ec2-metadata-token"):
                    self.send_error(401)
                    return
                facts = {f"tags/instance/{tag['Key']}": tag["Value"] for tag in one["Tags"]}
                facts |= {"local-ipv4": one["PrivateIpAddress"], "instance-type": one["InstanceType"]}
                self._answer(facts.get(path.removeprefix("latest/meta-data/"), ""))

            def do_DELETE(self) -> None:
                """It turns itself off: EC2 terminates it then."""
                machines._ec2.terminate_instances(InstanceIds=[self.path.strip("/")])
                self._answer("")

            def _answer(self, text: str) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def handle_one_request(self) -> None:
                """A machine that was killed reads no answer."""
                with suppress(BrokenPipeError, ConnectionResetError):
                    super().handle_one_request()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Nothing."""

        return Handler


def _kill(instance: str) -> None:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(_MARK) == instance:
                process.send_signal(signal.SIGKILL)


def main() -> None:
    """Watch until stdin ends."""
    machines = _Machines(sys.argv[1], Path(sys.argv[2]))
    ended = stdin_ended()
    try:
        while not ended.is_set():
            machines.look()
            time.sleep(_LOOK_SECONDS)
    finally:
        machines.end()


if __name__ == "__main__":
    main()
