"""A decoder by its sizes: its layers, how each mixes tokens, and its MLPs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil

from dray.planner.models.attention import Attention
from dray.planner.models.counting import Experts, Mixing, attention_of, experts_of, width_name
from dray.planner.models.families import Family
from dray.planner.models.fields import Fields
from dray.planner.models.layers import WINDOWS, Layer, Mixer, Mlp, layers_of
from dray.planner.models.recurrent import Recurrent
from dray.planner.models.states import recurrent


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """``width`` of dense MLPs; 0 where no layer has one. ``mixings``: those of one layer, by kinds of layers.

    ``layer_inputs`` is the width of an embedding that each layer has of its own (Gemma 4); 0 for none.
    """

    layers: tuple[Layer, ...]
    mixings: Mapping[tuple[Mixer, bool], tuple[Mixing, ...]]
    hidden: int
    vocabulary: int
    heads: int
    width: int
    mlp_bias: bool
    family: Family
    experts: Experts
    layer_inputs: int
    layer_vocabulary: int

    @property
    def attention(self) -> tuple[Attention, ...]:
        """Groups of alike layers: those that see everything first, then those with a window."""
        found = Counter(one for layer in self.layers for one in self.mixing(layer))
        return tuple(
            replace(one.attention, layers=number)
            for mixer in (Mixer.FULL, Mixer.BOTH, Mixer.WINDOW)
            for borrows in (False, True)
            for one in self.mixings.get((mixer, borrows), ())
            if one.attention is not None and (number := found[one])
        )

    @property
    def recurrent(self) -> tuple[Recurrent, ...]:
        """The recurrent layers, which are alike."""
        found = [one.recurrent for layer in self.layers for one in self.mixing(layer) if one.recurrent]
        return (replace(found[0], layers=len(found)),) if found else ()

    def mixing(self, layer: Layer) -> tuple[Mixing, ...]:
        """What mixes the tokens of a layer: nothing, attention, a recurrent mixer, or both."""
        return self.mixings[layer.mixer, layer.borrows]

    def number(self, *mlps: Mlp) -> int:
        """Layers with such an MLP."""
        return sum(layer.mlp in mlps for layer in self.layers)

    @property
    def sublayers(self) -> int:
        """Mixers and MLPs; two mixers beside each other count as one."""
        return sum((one.mixer is not Mixer.NONE) + (one.mlp is not Mlp.NONE) for one in self.layers)

    @property
    def matrices(self) -> int:
        """How many matrices an MLP has: gate, up and down, or up and down."""
        return 3 if self.family.gated else 2

    @property
    def widths(self) -> tuple[int, ...]:
        """The widths of MLPs that every token reads, and tensor parallelism splits; 0 where there is none."""
        return self.width, self.experts.shared_width

    @property
    def expert_input(self) -> int:
        """The width that experts read."""
        return self.experts.latent or self.hidden

    @property
    def dense_width(self) -> int:
        """Widths of dense MLPs over all layers."""
        return self.width * (self.number(Mlp.DENSE) + 2 * self.number(Mlp.WIDE))

    @property
    def mean_width(self) -> float:
        """Width of the MLP that a token passes through, over all layers."""
        sparse = self.experts.per_token * self.experts.width + self.experts.shared_width
        return (self.dense_width + self.number(Mlp.EXPERTS) * sparse) / len(self.layers)


def decoder_of(fields: Fields, family: Family) -> Decoder:
    """The decoder that a config describes.

    Raises:
        ConfigError: a field is missing, wrong, or not known; names file and field.
    """
    hidden, experts = fields.count("hidden_size"), experts_of(fields, family)
    for name in family.unknown:
        if fields.get(name):
            raise fields.error(f"the field {name!r} is there: the cost model does not know such a model")
    if fields.get("use_bidirectional_attention") == "all":
        raise fields.error("the field 'use_bidirectional_attention' is 'all': such a model writes no text")
    layers = layers_of(fields, family, experts)
    kinds = dict.fromkeys((layer.mixer, layer.borrows) for layer in layers)
    sparse = any(layer.mlp is Mlp.EXPERTS for layer in layers)
    needs_dense = any(layer.mlp in (Mlp.DENSE, Mlp.WIDE) for layer in layers)
    if sparse and not experts.number:
        raise fields.error("there are layers with experts, but the field 'n_routed_experts' names none")
    layer_inputs = fields.optional_count("hidden_size_per_layer_input", 0)
    return Decoder(
        layers=layers,
        mixings={kind: _mixing(fields, family, hidden, *kind) for kind in kinds},
        hidden=hidden,
        vocabulary=fields.count("vocab_size"),
        heads=fields.count("num_attention_heads"),
        width=_dense_width(fields, family) if needs_dense else 0,
        mlp_bias=fields.flag("mlp_bias"),
        family=family,
        experts=experts if sparse else Experts(),  # Nemotron-H's class names some for every model
        layer_inputs=layer_inputs,
        layer_vocabulary=fields.count("vocab_size_per_layer_input") if layer_inputs else 0,
    )


def _mixing(fields: Fields, family: Family, hidden: int, mixer: Mixer, borrows: bool) -> tuple[Mixing, ...]:
    found = []
    if mixer in (Mixer.FULL, Mixer.WINDOW, Mixer.BOTH):
        windowed = mixer is Mixer.WINDOW
        one = attention_of(fields, family, hidden, windowed=windowed, borrows=borrows)
        if windowed and one.attention is not None:
            one = replace(one, attention=replace(one.attention, window=fields.count(*WINDOWS)))
        found.append(one)
    if mixer in (Mixer.RECURRENT, Mixer.BOTH) and family.recurrent is not None:
        found.append(recurrent(family.recurrent, fields, hidden))
    return tuple(found)


def _dense_width(fields: Fields, family: Family) -> int:
    """The width of dense MLPs; LFM2 calls it ``block_ff_dim``, too, and makes its own of it."""
    own = fields.get("block_ff_dim") is not None
    width = fields.count("block_ff_dim" if own else width_name(fields, family.dense_width))
    if not fields.flag("block_auto_adjust_ff_dim"):
        return width
    width, factor = 2 * width // 3, fields.get("block_ffn_dim_multiplier")
    if factor is None:
        return width
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < 100:
        raise fields.error(f"the field 'block_ffn_dim_multiplier' is {str(factor)[:40]!r}, not a factor")
    step = fields.count("block_multiple_of")
    return ceil(int(factor * width) / step) * step
