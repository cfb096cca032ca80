"""What worker processes are given, alone and in a job of Ray's that gives them something itself."""

from __future__ import annotations

import json
import os

import pytest
from ray.runtime_env.runtime_env import _merge_runtime_env

from dray.cluster.runtime_env import runtime_env_of


def test_nothing_is_asked_of_ray_where_there_is_nothing_to_give() -> None:
    assert runtime_env_of({}, ()) is None


def test_a_job_of_rays_keeps_its_own_packages_beside_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own merge refuses one field twice, and would drop the packages of the job."""
    given = {"py_modules": ["gcs://_ray_pkg_own.zip"], "env_vars": {"HF_HOME": "/hf"}, "pip": ["six"]}
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps({"runtime_env": given}))
    monkeypatch.delenv("RAY_OVERRIDE_JOB_RUNTIME_ENV", raising=False)
    ours = runtime_env_of({"HF_HOME": "/other"}, ("/checkout/tasks",))
    assert _merge_runtime_env(given, ours) is None
    override = os.environ["RAY_OVERRIDE_JOB_RUNTIME_ENV"] == "1"
    assert _merge_runtime_env(given, ours, override) == {
        "env_vars": {"HF_HOME": "/other"},
        "py_modules": ["/checkout/tasks", "gcs://_ray_pkg_own.zip"],
        "pip": ["six"],
    }


def test_a_driver_that_is_no_job_of_rays_changes_no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR", raising=False)
    monkeypatch.delenv("RAY_OVERRIDE_JOB_RUNTIME_ENV", raising=False)
    assert runtime_env_of({"A": "1"}, ("/checkout/tasks",)) == {
        "env_vars": {"A": "1"},
        "py_modules": ["/checkout/tasks"],
    }
    assert "RAY_OVERRIDE_JOB_RUNTIME_ENV" not in os.environ
