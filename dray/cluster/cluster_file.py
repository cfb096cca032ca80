"""A cluster's settings from a TOML file: ``kind = "ec2"``, and the fields of that provider's settings."""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from dray.cluster.base import ClusterSettings
from dray.cluster.providers.protocol import ProviderSettings
from dray.errors import ConfigError
from dray.storage.absolute_paths import absolute

SUFFIX = ".toml"

STANDING = "up:"
"""Before a file's name: the cluster that ``dray cluster up`` made of it, and not one of the job's own."""

KINDS = {
    "ec2": "dray.cluster.providers.ec2:EC2Cluster",
    "kuberay": "dray.cluster.providers.kuberay:KubeRayCluster",
}
"""The settings of each provider that a file can name: a frozen dataclass, imported when a file names it."""


def read_cluster_file(name: str) -> ClusterSettings:
    """The settings in a file, or of the cluster that ``dray cluster up`` made of it (``up:FILE``).

    Raises:
        ConfigError: it cannot be read, or a field is unknown, missing or wrong; names file and field.
    """
    path = name.removeprefix(STANDING)
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: is not valid TOML: {error}") from error
    kind = values.pop("kind", None)
    if kind not in KINDS:
        raise ConfigError(f"{path}: kind is {kind!r}, but must be one of {', '.join(map(repr, KINDS))}")
    return ClusterSettings(provider=_settings(kind, values, path), standing=name.startswith(STANDING))


def anchored_file(cluster: str) -> str:
    """``cluster`` as it is in any folder: a file's name becomes absolute; an address stays as it is."""
    if not cluster.endswith(SUFFIX):
        return cluster
    mark = STANDING if cluster.startswith(STANDING) else ""
    return mark + absolute(cluster.removeprefix(mark))


def _settings(kind: str, values: dict[str, Any], path: str) -> ProviderSettings:
    from pydantic import TypeAdapter, ValidationError

    module, _, name = KINDS[kind].partition(":")
    form = getattr(import_module(module), name)
    known = {one.name for one in fields(form)}
    for field in values:
        if field not in known:
            near = difflib.get_close_matches(field, known, n=1)
            hint = f"; the nearest is {near[0]}" if near else ""
            raise ConfigError(f"{path}: {kind} has no field {field!r}{hint}")
    try:
        return cast("ProviderSettings", TypeAdapter(form).validate_python(values))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{path}: {where}: {first['msg']}") from None
