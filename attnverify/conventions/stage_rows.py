"""
The questions of operations that consist of stages, with the specification's answers and the others.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from attnverify.catalogue.operation import Operation
from attnverify.conventions.references import causal_mask, shift_right
from attnverify.conventions.slopes import SLOPES
from attnverify.conventions.stage_changes import (
    added_instead,
    aligned,
    clipped_rows,
    float_mask,
    frontier,
    heads_and_width,
    in_storage,
    offset_of,
    read_backwards,
    remasked,
    scaled,
    slopes,
    unmasked_rows,
    with_shift,
    with_table_rows,
    with_u_and_v_exchanged,
    within_frontier,
)
from attnverify.reference.staged_attention import Change, table_rows

Applies = Callable[[Operation], bool]

SCALED: Applies = lambda op: "D" in op.sizes
CAUSAL: Applies = lambda op: op.traits.causal
OPEN: Applies = lambda op: op.is_attention and not op.traits.causal
MASKED: Applies = lambda op: op.mask is not None
FLOATS: Applies = lambda op: op.mask == "mask"
DROPPED: Applies = lambda op: "keep" in op.arguments
SLOPED: Applies = lambda op: op.traits.slopes
SHIFTED: Applies = lambda op: "position" in op.arguments
TABLES: Applies = lambda op: "key_pos_bias" in op.arguments
"""Which operations a question is asked of, of those that consist of stages."""

Row = tuple[Applies, str, str, str, Change]
STAGE_ROWS: tuple[Row, ...] = (
    (SCALED, "scale", "1", "scores that are not scaled", lambda s: scaled(s, 1.0)),
    (SCALED, "scale", "1/D", "scores scaled by 1/D",
     lambda s: scaled(s, 1 / heads_and_width(s)[1])),
    (SCALED, "scale", "1/sqrt(H D)", "scores scaled by 1/sqrt(H D)",
     lambda s: scaled(s, (heads_and_width(s)[0] * heads_and_width(s)[1]) ** -0.5)),
    (SCALED, "scale", "sqrt(D)", "scores multiplied by sqrt(D)",
     lambda s: scaled(s, heads_and_width(s)[1] ** 0.5)),
    (CAUSAL, "causal alignment", "top-left", "a top-left causal mask", frontier(lambda N, M: 0)),
    (CAUSAL, "causal alignment", "at the end of the longer", "a causal mask aligned by max(M-N, 0)",
     frontier(lambda N, M: max(M - N, 0))),
    (CAUSAL, "causal alignment", "own key hidden", "a causal mask that hides the query's own key",
     frontier(lambda N, M: M - N - 1)),
    (CAUSAL, "causal alignment", "one key beyond", "a causal mask that shows one key beyond",
     frontier(lambda N, M: M - N + 1)),
    (CAUSAL, "causal alignment", "no causal mask", "no causal mask", frontier(lambda N, M: None)),
    (CAUSAL, "causal alignment", "only without another mask",
     "no causal mask where another is given",
     lambda s: s if s.visible is None else replace(s, causal=None)),
    (CAUSAL, "causal alignment", "only with another mask", "no causal mask unless another is given",
     lambda s: s if s.visible is not None else replace(s, causal=None)),
    (OPEN, "keys without a mask", "causal, top-left", "a top-left causal mask where none is given",
     frontier(lambda N, M: 0, True)),
    (OPEN, "keys without a mask", "causal, end", "an end-aligned causal mask where none is given",
     frontier(lambda N, M: M - N, True)),
    (OPEN, "keys without a mask", "always causal, top-left", "a top-left causal mask as well",
     frontier(lambda N, M: 0)),
    (OPEN, "keys without a mask", "always causal, end", "an end-aligned causal mask as well",
     frontier(lambda N, M: M - N)),
    (MASKED, "mask polarity", "True = hidden", "a mask of which True means hidden",
     partial(remasked, lambda mask: ~mask)),
    (MASKED, "mask polarity", "ignored", "boolean masks ignored", partial(remasked,
     lambda mask: None)),
    (MASKED, "mask polarity", "added as 0 and 1", "boolean masks added as ones and zeros",
     added_instead),
    (lambda op: FLOATS(op) and SCALED(op), "float mask", "scaled with the scores",
     "a float mask scaled with the scores",
     partial(float_mask, lambda s: replace(s, bias=s.bias * s.scale))),
    (FLOATS, "float mask", "ignored", "float masks ignored",
     partial(float_mask, lambda s: replace(s, bias=None, visible=None))),
    (FLOATS, "float mask", "only its minus infinity", "the finite numbers of a float mask ignored",
     partial(float_mask, lambda s: replace(s, bias=None))),
    (FLOATS, "float mask", "True where not 0", "a float mask taken as boolean",
     partial(float_mask, lambda s: replace(s, bias=None, visible=s.inputs["mask"] != 0))),
    (FLOATS, "float mask", "subtracted", "a float mask subtracted",
     partial(float_mask, lambda s: replace(s, bias=-s.bias))),
    (MASKED, "rows without keys", "NaN", "NaN in rows that see no key",
     lambda s: replace(s, empty=np.nan)),
    (MASKED, "rows without keys", "mean of all values", "rows that see no key averaging all values",
     lambda s: replace(s, empty=1 / s.shape[-1])),
    (CAUSAL, "rows without keys", "mean within the frontier",
     "rows that see no key averaging those up to their own", within_frontier),
    (MASKED, "rows without keys", "as if nothing were hidden", "rows that see no key seeing all",
     unmasked_rows),
    (DROPPED, "dropout scale", "1", "kept weights that are not scaled",
     lambda s: replace(s, kept=1.0)),
    (DROPPED, "dropout scale", "1/p", "kept weights scaled by 1/p",
     lambda s: replace(s, kept=1 / s.inputs["p"] if s.inputs.get("p") else s.kept)),
    (DROPPED, "dropout scale", "1-p", "kept weights scaled by 1-p",
     lambda s: replace(s, kept=1 / s.kept)),
    (DROPPED, "dropout", "none", "dropout ignored",
     lambda s: replace(s, inputs=s.inputs | {"keep": None}, kept=1.0)),
    (DROPPED, "dropout", "True = dropped", "a keep mask of which True means dropped",
     lambda s: s if s.inputs.get("keep") is None else replace(s,
     inputs=s.inputs | {"keep": ~s.inputs["keep"]})),
    *((SLOPED, "ALiBi slopes", name, words, slopes(rule)) for name,
    (words, rule) in SLOPES.items()),
    (SLOPED, "ALiBi sign", "grows with the distance",
     "an ALiBi bias that grows with the distance",
     lambda s: replace(s, distance=-s.distance)),
    (SLOPED, "ALiBi sign", "no bias", "no ALiBi bias",
     lambda s: replace(s, distance=0 * s.distance)),
    (SLOPED, "ALiBi place", "before the scale",
     "an ALiBi bias scaled with the scores",
     lambda s: replace(s, distance=s.distance * s.scale)),
    (SLOPED, "ALiBi distance", "-|i - j| from the top-left",
     "ALiBi distances |i - j| from the top-left",
     lambda s: replace(s, distance=-np.abs(np.arange(s.shape[-1]) - np.arange(s.shape[-2])[:,
     None]))),
    (SLOPED, "ALiBi distance", "visible keys counted",
     "an ALiBi bias that counts visible keys",
     lambda s: replace(s, distance=np.cumsum(s.sees, axis=-1))),
    (SLOPED, "ALiBi dtype", "storage",
     "slope times distance kept in the dtype of the inputs", in_storage),
    (SHIFTED, "position shift", "none", "positions that are not shifted", with_shift(lambda x: x)),
    (SHIFTED, "position shift", "shift_right", "positions moved by shift_right",
     with_shift(shift_right)),
    (SHIFTED, "position shift", "table from the smallest distance on",
     "a position table read from the smallest distance on",
     with_shift(read_backwards)),
    (lambda op: SHIFTED(op) and op.is_score, "position shift", "nothing wraps around",
     "a shift that puts zeros where it wraps around",
     lambda s: replace(s, place=np.where(causal_mask(*s.shape[-2:]), s.place, -1))),
    (SHIFTED, "u and v", "exchanged", "u and v exchanged", with_u_and_v_exchanged),
    (SHIFTED, "position scores", "left out", "no position scores",
     lambda s: replace(s, position=0.0)),
    (SHIFTED, "position scores", "not scaled", "position scores that are not scaled",
     lambda s: replace(s, position=1 / s.scale)),
    (TABLES, "table alignment", "always end", "a table aligned at the end whatever is asked",
     aligned("end")),
    (TABLES, "table alignment", "always start", "a table aligned at the start whatever is asked",
     aligned("start")),
    (TABLES, "table alignment", "the other", "the two table alignments exchanged",
     with_table_rows(lambda x, N, M: table_rows(x, N, M, M - N - offset_of(x, N, M)))),
    (TABLES, "table direction", "i - j", "a table read at i - j",
     with_table_rows(lambda x, N, M: table_rows(x, N, M, offset_of(x, N, M), -1))),
    (TABLES, "table direction", "one row on", "a table read one row on",
     with_table_rows(lambda x, N, M: table_rows(x, N, M, offset_of(x, N, M) - 1))),
    (TABLES, "table direction", "one row on, clipped",
     "a table read one row on and clipped at its end",
     with_table_rows(lambda x, N, M: clipped_rows(x, N, M, offset_of(x, N, M) - 1))),
    (TABLES, "table direction", "one row back", "a table read one row back",
     with_table_rows(lambda x, N, M: table_rows(x, N, M, offset_of(x, N, M) + 1))),
    (TABLES, "position scores", "left out", "no position scores",
     lambda s: replace(s, position=0.0)),
    (TABLES, "position scores", "not scaled", "position scores that are not scaled",
     lambda s: replace(s, position=1 / s.scale)),
)  # fmt: skip

SPEC_ANSWERS = {
    "scale": "1/sqrt(D)",
    "causal alignment": "end",
    "keys without a mask": "all",
    "mask polarity": "True = may attend",
    "float mask": "added after the scale",
    "rows without keys": "0",
    "dropout scale": "1/(1-p)",
    "dropout": "True = kept",
    "ALiBi slopes": "2^(-8(h+1)/n), then every other slope of 2n heads",
    "ALiBi sign": "falls with the distance",
    "ALiBi place": "after the scale",
    "ALiBi distance": "positions",
    "ALiBi dtype": "wider than the inputs",
    "position shift": "rel_shift",
    "u and v": "u to the keys, v to the positions",
    "position scores": "added before the scale",
    "table alignment": "as asked",
    "table direction": "j - i",
}
"""What the specification answers."""
