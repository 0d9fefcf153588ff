"""
State dicts with other names than ours: PyTorch's, the sources', Transformer-XL's own.

Each function is a hook of ``register_load_state_dict_pre_hook``: it renames what stands under the
module's prefix and leaves the rest, so that what cannot be loaded is reported as ever. Saving gives
our names alone.
"""

from collections.abc import Mapping
from typing import Any, cast

from torch import Tensor, nn

__all__ = [
    "additive",
    "multi_head",
    "multi_head_self",
    "self_attention",
    "transformer_xl",
    "transformer_xl_layer",
]

State = dict[str, Tensor]

SELF = {"W_q.weight": "w_query", "W_k.weight": "w_key", "W_v.weight": "w_value"}
ADDITIVE = SELF | {"W_v.weight": "w_score"}
XL = {
    "r_w_bias": "u",
    "r_r_bias": "v",
    "qvk_net.weight": "qkv_net.weight",
    "qvk_net.bias": "qkv_net.bias",
}
FEED_FORWARD = {
    f"pos_ff.{theirs}.{kind}": f"{ours}.{kind}"
    for theirs, ours in (
        ("CoreNet.0", "ff_in"),
        ("CoreNet.3", "ff_out"),
        ("layer_norm", "ff_norm"),
    )
    for kind in ("weight", "bias")
}


def rename(state: State, prefix: str, names: Mapping[str, str]) -> None:
    """Give what is there under other names ours."""
    for old, new in names.items():
        if prefix + old in state:
            state[prefix + new] = state.pop(prefix + old)


def additive(module: nn.Module, state: State, prefix: str, *_: Any) -> None:
    """Seed 001's W_q, W_k and W_v, whose one row is our w_score."""
    rename(state, prefix, ADDITIVE)
    score = state.get(f"{prefix}w_score")
    if score is not None and score.ndim == 2 and len(score) == 1:
        state[f"{prefix}w_score"] = score[0]


def self_attention(module: nn.Module, state: State, prefix: str, *_: Any) -> None:
    """Seed 001's W_q, W_k and W_v."""
    rename(state, prefix, SELF)


def multi_head(module: nn.Module, state: State, prefix: str, *_: Any) -> None:
    """The joined projections of ``nn.MultiheadAttention``, and those of one that has three."""
    names = "q_proj", "k_proj", "v_proj"
    for kind in ("weight", "bias"):
        joined = state.get(f"{prefix}in_proj_{kind}")
        if joined is not None and len(joined) % 3 == 0:
            del state[f"{prefix}in_proj_{kind}"]
            for name, part in zip(names, joined.chunk(3), strict=True):
                state[f"{prefix}{name}.{kind}"] = part
    rename(state, prefix, {f"{name}_weight": f"{name}.weight" for name in names})


def multi_head_self(module: nn.Module, state: State, prefix: str, *_: Any) -> None:
    """Seed 001, section 4.4, where the attention is a submodule ``mha``."""
    inner = f"{prefix}mha."
    for name in [name for name in state if name.startswith(inner)]:
        state[prefix + name.removeprefix(inner)] = state.pop(name)


def transformer_xl_layer(module: nn.Module, state: State, prefix: str, *_: Any) -> None:
    """
    Transformer-XL's r_w_bias and r_r_bias, seed 003's qvk_net, and the feed-forward ``pos_ff`` of a
    published layer where ours has one; where it has none, that is reported as unexpected.
    """
    rename(state, prefix, XL)
    if module.feed_forward is not None:
        rename(state, prefix, FEED_FORWARD)


def transformer_xl(module: nn.Module, state: State, prefix: str, *_: Any) -> None:
    """
    Transformer-XL's ``layers.<number>.dec_attn``, and biases that all layers share. The frequencies
    of its positions are what ours are.
    """
    state.pop(f"{prefix}pos_emb.inv_freq", None)
    layers = range(len(cast(nn.ModuleList, module.layers)))
    for layer in layers:
        inner, ours = f"{prefix}layers.{layer}.dec_attn.", f"{prefix}layers.{layer}."
        for name in [name for name in state if name.startswith(inner)]:
            state[ours + name.removeprefix(inner)] = state.pop(name)
    for shared in ("r_w_bias", "r_r_bias"):
        if prefix + shared not in state:
            continue
        bias = state.pop(prefix + shared)
        for layer in layers:
            if not {f"{prefix}layers.{layer}.{name}" for name in (shared, XL[shared])} & set(state):
                state[f"{prefix}layers.{layer}.{shared}"] = bias
