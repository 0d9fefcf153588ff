"""
Functions of PyTorch as specifications: what is followed gives PyTorch's own numbers and gradients
in float64, the bound covers what PyTorch computes in float32, and lines are the user's.
"""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

import attnverify as av
from attnverify.backends.loader import load
from attnverify.catalogue.pytrees import leaves
from attnverify.derived import NotUnderstood, derive, derive_gradient
from attnverify.precision import FORMATS, PRESETS
from attnverify.specified import register
from attnverify.specified.form import followed
from attnverify.specified.pytorch import aten
from tests.attnverify.specified.told import told
from tests.outside import specifications
from tests.support.run_attnverify import judged, load_backends_here

EAGER = PRESETS["eager"](FORMATS["float32"])
CASES: dict[Callable[..., Any], tuple[tuple[int, ...], ...]] = {}


def of(*shapes: tuple[int, ...]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add a function to the table, with the shapes of its arguments."""

    def added(function: Callable[..., Any]) -> Callable[..., Any]:
        CASES[function] = shapes
        return function

    return added


@of((2, 3, 4), (4,))
def rms_norm(x, gain):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * gain


@of((2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 6))
def masked_attention(q, k, v):
    mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril(1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@of((2, 5, 4), (2, 5, 4), (2, 5, 6))
def causal_attention(q, k, v):
    s = torch.einsum("bnd,bmd->bnm", q, k) / q.shape[-1] ** 0.5
    s = s.masked_fill(~torch.ones_like(s, dtype=torch.bool).tril(), float("-inf"))
    return torch.softmax(s, -1) @ v


@of((2, 3, 4), (4,), (4,))
def layer_norm(x, gain, bias):
    return F.layer_norm(x, (x.shape[-1],), gain, bias)


@of((2, 4, 3, 3), (4,), (4,))
def group_norm(x, gain, bias):
    return F.group_norm(x, 2, gain, bias)


@of((4, 3, 5), (3,))
def batch_norm(x, gain):
    mean, var = torch.zeros(3, dtype=x.dtype), torch.ones(3, dtype=x.dtype)
    return F.batch_norm(x, mean, var, gain, training=True)


@of((4, 3, 5))
def batch_norm_of_a_trained_one(x):
    mean = torch.tensor([0.0, 1.0, 2.0], dtype=x.dtype)
    return F.batch_norm(x, mean, mean + 1)


@of((2, 3, 4), (6, 4), (6, 4), (4, 6))
def swiglu(x, gate, up, down):
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


@of((5, 7))
def cross_entropy(x):
    target = torch.arange(x.shape[0]) % x.shape[1]
    return F.cross_entropy(x, target, label_smoothing=0.1, reduction="none")


@of((2, 3, 7, 8), (4, 3, 3, 2), (4,))
def convolution(x, weight, bias):
    return F.conv2d(x, weight, bias, stride=2, padding=1)


@of((2, 4, 9), (6, 2, 3))
def grouped_convolution(x, weight):
    return F.conv1d(x, weight, groups=2, dilation=2)


@of((2, 4, 4, 5), (4, 2, 3, 3), (4,))
def transposed_convolution(x, weight, bias):
    return F.conv_transpose2d(x, weight, bias, stride=2, padding=1, output_padding=1, groups=2)


@of((2, 3, 6, 5), (3, 2, 2, 2))
def transposed_convolution_that_is_cut(x, weight):
    return F.conv_transpose2d(x, weight, padding=2)


@of((2, 3, 5))
def paddings(x):
    return F.pad(x, (1, -2, 2, 1), value=0.5)


@of((2, 3, 8, 8))
def pools(x):
    return F.max_pool2d(x, 3, 2, 1) + F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)


@of((2, 3, 6))
def rotary(x):
    a, b = x.chunk(2, -1)
    n, k = torch.arange(x.shape[-2])[:, None], torch.arange(a.shape[-1])
    angle = n * 100.0 ** (-k / a.shape[-1]).to(x.dtype)
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


@of((2, 4, 3))
def recurrence(x):
    out, h = torch.zeros_like(x), torch.zeros(x.shape[0], x.shape[2], dtype=x.dtype)
    for n in range(x.shape[1]):
        h = 0.5 * h + x[:, n]
        out[:, n] = h
    return out


@of((2, 3))
def in_place(x):
    y = x.clone()
    y[..., 0] *= 2
    y.view(-1)[1] = 7
    return y.add_(1)


@of((3, 5))
def gate_of_the_top(x):
    top, place = x.topk(2, -1)
    return torch.zeros_like(x).scatter_(-1, place, torch.softmax(top, -1))


@of((3, 5))
def activations(x):
    smooth = F.gelu(x) + F.gelu(x, approximate="tanh") + F.mish(x) + F.softplus(x) + F.silu(x)
    bent = F.elu(x) + F.selu(x) + F.leaky_relu(x) + F.hardswish(x) + F.relu(x) + x.clamp(-1, 1)
    return smooth + bent + F.softsign(x) + torch.tanh(x) + F.logsigmoid(x) + F.glu(x[:, :4]).sum()


@of((4, 5), (4, 5))
def losses(a, b):
    near = F.mse_loss(a, b) + F.smooth_l1_loss(a, b) + F.huber_loss(a, b)
    apart = F.kl_div(F.log_softmax(a, -1), F.softmax(b, -1), reduction="batchmean")
    return near + apart + F.cosine_similarity(a, b).mean()


@of((4, 5))
def statistics(x):
    spread = x.var(-1) + x.std(-1) + x.norm(dim=-1) + torch.logsumexp(x, -1)
    return spread + x.max(-1).values + x.min(-1)[0] + x.sum(-1) + x.cumsum(-1)[..., -2]


DOUBLE = PRESETS["eager"](FORMATS["float64"])
"""Both answers are made in it: each is within the bound of what is exact."""


def arguments_of(function: Callable[..., Any], seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    names = inspect.signature(function).parameters
    return {n: rng.standard_normal(s) for n, s in zip(names, CASES[function], strict=True)}


def tensors_of(inputs: dict[str, np.ndarray], dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: torch.from_numpy(x).to(dtype).requires_grad_() for name, x in inputs.items()}


@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_what_is_followed_is_what_pytorch_computes(function: Callable[..., Any]) -> None:
    """Values and gradients in float64, and float32 within the bound."""
    inputs = arguments_of(function)
    inputs = {name: x.astype(np.float32).astype(np.float64) for name, x in inputs.items()}
    own = tensors_of(inputs, torch.float64)
    answer = function(**own)
    d_output = torch.from_numpy(np.random.default_rng(1).standard_normal(tuple(answer.shape)))
    gradients = torch.autograd.grad(answer, list(own.values()), d_output, allow_unused=True)
    derived = derive(followed(function), inputs)
    (limit,) = leaves(derived.errors(DOUBLE))
    assert (np.abs(derived.values - answer.detach().numpy()) <= 2 * limit).all()
    back = derive_gradient(followed(function), inputs, [d_output.numpy()], list(inputs))
    for ours, theirs, limit in zip(back.values, gradients, back.errors(DOUBLE), strict=True):
        assert (np.abs(ours - theirs.numpy()) <= 2 * limit).all()
    narrow = function(**tensors_of(inputs, torch.float32)).detach().double().numpy()
    (bound,) = leaves(derived.errors(PRESETS["eager"](FORMATS["float32"])))
    assert (np.abs(narrow - derived.values) <= bound).all()
    assert {line.partition(":")[0] for line in derived.lines} == {Path(__file__).name}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_pytorch_itself_in_halves_is_within_the_bound_of_its_steps(
    function: Callable[..., Any], dtype: str
) -> None:
    """Values and gradients, each intermediate stored in the dtype, at three sizes of numbers."""
    P, kind = PRESETS["stepwise"](FORMATS[dtype]), getattr(torch, dtype)
    for seed, scale in enumerate((1.0, 4.0, 0.01)):
        given = {n: torch.from_numpy(scale * x) for n, x in arguments_of(function, seed).items()}
        inputs = {name: x.to(kind).double().numpy() for name, x in given.items()}
        own = tensors_of(inputs, kind)
        answer = function(**own)
        d_output = torch.from_numpy(np.random.default_rng(1).standard_normal(tuple(answer.shape)))
        d_output = d_output.to(kind)
        gradients = torch.autograd.grad(answer, list(own.values()), d_output, allow_unused=True)
        derived = derive(followed(function), inputs)
        arriving = [d_output.double().numpy()]
        back = derive_gradient(followed(function), inputs, arriving, list(inputs))
        (limit,) = leaves(derived.errors(P))
        assert is_within(answer.detach(), derived.values, limit)
        for theirs, ours, limit in zip(gradients, back.values, back.errors(P), strict=True):
            assert is_within(theirs, ours, limit)


def is_within(answer: Tensor, wanted: np.ndarray, limit: np.ndarray) -> bool:
    """Tell whether an answer keeps to a bound; where that is infinite nothing is said."""
    with np.errstate(invalid="ignore"):
        error = np.abs(answer.double().numpy() - wanted)
    return bool(((error <= limit) | np.isinf(limit)).all())


def test_casts_to_halves_round_and_to_float32_keep() -> None:
    x = np.random.default_rng(0).standard_normal(50)
    kept = derive(followed(lambda x: x.float().double()), {"x": x}).values
    halved = derive(followed(lambda x: x.to(torch.bfloat16).double()), {"x": x}).values
    whole = derive(followed(lambda x: (3 * x).long().double()), {"x": x}).values
    assert np.array_equal(kept, x)
    assert np.array_equal(whole, np.trunc(3 * x))
    assert np.array_equal(halved, torch.from_numpy(x).bfloat16().double().numpy())


def inverse(x: Float[Tensor, "N N"]) -> Tensor:
    return torch.linalg.inv(x)


def drawn(x: Float[Tensor, "N F"]) -> Tensor:
    return F.dropout(x, 0.5)


@pytest.mark.parametrize(("function", "name"), [(inverse, "linalg_inv"), (drawn, "bernoulli")])
def test_what_is_not_understood_is_refused_with_its_line(
    function: Callable[..., Any], name: str
) -> None:
    line = function.__code__.co_firstlineno + 1
    with pytest.raises(NotUnderstood, match=rf"test_pytorch.py:{line}: torch's \w*{name}"):
        register(function)


def scaled(x: Float[Tensor, "N 4"], gain: Float[Tensor, "4"], window: int = 2) -> Tensor:
    return x.exp() * gain / window


def test_what_pytorch_answers_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(aten.ATEN, "exp", np.expm1)
    with pytest.raises(
        ValueError, match="what was read of scaled gives other numbers than PyTorch"
    ):
        register(scaled)


def test_an_axis_may_have_one_size() -> None:
    seen = set()

    def own(x, gain, window=2):
        seen.add(tuple(x.shape))
        return x.exp() * gain / window

    assert av.check(own, spec=scaled).verdict("scaled", "float32") == "passed"
    drawn = {shape for shape in seen if shape[-1] == 4}
    assert len(drawn) > 5 and len(seen - drawn) == 1  # and one of 5, which it should refuse


def norm(x: Float[Tensor, "B N"], gain: Float[Tensor, "N"]) -> Tensor:
    return rms_norm(x, gain)


def test_steps_in_half_precision_are_granted_to_who_declares_nothing() -> None:
    """PyTorch itself answers; as the fused kernel that it does not claim to be, it is wrong."""

    def own(x, gain):
        return rms_norm(x, gain)

    assert av.check(own, spec=norm, dtype="bfloat16").verdict("norm", "bfloat16") == "passed"
    given = arguments_of(rms_norm)
    inputs = {n: torch.from_numpy(x).bfloat16().double().numpy() for n, x in given.items()}
    answer = rms_norm(**tensors_of(inputs, torch.bfloat16)).detach()
    found = derive(followed(rms_norm), inputs)
    assert not is_within(answer, found.values, found.errors(PRESETS["fused"](FORMATS["bfloat16"])))


SPECIFICATION = """
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def gate(x: Float[Tensor, "B 2F"], w: Float[Tensor, "F"]):
    a, b = x.chunk(2, dim=-1)
    return F.gelu(a) * b * w
"""
KERNEL = """
import torch
import torch.nn.functional as F


def gate(x, w):
    a, b = x.chunk(2, dim=-1)
    return F.gelu(a{how}) * b * w
"""


def test_a_kernel_is_judged_by_a_function_of_pytorch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load_backends_here(monkeypatch)
    Path("my_spec.py").write_text(SPECIFICATION)
    Path("right.py").write_text(KERNEL.format(how=""))
    Path("wrong.py").write_text(KERNEL.format(how=", approximate='tanh'"))
    right = judged("right.py", "--spec", "my_spec.py", "--dtype", "float32")
    assert right.verdicts()["gate", "values"] == right.verdicts()["gate", "gradients"] == "passed"
    wrong = told(load("wrong.py").implementations[0])
    assert "equals the specification with `F.gelu(a)` as `F.gelu(a, approximate='tanh')`" in wrong


@pytest.mark.parametrize(("kind", "most"), [(torch.float64, 1.001), (torch.float32, 3)])
def test_tables_that_pytorch_computes_err_as_those_of_numpy(kind: torch.dtype, most: float) -> None:
    """They erred by 17 u, whatever the angle; what PyTorch computes in float32 is off by itself."""

    def rotary_by_position(x):
        N, H = x.shape[1], x.shape[2] // 2
        rate = 10000.0 ** (-torch.arange(H, dtype=kind) / H)
        angle = torch.einsum("i,j->ij", torch.arange(N, dtype=kind), rate)
        cos, sin = angle.cos(), angle.sin()
        a, b = x[..., :H], x[..., H:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    x = np.random.default_rng(0).standard_normal((1, 700, 8))
    by_numpy = derive(specifications.rotary_by_position, {"x": x}).errors(EAGER)
    by_pytorch = derive(followed(rotary_by_position), {"x": x}).errors(EAGER)
    assert (by_pytorch >= by_numpy * 0.999).all() and (by_pytorch <= by_numpy * most).all()
    assert by_numpy.max() > 100 * FORMATS["float32"].u * np.abs(x).max()


def test_a_table_that_is_written_into_is_what_stands_there() -> None:
    def of(x):
        table = torch.arange(4).float() / 3
        table[1] = 5.0
        return x * table

    values = derive(followed(of), {"x": np.ones((2, 4))}).values
    np.testing.assert_allclose(values[0], [0, 5, 2 / 3, 1], rtol=1e-6)


@pytest.mark.parametrize(
    ("row", "is_open"),
    [
        ([3.0, 1.0, 2.0, 0.0, 0.0], False),
        ([3.0, 2.0, 0.0, 0.0, 0.0], False),
        ([3.0, 2.0, 2.0, 0.0, 1.0], True),
        ([3.0, 3.0, 2.0, 0.0, 1.0], True),
    ],
)
def test_what_is_not_among_the_first_may_be_in_any_order(row: list[float], is_open: bool) -> None:
    """The experts that a router leaves out are alike as often as not."""
    given = {"x": np.array([row])}
    bound = derive(followed(gate_of_the_top), given).errors(DOUBLE)
    assert np.isinf(bound).all() if is_open else np.isfinite(bound).all()
