"""Parameters and states of recurrent layers, counted from their sizes.

The states are those of vLLM 0.32 (``MambaStateShapeCalculator``, ``MambaStateDtypeCalculator``);
``tests/unit/planner/models/test_states.py`` holds them to it.
"""

from __future__ import annotations

from dray.planner.models.counting import Mixing
from dray.planner.models.families import State
from dray.planner.models.fields import Fields
from dray.planner.models.formats import TORCH_NAMES
from dray.planner.models.recurrent import Recurrent

_OPERATIONS = 6
"""For each element of a state and token: it decays, a token is added, and it is read; 2 each. Kernels work on
chunks of tokens at once, which takes about as many."""


def recurrent(kind: State, fields: Fields, hidden: int) -> Mixing:
    """One recurrent layer; its :class:`Recurrent` is that of one layer."""
    match kind:
        case State.MAMBA2:
            return _mamba2(fields, hidden)
        case State.DELTA:
            return _delta(fields, hidden)
        case State.KDA:
            return _kda(fields, hidden)
        case State.CONVOLUTION:
            return _convolution(fields, hidden)


def _mamba2(fields: Fields, hidden: int) -> Mixing:
    """Mamba 2 (arXiv 2405.21060), with the names of Granite and Falcon, or of Nemotron-H."""
    heads = fields.count("mamba_n_heads", "mamba_num_heads")
    groups = fields.count("mamba_n_groups", "n_groups")
    size = fields.count("mamba_d_state", "ssm_state_size")
    kernel = fields.count("mamba_d_conv", "conv_kernel")
    head = next((fields.get(name) for name in ("mamba_d_head", "mamba_head_dim") if fields.get(name)), "auto")
    if head == "auto":
        inner = fields.optional_count("mamba_d_ssm", 0) or fields.count("mamba_expand") * hidden
    else:
        inner = heads * fields.count("mamba_d_head", "mamba_head_dim")
    if inner % heads:
        raise fields.error(
            f"the field 'mamba_n_heads' is {heads:,}, which does not divide a width of {inner:,}"
        )
    convolved = inner + 2 * groups * size
    normed = fields.get("mamba_rms_norm") is not False
    biased = any(fields.flag(name) for name in ("mamba_conv_bias", "use_conv_bias"))
    return Mixing(
        matrices=hidden * (inner + convolved + heads) + inner * hidden,
        vectors=convolved * (kernel + biased) + 3 * heads + inner * normed,
        recurrent=Recurrent(
            layers=1,
            heads=(heads,) if groups == 1 else (heads, groups),
            convolution=convolved * (kernel - 1),
            state=inner * size,
            operations=_OPERATIONS * inner * size,
            state_format=_format(fields, "mamba_ssm_cache_dtype"),
        ),
    )


def _delta(fields: Fields, hidden: int) -> Mixing:
    """Gated DeltaNet (arXiv 2412.06464) of Qwen3-Next and Qwen3.5."""
    keys, values = fields.count("linear_num_key_heads"), fields.count("linear_num_value_heads")
    key, value = fields.count("linear_key_head_dim"), fields.count("linear_value_head_dim")
    kernel = fields.count("linear_conv_kernel_dim")
    convolved = 2 * keys * key + values * value
    state = values * key * value
    return Mixing(
        matrices=hidden * (convolved + values * value + 2 * values) + values * value * hidden,
        vectors=convolved * kernel + 2 * values + value,
        recurrent=Recurrent(
            layers=1,
            heads=(keys, values),
            convolution=convolved * (kernel - 1),
            state=state,
            operations=_OPERATIONS * state,
            state_format=_format(fields, "mamba_ssm_dtype"),
        ),
    )


def _kda(fields: Fields, hidden: int) -> Mixing:
    """Kimi Delta Attention (arXiv 2510.26692); two of its gates are of low rank."""
    inner = fields.inner("linear_attn_config")
    if inner is None:
        heads, head = fields.count("linear_num_heads"), fields.count("linear_head_dim")
        kernel = fields.count("linear_conv_kernel_dim")
    else:
        heads, head = inner.count("num_heads"), inner.count("head_dim")
        kernel = inner.count("short_conv_kernel_size")
    width = heads * head
    return Mixing(
        matrices=4 * hidden * width + 2 * head * (hidden + width) + hidden * heads,
        vectors=3 * width * kernel + width + heads + head,
        recurrent=Recurrent(
            layers=1,
            heads=(heads,),
            convolution=3 * width * (kernel - 1),
            state=width * head,
            operations=_OPERATIONS * width * head,
            state_format="fp32",
        ),
    )


def _convolution(fields: Fields, hidden: int) -> Mixing:
    """The gated short convolution of LFM2."""
    kernel = fields.count("conv_L_cache")
    return Mixing(
        matrices=4 * hidden * hidden,
        vectors=hidden * kernel,
        recurrent=Recurrent(
            layers=1,
            heads=(hidden,),
            convolution=hidden * (kernel - 1),
            state=0,
            operations=2 * kernel * hidden,
        ),
    )


def _format(fields: Fields, name: str) -> str | None:
    """The number format of a state that the config asks for; None for the model's own."""
    said = fields.get(name)
    if said is None or said == "auto":
        return None
    if said not in TORCH_NAMES:
        raise fields.error(f"the field {name!r} is {str(said)[:40]!r}; known are {', '.join(TORCH_NAMES)}")
    return TORCH_NAMES[said]
