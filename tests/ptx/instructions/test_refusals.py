"""What is not understood is refused with its text, wherever in an instruction it stands."""

import pytest

from attnverify import ptx
from attnverify.ptx.decode import decoded
from tests.ptx.small import HEAD, kernel

REGISTERS = """
.reg .pred %p, %p2; .reg .b16 %h, %h2, %h3; .reg .b32 %r, %r2, %r3, %r4; .reg .b64 %d, %d2, %d3;
.reg .f32 %f, %f2, %f3; .shared .align 16 .b8 room[256];
"""
FORMS = {
    "add.u32 %r, %r2": "wanted 3 operands, got 2",
    "mov.b32 %r, 0f1.5": "0f1.5",
    "add.u32 %r, %r2, [%d]": "no value",
    "ld.global.u32 %r, %r2": "wanted an address for operand 2",
    "ld.global.u32 %r, [%h]": "an address in the register %h",
    "add.u32 7, %r, %r2": "no register",
    "add.u64 %r, %d, %d2": "has 32 bits, the type u64",
    "lop3.b32 %r, %r2, %r3, %r4, 256": "a number below 256",
    "lop3.b32 %r, %r2, %r3, %r4, %r": "wanted a number for operand 5",
    "mul.wide.u64 %d, %d2, %d3": "a product of 128 bits",
    "bar.sync 16": "a block has barriers 0 to 15",
    "bra 7": "wanted a label",
    "setp.lt.b32 %p, %r, %r2": "lt of b32",
    "setp.lt.ftz.f64 %p, %d, %d2": ".ftz of f64",
    "setp.lt.f16x2 %p, %r, %r2": "writes two predicates",
    "setp.lt.u32 %p, %r, %r2, %p2": "a fourth operand goes with",
    "set.lt.u32.f16x2 %r, %r2, %r3": "pairs",
    "add.ftz.bf16 %h, %h2, %h3": "bf16",
    "add.relu.f16 %h, %h2, %h3": "relu",
    "min.ftz.f16 %h, %h2, %h3": "halves with .ftz",
    "neg.ftz.f16 %h, %h2": "halves with .ftz",
    "cvt.f32.u32 %f, %r": "wanted one of .rn, .rz, .rm, .rp",
    "cvt.rz.f64.s64 %d, %d2": "float64 in a directed mode",
    "cvt.rn.satfinite.f16.f64 %h, %d": ".satfinite here",
    "cvt.rm.f16x2.f32 %r, %f, %f2": "pairs are made of two float32",
    "cvt.rm.tf32.f32 %r, %f": "TF32 is made of float32",
    "cvta.to.global.u32 %r, %r2": "generic addresses of 32 bits",
    "sqrt.rz.f64 %d, %d2": "float64 in a directed mode",
    "atom.global.inc.s32 %r, [%d], %r2": "inc",
    "atom.global.add.b32 %r, [%d], %r2": "add of b32",
    "ld.global.v2.u32 %r, [%d]": "wanted more registers",
    "ld.param.u32 %r, [missing]": "the parameter missing",
    "st.global.v2.u32 [%d], %r": "wanted 2 values",
    "st.param.u32 [out], %r": "param",
    "cp.async.ca.shared.global [%r], [%d], 5": "copies have 4, 8 or 16 bytes",
    "cp.async.cg.shared.global [%r], [%d], 8": "copies have 4, 8 or 16 bytes",
    "cp.async.ca.shared.global [%r], [%d], 4, %r2, %r3": "wanted 3 or 4 operands",
    "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r}, [%r2]": "wanted 2 registers",
    "stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r2], {%r}": "wanted 2 registers",
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r}, {%r}, {%r}, {%r}": "numbers of reg",
    "mov.b32 %r, %unknown": "%unknown",
    "add.u32 %r, %r2, a b": "the operand a b",
    "ld.global.u32 %r, [a b]": "the address",
}


@pytest.mark.parametrize(("text", "told"), FORMS.items())
def test_an_instruction_is_refused_with_its_reason(text: str, told: str) -> None:
    with pytest.raises(ptx.NotUnderstood) as refused:
        made = kernel(f"{REGISTERS}{text};", [".u64 out"])
        for instruction in made.program.instructions:
            decoded(instruction, made)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        (".reg .b31 %x;", ".reg .b31 %x"),
        (".shared .align 16 .b31 x[4];", "b31 x"),
        (".strange thing;", ".strange thing"),
        ("???;", "???"),
    ],
)
def test_a_statement_is_refused_with_its_text(statement: str, told: str) -> None:
    with pytest.raises(ptx.NotUnderstood) as refused:
        made = kernel(statement)
        assert made.program.instructions
    assert told in str(refused.value)


def test_a_text_names_its_target() -> None:
    with pytest.raises(ptx.NotUnderstood, match=r"without \.target"):
        ptx.load(HEAD.replace(".target sm_90a\n", ""))


def test_a_variable_begins_with_numbers() -> None:
    text = ".global .b32 table[2] = {other, 1};"
    with pytest.raises(ptx.NotUnderstood, match="a variable that begins as"):
        kernel("ret;", outside=text).launch(1, 32, [])
