"""``dray models``: publish a model's checksums, and look after the models that this machine keeps."""

from __future__ import annotations

import time
from dataclasses import asdict

from cyclopts import App

from dray.cli import output
from dray.cli.flags import Json
from dray.errors import ConfigError
from dray.storage.absolute_paths import absolute

models = App(name="models", help="Publish checksums of a model; list or remove the models of this machine.")

_LINE_EVERY = 5.0


@models.command
def publish(model: str, /, *, json: Json = False) -> int:
    """Read a model once and write its checksums beside it (dray-manifest.json): all nodes verify by them.

    Parameters
    ----------
    model
        A directory, or the URI of one in an object store.
    """
    from dray.weights.source.publish import publish as write

    began = said = time.monotonic()
    done = 0

    def progress(size: int) -> None:
        nonlocal done, said
        done += size
        if time.monotonic() - said >= _LINE_EVERY:
            said = time.monotonic()
            output.say(f"{done / 1e9:.2f} GB read, {done / (said - began) / 1e9:.2f} GB/s")

    try:
        published = write(absolute(model), progress=progress)
    except OSError as error:
        raise ConfigError(f"model {model}: {error}") from None
    if json:
        output.print_json(asdict(published))
    else:
        output.tell(f"{published.path}: checksums of {published.files} files, {published.size / 1e9:.2f} GB")
    return 0


@models.command(name="list")
def list_(*, json: Json = False) -> int:
    """List the models that this machine keeps, in memory and on disk, the last used first."""
    from dray.weights.node.cache import cached_models
    from dray.weights.node.places import cache_roots

    found = [(place, model) for place in cache_roots() for model in cached_models(place)]
    if json:
        rows = [asdict(model) | {"root": str(place.root), "memory": place.memory} for place, model in found]
        output.print_json({"models": rows})
        return 0
    for place, model in found:
        state = "in use" if model.in_use else "whole" if model.whole else "partial"
        where = "memory" if place.memory else "disk"
        output.tell(f"{model.key[:12]}  {model.size / 1e9:8.2f} GB  {where:<6}  {state:<7}  {model.uri}")
    if not found:
        output.say("no models are kept")
    return 0


@models.command
def remove(keys: list[str] | None = None, /, *, json: Json = False) -> int:
    """Remove models that no process uses: all, or those whose keys begin with KEYS.

    Parameters
    ----------
    keys
        As `dray models list` shows them, or their beginnings. If left out: all models.
    """
    from dray.weights.node.cache import cached_models, evict
    from dray.weights.node.places import cache_roots

    kept = [(place, {model.key for model in cached_models(place)}) for place in cache_roots()]
    there = {key for _, known in kept for key in known}
    if missed := [key for key in keys or [] if not any(one.startswith(key) for one in there)]:
        raise ConfigError(
            f"no model is kept whose key begins with {', '.join(missed)}, and none was removed; "
            "`dray models list` shows the keys"
        )
    removed: list[str] = []
    left: list[str] = []
    for place, known in kept:
        chosen = {key for key in known if not keys or key.startswith(tuple(keys))}
        gone = evict(place, chosen) if chosen else []
        removed += gone
        left += sorted(chosen - set(gone))
    if json:
        output.print_json({"removed": removed, "in_use": left})
    else:
        for key in removed:
            output.tell(f"removed {key[:12]}")
        for key in left:
            output.tell(f"in use  {key[:12]}")
        if not there:
            output.say("no models are kept")
    return 0
