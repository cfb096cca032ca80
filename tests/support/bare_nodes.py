"""Nodes as dray's images make them, with the wheel and none of a checkout's packages; and without dray."""

from __future__ import annotations

from pathlib import Path

_SITE = '''
import importlib.abc
import importlib.machinery
import sys


class Wheel(importlib.abc.MetaPathFinder):
    """Finds these packages where Ray has put them for a job, and nowhere else."""

    def find_spec(self, name, path=None, target=None):
        if name not in ("blocks", "flows", "tasks"):
            return None
        places = [place for place in sys.path if "py_modules_files" in place]
        found = importlib.machinery.PathFinder.find_spec(name, places)
        if found is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return found


sys.meta_path.insert(0, Wheel())
'''

_NO_DRAY = """
import sys


class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name == "dray":
            raise ModuleNotFoundError("No module named 'dray'", name=name)


sys.meta_path.insert(0, Nothing())
"""


def bare(folder: Path) -> dict[str, str]:
    """Variables of a node on which no process can import flows, tasks or blocks."""
    return _with_site(folder, _SITE)


def without_dray(folder: Path) -> dict[str, str]:
    """Variables of a node on which no process can import dray."""
    return _with_site(folder, _NO_DRAY)


def _with_site(folder: Path, code: str) -> dict[str, str]:
    folder.mkdir(parents=True)
    (folder / "sitecustomize.py").write_text(code)
    return {"PYTHONPATH": str(folder)}
