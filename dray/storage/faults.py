"""What goes wrong with files elsewhere, as Python's own family of errors for files.

Every error of obstore and of boto3 becomes a FileNotFoundError, PermissionError or OSError whose text names
the URI and never a credential, so that callers handle one family of errors for every place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from dray.errors import first_line

_BUSY = re.compile(r"status code: ((?:429|500|502|503|504)\b[^:\n]*)")  # as obstore writes it
_ODD = "object with invalid path: "


class BusyError(OSError):
    """A server wants to be asked later: in ``after`` seconds, where it says so."""

    def __init__(self, told: str, after: float | None = None) -> None:
        super().__init__(told)
        self.after = after


class ReplacedError(OSError):
    """An object is no longer in the state that was asked for."""


class UnnamedError(OSError):
    """Below a prefix lies an object that has no name by which it can be asked for."""


class NoBucketError(FileNotFoundError):
    """There is no bucket of this name."""


@contextmanager
def translated(uri: str) -> Iterator[None]:
    """Turn obstore's errors into Python's own family for files."""
    from obstore import exceptions as errors

    try:
        yield
    except (errors.NotFoundError, FileNotFoundError) as error:
        _refuse_bucket(uri, error)
        raise FileNotFoundError(f"no such object: {uri}") from error
    except (errors.PermissionDeniedError, errors.UnauthenticatedError) as error:
        raise not_allowed(uri) from error
    except errors.PreconditionError as error:
        raise ReplacedError(f"{uri} was replaced while it was read; start again") from error
    except errors.BaseError as error:
        if "403 Forbidden" in str(error):  # listings are refused in this way
            raise not_allowed(uri) from error
        _refuse_bucket(uri, error)  # as listings are answered
        busy = _BUSY.search(str(error))
        if busy is not None:
            raise BusyError(f"{uri}: the store says {busy[1]}") from error
        # The first line alone: the rest is a dump of the request, and may hold signed addresses.
        reason = first_line(error, 200, type(error).__name__)
        if _ODD in reason:
            raise UnnamedError(
                f"{uri}: an object below it has a name that cannot be asked for "
                f"({reason.partition(_ODD)[2]}); name the files one by one, or rename that object"
            ) from error
        if "InvalidCertificate" in str(error):
            raise untrusted(uri) from error
        raise OSError(f"{uri}: {reason}") from error
    except ValueError as error:
        if not str(error).startswith("Could not parse path"):
            raise
        raise misnamed(uri) from None


@contextmanager
def boto3_translated(uri: str) -> Iterator[None]:
    """Turn botocore's errors into Python's own family for files."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        status = status_of(error)
        if status == 404:
            raise FileNotFoundError(f"no such object or upload: {uri}") from error
        if status in (401, 403):
            raise not_allowed(uri) from error
        raise OSError(f"{uri}: {error.response['Error']['Code']} ({status})") from error
    except BotoCoreError as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise untrusted(uri) from error
        raise OSError(f"{uri}: {type(error).__name__}") from error


def status_of(error: Any) -> int:
    """The HTTP status of what botocore was refused; 0 where it tells none."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _refuse_bucket(uri: str, error: Exception) -> None:
    if "<Code>NoSuchBucket</Code>" in str(error):
        raise NoBucketError(f"there is no bucket {urlsplit(uri).netloc}") from error


def misnamed(uri: str) -> OSError:
    """The error of a name that no object can have."""
    return OSError(f"{uri}: names of objects have no empty part (//), '.' or '..'; leave it out")


def not_allowed(uri: str) -> PermissionError:
    """The error of a place that refuses our credentials."""
    return PermissionError(f"not allowed: {uri}; check the credentials and the bucket's policy")


def untrusted(uri: str) -> OSError:
    """The error of a server whose certificate no authority that we trust has signed."""
    return OSError(
        f"{uri}: the server's certificate is not trusted; name the file of its authority in SSL_CERT_FILE, "
        "and in AWS_CA_BUNDLE where that is set"
    )
