"""What of the driver's environment other nodes get: Ray writes it into its logs."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

from dray.cluster.forwarded_env import _OF_ONE_NODE, handed_down

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


@pytest.mark.parametrize("name", ["VLLM_HOST_IP", "VLLM_HOST_PORT", "VLLM_NIXL_SIDE_CHANNEL_HOST"])
def test_an_address_of_this_machine_stays_here(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines on other nodes would listen at it."""
    monkeypatch.setenv(name, "10.0.0.5")
    assert name not in handed_down()


def test_vllm_keeps_the_same_ones_on_their_nodes() -> None:
    """As its executor for Ray has them: parsed, since the import takes seconds."""
    vllm = find_spec("vllm")
    if vllm is None or vllm.origin is None:
        pytest.skip("vLLM is not installed")
    source = Path(vllm.origin).with_name("v1") / "executor/ray_utils.py"
    (names,) = [
        ast.literal_eval(node.value)
        for node in ast.parse(source.read_text()).body
        if isinstance(node, ast.AnnAssign) and node.value and "WORKER_SPECIFIC" in ast.unparse(node.target)
    ]
    assert {name for name in names if name.startswith("VLLM_")} == _OF_ONE_NODE
