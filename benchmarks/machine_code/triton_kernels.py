"""
The Triton kernels of torch_impl, compiled for GPUs that are not here, as the launcher would have
them compiled for aligned tensors.
"""

import re
import subprocess
import tempfile
from typing import Any

import triton

from attnverify.torch_impl.triton.kernels import additive, attention, block_sizes, launch

__all__ = ["KERNELS", "OPTIONAL", "compile_kernel", "find_resources"]

OPTIONAL = {
    "MASK",
    "KEEP",
    "SLOPES",
    "U",
    "W",
    "QW",
    "R",
    "S",
    "DM",
    "DMN",
    "DMM",
    "DU",
    "DW",
    "DR",
    "DS",
}
FLOAT32 = {
    "LSE",
    "DELTA",
    "SLOPES",
    "DM",
    "DMN",
    "DMM",
    "DU",
    "DW",
    "DR",
    "DS",
    "ZQ",
    "ZK",
    "XQ",
    "XK",
    "DZQ",
    "DZK",
    "DWS",
}
WIDTHS = {"D", "E", "A", "rows_n", "rows_m"}
INTEGERS = {*WIDTHS, *launch.VARYING}
XL, LEARNED = {"U", "W", "R"}, {"U", "R", "S"}
XL_GRADIENTS = {"QW", "R", "DU", "DW", "DR"}
LEARNED_GRADIENTS = {"QW", "R", "S", "DU", "DR", "DS"}
KERNELS: dict[str, tuple[launch.Kernel, str, str, set[str]]] = {
    "forward": (attention.forward, "forward", "plain", set()),
    "forward, ALiBi": (attention.forward, "forward", "plain", {"SLOPES"}),
    "forward, mask": (attention.forward, "forward", "masked", {"MASK"}),
    "forward, Transformer-XL": (attention.forward, "forward", "relative", XL),
    "forward, learned": (attention.forward, "forward", "relative", LEARNED),
    "forward, additive": (additive.additive_forward, "forward", "additive", set()),
    "gradient of queries": (attention.backward_query, "backward", "plain", set()),
    "gradient of queries, mask": (attention.backward_query, "backward", "masked", {"MASK", "DM"}),
    "gradient of queries, Transformer-XL": (
        attention.backward_query,
        "backward",
        "relative",
        XL_GRADIENTS,
    ),
    "gradient of keys": (attention.backward_key, "backward keys", "plain", set()),
    "gradient of keys, mask": (attention.backward_key, "backward keys", "masked", {"MASK"}),
    "gradient of keys, Transformer-XL": (
        attention.backward_key,
        "backward keys",
        "relative",
        XL_GRADIENTS,
    ),
    "gradient of rows, Transformer-XL": (
        attention.backward_table,
        "backward rows",
        "relative",
        XL_GRADIENTS,
    ),
    "gradients, additive": (additive.additive_backward, "backward", "additive", set()),
}
"""Each with its column of the table of blocks and the optional arguments that it is given."""

TABLE = KERNELS | {
    f"gradient of {by}, learned": (*KERNELS[f"gradient of {by}, Transformer-XL"][:3], given)
    for by, given in (("queries", LEARNED_GRADIENTS), ("keys", LEARNED_GRADIENTS))
}
"""The same, with the gradients of learned positions."""


def _find_kind(
    kernel: launch.Kernel, name: str, given: set[str], dtype: str, constants: dict[str, Any]
) -> tuple[Any, Any]:
    """The type of a kernel's argument, and its value where that is known to the compiler."""
    if name in constants or (name in OPTIONAL and name not in given):
        return "constexpr", constants.get(name)
    if name.endswith("_"):
        return (*("i32",) * 3, "constexpr"), 1
    if name in FLOAT32 or (name == "DV" and kernel is additive.additive_backward):
        return "*fp32", None
    masks = {
        "MASK": "*i1" if "DM" not in given else f"*{dtype}",
        "KEEP": "*i1",
        "scale": "fp32",
        "share": "fp32",
    }
    return masks.get(name, "i32" if name in INTEGERS else f"*{dtype}"), None


def compile_kernel(
    kernel: launch.Kernel,
    given: set[str],
    chosen: block_sizes.Blocks,
    arch: int,
    dtype: str,
    D: int,
    aligned: bool = True,
    **flags: Any,
) -> Any:
    """
    A kernel compiled for heads of this width, told what the launcher tells of aligned tensors, or
    nothing, as of all others.
    """
    E = min(D, additive.COLUMNS) if kernel is additive.additive_backward else D
    constants = {
        "CAUSAL": True,
        "HIDING": False,
        "OVER_N": False,
        "OVER_M": False,
        "BLOCK_D": D,
        "BLOCK_E": E,
    } | flags
    constants |= {"BLOCK_N": chosen.queries, "BLOCK_M": chosen.keys}
    kinds = {name: _find_kind(kernel, name, given, dtype, constants) for name in kernel.arg_names}
    known: dict[tuple[int, ...], Any] = {}
    sixteenfold: list[tuple[int, ...]] = []
    if not aligned:  # as launch.without_hints writes strides
        kinds = {name: (("i32",) * 5, 0) if name.endswith("_") else x for name, x in kinds.items()}
    for place, (name, (of, value)) in enumerate(kinds.items()):
        if isinstance(of, tuple) and not aligned:
            continue
        if isinstance(of, tuple):
            known[place, len(of) - 1] = value
            sixteenfold += [(place, axis) for axis in range(len(of) - 1)]
        elif of == "constexpr":
            known[(place,)] = value
        elif aligned and (of.startswith("*") or name in WIDTHS):
            sixteenfold.append((place,))
    attributes = {place: [["tt.divisibility", 16]] for place in sixteenfold}
    source = triton.compiler.ASTSource(
        kernel, {name: of for name, (of, _) in kinds.items()}, known, attributes
    )
    target = triton.backends.compiler.GPUTarget("cuda", arch, 32)
    return triton.compile(source, target=target, options=chosen.options)


def find_resources(cubin: bytes) -> tuple[int, int]:
    """Registers of a thread and bytes that it spills."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = triton.knobs.nvidia.cuobjdump.path
        text = subprocess.run(
            [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    registers, stack = re.findall(r"REG:(\d+) STACK:(\d+)", text)[-1]
    return int(registers), int(stack)
