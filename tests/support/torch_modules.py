"""The modules of torch_impl with drawn parameters, and the specification of each."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor, nn

from attnverify import spec
from attnverify.contract import layers
from attnverify.judge.comparison import compare
from attnverify.torch_impl.modules import attention_modules, labml_modules, transformer_xl

B, H, N, M, S, D, F = 2, 3, 5, 7, 2, 11, 33
SEQUENCES = ("x", "query", "key", "value", "mem")
ARGUMENTS = {"visible": "mask", "mask": "attn_mask"}

Build = Callable[..., nn.Module]
BUILD: dict[str, Build] = {
    "self_attention": lambda **o: attention_modules.SelfAttention(F, 13, 17, **o),
    "multi_head_attention": lambda **o: attention_modules.MultiHeadAttention(F, H, **o),
    "multi_head_self_attention": lambda **o: attention_modules.MultiHeadSelfAttention(F, H, **o),
    "relative_multi_head_attention": lambda dropout=0.0, **o: (
        labml_modules.RelativeMultiHeadAttention(H, F, dropout, P=M, **o)
    ),
    "alibi_multi_head_attention": lambda dropout=0.0, **o: labml_modules.AlibiMultiHeadAttention(
        H, F, dropout, **o
    ),
    "transformer_xl_layer": lambda **o: transformer_xl.TransformerXLLayer(H, F, **o),
}
NAMES = {
    "self_attention": "w_query [K F], w_key [K F], w_value [E F]",
    "multi_head_attention": layers.MULTI_HEAD,
    "multi_head_self_attention": layers.MULTI_HEAD,
    "relative_multi_head_attention": layers.RELATIVE,
    "alibi_multi_head_attention": layers.ALIBI,
    "transformer_xl_layer": layers.TRANSFORMER_XL,
}
"""The parameters of the specification."""
OPTIONS = {"self_attention": {}, "relative_multi_head_attention": {"num_heads": H, "align": "end"}}


def rng(*seed: int) -> np.random.Generator:
    return np.random.default_rng([7, *seed])


def built(build: Build, seed: int = 0, **options: Any) -> nn.Module:
    """A module in float64 whose parameters are all drawn: tables of zeros would prove little."""
    module, draw = build(dtype=torch.float64, **options), rng(seed)
    for x in module.parameters():
        x.data.copy_(torch.from_numpy(draw.standard_normal(x.shape)) / 3)
    return module


def inputs_of(name: str, seed: int = 0) -> dict[str, ndarray]:
    """Inputs of the specification, with masks of the shapes that both layouts share."""
    normal, coin = rng(seed).standard_normal, rng(seed, 1).random
    cross = {"query": normal((B, N, F)), "key": normal((B, M, F)), "value": normal((B, M, F))}
    if name == "self_attention":
        return {
            "x": normal((B, N, F)),
            "mask": np.where(coin((N, N)) < 0.3, -np.inf, normal((N, N))),
        }
    if name == "multi_head_self_attention":
        return {
            "x": normal((B, N, F)),
            "attn_mask": coin((N, N)) < 0.3,
            "key_padding_mask": coin((B, N)) < 0.3,
        }
    if name == "multi_head_attention":
        return cross | {
            "attn_mask": coin((B * H, N, M)) < 0.3,
            "key_padding_mask": coin((B, M)) < 0.3,
        }
    if name == "relative_multi_head_attention":
        return cross | {"visible": coin((N, M)) < 0.7}
    if name == "alibi_multi_head_attention":
        return {part: normal((B, N, F)) for part in ("query", "key", "value")} | {
            "visible": np.tril(coin((N, N)) < 0.7)
        }
    return {
        "x": normal((B, N, F)),
        "position": normal((S + N, F)),
        "mem": normal((B, S, F)),
        "visible": coin((N, S + N)) < 0.7,
    }


def of_specification(name: str, module: nn.Module, inputs: dict[str, ndarray]) -> Any:
    """The specification on the module's own state_dict."""
    parameters = {key: x.numpy() for key, x in module.state_dict().items()}
    return getattr(spec, name)(
        **inputs, parameters=parameters, **OPTIONS.get(name, {"num_heads": H})
    )


def of_module(module: nn.Module, inputs: dict[str, Any]) -> Tensor:
    """The module's output, batch first."""
    given = {key: torch.as_tensor(x) for key, x in inputs.items()}
    turned = {key: turn(module, x) if key in SEQUENCES else x for key, x in given.items()}
    output = module(**{ARGUMENTS.get(key, key): x for key, x in turned.items()})
    return turn(module, output[0] if isinstance(output, tuple) else output)


def turn(module: nn.Module, x: Tensor) -> Tensor:
    return x if module.batch_first else x.transpose(0, 1)


def agree(actual: Tensor, expected: Any) -> bool:
    """float64 against the specification."""
    expected = expected[0] if isinstance(expected, tuple) else expected
    return compare(actual.detach().numpy(), expected, 1e-12 * (1 + np.abs(expected))).passed
