"""Products of matrices by descriptors: persistent in Triton, by specialised warps in Gluon."""

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

__all__ = ["given_maps", "grouped", "persistent", "specialised"]


@triton.jit  # type: ignore[untyped-decorator]
def persistent(x, y, z, M, N, K, SIDE: tl.constexpr, STEP: tl.constexpr, PROGRAMS: tl.constexpr):  # type: ignore[no-untyped-def]
    """z [M N] = x [M K] times y [N K]; the kernel makes the maps, a program takes several tiles."""
    of_x = tl.make_tensor_descriptor(x, [M, K], [K, 1], [SIDE, STEP])
    of_y = tl.make_tensor_descriptor(y, [N, K], [K, 1], [SIDE, STEP])
    of_z = tl.make_tensor_descriptor(z, [M, N], [N, 1], [SIDE, SIDE])
    across = tl.cdiv(N, SIDE)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, SIDE) * across, PROGRAMS, flatten=True):
        row, column = tile // across * SIDE, tile % across * SIDE
        total = tl.zeros((SIDE, SIDE), tl.float32)
        for k in range(tl.cdiv(K, STEP)):
            left, right = of_x.load([row, k * STEP]), of_y.load([column, k * STEP])
            total = tl.dot(left, right.T, total)
        of_z.store([row, column], total.to(tl.float16))


@triton.jit  # type: ignore[untyped-decorator]
def given_maps(x, y, z, K, SIDE: tl.constexpr, STEP: tl.constexpr):  # type: ignore[no-untyped-def]
    """The same with maps of the host; each program adds its tile to z [M N], float32."""
    row, column = tl.program_id(0) * SIDE, tl.program_id(1) * SIDE
    total = tl.zeros((SIDE, SIDE), tl.float32)
    for k in range(tl.cdiv(K, STEP)):
        total = tl.dot(x.load([row, k * STEP]), y.load([column, k * STEP]).T, total)
    z.atomic_add([row, column], total)


@triton.jit  # type: ignore[untyped-decorator]
def grouped(addresses, sizes, groups, N, K, SIDE: tl.constexpr, STEP: tl.constexpr):  # type: ignore[no-untyped-def]
    """Products of several sizes, whose addresses lie in a tensor; a map for each."""
    for group in range(groups):
        M = tl.load(sizes + group)
        x = tl.load(addresses + 3 * group).to(tl.pointer_type(tl.float16))
        y = tl.load(addresses + 3 * group + 1).to(tl.pointer_type(tl.float16))
        z = tl.load(addresses + 3 * group + 2).to(tl.pointer_type(tl.float16))
        of_x = tl.make_tensor_descriptor(x, [M, K], [K, 1], [SIDE, STEP])
        of_y = tl.make_tensor_descriptor(y, [N, K], [K, 1], [SIDE, STEP])
        of_z = tl.make_tensor_descriptor(z, [M, N], [N, 1], [SIDE, SIDE])
        for tile in range(tl.program_id(0), tl.cdiv(M, SIDE), tl.num_programs(0)):
            total = tl.zeros((SIDE, SIDE), tl.float32)
            for k in range(tl.cdiv(K, STEP)):
                left = of_x.load([tile * SIDE, k * STEP])
                total = tl.dot(left, of_y.load([0, k * STEP]).T, total)
            of_z.store([tile * SIDE, 0], total.to(tl.float16))


@gluon.jit  # type: ignore[untyped-decorator]
def bring(x, y, xs, ys, ready, empty, K, row, column, BUG: gl.constexpr):  # type: ignore[no-untyped-def]
    """One warp brings the factors of each step."""
    STEP: gl.constexpr = x.block_shape[1]
    BUFFERS: gl.constexpr = xs.shape[0]
    for i in range(gl.cdiv(K, STEP)):
        at = i % BUFFERS
        turn = (i // BUFFERS) & 1
        if BUG != "an empty buffer is not waited for":
            mbarrier.wait(empty.index(at), turn ^ 1)
        more: gl.constexpr = 16 if BUG == "too many bytes are expected" else 0
        less: gl.constexpr = 16 if BUG == "too few bytes are expected" else 0
        size: gl.constexpr = x.block_type.nbytes + y.block_type.nbytes
        mbarrier.expect(ready.index(at), size + more - less)
        tma.async_copy_global_to_shared(x, [row, i * STEP], ready.index(at), xs.index(at))
        tma.async_copy_global_to_shared(y, [i * STEP, column], ready.index(at), ys.index(at))


@gluon.jit  # type: ignore[untyped-decorator]
def multiply(z, xs, ys, ready, empty, K, STEP: gl.constexpr, row, column, BUG: gl.constexpr):  # type: ignore[no-untyped-def]
    """Four warps multiply them."""
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16]
    )
    ROWS: gl.constexpr = z.block_shape[0]
    COLUMNS: gl.constexpr = z.block_shape[1]
    total = gl.zeros((ROWS, COLUMNS), gl.float32, layout=layout)
    BUFFERS: gl.constexpr = xs.shape[0]
    for i in range(gl.cdiv(K, STEP)):
        at = i % BUFFERS
        if BUG != "a full buffer is not waited for":
            turn: gl.constexpr = 1 if BUG == "the other parity is waited for" else 0
            mbarrier.wait(ready.index(at), ((i // BUFFERS) & 1) ^ turn)
        if BUG == "freed before it is read":
            mbarrier.arrive(empty.index(at), count=1)
        total = hopper.warpgroup_mma(xs.index(at), ys.index(at), total, is_async=True)
        total = hopper.warpgroup_mma_wait(num_outstanding=0, deps=(total,))
        if BUG != "never freed" and BUG != "freed before it is read":
            mbarrier.arrive(empty.index(at), count=1)
    out = gl.allocate_shared_memory(gl.float16, z.block_type.shape, z.layout)
    out.store(total.to(gl.float16))
    if BUG != "no fence":
        hopper.fence_async_shared()
    tma.async_copy_shared_to_global(z, [row, column], out)
    if BUG != "the result is not waited for":
        tma.store_wait(pendings=0)


@gluon.jit  # type: ignore[untyped-decorator]
def specialised(x, y, z, K, BUFFERS: gl.constexpr, BUG: gl.constexpr):  # type: ignore[no-untyped-def]
    """z = x [M K] times y [K N], by a warp that brings and four that multiply."""
    # ruff: noqa: RUF005 (Triton knows no starred lists)
    xs = gl.allocate_shared_memory(gl.float16, [BUFFERS] + x.block_type.shape, x.layout)
    ys = gl.allocate_shared_memory(gl.float16, [BUFFERS] + y.block_type.shape, y.layout)
    ready = gl.allocate_shared_memory(gl.int64, [BUFFERS, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [BUFFERS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(BUFFERS):
        if BUG != "not initialised" or i == 0:
            mbarrier.init(ready.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    row, column = gl.program_id(0) * z.block_shape[0], gl.program_id(1) * z.block_shape[1]
    STEP: gl.constexpr = x.block_shape[1]
    gl.warp_specialize(
        [
            (multiply, (z, xs, ys, ready, empty, K, STEP, row, column, BUG)),
            (bring, (x, y, xs, ys, ready, empty, K, row, column, BUG)),
        ],
        [1],
        [24],
    )
