"""
Sabotages made by hand: each changes one passage of a column or of the judge, in a way that once no
test noticed, or none but the seeded faults. With each stand the tests that notice it.
"""

from dataclasses import dataclass
from pathlib import Path

from tests.mutation.changes import Mutant
from tests.mutation.targets import JUDGED, LEGAL_ORDERS, NO_WAY_ROUND, judged

POISON = "tests/numpy_ref/test_against_spec.py"
RECIPES = "tests/attnverify/inputs/test_recipes.py"


@dataclass(frozen=True)
class Sabotage:
    """One passage of one file, what stands there instead, and the tests that must notice."""

    name: str
    path: str
    before: str
    after: str
    tests: tuple[str, ...]

    def mutant(self, root: Path) -> Mutant:
        """The change of the file as it is now, in which the passage stands once."""
        source = (root / self.path).read_bytes()
        start = source.index(self.before.encode())
        line = source[:start].count(b"\n") + 1
        end = start + len(self.before.encode())
        return Mutant(self.path, line, start, end, self.before, self.after)


SABOTAGES = (
    Sabotage(
        "the gradient of multi-head attention's query doubled",
        "torch_impl/projections.py",
        "split_heads(project(x), H)\n",
        "split_heads(project(2 * x - x.detach()), H)\n",
        judged(
            "torch_impl",
            "layers",
            f"gradients and multi_head_attention and not relative and not alibi and {NO_WAY_ROUND}",
        ),
    ),
    Sabotage(
        "one draw of the dropout for all queries",
        "torch_impl/modules/dropout.py",
        "torch.rand(shape, device=like.device) >= p",
        "(torch.rand((*shape[:-2], 1, shape[-1]), device=like.device) >= p).expand(shape)",
        ("tests/torch_impl/test_modules.py", "-k", "dropout"),
    ),
    Sabotage(
        "queries 1.25 times as large where the width exceeds 130",
        "torch_impl/attention.py",
        "        return fused(query, key, value, bias, visible)\n",
        "        return fused(query * (1.25 if query.shape[-1] > 130 else 1), key, value, bias,"
        " visible)\n",
        judged("torch_impl", "attention", f"values and scaled_dot and {NO_WAY_ROUND}"),
    ),
    Sabotage(
        "an infinite value that is seen becomes NaN",
        "numpy_ref/hidden_keys.py",
        "    if finite.all():\n        return factor @ value\n",
        "    if not np.isnan(value).any():\n        return factor @ value\n",
        (POISON, "-k", "poison"),
    ),
    Sabotage(
        "additive attention's gradient of the last block of queries alone",
        "numpy_ref/scores.py",
        "        d_k += slope.sum(axis=1)\n",
        "        d_k = slope.sum(axis=1)\n",
        (POISON, "-k", "additive or block"),
    ),
    Sabotage(
        "the exponent's error four times as large",
        "attnverify/bounds/softmax_rows.py",
        "    top = np.maximum(size, peak) - at.d + log(n)\n",
        "    top = 4 * (np.maximum(size, peak) - at.d + log(n))\n",
        LEGAL_ORDERS,
    ),
    Sabotage(
        "a linear map's error six times as large",
        "attnverify/bounds/layers.py",
        "    E = dot_error(value, factors[0], weight.T, factors[1], P, n)\n",
        "    E = 6 * dot_error(value, factors[0], weight.T, factors[1], P, n)\n",
        LEGAL_ORDERS,
    ),
    Sabotage(
        "only the first six outputs compared",
        "attnverify/judge/judging.py",
        "parts = enumerate(zip(outputs, expected, bounds, strict=True))",
        "parts = enumerate([*zip(outputs, expected, bounds, strict=True)][:6])",
        (*JUDGED[:1], "-k", "each_of_many"),
    ),
    Sabotage(
        "each row held to its largest bound",
        "attnverify/judge/comparison.py",
        "        within = error <= bound * ROUNDING\n",
        "        within = error <= bound.max(-1, keepdims=True, initial=0) * ROUNDING\n",
        ("tests/attnverify/judge/test_comparison.py",),
    ),
    Sabotage(
        "RuntimeError taken for a refusal",
        "attnverify/checks/registry.py",
        "isinstance(error.__cause__, ValueError)",
        "isinstance(error.__cause__, (ValueError, RuntimeError))",
        ("tests/attnverify/checks/test_invalid_calls.py",),
    ),
    Sabotage(
        "no call with a negative eps",
        "spec/domains.py",
        "Choices(1e-5, 1e-3), Refused(-1)]",
        "Choices(1e-5, 1e-3)]",
        ("tests/attnverify/checks/test_invalid_calls.py",),
    ),
    Sabotage(
        "no call with values longer than the keys and without a mask",
        "attnverify/checks/invalid_calls.py",
        '(("key", "value"), ("value", "key")):',
        '(("key", "value"),):',
        ("tests/attnverify/checks/test_invalid_calls.py",),
    ),
    Sabotage(
        "no poison in table rows that nobody reads",
        "attnverify/inputs/poison.py",
        "    for name, rows in unread_table_rows(operation, inputs, visible).items():\n",
        "    for name, rows in ():\n",
        (RECIPES,),
    ),
    Sabotage(
        "the alignment at the start never drawn",
        "spec/domains.py",
        'Choices("end", "start")',
        'Choices("end")',
        (RECIPES,),
    ),
    Sabotage(
        "of a long output the first row alone",
        "attnverify/catalogue/rows.py",
        "    return sorted(rows)\n",
        "    return sorted(rows)[:1]\n",
        ("tests/attnverify/checks/test_long_sequences.py",),
    ),
    Sabotage(
        "no segments beside one long window",
        "attnverify/checks/metamorphic.py",
        "    if op.is_stack:\n",
        "    if op.is_stack and not op.name:\n",
        ("tests/attnverify/checks/test_metamorphic.py",),
    ),
    Sabotage(
        "no NaN in the memory that is free",
        "attnverify/judge/invoke.py",
        "np.full(x, np.nan), case.dtype)",
        "np.full(x, 0.0), case.dtype)",
        ("tests/attnverify/judge/test_judge.py", "-k", "freed_memory"),
    ),
    Sabotage(
        "the gradient of scores three times as uncertain",
        "attnverify/bounds/gradients/steps.py",
        "    E_dS = rounding_error(at.dS, rounding_error(at.dS, E_dS, P.prob), P.score)\n",
        "    E_dS = rounding_error(at.dS, rounding_error(at.dS, 3 * E_dS, P.prob), P.score)\n",
        LEGAL_ORDERS,
    ),
    Sabotage(
        "half of the gradient of Transformer-XL's position projection",
        "torch_impl/projections.py",
        '        projection("r_net"),\n',
        '        lambda x: (lambda y: 0.5 * y + 0.5 * y.detach())(projection("r_net")(x)),\n',
        judged("torch_impl", "layers", f"gradients and [transformer_xl_layer- and {NO_WAY_ROUND}"),
    ),
)
