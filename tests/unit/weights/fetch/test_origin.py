"""Where a hub's files are is asked for several at once, and one at a time once the hub is busy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Barrier

import pytest

from dray.storage.faults import BusyError
from dray.weights.fetch import origin
from dray.weights.fetch.origin import Origin
from dray.weights.source.manifest import Manifest, ModelFile

pytestmark = pytest.mark.unit

FILES = tuple(ModelFile(name=f"{n}.safetensors", size=1, etag="e", url=f"https://hub/{n}") for n in range(12))
AT_ONCE = 4
Hub = Callable[[ModelFile], tuple[str, dict[str, str]]]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, Hub], Origin]]:
    made: list[Origin] = []

    def origin_at(uri: str, hub: Hub) -> Origin:
        monkeypatch.setattr(origin, "hub_address", hub)
        made.append(Origin(Manifest(uri=uri, files=FILES), None))
        return made[-1]

    yield origin_at
    for one in made:
        one.close()


def test_addresses_are_asked_for_several_at_once_and_once_each(make: Callable[[str, Hub], Origin]) -> None:
    asked: list[str] = []
    together = Barrier(AT_ONCE)

    def hub(file: ModelFile) -> tuple[str, dict[str, str]]:
        asked.append(file.name)
        together.wait(10)  # breaks where fewer ask at once
        return f"https://store/{file.name}", {}

    found = make("hf://org/name", hub)
    found.expect(FILES)
    for _ in range(2):
        assert [found.address(file).url for file in FILES] == [f"https://store/{file.name}" for file in FILES]
    assert sorted(asked) == sorted(file.name for file in FILES)


def test_a_busy_hub_is_asked_for_one_at_a_time(make: Callable[[str, Hub], Origin]) -> None:
    """Each lookup ahead that failed would cost its chunk a try."""
    busy = True

    def hub(file: ModelFile) -> tuple[str, dict[str, str]]:
        if busy:
            raise BusyError("later", 1.0)
        return file.name, {}

    found = make("hf://org/name", hub)
    found.expect(FILES)
    with pytest.raises(BusyError):
        found.address(FILES[3])
    busy = False
    assert [found.address(file).url for file in FILES] == [file.name for file in FILES]


def test_addresses_that_were_asked_for_long_ago_are_asked_for_again(
    make: Callable[[str, Hub], Origin], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hub's signature lasts for an hour, and a large model takes longer."""
    asked: list[str] = []

    def hub(file: ModelFile) -> tuple[str, dict[str, str]]:
        asked.append(file.name)
        return f"{file.name}?{asked.count(file.name)}", {}

    clock = [1000.0]
    monkeypatch.setattr("dray.weights.fetch.origin.time.monotonic", lambda: clock[0])
    found = make("hf://org/name", hub)
    found.expect(FILES)
    assert found.address(FILES[0]).url.endswith("?1")
    clock[0] += 899
    assert found.address(FILES[1]).url.endswith("?1")
    clock[0] += 2
    assert [found.address(file).url[-2:] for file in FILES[:3]] == ["?2", "?2", "?2"]


def test_elsewhere_nothing_is_asked_for(make: Callable[[str, Hub], Origin]) -> None:
    found = make("https://store/model", lambda file: pytest.fail("a hub was asked"))
    found.expect(FILES)
    assert found.address(FILES[0]).url.startswith("https://store/model/0.safetensors")
