"""Rows 7 and 8: not allowed, and not there."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dray.errors import WeightsError
from dray.weights import LocalModel, check_remote, read_manifest
from dray.weights.loading.streamed import StreamedWeights
from tests.integration.weights.bad_inputs.support import (
    CHUNK,
    SECOND,
    URI,
    Webs,
    arrives,
    asked,
    is_refused,
    known,
    until,
)
from tests.support.s3_emulator import EmulatorProcess

pytestmark = pytest.mark.integration


def test_row_07_no_access_is_told_with_object_and_key_and_not_asked_for_again_and_again(
    server: EmulatorProcess, origin: Path, cache: Path
) -> None:
    manifest = known(server)
    server.behave(access_key="another")
    said = is_refused(manifest, server.options, cache, "not allowed: s3://bucket/models/m/.* as key ")
    assert "HTTP 403, with fresh credentials too" in said
    assert "secret" not in said
    assert 2 <= asked(server) <= 40  # of 25 chunks


def test_row_07_a_token_that_expires_mid_load(server: EmulatorProcess, origin: Path, cache: Path) -> None:
    manifest = known(server)
    server.behave(expires_after=12)
    says = r"not allowed: s3://bucket/models/m/.* as key "
    with LocalModel(manifest, server.options) as model, pytest.raises(WeightsError, match=says):
        list(StreamedWeights.of(model.wait_engine()).tensors())
    assert not (cache / manifest.key).exists()
    assert asked(server) <= 12 + 40


def test_row_07_http_401_is_no_access_too(web: Webs, cache: Path) -> None:
    closed = web(lambda wanted: wanted.say(401))
    is_refused(closed.manifest, None, cache, r"not allowed: http://.*/m/model\.safetensors \(HTTP 401")
    assert closed.requests <= 40


CREDENTIALS = """
import datetime, json, sys
from pathlib import Path
until = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(minutes=1)
key = Path(sys.argv[1]).read_text()
told = dict(Version=1, AccessKeyId=key, SecretAccessKey="s", SessionToken="t", Expiration=until.isoformat())
print(json.dumps(told))
"""


def test_row_07_fresh_credentials_are_asked_for_once_and_the_load_goes_on(
    server: EmulatorProcess, origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that a helper gives out for a minute, as clouds do; the store ends the first one early."""
    key = tmp_path / "key"
    key.write_text("first")
    (tmp_path / "helper.py").write_text(CREDENTIALS)
    helper = f"{sys.executable} {tmp_path / 'helper.py'} {key}"
    (tmp_path / "config").write_text(f"[default]\nregion = us-east-1\ncredential_process = {helper}\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    options = replace(server.options, access_key_id=None, secret_access_key=None)
    server.behave(access_key="first", node_rate=3e6)
    manifest = replace(read_manifest(URI, options), chunk_bytes=CHUNK)
    with LocalModel(manifest, options) as model:
        until(lambda: model.marks().count(1) >= 6)
        key.write_text("second")
        server.ask("PUT", "behaviour", {"access_key": "second", "node_rate": 3e6})
        folder = model.wait_whole()
        assert (folder / SECOND).read_bytes() == (origin / SECOND).read_bytes()
    assert model.outcome is not None
    assert 1 <= model.outcome.faults["denied"] <= 40


@pytest.mark.heavy(one_of=3)
def test_row_07_who_asks_anew_after_a_failure_tries_anew(
    server: EmulatorProcess, origin: Path, cache: Path
) -> None:
    for round_number in range(8):
        manifest = replace(known(server), chunk_bytes=CHUNK + 4096 * round_number)
        server.behave(access_key="another")
        is_refused(manifest, server.options, cache, "not allowed")
        server.behave()
        arrives(manifest, server.options, origin)


def test_row_08_what_is_gone_when_the_job_is_planned(
    server: EmulatorProcess, origin: Path, cache: Path
) -> None:
    manifest = known(server)
    (origin / SECOND).unlink()
    with pytest.raises(WeightsError, match=r"no such object: s3://bucket/models/m/model-2\.safetensors"):
        check_remote(manifest, server.options)
    is_refused(manifest, server.options, cache, r"no such object: .*/model-2\.safetensors; it was there when")
    with pytest.raises(WeightsError, match=r"tensor 'head' is not in model-2\.safetensors, which is missing"):
        check_remote(known(server), server.options)


def test_row_08_what_goes_while_it_is_read(server: EmulatorProcess, origin: Path, cache: Path) -> None:
    manifest = known(server)
    server.behave(node_rate=3e6)
    with LocalModel(manifest, server.options) as model:
        until(lambda: model.marks().count(1) >= 5)
        (origin / SECOND).unlink()
        with pytest.raises(WeightsError, match=r"no such object: .*/model-2\.safetensors; it was there when"):
            model.wait_whole()
    assert not (cache / manifest.key).exists()
