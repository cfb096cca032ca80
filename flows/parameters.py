"""The parameters of the flows: fields of their forms, one by one, as Prefect and Python show them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, ParamSpec, TypeVar, cast

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from dray.job.options.forms import GROUPS, EngineOptions, Form, RowOptions, SamplingOptions
from dray.job.options.plain import path_as_text
from dray.job.options.request import JobRequest

P = ParamSpec("P")
R = TypeVar("R")


def parameters_of(form: Callable[P, Form]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Give a flow the fields of the request, which is its form, as its parameters.

    Type checkers read them from the class. Prefect reads its form from the signature and from the docstring's
    ``Args``, which are set here. A group may be left out as a whole: Prefect's page opens groups with values.
    Limits stay with the request, which names the field that is beyond one. Python's paths are texts, here as
    there.
    """

    def give(flow: Callable[..., R]) -> Callable[P, R]:
        fields = cast("type[Form]", form).model_fields
        described = "\n".join(f"    {name}: {field.description}" for name, field in fields.items())
        parameters = [_parameter(name, field) for name, field in fields.items()]
        flow.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # inspect's own name
        flow.__doc__ = f"{inspect.cleandoc(flow.__doc__ or '')}\n\nArgs:\n{described}\n"
        return flow

    return give


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    hint: Any = field.annotation
    if name in GROUPS:
        return inspect.Parameter(name, kind, default=None, annotation=hint | None)
    hint = Annotated[hint, BeforeValidator(path_as_text)]
    if field.is_required():
        return inspect.Parameter(name, kind, annotation=hint)
    default = field.get_default(call_default_factory=True)
    return inspect.Parameter(name, kind, default=default, annotation=hint)


__all__ = ["EngineOptions", "JobRequest", "RowOptions", "SamplingOptions", "parameters_of"]
