"""The pages of a hub about datasets: ``/api/datasets/ORG/NAME/revision|tree/REV`` and their files.

FOLDER/hub/datasets/ORG/NAME holds the branch ``main``. FOLDER/hub/datasets/ORG/NAME@REV holds another, and
has ``%2F`` for a slash. A commit is known while one of these folders has its files: a copy of a folder
that keeps the times of its files (``shutil.copytree``) keeps the commit. Parquet and compressed files are
large ones, elsewhere. Folders are listed in pages, with a Link header to the next.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode

from tests.support.s3_pages import (
    HUB,
    HubPage,
    Refusal,
    Request,
    etag_of,
    hub_commit,
    hub_files,
    hub_refusal,
    linked_etag,
)

LARGE = (".parquet", ".gz", ".zst")

_NAME = r"(?P<name>[^/]+/[^/]+)"
_PAGES = (
    re.compile(rf"/api/datasets/{_NAME}(?:/revision/(?P<revision>[^/]+))?"),
    re.compile(rf"/api/datasets/{_NAME}/(?P<tree>tree)/(?P<revision>[^/]+)(?:/(?P<path>.+))?"),
    re.compile(rf"/datasets/{_NAME}/resolve/(?P<revision>[^/]+)/(?P<file>.+)"),
)


@dataclass(frozen=True, kw_only=True)
class DatasetPage(HubPage):
    """A page of a dataset; ``tree`` is the folder whose content is asked for."""

    tree: str | None = None

    @property
    def is_large(self) -> bool:
        """Whether the file is kept elsewhere."""
        return self.file is not None and self.file.endswith(LARGE)


def dataset_page(root: Path, request: Request) -> DatasetPage | None:
    """The page of a dataset that is asked for, if it is one. A branch beside main has a folder of its own."""
    found = next((match for pattern in _PAGES if (match := pattern.fullmatch(request.raw_path))), None)
    if found is None or not (root / HUB).is_dir():
        return None
    parts = {name: unquote(text) for name, text in found.groupdict().items() if text is not None}
    repository, revision = f"datasets/{parts['name']}", parts.get("revision", "main")
    folder = root / HUB / repository
    for branch in folder.parent.glob(f"{folder.name}@*"):
        place = f"{repository}@{branch.name.partition('@')[2]}"
        if branch.name == f"{folder.name}@{quote(revision, safe='')}":
            repository, revision = place, "main"
            break
        page = DatasetPage(repository=place, revision=revision, file=None)
        if hub_refusal(page, hub_files(root, page)) is None and revision != "main":
            repository = place
            break
    tree = parts.get("path", "") if "tree" in parts else None
    return DatasetPage(repository=repository, revision=revision, file=parts.get("file"), tree=tree)


def dataset_answer(
    page: DatasetPage, files: dict[str, Path], request: Request, *, changed: bool, entries: int
) -> tuple[Any, dict[str, str]] | Refusal:
    """The JSON of a page that is no file, and its headers."""
    if page.tree is None:
        return {"id": page.repository, "sha": hub_commit(files, changed=changed)}, {}
    recursive = request.query.get("recursive") == "true"
    found = _entries(files, page.tree, recursive=recursive, changed=changed)
    if not found and page.tree:
        return Refusal(status=404, code="EntryNotFound", message=f"{page.tree} does not exist")
    start = int(request.query.get("cursor", "0"))
    if start + entries >= len(found):
        return found[start:], {}
    query = urlencode({**request.query, "cursor": start + entries})
    following = f"http://{request.headers['host']}{request.raw_path}?{query}"
    return found[start : start + entries], {"Link": f'<{following}>; rel="next"'}


def _entries(files: dict[str, Path], tree: str, *, recursive: bool, changed: bool) -> list[dict[str, Any]]:
    """Files and folders below ``tree``, or right below it; of a file's path, the file itself."""
    prefix = f"{tree}/" if tree else ""
    found: dict[str, dict[str, Any]] = {}
    for name, file in files.items():
        if name != tree and not name.startswith(prefix):
            continue
        *above, _ = name.removeprefix(prefix).split("/")
        for depth in range(1, len(above) + 1) if recursive else range(1, min(2, len(above) + 1)):
            folder = prefix + "/".join(above[:depth])
            found[folder] = {"type": "directory", "oid": "0" * 40, "size": 0, "path": folder}
        if recursive or not above:
            found[name] = _file(name, file, changed)
    return list(found.values())


def _file(name: str, file: Path, changed: bool) -> dict[str, Any]:
    stat = file.stat()
    entry: dict[str, Any] = {
        "type": "file",
        "oid": etag_of(stat, changed=changed).strip('"'),
        "size": stat.st_size,
        "path": name,
    }
    if name.endswith(LARGE):
        digest = linked_etag(file, changed=changed)
        entry |= {"lfs": {"oid": digest, "size": stat.st_size, "pointerSize": 131}, "xetHash": "0" * 64}
    return entry
