"""Named trigger points: what a process does when it reaches one, and that dray reaches them all."""

from __future__ import annotations

import ast
import itertools
import os
import re
import signal
import subprocess
import sys
import time
import timeit
from collections import Counter
from pathlib import Path

import pytest

from dray import triggers
from dray.errors import ConfigError
from dray.triggers import Point, reach

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]

# Which file reaches which point: a point that no code reaches would make its chaos tests prove nothing.
PLACES = {
    "dray/job/beginning/opening.py": [Point.JOB_CLAIMED],
    "dray/requests/spool/arranging.py": [Point.INGEST_ARRANGED],
    "dray/requests/spool/parts.py": [Point.INGEST_PART_FULL, Point.INGEST_PART_NAMED],
    "dray/job/rows/ingesting.py": [Point.INGEST_SPOOLED, Point.INGEST_PUBLISHED],
    "dray/shard/pump.py": [
        Point.FEED,
        Point.RESULTS_RECEIVED,
        Point.FINISH_BEFORE,
        Point.FINISH_AFTER,
    ],
    "dray/shard/committing.py": [Point.COMMIT_BEFORE, Point.COMMIT_AFTER],
    "dray/shard/placing.py": [Point.CLAIM_BEFORE, Point.CLAIM_AFTER],
    "dray/shard/ending.py": [
        Point.RELEASE_BEFORE,
        Point.RELEASE_AFTER,
        Point.SPLIT_BEFORE,
        Point.SPLIT_AFTER,
    ],
    "dray/driver/replicas/losses.py": [Point.VERDICT_BEFORE, Point.VERDICT_AFTER],
    "dray/engine/loop.py": [Point.REPLICA_ADMIT, Point.REPLICA_DELIVER],
    "dray/job/rows/following.py": [Point.FOLLOW_BEFORE, Point.FOLLOW_AFTER],
    "dray/job/ending/finalising.py": [Point.FINALISE_BEFORE, Point.FINALISE_AFTER],
    "dray/storage/drafts.py": [
        Point.FINALISE_WRITTEN,
        Point.FINALISE_RECORDED,
        Point.FINALISE_RENAMED,
    ],
}

CHILD = """
import sys
from dray.triggers import Point, TriggeredError, reach
for name in sys.argv[1:]:
    try:
        reach(Point(name))
    except TriggeredError:
        print("raised", flush=True)
    print(name, flush=True)
"""


def child(*names: str, trigger: str, folder: Path | None = None) -> subprocess.Popen[str]:
    environment = {**os.environ, "DRAY_TRIGGER": trigger, "PYTHONPATH": str(ROOT)}
    if folder is not None:
        environment["DRAY_TRIGGER_DIR"] = str(folder)
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, *names],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ran(*names: str, trigger: str, folder: Path | None = None) -> tuple[int, list[str]]:
    process = child(*names, trigger=trigger, folder=folder)
    out, _ = process.communicate(timeout=60)
    return process.returncode, out.split()


def test_the_process_kills_itself_at_the_named_point() -> None:
    assert ran("feed", "commit.before", "commit.after", trigger="commit.before") == (
        -signal.SIGKILL,
        ["feed"],
    )


def test_only_the_named_time_counts() -> None:
    assert ran("feed", "feed", "feed", trigger="feed:3") == (-signal.SIGKILL, ["feed", "feed"])
    assert ran("feed", "feed", "feed", trigger="feed:4") == (0, ["feed"] * 3)


def test_other_points_are_left_alone() -> None:
    assert ran(*Point, trigger="split.after:2") == (0, list(Point))


def test_raising_happens_once() -> None:
    assert ran("feed", "feed", "feed", trigger="feed:2=raise") == (0, ["feed", "raised", "feed", "feed"])


def test_several_triggers_at_once() -> None:
    code, said = ran("feed", "claim.after", "feed", trigger="claim.after=raise; feed:2=kill")
    assert (code, said) == (-signal.SIGKILL, ["feed", "raised", "claim.after"])


def test_a_stopped_process_goes_on_when_it_is_told_to() -> None:
    process = child("feed", "commit.before", trigger="commit.before=stop")
    try:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        process.send_signal(signal.SIGCONT)
        out, _ = process.communicate(timeout=60)
        assert (process.returncode, out.split()) == (0, ["feed", "commit.before"])
    finally:
        process.kill()


def test_sleeping_takes_the_given_time(monkeypatch: pytest.MonkeyPatch) -> None:
    armed = triggers.parse({"DRAY_TRIGGER": "feed=sleep 0.2"})
    monkeypatch.setattr(triggers, "_armed", armed)
    started = time.monotonic()
    reach(Point.FEED)
    assert 0.2 <= time.monotonic() - started < 5
    reach(Point.FEED)
    assert time.monotonic() - started < 5


def test_times_are_counted_over_the_processes_of_a_job(tmp_path: Path) -> None:
    trigger = "commit.after:3"
    assert ran("commit.after", "commit.after", trigger=trigger, folder=tmp_path)[0] == 0
    process = child("commit.after", "commit.after", trigger=trigger, folder=tmp_path)
    assert process.communicate(timeout=60)[0] == ""
    assert process.returncode == -signal.SIGKILL
    assert (tmp_path / "commit.after.fired").read_text() == f"{process.pid}\n"
    # A restarted process comes past the same place unharmed, however often.
    assert ran(*["commit.after"] * 5, trigger=trigger, folder=tmp_path) == (0, ["commit.after"] * 5)


def test_of_many_processes_at_once_one_is_hit(tmp_path: Path) -> None:
    rivals = [child(*["feed"] * 50, trigger="feed:120", folder=tmp_path) for _ in range(4)]
    reached = 0
    codes = Counter[int]()
    for rival in rivals:
        out, _ = rival.communicate(timeout=60)
        codes[rival.returncode] += 1
        reached += len(out.split())
    assert codes == {0: 3, -signal.SIGKILL: 1}
    # The one hit counted, and said nothing of it; the bytes are the times that anybody reached it.
    assert (tmp_path / "feed.count").stat().st_size == reached + 1


def test_a_trigger_whose_moment_was_missed_acts_at_the_next(tmp_path: Path) -> None:
    (tmp_path / "feed.count").write_bytes(b"...")  # the third was killed before it could act
    assert ran("feed", trigger="feed:3", folder=tmp_path) == (-signal.SIGKILL, [])


@pytest.mark.parametrize(
    "text", ["comit.after", "feed:0", "feed:x", "feed=die", "feed=sleep", "feed;", "feed=sleep 1.2.3"]
)
def test_a_trigger_that_cannot_act_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="DRAY_TRIGGER"):
        triggers.parse({"DRAY_TRIGGER": text})


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        triggers.parse({"DRAY_TRIGGER": "feed", "DRAY_TRIGGER_DIR": str(tmp_path / "none")})


def test_an_environment_without_it_arms_nothing(tmp_path: Path) -> None:
    assert triggers.parse({}) is triggers.parse({"DRAY_TRIGGER": ""}) is None
    assert triggers.parse({"DRAY_TRIGGER_DIR": str(tmp_path)}) is None


def test_it_is_nearly_free_when_off() -> None:
    """About 30 ns a call where nothing else runs, and 60 more to name the point; a row takes 80,000."""
    assert triggers._armed is None
    point = Point.FEED
    assert min(timeit.repeat(lambda: reach(point), number=20_000, repeat=5)) / 20_000 < 2e-6


def test_every_point_is_reached_from_one_place_and_no_other() -> None:
    found: dict[Point, list[str]] = {point: [] for point in Point}
    for path in sorted((ROOT / "dray").rglob("*.py")):
        for name in re.findall(r"\breach\(Point\.(\w+)\)", path.read_text()):
            found[Point[name]].append(str(path.relative_to(ROOT)))
    expected = {point: [place] for place, points in PLACES.items() for point in points}
    assert found == expected


def test_every_point_is_explained() -> None:
    tree = ast.parse((ROOT / "dray/triggers.py").read_text())
    (body,) = (node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Point")
    values = dict(itertools.pairwise(body))
    named = [node for node in body if isinstance(node, ast.Assign)]
    assert len(named) == len(Point)
    for node in named:
        after = values.get(node)
        assert isinstance(after, ast.Expr), ast.unparse(node)
        assert isinstance(after.value, ast.Constant)
