"""Nodes as dray's images make them: they have the wheel, and none of a checkout's packages."""

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


def bare(folder: Path) -> dict[str, str]:
    """Variables of a node on which no process can import flows, tasks or blocks."""
    folder.mkdir(parents=True)
    (folder / "sitecustomize.py").write_text(_SITE)
    return {"PYTHONPATH": str(folder)}
