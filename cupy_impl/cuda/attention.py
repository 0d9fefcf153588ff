"""
Attention by fused kernels in CUDA C++: the specification is :mod:`spec.attention`,
:mod:`spec.alibi` and :mod:`spec.relative`.

No N x M array exists, forwards or backwards: see ``kernels/attention.cu``. On CuPy's arrays the
kernels run on their GPU, on NumPy's on the CPU (:mod:`cupy_impl.cuda.emulation.compile_and_run`),
slowly. float32, float16 and bfloat16, all inputs alike; heads up to 256 wide.
"""

from dataclasses import dataclass
from math import sqrt
from types import ModuleType

import cupy
from jaxtyping import Float

from attnverify.contract.attention import (
    D_HEADS,
    check_attention,
    check_learned_attention,
    check_visible_heads,
    check_xl_attention,
)
from attnverify.contract.shapes import check

from ..alibi import slopes
from ..arrays import ARRAYS, Array, narrow
from ..attention import Keep, Mask
from ..relative import Visible
from .kernel_arguments import (
    blank,
    check_lengths,
    check_supported,
    check_width,
    has_rows,
    is_added,
    packed,
    spread,
    tensor,
)
from .kernel_configs import instance
from .launch import launch

__all__ = [
    "alibi_attention_cuda",
    "alibi_attention_grad_cuda",
    "learned_relative_attention_cuda",
    "learned_relative_attention_grad_cuda",
    "scaled_dot_product_attention_cuda",
    "scaled_dot_product_attention_grad_cuda",
    "transformer_xl_attention_cuda",
    "transformer_xl_attention_grad_cuda",
]

HeadsOut = Float[Array, "B H N E"]


def scaled_dot_product_attention_cuda(
    query: Float[Array, "B H N D"],
    key: Float[Array, "B H M D"],
    value: Float[Array, "B H M E"],
    mask: Mask = None,
    keep: Keep = None,
    p: float = 0.0,
) -> HeadsOut:
    """As :func:`spec.attention.scaled_dot_product_attention`."""
    check_attention(ARRAYS, query, key, value, mask, keep, p)
    return Attention(query, key, value, mask, keep, share=1 / (1 - p)).forward()[0]


def scaled_dot_product_attention_grad_cuda(
    d_output: Float[Array, "B H N E"],
    query: Float[Array, "B H N D"],
    key: Float[Array, "B H M D"],
    value: Float[Array, "B H M E"],
    mask: Mask = None,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Array, ...]:
    """
    As :func:`spec.attention.scaled_dot_product_attention_grad`: three kernels, the scores computed
    anew.
    """
    check(ARRAYS, D_HEADS, d_output, **check_attention(ARRAYS, query, key, value, mask, keep, p))
    given = Attention(query, key, value, mask, keep, share=1 / (1 - p))
    grads = given.backward(d_output)
    return tuple(
        grads[name] for name in ("query", "key", "value", *(("mask",) if is_added(mask) else ()))
    )


def alibi_attention_cuda(
    query: Float[Array, "B H N D"],
    key: Float[Array, "B H M D"],
    value: Float[Array, "B H M E"],
    visible: Visible = None,
) -> HeadsOut:
    """As :func:`spec.alibi.alibi_attention`: the bias is made pair by pair from the slopes."""
    return with_slopes(query, key, value, visible).forward()[0]


def alibi_attention_grad_cuda(
    d_output: Float[Array, "B H N E"],
    query: Float[Array, "B H N D"],
    key: Float[Array, "B H M D"],
    value: Float[Array, "B H M E"],
    visible: Visible = None,
) -> tuple[Array, ...]:
    """As :func:`spec.alibi.alibi_attention_grad`."""
    check(ARRAYS, D_HEADS, d_output, **check_visible_heads(ARRAYS, query, key, value, visible))
    grads = with_slopes(query, key, value, visible).backward(d_output)
    return grads["query"], grads["key"], grads["value"]


def with_slopes(query: Array, key: Array, value: Array, visible: Visible) -> "Attention":
    size = check_visible_heads(ARRAYS, query, key, value, visible)
    of_heads = slopes(cupy.get_array_module(query), size["H"]).astype("float32")
    return Attention(query, key, value, visible, causal=True, slopes=of_heads)


def transformer_xl_attention_cuda(
    query: Float[Array, "B H N D"],
    key: Float[Array, "B H M D"],
    value: Float[Array, "B H M E"],
    position: Float[Array, "H M D"],
    u: Float[Array, "H D"],
    v: Float[Array, "H D"],
    visible: Visible = None,
) -> HeadsOut:
    """
    As :func:`spec.relative.transformer_xl_attention`: the shift is a rolling band of position rows.
    """
    return with_positions(query, key, value, position, u, v, visible).forward()[0]


def transformer_xl_attention_grad_cuda(
    d_output: Float[Array, "B H N E"],
    query: Float[Array, "B H N D"],
    key: Float[Array, "B H M D"],
    value: Float[Array, "B H M E"],
    position: Float[Array, "H M D"],
    u: Float[Array, "H D"],
    v: Float[Array, "H D"],
    visible: Visible = None,
) -> tuple[Array, ...]:
    """
    As :func:`spec.relative.transformer_xl_attention_grad`; the sums over queries by float32 atomic
    additions.
    """
    size = check_xl_attention(ARRAYS, (query, key, value), (position, u, v), visible)
    check(ARRAYS, D_HEADS, d_output, **size)
    grads = with_positions(query, key, value, position, u, v, visible).backward(d_output)
    return tuple(grads[name] for name in ("query", "key", "value", "table", "content", "distance"))


def with_positions(
    query: Array, key: Array, value: Array, position: Array, u: Array, v: Array, visible: Visible
) -> "Attention":
    size = check_xl_attention(ARRAYS, (query, key, value), (position, u, v), visible)
    return Attention(
        query,
        key,
        value,
        visible,
        causal=True,
        content=u,
        distance=v,
        table=position,
        first=size["N"] - 1,
    )


def learned_relative_attention_cuda(
    query: Float[Array, "B H N D"],
    key: Float[Array, "B H M D"],
    value: Float[Array, "B H M E"],
    key_pos_embeddings: Float[Array, "2P H D"],
    key_pos_bias: Float[Array, "2P H"],
    query_pos_bias: Float[Array, "H D"],
    align: str,
    visible: Visible = None,
) -> HeadsOut:
    """
    As :func:`spec.relative.learned_relative_attention`, by the kernel of
    :func:`transformer_xl_attention_cuda`.
    """
    return with_tables(
        query, key, value, key_pos_embeddings, key_pos_bias, query_pos_bias, align, visible
    ).forward()[0]


def learned_relative_attention_grad_cuda(
    d_output: Float[Array, "B H N E"],
    query: Float[Array, "B H N D"],
    key: Float[Array, "B H M D"],
    value: Float[Array, "B H M E"],
    key_pos_embeddings: Float[Array, "2P H D"],
    key_pos_bias: Float[Array, "2P H"],
    query_pos_bias: Float[Array, "H D"],
    align: str,
    visible: Visible = None,
) -> tuple[Array, ...]:
    """As :func:`spec.relative.learned_relative_attention_grad`."""
    tables = key_pos_embeddings, key_pos_bias, query_pos_bias
    size = check_learned_attention(ARRAYS, (query, key, value), tables, align, visible)
    check(ARRAYS, D_HEADS, d_output, **size)
    grads = with_tables(query, key, value, *tables, align, visible).backward(d_output)
    shared = grads["table"].swapaxes(0, 1), grads["bias"].T, grads["content"]
    return grads["query"], grads["key"], grads["value"], *shared


def with_tables(
    query: Array,
    key: Array,
    value: Array,
    embeddings: Array,
    bias: Array,
    query_bias: Array,
    align: str,
    visible: Visible,
) -> "Attention":
    tables = embeddings, bias, query_bias
    size = check_learned_attention(ARRAYS, (query, key, value), tables, align, visible)
    first = size["P"] - (size["M"] - size["N"] if align == "end" else 0)
    table = embeddings.swapaxes(0, 1)
    return Attention(
        query, key, value, visible, content=query_bias, table=table, bias=bias.T, first=first
    )


@dataclass(frozen=True, eq=False)
class Attention:
    """
    What the kernels are given, checked already.

    ``mask`` and ``keep`` broadcast to [B H N M]; ``table`` [H rows D] and ``bias`` [H rows] are
    position rows, of which the pair (i, j) reads row ``first`` - i + j; ``content`` and
    ``distance`` [H D] are added to the queries for the one score and the other; ``share`` is 1 /
    (1 - p). NotImplementedError says what the kernels cannot do, before anything runs.
    """

    query: Array
    key: Array
    value: Array
    mask: Mask = None
    keep: Keep = None
    causal: bool = False
    slopes: Array | None = None
    content: Array | None = None
    distance: Array | None = None
    table: Array | None = None
    bias: Array | None = None
    first: int = 0
    share: float = 1.0

    def __post_init__(self) -> None:
        floats = (
            self.query,
            self.key,
            self.value,
            self.content,
            self.distance,
            self.table,
            self.bias,
        )
        check_supported(
            *floats, *((self.mask,) if is_added(self.mask) else ()), others=(self.mask, self.keep)
        )
        check_width(self.query.shape[-1], self.value.shape[-1])
        check_lengths(self.query.shape[-2], self.key.shape[-2])

    @property
    def arrays(self) -> ModuleType:
        return cupy.get_array_module(self.query)

    @property
    def differs_by_row(self) -> bool:
        """Whether some rows may see a key that others do not."""
        return self.query.shape[2] > 1 and (self.causal or has_rows(self.mask))

    def forward(self) -> tuple[HeadsOut, Float[Array, "B H N"]]:
        """The output, and of every row the logarithm of the sum of exponentials."""
        out = blank((*self.query.shape[:-1], self.value.shape[-1]), self.query)
        lse = blank(self.query.shape[:-1], self.query, "float32")
        self.run("forward", self.query.shape[2], out=out, lse=lse)
        if self.differs_by_row:
            self.run("repair", self.query.shape[2], source="repair.cu", out=out, lse=lse)
        return out, lse

    def backward(self, d_output: HeadsOut) -> dict[str, Array]:
        """The gradients of all inputs that are there."""
        check_supported(self.query, d_output)
        out, lse = self.forward()
        own = {
            name: blank(x.shape, x)
            for name, x in (("query", self.query), ("key", self.key), ("value", self.value))
        }
        factors = {
            "mask": self.mask if is_added(self.mask) else None,
            "content": self.content,
            "distance": self.distance,
        }
        factors |= {"table": self.table, "bias": self.bias}
        shared = {name: x for name, x in factors.items() if x is not None}
        sums = {name: self.arrays.zeros(x.shape, "float32") for name, x in shared.items()}
        # both kernels are given the same: what the one leaves in delta the other reads
        given = {"out": out, "lse": lse, "d_out": d_output, "delta": blank(lse.shape, lse), **own}
        self.run("backward_query", self.query.shape[2], **given, sums=sums)
        self.run("backward_key", self.key.shape[2], **given, sums=sums)
        return own | {name: narrow(x, shared[name].dtype) for name, x in sums.items()}

    def run(
        self,
        kernel: str,
        rows: int,
        sums: dict[str, Array] | None = None,
        source: str = "attention.cu",
        **given: Array,
    ) -> None:
        (B, H, N, D), (M, E), sums = self.query.shape, self.value.shape[-2:], sums or {}
        masked = self.mask is not None or self.keep is not None
        made = instance(
            source,
            self.query.dtype.name,
            max(D, E),
            self.table is not None,
            masked,
            self.arrays is cupy,
        )
        full = (B, H, N, M)
        mask, keep, d_mask = (spread(x, full) for x in (self.mask, self.keep, sums.get("mask")))
        tensors = [
            *(
                tensor(x, name)
                for x, name in ((self.query, "query"), (self.key, "key"), (self.value, "value"))
            ),
            tensor(given["out"], "output"),
            tensor(given["lse"], "log-sum-exp", "bhi"),
            tensor(mask, "mask"),
            tensor(keep, "keep"),
            tensor(self.slopes, "slopes", "h"),
            tensor(self.content, "content bias", "hj"),
            tensor(self.distance, "distance bias", "hj"),
            tensor(self.table, "table", "hij"),
            tensor(self.bias, "table bias", "hi"),
            tensor(given.get("d_out"), "gradient of the output"),
            tensor(given.get("delta"), "delta", "bhi"),
            *(tensor(given.get(name), f"gradient of {name}") for name in ("query", "key", "value")),
            tensor(d_mask, "gradient of the mask"),
            tensor(sums.get("content"), "gradient of the content bias", "hj"),
            tensor(sums.get("distance"), "gradient of the distance bias", "hj"),
            tensor(sums.get("table"), "gradient of the table", "hij"),
            tensor(sums.get("bias"), "gradient of the table bias", "hi"),
        ]
        of_rows = kernel == "backward_query" and self.differs_by_row
        hiding = mask is not None or of_rows or (self.causal and N > M)
        table_rows = 0 if self.table is None else self.table.shape[1]
        whole = [H, N, M, D, E, table_rows, self.first, self.causal, is_added(self.mask), hiding]
        launch(
            made,
            kernel,
            (B * H, -(-rows // made.rows(kernel))),
            packed(tensors, whole, [1 / sqrt(D), self.share]),
            self.arrays is cupy,
        )
