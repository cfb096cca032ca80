"""The command line: ``dray run`` and the commands that read the store."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the ``dray`` command."""
    from dray.cli.app import run_app
    from dray.processes import end

    end(run_app(sys.argv[1:]))
