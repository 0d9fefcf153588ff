"""Matrix products: of a warp (mma.sync, ldmatrix; wmma), and of four warps (wgmma)."""

from attnverify.ptx.instructions.matrix import mma, wgmma, wmma

__all__ = ["mma", "wgmma", "wmma"]
