"""Models of a node, shared by its processes: what is used stays, and the others make room for who comes."""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from dray.errors import WeightsError
from dray.weights.node import cache
from dray.weights.node.cache import DESCRIPTION, CachedModel, ModelPaths, attached, cached_models, evict
from dray.weights.node.description import read_description
from dray.weights.node.filling import lay_out
from dray.weights.node.places import CacheRoot, prepare
from dray.weights.source.manifest import Manifest, ModelFile

pytestmark = pytest.mark.unit

MB = 1 << 20

USER = """
import json, os, sys, time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from dray.weights.node import cache
from dray.weights.source.manifest import Manifest, ModelFile
from dray.weights.node.places import CacheRoot

said = json.loads(sys.argv[1])
roots = {root: capacity for root, _, capacity in said["places"]}

def used(root):
    return sum(f.stat().st_blocks * 512 for f in Path(root).rglob("*") if f.is_file())

cache.cache_roots = lambda: [CacheRoot(root=Path(root), memory=memory) for root, memory, _ in said["places"]]
cache.room = lambda place: roots[str(place.root)] - used(place.root)

for line in sys.stdin:
    name, size, fill = json.loads(line)
    manifest = Manifest(uri=f"s3://b/{name}", files=(ModelFile(name="f", size=size, etag="e"),))
    try:
        with cache.attached(manifest) as paths:
            if fill and not paths.whole.is_dir():
                (paths.partial / "f").write_bytes(bytes(size))
                paths.partial.rename(paths.whole)
            print(json.dumps(str(paths.place.root)), flush=True)
            sys.stdin.readline()
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
    else:
        print(json.dumps("left"), flush=True)
"""


class User:
    """Another process that uses one model after the other."""

    def __init__(self, places: list[tuple[Path, bool, int]]) -> None:
        said = {"places": [(str(root), memory, capacity) for root, memory, capacity in places]}
        self.process = subprocess.Popen(
            [sys.executable, "-c", USER, json.dumps(said)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, name: str, size: int, *, fill: bool = True) -> None:
        self._tell(json.dumps([name, size, fill]))

    def told(self) -> str:
        """The place where it has the model now, or why not."""
        assert self.process.stdout is not None
        answer: str | dict[str, str] = json.loads(self.process.stdout.readline())
        return answer["error"] if isinstance(answer, dict) else answer

    def use(self, name: str, size: int, *, fill: bool = True) -> str:
        self.ask(name, size, fill=fill)
        return self.told()

    def leave(self) -> None:
        self._tell("")
        assert self.told() == "left"

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(10)

    def _tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()


Users = Callable[..., User]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "first"


@pytest.fixture
def second(tmp_path: Path) -> Path:
    return tmp_path / "second"


@pytest.fixture
def user(root: Path) -> Iterator[Users]:
    """Starts users of one place of 10 MB, or of the places given."""
    with ExitStack() as stack:

        def start(*places: tuple[Path, bool, int]) -> User:
            started = User(list(places) or [(root, False, 10 * MB)])
            stack.callback(started.process.wait, 10)
            stack.callback(started.process.kill)
            return started

        yield start


def manifest(name: str, size: int = MB) -> Manifest:
    return Manifest(uri=f"s3://b/{name}", files=(ModelFile(name="f", size=size, etag="e"),))


def there(root: Path, *names: str, size: int = 3 * MB) -> set[str]:
    """Which of these models lie at a place, whole."""
    return {name for name in names if (root / manifest(name, size).key).is_dir()}


# -- who goes, and who stays ------------------------------------------------------------------


def test_a_model_that_is_used_is_never_evicted(user: Users) -> None:
    first, other = user(), user()
    first.use("a", 6 * MB)
    assert "no room for model s3://b/b (0.01 GB)" in other.use("b", 6 * MB)
    first.leave()
    assert "error" not in other.use("b", 6 * MB)


def test_the_last_of_several_users_counts(user: Users, root: Path) -> None:
    users = [user() for _ in range(3)]
    for one in users:
        one.use("a", 6 * MB)
    for one in users[:-1]:
        one.leave()
    assert "no room" in users[0].use("b", 6 * MB)
    assert there(root, "a", size=6 * MB)
    users[-1].leave()
    assert users[0].use("b", 6 * MB) == str(root)
    assert not there(root, "a", size=6 * MB)


def test_what_was_not_used_for_longest_goes_first_and_only_as_much_as_must(user: Users, root: Path) -> None:
    one = user()
    for name in ("a", "b", "c", "a"):
        one.use(name, 3 * MB)
        time.sleep(0.02)
        one.leave()
        time.sleep(0.02)
    one.use("d", 3 * MB)
    assert there(root, "a", "b", "c", "d") == {"a", "c", "d"}


def test_the_time_of_use_is_the_end_of_it(user: Users, root: Path) -> None:
    long, short = user(), user()
    long.use("a", 3 * MB)
    for name in ("b", "c"):
        short.use(name, 3 * MB)
        time.sleep(0.02)
        short.leave()
    time.sleep(0.02)
    long.leave()
    short.use("d", 3 * MB)
    assert there(root, "a", "b", "c", "d") == {"a", "c", "d"}


def test_nothing_goes_where_that_would_not_do(user: Users, root: Path) -> None:
    one, other = user(), user()
    one.use("a", 3 * MB)
    other.use("b", 3 * MB)
    other.leave()
    assert "no room" in other.use("large", 8 * MB)
    assert there(root, "a", "b") == {"a", "b"}


def test_a_model_that_nobody_finished_goes_like_any_other(user: Users, root: Path) -> None:
    one = user()
    one.use("a", 6 * MB, fill=False)
    (root / f"{manifest('a', 6 * MB).key}.partial/f").write_bytes(bytes(6 * MB))
    one.leave()
    assert one.use("b", 6 * MB) == str(root)
    assert not (root / f"{manifest('a', 6 * MB).key}.partial").exists()


def test_a_killed_user_uses_nothing(user: Users, root: Path) -> None:
    one, other = user(), user()
    one.use("a", 6 * MB)
    assert "no room" in other.use("b", 6 * MB)
    one.process.kill()
    one.process.wait()
    assert other.use("b", 6 * MB) == str(root)


# -- where ------------------------------------------------------------------------------------


def test_all_who_come_at_the_same_time_choose_the_same_place(
    user: Users, root: Path, second: Path, rng: random.Random
) -> None:
    users = [user((root, False, 10 * MB), (second, False, 100 * MB)) for _ in range(5)]
    for number in range(10):
        size = rng.choice([2 * MB, 20 * MB])
        for one in users:
            one.ask(f"m{number}", size, fill=False)
        found = {one.told() for one in users}
        assert found == {str(root if size < 10 * MB else second)}
        for one in users:
            one.leave()


def test_two_models_do_not_count_with_the_same_room(user: Users, root: Path, second: Path) -> None:
    """Nothing of the first is written yet when the second one comes."""
    users = [user((root, False, 10 * MB), (second, False, 10 * MB)) for _ in range(2)]
    for number, one in enumerate(users):
        one.ask(f"m{number}", 6 * MB, fill=False)
    assert {one.told() for one in users} == {str(root), str(second)}


def test_what_is_being_filled_counts_once(user: Users, root: Path) -> None:
    one, other = user(), user()
    one.use("a", 6 * MB, fill=False)
    (root / f"{manifest('a', 6 * MB).key}.partial/f").write_bytes(bytes(4 * MB))
    assert "no room" in other.use("b", 5 * MB, fill=False)
    assert other.use("c", 3 * MB, fill=False) == str(root)


def test_where_the_first_place_has_no_room_the_second_is_taken(user: Users, root: Path, second: Path) -> None:
    one = user((root, False, 2 * MB), (second, False, 10 * MB))
    assert one.use("a", 3 * MB) == str(second)


def test_where_a_model_is_it_is_used(user: Users, root: Path, second: Path) -> None:
    small = user((root, False, 2 * MB), (second, False, 10 * MB))
    small.use("a", 3 * MB)
    large = user((root, False, 10 * MB), (second, False, 10 * MB))
    assert large.use("a", 3 * MB) == str(second)


def test_where_no_place_has_room_all_of_them_are_named(user: Users, root: Path, second: Path) -> None:
    one = user((root, False, 2 * MB), (second, False, 4 * MB))
    said = one.use("a", 2000 * MB)
    assert said.startswith("WeightsError: no room for model s3://b/a (2.10 GB): ")
    assert f"GB are free in {root}, " in said
    assert f"GB are free in {second}; set DRAY_MODEL_CACHE to a folder on a larger disk" in said
    assert not list(root.glob("*.partial")) + list(second.glob("*.partial"))


def test_a_place_that_cannot_be_made_is_named_too(user: Users, root: Path, second: Path) -> None:
    second.write_text("no folder")
    one = user((root, False, 2 * MB), (second, False, 10 * MB))
    said = one.use("a", 3 * MB)
    assert f"{second}: models cannot be kept there: File exists" in said
    assert said.startswith("WeightsError: no room for model s3://b/a")
    assert one.use("b", 1 * MB) == str(root)


def test_a_first_place_that_is_not_ours_is_passed_over_and_said(
    root: Path, second: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Shared memory is open to all users of a machine: another one may have made our folder there."""
    (root / manifest("a").key).mkdir(parents=True)  # what lies there is not believed
    found = [CacheRoot(root=root, memory=False), CacheRoot(root=second, memory=False)]
    monkeypatch.setattr(cache, "cache_roots", lambda: found)
    monkeypatch.setattr(cache, "prepare", lambda place: _prepare_as_another(place, where=root))
    with attached(manifest("a")) as paths:
        assert paths.place.root == second
    assert f"{root}: models cannot be kept there: it belongs to another user" in caplog.text
    assert f"the model goes to {second}" in caplog.text


def _prepare_as_another(place: CacheRoot, *, where: Path) -> None:
    """As :func:`prepare` does for a user who has not made the folder at ``where``."""
    with pytest.MonkeyPatch.context() as patch:
        if place.root == where:
            patch.setattr("os.getuid", lambda: where.stat().st_uid + 1)
        prepare(place)


# -- looking and removing ---------------------------------------------------------------------


@pytest.fixture
def place(root: Path, monkeypatch: pytest.MonkeyPatch) -> CacheRoot:
    """The same place, for this process."""
    found = CacheRoot(root=root, memory=True)
    monkeypatch.setattr(cache, "cache_roots", lambda: [found])
    monkeypatch.setattr(cache, "room", lambda place: 10 * MB)
    return found


def _filled(name: str) -> str:
    with attached(manifest(name)) as paths:
        (paths.partial / "f").write_bytes(bytes(MB))
        paths.partial.rename(paths.whole)
        return paths.key


def test_what_lies_at_a_place_can_be_looked_at(place: CacheRoot) -> None:
    assert cached_models(place) == []
    key = _filled("a")
    with attached(manifest("b")) as paths:
        found = cached_models(place)
        assert [(model.uri, model.whole, model.in_use) for model in found] == [
            ("s3://b/b", False, True),
            ("s3://b/a", True, False),
        ]
        assert found[1].key == key
        assert found[1].size >= MB
        assert abs(found[1].used - time.time()) < 60
        assert paths.partial.is_dir()


def test_what_is_not_used_can_be_removed(place: CacheRoot) -> None:
    keys = [_filled(name) for name in "abc"]
    with attached(manifest("a")):
        assert evict(place, {keys[0], keys[1]}) == [keys[1]]
        assert {model.key for model in cached_models(place)} == {keys[0], keys[2]}
        assert evict(place) == [keys[2]]
        assert (place.root / keys[0]).is_dir()


def test_of_a_model_whose_removal_was_cut_short_nothing_is_believed(
    place: CacheRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = _filled("a")
    (place.root / f"{key}.engine").mkdir()

    def killed(path: Path, ignore_errors: bool = False) -> None:
        (path / "f").unlink(missing_ok=True)  # whichever of its folders comes first
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            evict(place, {key})
        assert list(place.root.glob("*.gone-*"))
    with attached(manifest("a")) as paths:
        assert not paths.whole.exists()
        assert not paths.engine.exists()
        assert paths.partial.is_dir()
        assert [model.key for model in cached_models(place)] == [key]
        assert not list(place.root.glob("*.gone-*"))


def test_with_the_last_model_the_folder_goes(place: CacheRoot) -> None:
    _filled("a")
    assert len(evict(place)) == 1
    assert not place.root.exists()
    assert evict(place) == []
    _filled("a")  # and comes again
    assert len(cached_models(place)) == 1


def test_what_is_not_ours_stays(place: CacheRoot) -> None:
    """The folder may be one that the user has for other things too, such as /dev/shm."""
    _filled("a")
    (place.root / "theirs").write_text("precious")
    evict(place)
    assert (place.root / "theirs").read_text() == "precious"
    (place.root / ("x" * 64)).mkdir()  # no key, though as long as one
    evict(place)
    assert (place.root / ("x" * 64)).is_dir()


def test_a_model_that_came_while_the_folder_went_is_not_lost(place: CacheRoot, user: Users) -> None:
    """Users come and go while the place is emptied again and again."""
    users = [user((place.root, True, 10 * MB)) for _ in range(2)]
    for turn in range(20):
        for number, one in enumerate(users):
            one.ask(f"m{number}", MB, fill=bool(turn % 2))
        evict(place)
        for number, one in enumerate(users):
            assert one.told() == str(place.root)
            paths = ModelPaths(place=place, key=manifest(f"m{number}", MB).key)
            evict(place)
            assert (paths.whole if turn % 2 else paths.partial).is_dir()
            one._tell("")
        evict(place)
        assert [one.told() for one in users] == ["left", "left"]
        evict(place)


def test_a_folder_that_another_job_removes_meanwhile_holds_no_models(place: CacheRoot) -> None:
    """Two jobs with one model end together: the second waits for the lock, which goes with the folder."""
    _filled("a")
    found: list[list[object]] = []
    threads = [
        threading.Thread(target=lambda look=look: found.append(look(place)))
        for look in (evict, cached_models)
    ]
    with (place.root / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for thread in threads:
            thread.start()
        time.sleep(0.1)  # both wait for the lock
        place.root.rename(place.root.with_name("gone"))
    for thread in threads:
        thread.join(10)
    assert found == [[], []]


def test_a_model_that_another_job_removes_first_is_no_fault(
    place: CacheRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    _filled("a")

    def overtaken(place: CacheRoot) -> list[CachedModel]:
        models = cached_models(place)
        shutil.rmtree(place.root)
        return models

    monkeypatch.setattr(cache, "cached_models", overtaken)
    assert evict(place) == []


def test_a_lock_that_somebody_keeps_is_named(place: CacheRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    _filled("a")
    ticks = iter(range(1000))
    monkeypatch.setattr(cache, "time", SimpleNamespace(monotonic=lambda: next(ticks), sleep=lambda s: None))
    with (place.root / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(WeightsError, match=r"first/\.lock is held for a minute; is a process stopped\?"):
            cached_models(place)


def test_what_cannot_be_begun_is_not_in_use(place: CacheRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, manifest: Manifest) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "write_description", full)
    with pytest.raises(OSError, match="No space left"), attached(manifest("a")):
        pass
    assert [model.in_use for model in cached_models(place)] == [False]


def test_a_description_that_cannot_be_written_again_stays(
    place: CacheRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loaders read it meanwhile."""

    def cut_short(self: Path, text: str) -> int:
        with self.open("w") as file:
            file.write(text[:10])
        raise OSError(28, "No space left on device")

    with attached(manifest("a")) as paths:
        before = read_description(paths.partial / DESCRIPTION)
        monkeypatch.setattr(Path, "write_text", cut_short)
        with pytest.raises(OSError, match="No space left"):
            lay_out(paths.partial, manifest("a"))
        assert read_description(paths.partial / DESCRIPTION) == before


def test_a_shelf_finds_a_file_before_and_after_it_is_whole(place: CacheRoot) -> None:
    with attached(manifest("a")) as paths:
        (paths.partial / "f").write_text("x")
        assert paths.file("f") == paths.partial / "f"
        paths.partial.rename(paths.whole)
        assert paths.file("f") == paths.whole / "f"
    shutil.rmtree(place.root)
    assert os.path.lexists(place.root) is False


def test_a_model_whose_folders_change_while_they_are_counted_stays_in_use(
    place: CacheRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that fills it renames and removes files, which no lock of the place holds up."""
    stat = os.stat

    def gone(path: object, *given: object, **named: object) -> os.stat_result:
        if str(path).endswith("/f"):
            raise FileNotFoundError(path)
        return stat(path, *given, **named)  # type: ignore[arg-type]

    with attached(manifest("a")) as paths:
        (paths.partial / "f").write_bytes(bytes(MB))
        with monkeypatch.context() as patch:
            patch.setattr(os, "stat", gone)
            found = cached_models(place)
        assert [(model.in_use, model.whole) for model in found] == [(True, False)]
        monkeypatch.setattr(cache, "room", lambda place: 0)
        with pytest.raises(WeightsError, match="no room"), attached(manifest("b")):
            pass
        assert paths.partial.is_dir()


def test_a_model_that_is_taken_for_unused_is_looked_at_again_before_it_goes(
    place: CacheRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    with attached(manifest("a")) as paths:
        (paths.partial / "f").write_bytes(bytes(MB))
        wrong = replace(cached_models(place)[0], in_use=False)
        monkeypatch.setattr(cache, "_models", lambda place: [wrong])
        monkeypatch.setattr(cache, "room", lambda place: 0)
        assert not cache._make_room(place, 100)
        assert paths.partial.is_dir()


def _begun(user: Users, places: list[tuple[Path, bool, int]], root: Path) -> User:
    """A user that had 1 MB of a model of 6 MB, and left."""
    one = user(*places)
    assert one.use("a", 6 * MB, fill=False) == str(root)
    (root / f"{manifest('a', 6 * MB).key}.partial/f").write_bytes(bytes(MB))
    one.leave()
    return one


def test_a_model_that_was_begun_earlier_is_given_room_for_the_rest(user: Users, root: Path) -> None:
    one = _begun(user, [(root, False, 10 * MB)], root)
    assert one.use("b", 6 * MB) == str(root)
    one.leave()
    assert one.use("a", 6 * MB, fill=False) == str(root)
    assert not there(root, "b", size=6 * MB)
    assert (root / f"{manifest('a', 6 * MB).key}.partial/f").stat().st_size == MB  # it goes on


def test_a_model_that_was_begun_where_there_is_no_room_any_more_is_begun_elsewhere(
    user: Users, root: Path, second: Path
) -> None:
    places = [(root, False, 10 * MB), (second, False, 10 * MB)]
    one, other = _begun(user, places, root), user(*places)
    assert other.use("b", 6 * MB) == str(root)
    assert one.use("a", 6 * MB, fill=False) == str(second)
    assert not (root / f"{manifest('a', 6 * MB).key}.partial").exists()
