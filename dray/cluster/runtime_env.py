"""What Ray gives the worker processes of a job: environment variables, and packages that nodes may lack."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # the variable's own name


def runtime_env_of(variables: Mapping[str, str], packages: Sequence[str]) -> dict[str, Any] | None:
    """Ray's ``runtime_env`` with these variables and these folders of packages; None where both are empty.

    Ray puts these packages before those that a node has itself. Where the driver itself runs as a job of
    Ray's, worker processes get that job's packages too: Ray refuses to combine the two unless told to.
    """
    found: dict[str, Any] = {}
    if variables:
        found["env_vars"] = dict(variables)
    if packages:
        found["py_modules"] = [*packages, *_of_rays_job().get("py_modules", [])]
    if found and _JOB in os.environ:
        os.environ["RAY_OVERRIDE_JOB_RUNTIME_ENV"] = "1"
    return found or None


def _of_rays_job() -> dict[str, Any]:
    """The runtime environment of the job of Ray's (``ray job submit``) that runs this process."""
    found: dict[str, Any] = json.loads(os.environ.get(_JOB) or "{}").get("runtime_env") or {}
    return found
