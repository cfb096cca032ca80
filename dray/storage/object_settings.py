"""What obstore is told about a store: by the options, or by the environment that it reads itself."""

from __future__ import annotations

import os
from collections.abc import Mapping

_VARIABLES = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}


def setting(scheme: str, name: str, extra: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> str:
    """A setting of obstore's as it takes it: from the options, else from the environment. Empty if unset."""
    prefix = _VARIABLES[scheme]
    given = {key.lower().removeprefix(prefix.lower()): str(value) for key, value in extra.items()}
    return given.get(name) or environ.get(f"{prefix}{name.upper()}", "")


def is_anonymous(scheme: str, extra: Mapping[str, str]) -> bool:
    """Whether requests are to be sent without credentials, as to a public bucket."""
    return is_on(setting(scheme, "skip_signature", extra))


def is_on(value: str) -> bool:
    """Whether obstore reads a setting as true."""
    return value.lower() in ("true", "1", "yes", "on", "y")
