"""The command line: ``dray run`` and the commands that read the store."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the ``dray`` command."""
    from dray.cli.warming import warm_up_for
    from dray.processes import end

    try:
        with warm_up_for(sys.argv[1:]):
            from dray.cli.app import run_app

            code = run_app(sys.argv[1:])
    except KeyboardInterrupt:  # while it imports
        code = 130
    end(code)
