"""Every run meets what models do beside training at usual widths; conditions of kernels, drawn."""

from collections.abc import Callable

import numpy as np
import pytest

from attnverify.inputs.real.calls import everyday_calls
from attnverify.inputs.recipe import Recipe
from attnverify.judge.case import case_of

Sizes = dict[str, int]
SDPA, GROUPED, ALIBI = "scaled_dot_product_attention", "grouped_attention", "alibi_attention"
LETTERS = "BCHGNMDEFASTUWYZ"


def given(recipe: Recipe, name: str) -> bool:
    return bool(recipe.options.get(name))


def is_uneven(heads: int) -> bool:
    """A number of heads above eight that is no power of two: slopes are of two kinds."""
    return heads > 8 and heads & (heads - 1) > 0


def counts(recipe: Recipe, name: str) -> np.ndarray:
    found: np.ndarray = np.diff(case_of(recipe, "float32").inputs[name])
    return found


MET: dict[str, tuple[str, Callable[[Sizes, Recipe], object]]] = {
    "one query, bare, a cache of 5000": (
        SDPA,
        lambda s, r: s["N"] == 1 and not r.mask and s["M"] > 5000,
    ),
    "one query, padded, a cache of 5000": (
        SDPA,
        lambda s, r: s["N"] == 1 and r.mask and s["M"] > 5000,
    ),
    "one query, each form of a float mask": (
        SDPA,
        lambda s, r: s["N"] == 1 and r.mask and r.mask["form"] == "noisy" and s["M"] > 1000,
    ),
    "one query of heads of 64": (SDPA, lambda s, r: s["N"] == 1 and s["D"] == 64 and s["M"] > 900),
    "one query of heads of 128": (
        SDPA,
        lambda s, r: s["N"] == 1 and s["D"] == 128 and s["M"] > 900,
    ),
    "a step of 160 heads": (SDPA, lambda s, r: s["N"] == 1 and s["B"] * s["H"] >= 160),
    "40 heads": (SDPA, lambda s, r: s["H"] == 40 and s["M"] > 256),
    "twelve heads of ALiBi": (ALIBI, lambda s, r: is_uneven(s["H"]) and s["N"] > 64),
    "twelve heads of its gradient": (
        f"{ALIBI}_grad",
        lambda s, r: is_uneven(s["H"]) and s["N"] > 64,
    ),
    "a step of ALiBi": (ALIBI, lambda s, r: is_uneven(s["H"]) and s["N"] == 1),
    "700 keys for 250 queries, a mask of truths": (
        SDPA,
        lambda s, r: r.mask and r.mask["form"] == "bool" and s["M"] > 700 and s["N"] > 250,
    ),
    "700 queries of 250 keys": (SDPA, lambda s, r: s["N"] > 700 and s["M"] > 250),
    "700 keys in a gradient": (f"{SDPA}_grad", lambda s, r: s["M"] > 700 and s["N"] > 250),
    "heads of 256": (SDPA, lambda s, r: s["D"] == s["E"] == 256 and s["M"] > 128),
    "heads of 192 with values of 128": (SDPA, lambda s, r: (s["D"], s["E"]) == (192, 128)),
    "heads of 32 in several tiles": (SDPA, lambda s, r: s["D"] == 32 and s["M"] > 128),
    "heads of 256 in a gradient": (f"{SDPA}_grad", lambda s, r: s["D"] == s["E"] == 256),
    "512 keys of 512 queries in groups": (
        GROUPED,
        lambda s, r: s["N"] == s["M"] == 512 and s["H"] > s["G"] > 1,
    ),
    "700 keys in groups": (GROUPED, lambda s, r: s["M"] > 700 and s["N"] > 250),
    "a step in groups": (GROUPED, lambda s, r: s["N"] == 1 and s["H"] > s["G"] > 1),
    "a step, five heads to one": (GROUPED, lambda s, r: s["N"] == 1 and s["H"] == 5 * s["G"]),
    "three heads to one": (GROUPED, lambda s, r: s["N"] > 64 and s["H"] == 3 * s["G"]),
    **{
        f"a step with a {name}": (
            GROUPED,
            lambda s, r, name=name: s["N"] == 1 and given(r, name) and s["M"] > 700,
        )
        for name in ("window", "sink", "soft_cap", "lengths")
    },
    "a few causal steps": (
        GROUPED,
        lambda s, r: 1 < s["N"] < 5 and given(r, "causal") and s["M"] > 700,
    ),
    "a causal piece of a prompt": (
        GROUPED,
        lambda s, r: given(r, "causal") and 200 < s["N"] < s["M"],
    ),
    "causal heads of 128": (
        GROUPED,
        lambda s, r: given(r, "causal") and s["D"] == 128 and s["N"] > 200,
    ),
    "a mask for each head, in groups": (
        GROUPED,
        lambda s, r: r.mask and "H" in r.mask["axes"] and s["H"] > s["G"] > 1 and s["N"] > 128,
    ),
    "latents of 512": ("latent_attention", lambda s, r: s["E"] == 512 and s["H"] == 16),
    "steps of packed sequences, in groups": (
        "packed_attention",
        lambda s, r: (
            s["H"] > s["G"] > 1
            and s["U"] > 1000
            and ((counts(r, "query_starts") == 1) & (counts(r, "key_starts") > 500)).any()
        ),
    ),
    "steps of pages, in groups": (
        "paged_attention",
        lambda s, r: s["H"] > s["G"] > 1 and s["T"] == s["B"] and s["Y"] * s["W"] > 700,
    ),
    "neighbours turned beyond row 300": (
        "rotary_embedding",
        lambda s, r: r.options["pairing"] == "interleaved" and s["N"] > 300,
    ),
    "8000 rows of a softmax": (
        "softmax",
        lambda s, r: s["N"] * int(np.prod(r.options["lead"])) > 8000 and s["M"] > 256,
    ),
    "a step of a layer": ("multi_head_attention", lambda s, r: s["N"] == 1 and s["F"] == 256),
    "long weights of a layer": (
        "multi_head_attention",
        lambda s, r: s["N"] > 128 and s["M"] > 700 and s["F"] == 256,
    ),
    "a step of Transformer-XL": (
        "transformer_xl_layer",
        lambda s, r: s["N"] == 1 and s["S"] > 700 and s["F"] == 256,
    ),
}


@pytest.mark.parametrize("words", MET)
@pytest.mark.parametrize("seed", range(3))
def test_every_run_meets(words: str, seed: int) -> None:
    operation, is_met = MET[words]
    calls = everyday_calls(operation, "quick", seed)
    assert any(is_met(dict.fromkeys(LETTERS, 1) | recipe.sizes, recipe) for recipe in calls)
