"""
Peers that are not installed here, as backends: each over a stand-in with the very signature of what
it calls, written out in plain PyTorch.
"""

import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest

from attnverify.backends.implementation import Backend
from attnverify.backends.loader import load
from attnverify.bench.measure.contestants import CONTESTANTS, PEERS
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.judge.case import case_of
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.judging import judge

torch = pytest.importorskip("torch")
flex_attention = pytest.importorskip("torch.nn.attention.flex_attention")


def training_attention(
    query: Any,
    key: Any,
    value: Any,
    pos_key: Any,
    pos_query: Any,
    delta_to_local: Any,
    attention_mask: Any,
    *,
    score_scale: float,
    has_padding: bool,
    strict_fp32: bool,
    forward_config: Any = None,
    dq_config: Any = None,
    dkv_config: Any = None,
    autotune_candidates: Any = None,
    dropout_p: float = 0.0,
    dropout_seed: Any = None,
    gradient_band: Any = None,
) -> Any:
    """What disentangled-flash 1.1.1 computes, and what it refuses."""
    (B, H, L, D), slots = query.shape, delta_to_local
    assert query.shape == key.shape == value.shape and D in (32, 64, 128)
    assert slots.dtype == torch.int32 and slots.is_contiguous() and slots.shape == (2 * L - 1,)
    assert attention_mask.shape == (B, L) and not has_padding and strict_fp32
    assert pos_key.shape == pos_query.shape == (H, pos_key.shape[1], D)
    assert pos_key.shape[1] % 8 == 0 and gradient_band is not None
    i, j = torch.arange(L)[:, None], torch.arange(L)
    at = slots[i - j + L - 1].long()
    score = query @ key.mT + (query[:, :, :, None] * pos_key[:, at]).sum(-1)
    score = score + (key[:, :, None] * pos_query[:, at]).sum(-1)
    return torch.softmax(score * score_scale, dim=-1) @ value


def pad_position_table(table: Any) -> Any:
    extra = -table.size(-2) % 8
    return torch.nn.functional.pad(table, (0, 0, 0, extra)) if extra else table


def gradient_band(delta_to_local: Any, device: Any) -> tuple[int, int]:
    assert delta_to_local.dtype == torch.int32
    return 0, len(delta_to_local) - 1


def transposed_scores(*given: Any, **more: Any) -> Any:
    """The same, with the two tables exchanged."""
    query, key, value, pos_key, pos_query, *rest = given
    return training_attention(query, key, value, pos_query, pos_key, *rest, **more)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], Backend]]:
    """Load the peer over a stand-in of its library."""

    def peer(attention: Any) -> Backend:
        parts = {
            "disentangled_flash": {},
            "disentangled_flash.position": {
                "gradient_band": gradient_band,
                "pad_position_table": pad_position_table,
            },
            "disentangled_flash.training": {},
            "disentangled_flash.training._kernels": {"training_attention": attention},
        }
        for name, contents in parts.items():
            module = ModuleType(name)
            vars(module).update(contents, __path__=[])
            monkeypatch.setitem(sys.modules, name, module)
        return load(str(PEERS / "disentangled_flash_peer.py"))

    yield peer


SQUARE = {"B": 2, "H": 3, "N": 6, "M": 6, "D": 5, "E": 5, "P": 9}


@pytest.mark.parametrize("gradient", [False, True], ids=["forward", "gradient"])
@pytest.mark.parametrize("width", [5, 40])
def test_disentangled_attention_is_learned_relative_attention(
    install: Callable[[Any], Backend], gradient: bool, width: int
) -> None:
    backend = install(training_attention)
    (own,) = (i for i in backend.implementations if i.operation.is_gradient == gradient)
    for family in ("normal", "spread"):
        sizes = SQUARE | {"D": width, "E": width}
        judge(own, case_of(fixed_recipe(own.operation, sizes, family), "float32"))


def test_tables_in_the_wrong_places_are_noticed(install: Callable[[Any], Backend]) -> None:
    own = install(transposed_scores).implementations[0]
    with pytest.raises(Disagreement):
        judge(own, case_of(fixed_recipe(own.operation, SQUARE, "normal"), "float32"))


def test_what_the_kernels_have_no_place_for_is_unsupported(
    install: Callable[[Any], Backend],
) -> None:
    own = install(training_attention).implementations[0]
    for sizes in ({"M": 8}, {"D": 128, "E": 128}):
        with pytest.raises(Unsupported):
            judge(own, case_of(fixed_recipe(own.operation, SQUARE | sizes, "normal"), "float32"))


@pytest.fixture
def flash(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Backend, list[str]]]:
    """flex_attention with FlashAttention 4 installed, not compiled; and what was asked of it."""
    for name in ("flash_attn", "flash_attn.cute"):
        module = ModuleType(name)
        module.__spec__, module.__path__ = ModuleSpec(name, None), []
        monkeypatch.setitem(sys.modules, name, module)
    asked, flex, compiled = list[str](), flex_attention.flex_attention, torch.compile

    def compile_others(function: Any, **options: Any) -> Any:
        return uncompiled if function is flex else compiled(function, **options)

    def uncompiled(*given: Any, kernel_options: dict[str, str], **more: Any) -> Any:
        asked.append(kernel_options["BACKEND"])
        return flex(*given, **more)

    monkeypatch.setattr(torch, "compile", compile_others)
    yield load(str(PEERS / "compiled_flex.py")), asked


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["learned_relative_attention", "transformer_xl_attention"])
def test_flash_attention_is_asked_for_where_it_is_installed(
    flash: tuple[Backend, list[str]], name: str
) -> None:
    backend, asked = flash
    (own,) = (i for i in backend.implementations if i.name == f"{name}_flash")
    (plain,) = (i for i in backend.implementations if i.name == name)
    sizes = SQUARE | {"D": 16, "E": 16}
    for one in (own, plain):
        judge(one, case_of(fixed_recipe(one.operation, sizes, "normal"), "float32"))
    assert asked == ["FLASH", "AUTO"]
    gradient = next(i for i in backend.implementations if i.name == f"{name}_grad_flash")
    with pytest.raises(Unsupported, match="forwards alone"):
        judge(gradient, case_of(fixed_recipe(gradient.operation, sizes, "normal"), "float32"))


def test_who_is_not_installed_is_missing_with_its_name() -> None:
    (one,) = (one for one in CONTESTANTS if one.label == "disentangled-flash")
    assert one.devices == ("cuda",) and one.known == ("learned_relative_attention",)
    found = load(str(PEERS / "disentangled_flash_peer.py"))
    assert "disentangled_flash" in (found.broken or found.missing or "")
