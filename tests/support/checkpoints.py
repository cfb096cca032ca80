"""Small checkpoints as model hubs hold them, for loaders to be compared on: config and seeded safetensors.

A tensor's values follow from its name, its shape and the seed, not from the file it is in: a checkpoint in
three files holds what the same one in a single file holds. Needs no torch, so that what a reader of it is
held against is the bytes written here. No tokenizers: vLLM builds a model without one.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

INDEX = "model.safetensors.index.json"
BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F4": 4, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip
"""Bits of one element, for the types of safetensors that torch has too."""

_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_BLOCK = 128  # of weights under one scale, in both directions


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor as a file holds it."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


Tensors = dict[str, Stored]
Shapes = dict[str, tuple[int, ...]]


def write_file(path: Path, tensors: Mapping[str, Stored], *, aligned: bool = True) -> None:
    """Write one safetensors file, its tensors in the order given.

    Args:
        path: the file.
        tensors: by name. Where ``aligned``, larger elements go first, as the reference implementation has it.
        aligned: whether the data begins at a multiple of 8; otherwise it begins at an odd byte.
    """
    if aligned:
        tensors = dict(sorted(tensors.items(), key=lambda item: -BITS[item[1].dtype]))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + len(tensor.data)
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8 if aligned else len(text) % 2 ^ 1)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.writelines(tensor.data for tensor in tensors.values())


def write_shards(folder: Path, shards: list[Tensors]) -> None:
    """Write the files of a checkpoint, and their index, under the names that model hubs give them."""
    places: dict[str, str] = {}
    for number, tensors in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        write_file(folder / file, tensors)
        places |= dict.fromkeys(tensors, file)
    total = sum(len(tensor.data) for tensors in shards for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
    (folder / INDEX).write_text(json.dumps(index, indent=2))


def llama(
    folder: Path, *, dtype: str = "F32", layers: int = 2, hidden: int = 64, seed: int = 0, **config: Any
) -> Path:
    """A Llama in one file; its vocabulary is no multiple of 64, so that vLLM pads the embeddings."""
    config = _llama_config(dtype, layers, hidden) | config
    _write_config(folder, config)
    write_file(folder / "model.safetensors", _random(_llama_shapes(config), dtype, seed))
    return folder


def biased(folder: Path, *, dtype: str = "F16", seed: int = 0) -> Path:
    """A Llama with biases, and with the ``inv_freq`` tensors of old checkpoints, which no model wants."""
    config = _llama_config(dtype, 2, 64) | {"attention_bias": True, "mlp_bias": True}
    shapes = _llama_shapes(config)
    linear = {name: shape for name, shape in shapes.items() if "_proj" in name}
    shapes |= {name.replace("weight", "bias"): shape[:1] for name, shape in linear.items()}
    shapes |= {f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": (16,) for layer in range(2)}
    _write_config(folder, config)
    write_file(folder / "model.safetensors", _random(shapes, dtype, seed))
    return folder


def sharded(folder: Path, *, dtype: str = "BF16", layers: int = 12, seed: int = 0) -> Path:
    """A Llama in three files, whose tensors are dealt out and ordered at random; fused ones are torn apart.

    Beside them ``consolidated.safetensors``, which the index does not name: same tensors, other values.
    """
    config = _llama_config(dtype, layers, 64)
    shapes = _llama_shapes(config)
    names = np.random.default_rng(seed).permutation(list(shapes)).tolist()
    tensors = _random({name: shapes[name] for name in names}, dtype, seed)
    _write_config(folder, config)
    write_shards(folder, [{name: tensors[name] for name in names[number::3]} for number in range(3)])
    write_file(folder / "consolidated.safetensors", _random(shapes, dtype, seed + 1))
    return folder


def tied(folder: Path, *, dtype: str = "F32", head: str = "none", seed: int = 0) -> Path:
    """A Llama whose config ties the head to the embeddings.

    ``head`` says what is stored of it: "none"; "same", a second copy of the embeddings; or "other" values,
    which vLLM then takes.
    """
    config = _llama_config(dtype, 2, 64) | {"tie_word_embeddings": True}
    tensors = _random(_llama_shapes(config), dtype, seed)
    if head != "none":
        embeddings = tensors["model.embed_tokens.weight"]
        other = _random({"lm_head.weight": embeddings.shape}, dtype, seed)
        tensors["lm_head.weight"] = embeddings if head == "same" else other["lm_head.weight"]
    _write_config(folder, config)
    write_file(folder / "model.safetensors", tensors)
    return folder


def mixtral(folder: Path, *, dtype: str = "BF16", experts: int = 4, seed: int = 0) -> Path:
    """A mixture of experts in two files, cut in the middle of a layer's experts."""
    config = _llama_config(dtype, 2, 64) | {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": experts,
        "num_experts_per_tok": 2,
        "sliding_window": None,
    }
    names = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
    shapes = _with_experts(_llama_shapes(config), "block_sparse_moe", experts, 128, names)
    _write_halves(folder, config, _random(shapes, dtype, seed))
    return folder


def qwen3_moe(folder: Path, *, dtype: str = "BF16", experts: int = 4, seed: int = 0) -> Path:
    """A mixture of experts with norms of queries and keys, in two files."""
    width = 32
    config = _llama_config(dtype, 2, 64) | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_experts": experts,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": width,
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
        "mlp_only_layers": [],
    }
    names = {name: name for name in ("gate_proj", "up_proj", "down_proj")}
    shapes = _with_experts(_llama_shapes(config), "mlp", experts, width, names)
    for layer in range(2):
        for norm in ("q_norm", "k_norm"):
            shapes[f"model.layers.{layer}.self_attn.{norm}.weight"] = (config["head_dim"],)
    _write_halves(folder, config, _random(shapes, dtype, seed))
    return folder


def fp8(folder: Path, *, kind: str = "tensor", seed: int = 0) -> Path:
    """A Llama with F8_E4M3 weights, as quantization tools write it; norms, embeddings and head are BF16.

    ``kind``: "tensor", 0-d F32 scales of weights and inputs (``fp8``, static); "channel", a BF16 scale per
    row (``compressed-tensors``, dynamic); "block", F32 scales of 128 x 128 weights (``fp8``, DeepSeek's).
    """
    config = _llama_config("BF16", 2, 256 if kind == "block" else 64)
    config["num_key_value_heads"] = config["num_attention_heads"]  # whole blocks for keys and values
    config["quantization_config"] = _quantization(kind)
    tensors: Tensors = {}
    for name, tensor in _random(_llama_shapes(config), "BF16", seed).items():
        tensors |= _quantized(name, tensor.shape, kind, seed) if "_proj" in name else {name: tensor}
    _write_config(folder, config)
    write_file(folder / "model.safetensors", tensors)
    return folder


def odd(folder: Path, *, seed: int = 0, tiny: int = 10_000) -> Path:
    """No model: files that are sound, and that a reader of raw tensors may trip over.

    ``model.safetensors`` has every type with random bytes (NaN payloads too), without elements and 0-d; equal
    tensors under two names; ``tiny`` tensors; a name of any characters. ``misaligned.safetensors`` begins at
    an odd byte with three bytes of U8, then types large and small. ``none.safetensors`` has no tensor.
    """
    tensors: Tensors = {}
    misaligned = {"three": _raw("U8", (3,), f"{seed}")}
    for dtype, bits in BITS.items():
        shapes: Shapes = {"matrix": (3, 6), "empty": (0, 8), "last-empty": (2, 3, 0)}
        if bits >= 8:  # half a byte cannot be stored
            shapes["scalar"] = ()
        of_type = {f"{dtype}.{name}": _raw(dtype, shape, f"{seed}") for name, shape in shapes.items()}
        tensors |= of_type | {f"{dtype}.again": of_type[f"{dtype}.matrix"]}
        misaligned |= {f"after.{name}": tensor for name, tensor in of_type.items()}
    for number in range(tiny):
        tensors[f"tiny.{number}"] = _raw("F16", (number % 3 + 1,), f"{seed} {number}")
    tensors['naïve 名 "quoted" \\ ../../up\n'] = _raw("I32", (2,), f"{seed}")
    _write_config(folder, {"architectures": [], "model_type": "none"})
    write_file(folder / "model.safetensors", tensors)
    write_file(folder / "misaligned.safetensors", misaligned, aligned=False)
    write_file(folder / "none.safetensors", {})
    return folder


LOADABLE: dict[str, Callable[[Path], Path]] = {
    "llama-f32": llama,
    "llama-bf16": lambda folder: llama(folder, dtype="BF16"),
    "llama-f16": lambda folder: llama(folder, dtype="F16"),
    "biased": biased,
    "sharded": sharded,
    "tied": tied,
    "tied-with-same-head": lambda folder: tied(folder, head="same"),
    "tied-with-other-head": lambda folder: tied(folder, head="other"),
    "mixtral": mixtral,
    "qwen3-moe": qwen3_moe,
    "fp8-tensor": fp8,
    "fp8-channel": lambda folder: fp8(folder, kind="channel"),
    "fp8-block": lambda folder: fp8(folder, kind="block"),
}
"""The checkpoints that vLLM loads, by name. Its CPU build cannot run ``fp8-tensor`` after that."""


def _llama_config(dtype: str, layers: int, hidden: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": _DTYPES[dtype],
        "vocab_size": 100,
        "hidden_size": hidden,
        "intermediate_size": hidden * 2,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 32,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _llama_shapes(config: Mapping[str, Any]) -> Shapes:
    hidden, width, vocabulary = (config[name] for name in ("hidden_size", "intermediate_size", "vocab_size"))
    queries, keys = (config[f"num_{name}_heads"] * config["head_dim"] for name in ("attention", "key_value"))
    shapes: Shapes = {"model.embed_tokens.weight": (vocabulary, hidden)}
    for layer in range(config["num_hidden_layers"]):
        of_layer = {
            "input_layernorm": (hidden,),
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "post_attention_layernorm": (hidden,),
            "mlp.gate_proj": (width, hidden),
            "mlp.up_proj": (width, hidden),
            "mlp.down_proj": (hidden, width),
        }
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in of_layer.items()}
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocabulary, hidden)
    return shapes


def _with_experts(shapes: Shapes, block: str, experts: int, width: int, names: Mapping[str, str]) -> Shapes:
    """The same with experts, and a gate, in place of each layer's MLP; ``names`` are those of an expert."""
    found: Shapes = {}
    for name, shape in shapes.items():
        layer, _, rest = name.partition(".mlp.")
        if not rest:
            found[name] = shape
            continue
        kind = rest.removesuffix(".weight")
        hidden = shape[0] if kind == "down_proj" else shape[1]
        found[f"{layer}.{block}.gate.weight"] = (experts, hidden)
        for expert in range(experts):
            of_expert = (hidden, width) if kind == "down_proj" else (width, hidden)
            found[f"{layer}.{block}.experts.{expert}.{names[kind]}.weight"] = of_expert
    return found


def _write_halves(folder: Path, config: dict[str, Any], tensors: Tensors) -> None:
    names = list(tensors)
    halves = names[: len(names) // 2], names[len(names) // 2 :]
    _write_config(folder, config)
    write_shards(folder, [{name: tensors[name] for name in half} for half in halves])


def _quantization(kind: str) -> dict[str, Any]:
    if kind == "tensor":
        return {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}
    if kind == "block":
        return {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [_BLOCK, _BLOCK]}
    common = {"num_bits": 8, "type": "float", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": common | {"strategy": "channel", "dynamic": False},
        "input_activations": common | {"strategy": "token", "dynamic": True},
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


def _quantized(name: str, shape: tuple[int, ...], kind: str, seed: int) -> Tensors:
    """A weight in F8_E4M3, and its scales."""
    rows, columns = shape
    stem = name.removesuffix("weight")
    scales: Tensors = {}
    if kind == "tensor":
        scales = {f"{stem}{of}_scale": _scale("F32", (), f"{seed} {name} {of}") for of in ("weight", "input")}
    elif kind == "channel":
        scales = {f"{stem}weight_scale": _scale("BF16", (rows, 1), f"{seed} {name}")}
    else:
        blocks = math.ceil(rows / _BLOCK), math.ceil(columns / _BLOCK)
        scales = {f"{stem}weight_scale_inv": _scale("F32", blocks, f"{seed} {name}")}
    return {name: _numbers("F8_E4M3", shape, f"{seed} {name}")} | scales


def _write_config(folder: Path, config: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def _random(shapes: Shapes, dtype: str, seed: int) -> Tensors:
    return {name: _numbers(dtype, shape, f"{seed} {name}") for name, shape in shapes.items()}


def _numbers(dtype: str, shape: tuple[int, ...], key: str) -> Stored:
    """Small finite numbers: NaN would equal nothing, itself included."""
    if dtype == "F8_E4M3":  # 0x7F and 0xFF are its NaN
        bits = _generator(key).integers(0, 256, shape, np.uint8)
        return Stored(dtype, shape, (bits - (bits & 0x7F == 0x7F)).astype(np.uint8).tobytes())
    return _encode(dtype, _generator(key).normal(0, 0.05, shape).astype(np.float32))


def _scale(dtype: str, shape: tuple[int, ...], key: str) -> Stored:
    return _encode(dtype, np.asarray(_generator(f"{key} scale").uniform(0.001, 0.1, shape), np.float32))


def _encode(dtype: str, numbers: np.ndarray[Any, Any]) -> Stored:
    if dtype == "BF16":  # the upper half of a F32
        data = (numbers.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    else:
        data = numbers.astype({"F32": np.float32, "F16": np.float16}[dtype]).tobytes()
    return Stored(dtype, numbers.shape, data)


def _raw(dtype: str, shape: tuple[int, ...], key: str) -> Stored:
    data = _generator(f"{key} {dtype} {shape}").bytes(math.prod(shape) * BITS[dtype] // 8)
    return Stored(dtype, shape, bytes(byte & 1 for byte in data) if dtype == "BOOL" else data)


def _generator(key: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(key.encode()))
