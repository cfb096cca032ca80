"""moto's S3, for the tests of a file; each test has a bucket of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.s3 import S3Server

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as running:
        yield running


@pytest.fixture
def bucket(server: S3Server, request: pytest.FixtureRequest) -> str:
    name = hashlib.md5(request.node.name.encode()).hexdigest()
    server.bucket(name)
    return name


@pytest.fixture
def client(server: S3Server) -> S3Client:
    return server.client()
