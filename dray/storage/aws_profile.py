"""The region that AWS's file of profiles names: obstore reads no such file."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def region_in(file: str, profile: str | None) -> str | None:
    """The region of a profile, or of the default one; None where the file names none."""
    if not Path(file).is_file():  # boto3 takes a while to import
        return None
    from botocore.exceptions import BotoCoreError
    from botocore.session import Session

    session = Session(profile=profile)
    session.set_config_variable("config_file", file)
    try:
        found: str | None = session.get_config_variable("region")
    except BotoCoreError:  # no such profile, or no such file: who needs keys of it says so
        return None
    return found
