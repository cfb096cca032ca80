"""What boto3 is told so that both clients of a bucket, obstore and boto3, trust and send the same.

obstore trusts the authorities of ``SSL_CERT_FILE``, or the system's; boto3 those of ``AWS_CA_BUNDLE``, or
of a list of its own. And obstore takes settings from the environment that boto3 does not know.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dray.errors import ConfigError
from dray.storage.object_settings import is_on, setting

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_BUNDLE = "AWS_CA_BUNDLE"
_SYSTEMS = (  # where distributions keep the authorities that they trust
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


def trusted() -> str | None:
    """The file of the authorities that obstore trusts, for boto3; None for boto3's own list."""
    named = os.environ.get("SSL_CERT_FILE")
    return named or next((file for file in _SYSTEMS if Path(file).is_file()), None)


def bundle() -> bytes | None:
    """What ``AWS_CA_BUNDLE`` names (PEM), for obstore, which reads it from no variable.

    Raises:
        ConfigError: there is no such file.
    """
    named = os.environ.get(_BUNDLE)
    if not named:
        return None
    try:
        return Path(named).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{_BUNDLE} names {named}, which cannot be read ({error.strerror}); name the file of the "
            "authorities to trust"
        ) from error


def request_fields(extra: Mapping[str, str]) -> dict[str, Any]:
    """Encryption and who pays, as obstore takes them from its options and its variables, by boto3's names.

    Raises:
        ConfigError: the key of the customer's own is not in base64.
    """
    fields: dict[str, Any] = {}
    if _of("request_payer", extra).lower() == "requester" or is_on(_of("request_payer", extra)):
        fields["RequestPayer"] = "requester"
    kind = _of("server_side_encryption", extra)
    if kind.lower() == "sse-c":
        return fields | {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": _customer_key(extra)}
    if kind:
        fields["ServerSideEncryption"] = kind
        if key := _of("sse_kms_key_id", extra):
            fields["SSEKMSKeyId"] = key
        if enabled := _of("sse_bucket_key_enabled", extra):
            fields["BucketKeyEnabled"] = is_on(enabled)
    return fields


def send_with(client: S3Client, fields: Mapping[str, Any]) -> None:
    """Let a client send these fields in each operation that knows them."""

    def add(params: dict[str, Any], model: Any, **_: Any) -> dict[str, Any]:
        known = model.input_shape.members if model.input_shape is not None else ()
        return {name: value for name, value in fields.items() if name in known} | params

    handler: Any = add  # botocore takes what a handler of this event returns; its stubs have none return
    if fields:
        client.meta.events.register("provide-client-params.s3", handler)


def _of(name: str, extra: Mapping[str, str]) -> str:
    return setting("s3", name, extra)


def _customer_key(extra: Mapping[str, str]) -> bytes:
    try:
        return base64.b64decode(_of("sse_customer_key_base64", extra), validate=True)
    except ValueError as error:
        raise ConfigError("AWS_SSE_CUSTOMER_KEY_BASE64 is not in base64") from error
