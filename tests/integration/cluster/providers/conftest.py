"""moto's EC2 for the tests of a file, each of which leaves nothing there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.moto_ec2 import MotoEc2


@pytest.fixture(scope="module")
def moto() -> Iterator[MotoEc2]:
    server = MotoEc2()
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def _nothing_is_left(moto: MotoEc2) -> Iterator[None]:
    yield
    assert moto.left() == []
