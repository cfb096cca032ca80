"""Which keys go to S3: the user's own without the environment's token, temporary ones until they end."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dray.storage.aws_profile import boto3_credentials
from dray.storage.objects import ObjectStoreOptions, forget_credentials
from dray.storage.signing import signed_url

pytestmark = pytest.mark.unit

OWN = ObjectStoreOptions(region="us-east-1", access_key_id="BLOCK", secret_access_key="word")
TOKEN = "X-Amz-Security-Token="


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Temporary credentials of the environment's, as on a node with a role."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ENVIRONMENT")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "word")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-the-environment")
    forget_credentials()
    yield
    forget_credentials()


def test_a_key_of_the_users_goes_without_the_environments_token() -> None:
    url = signed_url("s3://bucket/a", OWN)
    assert "X-Amz-Credential=BLOCK" in url
    assert TOKEN not in url


@pytest.mark.parametrize("name", ["session_token", "aws_session_token", "token", "AWS_TOKEN"])
def test_a_key_of_the_users_goes_with_their_own_token(name: str) -> None:
    options = ObjectStoreOptions(
        region="us-east-1", access_key_id="BLOCK", secret_access_key="word", extra=((name, "own"),)
    )
    assert f"{TOKEN}own" in signed_url("s3://bucket/a", options)


def test_the_environments_key_goes_with_its_token() -> None:
    url = signed_url("s3://bucket/a", ObjectStoreOptions(region="us-east-1"))
    assert "X-Amz-Credential=ENVIRONMENT" in url
    assert f"{TOKEN}of-the-environment" in url


def test_temporary_credentials_of_a_profile_are_asked_for_again_before_they_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of AWS SSO's cache: twenty minutes are left of them, and boto3 renews them five minutes from now."""
    ends = (datetime.now(UTC) + timedelta(minutes=20)).isoformat()
    said = {"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "b", "SessionToken": "c", "Expiration": ends}
    (tmp_path / "said.json").write_text(json.dumps(said))
    command = f"{sys.executable} -c \"print(open('{tmp_path}/said.json').read())\""
    (tmp_path / "config").write_text(f"[default]\nregion = us-east-1\ncredential_process = {command}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    found = boto3_credentials()["credential_provider"]()
    assert found["token"] == "c"
    assert found["expires_at"] < datetime.now(UTC) + timedelta(minutes=15)
