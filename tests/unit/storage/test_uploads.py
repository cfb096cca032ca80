"""Files on their way to an object store over a slow line, or one that breaks."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dray.errors import JobFailedError
from dray.storage import draft, objects
from dray.storage.draft import CopiedDraft
from dray.storage.objects import ObjectStoreOptions, store_of, upload

pytestmark = pytest.mark.unit

SCHEMES = {
    "s3": ObjectStoreOptions(region="r", access_key_id="a", secret_access_key="b"),
    "az": ObjectStoreOptions(extra=(("account_name", "a"), ("skip_signature", "true"))),
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_part_may_take_minutes_and_a_read_half_a_minute(scheme: str) -> None:
    uploads: Any = store_of(f"{scheme}://bucket/a", SCHEMES[scheme], uploads=True)[0]
    reads: Any = store_of(f"{scheme}://bucket/a", SCHEMES[scheme])[0]
    assert uploads.client_options["timeout"] == "10m"
    assert uploads.retry_config["retry_timeout"] > timedelta(minutes=10)  # one that took so long goes again
    assert "timeout" not in (reads.client_options or {})


@pytest.mark.parametrize("size", [0, 1, 100 << 30, 5 << 40])
def test_parts_under_way_pass_a_slow_line_within_their_time(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 0.5 MB/s, as an office's line brings up."""
    put: dict[str, Any] = {}
    store = SimpleNamespace(put=lambda key, path, **how: put.update(how))
    monkeypatch.setattr(objects, "store_of", lambda uri, options, *, uploads: (store, "a"))
    file: Any = SimpleNamespace(stat=lambda: SimpleNamespace(st_size=size))
    upload(file, "gs://bucket/a")
    assert put["chunk_size"] * 10_000 >= size
    at_once = put["chunk_size"] * put["max_concurrency"]
    assert size > 1 << 40 or at_once / 0.5e6 < objects._UPLOAD_TIMEOUT.total_seconds()


def test_a_draft_goes_up_again_when_the_line_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft, "PATIENCE", (0.0,) * 3)
    monkeypatch.setattr(objects, "delete", lambda uri, options: None)
    tries: list[bytes] = []

    def broken(path: Path, uri: str, options: ObjectStoreOptions | None) -> None:
        tries.append(path.read_bytes())
        if len(tries) < whole_at:
            raise OSError("the line broke")

    monkeypatch.setattr(objects, "upload", broken)
    for whole_at, count in ((3, 3), (9, 4)):
        tries.clear()
        found = CopiedDraft("gs://bucket/output.jsonl", "output.jsonl", None, None)
        found.write(b"answers")
        if whole_at <= count:
            found.sync()
        else:
            with pytest.raises(JobFailedError, match="the line broke"):
                found.sync()
        found.drop()
        assert tries == [b"answers"] * count
