"""Classes of torch are judged as layers: each call is one of a module of the case's own weights."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attnverify.backends.calls.layer_modules import role_of
from attnverify.backends.functions import refused_of
from attnverify.backends.loader import load
from attnverify.catalogue.operation import CATALOGUE
from attnverify.diagnosis.factors.fit import fit_factor
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.inputs.sampling import resized
from attnverify.judge.case import case_of
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.judging import judge
from attnverify.judge.observation import observe
from attnverify.report.next_steps import describe_outcomes, for_backend
from attnverify.report.terminal_colours import fold
from attnverify.verdicts.fitting import CAUSAL
from attnverify.verdicts.found_out import find_plain_terms

torch = pytest.importorskip("torch")

HEAD = "import torch\nfrom torch import nn\n\n"
ATTEND = """
    def attend(self, q, k, v, heads, causal):
        q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))
        score = q @ k.mT / q.shape[-1] ** 0.5
        if causal:
            n = score.shape[-1]
            score = score.masked_fill(self.seen[:n, :n] == 0, -torch.inf)
        return (score.softmax(-1) @ v).transpose(1, 2).flatten(-2)
"""
JOINT = f"""
class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        assert config.n_embd % config.n_head == 0
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.n_head, self.drop = config.n_head, nn.Dropout(config.dropout)
        self.register_buffer("seen", torch.tril(torch.ones(config.block_size, config.block_size)))
{ATTEND}
    def forward(self, x):
        q, k, v = self.c_attn(x).split(x.shape[-1], dim=2)
        return self.c_proj(self.drop(self.attend(q, k, v, self.n_head, True)))
"""
APART = f"""
class Attention(nn.Module):
    def __init__(self, dim, heads=8, dim_head=64, dropout=0.1):
        super().__init__()
        self.heads, inner = heads, heads * dim_head
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_kv = nn.Linear(dim, 2 * inner, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner, dim), nn.Dropout(dropout))
{ATTEND}
    def forward(self, x):
        k, v = self.to_kv(x).chunk(2, -1)
        return self.to_out(self.attend(self.to_q(x), k, v, self.heads, False))
"""
BY_HEADS = """
class Head(nn.Module):
    def __init__(self, n_embd, head_size, block_size):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))

    def forward(self, x):
        k, q, n = self.key(x), self.query(x), x.shape[1]
        score = (q @ k.mT * k.shape[-1] ** -0.5).masked_fill(self.tril[:n, :n] == 0, -torch.inf)
        return score.softmax(-1) @ self.value(x)


class MultiHeadAttention(nn.Module):
    def __init__(self, num_heads, n_embd, block_size):
        super().__init__()
        size = n_embd // num_heads
        self.heads = nn.ModuleList([Head(n_embd, size, block_size) for _ in range(num_heads)])
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        return self.proj(torch.cat([h(x) for h in self.heads], dim=-1))


multi_head_self_attention = MultiHeadAttention
"""
CROSS = f"""
class MHA(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(d_model, d_model) for _ in range(4))
        self.n_heads = n_heads
{ATTEND}
    def forward(self, q, k, v):
        return self.W_o(self.attend(self.W_q(q), self.W_k(k), self.W_v(v), self.n_heads, False))
"""
TURNED = """
class SelfAttention(nn.Module):
    def __init__(self, d_in, d_out_kq, d_out_v):
        super().__init__()
        self.W_query = nn.Parameter(torch.rand(d_in, d_out_kq))
        self.W_key = nn.Parameter(torch.rand(d_in, d_out_kq))
        self.W_value = nn.Parameter(torch.rand(d_in, d_out_v))

    def forward(self, x):
        q, k, v = x @ self.W_query, x @ self.W_key, x @ self.W_value
        return (q @ k.mT / k.shape[-1] ** 0.5).softmax(-1) @ v
"""
SELF, PAIR, ONE = "multi_head_self_attention", "multi_head_attention", "self_attention"
FILES = {
    "joint": (JOINT, SELF, True, True),
    "apart": (APART, SELF, False, False),
    "by heads": (BY_HEADS, SELF, False, True),
    "cross": (CROSS, PAIR, True, False),
    "turned": (TURNED, ONE, False, False),
}
"""A file, the operation that it is, whether all projections have biases, whether it is causal."""
SIZES = {"B": 2, "N": 3, "M": 5, "F": 6, "H": 3, "D": 2, "E": 7, "K": 5}


def loaded(text: str, folder: Path) -> Any:
    file = folder / "mine.py"
    file.write_text(f'{HEAD}{text}\nFEATURES = {{"weights": False}}\n')
    backend = load(str(file))
    assert not backend.broken, backend.broken
    return backend


def case_for(operation: str, bias: bool, causal: bool) -> Any:
    own = CATALOGUE[operation]
    recipe = fixed_recipe(own, {x: SIZES[x] for x in own.sizes if x in SIZES}, seed=3)
    options = recipe.options | ({"biases": bias} if operation != ONE else {})
    return case_of(replace(recipe, options=options, mask=CAUSAL if causal else None), "float32")


@pytest.mark.parametrize("name", FILES)
def test_a_class_is_the_layer_that_its_arguments_and_weights_say(name: str, tmp_path: Path) -> None:
    text, operation, bias, causal = FILES[name]
    text += "\nCAUSAL = True\n" * causal
    backend = loaded(text, tmp_path)
    forward, gradient = backend.implementations
    assert forward.operation.name == operation
    assert judge(forward, case_for(operation, bias, causal)).budget < 1
    assert judge(gradient, case_for(f"{operation}_grad", bias, causal)).budget < 1


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("joint", "q, k, v = self.c_attn", "k, q, v = self.c_attn"),
        ("apart", "self.to_out(", "x + self.to_out("),
        ("by heads", "for h in self.heads", "for h in self.heads[::-1]"),
        ("cross", "self.W_v(v)", "self.W_v(k)"),
        ("turned", "x @ self.W_key", "x @ self.W_query"),
    ],
)
def test_a_wrong_one_is_wrong(name: str, old: str, new: str, tmp_path: Path) -> None:
    text, operation, bias, causal = FILES[name]
    assert old in text
    text = text.replace(old, new) + "\nCAUSAL = True\n" * causal
    forward, _ = loaded(text, tmp_path).implementations
    with pytest.raises(Disagreement):
        judge(forward, case_for(operation, bias, causal))


def test_that_a_layer_is_causal_is_found_out(tmp_path: Path) -> None:
    for text, _, _, causal in FILES.values():
        text = text.replace("CausalSelfAttention", "SelfAttention")
        forward, _ = loaded(text, tmp_path).implementations
        said = find_plain_terms(forward, "float32")
        assert said == ({"CAUSAL": True} if causal else {})


@pytest.mark.parametrize(
    ("name", "takes", "is_causal"),
    [
        ("causal_attention", "q, k, v", True),
        ("noncausal_attention", "q, k, v", False),
        ("causal_attention", "q, k, v, mask=None", False),
        ("causal_attention", "q, k, v, is_causal=False", False),
        ("CausalAttention", "x", True),
        ("CausalAttention", "x, attn_mask=None", False),
    ],
)
def test_what_is_called_causal_and_takes_no_mask_is_causal(
    name: str, takes: str, is_causal: bool, tmp_path: Path
) -> None:
    text = f"def {name}({takes}): ..."
    if takes[0] == "x":
        named = APART.replace("class Attention", f"class {name}")
        text = named.replace("(self, x)", f"(self, {takes})")
    backend = loaded(text, tmp_path)
    assert backend.declared.terms == ({"CAUSAL": True} if is_causal else {})
    assert ("causal, by its name or its file's" in backend.notes[0]) == is_causal


def test_a_bias_that_it_has_no_place_for_is_not_taken(tmp_path: Path) -> None:
    forward, _ = loaded(APART, tmp_path).implementations
    with pytest.raises(Unsupported, match="takes no q_proj"):
        judge(forward, case_for(SELF, bias=True, causal=False))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "dim, heads",
            "how_wide, many, dim, heads",
            'bias, block_size, d_out, d_v, perhaps: ARGUMENTS = {"how_wide": "d_model", "many": '
            '"num_heads"}',
        ),
        (
            "self.to_q =",
            "self.gate = nn.Linear(dim, 1)\n        self.to_q =",
            "its weight gate is known by no name; say what it is",
        ),
        (
            "self.to_kv =",
            "self.to_k =",
            "wanted one weight each for q, k, v, o, got to_q.weight, to_k",
        ),
    ],
)
def test_what_no_name_tells_is_refused_with_it(
    old: str, new: str, words: str, tmp_path: Path
) -> None:
    text = APART.replace(old, new)
    (tmp_path / "mine.py").write_text(f"{HEAD}{text}\n{SELF} = Attention\n")
    assert words in load(str(tmp_path / "mine.py")).broken


def test_the_next_line_names_the_class_and_the_line_to_add_stands_alone(tmp_path: Path) -> None:
    """It said CLASS, and the line stood in brackets."""
    text = APART.replace("self.to_q", "self.one")
    (tmp_path / "mine.py").write_text(f"{HEAD}{text}\n")
    backend = load(str(tmp_path / "mine.py"))
    (told,) = for_backend(backend)
    assert told.endswith("/mine.py:Attention=OPERATION")
    (last,) = describe_outcomes(SimpleNamespace(backends=[backend]), [])  # type: ignore[arg-type]
    assert fold(last, 80)[-1] == '  ARGUMENTS = {"one": "q"}'


def test_a_helper_named_for_another_operation_is_no_word_of_the_answer(tmp_path: Path) -> None:
    """It ended with ``not judged: softmax_kernel`` though another operation was asked for."""
    text = "def softmax_kernel(score, sink): ...\ndef shift_right(x): ...\n"
    (tmp_path / "mine.py").write_text(text)
    backend = load(str(tmp_path / "mine.py"))
    for asked, told in (((), ["softmax_kernel"]), (("shift_right",), [])):
        assert [words.partition(" ")[0] for words in refused_of(backend, asked)] == told


def test_names_mean_what_the_file_says(tmp_path: Path) -> None:
    own = {"dim": "wide", "heads": "many", "to_q": "one", "to_kv": "two", "to_out": "three"}
    text = APART
    for old, new in own.items():
        text = re.sub(rf"(?<=[ (.]){old}\b(?=[,=.( )])", new, text)
    text = text.replace("many=8", "many").replace("self.heads", "self.many")
    said = {"wide": "d_model", "many": "n_head", "one": "q", "two": "kv", "three.0": "out"}
    (tmp_path / "mine.py").write_text(f"{HEAD}{text}\n")
    assert "its arguments wide, many are known by no name" in load(str(tmp_path / "mine.py")).broken
    forward, _ = loaded(f"{text}\nARGUMENTS = {said}\n", tmp_path).implementations
    assert judge(forward, case_for(SELF, bias=False, causal=False)).budget < 1


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        (("to_out",), '{"three.0": "o"}'),
        (("to_kv",), '{"two": "kv"}'),
        (("to_q", "to_out"), '{"one": "q", "three.0": "o"}'),
        (("to_q", "to_kv", "to_out"), '{"one": "q", "two": "kv", "three.0": "o"}'),
    ],
)
def test_the_roles_that_no_known_weight_has_are_guessed(
    weights: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    text, own = APART, {"to_q": "one", "to_kv": "two", "to_out": "three"}
    for old in weights:
        text = text.replace(old, own[old])
    (tmp_path / "mine.py").write_text(f"{HEAD}{text}\n")
    broken = load(str(tmp_path / "mine.py")).broken
    assert broken.endswith(f", perhaps: ARGUMENTS = {said}")
    assert broken.startswith(f"taken for {SELF}") and "no operation" not in broken


@pytest.mark.parametrize("name", ["tokens", "hidden_states", "embeddings", "src", "sequence"])
def test_common_names_of_the_input_are_known_and_a_mask_of_another_is_asked_for(
    name: str, tmp_path: Path
) -> None:
    text = APART.replace("forward(self, x)", f"forward(self, {name}, hide=None)")
    text = text.replace("        b, n, _", f"        x = {name}\n        b, n, _", 1)
    backend = loaded(text, tmp_path)
    assert backend.implementations
    notes = " ".join(backend.notes)
    assert 'as attn_mask (True hides a key): ARGUMENTS = {"hide": "attn_mask"}' in notes


def test_a_field_of_a_config_that_nobody_knows_is_told(tmp_path: Path) -> None:
    text = JOINT.replace(
        "self.n_head, self.drop = config.n_head", "self.n_head, self.drop = config.many"
    )
    assert "config.many" in text
    (tmp_path / "mine.py").write_text(f"{HEAD}{text}\n{SELF} = CausalSelfAttention\n")
    words = "its argument many is known by no name; say what it is, each by one of"
    assert words in load(str(tmp_path / "mine.py")).broken


def test_a_layer_of_one_sequence_is_not_taken_for_that_of_three(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"{HEAD}{APART}\n{PAIR} = Attention\n")
    words = "takes x alone, where multi_head_attention has query, key and value"
    assert words in load(str(tmp_path / "mine.py")).broken


def test_random_numbers_of_others_stay_as_they_are(tmp_path: Path) -> None:
    forward, _ = loaded(CROSS, tmp_path).implementations
    before = torch.random.get_rng_state()
    judge(forward, case_for(PAIR, bias=True, causal=False))
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_module_without_weights_is_called_as_it_is(tmp_path: Path) -> None:
    text = """
class Attention(nn.Module):
    def forward(self, q, k, v):
        return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
"""
    for made in ("", "scaled_dot_product_attention = Attention()"):
        forward, _ = loaded(text + made, tmp_path).implementations
        own = CATALOGUE["scaled_dot_product_attention"]
        recipe = fixed_recipe(own, {"B": 1, "H": 2, "N": 3, "M": 4, "D": 5, "E": 5}, seed=1)
        assert judge(forward, case_of(recipe, "float32")).budget < 1


@pytest.mark.parametrize(
    ("role", "names"),
    {
        "q": (
            "q_proj.weight",
            "W_q.bias",
            "to_q.weight",
            "heads.2.query.weight",
            "linear_q.weight",
        ),
        "k": ("key_proj.bias", "wk.weight", "attn.Wk.weight", "w_key", "fc_k.weight"),
        "qkv": (
            "c_attn.weight",
            "in_proj_weight",
            "Wqkv.bias",
            "to_qkv.weight",
            "query_key_value.bias",
        ),
        "kv": ("to_kv.weight", "kv_proj.weight"),
        "o": (
            "out_proj.weight",
            "c_proj.bias",
            "to_out.0.weight",
            "wo.weight",
            "dense.weight",
            "fc_out.bias",
        ),
        "": ("gate.weight", "norm.weight", "rel_pos", "q_norm.weight"),
    }.items(),
)
def test_weights_are_known_by_their_names(role: str, names: tuple[str, ...]) -> None:
    assert [role_of(name) for name in names] == [role] * len(names)


def test_an_output_without_weights_is_fitted_to_what_there_is(tmp_path: Path) -> None:
    text, operation, bias, causal = FILES["cross"]
    assert "/ q.shape[-1] ** 0.5" in text
    text = text.replace("/ q.shape[-1] ** 0.5", "* 0.3") + "\nCAUSAL = True\n" * causal
    own, _ = loaded(text, tmp_path).implementations
    sizes = ({"D": 2, "F": 6}, {"D": 3, "F": 9})
    cases = [case_for(operation, bias, causal)]
    cases += [case_of(resized(cases[0].recipe, each), "float32") for each in sizes]
    seen = observe(own, cases)
    assert all(len(each.actual) == 1 for each in seen)
    found = fit_factor(own.operation, [each for each in seen if each.wrong])
    assert found is not None and "0.3" in found.words
