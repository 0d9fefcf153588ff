"""Special registers: where a thread is."""

from typing import TYPE_CHECKING, Any

import numpy as np

from attnverify.ptx.kinds import Array

if TYPE_CHECKING:
    from attnverify.ptx.execution.machine import Machine

__all__ = ["special_register"]

WARP = 32


def special_register(m: "Machine", name: str) -> Array:
    """Find a special register, without the % of its name."""
    lane = m.thread % WARP
    one = np.int64(1)
    plain: dict[str, Any] = {
        "laneid": lane,
        "warpid": m.warp,
        "nwarpid": np.array([m.width // WARP]),
        "dynamic_smem_size": np.array([m.setup.shared]),
        "lanemask_eq": one << lane,
        "lanemask_lt": (one << lane) - 1,
        "lanemask_le": (one << (lane + 1)) - 1,
        "lanemask_gt": (one << 32) - (one << (lane + 1)),
        "lanemask_ge": (one << 32) - (one << lane),
    }
    if name in plain:
        return np.asarray(plain[name])
    of, axis = name.split(".")
    place = "xyz".index(axis)
    if of in ("ntid", "nctaid"):
        return np.array([(m.setup.threads if of == "ntid" else m.setup.grid)[place]])
    number, sizes = (
        (m.thread, m.setup.threads) if of == "tid" else (m.blocks[m.block], m.setup.grid)
    )
    return np.asarray(number // int(np.prod(sizes[:place])) % sizes[place])
