"""Facts of a model from its ``config.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dray.errors import ConfigError
from dray.planner.models.attention import Attention
from dray.planner.models.counting import Counted, Experts, experts_of, grouped_query, latent, width_name
from dray.planner.models.defaults import DEFAULTS
from dray.planner.models.facts import ModelFacts, Part, Role
from dray.planner.models.families import FAMILIES, Family
from dray.planner.models.fields import Fields
from dray.planner.models.formats import FORMATS, TORCH_NAMES, Format
from dray.planner.models.positions import lengths_of
from dray.planner.models.quantization import Quantization, quantization_of
from dray.planner.models.windows import WINDOWS, windowed_layers

_TOWERS = ("vision_config", "audio_config")
_MOST_LAYERS = 10_000
_SENTENCES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
"""vLLM reads the first of these files (``get_sentence_transformer_tokenizer_config``)."""


def read_model(folder: Path) -> ModelFacts:
    """Facts of the model in a folder, by ``config.json``, ``hf_quant_config.json`` and ``sentence_*.json``.

    Raises:
        ConfigError: a file cannot be read, a field is missing or wrong, or the family is not known.
    """
    config = _load(folder / "config.json")
    separate = folder / "hf_quant_config.json"
    if "quantization_config" not in config and separate.exists():
        config = {**config, "quantization_config": _load(separate).get("quantization")}
    model = model_facts(config, file=str(folder / "config.json"), name=folder.name)
    length = _sentence_length(folder)
    return model if length is None else replace(model, max_length=length, most_length=length)


def unknown_family(folder: Path) -> str | None:
    """The family of the model in a folder where the cost model does not know it, else None.

    Raises:
        ConfigError: ``config.json`` cannot be read, or names no family.
    """
    outer = Fields(_load(folder / "config.json"), str(folder / "config.json"), {})
    kind = _kind(outer.inner("text_config") or outer, outer)
    return None if kind in FAMILIES else kind


def _sentence_length(folder: Path) -> int | None:
    """What sentence-transformers' file says; vLLM takes it for the model's, be it more or less than that."""
    for name in _SENTENCES:
        path = folder / f"sentence_{name}_config.json"
        if path.is_file() and (found := _load(path)):
            fields = Fields(found, str(path), {})
            return None if fields.get("max_seq_length") is None else fields.count("max_seq_length")
    return None


def _load(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: is not a JSON object")
    return found


def model_facts(config: Mapping[str, Any], *, file: str = "config.json", name: str = "") -> ModelFacts:
    """Facts of the model that a config describes; ``file`` is how errors call it.

    Raises:
        ConfigError: a field is missing or wrong, or the family is not known; names file and field.
    """
    outer = Fields(config, file, {})
    text = outer.inner("text_config") or outer
    kind = _family_name(text, outer)
    family = FAMILIES[kind]
    fields = Fields(text.values, file, DEFAULTS[kind])
    sizes = _sizes(fields, family)
    stored = _stored_format(fields, outer)
    quantization = quantization_of(outer) or quantization_of(fields)
    parts = _quantized(_parts(sizes, _tied(fields, outer), stored), quantization, sizes.layers)
    length, most = lengths_of(fields, kind)
    return ModelFacts(
        name=name or str(outer.get("_name_or_path") or kind),
        family=kind,
        layers=sizes.layers,
        hidden=sizes.hidden,
        heads=sizes.attention[0].heads,
        intermediate=sizes.mean_width,
        vocabulary=sizes.vocabulary,
        max_length=length,
        most_length=most,
        parts=parts,
        attention=sizes.attention,
        experts=sizes.experts.number,
        experts_per_token=sizes.experts.per_token,
        format=quantization.format.name if quantization else stored.name,
        kv_format=(quantization and quantization.kv) or ("fp32" if stored.name == "fp32" else "bf16"),
        widths=tuple(width for width in sizes.widths if width),
        block=quantization.block if quantization else 1,
        notes=_notes(outer),
    )


def _kind(text: Fields, outer: Fields) -> str:
    kind = text.get("model_type") or outer.get("model_type")
    if kind is None:
        raise text.error("the field 'model_type' is missing")
    return str(kind)


def _family_name(text: Fields, outer: Fields) -> str:
    kind = _kind(text, outer)
    if kind in FAMILIES:
        return kind
    raise text.error(
        f"the family {kind[:40]!r} in the field 'model_type' is not known to the cost model; "
        f"known are {', '.join(FAMILIES)}; dray run needs no plan"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    layers: int
    hidden: int
    vocabulary: int
    width: int
    """Of the dense MLP; 0 where each layer has experts."""
    norms: int
    mlp_bias: bool
    family: Family
    counted: Counted
    attention: tuple[Attention, ...]
    experts: Experts

    @property
    def matrices(self) -> int:
        """Of an MLP: gate, up and down, or up and down."""
        return 3 if self.family.gated else 2

    @property
    def widths(self) -> tuple[int, ...]:
        """Of the MLPs that tensor parallelism splits; 0 where there is none of the kind."""
        experts = self.experts
        return (self.width, experts.width, experts.shared_width) if experts.number else (self.width,)

    @property
    def sparse_layers(self) -> int:
        return self.layers - self.experts.dense_layers if self.experts.number else 0

    @property
    def mean_width(self) -> float:
        """Width of the MLP that a token passes through, over all layers."""
        sparse = self.experts.per_token * self.experts.width + self.experts.shared_width
        total = (self.layers - self.sparse_layers) * self.width + self.sparse_layers * sparse
        return total / self.layers


def _sizes(fields: Fields, family: Family) -> _Sizes:
    layers, hidden = fields.count("num_hidden_layers"), fields.count("hidden_size")
    if layers > _MOST_LAYERS:
        raise fields.error(f"the field 'num_hidden_layers' is {layers:,}; at most {_MOST_LAYERS:,} are taken")
    experts = experts_of(fields, family, layers)
    counted, one = latent(fields, hidden) if family.latent else grouped_query(fields, family, hidden)
    needs_dense = not experts.number or experts.dense_layers > 0
    return _Sizes(
        layers=layers,
        hidden=hidden,
        vocabulary=fields.count("vocab_size"),
        width=fields.count(width_name(fields, "intermediate_size_mlp")) if needs_dense else 0,
        norms=family.layer_norms,
        mlp_bias=fields.flag("mlp_bias"),
        family=family,
        counted=counted,
        attention=_groups(one, layers, windowed_layers(fields, family, layers), fields),
        experts=experts,
    )


def _groups(one: Attention, layers: int, windowed: int, fields: Fields) -> tuple[Attention, ...]:
    """Layers that see everything first, then those with a window."""
    groups = [replace(one, layers=layers - windowed)] if layers > windowed else []
    if windowed:
        groups.append(replace(one, layers=windowed, window=fields.count(*WINDOWS)))
    return tuple(groups)


def _tied(fields: Fields, outer: Fields) -> bool:
    said = outer.get("tie_word_embeddings")
    return bool(fields.get("tie_word_embeddings") if said is None else said)


def _stored_format(fields: Fields, outer: Fields) -> Format:
    """The format of the weights as trained; bf16 where the config leaves it out."""
    for source in (fields, outer):
        for name in ("dtype", "torch_dtype"):
            said = source.get(name)
            if said is not None:
                known = TORCH_NAMES.get(str(said).removeprefix("torch."))
                if known is None:
                    raise source.error(
                        f"the field {name!r} is {str(said)[:40]!r}; known are {', '.join(TORCH_NAMES)}"
                    )
                return FORMATS[known]
    return FORMATS["bf16"]


def _parts(sizes: _Sizes, tied: bool, stored: Format) -> tuple[Part, ...]:
    """The model's parameters by use, all in the format of the training."""
    table = sizes.vocabulary * sizes.hidden
    counts = [
        ("embed_tokens", Role.EMBEDDING, table, False),
        ("self_attn", Role.BODY, sizes.layers * sizes.counted.matrices, True),
        ("mlp", Role.BODY, _dense_mlp(sizes), True),
        ("experts", Role.EXPERTS, _expert_matrices(sizes), True),
        ("vectors", Role.BODY, _vectors(sizes), False),
        ("lm_head", Role.HEAD, table, True),
    ]
    return tuple(
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


def _dense_mlp(sizes: _Sizes) -> int:
    """The matrices of dense layers and of shared experts."""
    dense = (sizes.layers - sizes.sparse_layers) * sizes.width
    return sizes.matrices * sizes.hidden * (dense + sizes.sparse_layers * sizes.experts.shared_width)


def _expert_matrices(sizes: _Sizes) -> int:
    one = sizes.matrices * sizes.hidden * sizes.experts.width
    if sizes.family.expert_bias:
        one += 2 * sizes.experts.width + sizes.hidden
    return sizes.sparse_layers * sizes.experts.number * one


def _vectors(sizes: _Sizes) -> int:
    """Norms, biases and routers: small, and never quantized."""
    layer = sizes.norms * sizes.hidden + sizes.counted.vectors
    if sizes.mlp_bias:
        layer += 2 * sizes.width + sizes.hidden
    router = sizes.experts.number * (sizes.hidden + int(sizes.family.router_bias))
    gate = sizes.hidden if sizes.family.qkv_bias and sizes.experts.shared_width else 0
    return sizes.layers * layer + sizes.sparse_layers * (router + gate) + sizes.hidden


def _quantized(parts: tuple[Part, ...], found: Quantization | None, layers: int) -> tuple[Part, ...]:
    if found is None:
        return parts
    return tuple(piece for part in parts for piece in _split(part, found, layers))


def _split(part: Part, found: Quantization, layers: int) -> list[Part]:
    """The quantized and the unquantized share of a part, where it has both."""
    if not part.linear or (part.role is Role.HEAD and not found.head):
        return [part]
    count = round(part.parameters * found.share(_modules(part, layers)))
    form = found.format
    pieces = [
        replace(part, parameters=count, format=form.name, bits=form.bits, arithmetic=form.arithmetic),
        replace(part, parameters=part.parameters - count),
    ]
    return [piece for piece in pieces if piece.parameters]


def _modules(part: Part, layers: int) -> list[str]:
    """One module of the part in each layer, by the name that configs call it."""
    ends = {"self_attn": "self_attn.o_proj", "mlp": "mlp.down_proj", "experts": "mlp.experts.0.down_proj"}
    if part.name not in ends:
        return [part.name]
    return [f"model.layers.{number}.{ends[part.name]}" for number in range(layers)]


def _notes(outer: Fields) -> tuple[str, ...]:
    towers = [name.removesuffix("_config") for name in _TOWERS if outer.get(name) is not None]
    return (f"The {' and '.join(towers)} part of the model is not counted.",) if towers else ()
