"""What of the driver's environment other nodes get: Ray writes it into its logs."""

from __future__ import annotations

import pytest

from dray.cluster.forwarded_env import handed_down

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_ENDPOINT", "https://hub.example/mirror"),
        ("HF_HOME", "/data/hf"),
        ("VLLM_LOGGING_LEVEL", "INFO"),
        ("DRAY_MODEL_CACHE", "/cache"),
    ],
)
def test_settings_go_along(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    assert handed_down()[name] == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "x"),
        ("VLLM_API_KEY", "x"),
        ("HF_ENDPOINT", "https://me:pass-word@hub.example"),
        ("HF_ENDPOINT", "https://hub.example/?sig=abcdef"),
        ("HF_HUB_USER_AGENT", "token=abcdef"),
        ("VLLM_EXTRA", '{"api_key": "abcdef"}'),
        ("HF_EXTRA", "hf_abcdefghijklmnopqrstuvwxyz"),
        ("PATH_OF_OTHERS", "/bin"),
    ],
)
def test_secrets_do_not_by_name_or_by_value(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    assert name not in handed_down()
