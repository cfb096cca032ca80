"""How users call the fields of a request: by options of a command line, or by parameters of a flow.

dray's messages call them by their options. To those who gave parameters, :func:`as_parameters` says it anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

from dray.errors import DrayError, InputError
from dray.job.options.forms import GROUPS, SHORTCUTS, Form

_NAMES: dict[tuple[str, ...], str] = {  # where a field's own name says too little without its form
    ("engine", "name"): "--engine",
    ("engine", "arguments"): "--engine-arg",
    ("sampling", "extra"): "--param",
    ("arguments",): "--engine-arg",
    ("overrides",): "--set",
    ("prices",): "--price",
}

_TOLD = re.compile(r"`[^`-][^`]*`|(?<![\w/-])--[a-z][a-z-]*(?![\w=])")
"""A whole command, which stays as it is, or an option."""

_by_options = False
"""Whether a command line calls the flows of this process."""


def spelled(path: tuple[str, ...]) -> str:
    """The option for the field at ``path``."""
    return _NAMES.get(path) or f"--{path[-1].replace('_', '-')}"


def parameter(path: tuple[str, ...]) -> str:
    """The parameter for it, and its field where the parameter is a group."""
    return path[-1] if path[-1] in SHORTCUTS else ".".join(path)


@contextmanager
def called_by_options() -> Iterator[None]:
    """In the block a command line calls flows: its user knows the options, so messages stay as they are."""
    global _by_options
    _by_options = True
    try:
        yield
    finally:
        _by_options = False


def as_parameters(text: str, form: type[Form]) -> str:
    """``text`` with the parameters of ``form`` in place of its options, unless a command line calls."""
    if _by_options:
        return text
    known = _parameters(form)
    return _TOLD.sub(lambda found: known.get(found[0], found[0]), text)


@contextmanager
def in_parameters(form: type[Form]) -> Iterator[None]:
    """Errors that leave the block say the same as :func:`as_parameters`."""
    try:
        yield
    except InputError as error:
        told = [replace(one, message=as_parameters(one.message, form)) for one in error.problems]
        advice = None if error.advice is None else as_parameters(error.advice, form)
        error.__init__(told, total=error.total, advice=advice)  # type: ignore[misc]  # the same one goes on
        raise
    except DrayError as error:
        error.args = tuple(as_parameters(one, form) if type(one) is str else one for one in error.args)
        raise


@cache
def _parameters(form: type[Form]) -> Mapping[str, str]:
    paths = [
        path
        for name in form.model_fields
        for path in ([(name, one) for one in GROUPS[name].model_fields] if name in GROUPS else [(name,)])
    ]
    return {spelled(path): parameter(path) for path in paths}
