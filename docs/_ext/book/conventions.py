"""
The same operation in other libraries: a table whose rows are executed where the library is
installed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from attnverify.catalogue.operation import Operation
from book import other_libraries
from book.other_libraries import Facts


@dataclass(frozen=True)
class Peer:
    """
    One library's way of doing some operations.

    says  what it does, in the words that `ask` observes; where the two differ the build fails
    ask   makes the calls; None where this project has nothing to execute, and then `source` says
          who says so
    """

    operations: tuple[str, ...]
    package: str
    call: str
    layout: str
    says: Facts
    ask: Callable[[], Facts] | None = None
    source: str = ""


MAY, HIDDEN, EMPTY = "True = may attend", "True = hidden", "a row that sees no key"
MASK, CAUSAL = "a boolean mask", "causal, N = 2 and M = 4"
ATTENTIONS = ("scaled_dot_product_attention", "causal_mask")
HEADS = ("multi_head_attention", "multi_head_self_attention", "merge_masks")
AS_SPECIFIED = "the specification's numbers"

PEERS = (
    Peer(ATTENTIONS, "torch", "nn.functional.scaled_dot_product_attention", "B H N D",
         {MASK: MAY, EMPTY: "0", CAUSAL: "starts aligned"},
         other_libraries.torch_sdpa),
    Peer(HEADS, "torch", "nn.MultiheadAttention", "N B F (B N F with batch_first)",
         {MASK: HIDDEN, EMPTY: "NaN",
         "weights returned for 2 heads": "[1, 3, 3]: averaged over the heads"},
         other_libraries.torch_multi_head),
    Peer(("softmax",), "torch", "softmax", "any axis", {EMPTY: "NaN"},
         other_libraries.torch_softmax),
    Peer(("dropout",), "torch", "nn.functional.dropout", "any",
         {"the draw": "its own; no argument takes one", "what is kept of 1 with p = 0.75": "4"},
         other_libraries.torch_dropout),
    Peer(("causal_mask",), "torch", "nn.Transformer.generate_square_subsequent_mask", "N N",
         {"the mask": "float, [[0.0, -inf], [0.0, 0.0]], to be added",
         "N other than M": "not offered: it takes one size"},
         other_libraries.torch_causal_mask),
    Peer(("causal_mask",), "torch", "nn.attention.bias", "N M",
         {"causal_lower_right": "ends aligned", "causal_upper_left": "starts aligned"},
         other_libraries.torch_causal_bias),
    Peer(("transformer_xl_layer", "transformer_xl"), "torch", "nn.LayerNorm", "... F",
         {"the variance divides by": "F", "default eps": "1e-05"}, other_libraries.torch_norm),
    Peer((*ATTENTIONS, "multi_head_attention"), "onnx", "Attention (operator set 23)",
         "B H N D, or B N F with the head counts as attributes",
         {MASK: MAY, EMPTY: "0", CAUSAL: "starts aligned"}, other_libraries.onnx_attention),
    Peer(ATTENTIONS, "flash-attn", "flash_attn_func", "B N H D",
         {MASK: "takes none", EMPTY: "0", CAUSAL: "ends aligned, since 2.1"},
         source="the project's README; it needs a GPU"),
    Peer(("alibi_attention", "get_alibi_biases"), "flash-attn", "flash_attn_func(alibi_slopes=...)",
         "B N H D",
         {"the bias": "-slope * \\|i + M - N - j\\|", "slopes": "given by the caller, one a head"},
         source="the project's README; it needs a GPU"),
    Peer((*HEADS, "scaled_dot_product_attention"), "labml-nn",
         "transformers.mha.MultiHeadAttention", "N B F, masks N M B",
         {MASK: MAY, EMPTY: "NaN"}, other_libraries.labml_multi_head),
    Peer(("shift_right",), "labml-nn", "transformers.xl.relative_mha.shift_right",
         "N M ..., the axes to shift in front",
         {"three rows of four": AS_SPECIFIED}, other_libraries.labml_shift_right),
    Peer(("learned_relative_score", "learned_relative_attention", "relative_multi_head_attention"),
         "labml-nn",
         "transformers.xl.relative_mha.RelativeMultiHeadAttention", "N B H D",
         {"two queries, three keys": "the first query's own key is key 1: align = end"},
         other_libraries.labml_relative),
    Peer(("get_slopes",), "labml-nn", "transformers.alibi.get_slopes", "H",
         {"6 heads": AS_SPECIFIED, "8 heads": AS_SPECIFIED}, other_libraries.labml_slopes),
    Peer(("get_alibi_biases", "alibi_multi_head_attention"), "labml-nn",
         "transformers.alibi.get_alibi_biases", "N M H",
         {"a mask with a gap": AS_SPECIFIED}, other_libraries.labml_biases),
    Peer(("get_slopes", "get_alibi_biases", "alibi_attention"), "transformers", "BLOOM, MPT",
         "B H 1 M",
         {"BLOOM's slopes of 6 heads": AS_SPECIFIED, "MPT's slopes of 6 heads": AS_SPECIFIED,
         "BLOOM's bias": "slope * j: [0.0, 0.25, 0.5] for head 0"},
         other_libraries.transformers_slopes),
    Peer(("rel_shift", "transformer_xl_score", "transformer_xl_attention"), "transformers", "XLNet",
         "B H N M, one column of padding",
         {"rel_shift_bnij of the padded matrix": AS_SPECIFIED}, other_libraries.xlnet_shift),
    Peer(("update_mems", "init_mems", "transformer_xl"), "transformers", "XLNetModel.cache_mem",
         "N B F",
         {"mem_len = 0, S = 2, N = 3": "keeps 5 positions (the specification: 0)"},
         other_libraries.xlnet_memory),
)  # fmt: skip


def section(operation: Operation) -> Iterator[str]:
    """The rows of the operation; nobody is said to have it who was not looked at."""
    rows = [peer for peer in PEERS if operation.name in peer.operations]
    if not rows:
        yield (
            "Of PyTorch, ONNX, flash-attention, labml and transformers none has it under a name "
            "of its own that this project looked at.\n"
        )
        return
    yield ".. list-table::\n   :header-rows: 1\n   :class: conventions\n"
    yield "   * - library\n     - call\n     - axes\n     - what it does\n     - seen here"
    for peer in rows:
        facts = "; ".join(f"{about}: {said}" for about, said in peer.says.items())
        yield (
            f"   * - {peer.package}\n     - ``{peer.call}``\n     - {peer.layout}\n     - "
            f"{facts}\n     - {executed(peer)}"
        )
    yield ""


def executed(peer: Peer) -> str:
    """
    With which version the row was executed during this build, or why it was not; ValueError where
    it is not true.
    """
    if peer.ask is None:
        return f"not executed; {peer.source}"
    try:
        seen = peer.ask()
    except ImportError:
        return f"not executed in this build: {peer.package} is not installed"
    if seen != peer.says:
        raise ValueError(f"{peer.package}, {peer.call}: wanted {peer.says}, got {seen}")
    return f"executed with {other_libraries.installed(peer.package)}"
