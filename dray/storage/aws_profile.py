"""What AWS's files of profiles hold: obstore reads no such file."""

from __future__ import annotations

from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

# Within the 15 minutes before their end boto3 renews what is temporary, and with 10 left it must: so what it
# gives lives as long as this.
_KEPT = timedelta(minutes=10)


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


def boto3_credentials() -> dict[str, Any]:
    """Profiles, SSO and the like, which obstore does not read; nothing where boto3 finds no credentials."""
    import boto3

    session = boto3.Session()
    if session.get_credentials() is None:
        return {}
    from obstore.auth.boto3 import Boto3CredentialProvider

    return {"credential_provider": Boto3CredentialProvider(session, ttl=_KEPT)}
