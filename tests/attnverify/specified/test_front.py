"""
From ten lines of NumPy to a verdict: ``--spec`` and ``av.check(f, spec=g)``; what is refused, and
what a record needs to be replayed.
"""

import re
from dataclasses import replace
from pathlib import Path
from runpy import run_path

import numpy as np
import pytest
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch.nn.functional import softplus

import attnverify as av
from attnverify.backends.loader import load
from attnverify.catalogue.operation import CATALOGUE
from attnverify.failures.record import FailureRecord
from attnverify.failures.store import save
from attnverify.inputs.recipe import Recipe
from attnverify.judge.case import case_of
from attnverify.specified import register, register_file
from attnverify.specified.drawing import fixed_sizes
from attnverify.specified.mutants.gradients import name_part, parts_of
from attnverify.specified.reading import checked, read_arguments
from attnverify.specified.registering import VARIABLE
from tests.attnverify.specified.told import answered, cases, told
from tests.support.run_attnverify import ROOT, in_a_process, judged, load_backends_here, verify

SPECIFICATION = '''
import numpy as np
from jaxtyping import Float
from numpy import ndarray


def rms_norm(x: Float[ndarray, "B N F"], gain: Float[ndarray, "F"], eps: float = 1e-6):
    """Divide by the root mean square, multiply with a gain."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * gain
'''

KERNEL = """
import numpy as np

PRECISION = "wide"


def rms_norm(x, gain, eps=1e-6):
    y = x.astype(np.float64)
    y = y / np.sqrt(np.{how}(y * y, axis=-1, keepdims=True) + eps)
    return (y * gain.astype(np.float64)).astype(x.dtype)
"""


@pytest.fixture(autouse=True)
def files(folder: Path) -> None:
    Path("my_spec.py").write_text(SPECIFICATION)
    Path("right.py").write_text(KERNEL.format(how="mean"))
    Path("wrong.py").write_text(KERNEL.format(how="sum"))


def test_what_the_readme_says_of_a_specification_is_enough(folder: Path) -> None:
    if not (ROOT / "README.md").exists():
        pytest.skip("a wheel has no README")
    line = next(one for one in (ROOT / "README.md").read_text().splitlines() if "--spec`" in one)
    imported, head = re.findall("`(from [^`]+|def [^`]+)`", line)
    text = f"import numpy as np\n{imported}\n\n{head}\n    return np.maximum(x, np.expm1(x))\n"
    (folder / "readme.py").write_text(text)
    assert register_file("readme.py") == ("elu",)


def test_what_another_specification_of_the_name_recorded_decides_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_backends_here(monkeypatch)
    (folder / "other.py").write_text(SPECIFICATION.replace("np.mean(", "2 * np.mean("))
    register_file("other.py")
    case = case_of(Recipe("rms_norm", **next(CATALOGUE["rms_norm"].fixed())), "float32")
    backend = load("right.py")
    record = FailureRecord.of(backend.implementations[0], case, "values")
    save(record, ".attnverify/failures", None)
    monkeypatch.setenv(VARIABLE, "")
    run = judged("right.py", "--spec", "my_spec.py", "--dtype", "float32")
    assert run.verdicts()["rms_norm", "values"] == "passed"
    assert run.verdicts()["rms_norm", "side effects"] == "passed"


def test_a_right_kernel_passes_by_its_own_specification(monkeypatch: pytest.MonkeyPatch) -> None:
    load_backends_here(monkeypatch)
    run = judged("right.py", "--spec", "my_spec.py")
    assert run.verdicts()["rms_norm", "values"] == "passed"
    assert run.verdicts()["rms_norm", "side effects"] == "passed"


IN_TORCH = """
import torch


def rms_norm(x, gain, eps=1e-6):
    return x * torch.rsqrt(x.pow(2).{how} + eps) * gain
"""
MEAN, OFF_BY_ONE = "mean(-1, keepdim=True)", "sum(-1, keepdim=True) / (x.shape[-1] + 1)"


@pytest.mark.usefixtures("causes_are_not_sought")
@pytest.mark.parametrize(
    ("how", "dtype", "verdict"),
    [
        (MEAN, "bfloat16", "passed"),
        (MEAN, "float16", "passed"),
        (OFF_BY_ONE, "bfloat16", "failed"),
    ],
)
def test_a_library_called_step_by_step_is_right_in_half_precision(
    how: str, dtype: str, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Judged as "eager", which stores fewer steps, the right one was accused."""
    Path("steps.py").write_text(IN_TORCH.format(how=how))
    load_backends_here(monkeypatch)
    columns = ("-k", "values or gradients")
    found = judged("steps.py", "--spec", "my_spec.py", *columns, dtype=dtype).verdicts()
    assert {found["rms_norm", "values"], found["rms_norm", "gradients"]} == {verdict}


@pytest.mark.parametrize("letters", ["ND", "BHND", "BHNMDE"])
def test_everybody_meets_axes_of_one_size(letters: str) -> None:
    """An axis is taken for another unseen, as in attorch's backward of rms_norm (issue 17)."""
    alike = [sizes for sizes in fixed_sizes(letters) if len(set(sizes.values())) == 1]
    assert any(sizes[letters[0]] > 1 for sizes in alike)


@pytest.mark.parametrize("letters", ["N", "BHND", "BHNMDE"])
def test_each_axis_is_met_in_three_blocks_of_128(letters: str) -> None:
    """What the second block hands to the third raced in the forward pass of fla's chunk_hgrn."""
    for letter in letters:
        assert any(256 < sizes[letter] < 300 for sizes in fixed_sizes(letters))


def test_a_wrong_kernel_is_told_in_the_words_of_the_specification(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    In a process of its own, which is told of the specification; and replayed from its record. The
    last line is one line, however few columns there are.
    """
    monkeypatch.setenv("COLUMNS", "60")
    run = verify("run", "wrong.py", "--spec", "my_spec.py", "--profile", "quick")
    last, all_of_it = run.output.splitlines()[-1], " ".join(run.output.split())
    assert last.startswith("wrong.py: wrong in ") and last.endswith("my_spec.py:9")
    assert "as `np.sum(x * x, axis=-1, keepdims=True)`, my_spec.py:9" in all_of_it
    (replay,) = re.findall(r"attnverify (replay \S+ --backend \S+)", all_of_it)[:1]
    again = in_a_process(*replay.split())
    assert again.status == 1
    assert "rms_norm of" in again.output


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('x: Float[ndarray, "B N F"]', "x"), "my_spec.py:7: x: wanted axes"),
        (("np.mean(x * x, axis=-1, keepdims=True)", "np.linalg.inv(x)"), "my_spec.py:9: np.linalg"),
        (('"B N F"', '"..."'), "wanted axes of letters"),
        (("def rms_norm", "def softmax"), "wanted a name that the catalogue has not"),
        (("Float[", "list["), "wanted a function with annotated axes"),
        (
            ("import numpy as np", "import not_there"),
            "my_spec.py cannot be imported: Module",
        ),
        (("def rms_norm", "def 2"), "my_spec.py cannot be imported: SyntaxError"),
        (("np.mean(x * x,", "np.mean(y * x,"), "my_spec.py:9: NameError: name 'y'"),
        (
            ('gain: Float[ndarray, "F"]', 'gain: Float[ndarray, "G"]'),
            "my_spec.py:9: ValueError: op",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(change: tuple[str, str], words: str) -> None:
    Path("my_spec.py").write_text(SPECIFICATION.replace(*change))
    run = verify("run", "right.py", "--spec", "my_spec.py", "--profile", "quick")
    assert run.status == 4
    assert words in " ".join(run.output.split())


def doubled(x: Float[ndarray, "N F"], at: Int[ndarray, "N"] = None) -> ndarray:
    return 2 * x


def test_integers_without_a_domain_are_refused() -> None:
    with pytest.raises(ValueError, match="at: wanted what its integers may be"):
        register(doubled)


def scaled(x: Float[ndarray, "N F"], gain: Float[ndarray, "F"]) -> ndarray:
    return x * gain


def test_axes_that_do_not_fit_are_refused_with_the_argument() -> None:
    specification = checked(scaled, read_arguments(scaled))
    with pytest.raises(ValueError, match="gain: wanted F=3"):
        specification(x=np.ones((2, 3)), gain=np.ones(4))
    with pytest.raises(ValueError, match="x: wanted axes N F"):
        specification(x=np.ones(3), gain=np.ones(3))


def test_a_function_is_checked_by_a_specification() -> None:
    def own(x, gain):
        return x * gain

    report = av.check(own, spec=scaled)
    assert report.verdict("scaled", "float32") == "passed"


def test_a_wrong_function_is_told_by_a_specification() -> None:
    def own(x, gain):
        return x + gain

    with pytest.raises(av.CheckFailed, match=r"`x \* gain` as `x \+ gain`"):
        av.check(own, spec=scaled)


def test_a_number_of_which_only_the_default_is_known_is_varied() -> None:
    def sloped(x: Float[ndarray, "N F"], alpha: float = 1.0) -> ndarray:
        return np.where(x > 0, x, alpha * x)

    assert "`alpha` always as 1.0" in told(answered(sloped, lambda x, alpha=1.0: x)[0])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda x: torch.where(x > 0, softplus(x), x), "itself where `x` is at most 0"),
        (lambda x: torch.where(x > 0, 0, softplus(x)), "0 where `x` is above 0"),
    ],
)
def test_a_branch_that_gives_something_else_is_told(wrong, words: str) -> None:
    def softened(x: Float[ndarray, "N F"]) -> ndarray:
        return np.where(x > 30, x, np.log1p(np.exp(np.minimum(x, 30))))

    assert all(words in told(own) for own in answered(softened, wrong)), "of the gradient too"


def soft_loss(x: Float[ndarray, "N V"], target: Float[ndarray, "N V"]) -> ndarray:
    lse = np.log(np.sum(np.exp(x), -1))
    total = np.sum(target, -1)
    return lse * total - np.sum(x * target, -1)


class SoftLoss(torch.autograd.Function):
    """Its backward takes the targets to sum to 1."""

    @staticmethod
    def forward(ctx, x, target):
        ctx.save_for_backward(x, target)
        return torch.logsumexp(x, -1) * target.sum(-1) - (x * target).sum(-1)

    @staticmethod
    def backward(ctx, d):
        x, target = ctx.saved_tensors
        weights, lse = torch.softmax(x, -1), torch.logsumexp(x, -1, keepdim=True)
        return d[:, None] * (weights - target), d[:, None] * (lse - x)


def neighbours(x: Float[ndarray, "B L"], w: Float[ndarray, "3"]) -> ndarray:
    wide = np.pad(x, ((0, 0), (1, 1)))
    return wide[:, :-2] * w[0] + wide[:, 1:-1] * w[1] + wide[:, 2:] * w[2]


class Neighbours(torch.autograd.Function):
    """What comes back to a place from three is stored three times, and not added."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        wide = torch.nn.functional.pad(x, (1, 1))
        return wide[:, :-2] * w[0] + wide[:, 1:-1] * w[1] + wide[:, 2:] * w[2]

    @staticmethod
    def backward(ctx, d):
        x, w = ctx.saved_tensors
        wide, L = torch.nn.functional.pad(x, (1, 1)), x.shape[1]
        d_wide = torch.zeros_like(wide)
        for k in range(3):
            d_wide[:, k : k + L] = d * w[k]
        d_w = torch.stack([(wide[:, k : k + L] * d).sum() for k in range(3)])
        return d_wide[:, 1:-1], d_w


class FirstNeighbours(Neighbours):
    """The same with the blocks in the other order."""

    @staticmethod
    def backward(ctx, d):
        x, w = ctx.saved_tensors
        d_x, d_w = Neighbours.backward(ctx, d)
        d_x, L = torch.zeros_like(x), x.shape[1]
        for k in (2, 1, 0):
            place = slice(max(k - 1, 0), min(k - 1 + L, L))
            d_x[:, place] = (d * w[k])[:, place.start - k + 1 : place.stop - k + 1]
        return d_x, d_w


class NegatedLoss(SoftLoss):
    @staticmethod
    def backward(ctx, d):
        x, target = ctx.saved_tensors
        weights = torch.softmax(x, -1) * target.sum(-1, keepdim=True)
        lse = torch.logsumexp(x, -1, keepdim=True)
        return d[:, None] * (weights + target), d[:, None] * (lse - x)


def log_softmax(x: Float[ndarray, "N C"], temperature: float = 2.0) -> ndarray:
    z = x / temperature
    z = z - np.max(z, axis=-1, keepdims=True)
    return z - np.log(np.sum(np.exp(z), axis=-1, keepdims=True))


def log_softmax_by(backward):
    class LogSoftmax(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, temperature):
            y = torch.log_softmax(x / temperature, -1)
            ctx.save_for_backward(y)
            ctx.temperature = temperature
            return y

        @staticmethod
        def backward(ctx, d):
            (y,) = ctx.saved_tensors
            return backward(d, y.exp(), ctx.temperature), None

    return lambda x, temperature=2.0: LogSoftmax.apply(x, temperature)


class Normed(torch.autograd.Function):
    """Its backward averages over the batch, and forgets the gain where it takes the mean."""

    @staticmethod
    def forward(ctx, x, gain, wrong):
        r = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        ctx.save_for_backward(x * r, gain, r)
        ctx.wrong = wrong
        return x * r * gain

    @staticmethod
    def backward(ctx, d):
        y, gain, r = ctx.saved_tensors
        back = d if ctx.wrong == "no gain" else d * gain
        d_gain = (d * y).sum(1)
        d_gain = d_gain.mean(0) if ctx.wrong == "mean" else d_gain.sum(0)
        return r * (d * gain - y * (back * y).mean(-1, keepdim=True)), d_gain, None


def normed(x: Float[ndarray, "B N D"], gain: Float[ndarray, "D"]) -> ndarray:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-5) * gain


@pytest.mark.parametrize(
    ("spec", "kernel", "words"),
    [
        (normed, lambda x, gain: Normed.apply(x, gain, "no gain"), "a part .* without `gain`"),
        (normed, lambda x, gain: Normed.apply(x, gain, "mean"), "`gain` .* averaged over axis 0"),
        (
            log_softmax,
            log_softmax_by(lambda d, p, t: (d - p * (d * p).sum(-1, keepdim=True)) / t),
            "multiplied with the softmax before it is summed",
        ),
        (
            log_softmax,
            log_softmax_by(lambda d, p, t: d - p * d.sum(-1, keepdim=True)),
            "x / temperature.* without its factor",
        ),
        (soft_loss, lambda x, target: NegatedLoss.apply(x, target), "np.sum.* negated"),
        (neighbours, lambda x, w: FirstNeighbours.apply(x, w), "place the first part alone"),
        (soft_loss, lambda x, target: SoftLoss.apply(x, target), "lse \\* total - .* its factor"),
        (neighbours, lambda x, w: Neighbours.apply(x, w), "to one place the last part alone"),
    ],
)
def test_a_backward_by_hand_is_told_by_what_it_loses(spec, kernel, words: str) -> None:
    assert re.search(words, told(answered(spec, kernel)[1]))


def test_a_maximum_that_is_not_subtracted_is_told() -> None:
    def own(x, temperature=2.0):
        return x / temperature - (x / temperature).exp().sum(-1, keepdim=True).log()

    words = "the maximum not subtracted, so that exp overflows, in `z = z - "
    assert words in told(answered(log_softmax, own)[0], cases("log_softmax", drawn=20))


class Doubled(torch.autograd.Function):
    """Each row's gradient is stored in the first row."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, d):
        return torch.cat([2 * d[-1:], torch.zeros_like(d[1:])])


def test_an_output_of_which_most_is_0_is_told_by_the_place() -> None:
    def doubled(x: Float[ndarray, "N F"]) -> ndarray:
        return x + x

    with pytest.raises(av.CheckFailed, match=r"the gradient by x, 0: from row 1 of \d+ on"):
        av.check(lambda x: Doubled.apply(x), spec=doubled, arrays="torch")


def test_a_number_outside_of_the_root_is_told() -> None:
    def own(x, gain, eps=1e-6):
        return x / ((x * x).mean(-1, keepdim=True).sqrt() + eps) * gain

    values = answered(run_path("my_spec.py")["rms_norm"], own)[0]
    assert re.search(r"`np.sqrt\(.*\) \+ eps`", told(values))


def cubed(x: Float[ndarray, "N"]) -> ndarray:
    return x**3


class Cubed(torch.autograd.Function):
    """The factor 3 of its gradient is forgotten."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, d):
        (x,) = ctx.saved_tensors
        return d * x * x


def test_of_a_power_a_part_is_told() -> None:
    gradient = answered(cubed, lambda x: Cubed.apply(x))[1]
    assert "a part of the gradient through `return x**3`" in told(gradient)


def weighed(x: Float[ndarray, "N D"], w: Float[ndarray, "D"], y: Float[ndarray, "N D"]) -> ndarray:
    return -np.sum(np.exp(x) * w, axis=-1) + y.sum(-1)


def test_a_part_is_told_from_all_that_comes_back_to_an_argument() -> None:
    """Of a chain of functions in one line each link was called a part."""
    register(weighed)
    seen = parts_of(CATALOGUE["weighed_grad"])  # type: ignore[arg-type]
    told = {
        (given.through.name, given.to.name): name_part(given, seen)
        for given in seen
        if given.to.kind == "leaf"
    }
    assert {*told.values()} == {f"the gradient of `{name}`" for name in "xwy"}
    (link,) = (given for given in seen if given.to.name == "exp")
    assert name_part(link, seen) == "the gradient of `x`"
    register(halved)
    alone = parts_of(CATALOGUE["halved_grad"])  # type: ignore[arg-type]
    assert len(alone) > 1 and {name_part(given, alone) for given in alone} == {"the gradient"}


def halved(x: Float[ndarray, "N D"]) -> ndarray:
    return -np.sum(np.exp(x) * 0.5, axis=-1)


def masked_mean(x: Float[ndarray, "N"], seen: Bool[ndarray, "N"]) -> ndarray:
    return np.where(seen, x, 0.0).sum() / np.maximum(seen.sum(), 1)


def test_a_mask_that_is_ignored_with_its_guard_is_one_mistake() -> None:
    def mean(x: Float[ndarray, "B N"], seen: Bool[ndarray, "B N"], eps: float = 1e-6) -> ndarray:
        return np.sum(x * seen, axis=1) / (np.sum(seen, axis=1) + eps)

    with pytest.raises(av.CheckFailed, match=r"`seen` left out .* `eps` with it") as failure:
        av.check(lambda x, seen, eps=1e-6: x.mean(1), spec=mean)
    assert "2 mistakes" not in str(failure.value)


def test_a_mean_over_all_in_place_of_those_that_count_is_told() -> None:
    def own(x, seen):
        return torch.where(seen, x, 0).sum() / len(x)

    words = "`seen.sum()` as `the count of all of (seen)`"
    assert words in told(answered(masked_mean, own)[0])


def test_what_a_number_may_be_is_guessed_and_tried() -> None:
    def several(
        x: Float[ndarray, "N F"],
        eps: float = 1e-6,
        half: bool = False,
        times: int = 2,
        axis: int = -1,
        power: float = 1.0,
        parts: int = 1,
    ) -> ndarray:
        if parts > 1:
            raise ValueError("parts")
        return (x[..., :: 1 + half] * times) ** power / (np.sum(x * x, axis, keepdims=True) + eps)

    choices = {one.name: one.choices for one in register(several).described}
    assert choices["eps"] == (1e-6, 1e-3)
    assert choices["half"] == (False, True)
    assert choices["times"] == (2, 3)
    assert choices["axis"] == (-1,), "of an axis nothing is guessed"
    assert choices["power"] == (1.0,), "roots of numbers below 0 are no answer"
    assert choices["parts"] == (1,), "the specification refuses it"


def test_that_a_number_was_never_another_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_backends_here(monkeypatch)
    (folder / "fixed.py").write_text(
        KERNEL.format(how="mean").replace(", eps=1e-6", "").replace("+ eps", "+ 1e-6")
    )
    printed = verify("run", "fixed.py", "--spec", "my_spec.py", "--profile", "quick").output
    assert "rms_norm was judged without eps, which it does not take" in printed


def test_another_specification_of_the_same_name_takes_its_place() -> None:
    def scaled(x: Float[ndarray, "N F"], gain: Float[ndarray, "F"]) -> ndarray:
        return x * gain * gain

    def own(x, gain):
        return x * gain * gain

    assert av.check(own, spec=scaled).verdict("scaled", "float32") == "passed"


def test_what_failed_to_register_leaves_no_operation() -> None:
    def inverse(x: Float[ndarray, "N N"]) -> ndarray:
        return np.linalg.inv(x)

    with pytest.raises(ValueError, match=r"np\.linalg\.inv is not understood"):
        register(inverse)
    assert "inverse" not in CATALOGUE


def test_what_was_understood_is_told_with_the_lines_the_bound_comes_from() -> None:
    run = verify("spec", "my_spec.py")
    assert run.status == 0
    for words in (
        "x     numbers [B N F]",
        "eps   1e-06",
        "gradient by x, gain",
        "my_spec.py:9: return",
    ):
        assert words in run.output


def test_a_specification_to_begin_with_is_understood() -> None:
    assert verify("new", "--spec", "-o", "begun.py").status == 0
    assert verify("spec", "begun.py").status == 0
    assert verify("new", "--spec", "-o", "begun.py").status == 2


def test_what_is_not_understood_is_told_by_the_command() -> None:
    Path("my_spec.py").write_text(SPECIFICATION.replace("np.mean(x * x", "np.median(x * x"))
    run = verify("spec", "my_spec.py")
    assert run.status == 4
    told = (
        "my_spec.py:9: np.median is not understood; attnverify spec, without a file, lists what is"
    )
    assert told in " ".join(run.output.split())
    listed = verify("spec")
    functions = {word for word in listed.output.split() if word.startswith("np.")}
    assert listed.status == 0 and {"np.exp", "np.sum", "np.linalg.norm"} < functions
    assert "np.median" not in functions


def test_the_parts_of_a_gradient_have_the_same_places_at_all_sizes() -> None:
    """Whether rounding leaves something of a maximum that is only subtracted hangs on the size."""
    register(log_softmax)
    gradient, places = CATALOGUE["log_softmax_grad"], []
    for sizes in ({"N": 5, "C": 3}, {"N": 33, "C": 33}):
        seen = {}

        def collect(given, seen=seen):
            seen[given.place] = (given.through.name, given.to.name)
            return given.part if given.before is None else given.before + given.part

        recipe = Recipe("log_softmax_grad", sizes, {"family": "normal", "seed": 7})
        gradient.collected(
            gradient.expand(replace(recipe, options={"temperature": 2.0}), "float64"), collect
        )
        places.append(seen)
    first, second = places
    assert len(first) > 5
    assert all(first[place] == second[place] for place in set(first) & set(second))
    assert len(set(first) & set(second)) > 5


WEIGHTS = '''
from jaxtyping import Float, Int8
from numpy import ndarray


def scaled(x: Float[ndarray, "B F"], w: Int8[ndarray, "F"]):
    """Twice the weights are no integers of eight bits."""
    return x * (w * 2)
'''


@pytest.mark.parametrize(("read", "status"), [("int8", 0), ("uint8", 1)])
def test_a_kernel_is_given_integers_of_the_width_that_is_annotated(read: str, status: int) -> None:
    """As a pointer to eight bits: of int64 a kernel would read each number eight times as wide."""
    Path("my_spec.py").write_text(WEIGHTS)
    Path("right.py").write_text(
        "import numpy as np\n\n\ndef scaled(x, w):\n"
        f"    return x * (2 * w.view(np.{read}).astype(np.float32)).astype(x.dtype)\n"
    )
    options = ("--profile", "quick", "--dtype", "float32", "--require", "answer")
    done = judged("right.py", "--spec", "my_spec.py", *options)
    assert done.status == status, done.output
