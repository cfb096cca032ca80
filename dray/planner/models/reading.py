"""Facts of a model from its ``config.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dray.errors import ConfigError
from dray.planner.models.decoder import decoder_of
from dray.planner.models.defaults import DEFAULTS
from dray.planner.models.facts import ModelFacts
from dray.planner.models.families import FAMILIES
from dray.planner.models.fields import Fields
from dray.planner.models.formats import FORMATS, TORCH_NAMES, Format
from dray.planner.models.parts import parts_of
from dray.planner.models.positions import lengths_of
from dray.planner.models.quantization import quantization_of
from dray.planner.models.whole_media import least_tokens

_TOWERS = ("vision_config", "audio_config")
_SENTENCES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
"""vLLM reads the first of these files (``get_sentence_transformer_tokenizer_config``)."""


def read_model(folder: Path) -> ModelFacts:
    """Facts of the model in a folder, by ``config.json``, ``hf_quant_config.json`` and ``sentence_*.json``.

    Raises:
        ConfigError: a file cannot be read, a field is missing or wrong, or the family is not known.
    """
    config = read_config(folder)
    model = model_facts(config, file=str(folder / "config.json"), name=folder.name)
    length = _sentence_length(folder)
    return model if length is None else replace(model, max_length=length, most_length=length)


def read_config(folder: Path) -> dict[str, Any]:
    """``config.json``, with what ModelOpt says in ``hf_quant_config.json``, as vLLM reads both.

    Raises:
        ConfigError: a file cannot be read, or is no JSON object.
    """
    config = _load(folder / "config.json")
    separate = folder / "hf_quant_config.json"
    if "quantization_config" not in config and separate.exists():
        config["quantization_config"] = _load(separate).get("quantization")
    return config


def unknown_family(folder: Path) -> str | None:
    """The family of the model in a folder where the cost model does not know it, else None.

    Raises:
        ConfigError: ``config.json`` cannot be read, or names no family.
    """
    outer = _outer(_load(folder / "config.json"), str(folder / "config.json"))
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
    outer = _outer(config, file)
    text = outer.inner("text_config") or outer
    kind = _family_name(text, outer)
    family = FAMILIES[kind]
    fields = Fields(text.values, file, DEFAULTS[kind])
    decoder = decoder_of(fields, family)
    stored = _stored_format(fields, outer)
    quantization = quantization_of(outer) or quantization_of(fields)
    length, most = lengths_of(fields, kind)
    return ModelFacts(
        name=name or str(outer.get("_name_or_path") or kind),
        family=kind,
        layers=len(decoder.layers),
        sublayers=decoder.sublayers,
        hidden=decoder.hidden,
        heads=decoder.heads,
        intermediate=decoder.mean_width,
        vocabulary=decoder.vocabulary,
        max_length=length,
        most_length=most,
        parts=parts_of(decoder, tied=_tied(fields, outer), stored=stored, quantization=quantization),
        attention=decoder.attention,
        recurrent=decoder.recurrent,
        experts=decoder.experts.number,
        experts_per_token=decoder.experts.per_token,
        format=quantization.format.name if quantization else stored.name,
        dtype="fp32" if stored.name == "fp32" else "bf16",
        kv_format=(quantization and quantization.kv) or ("fp32" if stored.name == "fp32" else "bf16"),
        widths=tuple(width for width in decoder.widths if width),
        block=quantization.block if quantization else 1,
        expert_width=decoder.experts.width,
        expert_block=quantization.expert_block(decoder.expert_input) if quantization else 1,
        least_tokens=least_tokens(config),
        notes=_notes(outer),
    )


def _outer(config: Mapping[str, Any], file: str) -> Fields:
    """What the file says; of a model that also speaks, what it says of the part that writes comes first.

    vLLM loads that part alone.
    """
    outer = Fields(config, file, {})
    thinker = outer.inner("thinker_config")
    return outer if thinker is None else Fields({**config, **thinker.values}, file, {})


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


def _tied(fields: Fields, outer: Fields) -> bool:
    """Whether the output layer is the embedding's matrix; LFM2 calls it ``tie_embedding``."""
    said = (outer.get("tie_word_embeddings"), fields.values.get("tie_embedding"))
    return bool(next((one for one in said if one is not None), fields.get("tie_word_embeddings")))


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


def _notes(outer: Fields) -> tuple[str, ...]:
    towers = [name.removesuffix("_config") for name in _TOWERS if outer.get(name) is not None]
    return (f"The {' and '.join(towers)} part of the model is not counted.",) if towers else ()
