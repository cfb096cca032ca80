"""Parameters of a decoder, counted from its sizes: attention and experts."""

from __future__ import annotations

from dataclasses import dataclass

from dray.planner.models.attention import Attention
from dray.planner.models.families import Family
from dray.planner.models.fields import Fields
from dray.planner.models.recurrent import Recurrent


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixing:
    """How one layer mixes tokens: its matrices, and its vectors (biases, norms, sinks, convolutions).

    ``attention`` and ``recurrent`` are those of one layer; a layer may have both.
    """

    matrices: int
    vectors: int
    attention: Attention | None = None
    recurrent: Recurrent | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The mixture of experts of a model; all zero where there is none.

    ``shared_width``: of MLPs that read every token beside them. ``latent``: the width that experts read and
    write, where it is not that of the hidden state.
    """

    number: int = 0
    per_token: int = 0
    width: int = 0
    shared_width: int = 0
    latent: int = 0


def attention_of(fields: Fields, family: Family, hidden: int, *, windowed: bool, borrows: bool) -> Mixing:
    """The attention of a layer that has a window, or that borrows from an earlier layer."""
    if family.latent:
        return _latent(fields, hidden, borrows=borrows)
    return _grouped_query(fields, family, hidden, windowed=windowed, borrows=borrows)


def _grouped_query(fields: Fields, family: Family, hidden: int, *, windowed: bool, borrows: bool) -> Mixing:
    """Multi-head and grouped-query attention."""
    heads = fields.count("num_attention_heads")
    kv_heads = fields.optional_count("num_key_value_heads", heads) or heads
    head_dim = fields.optional_count("head_dim", 0) or hidden // heads
    if family.last_sees_all and not windowed:
        head_dim, kv_heads = _of_global_layers(fields, kv_heads)
    if head_dim < 1:
        raise fields.error(
            f"the field 'num_attention_heads' is {heads:,}, more than hidden_size ({hidden:,})"
        )
    queries, keys = heads * head_dim, kv_heads * head_dim
    biased = fields.flag("attention_bias")
    own = 0 if borrows else keys
    values = 0 if fields.flag("attention_k_eq_v") and not windowed else own
    vectors = queries + own + values if biased or family.qkv_bias else 0
    vectors += hidden if biased else 0
    vectors += (1 if borrows else 2) * head_dim if family.qk_norm else 0
    vectors += heads if family.sinks else 0
    return Mixing(
        matrices=hidden * (queries * (3 if family.query_gate else 2) + own + values),
        vectors=vectors,
        attention=Attention(
            layers=1,
            heads=heads,
            kv_heads=kv_heads,
            cached=2 * keys,
            prefill_width=2 * head_dim,
            decode_width=2 * head_dim,
            stored=not borrows,
        ),
    )


def _of_global_layers(fields: Fields, kv_heads: int) -> tuple[int, int]:
    """Head size, and heads of keys and values, of Gemma 4's layers without a window.

    transformers writes ``per_layer_config`` back, with the same for each of these layers.
    """
    layers = fields.inner("per_layer_config")
    if layers is not None and layers.values:
        names = list(layers.values)
        if any(layers.get(name) != layers.get(names[0]) for name in names):
            raise fields.error("the field 'per_layer_config' differs between layers, which is not known")
        inner = layers.inner(names[0]) or layers
        return inner.count("head_dim"), inner.optional_count("num_key_value_heads", kv_heads) or kv_heads
    if fields.flag("attention_k_eq_v"):
        kv_heads = fields.optional_count("num_global_key_value_heads", kv_heads) or kv_heads
    return fields.count("global_head_dim"), kv_heads


def _latent(fields: Fields, hidden: int, *, borrows: bool) -> Mixing:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, 2.1); decoding works on the latent.

    With an indexer (DeepSeek-V3.2) vLLM works on the latent for prompts as well.
    """
    heads = fields.count("num_attention_heads")
    rank, rope = fields.count("kv_lora_rank"), fields.count("qk_rope_head_dim")
    plain, values = fields.count("qk_nope_head_dim"), fields.count("v_head_dim")
    query_rank = fields.optional_count("q_lora_rank", 0)
    query_in = hidden * query_rank if query_rank else 0
    matrices = query_in + (query_rank or hidden) * heads * (plain + rope)
    matrices += hidden * (rank + rope) + rank * heads * (plain + values) + heads * values * hidden
    vectors = query_rank + rank
    chosen = fields.optional_count("index_topk", 0)
    index_heads = index_width = 0
    if chosen and not borrows:
        index_heads, index_width = fields.count("index_n_heads"), fields.count("index_head_dim")
        matrices += query_rank * index_heads * index_width + hidden * (index_width + index_heads)
        vectors += 2 * index_width
    return Mixing(
        matrices=matrices,
        vectors=vectors,
        attention=Attention(
            layers=1,
            heads=heads,
            kv_heads=1,
            cached=rank + rope,
            prefill_width=2 * rank + rope if chosen else plain + rope + values,
            decode_width=2 * rank + rope,
            chosen=chosen or None,
            index_heads=index_heads,
            index_width=index_width,
            latent=True,
        ),
    )


_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "top_k_experts", "moe_k")
_SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")


def experts_of(fields: Fields, family: Family) -> Experts:
    """The experts that the config names under any of the families' names."""
    named = [fields.get(name) for name in _EXPERTS if fields.get(name) is not None]
    if not named or fields.get("enable_moe_block") is False or all(number == 0 for number in named):
        return Experts()
    number = fields.count(*_EXPERTS)
    per_token = fields.count(*_PER_TOKEN)
    if per_token > number:
        raise fields.error(
            f"{per_token} experts per token of {number}: the field 'num_experts_per_tok' is wrong"
        )
    width = fields.count(width_name(fields, "moe_intermediate_size"))
    shared = sum(
        fields.optional_count(name, 0)
        for name in ("shared_expert_intermediate_size", "shared_intermediate_size")
    )
    each = fields.optional_count("moe_shared_expert_intermediate_size", width)
    shared += each * max(fields.optional_count(name, 0) for name in _SHARED)
    shared += width if family.shared_expert else 0
    shared += fields.count("intermediate_size") if fields.flag("enable_moe_block") else 0
    return Experts(
        number=number,
        per_token=per_token,
        width=width,
        shared_width=shared,
        latent=fields.optional_count("moe_latent_size", 0),
    )


def width_name(fields: Fields, own: str) -> str:
    """The field of an MLP's width: its own where there is one, as where dense layers and experts differ."""
    return "intermediate_size" if fields.get(own) is None else own
