"""All benchmarks, one after the other: ``python -m tests.benchmarks --help``."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

NAMES = (
    "store", "ordering", "order", "fields", "planning", "cost", "tuning", "deadline", "start", "idle",
    "scale", "embeddings", "scale_up", "places", "fleet", "device", "gpu", "batching", "forecast",
    "throughput", "images", "scores", "unequal_nodes", "weights", "weights_s3",
)  # fmt: skip


def main() -> int:
    """Run each in a process of its own; the exit code is 0 when all of them ran to their end."""
    arguments = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    failed = [name for name in arguments.only if _run(_command(name, arguments)) != 0]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description="All benchmarks, one after the other. Each has its own --help: "
        + ", ".join(f"tests.benchmarks.{name}" for name in NAMES),
    )
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--quick", action="store_true", help="small and once: do they work at all?")
    parser.add_argument(
        "--smoke", action="store_true", help="dray alone, as small as it gets: what CI starts"
    )
    parser.add_argument("--record", action="store_true", help="rewrite the sections of RESULTS.md")
    parser.add_argument("--repeats", type=int, default=None, help="rounds, where not each one's own number")
    parser.add_argument("--folder", type=Path, default=None, help="where temporary files go; a real disk")
    return parser.parse_args(argv)


def _run(command: list[str]) -> int:
    """Its exit code. Ending this program ends the benchmark in order, which ends what it measures."""
    process = subprocess.Popen(command)
    try:
        return process.wait()
    finally:
        process.terminate()
        process.wait()


def _command(name: str, arguments: argparse.Namespace) -> list[str]:
    command = [sys.executable, "-m", f"tests.benchmarks.{name}"]
    command += ["--quick"] if arguments.quick else []
    command += ["--smoke"] if arguments.smoke else []
    command += ["--record"] if arguments.record else []
    command += ["--repeats", str(arguments.repeats)] if arguments.repeats else []
    command += ["--folder", str(arguments.folder)] if arguments.folder else []
    return command


if __name__ == "__main__":
    sys.exit(main())
