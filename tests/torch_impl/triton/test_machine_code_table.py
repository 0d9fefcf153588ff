"""
Loops of machine code are found and counted, the table is printed beside its goals, and blocks are
chosen by it.
"""

from itertools import product

import pytest

from attnverify.ptx.sass import Line
from attnverify.torch_impl.triton.kernels.block_sizes import Blocks, of_gpu
from benchmarks.machine_code import __main__ as command
from benchmarks.machine_code.choose_blocks import SHARED, candidates, choose, find_rows
from benchmarks.machine_code.loops import (
    find_fast_feature_loop,
    find_feature_gradient_loop,
    find_feature_loop,
    find_pair_loop,
)
from benchmarks.machine_code.table import (
    GOALS,
    Row,
    count_programs,
    find_tangent_rows,
    find_triton_row,
    megabytes_of_a_wave,
)
from benchmarks.machine_code.triton_kernels import KERNELS

PRODUCT = "HGMMA.64x64x16.F32.BF16 R24, gdesc[UR8], R24, gsb0"


def lines(*texts: str) -> list[Line]:
    return [Line(16 * place, text) for place, text in enumerate(texts)]


LONG = (PRODUCT, "FMUL R1, R1, R2", "MUFU.EX2 R1, R1", "FADD R1, R1, R2", "@P0 BRA 0x0")
SHORT = (PRODUCT, "MUFU.EX2 R1, R1", "@!P1 BRA 0x50")


def test_of_two_loops_over_tiles_the_shorter_is_counted() -> None:
    loop = find_pair_loop(lines(*LONG, *SHORT, "EXIT"))
    assert (loop.counts.total(), loop.count("HGMMA"), loop.count("FMUL")) == (3, 1, 0)


def test_a_loop_of_fewer_products_is_no_loop_over_tiles() -> None:
    twice = lines(PRODUCT, *LONG[:-1], "@P0 BRA 0x0", *("MUFU.EX2 R1, R1", "@P1 BRA 0x60"))
    assert find_pair_loop(twice).count("HGMMA") == 2


def test_what_goes_around_a_loop_over_tiles_is_none() -> None:
    """A branch from code far behind leads back too: two loops would be counted as one."""
    code = lines(*SHORT[:2], "@P1 BRA 0x0", *LONG[:-1], "@P0 BRA 0x30", "@P2 BRA 0x0")
    assert find_pair_loop(code).counts.total() == 3


WARP = "HMMA.16816.F32.BF16 R4, R8, R12, R4"
COMPARED_FIRST = (WARP, "ISETP.GE.AND P2, PT, R9.reuse, 0xc, PT", "VIADD R9, R9, 0x4")
MOVED_FIRST = (WARP, "IADD3 R9, R9, 0x1, RZ", "ISETP.NE.AND P2, PT, R9, 0x8, PT")


def around(*inner: str) -> list[Line]:
    """A loop over tiles with another inside, of three instructions and a branch."""
    return lines("MUFU.EX2 R1, R1", *inner, "@!P2 BRA 0x10", "@P0 BRA 0x0", "EXIT")


@pytest.mark.parametrize(("inner", "turns"), [(COMPARED_FIRST, 4), (MOVED_FIRST, 8)])
def test_a_loop_inside_of_a_step_counts_as_often_as_it_turns(
    inner: tuple[str, ...], turns: int
) -> None:
    loop = find_pair_loop(around(*inner))
    assert (loop.counts.total(), loop.count("HMMA")) == (2 + 4 * turns, turns)


def test_what_only_clears_is_counted_once() -> None:
    code = lines(WARP, "MUFU.EX2 R1, R1", "STS.U16 [R2], RZ", "@!P2 BRA 0x20", "@P0 BRA 0x0")
    assert find_pair_loop(code).counts.total() == 5


@pytest.mark.parametrize(
    "limit", ["ISETP.GE.AND P2, PT, R9, R3, PT", "ISETP.GE.AND P3, PT, R9, 0xc, PT"]
)
def test_a_loop_of_unknown_length_is_not_counted_as_one(limit: str) -> None:
    with pytest.raises(ValueError, match="wanted a counter held to a number"):
        find_pair_loop(around(WARP, limit, "VIADD R9, R9, 0x4"))


def test_a_tile_takes_the_clocks_of_its_instructions() -> None:
    loop = find_pair_loop(lines(*SHORT[:2], "@P1 BRA 0x0"))
    assert (loop.issue(4), loop.tensor(4), loop.special(4)) == (3.0, 32.0, 8.0)
    assert (loop.issue(8), loop.tensor(8)) == (6.0, 64.0)


def test_the_loop_over_features_is_the_one_of_reciprocals() -> None:
    code = lines("MUFU.RCP R1, R1", "FADD R1, R1, R2", "@P1 BRA 0x0", *LONG)
    assert find_feature_loop(code).counts.total() == 3


def test_the_fast_loop_over_features_takes_no_exponential() -> None:
    slow = ("MUFU.RCP R1, R1", "MUFU.EX2 R1, R1", "@P1 BRA 0x0")
    fast = ("MUFU.RCP R1, R1", "FADD R1, R1, R2", "FADD R1, R1, R3", "@P1 BRA 0x30")
    assert find_fast_feature_loop(lines(*slow, *fast)).counts.total() == 4
    assert find_feature_loop(lines(*slow, *fast)).counts.total() == 3


def test_the_loop_that_sums_gradients_of_features_is_the_one_that_adds_to_memory() -> None:
    scores = ("MUFU.RCP R1, R1", "@P1 BRA 0x0")
    grads = ("MUFU.RCP R1, R1", "FADD R1, R1, R2", "RED.E.ADD.F32 [R2], R1", "@P1 BRA 0x20")
    code = lines(*scores, *grads, "EXIT")
    assert find_feature_gradient_loop(code).counts.total() == 4
    assert find_feature_loop(code).counts.total() == 2


def test_a_missed_goal_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        Row("forward", "64 x 64", 99, 0, 16.0, GOALS["forward"] + over, 256.0, 272.0)
        for over in (0, 7)
    ]
    monkeypatch.setattr(command, "find_rows", lambda wanted, width: iter(rows))
    assert command.main([]) == 0
    printed = capsys.readouterr().out
    assert "300 reached" in printed and "300 missed by 7" in printed


def test_a_wave_reads_the_keys_and_values_of_few_heads() -> None:
    """132 blocks of 128 of 2048 rows are those of 9 heads, of 1 MiB of keys and values at D 128."""
    assert megabytes_of_a_wave(1, 128, 128, False) == 9 * 2**20 / 1e6
    assert megabytes_of_a_wave(1, 128, 128, True) == 18 * 2**20 / 1e6
    assert megabytes_of_a_wave(3, 2048, 64, False) == 256 * 2**19 / 1e6  # as many as there are


@pytest.mark.parametrize(
    ("warps", "registers", "shared", "programs"),
    [(8, 198, 80.0, 1), (4, 225, 24.0, 2), (4, 128, 113.0, 2), (16, 32, 1.0, 4)],
)
def test_registers_memory_or_warps_limit_the_programs_of_a_processor(
    warps: int, registers: int, shared: float, programs: int
) -> None:
    assert count_programs(warps, registers, shared) == programs


def of_blocks(
    blocks: Blocks, spilled: int, issue: float, shared: float = 16.0
) -> tuple[Blocks, Row]:
    return blocks, Row("forward", "", 99, spilled, shared, issue, 0.0, 0.0)


def test_the_blocks_of_fewest_slots_are_chosen_of_those_that_spill_least() -> None:
    fast, slow, spills = Blocks(128, 128, 8, 2), Blocks(64, 64, 4, 2), Blocks(128, 64, 4, 1)
    rows = [of_blocks(slow, 0, 330), of_blocks(fast, 0, 234), of_blocks(spills, 8, 200)]
    assert choose(rows) == fast
    assert choose([of_blocks(slow, 0, 234), of_blocks(fast, 0, 234, 80.0)]) == slow


def test_relative_kernels_are_given_square_blocks() -> None:
    assert all(one.queries == one.keys for one in candidates("forward, learned"))
    assert {(64, 64, 4, 1), (128, 128, 8, 2)} <= {tuple(one)[:4] for one in candidates("forward")}


@pytest.mark.parametrize("name", KERNELS)
def test_the_table_has_no_blocks_that_the_script_does_not_try(name: str) -> None:
    which, scores = KERNELS[name][1:3]
    tried = {tuple(one)[:4] for one in candidates(name)}
    for arch, half, width in product(SHARED, (True, False), (64, 128, 256)):
        assert tuple(of_gpu(which, scores, half, width, arch))[:4] in tried


def test_the_slots_of_an_additive_kernel_are_those_of_all_its_loops() -> None:
    rows = {row.name: row for row in find_tangent_rows("additive")}
    whole = find_triton_row("gradients, additive")
    parts = [row.issue for name, row in rows.items() if "gradients" in name]
    assert len(parts) == 2 and whole.issue == pytest.approx(sum(parts))
    assert find_triton_row("forward, additive").issue == rows["tangent, additive"].issue


def test_the_blocks_of_additive_gradients_are_those_that_the_script_chooses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of those nearby: all of them take minutes."""
    chosen = of_gpu("backward", "additive", True, 64, 90)
    near = [chosen, Blocks(32, 128, 8, 1), Blocks(64, 64, 8, 1), Blocks(16, 64, 4, 1)]
    monkeypatch.setattr("benchmarks.machine_code.choose_blocks.candidates", lambda name: near)
    assert choose(find_rows("gradients, additive")) == chosen
