"""Matrix products: of a warp (mma.sync, ldmatrix), and of four warps (wgmma)."""

from attnverify.ptx.instructions.matrix import mma, wgmma

__all__ = ["mma", "wgmma"]
