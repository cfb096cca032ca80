"""What each layer of a model is: how it mixes tokens, and which MLP it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from dray.planner.models.counting import Experts
from dray.planner.models.families import Family, Pattern
from dray.planner.models.fields import Fields

WINDOWS = ("sliding_window", "attention_chunk_size")
"""The fields with the size of a window. A layer with chunks sees its own one: at most as much."""

_MOST_LAYERS = 10_000


class Mixer(StrEnum):
    """How a layer mixes tokens. BOTH: attention and a recurrent mixer beside each other."""

    FULL = "attention over all tokens"
    WINDOW = "attention over a window"
    RECURRENT = "recurrent"
    BOTH = "attention over all tokens, and recurrent"
    NONE = "none"


class Mlp(StrEnum):
    """The MLP of a layer. WIDE: a dense one, twice as wide as others."""

    DENSE = "dense"
    WIDE = "wide"
    EXPERTS = "experts"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer. ``borrows``: keys and values, or an indexer's choice, are those of an earlier one."""

    mixer: Mixer
    mlp: Mlp
    borrows: bool = False


_MIXERS = {
    "full_attention": Mixer.FULL,
    "attention": Mixer.FULL,
    "indexed_attention": Mixer.FULL,
    "deepseek_sparse_attention": Mixer.FULL,
    "sliding_attention": Mixer.WINDOW,
    "chunked_attention": Mixer.WINDOW,
    "linear_attention": Mixer.RECURRENT,
    "mamba": Mixer.RECURRENT,
    "conv": Mixer.RECURRENT,
    "mlp": Mixer.NONE,
    "moe": Mixer.NONE,
}
"""By the names of ``layer_types`` and ``layers_block_type``, old and new."""
_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""Of ``hybrid_override_pattern``."""
_MLPS = {"dense": Mlp.DENSE, "sparse": Mlp.EXPERTS}


def layers_of(fields: Fields, family: Family, experts: Experts) -> tuple[Layer, ...]:
    """Every layer of the model.

    Raises:
        ConfigError: a layer's name is not known, or there are too many layers, or too few names.
    """
    if family.pattern is Pattern.BLOCKS:
        return tuple(_block(name) for name in _blocks(fields))
    number = fields.count("num_hidden_layers")
    if number > _MOST_LAYERS:
        raise fields.error(f"the field 'num_hidden_layers' is {number:,}; at most {_MOST_LAYERS:,} are taken")
    mixers, mlps = _mixers(fields, family, number), _mlps(fields, experts, number)
    borrowing = _borrowing(fields, number)
    if fields.flag("use_double_wide_mlp"):
        mlps = [Mlp.WIDE if one else mlp for mlp, one in zip(mlps, borrowing, strict=True)]
    return tuple(map(Layer, mixers, mlps, borrowing))


def _block(name: str) -> Layer:
    """A layer that has a mixer or an MLP, not both."""
    mlps = {"mlp": Mlp.DENSE, "moe": Mlp.EXPERTS}
    return Layer(_MIXERS[name], mlps.get(name, Mlp.NONE))


def _blocks(fields: Fields) -> tuple[str, ...]:
    """Nemotron-H's layers: by a list under one of two names, by a pattern, or those of its class."""
    pattern = fields.get("hybrid_override_pattern")
    for name in ("layers_block_type", "layer_types"):
        if fields.values.get(name) is not None:
            return _known(fields, name, fields.strings(name))
    if pattern is None:
        return _known(fields, "layers_block_type", fields.strings("layers_block_type"))
    if not isinstance(pattern, str) or not pattern:
        raise fields.error("the field 'hybrid_override_pattern' is not a text of M, *, - and E")
    return _known(
        fields, "hybrid_override_pattern", tuple(_LETTERS.get(letter, letter) for letter in pattern)
    )


def _known(fields: Fields, name: str, kinds: Sequence[str]) -> tuple[str, ...]:
    if not kinds or len(kinds) > _MOST_LAYERS:
        raise fields.error(f"the field {name!r} names {len(kinds):,} layers; 1 to {_MOST_LAYERS:,} are taken")
    for kind in kinds:
        if kind not in _MIXERS:
            raise fields.error(
                f"the field {name!r} has a layer {kind[:40]!r}, which the cost model does not know"
            )
    return tuple(kinds)


def _mixers(fields: Fields, family: Family, number: int) -> list[Mixer]:
    if family.pattern is Pattern.BOTH:
        return [Mixer.BOTH] * number
    windows = _has_window(fields)
    kinds = _known(fields, "layer_types", named) if (named := fields.strings("layer_types")) else ()
    if kinds and len(kinds) < number:
        raise fields.error(f"the field 'layer_types' names {len(kinds):,} layers of {number:,}")
    mixers = [_MIXERS[kind] for kind in kinds[:number]] or _by_pattern(fields, family, number)
    odd = {Mixer.NONE} if family.recurrent else {Mixer.NONE, Mixer.RECURRENT}
    if odd & set(mixers):
        raise fields.error("the field 'layer_types' has layers that are unknown of this family")
    if family.last_sees_all:
        mixers[-1] = Mixer.FULL
    return [Mixer.FULL if one is Mixer.WINDOW and not windows else one for one in mixers]


def _has_window(fields: Fields) -> bool:
    return fields.get("use_sliding_window") is not False and any(
        fields.get(name) is not None for name in WINDOWS
    )


def _by_pattern(fields: Fields, family: Family, number: int) -> list[Mixer]:
    """The mixers where no list names them."""
    match family.pattern:
        case Pattern.EVERY_NTH:
            period = fields.count("full_attention_interval")
            return [Mixer.RECURRENT if (one + 1) % period else Mixer.FULL for one in range(number)]
        case Pattern.KIMI:
            return _kimi(fields, number)
        case Pattern.INDICES:
            attention = set(fields.numbers("full_attn_idxs") or range(number))
            return [Mixer.FULL if one in attention else Mixer.RECURRENT for one in range(number)]
        case Pattern.NAMED:
            raise fields.error("the field 'layer_types' is missing")
        case Pattern.ALL:
            return [Mixer.RECURRENT] * number
    if fields.get("use_sliding_window"):
        first = fields.optional_count("max_window_layers", number)
        return [Mixer.FULL if one < first else Mixer.WINDOW for one in range(number)]
    period = fields.optional_count("sliding_window_pattern", family.window_period) or 1
    return [Mixer.WINDOW if period == 1 or (one + 1) % period else Mixer.FULL for one in range(number)]


def _kimi(fields: Fields, number: int) -> list[Mixer]:
    """``full_attn_layers`` are numbers from 1; where no list names them, every fourth layer but the first."""
    inner = fields.inner("linear_attn_config")
    if inner is None or inner.get("full_attn_layers") is None:
        attention = set(range(4, number, 4))
    else:
        attention = {one - 1 for one in inner.numbers("full_attn_layers")}
    return [Mixer.FULL if one in attention else Mixer.RECURRENT for one in range(number)]


def _borrowing(fields: Fields, number: int) -> list[bool]:
    """Gemma's last layers share keys and values; GLM's indexers choose tokens for the layers behind them."""
    shared = fields.optional_count("num_kv_shared_layers", 0)
    if shared >= number:
        raise fields.error(f"the field 'num_kv_shared_layers' is {shared:,}, but there are {number:,} layers")
    if shared or fields.get("index_topk") is None:
        return [one >= number - shared for one in range(number)]
    kinds: Sequence[str] = fields.strings("indexer_types")
    pattern = fields.get("index_topk_pattern")
    if not kinds and isinstance(pattern, str):
        kinds = [{"F": "full", "S": "shared"}.get(letter, letter) for letter in pattern]
    if not kinds:
        step = max(1, fields.optional_count("index_topk_freq", 1))
        skipped = fields.optional_count("index_skip_topk_offset", 2)
        return [max(one - skipped + 1, 0) % step != 0 for one in range(number)]
    if len(kinds) < number or not set(kinds) <= {"full", "shared"}:
        raise fields.error("the field 'indexer_types' does not name each layer full or shared")
    return [kind == "shared" for kind in kinds[:number]]


def _mlps(fields: Fields, experts: Experts, number: int) -> list[Mlp]:
    """A plain MLP in the first layers, those in a list, or those between the sparse ones."""
    if not experts.number:
        return [Mlp.DENSE] * number
    kinds = fields.strings("mlp_layer_types")
    if kinds and (len(kinds) < number or not set(kinds) <= set(_MLPS)):
        raise fields.error("the field 'mlp_layer_types' does not name each layer dense or sparse")
    if kinds:
        return [_MLPS[kind] for kind in kinds[:number]]
    starts = ("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers")
    first = max(fields.optional_count(name, 0) for name in starts)
    listed = fields.get("mlp_only_layers")
    listed = listed if isinstance(listed, list) else []
    steps = ("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval")
    step = max(fields.optional_count(name, 1) for name in steps)
    return [
        Mlp.DENSE if one < first or one in listed or (one + 1) % step else Mlp.EXPERTS
        for one in range(number)
    ]
