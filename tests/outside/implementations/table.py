"""
What is expected of each adapter in :mod:`tests.outside.implementations.adapters`: that it is right,
or that it is wrong, for a reason that the first cause of the answer must name.

Wrong means by this project's specification: another convention, a bug, or a misuse that is planted
in the adapter and said so here. Right ones that lack something (masks, an lse) say so, or take no
such argument.
"""

from dataclasses import dataclass
from pathlib import Path

ADAPTERS = Path(__file__).with_name("adapters")
RMS_NORM = "tests/sample_newcomers/rms_norm_spec.py"


@dataclass(frozen=True)
class Expected:
    """
    What must be told of one adapter.

    package    the distribution that computes it
    operation  what it is judged as
    reason     a regular expression of what is wrong; "" where it is right
    because    why it is wrong, in words
    spec       the specification that judges it, where that is none of the catalogue
    """

    package: str
    operation: str
    reason: str = ""
    because: str = ""
    spec: str = ""

    @property
    def verdict(self) -> str:
        return "wrong" if self.reason else "right"


TABLE = {
    # PyTorch
    "torch_sdpa": Expected("torch", "scaled_dot_product_attention"),
    "torch_sdpa_unscaled": Expected(
        "torch", "scaled_dot_product_attention", "scores that are not scaled", "misuse: scale=1"
    ),
    "torch_sdpa_polarity": Expected(
        "torch",
        "scaled_dot_product_attention",
        "a mask of which True means hidden",
        "misuse: the mask inverted, as nn.MultiheadAttention wants it",
    ),
    "torch_sdpa_causal": Expected(
        "torch",
        "scaled_dot_product_attention",
        "top-left causal mask where none is given",
        "misuse: is_causal where no mask is given",
    ),
    "torch_mha": Expected(
        "torch", "multi_head_attention", "NaN in rows that see no key", "softmax over -inf alone"
    ),
    "torch_mha_no_masks": Expected("torch", "multi_head_attention"),
    "torch_mha_padding": Expected(
        "torch",
        "multi_head_self_attention",
        "key_padding_mask of which True means may attend",
        "misuse: the padding mask inverted, as tokenizers give it",
    ),
    "torch_gqa": Expected("torch", "grouped_attention"),
    "torch_gqa_causal": Expected(
        "torch", "grouped_attention", "aligned at the starts", "is_causal aligns the starts"
    ),
    "torch_flex": Expected("torch", "grouped_attention"),
    "torch_causal_lower_right": Expected("torch", "causal_mask"),
    "torch_causal_upper_left": Expected(
        "torch", "causal_mask", "top-left causal mask", "aligned at the starts"
    ),
    "torch_masked_softmax": Expected(
        "torch", "softmax", "NaN in rows that see no key", "softmax over -inf alone"
    ),
    "torch_float8": Expected("torch", "dequantize"),
    "torch_context_parallel": Expected(
        "torch",
        "merge_attention",
        "NaN where no part saw a key|absent parts",
        "a difference of two lses of minus infinity",
    ),
    # transformers
    "llama_rope": Expected("transformers", "rotary_embedding"),
    "llama_rope_of_meta": Expected(
        "transformers",
        "rotary_embedding",
        "the two pairings exchanged",
        "misuse: the halves of transformers' Llama where Meta turns neighbours",
    ),
    "gptj_rope": Expected("transformers", "rotary_embedding"),
    "neox_rope": Expected("transformers", "rotary_embedding"),
    "neox_rope_all_channels": Expected(
        "transformers",
        "rotary_embedding",
        "frequencies counted in all channels",
        "misuse: exponents of the whole width where a part turns",
    ),
    "bloom_slopes": Expected("transformers", "get_slopes"),
    "mpt_slopes": Expected("transformers", "get_slopes"),
    "bloom_alibi": Expected("transformers", "alibi_attention"),
    "falcon_alibi": Expected(
        "transformers",
        "alibi_attention",
        "bias scaled with the scores|bfloat16",
        "Falcon divides the bias by the root too, and keeps its slopes in bfloat16",
    ),
    "xlnet_shift": Expected("transformers", "rel_shift"),
    "xlnet_positions": Expected("transformers", "sinusoidal_positions"),
    "xlnet_memory": Expected(
        "transformers",
        "update_mems",
        "everything (is )?kept at mem_len 0|keeps everything at mem_len 0|no memory taken",
        "all is kept at mem_len 0, and no memory is an empty one",
    ),
    "gemma2_attention": Expected("transformers", "grouped_attention"),
    "gpt_oss_attention": Expected("transformers", "grouped_attention"),
    "gpt_oss_by_llama": Expected(
        "transformers", "grouped_attention", "sinks ignored", "misuse: Llama's attention has none"
    ),
    "deepseek_latent": Expected("transformers", "latent_attention"),
    "llama_norm": Expected("transformers", "rms_norm", spec=RMS_NORM),
    "gemma_norm": Expected(
        "transformers",
        "rms_norm",
        r"gain.*\b1\b|\b1\b.*gain",
        "Gemma multiplies with 1 + gain",
        RMS_NORM,
    ),
    "sliding_window": Expected(
        "transformers",
        "visible_keys",
        "a window that counts the row's own key",
        "transformers' windows count the row's own key",
    ),
    # labml-nn
    "labml_scores": Expected("labml-nn", "scaled_dot_product_score"),
    "labml_shift": Expected("labml-nn", "shift_right"),
    "labml_biases": Expected("labml-nn", "get_alibi_biases"),
    "labml_positions": Expected(
        "labml-nn",
        "sinusoidal_positions",
        "distances rising from 0|sines and cosines in turn",
        "positions from 0 on, sines and cosines in turn: the original transformer's",
    ),
    "labml_rope": Expected(
        "labml-nn",
        "rotary_embedding",
        "positions counted from 0 in each call",
        "it takes no positions",
    ),
    # lucidrains'
    "x_transformers_attend": Expected("x-transformers", "scaled_dot_product_attention"),
    "x_transformers_alibi": Expected(
        "x-transformers",
        "alibi_attention",
        "averag",
        "rows of N > M that see no key become an average",
    ),
    "x_transformers_rope": Expected("x-transformers", "rotary_embedding"),
    "rotary_embedding_torch": Expected("rotary-embedding-torch", "rotary_embedding"),
    "ring_attention": Expected(
        "ring-attention-pytorch",
        "grouped_attention",
        "heads of keys in turn",
        "query heads read the heads of keys in turn",
    ),
    "memory_transformer_xl": Expected(
        "memory-transformer-xl",
        "rel_shift",
        "zeros where it wraps around",
        "zeros stand where ours wraps around",
    ),
    "performer": Expected(
        "performer-pytorch",
        "scaled_dot_product_attention",
        "weights",
        "random features: the weights are approximated",
    ),
    "flash_attention_jax": Expected("flash-attention-jax", "scaled_dot_product_attention"),
    # others
    "diffusers_timesteps": Expected("diffusers", "sinusoidal_positions"),
    "jax_attention": Expected(
        "jax", "scaled_dot_product_attention", "averag", "rows that see no key become an average"
    ),
    "jax_attention_no_mask": Expected("jax", "scaled_dot_product_attention"),
    "flax_attention": Expected(
        "flax",
        "scaled_dot_product_attention",
        "averag|NaN in rows that see no key",
        "an average with a boolean mask, NaN with a float one",
    ),
    "keras_additive": Expected("keras", "additive_score"),
    "onnx_attention": Expected("onnx", "grouped_attention"),
    "onnx_rope": Expected("onnx", "rotary_embedding"),
}
