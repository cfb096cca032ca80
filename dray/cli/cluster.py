"""``dray cluster``: see, start, end and sweep the clusters that jobs run on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Annotated, Any

from cyclopts import App, Parameter

from dray.cli import output
from dray.cli.flags import Json
from dray.cluster.providers.protocol import Machine, Planned, Provider, RunsOnHead
from dray.errors import ConfigError, DrayError

cluster = App(name="cluster", help="Plan, start, end and look after the clusters that jobs run on.")

Workers = Annotated[
    int | None, Parameter(name="--workers", help="Workers to have, in place of those that the file says.")
]


@cluster.command
def plan(where: str, /, *, workers: Workers = None, json: Json = False) -> int:
    """Print what `up`, or a job with `--cluster`, would create; create nothing.

    Parameters
    ----------
    where
        A TOML file of a cluster's settings, `local`, or the address of a cluster.
    """
    provider = _provider(where, workers)
    objects = provider.plan()
    if json:
        output.print_json({"objects": [_object(one) for one in objects]})
        return 0
    for one in objects:
        output.tell(f"{one.kind}: {one.name}", *_lines(one.body, 2), "")
    if not objects:
        output.tell(f"nothing is created: dray joins {provider.where}, and does not start it")
    return 0


@cluster.command
def up(where: str, /, *, workers: Workers = None, json: Json = False) -> int:
    """Start a cluster that outlives this command, or change how many workers it has.

    It ends by itself when it expires; `up` again puts that off. `local` starts Ray on this machine, until
    Ctrl-C. Of an address, `up` starts nothing, and shows the nodes.

    Parameters
    ----------
    where
        A TOML file of a cluster's settings, `local`, or the address of a cluster.
    """
    provider = _provider(where, workers)
    if provider.own:
        return _hold(provider, json=json)
    if not _is_rented(where):
        output.say(f"nothing is started: dray joins {provider.where}, and its owner changes its size")
    provider.start()
    return _tell_machines(provider, json=json)


@cluster.command
def down(where: str, /, *, json: Json = False) -> int:
    """End a cluster that `up` rented, and delete all that was made for it.

    Parameters
    ----------
    where
        The TOML file that `up` was given. `local` and an address are refused: they are not this command's to
        end.
    """
    provider = _provider(where)
    if not _is_rented(where):
        raise ConfigError(f"there is nothing to end: {_who_ends(provider)}")
    released = provider.release()
    if json:
        output.print_json({"released": list(released)})
    else:
        output.tell(*([f"released {name}" for name in released] or ["nothing was there"]))
    return 0


@cluster.command
def status(where: str, /, *, json: Json = False) -> int:
    """Show the machines of a cluster, and when they end by themselves.

    Parameters
    ----------
    where
        The TOML file that `up` was given, or the address of a cluster.
    """
    provider = _provider(where)
    if provider.own:
        raise ConfigError(
            "local names no cluster that runs: each job starts its own; name the address that "
            "`dray cluster up local` printed"
        )
    return _tell_machines(provider, json=json)


@cluster.command
def sweep(where: str, /, *, json: Json = False) -> int:
    """Release what has expired of any cluster in the account and region: what killed drivers left.

    Parameters
    ----------
    where
        A TOML file with the account and region. Of `local` and an address, nothing expires.
    """
    provider = _provider(where)
    expired = provider.sweep()
    if json:
        output.print_json({"expired": [asdict(one) for one in expired]})
        return 0
    lines = [f"released {one.kind} {one.name} of {one.cluster}" for one in expired]
    none = "nothing has expired" if _is_rented(where) else f"nothing expires: {_who_ends(provider)}"
    output.tell(*(lines or [none]))
    return 0


@cluster.command
def submit(
    where: str,
    /,
    *arguments: Annotated[str, Parameter(allow_leading_hyphen=True)],
    json: Json = False,
) -> int:
    """Run a job on the head of a cluster, and leave it: this machine need not reach its network, or stay up.

    Follow it with `dray status --watch`, and end it with `dray cancel`, both through its store.

    Parameters
    ----------
    where
        The TOML file that `up` was given, or the address of the head's jobs API (http://127.0.0.1:8265).
    arguments
        As for `dray`, after `--`: run INPUT --model MODEL --output DIR --store URL.
    """
    if where.startswith(("http://", "https://")):
        from dray.cluster.head_jobs import driver_command, submit_over_http

        name = submit_over_http(where, driver_command(arguments))
    else:
        provider = _provider(where)
        if not isinstance(provider, RunsOnHead):
            raise ConfigError(f"{provider.where} takes no jobs; name its jobs API, as http://127.0.0.1:8265")
        _tell_end(provider, where)
        name = provider.submit(arguments)
    if json:
        output.print_json({"submission": name})
    else:
        output.tell(name)
    return 0


def _tell_end(provider: Provider, where: str) -> None:
    """Say when the cluster ends by itself: a driver on its head does not put that off."""
    try:
        head = next((one for one in provider.nodes() if one.head), None)
    except DrayError as error:
        output.say(f"when this cluster ends by itself is not known: {error}")
        return
    if head is not None and head.expires is not None:
        minutes = max(0.0, head.expires - time.time()) / 60
        output.say(
            f"{provider.where} ends by itself in {minutes:.0f} min, under this job as well; "
            f"a longer `lifetime` in {where}, and then `dray cluster up {where}`, puts that off"
        )


def _provider(where: str, workers: int | None = None) -> Provider:
    from dray.cluster.cluster_file import read_cluster_file
    from dray.cluster.connect import provider_of
    from dray.job.options.request import BLOCK
    from dray.job.options.resolving import NoBlocks, cluster_settings

    if where.startswith(BLOCK):
        raise ConfigError(f"{where}: `dray cluster` reads no blocks of Prefect; name a TOML file of settings")
    if not _is_rented(where):
        if workers is not None:
            raise ConfigError(f"--workers: {where} is no file of settings, and has the nodes that it has")
        return provider_of(cluster_settings(where, NoBlocks()))
    settings = read_cluster_file(where).provider
    assert settings is not None
    if workers is not None:
        given: Any = settings
        settings = replace(given, workers=workers, minimum=min(workers, given.minimum))
    return settings.open()


def _is_rented(where: str) -> bool:
    """Whether a file says it: what its provider made, these commands end."""
    from dray.cluster.cluster_file import SUFFIX

    return where.endswith(SUFFIX)


def _who_ends(provider: Provider) -> str:
    if provider.own:
        return "Ray of this machine ends with the process that started it (Ctrl-C in `dray cluster up local`)"
    return f"dray did not start {provider.where}, and its owner ends it"


def _hold(provider: Provider, *, json: bool) -> int:
    """A cluster of this machine lives as long as this process."""
    from dray.cluster.own_environment import prepare_local

    prepare_local()
    provider.start()
    try:
        address = provider.access().address
        if json:
            output.print_json({"address": address})
        else:
            output.tell(address)
        output.say(
            f"Ray runs at {address} until Ctrl-C; a job joins it with RAY_AUTH_MODE=token --cluster {address}"
        )
        while True:
            time.sleep(1)
    except KeyboardInterrupt:
        return 130
    finally:
        provider.release()


def _tell_machines(provider: Provider, *, json: bool) -> int:
    machines = provider.nodes()
    if json:
        output.print_json({"machines": [asdict(one) for one in machines]})
        return 0
    now = time.time()
    output.tell(*([_line(one, now) for one in machines] or ["no machines"]))
    return 0


def _line(one: Machine, now: float) -> str:
    role = "head" if one.head else "worker"
    ends = "" if one.expires is None else f"  ends in {max(0.0, one.expires - now) / 60:.0f} min"
    price = "" if not one.hourly else f"  ${one.hourly:.3f}/h"
    place = f"  {one.zone}" if one.zone else ""
    what = f"{role:<6}  {one.phase.value:<7}  {one.market.value:<9}  {one.kind:<14}"
    return f"{what}  {one.address:<15}  {one.name}{place}{price}{ends}"


def _object(one: Planned) -> dict[str, Any]:
    return {"kind": one.kind, "name": one.name, "body": one.body}


def _lines(value: Any, indent: int) -> list[str]:
    """A body as indented lines: a person reads scripts as they are, without the escapes of JSON."""
    space = " " * indent
    if isinstance(value, Mapping):
        return [line for key, part in value.items() for line in _named(str(key), part, indent)]
    if isinstance(value, list | tuple):
        if all(isinstance(part, Mapping) and part.keys() == {"Key", "Value"} for part in value):
            return [f"{space}{part['Key']}: {part['Value']}" for part in value]
        if not any(isinstance(part, Mapping | list | tuple) for part in value):
            return [f"{space}- {part}" for part in value]
        if all(isinstance(part, Mapping) and _is_flat(part) for part in value):
            return [space + "- " + ", ".join(f"{key} {part[key]}" for key in part) for part in value]
        return [line for part in value for line in [f"{space}-", *_lines(part, indent + 2)]]
    return [space + line for line in str(value).splitlines()]


def _named(key: str, value: Any, indent: int) -> list[str]:
    space = " " * indent
    if isinstance(value, Mapping | list | tuple) or "\n" in str(value):
        return [f"{space}{key}:", *_lines(value, indent + 2)]
    return [f"{space}{key}: {value}"]


def _is_flat(value: Mapping[str, Any]) -> bool:
    return not any(isinstance(part, Mapping | list | tuple) or "\n" in str(part) for part in value.values())
