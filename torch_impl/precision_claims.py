"""
What the arithmetic of this column claims, for every operation, implementation and dtype: the
material of PRECISION.

Where nothing else is said, half types are widened to float32, computed there and rounded once
("wide"). The rest:

- SDPA on a CPU is the flash kernel where it can (weights in the storage dtype, an exp good to 20
  ulp, gradients added up over blocks in the storage dtype), else the math path, which scales query
  and key by the root of the scale first: the looser of the two.
- Scores of their own, position scores and projections are products in the storage dtype, rounded
  once; the sum of two scores and what lies between the stages of a layer is stored. The gradients
  of scores are stored before they are multiplied by the scale: PyTorch's derivative of baddbmm.
- The Triton kernels are "fused": weights and gradients of scores are in the storage dtype on their
  way into a product, q + u is rounded to it, all else is float32; float32 products are not TF32,
  whatever PyTorch's settings say. Their tanh is 1 - 2 / (1 + exp(2z)).
- What answers to a plain name (:mod:`torch_impl.paths.fastest`) may be any: what is claimed
  of PyTorch's kernels covers blocks and Triton kernels; in additive attention the tanh is theirs.
- The blocked attentions are "wide", and take subnormal weights for zeros; their tanh is that of
  the Triton kernels.
- A CPU with bfloat16 instructions (VDPBF16PS, AMX) flushes subnormals, of the operands and of what
  it accumulates.
"""

from typing import Any

DTYPES = ("float64", "float32", "float16", "bfloat16")

POSITION_SCORES = ("transformer_xl_score", "learned_relative_score")
SDPA = ("scaled_dot_product_attention", "alibi_attention")
POSITIONS = ("transformer_xl_attention", "learned_relative_attention")
CACHED = ("paged_attention", "latent_attention")
SDPA_LAYERS = ("self_attention", "alibi_multi_head_attention")
POSITION_LAYERS = ("relative_multi_head_attention", "transformer_xl_layer", "transformer_xl")
SPELLED_OUT_LAYERS = ("multi_head_attention", "multi_head_self_attention")

Claim = dict[str, Any]


def claims(cuda: bool) -> dict[str, Any]:
    """The declaration for a CPU or a GPU: operation or implementation, then dtype."""
    return {"*": table(cuda, wide)} | {
        name: table(cuda, claim)
        for names, claim in (
            (("scaled_dot_product_score",), scaled_product),
            (POSITION_SCORES, products_added),
            (("additive_attention",), additive),
            (
                tuple(
                    f"additive_attention_{how}" for how in ("module", "module_train", "autocast")
                ),
                wide,
            ),
            (SDPA, sdpa),
            (POSITIONS, with_positions),
            (SDPA_LAYERS, lambda dtype, cuda: sdpa(dtype, cuda) | {"stage": dtype}),
            (POSITION_LAYERS, lambda dtype, cuda: with_positions(dtype, cuda) | {"stage": dtype}),
            (SPELLED_OUT_LAYERS, spelled_out_layer),
            (tuple(f"{name}_eager" for name in SDPA + POSITIONS), wide),
            (tuple(f"{name}_eager_grad" for name in SDPA + POSITIONS), wide),
            (
                tuple(f"{name}_blocked" for name in (*SDPA, *POSITIONS)),
                blocked,
            ),
            (
                ("additive_attention_blocked",),
                additive_in_blocks,
            ),
            (("alibi_attention_flex",), flex),
            (tuple(f"{name}_flex" for name in POSITIONS), flex_with_positions),
            (
                (
                    *(f"{name}_triton" for name in SDPA + POSITIONS + CACHED),
                    "scaled_dot_product_attention_module_triton",
                ),
                kernel,
            ),
            (("additive_attention_triton", "additive_attention_module_triton"), projected_kernel),
        )
        for name in names
    }


def table(cuda: bool, claim: Any) -> dict[str, Claim]:
    return {
        dtype: on_gpu(dtype) | claim(dtype, cuda) if cuda else claim(dtype, cuda)
        for dtype in DTYPES
    }


def wider(dtype: str) -> str:
    return "float64" if dtype == "float64" else "float32"


def wide(dtype: str, cuda: bool) -> Claim:
    return {"preset": "wide"}


def stored(dtype: str, cuda: bool) -> Claim:
    """Products of matrices in the storage dtype."""
    return (
        {"storage": "bfloat16_ftz", "acc": "float32_ftz"}
        if dtype == "bfloat16" and not cuda
        else {}
    )


def product(dtype: str, cuda: bool) -> Claim:
    return {"preset": "wide", **stored(dtype, cuda)}


def scaled_product(dtype: str, cuda: bool) -> Claim:
    """The gradient's product is stored before it is scaled: PyTorch's derivative of baddbmm."""
    return product(dtype, cuda) | {"grad_partial": dtype}


def products_added(dtype: str, cuda: bool) -> Claim:
    return scaled_product(dtype, cuda) | {"score": dtype, "joined": dtype}


def sdpa(dtype: str, cuda: bool) -> Claim:
    claim = {"preset": "fused", "prescale": wider(dtype), **stored(dtype, cuda)}
    # the kernels of a GPU want the mask in the dtype of the query, a CPU takes float32
    return claim | ({"bias": dtype} if cuda else {"exp_ulps": 20, "grad_partial": dtype})


def with_positions(dtype: str, cuda: bool) -> Claim:
    return sdpa(dtype, cuda) | {"score": dtype, "grad_partial": dtype}


def spelled_out_layer(dtype: str, cuda: bool) -> Claim:
    return product(dtype, cuda) | {"stage": dtype}


def flex(dtype: str, cuda: bool) -> Claim:
    return {"preset": "fused", **stored(dtype, cuda)}


def kernel(dtype: str, cuda: bool) -> Claim:
    return {
        "preset": "fused",
        "operand": None,
        "partial": None,
    }  # no product of cuBLAS, whose settings do not matter


def blocked(dtype: str, cuda: bool) -> Claim:
    return {"preset": "wide", "softmax": f"{wider(dtype)}_ftz"}


def additive_in_blocks(dtype: str, cuda: bool) -> Claim:
    return blocked(dtype, cuda) | {"tanh_form": "exponential"}


def additive(dtype: str, cuda: bool) -> Claim:
    """What answers may be the kernel on a GPU and blocks on a CPU: the looser of each two."""
    return (projected_kernel if cuda else additive_in_blocks)(dtype, cuda)


def projected_kernel(dtype: str, cuda: bool) -> Claim:
    return {"preset": "fused", "joined": wider(dtype), "tanh_form": "exponential"}


def flex_with_positions(dtype: str, cuda: bool) -> Claim:
    return flex(dtype, cuda) | {"score": dtype}


def on_gpu(dtype: str) -> Claim:
    """
    What cuBLAS may do by PyTorch's settings, as they are when this is imported; not confirmed on a
    GPU yet.
    """
    import torch

    matmul = torch.backends.cuda.matmul
    if dtype == "float32":
        return {"operand": "tf32"} if matmul.allow_tf32 else {}
    reduced = {
        "float16": matmul.allow_fp16_reduced_precision_reduction,
        "bfloat16": matmul.allow_bf16_reduced_precision_reduction,
    }
    if dtype not in reduced:
        return {}
    return {"acc_unit": 2.0**-22} | ({"partial": dtype} if reduced[dtype] else {})
