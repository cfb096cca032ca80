"""The home folder of this user, which a user by number alone may lack."""

from __future__ import annotations

import os
from pathlib import Path

from dray.errors import ConfigError


def home_folder() -> Path:
    """Where this user's own files are.

    Raises:
        ConfigError: HOME is not set, and the machine knows no user of this number.
    """
    try:
        return Path.home()
    except RuntimeError:
        raise ConfigError(
            f"HOME is not set, and user {os.getuid()} has no home folder on this machine: "
            "set HOME to a folder that this user may write to"
        ) from None
