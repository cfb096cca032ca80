"""LoRA adapters that rows choose by their ``model``: the engine argument that names them. Imports no engine.

An adapter is a folder on every node, as PEFT writes it. The driver looks at those that it can see, and each
replica at all of them, before weights are loaded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dray.engine.adapter_fit import refuse_misfits
from dray.engine.adapter_folder import Adapter, read_adapter
from dray.errors import ConfigError
from dray.storage.absolute_paths import absolute

ARGUMENT: Final = "lora_modules"

_SHOWN = 100  # characters of a user's value that a message repeats
_FORM = 'write it as an object of names and folders: lora_modules={"NAME": "/path/of/the/folder"}'


def adapter_folders(arguments: Mapping[str, Any]) -> dict[str, str]:
    """The folders of the adapters by their names; empty where there are none.

    Raises:
        ConfigError: the argument is not an object of names and folders.
    """
    given = arguments.get(ARGUMENT)
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"engine argument {ARGUMENT}: {str(given)[:_SHOWN]!r} is no object; {_FORM}")
    if not given:
        raise ConfigError(f"engine argument {ARGUMENT}: it names no adapter; leave it out, or {_FORM}")
    for name, folder in given.items():
        if not isinstance(name, str) or not name.strip():
            raise ConfigError(f"engine argument {ARGUMENT}: an adapter has an empty name; {_FORM}")
        if not isinstance(folder, str) or not folder.strip():
            raise ConfigError(f"{_of(name)}: {str(folder)[:_SHOWN]!r} is no folder's path; {_FORM}")
        if "://" in folder:
            raise ConfigError(
                f"{_of(name)}: {folder.partition('://')[0][:_SHOWN]}:// is an address, and dray fetches no "
                "adapters yet; copy it to a folder at the same path on every node, and name that"
            )
    return dict(given)


def adapter_names(arguments: Mapping[str, Any]) -> frozenset[str]:
    """The names that rows may have in ``model`` beside the model's own; none where the argument is wrong."""
    given = arguments.get(ARGUMENT)
    return frozenset(filter(_is_text, given)) if isinstance(given, Mapping) else frozenset()


def with_absolute_folders(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The engine arguments, with the adapters' folders as seen from any working directory."""
    given = arguments.get(ARGUMENT)
    if not isinstance(given, Mapping):
        return dict(arguments)
    places = {name: _anchored(place) if _is_text(place) else place for name, place in given.items()}
    return {**arguments, ARGUMENT: places}


def _anchored(folder: str) -> str:
    """The folder's full path; of one that only the nodes have, the path as it was given."""
    found = absolute(folder)
    return found if os.path.isdir(found) else absolute(folder, as_given=True)  # noqa: PTH112  raises for no name


def adapters_of(arguments: Mapping[str, Any], model: str, *, all_here: bool = True) -> list[Adapter]:
    """The adapters in the order in which they are named, once they are known to be such that vLLM can apply.

    Each is judged by itself, and beside the model, where that is a local folder. Without ``all_here`` those
    that are not on this machine are left out: the nodes have them.

    Raises:
        ConfigError: names the adapter, what is wrong with it, and what to do.
    """
    folders = adapter_folders(arguments)
    _refuse_contradictions(arguments, folders, model)
    places = {name: Path(place).expanduser() for name, place in folders.items()}
    found = [read_adapter(name, place) for name, place in places.items() if all_here or place.is_dir()]
    refuse_misfits(found, Path(model))
    return found


def rank_for(
    adapters: Sequence[Adapter], arguments: Mapping[str, Any], possible: Sequence[int] | None
) -> int:
    """The least ``max_lora_rank`` of the ``possible`` ones that is enough; None: any is possible.

    Raises:
        ConfigError: an adapter's rank is above vLLM's most, or above what the user allows.
    """
    largest = max(adapters, key=lambda adapter: adapter.rank)
    given = arguments.get("max_lora_rank")
    if isinstance(given, int) and given < largest.rank:
        raise ConfigError(
            f"engine argument max_lora_rank: {given} is less than the rank {largest.rank} of the adapter "
            f"{largest.name!r}; leave it out, and dray chooses it"
        )
    if possible is None:
        return largest.rank
    enough = [rank for rank in possible if rank >= largest.rank]
    if not enough:
        raise ConfigError(
            f"{_of(largest.name)}: its rank {largest.rank} is above {max(possible)}, the most that vLLM takes"
        )
    return min(enough)


def _refuse_contradictions(arguments: Mapping[str, Any], folders: Mapping[str, str], model: str) -> None:
    if not folders:
        return
    if arguments.get("enable_lora") is False:
        raise ConfigError(f"engine argument enable_lora=false contradicts {ARGUMENT}; leave one of them out")
    base = Path(model).name
    if base in folders:
        raise ConfigError(
            f"{_of(base)}: this is the name of the model itself; give the adapter another name, so that "
            "rows can choose either"
        )
    kept = arguments.get("max_cpu_loras")
    if isinstance(kept, int) and 0 < kept < len(folders):
        # vLLM would read an adapter anew between two rows, and a folder lost by then would end the engine.
        raise ConfigError(
            f"engine argument max_cpu_loras: {kept} is less than the {len(folders)} adapters of {ARGUMENT}; "
            "leave it out, and all of them stay in memory"
        )


def _of(name: str) -> str:
    return f"engine argument {ARGUMENT}: adapter {name[:_SHOWN]!r}"


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())
