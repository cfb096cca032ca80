"""A decoder's parameters by use, and the format of each part."""

from __future__ import annotations

from dataclasses import replace

from dray.planner.models.decoder import Decoder
from dray.planner.models.facts import Part, Role
from dray.planner.models.formats import Format
from dray.planner.models.layers import Layer, Mlp
from dray.planner.models.quantization import Quantization

_MODULES = {
    "self_attn": "self_attn.o_proj",
    "mlp": "mlp.down_proj",
    "experts": "mlp.experts.0.down_proj",
}
"""One module of the part in a layer, by the name that configs of most families call it."""


def parts_of(
    decoder: Decoder, *, tied: bool, stored: Format, quantization: Quantization | None
) -> tuple[Part, ...]:
    """The parts; ``tied``: the output layer is the embedding's matrix. ``stored``: the format of training."""
    table = decoder.vocabulary * decoder.hidden
    attention, recurrent = _mixers(decoder)
    counts = [
        ("embed_tokens", Role.EMBEDDING, table, False),
        ("embed_tokens_per_layer", Role.EMBEDDING, _layer_table(decoder), False),
        ("self_attn", Role.BODY, attention, True),
        ("recurrent", Role.BODY, recurrent, True),
        ("mlp", Role.BODY, _dense_mlp(decoder), True),
        ("per_layer", Role.BODY, _layer_projections(decoder), True),
        ("experts", Role.EXPERTS, _expert_matrices(decoder), True),
        ("vectors", Role.BODY, _vectors(decoder), False),
        ("lm_head", Role.HEAD, table, True),
    ]
    parts = tuple(
        Part(
            name=name,
            role=role,
            parameters=count,
            format=stored.name,
            bits=stored.bits,
            arithmetic=stored.arithmetic,
            linear=linear,
            stored=not (tied and role is Role.HEAD),
        )
        for name, role, count, linear in counts
        if count
    )
    if quantization is None:
        return parts
    return tuple(piece for part in parts for piece in _split(part, quantization, decoder))


def _mixers(decoder: Decoder) -> tuple[int, int]:
    """The matrices of attention, and those of recurrent mixers."""
    mixings = [one for layer in decoder.layers for one in decoder.mixing(layer)]
    recurrent = sum(one.matrices for one in mixings if one.recurrent is not None)
    return sum(one.matrices for one in mixings) - recurrent, recurrent


def _dense_mlp(decoder: Decoder) -> int:
    """The matrices of dense layers and of shared experts, and those into and out of the experts' latent."""
    sparse = decoder.number(Mlp.EXPERTS)
    width = decoder.dense_width + sparse * decoder.experts.shared_width
    return decoder.hidden * (decoder.matrices * width + 2 * sparse * decoder.experts.latent)


def _expert_matrices(decoder: Decoder) -> int:
    experts = decoder.experts
    one = decoder.matrices * decoder.expert_input * experts.width
    if decoder.family.expert_bias:
        one += 2 * experts.width + decoder.hidden
    return decoder.number(Mlp.EXPERTS) * experts.number * one


def _layer_table(decoder: Decoder) -> int:
    return decoder.layer_vocabulary * len(decoder.layers) * decoder.layer_inputs


def _layer_projections(decoder: Decoder) -> int:
    """Weights from the hidden state to all layers' inputs, and in each layer a gate and the way back."""
    return 3 * len(decoder.layers) * decoder.layer_inputs * decoder.hidden


def _vectors(decoder: Decoder) -> int:
    """Norms, biases, convolutions and routers: small, and never quantized."""
    sparse, hidden, family = decoder.number(Mlp.EXPERTS), decoder.hidden, decoder.family
    layer = family.layer_norms * hidden
    if decoder.mlp_bias:
        layer += 2 * decoder.width + hidden
    layer += hidden if decoder.layer_inputs else 0
    router = decoder.experts.number * (hidden + int(family.router_bias))
    router += hidden if family.shared_gate and decoder.experts.shared_width else 0
    mixers = sum(one.vectors for each in decoder.layers for one in decoder.mixing(each))
    return len(decoder.layers) * layer + mixers + sparse * router + hidden


def _split(part: Part, found: Quantization, decoder: Decoder) -> list[Part]:
    """The quantized and the unquantized share of a part, where it has both."""
    if not part.linear or (part.role is Role.HEAD and not found.head):
        return [part]
    count = round(part.parameters * found.share(_modules(part, decoder)))
    form = found.format
    pieces = [
        replace(part, parameters=count, format=form.name, bits=form.bits, arithmetic=form.arithmetic),
        replace(part, parameters=part.parameters - count),
    ]
    return [piece for piece in pieces if piece.parameters]


def _modules(part: Part, decoder: Decoder) -> list[str]:
    """One module of the part in each layer that has it, by the name that configs call it."""
    end = {**_MODULES, **decoder.family.modules}.get(part.name)
    if end is None:
        return [part.name]
    return [
        f"{decoder.family.layers}.{number}.{end}"
        for number, layer in enumerate(decoder.layers)
        if _has(part.name, layer, decoder)
    ]


def _has(part: str, layer: Layer, decoder: Decoder) -> bool:
    if part == "experts":
        return layer.mlp is Mlp.EXPERTS
    if part == "mlp":
        return layer.mlp is not Mlp.NONE and (
            layer.mlp is not Mlp.EXPERTS or decoder.experts.shared_width > 0
        )
    mixings = decoder.mixing(layer)
    return any((one.recurrent is not None) is (part == "recurrent") for one in mixings)
