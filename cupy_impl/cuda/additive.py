"""
Additive attention by fused kernels in CUDA C++: the specification is :mod:`spec.attention`.

Queries and keys are projected in float32 by matrix products, and all else happens block by block in
``kernels/additive.cu``: no N x M array exists, let alone N x M x A. Where the kernels run is said
in :mod:`cupy_impl.cuda.attention`.
"""

from dataclasses import dataclass
from functools import cached_property
from types import ModuleType

import cupy
from jaxtyping import Float

from attnverify.contract.attention import D_ADDITIVE, check_additive
from attnverify.contract.shapes import check

from ..arrays import ARRAYS, Array, ieee, narrow
from ..attention import Keep, Mask
from ..scores import over_rows
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

__all__ = ["additive_attention_cuda", "additive_attention_grad_cuda"]

LARGEST = 10
"""Projections up to here are multiplied as exponentials: four make exp(80), which is finite."""


@ieee
def additive_attention_cuda(
    query: Float[Array, "B N Q"],
    key: Float[Array, "B M K"],
    value: Float[Array, "B M E"],
    w_query: Float[Array, "A Q"],
    w_key: Float[Array, "A K"],
    w_score: Float[Array, "A"],
    mask: Mask = None,
    keep: Keep = None,
    p: float = 0.0,
) -> Float[Array, "B N E"]:
    """As :func:`spec.attention.additive_attention`."""
    inputs = query, key, value, w_query, w_key, w_score
    check_additive(ARRAYS, inputs, mask, keep, p)
    return Additive(*inputs, mask, keep, 1 / (1 - p)).forward()[0]


@ieee
def additive_attention_grad_cuda(
    d_output: Float[Array, "B N E"],
    query: Float[Array, "B N Q"],
    key: Float[Array, "B M K"],
    value: Float[Array, "B M E"],
    w_query: Float[Array, "A Q"],
    w_key: Float[Array, "A K"],
    w_score: Float[Array, "A"],
    mask: Mask = None,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Array, ...]:
    """
    As :func:`spec.attention.additive_attention_grad`: three kernels around the projections, the
    tangents computed anew.
    """
    inputs = query, key, value, w_query, w_key, w_score
    check(ARRAYS, D_ADDITIVE, d_output, **check_additive(ARRAYS, inputs, mask, keep, p))
    return Additive(*inputs, mask, keep, 1 / (1 - p)).backward(d_output)


@dataclass(frozen=True, eq=False)
class Additive:
    """What the kernels are given, checked already; ``share`` is 1 / (1 - p)."""

    query: Array
    key: Array
    value: Array
    w_query: Array
    w_key: Array
    w_score: Array
    mask: Mask = None
    keep: Keep = None
    share: float = 1.0

    def __post_init__(self) -> None:
        mask = (self.mask,) if is_added(self.mask) else ()
        check_supported(
            self.query,
            self.key,
            self.value,
            self.w_query,
            self.w_key,
            self.w_score,
            *mask,
            others=(self.mask, self.keep),
        )
        check_width(self.value.shape[-1])
        check_lengths(self.query.shape[-2], self.key.shape[-2])

    @property
    def arrays(self) -> ModuleType:
        return cupy.get_array_module(self.query)

    @cached_property
    def projected(self) -> tuple[Float[Array, "B N A"], Float[Array, "B M A"]]:
        query, w_query, key, w_key = (
            x.astype("float32") for x in (self.query, self.w_query, self.key, self.w_key)
        )
        return query @ w_query.T, key @ w_key.T

    @cached_property
    def exponentials(self) -> tuple[Float[Array, "B N A"], Float[Array, "B M A"]]:
        """
        exp(2z) of the projections; NaN beyond :data:`LARGEST`, which tells the kernels to take the
        projections themselves.
        """
        xp = self.arrays
        query, key = (
            xp.where(abs(z) <= LARGEST, xp.exp(2 * z), xp.float32("nan")) for z in self.projected
        )
        return query, key

    @cached_property
    def weights(self) -> Float[Array, "A"]:
        return self.w_score.astype("float32")  # kept: a kernel is given its address alone

    def forward(self) -> tuple[Float[Array, "B N E"], Float[Array, "B N"]]:
        """The output, and of every row the logarithm of the sum of exponentials."""
        out = blank((*self.query.shape[:2], self.value.shape[-1]), self.value)
        lse = blank(self.query.shape[:2], self.value, "float32")
        rows = self.query.shape[1]
        self.run("additive_forward", rows, out=out, lse=lse)
        if rows > 1 and has_rows(self.mask):
            self.run("additive_repair", rows, source="additive_repair.cu", out=out, lse=lse)
        return out, lse

    def backward(self, d_output: Float[Array, "B N E"]) -> tuple[Array, ...]:
        """The gradients of all six inputs, and of a float mask."""
        check_supported(self.value, d_output)
        out, lse = self.forward()
        z_query, z_key = self.projected
        shapes = {"query": z_query.shape, "key": z_key.shape, "weights": self.w_score.shape}
        if self.mask is not None and is_added(self.mask):
            shapes["mask"] = self.mask.shape
        sums = {name: self.arrays.zeros(shape, "float32") for name, shape in shapes.items()}
        d_value = blank(self.value.shape, self.value)
        given = {
            "out": out,
            "lse": lse,
            "d_out": d_output,
            "delta": blank(lse.shape, lse),
            "value": d_value,
            "sums": sums,
        }
        self.run("additive_backward_query", self.query.shape[1], **given)
        self.run("additive_backward_key", self.key.shape[1], **given)
        query, key, w_query, w_key = (
            x.astype("float32") for x in (self.query, self.key, self.w_query, self.w_key)
        )
        projections = (
            over_rows(sums["query"], self.finite(query)),
            over_rows(sums["key"], self.finite(key)),
        )
        grads = (
            sums["query"] @ w_query,
            sums["key"] @ w_key,
            d_value,
            *projections,
            sums["weights"],
            *((sums["mask"],) if is_added(self.mask) else ()),
        )
        return tuple(narrow(x, self.query.dtype) for x in grads)

    def finite(self, x: Array) -> Array:
        """
        x without NaN and infinity: a visible pair has carried them to the gradient beside it, and
        what is hidden must not.
        """
        return self.arrays.where(self.arrays.isfinite(x), x, 0)

    def run(
        self,
        kernel: str,
        rows: int,
        sums: dict[str, Array] | None = None,
        source: str = "additive.cu",
        **given: Array,
    ) -> None:
        (B, N, A), M, E = self.projected[0].shape, self.key.shape[1], self.value.shape[-1]
        masked = self.mask is not None or self.keep is not None
        made = instance(source, self.value.dtype.name, E, False, masked, self.arrays is cupy)
        mask, keep, d_mask = (
            spread(x, (B, N, M)) for x in (self.mask, self.keep, (sums or {}).get("mask"))
        )
        (z_query, z_key), (x_query, x_key) = self.projected, self.exponentials
        tensors = [
            tensor(z_query, "projected query", "bij"),
            tensor(z_key, "projected key", "bij"),
            tensor(x_query, "exponentials of the query", "bij"),
            tensor(x_key, "exponentials of the key", "bij"),
            tensor(self.weights, "weights", "j"),
            tensor(self.value, "value", "bij"),
            tensor(given["out"], "output", "bij"),
            tensor(given["lse"], "log-sum-exp", "bi"),
            tensor(mask, "mask", "bij"),
            tensor(keep, "keep", "bij"),
            tensor(given.get("d_out"), "gradient of the output", "bij"),
            tensor(given.get("delta"), "delta", "bi"),
            *(
                tensor((sums or {}).get(name), f"gradient of the projected {name}", "bij")
                for name in ("query", "key")
            ),
            tensor((sums or {}).get("weights"), "gradient of the weights", "j"),
            tensor(given.get("value"), "gradient of value", "bij"),
            tensor(d_mask, "gradient of the mask", "bij"),
        ]
        params = packed(tensors, [N, M, A, E, is_added(self.mask), mask is not None], [self.share])
        launch(made, kernel, (B, -(-rows // made.own)), params, self.arrays is cupy)
