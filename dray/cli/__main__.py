"""``python -m dray.cli``: the ``dray`` command where only the interpreter is known."""

from dray.cli import main

if __name__ == "__main__":
    main()
