"""
The same operations in other libraries, asked: each function makes a small call and returns what it
observed, in the table's words.

A function imports its library when it is called; ImportError means that nothing was executed.
"""

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify import bounds, spec
from attnverify.catalogue import CATALOGUE
from attnverify.judge.comparison import compare
from attnverify.precision import resolve

Facts = dict[str, str]
Attend = Callable[..., ndarray]


def mask_facts(attend: Attend) -> Facts:
    """
    What a boolean mask means, and what a row is that it hides wholly; attend takes a mask [1 2]
    over the values 2 and 6.
    """
    shown = float(attend(np.array([[True, False]])))
    polarity = {2.0: "True = may attend", 6.0: "True = hidden"}[shown]
    hidden = np.zeros((1, 2), bool) if shown == 2.0 else np.ones((1, 2), bool)
    empty = float(attend(hidden))
    said = "NaN" if np.isnan(empty) else {0.0: "0", 4.0: "the average"}[empty]
    return {"a boolean mask": polarity, "a row that sees no key": said}


def causal_facts(weights: ndarray) -> Facts:
    """
    How the causal mask of two queries and four keys is aligned, by the number of keys that the
    first query sees.
    """
    seen = int((np.asarray(weights)[0] > 0).sum())
    return {"causal, N = 2 and M = 4": {1: "starts aligned", 3: "ends aligned"}[seen]}


def agrees(about: str, operation: str, actual: Any, **inputs: Any) -> Facts:
    """
    Whether it gives the specification's numbers, within the bound of unfused arithmetic in float32.
    """
    op, actual = CATALOGUE[operation], np.asarray(actual, np.float64)
    expected, unfused = (
        op.specification(**inputs),
        resolve("eager", operation, operation, "float32"),
    )
    bound = None if op.exact else bounds.bound(operation, inputs, unfused)
    if actual.shape == expected.shape and compare(actual, expected, bound).passed:
        return {about: "the specification's numbers"}
    return {
        about: "other numbers than the specification's, "
        f"{np.round(actual.ravel(), 4).tolist()} for {np.round(expected.ravel(), 4).tolist()}"
    }


def torch_sdpa() -> Facts:
    import torch
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    q, k, v = torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 2, 1), torch.tensor([[[[2.0], [6.0]]]])
    facts = mask_facts(lambda mask: sdpa(q, k, v, attn_mask=torch.from_numpy(mask)).numpy().item())
    weights = sdpa(
        torch.zeros(1, 1, 2, 1), torch.zeros(1, 1, 4, 1), torch.eye(4)[None, None], is_causal=True
    )
    return facts | causal_facts(weights[0, 0].numpy())


def torch_multi_head() -> Facts:
    import torch

    layer = torch.nn.MultiheadAttention(1, 1, bias=False)
    with torch.no_grad():
        for weight in (layer.in_proj_weight, layer.out_proj.weight):
            weight.fill_(1.0)
        q, x = torch.zeros(1, 1), torch.tensor([[2.0], [6.0]])
        facts = mask_facts(lambda mask: layer(q, x, x, attn_mask=torch.from_numpy(mask))[0].item())
        two = torch.nn.MultiheadAttention(2, 2)
        _, weights = two(torch.zeros(3, 1, 2), torch.zeros(3, 1, 2), torch.zeros(3, 1, 2))
    return facts | {
        "weights returned for 2 heads": f"{list(weights.shape)}: "
        f"{'averaged over the heads' if weights.ndim == 3 else 'per head'}"
    }


def torch_softmax() -> Facts:
    import torch

    row = torch.softmax(torch.full((1, 2), -torch.inf), -1)
    return {"a row that sees no key": "NaN" if row.isnan().all() else str(row.tolist())}


def torch_dropout() -> Facts:
    import torch

    kept = {float(x) for x in torch.nn.functional.dropout(torch.ones(64), 0.75, training=True)}
    return {
        "the draw": "its own; no argument takes one",
        "what is kept of 1 with p = 0.75": f"{max(kept):g}",
    }


def torch_causal_mask() -> Facts:
    import torch

    mask = torch.nn.Transformer.generate_square_subsequent_mask(2)
    return {
        "the mask": f"float, {mask.tolist()}, to be added",
        "N other than M": "not offered: it takes one size",
    }


def torch_causal_bias() -> Facts:
    from torch.nn.attention.bias import causal_lower_right, causal_upper_left

    facts = {}
    for make in (causal_lower_right, causal_upper_left):
        said = causal_facts(make(2, 4)._materialize().numpy())
        facts[make.__name__] = next(iter(said.values()))
    return facts


def torch_norm() -> Facts:
    import torch

    y = torch.nn.functional.layer_norm(torch.tensor([1.0, 3.0]), (2,), eps=0.0)
    return {
        "the variance divides by": "F" if float(y[1]) == 1.0 else "F - 1",
        "default eps": f"{torch.nn.LayerNorm(1).eps:g}",
    }


def onnx_attention() -> Facts:
    import onnx
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    def attend(
        mask: ndarray | None = None, N: int = 1, value: Any = ((2.0,), (6.0,)), **options: int
    ) -> ndarray:
        value = np.array(value, np.float32)[None, None]
        given = {
            "Q": np.zeros((1, 1, N, 1), np.float32),
            "K": np.zeros((1, 1, value.shape[2], 1), np.float32),
            "V": value,
        }
        given |= {} if mask is None else {"mask": mask}
        ins = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for name, x in given.items()
        ]
        out = helper.make_tensor_value_info("Y", onnx.TensorProto.FLOAT, None)
        graph = helper.make_graph(
            [helper.make_node("Attention", list(given), ["Y"], **options)], "attention", ins, [out]
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])
        return np.asarray(ReferenceEvaluator(model).run(None, given)[0])[0, 0]

    return mask_facts(lambda mask: attend(mask).item()) | causal_facts(
        attend(N=2, value=np.eye(4), is_causal=1)
    )


def labml_multi_head() -> Facts:
    import torch
    from labml_nn.transformers.mha import MultiHeadAttention

    layer = MultiHeadAttention(1, 1, 0.0)
    layer.query = layer.key = layer.value = torch.nn.Unflatten(-1, (1, 1))
    layer.output = torch.nn.Identity()
    q, x = torch.zeros(1, 1, 1), torch.tensor([[[2.0]], [[6.0]]])
    return mask_facts(
        lambda mask: layer(
            query=q, key=0 * x, value=x, mask=torch.from_numpy(mask)[:, :, None]
        ).item()
    )


def labml_shift_right() -> Facts:
    import torch
    from labml_nn.transformers.xl.relative_mha import shift_right

    x = np.arange(1.0, 13.0).reshape(3, 4)
    return agrees(
        "three rows of four",
        "shift_right",
        shift_right(torch.from_numpy(x)[:, :, None, None])[:, :, 0, 0].numpy(),
        x=x,
    )


def labml_relative() -> Facts:
    import torch
    from labml_nn.transformers.xl.relative_mha import RelativeMultiHeadAttention

    layer = RelativeMultiHeadAttention(1, 1, 0.0)
    with torch.no_grad():
        layer.key_pos_embeddings.zero_()
        layer.key_pos_bias[:, 0] = torch.arange(len(layer.key_pos_bias)) - layer.P
        score = layer.get_scores(torch.zeros(2, 1, 1, 1), torch.zeros(3, 1, 1, 1))[
            :, :, 0, 0
        ].numpy()
    own = int(np.flatnonzero(score[0] == 0)[0])
    return {
        "two queries, three keys": f"the first query's own key is key {own}: align = "
        f"{'end' if own == 1 else 'start'}"
    }


def labml_slopes() -> Facts:
    from labml_nn.transformers.alibi import get_slopes

    six, eight = (
        agrees(f"{H} heads", "get_slopes", get_slopes(H).numpy(), n_heads=H) for H in (6, 8)
    )
    return six | eight


def labml_biases() -> Facts:
    import torch
    from labml_nn.transformers.alibi import get_alibi_biases

    visible = np.array([[True, False, False], [True, True, False], [True, False, True]])
    biases = get_alibi_biases(2, torch.from_numpy(visible)).permute(2, 0, 1).numpy()
    return agrees("a mask with a gap", "get_alibi_biases", biases, n_heads=2, visible=visible)


def transformers_slopes() -> Facts:
    import torch
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    bloom = build_alibi_tensor(torch.ones(1, 3), 6, torch.float32)
    mpt = -build_mpt_alibi_tensor(6, 2)[:, 0, 0].numpy()
    return (
        agrees("BLOOM's slopes of 6 heads", "get_slopes", bloom[:, 0, 1].numpy(), n_heads=6)
        | agrees("MPT's slopes of 6 heads", "get_slopes", mpt, n_heads=6)
        | {"BLOOM's bias": f"slope * j: {bloom[0, 0].tolist()} for head 0"}
    )


def xlnet_shift() -> Facts:
    import torch
    from transformers.models.xlnet.modeling_xlnet import XLNetRelativeAttention

    x = np.arange(1.0, 9.0).reshape(2, 4)
    padded = torch.from_numpy(np.pad(x, ((0, 0), (1, 0))))[None, None]
    shifted = XLNetRelativeAttention.rel_shift_bnij(padded, klen=4)[0, 0].numpy()
    return agrees("rel_shift_bnij of the padded matrix", "rel_shift", shifted, x=x)


def xlnet_memory() -> Facts:
    from types import SimpleNamespace

    import torch
    from transformers import XLNetModel

    kept = XLNetModel.cache_mem(
        SimpleNamespace(mem_len=0, reuse_len=None), torch.zeros(3, 1, 1), torch.zeros(2, 1, 1)
    )
    expected = spec.update_mems([np.zeros((1, 3, 1))], [np.zeros((1, 2, 1))], 0)
    assert expected is not None
    found = f"keeps {len(kept)} positions (the specification: {expected[0].shape[1]})"
    return {"mem_len = 0, S = 2, N = 3": found}


def installed(package: str) -> str:
    return f"{package} {version(package)}"
