"""Why a model could not be fetched, in words."""

from __future__ import annotations

from pathlib import Path

from dray.weights.fetch.chunks import ChunkPlan
from dray.weights.fetch.schedule import Failure

_SAYS = {
    "replaced": "{file} was replaced since the job was opened; start the job again",
    "missing": "no such object: {file}; it was there when the job was opened",
    "denied": (
        "not allowed: {file}{principal} ({detail}, with fresh credentials too); "
        "check the credentials and the bucket's policy"
    ),
    "corrupt": (
        "{place}: came {tries} times with another checksum than the model's manifest says; "
        "the object is damaged, or the manifest is of another state: publish it again"
    ),
    "room": (
        "no room for model {uri} ({size:.2f} GB) in {root}; set DRAY_MODEL_CACHE to a folder on a larger disk"
    ),
    "untrusted": ("{file}: the store's certificate is not trusted ({detail}); set SSL_CERT_FILE"),
    "slow": (
        "{place}: came too slowly ({detail}): a connection that brings less than 50 kB/s is given up, also a "
        "single one"
    ),
    "stalled": "{place}: nothing arrived for a long time ({detail})",
}
_OTHERWISE = "{place}: could not be read in {tries} tries: {detail}"


def reason_of(failure: Failure, plan: ChunkPlan, folder: Path, principal: str) -> str:
    """The failure with file and range, and what to do; ``principal``: id of the key that signed, if any."""
    place = plan.place(failure.chunk)
    return _SAYS.get(failure.kind, _OTHERWISE).format(
        place=place,
        file=place.rpartition(", bytes")[0],
        detail=failure.detail,
        tries=failure.tries,
        principal=f" as {principal}" if principal else "",
        uri=plan.manifest.uri,
        size=plan.manifest.size / 1e9,
        root=folder.parent,
    )
