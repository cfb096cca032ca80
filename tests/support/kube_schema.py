"""KubeRay's own schema of a RayCluster as the judge of one: what the API server of Kubernetes refuses.

``tests/data/kuberay-1.7.0-raycluster-v1.json.gz`` is version v1 of
``ray-operator/config/crd/bases/ray.io_rayclusters.yaml`` of ray-project/kuberay v1.7.0 (Apache 2.0), without
descriptions. It holds the schema of pods as well.
"""

from __future__ import annotations

import gzip
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

_FILE = Path(__file__).parents[1] / "data/kuberay-1.7.0-raycluster-v1.json.gz"
_OPEN = ("metadata", "apiVersion", "kind")  # of any object: the server's own business
_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict,
}  # fmt: skip


@cache
def raycluster_schema() -> dict[str, Any]:
    """As the API server has it."""
    found: dict[str, Any] = json.loads(gzip.decompress(_FILE.read_bytes()))
    return found


def wrong(cluster: dict[str, Any]) -> list[str]:
    """What is wrong with a RayCluster, each with its path; unknown fields as well, as ``Strict`` asks."""
    found = [f"{name}: missing" for name in ("apiVersion", "kind", "metadata", "spec") if name not in cluster]
    schema = raycluster_schema()
    inner = {name: part for name, part in schema["properties"].items() if name not in _OPEN}
    body = {name: value for name, value in cluster.items() if name not in _OPEN}
    return found + _wrong({"type": "object", "properties": inner}, body, "")


def _wrong(schema: dict[str, Any], value: Any, path: str) -> list[str]:
    if value is None and schema.get("nullable"):
        return []
    if schema.get("x-kubernetes-int-or-string"):
        fits = isinstance(value, int | str) and not isinstance(value, bool)
        fits = fits and (isinstance(value, int) or re.search(schema.get("pattern", ""), value) is not None)
        return [] if fits else [f"{path}: {value!r} is no quantity"]
    kind = schema.get("type")
    if kind is not None and (
        not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")
    ):
        return [f"{path}: {type(value).__name__} instead of {kind}"]
    found = []
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{path}: {value!r} is none of {schema['enum']}")
    if isinstance(value, str):
        if "pattern" in schema and re.search(schema["pattern"], value) is None:
            found.append(f"{path}: {value!r} is not of the form {schema['pattern']}")
        if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
            found.append(f"{path}: {len(value)} characters")
    if kind in ("integer", "number"):
        fits = schema.get("minimum", value) <= value <= schema.get("maximum", value)
        found += [] if fits else [f"{path}: {value} is out of bounds"]
    if isinstance(value, list):
        for number, one in enumerate(value):
            found += _wrong(schema.get("items", {}), one, f"{path}[{number}]")
    if isinstance(value, dict):
        found += _wrong_fields(schema, value, path)
    return found


def _wrong_fields(schema: dict[str, Any], value: dict[str, Any], path: str) -> list[str]:
    known, more = schema.get("properties"), schema.get("additionalProperties")
    found = [f"{path}.{name}: missing" for name in schema.get("required", ()) if name not in value]
    for name, one in value.items():
        if known is not None and name in known:
            found += _wrong(known[name], one, f"{path}.{name}")
        elif isinstance(more, dict):
            found += _wrong(more, one, f"{path}.{name}")
        elif known is not None and not schema.get("x-kubernetes-preserve-unknown-fields"):
            found.append(f"{path}.{name}: unknown field")
    return found
