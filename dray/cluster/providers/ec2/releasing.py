"""Let go of what the tags say: a cluster's machines, or those of any cluster that have expired."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from itertools import count

from dray.cluster.providers.ec2.api import Ec2Api
from dray.cluster.providers.ec2.requests import CLUSTER_TAG, EXPIRES_TAG, parameter_of
from dray.cluster.providers.made import expiry_of
from dray.cluster.providers.protocol import Expired
from dray.errors import ClusterError, ConfigError, DrayError

_LOOKS = 5
_PAUSE = 0.5


def release_cluster(
    api: Ec2Api, cluster: str, known: Collection[str], late: Mapping[str, float]
) -> tuple[str, ...]:
    """End the instances of a cluster, and delete its templates and its token; again does nothing.

    ``known`` are instances that this process was given. Those of them in ``late`` EC2 may not know yet, until
    then by the monotonic clock: they are asked for again.

    Raises:
        ClusterError: something is left; names it.
    """
    released: list[str] = []
    errors: list[str] = []
    ids, unknown = set(known), set[str]()
    for look in count(1):
        try:
            ids |= {one.id for one in api.instances(cluster) if one.id not in released}
            unknown = api.terminate(ids)
            released += sorted(ids - set(released) - unknown)
            ids = {one.id for one in api.instances(cluster)} | unknown.intersection(late)
        except DrayError as error:
            errors.append(str(error))
            if isinstance(error, ConfigError):  # nothing that heals by waiting
                break
        else:
            errors.clear()
            if not ids:
                break
        until = max((late[one] for one in unknown.intersection(late)), default=0.0)
        if look >= _LOOKS and time.monotonic() >= until:
            break
        time.sleep(_PAUSE * min(look, _LOOKS))
    left = ids - (unknown - set(late))
    if left:
        errors.append(f"instances {', '.join(sorted(left))} are still there, or EC2 does not know them yet")
    try:
        released += _delete_rest(api, cluster)
    except DrayError as error:
        errors.append(str(error))
    if errors:
        reasons = "; ".join(dict.fromkeys(errors))
        raise ClusterError(
            f"the EC2 cluster {cluster} is not released: {reasons}. Its machines end by themselves when they "
            "expire; `dray cluster sweep` deletes what is left then"
        )
    return tuple(released)


def _delete_rest(api: Ec2Api, cluster: str) -> list[str]:
    deleted = []
    for template, name, tags in api.templates():
        if tags.get(CLUSTER_TAG) == cluster:
            api.delete_template(template)
            deleted.append(name)
    token = parameter_of(cluster)
    if api.delete_secret(token):  # by its name: other clusters' tokens come and go while one lists them
        deleted.append(token)
    return deleted


def sweep(api: Ec2Api, now: float) -> tuple[Expired, ...]:
    """Release what has expired, of any cluster in the region.

    Templates and tokens cost nothing, and their expiry is not put off: they go once no machine of their
    cluster is left.
    """
    swept: list[Expired] = []
    live: set[str] = set()
    for one in api.instances():
        cluster = one.tags.get(CLUSTER_TAG, "")
        if _is_past(one.tags, now):
            swept.append(Expired(cluster=cluster, kind="instance", name=one.id))
        else:
            live.add(cluster)
    api.terminate([one.name for one in swept])
    for template, name, tags in api.templates():
        if tags[CLUSTER_TAG] not in live and _is_past(tags, now):
            api.delete_template(template)
            swept.append(Expired(cluster=tags[CLUSTER_TAG], kind="launch template", name=name))
    for name, tags in api.secrets():
        if CLUSTER_TAG in tags and tags[CLUSTER_TAG] not in live and _is_past(tags, now):
            api.delete_secret(name)
            swept.append(Expired(cluster=tags[CLUSTER_TAG], kind="parameter", name=name))
    return tuple(swept)


def _is_past(tags: Mapping[str, str], now: float) -> bool:
    expires = expiry_of(tags.get(EXPIRES_TAG, ""))
    return expires is not None and expires <= now
