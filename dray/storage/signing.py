"""Addresses at which any client may read an object: signed, public, or with a token of the user's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from dray.storage.faults import translated
from dray.storage.object_settings import is_anonymous, setting
from dray.storage.objects import ObjectStoreOptions, is_web, store_of

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_SAS = ("sas_key", "sas_token", "storage_sas_key", "storage_sas_token")
_GOOGLE = "https://storage.googleapis.com"
# A key that opens nothing: of what obstore signs with it, only the address is kept.
_NO_KEY = {
    "s3": {"access_key_id": "none", "secret_access_key": "none", "skip_signature": "false"},
    "az": {"account_key": "bm9uZQ==", "skip_signature": "false"},
}


def signed_url(uri: str, options: ObjectStoreOptions | None = None, *, seconds: float = 3600) -> str:
    """An address at which any client may read the object for that long: a secret, to be kept out of logs.

    That of a public object is plain, and one with a SAS token of the user's lives as long as the token.

    Raises:
        OSError: there are no credentials to sign with.
    """
    if is_web(uri):
        return uri
    from obstore import sign

    scheme, bucket = urlsplit(uri).scheme.lower(), urlsplit(uri).netloc
    options = options or ObjectStoreOptions.from_env()
    query = _unsigned_query(scheme, dict(options.extra))
    if query is not None:
        kept = {name: value for name, value in options.extra if "skip_signature" not in name.lower()}
        extra = kept | _NO_KEY.get(scheme, {"skip_signature": "true"})
        plain = replace(options, access_key_id=None, secret_access_key=None, extra=tuple(extra.items()))
        store, path = store_of(uri, plain)
        with translated(uri):
            address = _plain_address(scheme, bucket, store, path)
        return f"{address}?{query}" if query else address
    store, path = store_of(uri, options)
    with translated(uri):
        return str(sign(store, "GET", path, timedelta(seconds=seconds)))  # type: ignore[call-overload]


def _unsigned_query(scheme: str, extra: Mapping[str, str]) -> str | None:
    """What follows an object's plain address where nothing is to be signed: a SAS token, or nothing.

    None where the address has to be signed.
    """
    if scheme == "az":
        token = next((found for name in _SAS if (found := setting(scheme, name, extra))), "")
        if token:
            return token.lstrip("?")
    return "" if is_anonymous(scheme, extra) else None


def _plain_address(scheme: str, bucket: str, store: ObjectStore, path: str) -> str:
    """An object's address without a signature; ``store`` signs with a key that opens nothing."""
    from obstore import sign

    if scheme not in _NO_KEY:
        return f"{_GOOGLE}/{quote(bucket)}/{quote(path)}"
    signed = str(sign(store, "GET", path, timedelta(seconds=60)))  # type: ignore[call-overload]
    return signed.partition("?")[0]
