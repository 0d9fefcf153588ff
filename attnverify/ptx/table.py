"""
Which instructions of sm_80 and sm_90a are there, and which are refused: data, held against the
builders by a test.

``python -m attnverify.ptx table`` prints it.
"""

from dataclasses import dataclass

__all__ = ["ABSENT", "PARTLY", "THERE", "Row", "lines"]

TABLE = """\
whole numbers
  add           u16 u32 u64 s16 s32 s64, .sat.s32; f32 with .rn .rz .rm .rp .ftz .sat, f64 .rn,
                f16 bf16 f16x2 bf16x2
    > add.sat.s32 %r, %r, %r;
    > add.rz.ftz.sat.f32 %f, %f, %f;
    > add.f16x2 %r, %r, %r;
  sub           u16 u32 u64 s16 s32 s64, .sat.s32; f32 with .rn .rz .rm .rp .ftz .sat, f64 .rn,
                f16 bf16 f16x2 bf16x2
    > sub.s64 %d, %d, %d;
    > sub.rn.f32 %f, %f, %f;
  mul           .lo .hi .wide of u16 u32 u64 s16 s32 s64; f32 with .rn .rz .rm .rp .ftz .sat, f64
                .rn, f16 bf16 f16x2 bf16x2
    > mul.wide.s32 %d, %r, %r;
    > mul.f64 %d, %d, %d;
  mad           .lo .hi .wide of u16 u32 u64 s16 s32 s64; as fma
    > mad.lo.s32 %r, %r, %r, %r;
    > mad.rn.f32 %f, %f, %f, %f;
  mul24         .lo of u32 s32
    > mul24.lo.u32 %r, %r, %r;
  mad24         .lo of u32 s32
    > mad24.lo.s32 %r, %r, %r, %r;
  div           u16 u32 u64 s16 s32 s64; f32 .approx .full .rn .rz .rm .rp .ftz, f64 .rn
    > div.s32 %r, %r, %r;
    > div.full.ftz.f32 %f, %f, %f;
  rem           u16 u32 u64 s16 s32 s64
    > rem.u64 %d, %d, %d;
  min           u16 u32 u64 s16 s32 s64, .relu.s32; f32 f64 f16 bf16 f16x2 bf16x2 with .NaN, f32
                .ftz
    > min.s32 %r, %r, %r;
    > min.relu.s32 %r, %r, %r;
    > min.NaN.bf16x2 %r, %r, %r;
  max           as min
    > max.ftz.f32 %f, %f, %f;
  neg           s16 s32 s64; f32 .ftz, f64, halves
    > neg.s32 %r, %r;
    > neg.bf16x2 %r, %r;
  abs           as neg
    > abs.f16x2 %r, %r;
  sad           u16 u32 u64 s16 s32 s64
    > sad.u32 %r, %r, %r, %r;
  addc          .cc of u32 s32 u64 s64, as add.cc sub.cc mad.cc
    > addc.cc.u32 %r, %r, %r;
  subc          as addc
    > subc.s64 %d, %d, %d;
  madc          .lo .hi, as addc
    > madc.hi.cc.u32 %r, %r, %r, %r;
  dp4a          u32 s32
    > dp4a.u32.s32 %r, %r, %r, %r;
  dp2a          .lo .hi of u32 s32
    > dp2a.hi.s32.s32 %r, %r, %r, %r;
bits
  and           pred b16 b32 b64
    > and.pred %p, %p, %p;
  or            pred b16 b32 b64
    > or.b64 %d, %d, %d;
  xor           pred b16 b32 b64
    > xor.b16 %h, %h, %h;
  not           pred b16 b32 b64
    > not.pred %p, %p;
  cnot          b16 b32 b64
    > cnot.b32 %r, %r;
  lop3          b32
    > lop3.b32 %r, %r, %r, %r, 0x96;
  shl           b16 b32 b64
    > shl.b32 %r, %r, 3;
  shr           b16 b32 b64 u16 u32 u64 s16 s32 s64
    > shr.s32 %r, %r, %r;
  shf           .l .r with .clamp .wrap
    > shf.l.wrap.b32 %r, %r, %r, %r;
  bfe           u32 u64 s32 s64
    > bfe.u32 %r, %r, 3, 5;
  bfi           b32 b64
    > bfi.b32 %r, %r, %r, 3, 5;
  bmsk          .clamp .wrap
    > bmsk.clamp.b32 %r, %r, %r;
  popc          b32 b64
    > popc.b64 %r, %d;
  clz           b32 b64
    > clz.b32 %r, %r;
  brev          b32 b64
    > brev.b32 %r, %r;
  bfind         u32 u64 s32 s64 with .shiftamt
    > bfind.shiftamt.u32 %r, %r;
  prmt          b32, the general form
    > prmt.b32 %r, %r, %r, %r;
floating point
  fma           f32 with .rn .rz .rm .rp .ftz .sat, f64 .rn, f16 bf16 f16x2 bf16x2; halves with
                .relu
    > fma.rn.ftz.f32 %f, %f, %f, %f;
    > fma.rn.relu.bf16 %h, %h, %h, %h;
  copysign      f32 f64
    > copysign.f32 %f, %f, %f;
  testp         f32 f64
    > testp.finite.f32 %p, %f;
approximate, with drawn errors
  rcp           f32 .approx .ftz (1 ulp) and .rn .rz .rm .rp, f64 .rn
    > rcp.approx.ftz.f32 %f, %f;
    > rcp.rn.f32 %f, %f;
  sqrt          f32 .approx .ftz (2^-23) and .rn .rz .rm .rp, f64 .rn
    > sqrt.approx.f32 %f, %f;
    > sqrt.rn.f64 %d, %d;
  rsqrt         f32 .ftz (2^-22.9)
    > rsqrt.approx.f32 %f, %f;
  ex2           f32 .ftz (2 ulp), f16 (2^-9.9), bf16 (2^-7)
    > ex2.approx.ftz.f32 %f, %f;
    > ex2.approx.f16x2 %r, %r;
  lg2           f32 .ftz (2^-22, absolute near 1)
    > lg2.approx.f32 %f, %f;
  sin           f32 .ftz (2^-20.5 within 2 pi, 2^-14.7 within 100 pi)
    > sin.approx.f32 %f, %f;
  cos           as sin
    > cos.approx.ftz.f32 %f, %f;
  tanh          f32 (2^-11), f16 (2^-10.987), bf16 (2^-8)
    > tanh.approx.f32 %f, %f;
    > tanh.approx.bf16 %h, %h;
comparisons
  setp          all comparisons of whole and floating-point numbers, halves, pairs; .and .or .xor
    > setp.ltu.and.f32 %p|%q, %f, %f, !%p;
  set           into u32 s32 f32
    > set.lt.u32.f32 %r, %f, %f;
  selp          all types
    > selp.b16 %h, %h, %h, %p;
  slct          by s32 f32
    > slct.b32.f32 %r, %r, %r, %f;
conversions and moves
  mov           all types, vectors of two and four
    > mov.b64 {%r, %s}, %d;
    > mov.u32 %r, %tid.x;
  cvt           whole numbers, f16 bf16 f32 f64, f16x2 bf16x2 tf32, e4m3x2 e5m2x2; all roundings,
                .sat .ftz .relu .satfinite
    > cvt.rn.bf16x2.f32 %r, %f, %f;
    > cvt.rn.satfinite.e4m3x2.f32 %h, %f, %f;
    > cvt.rn.relu.f16x2.e5m2x2 %r, %h;
  cvta          .global .shared .local .const .param
    > cvta.to.global.u64 %d, %d;
  isspacep      .global .shared .local .const
    > isspacep.shared %p, %d;
memory
  ld            all spaces but clusters, .v2 .v4, up to 16 bytes; hints are skipped
    > ld.global.nc.L1::evict_last.v4.b32 {%r,%r,%r,%r}, [%d+16];
  ldu           as ld
    > ldu.global.b32 %r, [%d];
  st            all spaces but clusters, .v2 .v4, up to 16 bytes
    > st.shared.v2.b16 [%r], {%h,%h};
  cp            .async .ca .cg of 4, 8, 16 bytes; commit_group, wait_group, wait_all,
                mbarrier.arrive; sm_90a: .async.bulk and .async.bulk.tensor of 1d to 5d, tiled, to
                shared memory by mbarrier and back by bulk_group, .reduce.async.bulk.tensor
    > cp.async.cg.shared.global [%r], [%d], 16, %s;
    > cp.async.mbarrier.arrive.noinc.shared.b64 [%r];
    > cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r], [%d], 16, [%r];
    > cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%d, {%r, %r}], [%r];
    > cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.tile.bulk_group [%d, {%r}], [%r];
  atom          add min max inc dec and or xor exch cas; f32 f64 halves pairs; .v2 .v4 .v8
    > atom.global.gpu.acq_rel.add.v4.f32 {%f,%f,%f,%f}, [%d], {%f,%f,%f,%f};
  red           as atom
    > red.global.add.noftz.bf16x2 [%d], %r;
  prefetch      skipped
    > prefetch.global.L2 [%d];
  prefetchu     skipped
    > prefetchu.L1 [%d];
  createpolicy  skipped
    > createpolicy.fractional.L2::evict_last.b64 %d, 1.0;
control and order
  bra           .uni
    > @%p bra.uni HERE;
  brx           .idx .uni
    > WAYS: .branchtargets HERE, HERE; brx.idx %r, WAYS;
  ret           .uni
    > ret;
  call          .uni, of functions of the same text that do not call themselves, of vprintf and
                __assertfail
    > .param .b32 a; .param .b64 b; .param .b64 c; call.uni (a), vprintf, (b, c);
  exit
    > @%p exit;
  bar           .sync of a block or of some warps, .arrive, .warp.sync; .red with .popc .and .or
    > bar.sync 1, 64;
    > bar.arrive 1, 64;
    > bar.warp.sync 0xffffffff;
  barrier       .sync .red .aligned .cta
    > barrier.cta.sync.aligned 0;
  fence         .proxy.async .proxy.tensormap .mbarrier_init; .acq_rel .sc of .cta .gpu .sys: what
                they order, and for whom
    > fence.proxy.async.shared::cta;
    > fence.acq_rel.gpu;
  membar        as fence
    > membar.gl;
  trap
    > trap;
  nanosleep     skipped
    > nanosleep.u32 20;
  setmaxnreg    sm_90a: .inc .dec of whole warps; how many registers there are is not looked at
    > setmaxnreg.inc.sync.aligned.u32 240;
  griddepcontrol sm_90a: skipped
    > griddepcontrol.wait;
  pmevent       skipped
    > pmevent 1;
warps
  shfl          .sync .up .down .bfly .idx
    > shfl.sync.bfly.b32 %r|%p, %r, 1, 31, -1;
  vote          .sync .all .any .uni .ballot
    > vote.sync.ballot.b32 %r, %p, -1;
  match         .any .all .sync
    > match.any.sync.b32 %r, %r, -1;
  redux         .sync add min max and or xor
    > redux.sync.add.s32 %r, %r, -1;
  activemask
    > activemask.b32 %r;
  mbarrier      init inval arrive arrive_drop expect_tx complete_tx test_wait try_wait
                pending_count, of the block's own
    > mbarrier.arrive.expect_tx.shared.b64 _, [%r], 16;
    > mbarrier.try_wait.parity.shared::cta.b64 %p, [%r], 0;
  tensormap     sm_90a: replace.tile, cp_fenceproxy
    > tensormap.replace.tile.rank.shared::cta.b1024.b32 [%d], 1;
    > tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%d],
      [%d], 128;
  elect         sm_90a: .sync
    > elect.sync %r|%p, -1;
matrices
  ldmatrix      m8n8 .x1 .x2 .x4 .trans .b16
    > ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r,%r}, [%r];
  stmatrix      sm_90a: m8n8 .x1 .x2 .x4 .trans .b16
    > stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r], {%r};
  movmatrix     m8n8 .trans .b16
    > movmatrix.sync.aligned.m8n8.trans.b16 %r, %r;
  mma           m16n8k8 m16n8k16 of f16 bf16, m16n8k4 m16n8k8 of tf32, m16n8k32 of e4m3 e5m2; sums
                in f32, of f16 and smaller ones also in f16; m8n8k16 m16n8k16 m16n8k32 of s8 u8,
                m8n8k32 m16n8k32 m16n8k64 of s4 u4, .satfinite
    > mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f,%f,%f,%f}, {%r,%r,%r,%r}, {%r,%r},
      {%f,%f,%f,%f};
  wmma          load store mma; m16n16k16 m32n8k16 m8n32k16 of f16 bf16 s8 u8, m16n16k8 of tf32,
                m8n8k4 of f64
    > wmma.load.c.sync.aligned.row.m16n16k16.shared.f16 {%r,%r,%r,%r}, [%d], %r;
    > wmma.mma.sync.aligned.row.col.m16n16k16.s32.u8.u8.s32.satfinite {%r,%r,%r,%r,%r,%r,%r,%r},
      {%r,%r}, {%r,%r}, {%r,%r,%r,%r,%r,%r,%r,%r};
  wgmma         sm_90a: m64nNk16 of f16 bf16, m64nNk8 of tf32, m64nNk32 of e4m3 e5m2 s8 u8; sums
                in f32, of f16 and smaller ones also in f16; fence, commit_group, wait_group
    > wgmma.fence.sync.aligned;
    > wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f,%f,%f,%f}, %d, %d, %p, 1, 1, 0, 0;
"""
"""By family: an instruction, what it comes with, and behind > examples that are understood."""

ABSENT: dict[str, tuple[str, ...]] = {
    "stacks": (
        "alloca",
        "stacksave",
        "stackrestore",
        "istypep",
    ),
    "rare bits": (
        "szext",
        "fns",
    ),
    "clusters of blocks": (
        "multimem",
        "mapa",
        "getctarank",
        "clusterlaunchcontrol",
    ),
    "textures and surfaces": (
        "tex",
        "tld4",
        "txq",
        "suld",
        "sust",
        "sured",
        "suq",
    ),
    "newer products of matrices": ("tcgen05",),
    "video": (
        "vadd",
        "vsub",
        "vabsdiff",
        "vmin",
        "vmax",
        "vshl",
        "vshr",
        "vmad",
        "vset",
    ),
    "caches and debuggers": (
        "discard",
        "applypriority",
        "brkpt",
    ),
}
"""What is refused whole, by what it is about."""

PARTLY: tuple[str, ...] = (
    "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
    ".multicast::cluster [%r], [%d, {%r, %r}], [%r], %h;",
    "cp.async.bulk.tensor.3d.im2col.shared::cta.global.mbarrier::complete_tx::bytes [%r], "
    "[%d, {%r, %r, %r}], [%r], {%h};",
    "mbarrier.arrive.shared::cluster.b64 _, [%r];",
    "mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.xor.popc {%r,%r,%r,%r}, {%r,%r,%r,%r}, "
    "{%r,%r}, {%r,%r,%r,%r};",
    "cvt.rn.bf16x2.e4m3x2 %r, %h;",
    "ld.shared::cluster.b32 %r, [%r];",
    "prmt.b32.f4e %r, %r, %r, %r;",
    "fma.rn.f32x2 %d, %d, %d, %d;",
    "mov.u32 %r, %smid;",
)
"""What is refused of instructions that are there; examples."""


@dataclass
class Row:
    """An instruction that is there: its family, what it comes with, and examples."""

    family: str
    forms: str
    examples: list[str]

    @property
    def target(self) -> int:
        """The first generation that has it."""
        return 90 if self.forms.startswith("sm_90a") else 80


def rows(text: str) -> dict[str, Row]:
    """The table, read: its depth says what a line is."""
    found: dict[str, Row] = {}
    family = name = ""
    for line in text.splitlines():
        depth, words = len(line) - len(line.lstrip()), line.strip()
        if depth == 0:
            family = words
        elif depth == 2:
            name, _, forms = words.partition(" ")
            found[name] = Row(family, forms.strip(), [])
        elif depth == 4:
            found[name].examples.append(words.removeprefix("> "))
        elif depth == 6:
            found[name].examples[-1] += f" {words}"
        else:
            found[name].forms += f" {words}"
    return found


THERE = rows(TABLE)


def lines() -> list[str]:
    """Write the table as it is printed."""
    found = [f"{'instruction':14} {'sm_80':6} {'sm_90a':6}  forms", ""]
    for family in dict.fromkeys(row.family for row in THERE.values()):
        found.append(f"{family}:")
        for name, row in THERE.items():
            if row.family == family:
                old = "yes" if row.target == 80 else "-"
                found.append(f"  {name:12} {old:6} {'yes':6}  {row.forms.removeprefix('sm_90a: ')}")
    found += ["", "refused:"]
    found += [f"  {about}: {', '.join(names)}" for about, names in ABSENT.items()]
    found += [f"  {text}" for text in PARTLY]
    return found
