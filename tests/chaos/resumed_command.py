"""A job of the real command that is killed at a point: Prefect, Ray, and a process for each part."""

from __future__ import annotations

from pathlib import Path

from dray.store import open_store
from dray.triggers import Point
from tests.chaos.resumed_job import FILES
from tests.chaos.thread_job import JOB
from tests.support.command import Command, run_arguments
from tests.support.history import check_history

REAL_ROWS, REAL_SHARD_ROWS = 60, 12


class RealJob:
    """One job of the real command on a local cluster, with one trigger."""

    def __init__(
        self, folder: Path, inputs: Path, point: Point | None = None, *, crashes: bool = False
    ) -> None:
        self.output = folder / "out"
        self.history = folder / "history"
        self.fired = folder / "triggers" / f"{point}.fired"
        self.fired.parent.mkdir()
        self._folder = folder
        settings = ("max_num_seqs=4", "seconds_per_token=0.01", *(["crash_on=number 31"] if crashes else []))
        more = ("--shard-rows", str(REAL_SHARD_ROWS))
        self._arguments = run_arguments(inputs, self.output, *more, settings=settings)
        self._environment = {"DRAY_HISTORY_DIR": str(self.history), "DRAY_NO_WAIT": "1"}
        if point is not None:
            triggers = {"DRAY_TRIGGER": str(point), "DRAY_TRIGGER_DIR": str(self.fired.parent)}
            self._environment |= triggers
        self._runs = 0

    def start(self) -> Command:
        """The command, which is the same each time."""
        self._runs += 1
        folder = self._folder / f"run-{self._runs}"
        return Command(arguments=self._arguments, folder=folder, environment=self._environment)

    def finished(self, command: Command, expected: list[bytes]) -> None:
        """It ends well by itself, with all that holds then, and leaves nothing."""
        ended = command.wait(300)
        assert ended.code == 0, ended.stderr[-6000:]
        assert self.fired.exists(), "nothing was killed"
        store = f"sqlite:///{self.output / 'dray.db'}"
        print(check_history(self.history, store, JOB, self.output))
        assert [(self.output / name).read_bytes() for name in FILES] == expected
        assert [path for path in self.output.rglob("*") if path.suffix in (".part", ".old")] == []
        with open_store(store, create=False) as opened:
            assert opened.get_job(JOB).driver is None
            assert {shard.owner for shard in opened.shards(JOB)} == {None}
        command.assert_nothing_left()
