"""The catalogue from its file: GPUs, links and instances, validated."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

from dray.errors import ConfigError
from dray.planner.catalogue.hardware import Device, Instance, Interruptions, Link, Network, Price
from dray.planner.catalogue.tables import Sources, Table

_FILE = Path(__file__).with_name("hardware.toml")
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Instances by name."""

    instances: Mapping[str, Instance]

    def with_instance(self, instance: Instance) -> Catalogue:
        """The same with one more, or with another of this name: a calibrated machine, for example."""
        return Catalogue({**self.instances, instance.name: instance})

    def devices(self) -> dict[str, Device]:
        """The devices of all instances by name."""
        return {one.device.name: one.device for one in self.instances.values()}


@cache
def load_catalogue(path: Path = _FILE) -> Catalogue:
    """The catalogue in a file; the one that dray ships where none is named.

    Raises:
        ConfigError: the file cannot be read, or a figure is missing or wrong; names file, table and field.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: is not valid TOML: {error}") from error
    return read_catalogue(tables, file=path.name)


def read_catalogue(tables: Mapping[str, Any], *, file: str) -> Catalogue:
    """The catalogue in parsed tables; ``file`` is how errors call their origin.

    Raises:
        ConfigError: a figure is missing or wrong; names file, table and field.
    """
    sources = _sources(tables, file)

    def named(kind: str) -> dict[str, Table]:
        found = tables.get(kind)
        if not isinstance(found, Mapping):
            raise ConfigError(f"{file}: the table [{kind}] is missing")
        return {name: Table(one, f"{file}: {kind}.{name}", sources) for name, one in found.items()}

    links = {name: _link(name, table) for name, table in named("link").items()}
    found = tables.get("network")
    between = Table(found, f"{file}: network", sources) if isinstance(found, Mapping) else None
    devices = {name: _device(name, table) for name, table in named("gpu").items()}
    return Catalogue(
        {name: _instance(name, table, devices, links, between) for name, table in named("instance").items()}
    )


def _sources(tables: Mapping[str, Any], file: str) -> Sources:
    found = tables.get("source")
    if not isinstance(found, Mapping):
        raise ConfigError(f"{file}: the table [source] is missing")
    for name, one in found.items():
        if not isinstance(one, Mapping) or not one.get("title") or type(one.get("date")) is not date:
            raise ConfigError(f"{file}: source.{name}: the field 'title' or 'date' is missing")
    return Sources({name: one["date"] for name, one in found.items()})


def _link(name: str, table: Table) -> Link:
    rates = table.each("all_reduce", Table.figure)
    if not all(size.isdecimal() and int(size) > 1 for size in rates):
        table.refuse("all_reduce", "has a size that is not a number of devices above 1")
    return Link(
        name=name,
        all_reduce={int(size): rate for size, rate in rates.items()},
        latency=table.figure("latency"),
    )


def _share(table: Table, name: str) -> float:
    return table.figure(name, most=1.0)


def _shares(table: Table, name: str) -> tuple[float, float]:
    return table.pair(name, most=1.0)


def _device(name: str, table: Table) -> Device:
    peak = table.each("peak", Table.figure)
    gemm = table.each("gemm", _shares)
    if peak.keys() != gemm.keys():
        table.refuse("gemm", "does not name the same arithmetic as 'peak'")
    unbacked = {field: table.inner(field).doubts() for field in ("peak", "gemm")}
    return Device(
        name=name,
        memory=table.figure("memory"),
        bandwidth=table.figure("bandwidth"),
        peak=peak,
        gemm=gemm,
        attention=table.pair("attention", most=1.0),
        weights=table.each("weights", _share),
        kv=table.each("kv", _share),
        doubts=tuple(name for name in table.doubts() if name not in unbacked),
        doubts_by={one: tuple(field for field in unbacked if one in unbacked[field]) for one in peak},
    )


def _network(table: Table, between: Table | None) -> Network | None:
    """What an instance reaches others with; None where the file has no table of networks."""
    if between is None or "network" not in table.values:
        return None
    bandwidth = min(table.figure("network"), between.figure("most"))
    return Network(bandwidth=bandwidth, latency=between.figure("latency"))


def _instance(
    name: str,
    table: Table,
    devices: Mapping[str, Device],
    links: Mapping[str, Link],
    between: Table | None,
) -> Instance:
    count, link = table.whole("gpus"), table.values.get("link")
    if table.values.get("gpu") not in devices:
        table.refuse("gpu", "is missing, or names no GPU of the file")
    if (link is None and count > 1) or (link is not None and link not in links):
        table.refuse("link", "is missing, or names no link of the file")
    low, likely, high = table.triple("interruptions")
    return Instance(
        name=name,
        device=devices[table.values["gpu"]],
        devices=count,
        link=links[link] if link is not None else None,
        network=_network(table, between),
        vcpus=table.whole("vcpus"),
        ram=table.whole("ram_gib") * _GIB,
        on_demand=tuple(
            Price(likely=price, low=price, high=price, day=day, source=key)
            for price, key, day in table.dated("on_demand")
        ),
        spot=_spot(table) if "spot" in table.values else None,
        interruptions=Interruptions(low=low, likely=likely, high=high),
    )


def _spot(table: Table) -> Price:
    low, high = table.pair("spot")
    if low > high:
        table.refuse("spot", "is not in ascending order")
    key, day = table.source("spot")
    return Price(likely=(low * high) ** 0.5, low=low, high=high, day=day, source=key)
