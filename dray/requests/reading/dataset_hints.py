"""What is said of an address of a hub that names no file to read, and what the dataset has instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice

from dray.requests.reading.formats import FORMATS, known_ending
from dray.storage import datasets
from dray.storage.datasets import Address, DatasetError, address_of, is_dataset

_SHOWN = 3
_ENTRIES_SEEN = 10_000  # of a dataset, for a hint: ten pages
_COPY = "@refs%2Fconvert%2Fparquet/**/*.parquet"


def told_of_hub(address: str) -> str:
    """What to say of an input on a hub whose name tells no format. The hub is asked what there is.

    ``address`` is one of a dataset or of another repository; its revision may be a branch.
    """
    if not is_dataset(address):
        return told_of_other(address)
    try:
        return told_of_dataset(address_of(address))
    except DatasetError as error:
        return str(error)


def told_of_commits(files: Iterable[str]) -> str | None:
    """Which commits are read of datasets; None where no file is of one."""
    found = [address_of(file) for file in files if is_dataset(file)]
    commits = dict.fromkeys(f"dataset {at.repository} at commit {at.revision}" for at in found)
    return ", ".join(commits) or None


def told_of_other(address: str) -> str:
    """What to say of a model, a space or the like as input."""
    return (
        f"{address.partition('@')[0]} is no dataset, and dray reads its input from datasets; write "
        "hf://datasets/ORG/NAME/PATH (a model's address goes with --model)"
    )


def told_of_dataset(at: Address) -> str:
    """Which files of a dataset could be read, and how to name them.

    Files of the folder that ``at`` names come first, if there are any.

    Raises:
        DatasetError: it cannot be listed.
    """
    pinned = address_of(datasets.pinned(at.uri))
    for folder in dict.fromkeys((_begin(at.path), "")):
        found = _patterns(_names(pinned, folder))
        if found:
            break
    else:
        return (
            f"dataset {at.repository} has no file that dray reads ({', '.join(FORMATS)}); the hub may keep a "
            f"copy in Parquet: '{datasets.SCHEME}{at.repository}{_COPY}'"
        )
    root = _as_written(at)
    named = ", ".join(f"'{root}/{pattern}' ({_counted(count)})" for pattern, count in found[:_SHOWN])
    more = f", and {len(found) - _SHOWN:,} more of such patterns" if len(found) > _SHOWN else ""
    return f"name files of the dataset, for example {named}{more}"


def _begin(path: str) -> str:
    """The folder that a path or a pattern begins with."""
    signs = [path.index(sign) for sign in "*?[" if sign in path]
    return path[: min(signs)].rpartition("/")[0] if signs else path.strip("/")


def _names(pinned: Address, folder: str) -> list[str]:
    prefix = f"{datasets.SCHEME}{pinned.repository}@{pinned.revision}/"
    below = datasets.list_under(f"{prefix}{folder}/" if folder else prefix)
    return [info.uri.removeprefix(prefix) for info in islice(below, _ENTRIES_SEEN)]


def _patterns(names: Iterable[str]) -> list[tuple[str, int]]:
    """A pattern for the files of each format in each folder, and their number; most files first."""
    known = ((name, known_ending(name)) for name in names)
    counts = Counter((name.rpartition("/")[0], ending) for name, ending in known if ending)
    return [
        (f"{place}/*{ending}" if place else f"*{ending}", count)
        for (place, ending), count in sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    ]


def _counted(count: int) -> str:
    return f"{count:,} file" + "s" * (count != 1)


def _as_written(at: Address) -> str:
    """The repository with its revision as a user writes it."""
    plain = Address(repository=at.repository, revision=at.revision, path="").uri
    return plain.removesuffix("@main")
