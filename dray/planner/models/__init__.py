"""Facts of a model from its ``config.json``: parameters, bytes, attention."""

from dray.planner.models.facts import ModelFacts, Part, Role
from dray.planner.models.formats import FORMATS, KV_BYTES, kv_format
from dray.planner.models.reading import model_facts, read_config, read_model, unknown_family
from dray.planner.models.whole_media import least_tokens

__all__ = [
    "read_config",
    "read_model",
    "model_facts",
    "ModelFacts",
    "Part",
    "Role",
    "FORMATS",
    "KV_BYTES",
    "kv_format",
    "least_tokens",
    "unknown_family",
]
