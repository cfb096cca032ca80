"""The chat template that a user gives: a file, the name of one of vLLM's own, or the text. Imports no engine.

The driver reads the file, and replicas get the text: their nodes need not have the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dray.errors import ConfigError

ARGUMENT = "chat_template"

HARMONY = "gpt_oss"
"""The ``model_type`` of models whose prompts vLLM writes in OpenAI's Harmony format, without a template."""

_OF_A_TEXT = "{}\n"  # as vLLM has it: a text without any of these is meant as the path of a file
_LONGEST_PATH = 200  # characters of a user's value that a message repeats
_VLLMS_OWN = Path("transformers_utils", "chat_templates")


def with_template_text(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The engine arguments, with the template's text in place of its file's path.

    Raises:
        ConfigError: there is no such file, or it cannot be read.
    """
    given = arguments.get(ARGUMENT)
    return dict(arguments) if given is None else {**arguments, ARGUMENT: template_text(given)}


def template_text(given: Any) -> str:
    """The text of a chat template: of the file, where ``given`` is a path, as vLLM's server has it.

    Raises:
        ConfigError: it is neither.
    """
    if not isinstance(given, str):
        raise ConfigError(f"engine argument {ARGUMENT}: {given!r} is neither a path nor a text")
    text = _content(Path(given), given)
    if text is not None:
        return text
    if any(character in given for character in _OF_A_TEXT):
        return given
    own = _vllms_own(given)
    if own is not None:
        return own
    raise ConfigError(
        f"engine argument {ARGUMENT}: no file {given[:_LONGEST_PATH]!r} on this machine (in {Path.cwd()}), "
        "and vLLM has no template of this name; give the path of a file here, or the template itself"
    )


def _content(path: Path, given: str) -> str | None:
    """What a file holds; None where there is none, or ``given`` cannot be a path."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"engine argument {ARGUMENT}: the file {given} is not UTF-8") from None
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except (OSError, ValueError) as error:  # too long for a path, or with NUL, as a text may be
        if any(character in given for character in _OF_A_TEXT):
            return None
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"engine argument {ARGUMENT}: the file {given[:_LONGEST_PATH]!r} cannot be read: {why}"
        ) from None
    if "{" not in text:
        raise ConfigError(
            f"engine argument {ARGUMENT}: the file {given} holds no template: it has no '{{', so all prompts "
            "would be the same"
        )
    return text


def _vllms_own(name: str) -> str | None:
    found = find_spec("vllm")  # the package is not run
    for folder in (found.submodule_search_locations or ()) if found is not None else ():
        file = Path(folder, _VLLMS_OWN, Path(name).name)
        if Path(name).name == name and file.is_file():
            return file.read_text(encoding="utf-8")
    return None
