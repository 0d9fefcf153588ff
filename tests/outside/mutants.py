"""
Sixty wrong kernels of twelve operations that the catalogue has not, one slip each, and twelve right
ones: NumPy as a kernel computes it, by rows, blocks and running states.

``SLIPS`` has what must be told of each, a regular expression; it was written before any was run.
Without a slip a function is the control: another right way to compute the operation.

    python -m tests.outside.mutants --record docs/data/outside_mutants.json
"""

import argparse
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.backends.declarations import Declarations
from attnverify.backends.implementation import Backend
from attnverify.backends.loader import implementation_of_function
from attnverify.catalogue.operation import CATALOGUE
from attnverify.isolation.second_look import judge_here
from attnverify.specified import register
from attnverify.verdicts.cell import cells
from attnverify.verdicts.tally import Options
from tests.outside import specifications
from tests.sight.stamp import stamp

TILE = 4
HALF, SINGLE = np.float16, np.float32


def whole(size: int, loses_tail: bool) -> int:
    """How much of an axis is walked: all of it, or whole tiles alone."""
    return size // TILE * TILE if loses_tail and size > TILE else size


def rms_norm(x: ndarray, gain: ndarray, eps: float = 1e-6, slip: str = "") -> ndarray:
    F = whole(x.shape[-1], slip == "tail lost")
    axis = 1 if slip == "over rows" else -1
    square = np.einsum("bnf,bnf->bn", x[..., :F], x[..., :F])[..., None] / SINGLE(x.shape[-1])
    if slip == "over rows":
        square = (x * x).mean(axis=axis, keepdims=True)
    if slip == "absolute":
        square = np.abs(x).mean(axis=-1, keepdims=True) ** 2
    if slip == "eps outside":
        return x / (np.sqrt(square) + SINGLE(eps)) * gain
    root = square + SINGLE(eps) if slip == "no root" else np.sqrt(square + SINGLE(eps))
    return x * (SINGLE(1) / root) * gain


def layer_norm_backward(
    d_y: ndarray, x: ndarray, gain: ndarray, eps: float = 1e-5, slip: str = ""
) -> tuple[ndarray, ndarray, ndarray]:
    N, F = x.shape
    d_x, d_gain, d_bias = np.empty_like(x), np.zeros(F, SINGLE), np.zeros(F, SINGLE)
    count = max(F - 1, 1) if slip == "n - 1" else F
    for n in range(N):
        c = x[n] - x[n].sum() / SINGLE(F)
        rstd = SINGLE(1) / np.sqrt((c * c).sum() / SINGLE(count) + SINGLE(eps))
        y, d = c * rstd, d_y[n] * gain
        first = (d_y[n] if slip == "mean without gain" else d).mean()
        second = y * (d @ y / SINGLE(F))
        d_x[n] = (d - first + second if slip == "sign" else d - first - second) * rstd
        d_gain += (d if slip == "gain counted again" else d_y[n]) * y
        d_bias += d_y[n]
    return d_x, d_gain, d_bias / SINGLE(N) if slip == "mean of rows" else d_bias


def rotary(x: ndarray, cos: ndarray, sin: ndarray, slip: str = "") -> ndarray:
    (B, N, _), H = x.shape, cos.shape[1]
    out, last = x.copy(), whole(H, slip == "tail lost")
    for row in range(B * N):
        b, n = divmod(row, N)
        at = min(row, N - 1) if slip == "row of the batch" else n
        at = (n + 1) % N if slip == "next position" else at
        c, s = cos[at, :last], sin[at, :last]
        low, high = out[b, n, :last], out[b, n, H : H + last]
        if slip == "overwritten":
            low[:] = low * c - high * s
            high[:] = high * c + low * s
            continue
        turned = low * c if slip == "one term" else low * c - high * s
        high[:] = high * c + low * s
        low[:] = turned
    return out


def rotary_by_position(x: ndarray, slip: str = "") -> ndarray:
    N, H = x.shape[1], x.shape[2] // 2
    base = {"base 1000": 1e3, "base 500000": 5e5}.get(slip, 1e4)
    below = max(H - 1, 1) if slip == "by H - 1" else H
    twice = 2.0 if slip == "twice" else 1.0
    rate = np.exp(-math.log(base) * twice * np.arange(H) / below)
    angle = np.outer(np.arange(N), rate)
    angle = angle.astype(HALF).astype(float) if slip == "angle in half" else angle
    turned = (x[..., :H] + 1j * x[..., H:]) * np.exp(1j * angle)
    return np.concatenate([turned.real, turned.imag], axis=-1).astype(x.dtype)


def swiglu(x: ndarray, w_gate: ndarray, w_up: ndarray, w_down: ndarray, slip: str = "") -> ndarray:
    I = whole(len(w_up), slip == "tail lost")  # noqa: E741
    gate, up = x @ w_gate.T, x @ w_up.T
    slope = {"quick": SINGLE(1.702), "sign of exp": SINGLE(-1)}.get(slip, SINGLE(1))
    with np.errstate(over="ignore"):
        act = gate * (SINGLE(1) / (SINGLE(1) + np.exp(-slope * gate)))
    if slip == "gelu":
        inner = SINGLE(math.sqrt(2 / math.pi)) * (gate + SINGLE(0.044715) * gate**3)
        act = SINGLE(0.5) * gate * (SINGLE(1) + np.tanh(inner))
    hidden = act * up
    hidden = hidden.astype(HALF).astype(SINGLE) if slip == "stored in half" else hidden
    return hidden[..., :I] @ w_down[:, :I].T


def cross_entropy(
    logits: ndarray, target: ndarray, smoothing: float = 0.1, slip: str = ""
) -> ndarray:
    (N, V), loss = logits.shape, np.zeros(len(logits), SINGLE)
    for n in range(N):
        if target[n] == -100 or (slip == "class 0 ignored" and target[n] == 0):
            continue
        row = logits[n].astype(SINGLE)
        top = SINGLE(0) if slip == "no maximum" else row.max()
        e = np.exp(row - top)
        lse = top + np.log(e.mean() if slip == "log of mean" else e.sum())
        right, share = row[target[n]], SINGLE(smoothing)
        own = SINGLE(1) if slip == "right whole" else SINGLE(1) - share
        rest = row.sum() / SINGLE(V)
        if slip == "other classes" and V > 1:
            rest = (row.sum() - right) / SINGLE(V - 1)
        loss[n] = own * (lse - right) + share * (lse - rest)
        if slip == "right whole":
            loss[n] = lse - right - share * rest
    return loss


def shared_heads_attention(
    q: ndarray,
    k: ndarray,
    v: ndarray,
    sink: ndarray,
    window: int = 4,
    cap: float = 5.0,
    slip: str = "",
) -> ndarray:
    (B, H, N, D), (G, M), E = q.shape, k.shape[1:3], v.shape[-1]
    out = np.zeros((B, H, N, E), SINGLE)
    for b, h in np.ndindex(B, H):
        g, i = h // (H // G), np.arange(N)[:, None] + M - N
        own = sink[g if slip == "sink of the group" else h]
        top, acc = np.full((N, 1), own, SINGLE), np.zeros((N, E), SINGLE)
        total = np.ones((N, 1), SINGLE)
        for start in range(0, M, TILE):
            j = np.arange(start, min(start + TILE, M))
            seen = (j > i - window) & (True if slip == "not causal" else j <= i)
            s = q[b, h] @ k[b, g, j].T / np.sqrt(SINGLE(D))
            if slip == "cap after the mask":
                s = SINGLE(cap) * np.tanh(np.where(seen, s, -np.inf) / SINGLE(cap))
            else:
                s = np.where(seen, SINGLE(cap) * np.tanh(s / SINGLE(cap)), -np.inf)
            higher = np.maximum(top, s.max(axis=1, keepdims=True))
            e, down = np.exp(s - higher), np.exp(top - higher)
            if slip == "sink of each tile" and start:
                total = total + np.exp(own - top)
            total = total * down + e.sum(axis=1, keepdims=True)
            acc = (acc if slip == "not rescaled" else acc * down) + e @ v[b, g, j]
            top = higher
        out[b, h] = acc / total
    return out.astype(q.dtype)


def linear_attention(q: ndarray, k: ndarray, v: ndarray, slip: str = "") -> ndarray:
    (B, N, D), E = q.shape, v.shape[2]
    offset = SINGLE(1) if slip == "offset 1" else SINGLE(0.125)
    q, k = np.maximum(q, 0) + offset, np.maximum(k, 0) + offset
    out, state, total = np.empty((B, N, E), SINGLE), np.zeros((D, E), SINGLE), np.zeros(D, SINGLE)
    chunk = TILE if slip == "chunk not causal" else 1
    for b in range(B):
        if slip != "state carried over":
            state, total = np.zeros((D, E), SINGLE), np.zeros(D, SINGLE)
        for start in range(0, N, chunk):
            rows = slice(start, start + chunk)
            before, before_total = state, total
            state, total = state + k[b, rows].T @ v[b, rows], total + k[b, rows].sum(0)
            if slip == "state in half":
                state = state.astype(HALF).astype(SINGLE)
            read, count = (before, before_total) if slip == "own row lost" else (state, total)
            below = q[b, rows] @ count
            out[b, rows] = q[b, rows] @ read / np.where(below == 0, 1, below)[:, None]
    return out


def gated_delta_rule(
    q: ndarray, k: ndarray, v: ndarray, gate: ndarray, beta: ndarray, slip: str = ""
) -> ndarray:
    axis = 0 if slip == "norm over rows" else 1
    keys = k / np.sqrt((k * k).sum(axis, keepdims=True) + SINGLE(1e-6))
    rate = beta if slip == "rate as it is" else SINGLE(1) / (SINGLE(1) + np.exp(-beta))
    decay = np.exp(-np.abs(gate))
    state, out = np.zeros((q.shape[1], v.shape[1]), SINGLE), np.empty(v.shape, SINGLE)
    for n in range(len(q)):
        if slip == "read before":
            out[n] = q[n] @ state
        if slip != "decay behind":
            state = decay[n] * state
        wanted = rate[n] * v[n] - rate[n] * (keys[n] @ state)
        state = state + keys[n][:, None] * wanted
        if slip == "decay behind":
            state = decay[n] * state
        if slip == "state in half":
            state = state.astype(HALF).astype(SINGLE)
        if slip != "read before":
            out[n] = q[n] @ state
    return out


def top_k_gating(logits: ndarray, k: int = 2, slip: str = "") -> ndarray:
    out = np.zeros_like(logits)
    k = 2 if slip == "always 2" else k
    for n, row in enumerate(logits):
        key = np.abs(row) if slip == "magnitude" else row
        chosen = sorted(range(len(row)), key=lambda e: -key[e])[:k]
        e = np.exp2(row - row[chosen].max()) if slip == "base 2" else np.exp(row - row.max())
        weights = e[chosen] / e[chosen].sum()
        out[n, sorted(chosen) if slip == "in order of experts" else chosen] = weights
    if slip == "over rows":
        shown = out > 0
        e = np.where(shown, np.exp(logits - logits.max(axis=0)), 0)
        out = e / np.where(shown.any(axis=0), e.sum(axis=0), 1)
    return out


def group_norm(
    x: ndarray, gain: ndarray, bias: ndarray, eps: float = 1e-5, slip: str = ""
) -> ndarray:
    (B, C, N), out = x.shape, np.empty_like(x)
    G = C // 2
    for b, g in np.ndindex(B, G):
        both = [g, g + G] if slip == "every other" else [2 * g, 2 * g + 1]
        rows = x[b, both]
        c = rows - rows.sum() / SINGLE(2 * N)
        square = (rows * rows) if slip == "not centred" else c * c
        v = square.sum() / SINGLE(2 * N - 1 if slip == "n - 1" else 2 * N)
        if slip == "eps outside":
            y = c / (np.sqrt(v) + SINGLE(eps))
        else:
            y = c * (SINGLE(1) / np.sqrt(v + SINGLE(eps)))
        own = [both[0]] * 2 if slip == "gain of the group" else both
        out[b, both] = y * gain[own, None] + bias[both, None]
    return out


def int8_product(x: ndarray, w: ndarray, scale: ndarray, slip: str = "") -> ndarray:
    last = whole(x.shape[1], slip == "tail lost")
    whole_numbers = (w.astype(np.int8).view(np.uint8) if slip == "unsigned" else w).astype(SINGLE)
    if slip == "scale of columns":
        columns = scale[np.arange(w.shape[1]) % len(scale)]
        return x @ (whole_numbers * columns).T
    if slip == "weights in half":
        return x @ (whole_numbers * scale[:, None]).astype(HALF).astype(SINGLE).T
    found = x[:, :last] @ whole_numbers[:, :last].T * scale
    return found * scale if slip == "scaled twice" else found


HALVES = "float16|half"
TAIL = r"tail|whole tiles of 4|multiples? of 4"
Slips = dict[Callable[..., Any], dict[str, str]]
SLIPS: Slips = {
    rms_norm: {
        "eps outside": r"as `np\.sqrt\(np\.mean\(x \* x, axis=-1, keepdims=True\)\) \+ eps`",
        "over rows": r"as `np\.mean\(x \* x, axis=(1|-2), keepdims=True\)`",
        "absolute": r"abs\(x\)",
        "no root": r"`np\.sqrt\(.*` as `np\.mean\(x \* x, axis=-1, keepdims=True\) \+ eps`",
        "tail lost": TAIL,
    },
    layer_norm_backward: {
        "mean without gain": r"`d\.mean\(.*\)` as `d_y\.mean\(|`d` as `d_y`",
        "n - 1": r"the mean of n - 1",
        "gain counted again": r"`d_y` as `d`|`d_y \* y` as `d \* y`",
        "mean of rows": r"as `d_y\.mean\(axis=0\)`",
        "sign": r"\+ y \* \(d \* y\)",
    },
    rotary: {
        "next position": r"(next|moved|plus 1|\+ 1).*N|N.*(next|moved)",
        "one term": r"as `a \* cos`",
        "overwritten": r"overwrit|in place|already|`a` as `a \* cos - b \* sin`",
        "row of the batch": r"\bB\b|batch",
        "tail lost": TAIL,
    },
    rotary_by_position: {
        "base 1000": r"10000(\.0)?`? as `?1000(\.0)?\b",
        "base 500000": r"10000(\.0)?`? as `?(500000(\.0)?\b|5e\+05)",
        "by H - 1": r"H - 1",
        "angle in half": HALVES,
        "twice": r"as `10000\.0 \*\* \(?-np\.arange\(H\) / H \* 2|as `10000\.0 \*\* \(.*\* 2\)",
    },
    swiglu: {
        "gelu": r"(?i)gelu",
        "quick": r"1\.702",
        "sign of exp": r"`-gate` as `gate`|as `np\.exp\(gate\)`",
        "stored in half": HALVES,
        "tail lost": TAIL,
    },
    cross_entropy: {
        "other classes": r"V - 1|n - 1|other classes",
        "class 0 ignored": r"target.*\b0\b",
        "no maximum": r"maximum not subtracted|exp overflows",
        "log of mean": r"as `np\.exp\(logits - top\)\.mean\(",
        "right whole": r"as `(1 \* )?right`|`1 - smoothing` as `1`",
    },
    shared_heads_attention: {
        "cap after the mask": r"-cap|hidden|np\.tanh\(np\.where\(|masked",
        "not causal": r"`\(j <= i\) & \(j > i - window\)` as `j > i - window`",
        "sink of the group": r"`sink`.*(repeat|group|G\b|pair|two)|np\.repeat\(sink",
        "sink of each tile": r"2 \* np\.exp\(last - top\)|tile|every 4",
        "not rescaled": r"rescal",
    },
    linear_attention: {
        "own row lost": r"moved|exclu|own|before|strict",
        "offset 1": r"0\.125`? as `?1(\.0)?\b",
        "state carried over": r"\bB\b|batch",
        "state in half": HALVES,
        "chunk not causal": r"(tile|block|chunk|multiple|every).{0,20}\b4\b",
    },
    gated_delta_rule: {
        "decay behind": r"decay\[n\]",
        "read before": r"before|moved|out\[n\]",
        "norm over rows": r"axis=0",
        "rate as it is": r"as `beta`",
        "state in half": HALVES,
    },
    top_k_gating: {
        "magnitude": r"(?i)abs|magnitude",
        "base 2": r"exp2|2(\.0)? \*\*|0\.693",
        "in order of experts": r"order|sorted",
        "always 2": r"`k` always as 2",
        "over rows": r"axis=0",
    },
    group_norm: {
        "every other": r"interleaved|every other|every second",
        "gain of the group": r"`gain`.*(pair|group|first|repeat|halves)",
        "eps outside": r"\) \+ eps`",
        "n - 1": r"the mean of n - 1",
        "not centred": r"`centred` as `group`|as `\(?group \*\* 2",
    },
    int8_product: {
        "scale of columns": r"`scale\[:, None\]` as|`scale`.*(column|F\b)|w \* scale\b",
        "weights in half": HALVES,
        "unsigned": r"256|unsigned|uint8",
        "tail lost": TAIL,
        "scaled twice": r"scale(\[:, None\])? \*\* 2|the output times `scale`",
    },
}
"""By kernel: its slips, and what the cause of each must say."""


@dataclass(frozen=True)
class Told:
    """
    What a run of the quick profile in float32 says of a kernel.

    killed   whether its values were refused
    named    whether a cause was named, and not only what is wrong and where
    words    the causes, or what came out where there is none
    """

    killed: bool
    named: bool
    words: str


def tell(kernel: Callable[..., Any], slip: str = "", among: Any = specifications) -> Told:
    """Judge a kernel with this slip, or the control, by its specification, one of these."""
    name = kernel.__name__
    specification = getattr(among, name)
    if getattr(CATALOGUE.get(name), "own", None) is not specification:
        register(specification)
    backend = Backend(name, f"{name}.py", declared=Declarations(("float32",)))
    implementation_of_function(backend, partial(kernel, slip=slip), name, "numpy")
    with TemporaryDirectory() as folder, np.errstate(all="ignore"):
        (cell,) = cells([backend], (), ("float32",), None, ("values",))
        result = judge_here(cell, Options("quick", 0, folder))
    causes = [finding.cause for finding in result.findings if finding.cause]
    told = [str(cause).partition(" (seen with")[0] for cause in causes] or [
        finding.headline for finding in result.findings
    ]
    return Told(
        result.verdict == "failed",
        any(cause.explanations for cause in causes),
        " | ".join(" ".join(words.split()) for words in told),
    )


def judge_slip(
    kernel: Callable[..., Any], slip: str, wanted: str, among: Any = specifications
) -> dict[str, Any]:
    """Class one slip: alive, right, vague, or told otherwise, which a person has to read."""
    told = tell(kernel, slip, among)
    right = told.named and re.search(wanted, told.words)
    found = "right" if right else "otherwise" if told.named else "vague"
    return {
        "kernel": kernel.__name__,
        "slip": slip,
        "found": found if told.killed else "alive",
        "words": told.words,
    }


def record(slips: Slips, among: Any) -> dict[str, Any]:
    """Judge them all, and print what is told as it comes."""
    rows = []
    for kernel, own in slips.items():
        for slip, wanted in own.items():
            rows.append(row := judge_slip(kernel, slip, wanted, among))
            print(*list(row.values())[:3], row["words"][:150], sep=" | ", flush=True)
    accused = [kernel.__name__ for kernel in slips if tell(kernel, among=among).killed]
    counts = Counter(row["found"] for row in rows)
    return {
        **stamp(),
        "profile": "quick",
        "dtype": "float32",
        "mutants": len(rows),
        **{found: counts[found] for found in ("alive", "right", "vague", "otherwise")},
        "controls": len(slips),
        "accused": accused,
        "told": rows,
    }


def main(slips: Slips, among: Any) -> int:
    parser = argparse.ArgumentParser(description="Judge wrong kernels, and right ones beside them.")
    parser.add_argument("--record", type=Path, help="where to write what was told")
    path, found = parser.parse_args().record, record(slips, among)
    if path:
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print({name: x for name, x in found.items() if name != "told"})
    return int(bool(found["alive"] or found["accused"]))


if __name__ == "__main__":
    sys.exit(main(SLIPS, specifications))
