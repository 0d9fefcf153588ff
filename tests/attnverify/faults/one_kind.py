"""
Faults that one kind of case alone reveals: a row without keys, one shape or form of a mask, a
draw, padding that differs between the entries of a batch, a real size. Each is told in a public
thread, and is a function of the arguments and of the right answer; what it is given otherwise is
answered right. The adapters around them refuse whatever else a caller may ask.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.catalogue.pytrees import map_leaves
from attnverify.inputs.masks import visible_pairs

Inputs = dict[str, Any]
Fault = Callable[[Operation, Inputs, Any], Any]


def rows_without_keys(op: Operation, given: Inputs) -> ndarray:
    """[... N]: True where a row sees no key."""
    visible = visible_pairs(op, given)
    assert visible is not None
    return ~visible.any(axis=-1)


def nan_for_empty_rows(op: Operation, given: Inputs, answer: Any) -> Any:
    """The quotient of two zeros: in the output, or in the gradient by the query (or the score)."""
    empty = rows_without_keys(op, given)
    first = answer[0] if isinstance(answer, (list, tuple)) else answer
    wrong = np.where(empty[..., None], np.nan, first)
    return (wrong, *answer[1:]) if isinstance(answer, (list, tuple)) else wrong


def nan_for_empty_entries(op: Operation, given: Inputs, answer: Any) -> Any:
    """Of a layer, where a whole entry of the batch is padding."""
    output, *rest = answer
    empty = rows_without_keys(op, given).all(axis=(1, 2))
    return np.where(empty[:, None, None], np.nan, output), *rest


def mean_for_empty_rows(op: Operation, given: Inputs, answer: Any) -> Any:
    """The mean of all values, which equal scores of a lowest number give."""
    mean = given["value"].mean(axis=-2, keepdims=True)
    return np.where(rows_without_keys(op, given)[..., None], mean, answer)


def first_value_for_empty_rows(op: Operation, given: Inputs, answer: Any) -> Any:
    """A row before the first key is clamped to it."""
    return np.where(rows_without_keys(op, given)[..., None], given["value"][..., :1, :], answer)


def with_mask(change: Callable[[Inputs, ndarray], ndarray | None]) -> Fault:
    """The right answer to the call with another mask."""

    def wrong(op: Operation, given: Inputs, answer: Any) -> Any:
        assert op.mask is not None
        changed = op.reference(**given | {op.mask: change(given, given[op.mask])})
        if not op.is_gradient:
            return changed
        shapes = [x if x is None else x.shape for x in answer]  # that of another mask is not asked
        fits = [x is not None and x.shape == s for x, s in zip(changed, shapes, strict=True)]
        return tuple(
            new if fit else old for new, old, fit in zip(changed, answer, fits, strict=True)
        )

    return wrong


def first_entry(given: Inputs, mask: ndarray) -> ndarray:
    """The mask of the batch's first entry, for all of them."""
    return np.broadcast_to(mask[:1], mask.shape)


def first_head(given: Inputs, mask: ndarray) -> ndarray:
    """The mask of the first head, for all of them."""
    return np.broadcast_to(mask[:, :1], mask.shape)


def tiled(given: Inputs, mask: ndarray) -> ndarray:
    """A mask for each entry, repeated with the batch in front where heads are."""
    B, H = given["query"].shape[:2]
    full = np.tile(np.broadcast_to(mask, (B, 1, *mask.shape[2:])), (H, 1, 1, 1))
    return full.reshape(B, H, *mask.shape[2:])


def stacked_tiled(given: Inputs, mask: ndarray) -> ndarray:
    """[B*H N M] read with the heads in front."""
    H = given["num_heads"]
    apart = mask.reshape(-1, H, *mask.shape[1:]) if len(mask) % H == 0 else mask[None]
    return apart.swapaxes(0, 1).reshape(mask.shape)


def zero_or_one(given: Inputs, mask: ndarray) -> ndarray:
    """Truth as a number to add."""
    return mask.astype(float)


def finite_numbers_ignored(given: Inputs, mask: ndarray) -> ndarray:
    return np.where(np.isfinite(mask), 0.0, mask)


def scaled_with_scores(given: Inputs, mask: ndarray) -> ndarray:
    return mask / np.sqrt(given["query"].shape[-1])


def lengths_alone(given: Inputs, mask: ndarray) -> ndarray:
    """As many keys as are visible, from the first on."""
    return np.arange(mask.shape[-1]) < mask.sum(axis=-1, keepdims=True)


def very_low_is_hidden(given: Inputs, mask: ndarray) -> ndarray:
    return np.where(mask <= -1e4, -np.inf, mask)


def no_mask(given: Inputs, mask: ndarray) -> None:
    return None


def last_tile_open(given: Inputs, mask: ndarray) -> ndarray:
    """From the third tile of 64 keys on the mask is not read."""
    open_ = np.arange(mask.shape[-1]) >= 128
    return np.where(open_, True if mask.dtype == bool else 0.0, mask)


def with_argument(name: str, change: Callable[[Inputs, Any], Any]) -> Fault:
    """The right answer to the call with another argument."""
    return lambda op, given, answer: op.reference(**given | {name: change(given, given[name])})


def padding_tiled(op: Operation, given: Inputs, answer: Any) -> Any:
    """The padding of another entry of the batch, for each head that its place is mistaken for."""
    padding, H = given["key_padding_mask"], given["num_heads"]
    B, M = padding.shape
    N = given["query"].shape[1] if "query" in given else given["x"].shape[1]
    wrong = np.broadcast_to(np.tile(padding, (H, 1))[:, None], (B * H, N, M))
    own = given.get("attn_mask")
    if own is not None and own.dtype == bool:
        wrong = wrong | own
    if own is not None and own.dtype != bool:
        wrong = np.where(wrong, -np.inf, own)
    return op.reference(**given | {"key_padding_mask": None, "attn_mask": wrong})


def gradient_of_mask(change: Callable[[ndarray, Inputs], ndarray]) -> Fault:
    """Another last gradient, which is that of the mask."""

    def wrong(op: Operation, given: Inputs, answer: Any) -> Any:
        return *answer[:-1], change(answer[-1], given)

    return wrong


def one_head_alone(x: ndarray, given: Inputs) -> ndarray:
    """The sum over heads that share a mask left out."""
    return x / given["query"].shape[1]


def one_entry_alone(x: ndarray, given: Inputs) -> ndarray:
    return x / given["query"].shape[0]


def unscaled_draw(op: Operation, given: Inputs, answer: Any) -> Any:
    return answer * (1 - given["p"])


@dataclass(frozen=True)
class OneKind:
    """
    A fault of an operation, and what its file takes.

    thread  where it, or one like it, is told
    mask    the axes of the only mask that its file takes; "" for none, and for those of sizes alone
    form    "bool" or "float": the only form; "" for both
    needs   what it takes beside the plainest call, of "N != M", "dropout" and "padding"
    on      whether a call shows it, where that hangs on more than its parts
    """

    name: str
    operation: str
    thread: str
    wrong: Fault
    mask: str = ""
    form: str = ""
    needs: tuple[str, ...] = ()
    on: Callable[[Inputs], bool] = lambda given: True

    def call(self, harsh: bool, **given: Any) -> Any:
        """What the file answers, in float64; NotImplementedError where it refuses."""
        op = CATALOGUE[self.operation]
        refuse_sizes(given, self.needs)
        if harsh:
            refuse_masks(self, given)
        right = op.reference(**given)
        return self.wrong(op, given, right) if self.is_on(given) else right

    def is_on(self, given: Inputs) -> bool:
        op = CATALOGUE[self.operation]
        mask = given.get(op.mask or "")
        if self.mask and (mask is None or not has_axes(mask, self.mask, given)):
            return False
        if self.form and (mask is None or (mask.dtype == bool) != (self.form == "bool")):
            return False
        if "dropout" in self.needs and given.get("keep") is None:
            return False
        if "padding" in self.needs and given.get("key_padding_mask") is None:
            return False
        return self.on(given)


def refuse_sizes(given: Inputs, needs: tuple[str, ...]) -> None:
    """Refuse what many kernels do not take: widths and lengths that differ, draws."""
    query, key, value = (given.get(name) for name in ("query", "key", "value"))
    projected = {"w_query", "num_heads"} & set(given)
    if value is not None and not projected and query.shape[-1] != value.shape[-1]:
        raise NotImplementedError("one width for query, key and value")
    if "N != M" not in needs and key is not None and query.shape[-2] != key.shape[-2]:
        raise NotImplementedError("as many queries as keys")
    if "dropout" not in needs and given.get("keep") is not None:
        raise NotImplementedError("takes no draw")


def refuse_masks(fault: OneKind, given: Inputs) -> None:
    """Refuse every mask of another shape and form than the one that is taken."""
    mask = given.get(CATALOGUE[fault.operation].mask or "")
    if mask is not None and not (fault.mask or fault.form):
        raise NotImplementedError("takes no mask")
    if mask is not None and fault.mask and not has_axes(mask, fault.mask, given):
        raise NotImplementedError(f"masks of the shape {fault.mask} alone")
    if mask is not None and fault.form and (mask.dtype == bool) != (fault.form == "bool"):
        raise NotImplementedError(f"{fault.form} masks alone")
    if "padding" not in fault.needs and given.get("key_padding_mask") is not None:
        raise NotImplementedError("takes no padding")


def has_axes(mask: ndarray, axes: str, given: Inputs) -> bool:
    """Whether a mask has these axes."""
    first = given.get("query", given.get("score", given.get("x")))
    key = given.get("key", first)
    M = first.shape[-1] if "score" in given else key.shape[-2]
    H = given.get("num_heads", first.shape[1] if first.ndim == 4 else 1)
    sizes = {"B": first.shape[0], "H": H, "N": first.shape[-2], "M": M, "1": 1}
    sizes["B*H"] = sizes["B"] * H
    return mask.shape == tuple(sizes[axis] for axis in axes.split())


def differs_by_entry(given: Inputs) -> bool:
    """Whether the padding of one entry is not that of another."""
    padding = given["key_padding_mask"]
    return bool((padding != padding[:1]).any())


def is_long(given: Inputs) -> bool:
    return bool(given["key"].shape[-2] > 129)


def rounded(answer: Any, dtype: str) -> Any:
    return map_leaves(lambda x: x.astype(dtype) if isinstance(x, ndarray) else x, answer)


SDPA, SDPA_GRAD = "scaled_dot_product_attention", "scaled_dot_product_attention_grad"
ALIBI, ALIBI_GRAD = "alibi_attention", "alibi_attention_grad"
MHA, SELF = "multi_head_attention", "multi_head_self_attention"
ADDITIVE, LEARNED = "additive_attention", "learned_relative_attention"
EACH, HEAD, PADDED, HEADS = "B 1 N M", "B H N M", "B 1 1 M", "1 H N M"
PYTORCH, CLIP = "pytorch/pytorch#103963", "ArrowLuo/CLIP4Clip#22"
BIAS = "HKUSTDial/flash-sparse-attention#190"
ONNX, ROWS = "onnx/onnx#8068", "Dao-AILab/flash-attention#443"
CAUSAL, LONGER = "Dao-AILab/flash-attention#1778", ("N != M",)

FAULTS = (
    OneKind("mean of a row without keys", SDPA, ONNX, mean_for_empty_rows, HEAD, "bool"),
    OneKind("NaN of a row without keys", SDPA, PYTORCH, nan_for_empty_rows, "N M", "bool"),
    OneKind(
        "NaN of a row of -inf", SDPA, "pytorch/pytorch#103749", nan_for_empty_rows, HEAD, "float"
    ),
    OneKind("mean of a row of -inf", SDPA, ONNX, mean_for_empty_rows, EACH, "float"),
    OneKind(
        "NaN of an entry of length 0",
        SDPA,
        "robertknight/rten#1321",
        nan_for_empty_rows,
        PADDED,
        "bool",
    ),
    OneKind("mean of an entry of length 0", SDPA, ONNX, mean_for_empty_rows, PADDED, "float"),
    OneKind(
        "truth as a number",
        SDPA,
        "huggingface/diffusers#14342",
        with_mask(zero_or_one),
        EACH,
        "bool",
    ),
    OneKind(
        "truth as a number",
        SDPA,
        "huggingface/transformers#41443",
        with_mask(zero_or_one),
        HEADS,
        "bool",
    ),
    OneKind(
        "numbers of a mask ignored",
        SDPA,
        "timeseriesAI/tsai#171",
        with_mask(finite_numbers_ignored),
        HEAD,
        "float",
    ),
    OneKind(
        "mask scaled with the scores",
        SDPA,
        "flagos-ai/FlagAttention#5",
        with_mask(scaled_with_scores),
        "N M",
        "float",
    ),
    OneKind(
        "mask scaled with the scores", SDPA, BIAS, with_mask(scaled_with_scores), HEADS, "float"
    ),
    OneKind("mask of the first entry", SDPA, BIAS, with_mask(first_entry), EACH),
    OneKind(
        "padding of the first entry",
        SDPA,
        "tracel-ai/burn#4777",
        with_mask(first_entry),
        PADDED,
        "bool",
    ),
    OneKind("bias of the first entry", SDPA, BIAS, with_mask(first_entry), PADDED, "float"),
    OneKind("mask of the first head", SDPA, BIAS, with_mask(first_head), HEAD, "bool"),
    OneKind("bias of the first head", SDPA, BIAS, with_mask(first_head), HEADS, "float"),
    OneKind("rows' mask ignored", SDPA, BIAS, with_mask(no_mask), "B 1 N 1"),
    OneKind("batch in front of heads", SDPA, CLIP, with_mask(tiled), EACH, "bool"),
    OneKind("padding as a length", SDPA, PYTORCH, with_mask(lengths_alone), PADDED, "bool"),
    OneKind(
        "a row of -1e4 hidden",
        SDPA,
        "lucidrains/nGPT-pytorch#11",
        with_mask(very_low_is_hidden),
        HEAD,
        "float",
    ),
    OneKind(
        "draw not rescaled",
        SDPA,
        "amorehead/jvp_flash_attention#2",
        unscaled_draw,
        needs=("dropout",),
    ),
    OneKind(
        "long mask not read",
        SDPA,
        "sgl-project/sglang#22434",
        with_mask(last_tile_open),
        "N M",
        "bool",
        on=is_long,
    ),
    OneKind("long bias not read", SDPA, BIAS, with_mask(last_tile_open), EACH, "float", on=is_long),
    OneKind(
        "NaN by a row without keys",
        SDPA_GRAD,
        "lucidrains/nGPT-pytorch#11",
        nan_for_empty_rows,
        HEAD,
        "bool",
    ),
    OneKind("NaN by a row of -inf", SDPA_GRAD, PYTORCH, nan_for_empty_rows, EACH, "float"),
    OneKind("bias of one head", SDPA_GRAD, BIAS, gradient_of_mask(one_head_alone), EACH, "float"),
    OneKind(
        "bias of one entry", SDPA_GRAD, BIAS, gradient_of_mask(one_entry_alone), HEADS, "float"
    ),
    OneKind(
        "bias of one entry", SDPA_GRAD, BIAS, gradient_of_mask(one_entry_alone), "N M", "float"
    ),
    OneKind("mask not in the backward", SDPA_GRAD, BIAS, with_mask(no_mask), PADDED, "bool"),
    OneKind("mask of the first head", SDPA_GRAD, BIAS, with_mask(first_head), HEAD, "bool"),
    OneKind("NaN before the first key", ALIBI, ROWS, nan_for_empty_rows, needs=LONGER),
    OneKind("mean before the first key", ALIBI, CAUSAL, mean_for_empty_rows, needs=LONGER),
    OneKind(
        "first value before the first key",
        ALIBI,
        "MinghuasLab/flash-attention-npu#120",
        first_value_for_empty_rows,
        needs=LONGER,
    ),
    OneKind("NaN before the first key", ALIBI_GRAD, ROWS, nan_for_empty_rows, needs=LONGER),
    OneKind("mean of a row without keys", ALIBI, ONNX, mean_for_empty_rows, EACH),
    OneKind("mask of the first head", ALIBI, BIAS, with_mask(first_head), HEADS),
    OneKind("padding of the first entry", LEARNED, BIAS, with_mask(first_entry), PADDED),
    OneKind("rows' mask ignored", LEARNED, BIAS, with_mask(no_mask), "B 1 N 1"),
    OneKind("mean of a row without keys", ADDITIVE, ONNX, mean_for_empty_rows, "B N M", "bool"),
    OneKind("mask of the first entry", ADDITIVE, BIAS, with_mask(first_entry), "B 1 M", "float"),
    OneKind("NaN of a row of -inf", "softmax", PYTORCH, nan_for_empty_rows, form="float"),
    OneKind(
        "padding of the first entry",
        MHA,
        "junliu621/PPLM#6",
        with_argument("key_padding_mask", first_entry),
        needs=("padding",),
        on=differs_by_entry,
    ),
    OneKind(
        "padding with the batch in front",
        MHA,
        "line/lighthouse#77",
        padding_tiled,
        needs=("padding",),
    ),
    OneKind(
        "padding not read",
        SELF,
        "SeanLee97/AnglE#89",
        with_argument("key_padding_mask", no_mask),
        needs=("padding",),
    ),
    OneKind(
        "NaN of an entry of padding",
        SELF,
        "pytorch/pytorch#27968",
        nan_for_empty_entries,
        needs=("padding",),
    ),
    OneKind("mask with the batch in front", MHA, CLIP, with_mask(stacked_tiled), "B*H N M", "bool"),
    OneKind(
        "bias with the batch in front", MHA, CLIP, with_mask(stacked_tiled), "B*H N M", "float"
    ),
)
