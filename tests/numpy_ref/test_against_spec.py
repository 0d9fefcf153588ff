"""
numpy_ref against the specification, on small seeded draws: every operation, option and refusal;
exact where numbers only move.
"""

import importlib
import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy import ndarray

from attnverify import numpy_ref, spec
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.pytrees import map_leaves

SEEDS = range(60)
FORMATS = ["float64", "float32", "float16", "bfloat16"]
Case = tuple[str, list[Any], dict[str, Any]]


class Draw:
    """Seeded sizes and arrays; a letter keeps its size for the whole case."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.size = {letter: int(self.rng.choice([1, 2, 3, 4, 7])) for letter in "BHNMDEFQKASL"} | {
            "S": int(self.rng.integers(0, 5))
        }
        self.size["P"] = max(self.size["N"], self.size["M"]) + int(self.rng.integers(0, 3))

    def floats(self, axes: str) -> ndarray:
        return self.rng.standard_normal(
            [int(word[:-1] or 1) * self.size[word[-1]] for word in axes.split()]
        )

    def arrays(self, *axes: str) -> list[ndarray]:
        return [self.floats(each) for each in axes]

    def bools(self, *shape: int, share: float = 0.6) -> ndarray:
        return np.asarray(self.rng.random(shape) < share)

    def some(self, *shape: int) -> tuple[int, ...]:
        """A shape that broadcasts to this one, with fewer axes or with axes of 1."""
        kept = tuple(size if self.rng.random() < 0.7 else 1 for size in shape)
        return kept[self.rng.integers(0, len(shape) + 1) :] if self.rng.random() < 0.3 else kept

    def visible(self, *shape: int) -> ndarray | None:
        return None if self.rng.random() < 0.2 else self.bools(*self.some(*shape))

    def mask(self, *shape: int) -> ndarray | None:
        visible = self.visible(*shape)
        if visible is None or self.rng.random() < 0.5:
            return visible
        return np.where(visible, self.rng.standard_normal(visible.shape), -np.inf)

    def draw(self, *shape: int) -> dict[str, Any]:
        """A keep mask and p, or neither."""
        return (
            {}
            if self.rng.random() < 0.5
            else {
                "keep": self.bools(*self.some(*shape)),
                "p": float(self.rng.choice([0.0, 0.3, 0.75])),
            }
        )

    def sizes(self, letters: str) -> list[int]:
        return [self.size[letter] for letter in letters]


def dot_product(d: Draw) -> Case:
    shape = d.sizes("BHNM")
    arrays = d.arrays("B H N D", "B H M D", "B H M E")
    return "scaled_dot_product_attention", arrays, {"mask": d.mask(*shape)} | d.draw(*shape)


def additive(d: Draw) -> Case:
    shape = d.sizes("BNM")
    arrays = d.arrays("B N Q", "B M K", "B M E", "A Q", "A K", "A")
    return "additive_attention", arrays, {"mask": d.mask(*shape)} | d.draw(*shape)


def alibi(d: Draw) -> Case:
    return (
        "alibi_attention",
        d.arrays("B H N D", "B H M D", "B H M E"),
        {"visible": d.visible(*d.sizes("BHNM"))},
    )


def transformer_xl(d: Draw) -> Case:
    arrays = d.arrays("B H N D", "B H M D", "B H M E", "H M D", "H D", "H D")
    return "transformer_xl_attention", arrays, {"visible": d.visible(*d.sizes("BHNM"))}


def learned(d: Draw) -> Case:
    arrays = d.arrays("B H N D", "B H M D", "B H M E", "2P H D", "2P H", "H D")
    return (
        "learned_relative_attention",
        arrays,
        {"align": str(d.rng.choice(["end", "start"])), "visible": d.visible(*d.sizes("BHNM"))},
    )


ATTENTIONS = [dot_product, additive, alibi, transformer_xl, learned]
SCORES = {
    "scaled_dot_product_score": ["B H N D", "B H M D"],
    "additive_score": ["B N Q", "B M K", "A Q", "A K", "A"],
    "transformer_xl_score": ["B H N D", "B H M D", "H M D", "H D", "H D"],
}


def model_width(d: Draw) -> None:
    d.size["F"] = d.size["H"] * 2 * d.size["D"]
    d.size["D"] *= 2


def weights(d: Draw, **axes: str) -> dict[str, ndarray]:
    """Parameters, of a size that keeps the logits near 1; half of the biases are absent."""
    names = {name.replace("__", "."): each for name, each in axes.items()}
    there = {
        name: d.floats(each)
        for name, each in names.items()
        if not name.endswith(".bias") or d.rng.random() < 0.5
    }
    return {name: x / np.sqrt(x.shape[-1]) for name, x in there.items()}


def square(*names: str) -> dict[str, str]:
    return {f"{name}__weight": "F F" for name in names} | {f"{name}__bias": "F" for name in names}


def merged(d: Draw, N: int, M: int) -> list[ndarray | None]:
    B, H = d.sizes("BH")
    hides = [None, d.bools(N, M), d.bools(B * H, N, M, share=0.3)][d.rng.integers(0, 3)]
    if hides is not None and d.rng.random() < 0.5:
        hides = np.where(hides, -np.inf, d.rng.standard_normal(hides.shape))
    return [hides, None if d.rng.random() < 0.4 else d.bools(B, M, share=0.4)]


def self_layer(d: Draw) -> Case:
    model_width(d)
    parameters = weights(d, w_query="K F", w_key="K F", w_value="E F")
    return "self_attention", [d.floats("B N F"), parameters], {"mask": d.mask(*d.sizes("BNN"))}


def multi_head(d: Draw) -> Case:
    model_width(d)
    parameters = weights(d, **square("q_proj", "k_proj", "v_proj", "out_proj"))
    return (
        "multi_head_attention",
        [*d.arrays("B N F", "B M F", "B M F"), parameters, d.size["H"], *merged(d, *d.sizes("NM"))],
        {},
    )


def multi_head_self(d: Draw) -> Case:
    model_width(d)
    parameters = weights(d, **square("q_proj", "k_proj", "v_proj", "out_proj"))
    return (
        "multi_head_self_attention",
        [d.floats("B N F"), parameters, d.size["H"], *merged(d, *d.sizes("NN"))],
        {},
    )


def relative_layer(d: Draw) -> Case:
    model_width(d)
    axes = {"query.linear.weight": "F F", "key.linear.weight": "F F"} | square(
        "value.linear", "output"
    )
    parameters = weights(
        d, **axes, key_pos_embeddings="2P H D", key_pos_bias="2P H", query_pos_bias="H D"
    )
    inputs = d.arrays("B N F", "B M F", "B M F")
    align = str(d.rng.choice(["end", "start"]))
    return (
        "relative_multi_head_attention",
        [*inputs, parameters, d.size["H"], align, d.visible(*d.sizes("BHNM"))],
        {},
    )


def alibi_layer(d: Draw) -> Case:
    model_width(d)
    parameters = weights(d, **square("query.linear", "key.linear", "value.linear", "output"))
    return (
        "alibi_multi_head_attention",
        [*d.arrays("B N F", "B N F", "B N F"), parameters, d.size["H"], d.bools(*d.sizes("NN"))],
        {},
    )


def xl_parameters(d: Draw) -> dict[str, ndarray]:
    axes = {
        "qkv_net.weight": "3F F",
        "qkv_net.bias": "3F",
        "layer_norm.weight": "F",
        "layer_norm.bias": "F",
        "u": "H D",
        "v": "H D",
    }
    fed = {
        "ff_in.weight": "A F",
        "ff_in.bias": "A",
        "ff_out.weight": "F A",
        "ff_out.bias": "F",
        "ff_norm.weight": "F",
        "ff_norm.bias": "F",
    }
    option = fed if d.rng.random() < 0.5 else {}
    return weights(d, **axes, **square("r_net", "o_net"), **option)


def xl_layer(d: Draw) -> Case:
    model_width(d)
    mem = None if d.rng.random() < 0.3 else d.floats("B S F")
    d.size["M"] = d.size["N"] + (0 if mem is None else d.size["S"])
    x, position = d.arrays("B N F", "M F")
    return (
        "transformer_xl_layer",
        [x, position, xl_parameters(d), d.size["H"], mem, d.visible(*d.sizes("BHNM"))],
        {"eps": 1e-3},
    )


def xl_stack(d: Draw) -> Case:
    model_width(d)
    layers = range(d.size["L"] % 3 + 1)
    mems = None if d.rng.random() < 0.2 else [d.floats("B S F") for _ in layers]
    return (
        "transformer_xl",
        [
            d.floats("B N F"),
            [xl_parameters(d) for _ in layers],
            d.size["H"],
            mems,
            int(d.rng.integers(0, 9)),
        ],
        {},
    )


LAYERS = [self_layer, multi_head, multi_head_self, relative_layer, alibi_layer, xl_layer, xl_stack]


def leaves(result: Any) -> list[ndarray]:
    """The arrays in a result or in arguments, in order."""
    if isinstance(result, (list, tuple, dict)):
        return [
            leaf
            for part in (result.values() if isinstance(result, dict) else result)
            for leaf in leaves(part)
        ]
    return [np.asarray(result)] if isinstance(result, (ndarray, np.generic)) else []


def outcome(column: Any, case: Case, grad: ndarray | None = None) -> list[ndarray]:
    name, args, options = case
    first = [] if grad is None else [grad]
    with np.errstate(
        all="ignore"
    ):  # the specification may warn about what is hidden; numpy_ref's own warnings are tested below
        return leaves(getattr(column, name + "_grad" * len(first))(*first, *args, **options))


def assert_close(actual: list[ndarray], expected: list[ndarray], ulps: int = 64) -> None:
    """
    Equal but for some ulps of the largest element; NaN where NaN is expected and nowhere else.
    """
    assert [x.shape for x in actual] == [x.shape for x in expected]
    for got, wanted in zip(actual, expected, strict=True):
        scale = 1 + np.max(np.abs(wanted), where=np.isfinite(wanted), initial=0)
        same = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
        with np.errstate(invalid="ignore"):
            assert np.all(same | (np.abs(got - wanted) <= ulps * 2.0**-52 * scale)), (got, wanted)


def assert_same_bits(actual: list[ndarray], expected: list[ndarray]) -> None:
    assert [(x.shape, x.dtype, x.tobytes()) for x in actual] == [
        (x.shape, x.dtype, x.tobytes()) for x in expected
    ]


def poisoned(case: Case, seed: int, poison: float) -> Case:
    """
    Some rows of each array hold the poison, hidden or seen: the specification says whom it reaches.
    """
    rng = np.random.default_rng(seed)
    name, args, options = case
    args = [np.where(rng.random((*x.shape[:-1], 1)) < 0.15, poison, x) for x in args]
    return name, args, options


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("make", ATTENTIONS + LAYERS)
def test_agrees_with_the_specification(make: Callable[[Draw], Case], seed: int) -> None:
    case = make(Draw(seed))
    assert_close(outcome(numpy_ref, case), outcome(spec, case))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("make", ATTENTIONS)
def test_gradients_agree_with_the_specification(make: Callable[[Draw], Case], seed: int) -> None:
    case, d = make(Draw(seed)), Draw(seed)
    d_output = d.rng.standard_normal(outcome(numpy_ref, case)[0].shape)
    assert_close(outcome(numpy_ref, case, d_output), outcome(spec, case, d_output))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("name", SCORES)
def test_scores_agree_with_the_specification(name: str, seed: int) -> None:
    case: Case = name, Draw(seed).arrays(*SCORES[name]), {}
    assert_close(outcome(numpy_ref, case), outcome(spec, case))


@pytest.mark.parametrize("seed", range(20))
def test_softmax_and_dropout_agree_with_the_specification(seed: int) -> None:
    d = Draw(seed)
    score, shape = d.floats("B H N M"), d.sizes("BHNM")
    score[d.rng.random(score.shape) < 0.2] = d.rng.choice([-np.inf, np.inf, np.nan, 800.0])
    for case in [
        ("softmax", [score], {"mask": d.mask(*shape)}),
        ("dropout", [score, d.bools(*d.some(*shape)), 0.3], {}),
    ]:
        assert_close(outcome(numpy_ref, case), outcome(spec, case))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("make", ATTENTIONS)
def test_poison_reaches_exactly_whom_the_specification_lets_it_reach(
    make: Callable[[Draw], Case], poison: float, seed: int
) -> None:
    case = poisoned(make(Draw(seed)), seed, poison)
    assert_close(outcome(numpy_ref, case), outcome(spec, case))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("make", ATTENTIONS)
def test_poison_reaches_exactly_the_gradients_the_specification_lets_it_reach(
    make: Callable[[Draw], Case], seed: int
) -> None:
    case = poisoned(make(Draw(seed)), seed, np.nan)
    _, (d_output,), _ = poisoned(("", outcome(spec, make(Draw(seed))), {}), seed + 1, np.nan)
    assert_close(outcome(numpy_ref, case, d_output), outcome(spec, case, d_output))


def test_a_leak_of_poison_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "attnverify.numpy_ref.hidden_keys.sum_seen", lambda factor, hidden, value: factor @ value
    )
    with pytest.raises(AssertionError):
        for seed in SEEDS:
            test_poison_reaches_exactly_whom_the_specification_lets_it_reach(alibi, np.nan, seed)


@pytest.mark.parametrize("wrong", [1.0 + 1e-12, np.nan, np.inf])
def test_a_wrong_number_would_be_seen(wrong: float) -> None:
    with pytest.raises(AssertionError):
        assert_close([np.array([0.5, wrong])], [np.array([0.5, 1.0])])


@pytest.mark.parametrize("seed", range(20))
def test_additive_blocks_change_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnverify.numpy_ref.scores.BLOCK", 1)
    case = additive(Draw(seed))
    d_output = outcome(spec, case)[0]
    assert_close(outcome(numpy_ref, case), [d_output])
    assert_close(outcome(numpy_ref, case, d_output), outcome(spec, case, d_output))


def any_bits(d: Draw, axes: str, dtype: str) -> ndarray:
    """Random bits as floats: NaN payloads, infinities, subnormals, both zeros."""
    storage = numpy_ref.from_numpy(np.zeros(1), dtype).dtype
    return d.rng.integers(0, 256, (*d.sizes(axes), storage.itemsize), dtype=np.uint8).view(storage)[
        ..., 0
    ]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("name", ["shift_right", "rel_shift"])
def test_shifts_move_every_bit_as_the_specification_does(name: str, dtype: str, seed: int) -> None:
    x = any_bits(Draw(seed), "BHNM", dtype)
    source = getattr(spec, name)(np.arange(1.0, x.size + 1).reshape(x.shape)).astype(
        int
    )  # 0 where the specification has a zero
    assert_same_bits(
        [getattr(numpy_ref, name)(x)],
        [np.concatenate([np.zeros(1, x.dtype), x.reshape(-1)])[source]],
    )


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("dtype", FORMATS)
def test_memory_moves_every_bit_as_the_specification_does(dtype: str, seed: int) -> None:
    d = Draw(seed)
    hids, mems, mem_len = (
        any_bits(d, "LBNF", dtype),
        any_bits(d, "LBSF", dtype),
        int(d.rng.integers(0, 12)),
    )
    expected = np.concatenate([mems, hids], axis=2)[
        :, :, max(0, d.size["S"] + d.size["N"] - mem_len) :
    ]
    assert_same_bits(leaves(numpy_ref.update_mems(list(hids), list(mems), mem_len)), list(expected))


@pytest.mark.parametrize("seed", SEEDS)
def test_memory_keeps_what_the_specification_keeps(seed: int) -> None:
    d = Draw(seed)
    hids, mems, mem_len = (
        list(any_bits(d, "LBNF", "float64")),
        list(any_bits(d, "LBSF", "float64")),
        int(d.rng.integers(0, 12)),
    )
    assert_same_bits(
        leaves(numpy_ref.update_mems(hids, mems, mem_len)),
        leaves(spec.update_mems(hids, mems, mem_len)),
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_merges_masks_bit_for_bit(seed: int) -> None:
    d = Draw(seed)
    case: Case = "merge_masks", [*merged(d, *d.sizes("NM")), d.size["H"]], {}
    assert_same_bits(outcome(numpy_ref, case), outcome(spec, case))


def test_a_float_mask_keeps_its_bits_in_every_format() -> None:
    for storage in (np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)):
        mask = np.array([[-0.0, np.nan, 1.5]]).astype(storage)
        merged_mask = numpy_ref.merge_masks(mask, np.array([[False, False, True]]), 1)
        assert (
            merged_mask.dtype == storage
            and merged_mask[0, 0, :, :2].tobytes() == mask[:, :2].tobytes()
        )
        assert merged_mask[0, 0, 0, 2] == -np.inf


@pytest.mark.parametrize("column", [spec, numpy_ref])
def test_a_mask_with_axes_for_batch_and_heads_apart_is_refused_by_name(column: Any) -> None:
    for lead in ((2, 1), (2, 3), (1, 2)):
        with pytest.raises(ValueError, match=r"attn_mask: wanted shape \[N M\] or \[B\*H N M\]"):
            column.merge_masks(np.zeros((*lead, 3, 4), bool), None, 2)


@pytest.mark.parametrize("N", [1, 2, 3, 8])
@pytest.mark.parametrize("M", [1, 2, 5, 13])
def test_makes_masks_positions_slopes_and_memories_as_the_specification_does(
    N: int, M: int
) -> None:
    visible = np.random.default_rng(N * M).random((N, M)) < 0.5
    assert_same_bits([numpy_ref.causal_mask(N, M)], [spec.causal_mask(N, M)])
    assert_same_bits(leaves(numpy_ref.init_mems(N, M, 2, 3)), leaves(spec.init_mems(N, M, 2, 3)))
    assert_close([numpy_ref.get_slopes(N * M)], [spec.get_slopes(N * M)], 2)
    assert_close([numpy_ref.get_alibi_biases(N, visible)], [spec.get_alibi_biases(N, visible)], 2)
    assert_close(
        [numpy_ref.sinusoidal_positions(M, 2 * N)], [spec.sinusoidal_positions(M, 2 * N)], 4
    )


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("make", ATTENTIONS + LAYERS)
def test_results_have_the_dtype_of_their_inputs_and_are_rounded_once(
    make: Callable[[Draw], Case], dtype: str
) -> None:
    name, args, options = make(Draw(7))
    narrow = numpy_ref.rounding.each(partial(numpy_ref.from_numpy, dtype=dtype), [args, options])
    wide = numpy_ref.rounding.each(
        lambda x: x.astype(np.promote_types(x.dtype, np.float32)), narrow
    )
    got = outcome(numpy_ref, (name, *narrow))
    storage = numpy_ref.from_numpy(np.zeros(1), dtype).dtype
    assert {x.dtype for x in got} <= {storage}
    assert_same_bits(got, [x.astype(storage) for x in outcome(numpy_ref, (name, *wide))])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_results_without_a_float_input_have_the_dtype_asked_for(dtype: str) -> None:
    hides, storage = np.array([[True, False]]), numpy_ref.from_numpy(np.zeros(1), dtype).dtype
    results = [
        numpy_ref.get_slopes(6, dtype=dtype),
        numpy_ref.get_alibi_biases(6, hides, dtype=dtype),
    ]
    results += [
        numpy_ref.sinusoidal_positions(3, 4, dtype=dtype),
        *leaves(numpy_ref.init_mems(1, 1, 1, 1, dtype=dtype)),
    ]
    results += [
        numpy_ref.merge_masks(hides, None, 1, dtype=dtype),
        numpy_ref.merge_masks(None, hides, 1, dtype=storage),
    ]
    assert {x.dtype for x in results} == {storage}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("make", ATTENTIONS)
def test_warns_of_nothing(make: Callable[[Draw], Case], dtype: str) -> None:
    name, args, options = poisoned(make(Draw(11)), 11, np.inf)
    args = [numpy_ref.from_numpy(x * 1e4, dtype) for x in args]
    output = getattr(numpy_ref, name)(*args, **options)
    getattr(numpy_ref, f"{name}_grad")(output, *args, **options)


@pytest.mark.parametrize("make", ATTENTIONS + LAYERS)
def test_inputs_are_neither_changed_nor_shared(make: Callable[[Draw], Case]) -> None:
    case = make(Draw(5))
    inputs = leaves([*case[1], case[2]])
    before = [x.copy() for x in inputs]
    outputs = outcome(numpy_ref, case)
    assert_same_bits(inputs, before)
    assert not any(np.shares_memory(x, y) for x in inputs for y in outputs)


def zeros(*shape: int) -> ndarray:
    return np.zeros(shape)


def shown(*shape: int) -> ndarray:
    return np.ones(shape, bool)


def squares(*names: str) -> dict[str, ndarray]:
    return {f"{name}.weight": zeros(6, 6) for name in names}


# every size of a right call is another prime (or 4, 6): what is wrong below is wrong for one reason
HEADS = {"query": zeros(2, 3, 5, 4), "key": zeros(2, 3, 7, 4), "value": zeros(2, 3, 7, 11)}
MODEL = {"query": zeros(2, 5, 6), "key": zeros(2, 7, 6), "value": zeros(2, 7, 6)}
ADDITIVE = {"query": zeros(2, 5, 4), "key": zeros(2, 7, 3), "value": zeros(2, 7, 11)} | {
    "w_query": zeros(6, 4),
    "w_key": zeros(6, 3),
    "w_score": zeros(6),
}
XL = HEADS | {"position": zeros(3, 7, 4), "u": zeros(3, 4), "v": zeros(3, 4)}
TABLES = {
    "key_pos_embeddings": zeros(16, 3, 4),
    "key_pos_bias": zeros(16, 3),
    "query_pos_bias": zeros(3, 4),
}
D_OUTPUT = {"d_output": zeros(2, 3, 5, 11)}
NET = squares("r_net", "o_net") | {
    "qkv_net.weight": zeros(18, 6),
    "layer_norm.weight": zeros(6),
    "u": zeros(3, 2),
    "v": zeros(3, 2),
}
LABML = squares("query.linear", "key.linear", "value.linear", "output")
RIGHT: dict[str, dict[str, Any]] = {
    "additive_score": {name: x for name, x in ADDITIVE.items() if name != "value"},
    "scaled_dot_product_score": {"query": zeros(2, 5, 4), "key": zeros(2, 7, 4)},
    "causal_mask": {"N": 2, "M": 3},
    "merge_masks": {"attn_mask": shown(6, 5, 7), "key_padding_mask": shown(2, 7), "num_heads": 3},
    "softmax": {"score": zeros(3, 5, 7), "mask": shown(5, 7)},
    "dropout": {"weights": zeros(3, 5, 7), "keep": shown(5, 7), "p": 0.5},
    "scaled_dot_product_attention": HEADS | {"mask": shown(5, 7), "keep": shown(5, 7), "p": 0.5},
    "scaled_dot_product_attention_grad": D_OUTPUT | HEADS,
    "additive_attention": ADDITIVE | {"mask": shown(2, 1, 7)},
    "additive_attention_grad": {"d_output": zeros(2, 5, 11)} | ADDITIVE,
    "shift_right": {"x": zeros(5, 7)},
    "rel_shift": {"x": zeros(5, 7)},
    "sinusoidal_positions": {"M": 3, "F": 4},
    "transformer_xl_score": {name: x for name, x in XL.items() if name != "value"},
    "transformer_xl_attention": XL | {"visible": shown(2, 1, 5, 7)},
    "transformer_xl_attention_grad": D_OUTPUT | XL,
    "learned_relative_score": {"query": zeros(2, 3, 5, 4), "key": zeros(2, 3, 7, 4)}
    | TABLES
    | {"align": "end"},
    "learned_relative_attention": HEADS | TABLES | {"align": "start", "visible": shown(5, 7)},
    "learned_relative_attention_grad": D_OUTPUT | HEADS | TABLES | {"align": "end"},
    "get_slopes": {"n_heads": 3},
    "get_alibi_biases": {"n_heads": 3, "visible": shown(5, 7)},
    "alibi_attention": HEADS | {"visible": shown(5, 7)},
    "alibi_attention_grad": D_OUTPUT | HEADS,
    "init_mems": {"n_layers": 1, "mem_len": 2, "batch": 1, "width": 1},
    "update_mems": {"hids": [zeros(2, 5, 6)], "mems": [zeros(2, 3, 6)], "mem_len": 2},
    "self_attention": {
        "x": zeros(2, 5, 6),
        "parameters": {"w_query": zeros(4, 6), "w_key": zeros(4, 6), "w_value": zeros(3, 6)},
    },
    "multi_head_attention": MODEL
    | {"parameters": squares("q_proj", "k_proj", "v_proj", "out_proj"), "num_heads": 3},
    "multi_head_self_attention": {
        "x": zeros(2, 5, 6),
        "parameters": squares("q_proj", "k_proj", "v_proj", "out_proj"),
        "num_heads": 3,
    },
    "relative_multi_head_attention": MODEL
    | {
        "parameters": LABML
        | TABLES
        | {"key_pos_embeddings": zeros(16, 3, 2), "query_pos_bias": zeros(3, 2)}
    }
    | {"num_heads": 3, "align": "end"},
    "alibi_multi_head_attention": {name: zeros(2, 5, 6) for name in MODEL}
    | {"parameters": LABML, "num_heads": 3, "visible": shown(5, 5)},
    "transformer_xl_layer": {
        "x": zeros(2, 5, 6),
        "position": zeros(8, 6),
        "parameters": NET,
        "num_heads": 3,
        "mem": zeros(2, 3, 6),
    },
    "transformer_xl": {
        "x": zeros(2, 5, 6),
        "parameters": [NET, NET],
        "num_heads": 3,
        "mems": [zeros(2, 3, 6)] * 2,
        "mem_len": 4,
    },
}


def gradient_call(name: str, call: dict[str, Any]) -> dict[str, Any]:
    """The gradient of a right call, by all its outputs."""
    outputs = getattr(spec, name)(**call)
    arriving = map_leaves(np.zeros_like, outputs if isinstance(outputs, tuple) else (outputs,))
    arguments = CATALOGUE[f"{name}_grad"].arguments
    of_outputs = [argument for argument in arguments if argument.startswith("d_")]
    kept = {argument: x for argument, x in call.items() if argument in arguments}
    return dict(zip(of_outputs, arriving, strict=True)) | kept


RIGHT |= {
    f"{name}_grad": gradient_call(name, call)
    for name, call in RIGHT.items()
    if f"{name}_grad" in set(CATALOGUE) - set(RIGHT)
}


def wrong_values(right: Any) -> list[Any]:
    """What one argument may be wrongly: another type, kind, rank or size."""
    if isinstance(right, ndarray):
        longer = [
            np.concatenate([right, right.take([0], axis)], axis) for axis in range(right.ndim)
        ]
        other = right.astype(float) if right.dtype == bool else right.astype(bool)
        return [
            *longer,
            right[None],
            right[..., 0],
            right[:0],
            other,
            right.astype(int),
            right.tolist(),
            "x",
        ]
    if isinstance(right, dict):
        changed = [right | {name: zeros(9, 9)} for name in right] + [
            {n: x for n, x in right.items() if n != name} for name in right
        ]
        return [right | {"unknown": zeros(1)}, *changed, list(right)]
    if isinstance(right, list):
        return [
            right[:-1],
            right * 2,
            [None] * len(right),
            [[x] for x in right],
            *([x] for x in wrong_values(right[0])),
            3,
        ]
    return ["x", -1, 1.5, 5, None, True, np.nan, zeros(1)]


WRONG = [
    (name, argument, number)
    for name, call in RIGHT.items()
    for argument, right in call.items()
    for number in range(len(wrong_values(right)))
]


def refusal(column: Any, name: str, call: dict[str, Any]) -> str | None:
    """The argument that a ValueError blames, None where there is none."""
    try:
        getattr(column, name)(**call)
    except ValueError as error:
        blamed = re.fullmatch(r"([\w.]+): wanted .+, got .+", str(error))
        assert blamed, error
        return blamed[1]
    return None


@pytest.mark.parametrize("name", RIGHT)
def test_right_calls_are_not_refused(name: str) -> None:
    assert refusal(numpy_ref, name, RIGHT[name]) is None


@pytest.mark.parametrize(("name", "argument", "number"), WRONG)
def test_refuses_what_the_specification_refuses_and_blames_the_same_argument(
    name: str, argument: str, number: int
) -> None:
    call = RIGHT[name] | {argument: wrong_values(RIGHT[name][argument])[number]}
    assert refusal(numpy_ref, name, call) == refusal(spec, name, call)


FLOATS = [
    (name, argument)
    for name, call in RIGHT.items()
    for argument, x in call.items()
    if isinstance(x, ndarray) and x.dtype.kind == "f"
]


@pytest.mark.parametrize(("name", "argument"), FLOATS)
def test_refuses_complex_numbers(name: str, argument: str) -> None:
    assert (
        refusal(numpy_ref, name, RIGHT[name] | {argument: RIGHT[name][argument] * 1j}) == argument
    )


@pytest.mark.parametrize("dtype", ["int32", "float33", "complex64", object()])
def test_refuses_a_dtype_that_is_no_float(dtype: Any) -> None:
    assert refusal(numpy_ref, "get_slopes", {"n_heads": 3, "dtype": dtype}) == "dtype"


@pytest.mark.parametrize(
    "chapter", ["scores", "masks", "attention", "shifts", "relative", "alibi", "memory", "layers"]
)
def test_has_the_operations_and_parameters_of_the_specification(chapter: str) -> None:
    chapter_of_spec, column = (
        importlib.import_module(f"attnverify.{package}.{chapter}")
        for package in ("spec", "numpy_ref")
    )
    assert column.__all__ == chapter_of_spec.__all__
    for name in chapter_of_spec.__all__:
        own = [
            (p.name, p.default)
            for p in inspect.signature(getattr(column, name)).parameters.values()
            if p.name != "dtype"
        ]
        assert own == [
            (p.name, p.default)
            for p in inspect.signature(getattr(chapter_of_spec, name)).parameters.values()
        ]


def test_is_a_backend() -> None:
    x = np.array([1.0, np.pi, -0.0, np.inf])
    for dtype, digits in [("float64", 52), ("float32", 23), ("float16", 10), ("bfloat16", 7)]:
        there = numpy_ref.to_numpy(numpy_ref.from_numpy(x, dtype))
        assert there.dtype == np.float64 and there[1] == round(np.pi * 2 ** (digits - 1)) / 2 ** (
            digits - 1
        )
    assert (
        numpy_ref.from_numpy(x > 2, "float16").dtype == bool
        and numpy_ref.from_numpy(np.arange(3), "float16").dtype == int
    )
    assert numpy_ref.missing() is None and numpy_ref.PRECISION == "wide"
    numpy_ref.synchronize()
