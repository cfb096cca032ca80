"""Parameters of a decoder, counted from its sizes: attention, MLP, experts, norms."""

from __future__ import annotations

from dataclasses import dataclass

from dray.planner.models.attention import Attention
from dray.planner.models.families import Family
from dray.planner.models.fields import Fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Parameters of one layer's attention: matrices, and vectors (biases, norms, sinks)."""

    matrices: int
    vectors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The mixture of experts of a model; all zero where there is none. ``size``: parameters of one expert."""

    number: int = 0
    per_token: int = 0
    width: int = 0
    shared_width: int = 0
    dense_layers: int = 0


def grouped_query(fields: Fields, family: Family, hidden: int) -> tuple[Counted, Attention]:
    """Multi-head and grouped-query attention; the :class:`Attention` is that of one layer."""
    heads = fields.count("num_attention_heads")
    kv_heads = fields.optional_count("num_key_value_heads", heads) or heads
    head_dim = fields.optional_count("head_dim", 0) or hidden // heads
    if head_dim < 1:
        raise fields.error(
            f"the field 'num_attention_heads' is {heads:,}, more than hidden_size ({hidden:,})"
        )
    queries, keys = heads * head_dim, kv_heads * head_dim
    biased = fields.flag("attention_bias")
    vectors = queries + 2 * keys if biased or family.qkv_bias else 0
    vectors += hidden if biased else 0
    vectors += 2 * head_dim if family.qk_norm else 0
    vectors += heads if family.sinks else 0
    return (
        Counted(matrices=hidden * (2 * queries + 2 * keys), vectors=vectors),
        Attention(
            layers=1,
            heads=heads,
            kv_heads=kv_heads,
            cached=2 * keys,
            prefill_width=2 * head_dim,
            decode_width=2 * head_dim,
        ),
    )


def latent(fields: Fields, hidden: int) -> tuple[Counted, Attention]:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, 2.1); decoding works on the latent."""
    heads = fields.count("num_attention_heads")
    rank, rope = fields.count("kv_lora_rank"), fields.count("qk_rope_head_dim")
    plain, values = fields.count("qk_nope_head_dim"), fields.count("v_head_dim")
    query_rank = fields.optional_count("q_lora_rank", 0)
    query_in = hidden * query_rank if query_rank else 0
    matrices = query_in + (query_rank or hidden) * heads * (plain + rope)
    matrices += hidden * (rank + rope) + rank * heads * (plain + values) + heads * values * hidden
    return (
        Counted(matrices=matrices, vectors=query_rank + rank),
        Attention(
            layers=1,
            heads=heads,
            kv_heads=1,
            cached=rank + rope,
            prefill_width=plain + rope + values,
            decode_width=2 * rank + rope,
        ),
    )


_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")


def experts_of(fields: Fields, family: Family, layers: int) -> Experts:
    """The experts that the config names under any of the families' names."""
    if all(fields.get(name) is None for name in _EXPERTS):
        return Experts()
    number = fields.count(*_EXPERTS)
    per_token = fields.count("num_experts_per_tok", "experts_per_token", "moe_k")
    if per_token > number:
        raise fields.error(
            f"{per_token} experts per token of {number}: the field 'num_experts_per_tok' is wrong"
        )
    width = fields.count(width_name(fields, "moe_intermediate_size"))
    shared = sum(
        fields.optional_count(name, 0)
        for name in ("shared_expert_intermediate_size", "shared_intermediate_size")
    )
    shared += width * sum(
        fields.optional_count(name, 0) for name in ("n_shared_experts", "moe_num_shared_experts")
    )
    shared += width if family.shared_expert else 0
    return Experts(
        number=number,
        per_token=per_token,
        width=width,
        shared_width=shared,
        dense_layers=_dense_layers(fields, layers),
    )


def width_name(fields: Fields, own: str) -> str:
    """The field of an MLP's width: its own where there is one, as where dense layers and experts differ."""
    return "intermediate_size" if fields.get(own) is None else own


def _dense_layers(fields: Fields, layers: int) -> int:
    """Layers with a plain MLP: the first ones, those in a list, or those between the sparse ones."""
    first = fields.optional_count("first_k_dense_replace", fields.optional_count("moe_layer_start_index", 0))
    listed = fields.get("mlp_only_layers")
    listed = listed if isinstance(listed, list) else []
    steps = ("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval")
    step = max(fields.optional_count(name, 1) for name in steps)
    return sum(number < first or number in listed or (number + 1) % step != 0 for number in range(layers))
