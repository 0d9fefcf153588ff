"""State dicts with the names and shapes of classes that others have published."""

import torch
from torch import Tensor


def transfo_xl(layers: int, heads: int, width: int, untied: bool = True) -> dict[str, Tensor]:
    """
    Of ``TransfoXLModel`` in transformers 4.57, the last line that has it, inside a head model; of a
    vocabulary of 11 and a feed-forward twice as wide.
    """
    draw = torch.Generator().manual_seed(layers)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw)

    biases = {name: normal(heads, width // heads) for name in ("r_w_bias", "r_r_bias")}
    state = {
        "word_emb.emb_layers.0.weight": normal(11, width),
        "pos_emb.inv_freq": normal(width // 2),
    }
    state |= {} if untied else biases
    for layer in range(layers):
        own = {name: normal(heads, width // heads) if untied else x for name, x in biases.items()}
        attention = own | {
            "qkv_net.weight": normal(3 * width, width),
            "o_net.weight": normal(width, width),
            "layer_norm.weight": normal(width),
            "layer_norm.bias": normal(width),
            "r_net.weight": normal(width, width),
        }
        feed_forward = {
            "CoreNet.0.weight": normal(2 * width, width),
            "CoreNet.0.bias": normal(2 * width),
            "CoreNet.3.weight": normal(width, 2 * width),
            "CoreNet.3.bias": normal(width),
            "layer_norm.weight": normal(width),
            "layer_norm.bias": normal(width),
        }
        state |= {f"layers.{layer}.dec_attn.{name}": x for name, x in attention.items()}
        state |= {f"layers.{layer}.pos_ff.{name}": x for name, x in feed_forward.items()}
    return {f"transformer.{name}": x for name, x in state.items()}
