"""Turns AWS's error codes into what a user has to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from dray.errors import ClusterError, ConfigError, DrayError

_DENIED = {"UnauthorizedOperation", "AccessDenied", "AccessDeniedException"}
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"}
_UNKNOWN_KEYS = {
    "AuthFailure",
    "InvalidClientTokenId",
    "UnrecognizedClientException",
    "SignatureDoesNotMatch",
    "InvalidSignatureException",
    "IncompleteSignature",
}
BUSY = {"RequestLimitExceeded", "Throttling", "ThrottlingException", "InternalError", "InternalFailure",
        "ServiceUnavailable", "Unavailable", "TooManyUpdates", "InternalServerError"}  # fmt: skip
"""Codes of calls that may succeed a little later."""
_QUOTA = {"VcpuLimitExceeded", "InstanceLimitExceeded", "MaxSpotInstanceCountExceeded"}
_ACTION = re.compile(r"not authorized to perform: ([\w-]+:\w+)")
_RESOURCE = re.compile(r"on resource: (\S+)")
_EXPLICIT = re.compile(r"with (an explicit deny(?: in an? [\w -]+)?)")
_CLOCK = ("Signature expired", "Signature not yet current")
_NOT_SHARED = "Not authorized for"
"""EC2 says that of an image or a snapshot, with the code of wrong keys."""
_MOST = 300


class CredentialsError(ConfigError):
    """AWS did not take the credentials, or there were none: they may be others by now."""


def translated(code: str, message: str, action: str) -> DrayError:
    """The error for a code of AWS's, of a call that takes ``action``'s permission."""
    said = " ".join(message.split())[:_MOST]
    if code in _DENIED:
        return ConfigError(f"AWS: the credentials may not {_denied(message, action)}")
    if code in _EXPIRED or (code in _UNKNOWN_KEYS and not said.startswith(_NOT_SHARED)):
        return _unaccepted(code, message, action)
    if code in BUSY:
        return ClusterError(f"AWS: {action} failed again and again: {code}: {said}")
    if code in _QUOTA:
        return ClusterError(f"AWS: a quota is used up ({action}: {code}): {said}")
    return ConfigError(f"AWS: {action} was refused: {code}: {said}")


def _denied(message: str, action: str) -> str:
    """What is not allowed, and who can allow it: dray's policy cannot lift an explicit deny."""
    named, resource, deny = (one.search(message) for one in (_ACTION, _RESOURCE, _EXPLICIT))
    what = named.group(1) if named else action
    what += f" on {resource.group(1).rstrip('.,')}" if resource else ""
    if deny:
        return f"{what}: {deny.group(1)} forbids it; an administrator can lift it"
    return f"{what}; deployments/aws/policy.json has all that dray needs"


def _unaccepted(code: str, message: str, action: str) -> CredentialsError:
    """Credentials that AWS does not take. It says as much of signatures whose time its clock does not accept.

    Further lines, and all that it says of an incomplete one, may quote the request with its token.
    """
    said = "" if code == "IncompleteSignature" else message.partition("\n")[0].strip()[:_MOST]
    renew = "renew them, as by `aws sso login`"
    if any(one in said for one in _CLOCK):
        return CredentialsError(f"AWS: this machine's clock is wrong ({action}: {said}); set it")
    if code == "RequestExpired":  # EC2 says this of old keys, and of a request's time
        wrong = "the credentials have expired, or this machine's clock is wrong"
        return CredentialsError(f"AWS: {wrong} ({action}: {said}); {renew}, or set the clock")
    if code in _EXPIRED:
        return CredentialsError(f"AWS: the credentials have expired ({action}); {renew}")
    what = ": ".join(filter(None, (action, code, said)))
    check = "check key and secret, and this machine's clock"
    return CredentialsError(f"AWS: the credentials are not valid ({what}); {check}")


@contextmanager
def raising(action: str) -> Iterator[None]:
    """Have botocore's errors come out as dray's."""
    from botocore import exceptions
    from botocore.parsers import ResponseParserError

    try:
        yield
    except exceptions.ClientError as error:
        found = error.response["Error"]
        raise translated(found.get("Code", ""), found.get("Message", ""), action) from error
    except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError) as error:
        raise CredentialsError(
            f"AWS: no credentials were found ({action}); set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
            "AWS_PROFILE, or give the machine a role"
        ) from error
    except (
        exceptions.TokenRetrievalError,
        exceptions.SSOTokenLoadError,
        exceptions.UnauthorizedSSOTokenError,
    ) as error:
        raise CredentialsError(
            f"AWS: the credentials have expired ({action}); renew them, as by `aws sso login`"
        ) from error
    except exceptions.ParamValidationError as error:
        raise ConfigError(f"AWS: {action} takes no such request: {error}") from error
    except ResponseParserError as error:
        raise ClusterError(f"AWS: {action} gave an answer that cannot be read") from error
    except (exceptions.HTTPClientError, exceptions.ConnectionError) as error:
        raise ClusterError(f"AWS: {action} is out of reach: {str(error)[:_MOST]}") from error
    except exceptions.BotoCoreError as error:
        raise ConfigError(f"AWS: {action}: {str(error)[:_MOST]}") from error
