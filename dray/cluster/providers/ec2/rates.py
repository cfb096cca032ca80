"""How fast instance types answer, by the cost model, for the model and the requests of a job."""

from __future__ import annotations

import logging
from collections.abc import Collection
from datetime import date
from typing import Any

from dray.cluster.providers.ec2.settings import EC2Settings
from dray.errors import ConfigError
from dray.planner.catalogue import load_catalogue
from dray.planner.cost import Demand, PlanLimits, plans
from dray.planner.models import FORMATS, ModelFacts, model_facts, read_model, unknown_family
from dray.weights.source.configuration import configuration_of

_LOGGER = logging.getLogger(__name__)
_ROWS = 100_000
_USUAL_MODEL: dict[str, Any] = {  # of Llama 3.1 8B, for settings that name no model, or an unknown one
    "model_type": "llama", "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
    "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336,
}  # fmt: skip


def token_rates(settings: EC2Settings, today: date) -> dict[str, float]:
    """Tokens per second of each type that holds the model as the engine splits it, by name.

    Of the types that the user allows. A replica over several machines counts with its share of each.

    Raises:
        ConfigError: a type is not in dray's catalogue, or the model fits on none of them.
    """
    demand = Demand(rows=_ROWS, input_tokens=settings.input_tokens, output_tokens=settings.output_tokens)
    model = _facts(settings.model)
    found = plans(demand, model, load_catalogue(), _limits(settings, model), today=today)
    rates: dict[str, float] = {}
    for plan in found.plans:
        rate = plan.requests_per_second.likely * demand.mean_total / plan.machines
        name = plan.instance.name
        rates[name] = max(rate, rates.get(name, 0.0))
    if not rates:
        split = ("tensor_parallel_size", "pipeline_parallel_size", "nnodes")
        given = ", ".join(f"{name}={getattr(settings, name)}" for name in split)
        raise ConfigError(
            f"ec2: no instance type holds the model with {given}, as the job's engine arguments or the "
            f"cluster's settings have it: {found.why}"
        )
    return rates


def _limits(settings: EC2Settings, model: ModelFacts) -> PlanLimits:
    """What the engine's arguments leave: it takes a split that it is given, and no other."""
    known = settings.quantization in FORMATS and not model.quantized
    return PlanLimits(
        hardware=_known(settings.instance_types),
        max_machines=settings.nnodes,
        weights=(str(settings.quantization),) if known else (),
        tensor_parallel=settings.tensor_parallel_size,
        pipeline_parallel=settings.pipeline_parallel_size,
        nodes=settings.nnodes,
    )


def _known(types: Collection[str]) -> tuple[str, ...]:
    known = load_catalogue().instances
    for one in types:
        if one not in known:
            raise ConfigError(
                f"ec2: instance type {one!r} is not in dray's catalogue, so its speed is unknown; "
                f"known are {', '.join(sorted(known))}"
            )
    return tuple(types)


def _facts(model: str | None) -> ModelFacts:
    if model is not None:
        with configuration_of(model) as folder:
            family = unknown_family(folder)
            if family is None:
                return read_model(folder)
        _LOGGER.warning(
            "ec2: model %s: the cost model does not know its family (%.40r); instance types are compared for "
            "a model of 8 billion parameters: name instance_types that hold yours",
            model,
            family,
        )
    return model_facts(_USUAL_MODEL, file="the model that is assumed", name="8B parameters")
