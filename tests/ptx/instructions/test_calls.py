"""Functions of the device, ``printf`` and assertions: what a call does, and what is refused."""

import ctypes
from typing import Any

import numpy as np
import pytest

from attnverify import ptx
from tests.ptx.small import kernel

FUNCTIONS = """
.file 1 "own.cu"
.func (.param .b32 back) halve (.param .b32 x)
{
  .reg .pred %p; .reg .b32 %r<3>;
  .loc 1 7 0
  ld.param.b32 %r1, [x];
  and.b32 %r2, %r1, 1;
  setp.eq.b32 %p, %r2, 0;
  @!%p bra ODD;
  shr.u32 %r1, %r1, 1;
  st.param.b32 [back+0], %r1;
  ret;
ODD:
  st.param.b32 [back], %r1;
  ret;
}
.func (.param .align 8 .b8 back[16]) pair (.param .align 8 .b8 x[16], .param .b32 times)
{
  .local .align 8 .b8 room[16];
  .reg .pred %p; .reg .b32 %r<4>; .reg .b64 %d<3>;
  ld.param.b32 %r1, [x];
  ld.param.b64 %d1, [x+8];
  ld.param.b32 %r2, [times];
  st.local.b64 [room], %d1;
AGAIN:
  { .param .b32 given; .param .b32 got;
    st.param.b32 [given], %r1;
    call.uni (got), halve, (given);
    ld.param.b32 %r1, [got]; }
  sub.u32 %r2, %r2, 1;
  setp.gt.s32 %p, %r2, 0;
  @%p bra AGAIN;
  ld.local.b64 %d2, [room];
  st.param.b32 [back], %r1;
  st.param.b64 [back+8], %d2;
  ret;
}
.func store (.param .b64 at, .param .b32 x)
{
  .reg .b32 %r; .reg .b64 %d;
  .loc 1 40 0
  ld.param.b32 %r, [x];
  ld.param.b64 %d, [at];
  st.global.b32 [%d], %r;
  ret;
}
.func for_ever (.param .b32 x) { .param .b32 y; call for_ever, (y); ret; }
"""
START = """
.reg .pred %p; .reg .b32 %t, %r; .reg .b64 %o, %d;
mov.u32 %t, %tid.x; ld.param.u64 %o, [out]; mad.wide.u32 %o, %t, 8, %o;
"""


def halved(x: int, times: int) -> int:
    for _ in range(times):
        x = x if x % 2 else x // 2
    return x


def test_functions_are_called_and_call_others() -> None:
    body = f"""{START} cvt.u64.u32 %d, %t;
    {{ .param .align 8 .b8 x[16]; .param .b32 times; .param .align 8 .b8 got[16];
      st.param.b32 [x], %t; st.param.b64 [x+8], %d; and.b32 %r, %t, 3; add.u32 %r, %r, 1;
      st.param.b32 [times], %r;
      call.uni (got), pair, (x, times);
      ld.param.b32 %t, [got]; ld.param.b64 %d, [got+8]; }}
    cvt.u32.u64 %r, %d; st.global.v2.b32 [%o], {{%t, %r}};"""
    out = np.zeros((96, 2), np.uint32)
    kernel(body, [".u64 out"], outside=FUNCTIONS).launch(2, 48, [out[:48]], races=False)
    assert out[:48].tolist() == [[halved(x, x % 4 + 1), x] for x in range(48)]


def test_a_call_may_be_guarded_and_the_same_function_called_twice() -> None:
    call = "{{ .param .b64 at; .param .b32 x; st.param.b64 [at], %o; st.param.b32 [x], {}; {} }}"
    body = f"""{START} setp.lt.u32 %p, %t, 5; mov.u32 %r, 77;
    {call.format("%t", "call store, (at, x);")} add.s64 %o, %o, 4;
    {call.format("%r", "@%p call store, (at, x);")}"""
    out = np.zeros((40, 2), np.uint32)
    kernel(body, [".u64 out"], outside=FUNCTIONS).launch(1, 40, [out])
    assert out.tolist() == [[x, 77 if x < 5 else 0] for x in range(40)]


def test_a_finding_names_the_line_of_the_function_and_that_of_the_call() -> None:
    body = f"""{START} .loc 1 90 0
    {{ .param .b64 at; .param .b32 x; st.param.b64 [at], %o; st.param.b32 [x], %t;
    call store, (at, x); }}"""
    with pytest.raises(ptx.Finding) as raised:
        kernel(body, [".u64 out"], outside=FUNCTIONS).launch(1, 2, [np.zeros(1, np.uint64)])
    assert str(raised.value.place.source) == "own.cu:40, called at own.cu:90"


def test_a_parameter_that_the_caller_did_not_write_is_told() -> None:
    body = ".param .b32 x; .param .b32 y; call (y), halve, (x);"
    with pytest.raises(ptx.Finding, match="local memory where the thread has not written"):
        kernel(body, outside=FUNCTIONS).launch(1, 32, [])


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("call for_ever, (x);", "a function that calls itself, for_ever"),
        ("call (x), %d, (x), prototype;", "a call of whatever a register points at"),
        ("call (x), malloc, (x);", "a call of malloc, which is not in the text"),
        ("call (x), halve, (x, x);", "the parameters of a call"),
        ("call vprintf, (x);", "wanted the two parameters and the result of vprintf"),
    ],
)
def test_calls_that_are_not_known_are_refused(call: str, told: str) -> None:
    with pytest.raises(ptx.NotUnderstood, match=told):
        kernel(f".param .b32 x; .reg .b64 %d; {call}", outside=FUNCTIONS).steps  # noqa: B018


# printf, as the C library of this machine prints


def printed(text: str, *values: Any) -> bytes:
    room = ctypes.create_string_buffer(400)
    ctypes.CDLL(None).snprintf(room, ctypes.c_size_t(400), text.encode(), *values)
    return room.value


def in_bytes(*values: Any) -> np.ndarray:
    """Values one behind the other, each at a multiple of its size."""
    made = bytearray()
    for value in values:
        made += bytes(-len(made) % ctypes.sizeof(value)) + bytes(value)
    return np.frombuffer(bytes(made).ljust(8, b"\0"), np.uint8).copy()


PRINT = """
.param .b64 text; .param .b64 given; .param .b32 count;
st.param.b64 [text], %d; st.param.b64 [given], %o;
call.uni (count), vprintf, (text, given);
ld.param.b32 %r, [count]; st.global.b32 [%e], %r;
"""
I32, U32, I64, U64, REAL = (
    ctypes.c_int32,
    ctypes.c_uint32,
    ctypes.c_int64,
    ctypes.c_uint64,
    ctypes.c_double,
)
TEXTS: list[tuple[str, tuple[Any, ...]]] = [
    ("plain 100%%\n", ()),
    ("%d|%5d|%-5d|%05d|%+d|% d", tuple(I32(n) for n in (-7, 42, 42, -42, 5, 6))),
    ("%i %u %x %X %#x %o", (I32(-1), U32(2**32 - 1), U32(255), U32(255), U32(255), U32(8))),
    ("%lld %llu %ld %zu %lx", (I64(-(2**40)), U64(2**63), I64(-1), U64(9), U64(2**40))),
    ("%d %lld %c %f", (I32(1), I64(2**33), I32(65), REAL(0.1))),
    (
        "%f %.3f %8.2f %-8.1f| %e %G %g",
        tuple(REAL(x) for x in (1.5, 2 / 3, -3.14159, 2, 1e-9, 1e20, 0.1)),
    ),
    ("%f %g", (REAL(float("inf")), REAL(float("-inf")))),
    ("%*d|%.*f", (I32(6), I32(3), I32(2), REAL(1 / 3))),
    ("%hhd %hd %hu %hhu", (I32(300), I32(70000), U32(70000), U32(511))),
]


@pytest.mark.parametrize(("text", "values"), TEXTS)
def test_a_kernel_prints_as_c_does(
    text: str, values: tuple[Any, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    body = (
        """.reg .b64 %d, %o, %e; .reg .b32 %r; ld.param.u64 %d, [text_at];
    ld.param.u64 %o, [values_at]; ld.param.u64 %e, [count_at];"""
        + PRINT
    )
    count = np.zeros(1, np.uint32)
    letters = np.frombuffer(text.encode() + b"\0", np.uint8).copy()
    made = kernel(body, [".u64 text_at", ".u64 values_at", ".u64 count_at"])
    made.launch(1, 1, [letters, in_bytes(*values), count])
    assert capsys.readouterr().out.encode() == printed(text, *values)
    assert count[0] == len(values)


def test_threads_print_in_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    body = (
        """.local .align 8 .b8 room[8]; .reg .b64 %d, %o, %e; .reg .b32 %r;
    mov.u32 %r, %tid.x; st.local.b32 [room], %r; mov.u64 %o, room; cvta.local.u64 %o, %o;
    mov.u64 %d, text_of_all; cvta.global.u64 %d, %d; ld.param.u64 %e, [count_at];"""
        + PRINT
    )
    outside = ".global .align 1 .b8 text_of_all[4] = {37, 100, 32, 0};"
    made = kernel(body, [".u64 count_at"], outside=outside)
    made.launch(1, 40, [np.zeros(1, np.uint32)])
    assert capsys.readouterr().out == "".join(f"{n} " for n in range(40))


def test_an_assertion_that_does_not_hold_is_told() -> None:
    body = """.reg .b64 %d; .param .b64 a, b, d, e; .param .b32 c;
    mov.u64 %d, what; st.param.b64 [a], %d; call __assertfail, (a, b, c, d, e);"""
    body = body.replace(".param .b64 a, b, d, e;", "".join(f".param .b64 {x};" for x in "abde"))
    outside = f".global .b8 what[6] = {{{', '.join(map(str, b'i < n'))}}};"
    with pytest.raises(ptx.Finding, match="an assertion does not hold: i < n") as raised:
        kernel(body, outside=outside).launch(1, 32, [])
    assert raised.value.kind == "trap"


def test_an_assertion_of_some_threads_is_told_and_not_that_they_are_missing() -> None:
    body = """.reg .pred %p; .reg .b32 %t; .reg .b64 %d; mov.u32 %t, %tid.x;
    setp.eq.u32 %p, %t, 9; @%p bra STOP; bar.sync 0; ret;
    STOP: .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e;
    mov.u64 %d, what; st.param.b64 [a], %d; call __assertfail, (a, b, c, d, e); trap;"""
    outside = f".global .b8 what[6] = {{{', '.join(map(str, b'i < n'))}}};"
    with pytest.raises(ptx.Finding, match="an assertion does not hold: i < n") as raised:
        kernel(body, outside=outside).launch(1, 64, [])
    assert raised.value.place.thread == (9, 0, 0)
