"""Where the files of a model are read: addresses that a plain HTTP client can use."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import quote, unquote

from dray.storage.hub_http import web_address
from dray.storage.objects import ObjectStoreOptions, forget_credentials, is_web
from dray.storage.signing import signed_url
from dray.weights.source.hub import address as hub_address
from dray.weights.source.hub import is_hub
from dray.weights.source.manifest import Manifest, ModelFile

SIGNED_SECONDS = 3600.0
_AT_ONCE = 8  # addresses that a hub is asked for; each takes it some 0.2 s, and large models have 60 files
_RENEWED_AFTER = 900.0  # seconds; a signature dies with the session that made it, whatever it says itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where to ask, and with which headers. ``url`` may be signed, and is then a secret."""

    url: str
    headers: dict[str, str]


class Origin:
    """Signs addresses as they are needed, and again when they were refused."""

    def __init__(self, manifest: Manifest, options: ObjectStoreOptions | None) -> None:
        self._manifest = manifest
        self._options = options
        self._known: dict[str, tuple[Address, float]] = {}
        self._renewed = float("-inf")  # when fresh credentials were last asked for
        self._moved: set[str] = set()  # names of files whose addresses redirect
        self._threads = ThreadPoolExecutor(_AT_ONCE, "dray-addresses")  # none until they are needed
        self._expected: list[ModelFile] = []
        self._ahead: dict[str, Future[Address]] = {}
        self._ahead_since = float("-inf")

    def expect(self, files: Iterable[ModelFile]) -> None:
        """These files will be read, in this order: with the first one a hub is asked for all of them."""
        self._expected = list(files)

    def close(self) -> None:
        """No address is asked for any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def address(self, file: ModelFile, *, fresh: bool = False) -> Address:
        """Where to read a file.

        Raises:
            OSError: it cannot be signed.
        """
        now = time.monotonic()
        if fresh and now - self._renewed > 1.0:  # what was signed before then is not fresh
            forget_credentials()
            self._renewed = now
        address, signed = self._known.get(file.name, (None, float("-inf")))
        if address is None or now - signed > _RENEWED_AFTER or (fresh and signed < self._renewed):
            hub = is_hub(self._manifest.uri)
            address, signed = self._of_hub(file, now) if hub else (self._of_store(file), now)
            self._known[file.name] = (address, signed)
        return address

    def moved(self, file: ModelFile) -> None:
        """An address of the file redirects, and fetch processes do not follow: where to is looked up next."""
        _, known = self._known.get(file.name, (None, float("-inf")))
        if file.name not in self._moved or time.monotonic() - known > 1.0:  # else of a request sent before
            self._moved.add(file.name)
            self._known.pop(file.name, None)

    def _of_hub(self, file: ModelFile, now: float) -> tuple[Address, float]:
        """Where a hub has the file, and since when that is known: an address asked for ahead is older."""
        if self._expected:
            self._ahead = {one.name: self._threads.submit(_at_hub, one) for one in self._expected}
            self._expected, self._ahead_since = [], now
        ahead = self._ahead.pop(file.name, None)
        if ahead is None or now - self._ahead_since > _RENEWED_AFTER:
            return _at_hub(file), now
        try:
            return ahead.result(), self._ahead_since
        except OSError:  # a hub that is busy is asked for one at a time from now on
            for other in self._ahead.values():
                other.cancel()
            self._ahead.clear()
            raise

    def _of_store(self, file: ModelFile) -> Address:
        uri = f"{self._manifest.uri}/{file.name}"
        url = signed_url(uri, self._options, seconds=SIGNED_SECONDS)
        if is_web(uri):
            url = quote(url, safe=":/?&=%+,;@~$!*'()#[]")
            url = web_address(url, file.name) if file.name in self._moved else url
        # A weak ETag never matches If-Match (RFC 9110, 13.1.1); the answer's own is compared in any case.
        headers = {} if file.etag.startswith("W/") or not file.etag else {"If-Match": file.etag}
        return Address(url=url, headers=headers)

    def principal(self) -> str:
        """The id of the key that signed last, as stores show it; empty if nothing is signed."""
        latest = max(self._known.values(), key=lambda known: known[1], default=None)
        url = "" if latest is None else unquote(latest[0].url)
        found = re.search(r"(?:X-Amz-Credential|X-Goog-Credential)=([^&/%]+)", url)
        return found[1] if found else ""


def _at_hub(file: ModelFile) -> Address:
    url, headers = hub_address(file)
    return Address(url=url, headers=headers)
