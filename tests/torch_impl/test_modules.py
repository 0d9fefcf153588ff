"""
The modules of torch_impl: names, layouts, modes, memory, gradients; and that the compiler can
follow the operations.
"""

from typing import Any

import numpy as np
import pytest
import torch
from numpy import ndarray
from torch import Tensor, nn

from attnverify import spec
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.pytrees import map_leaves
from attnverify.contract.shapes import PATTERN
from attnverify.inputs.expand import expand
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.torch_impl import alibi, attention, layers, masks, relative, shifts
from attnverify.torch_impl.memory import update_mems
from attnverify.torch_impl.modules import as_operations, attention_modules, transformer_xl
from tests.support.module_calls import UNSEEN_BIASES
from tests.support.torch_modules import (
    BUILD,
    NAMES,
    B,
    D,
    F,
    H,
    M,
    N,
    agree,
    built,
    inputs_of,
    of_module,
    of_specification,
    rng,
    turn,
)

pytestmark = pytest.mark.filterwarnings("error")

each_layer = pytest.mark.parametrize("name", BUILD)
each_layout = pytest.mark.parametrize(
    "batch_first", [False, True], ids=["sequence first", "batch first"]
)


@each_layer
def test_a_state_dict_has_the_names_of_the_specification(name: str) -> None:
    assert set(BUILD[name]().state_dict()) == {
        parameter for parameter, _, _ in PATTERN.findall(NAMES[name])
    }


@each_layout
@each_layer
def test_a_module_on_its_own_state_dict_equals_the_specification(
    name: str, batch_first: bool
) -> None:
    module, inputs = built(BUILD[name], batch_first=batch_first).eval(), inputs_of(name)
    assert agree(of_module(module, inputs), of_specification(name, module, inputs))


def test_weights_come_batch_first_from_either_layout() -> None:
    module, inputs = built(BUILD["multi_head_attention"]), inputs_of("multi_head_attention")
    query, key, value, attn_mask, padding = map(torch.from_numpy, inputs.values())
    weights = module(*(x.transpose(0, 1) for x in (query, key, value)), attn_mask, padding)[1]
    assert agree(weights, of_specification("multi_head_attention", module, inputs)[1])


def test_additive_attention_equals_the_specification_and_hides_where_its_mask_is_true() -> None:
    module, normal = (
        built(lambda **o: attention_modules.AdditiveAttention(3, 5, 7, **o)),
        rng(2).standard_normal,
    )
    query, key, value, hidden = (
        normal((B, N, 3)),
        normal((B, M, 5)),
        normal((B, M, 13)),
        rng(3).random((B, N, M)) < 0.4,
    )
    weights = [x.numpy() for x in module.state_dict().values()]
    expected = spec.additive_attention(query, key, value, *weights, mask=~hidden)
    assert agree(module(*map(torch.from_numpy, (query, key, value, hidden))), expected)


def test_the_state_dict_of_additive_attention_has_the_names_of_the_specification() -> None:
    assert list(attention_modules.AdditiveAttention(3, 5, 7).state_dict()) == [
        "w_query",
        "w_key",
        "w_score",
    ]


@pytest.mark.parametrize("heads", [(), (H,)], ids=["[B N D]", "[B H N D]"])
def test_scaled_dot_product_attention_takes_heads_or_none(heads: tuple[int, ...]) -> None:
    query, key, value = (
        rng(i).standard_normal((B, *heads, size, D)) for i, size in enumerate((N, M, M))
    )
    hidden = rng(4).random((B, *(1 for _ in heads), N, M)) < 0.4
    output = attention_modules.ScaledDotProductAttention()(
        *map(torch.from_numpy, (query, key, value, hidden))
    )
    four = (x if heads else x[:, None] for x in (query, key, value, ~hidden))
    assert agree(output if heads else output[:, None], spec.scaled_dot_product_attention(*four))


@each_layout
def test_a_relative_layer_takes_a_mask_for_each_batch_element_and_head(batch_first: bool) -> None:
    name, mask = "relative_multi_head_attention", rng(5).random((B, H, N, M)) < 0.6
    module, inputs = built(BUILD[name], batch_first=batch_first), inputs_of(name)
    given = inputs | {"visible": mask if batch_first else mask.transpose(2, 3, 0, 1)}
    assert agree(
        of_module(module, given), of_specification(name, module, inputs | {"visible": mask})
    )


def test_labmls_masks_have_the_batch_behind() -> None:
    name, mask = "relative_multi_head_attention", rng(5).random((B, N, M)) < 0.6
    module, inputs = built(BUILD[name]), inputs_of(name)
    given = inputs | {"visible": mask.transpose(1, 2, 0)}
    assert agree(
        of_module(module, given),
        of_specification(name, module, inputs | {"visible": mask[:, None]}),
    )


@each_layer
def test_dropout_acts_in_train_mode_only_and_survives_eval(name: str) -> None:
    module, inputs = built(BUILD[name], dropout=0.5).eval(), inputs_of(name)
    expected = of_specification(name, module, inputs)
    torch.manual_seed(0)
    assert agree(of_module(module, inputs), expected)
    assert not agree(of_module(module.train(), inputs), expected)
    assert agree(of_module(module.eval(), inputs), expected)
    assert not agree(of_module(module.train(), inputs), expected)


@each_layer
def test_one_seed_is_one_dropout_and_another_is_another(name: str) -> None:
    module, inputs = built(BUILD[name], dropout=0.5).train(), inputs_of(name)
    outputs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outputs.append(of_module(module, inputs))
    assert torch.equal(outputs[0], outputs[1]) and not torch.equal(outputs[0], outputs[2])


def drawn(shape: tuple[int, ...], p: float) -> ndarray:
    """What a module will keep next, drawn from the same state of the generator."""
    torch.manual_seed(11)
    keep = (torch.rand(shape) >= p).numpy()
    torch.manual_seed(11)
    return keep


def test_the_dropout_of_scaled_dot_product_attention_is_that_of_the_specification() -> None:
    query, key, value = (
        rng(i).standard_normal((B, H, size, D)) for i, size in enumerate((N, M, M))
    )
    keep = drawn((B, H, N, M), 0.3)
    output = attention_modules.ScaledDotProductAttention(0.3)(
        *map(torch.from_numpy, (query, key, value))
    )
    assert agree(output, spec.scaled_dot_product_attention(query, key, value, keep=keep, p=0.3))


def test_the_dropout_of_additive_attention_is_that_of_the_specification() -> None:
    module, normal = (
        built(lambda **o: attention_modules.AdditiveAttention(3, 5, 7, **o), dropout=0.3),
        rng(2).standard_normal,
    )
    inputs, weights = (
        (normal((B, N, 3)), normal((B, M, 5)), normal((B, M, 13))),
        [x.numpy() for x in module.state_dict().values()],
    )
    keep = drawn((B, N, M), 0.3)
    assert agree(
        module(*map(torch.from_numpy, inputs)),
        spec.additive_attention(*inputs, *weights, keep=keep, p=0.3),
    )


def test_the_dropout_of_multi_head_attention_is_that_of_the_specification() -> None:
    module, inputs = (
        built(BUILD["multi_head_attention"], dropout=0.3, batch_first=True),
        inputs_of("multi_head_attention"),
    )
    keep = drawn((B, H, N, M), 0.3)
    weights = module(*map(torch.from_numpy, inputs.values()))[1]
    assert agree(
        weights,
        spec.dropout(of_specification("multi_head_attention", module, inputs)[1], keep, 0.3),
    )


@each_layer
def test_a_call_leaves_nothing_behind_for_the_next(name: str) -> None:
    module = built(BUILD[name]).eval()
    for seed in (0, 1, 0):
        inputs = inputs_of(name, seed)
        assert agree(of_module(module, inputs), of_specification(name, module, inputs))


def test_a_long_call_leaves_no_biases_for_a_short_one() -> None:
    module = built(BUILD["alibi_multi_head_attention"])
    for length in (N, 2, N + 2):
        x = rng(length).standard_normal((B, length, F))
        inputs = {
            "query": x,
            "key": x,
            "value": x,
            "visible": rng(length, 1).random((length, length)) < 0.6,
        }
        assert agree(
            of_module(module, inputs),
            of_specification("alibi_multi_head_attention", module, inputs),
        )


@each_layer
def test_gradients_reach_every_parameter(name: str) -> None:
    module, inputs = built(BUILD[name]), inputs_of(name)
    output = of_module(module, inputs)
    (output * torch.from_numpy(rng(9).standard_normal(output.shape))).sum().backward()
    unseen = {key for key, x in module.named_parameters() if not x.grad.abs().max() > 1e-9}
    assert unseen <= {*UNSEEN_BIASES}


def test_a_nan_that_nobody_sees_reaches_no_gradient() -> None:
    module, inputs = built(BUILD["multi_head_attention"]), inputs_of("multi_head_attention")
    padding = inputs["key_padding_mask"]
    inputs["key"][padding], inputs["value"][padding] = np.nan, np.nan
    of_module(module, inputs).sum().backward()
    assert padding.any() and all(x.grad.isfinite().all() for x in module.parameters())


def stack(batch_first: bool, **options: Any) -> nn.Module:
    return built(
        lambda **o: transformer_xl.TransformerXL(2, H, 6, mem_len=4, **o),
        batch_first=batch_first,
        **options,
    )


def segments(module: nn.Module, *lengths: int) -> list[Tensor]:
    return [
        turn(module, torch.from_numpy(rng(i).standard_normal((B, length, 6))))
        for i, length in enumerate(lengths)
    ]


@each_layout
def test_a_stack_equals_the_specification_segment_by_segment(batch_first: bool) -> None:
    module = stack(batch_first)
    parameters = [
        {key: x.numpy() for key, x in layer.state_dict().items()} for layer in module.layers
    ]
    mems = module.init_mems(B)
    expected_mems = [turn(module, mem).numpy() for mem in mems]
    for x in segments(module, 3, 1, 5):
        hidden, mems = module(x, mems)
        expected, expected_mems = spec.transformer_xl(
            turn(module, x).numpy(), parameters, H, expected_mems, 4
        )
        assert agree(turn(module, hidden), expected)
        assert all(
            agree(turn(module, mem), old) for mem, old in zip(mems, expected_mems, strict=True)
        )


def test_the_memory_is_detached_and_never_an_alias() -> None:
    module = stack(batch_first=False)
    x = segments(module, 5)[0].requires_grad_()
    hidden, mems = module(x, module.init_mems(B))
    assert hidden.requires_grad and not any(mem.requires_grad for mem in mems)
    storages = {tensor.untyped_storage().data_ptr() for tensor in (x, hidden, *mems)}
    assert len(storages) == 4


def test_no_gradient_flows_into_the_memory_of_a_layer() -> None:
    module, inputs = built(BUILD["transformer_xl_layer"]), inputs_of("transformer_xl_layer")
    x, position, mem = (
        torch.from_numpy(inputs[name]).requires_grad_() for name in ("x", "position", "mem")
    )
    module(x.transpose(0, 1), position, mem.transpose(0, 1)).sum().backward()
    assert mem.grad is None and x.grad is not None


@pytest.mark.parametrize("operation", ["transformer_xl_layer", "transformer_xl"])
def test_no_gradient_flows_into_the_memory_of_a_function(operation: str) -> None:
    inputs = map_leaves(
        lambda x: torch.from_numpy(x.copy()).requires_grad_() if is_float_array(x) else x,
        expand(fixed_recipe(CATALOGUE[operation], {}), "float64"),
    )
    found = getattr(layers, operation)(**inputs)
    (found[0] if isinstance(found, tuple) else found).sum().backward()
    mems = inputs["mems"] if operation == "transformer_xl" else [inputs["mem"]]
    assert mems and all(mem.grad is None for mem in mems) and inputs["x"].grad is not None


def is_float_array(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype.kind == "f"


@pytest.mark.parametrize("mem_len", [1, 3, 9])
@pytest.mark.parametrize("dtypes", [("float64", "float32"), ("float32", "float64")])
def test_a_memory_of_another_dtype_gives_the_common_one(
    mem_len: int, dtypes: tuple[str, str]
) -> None:
    old, new = (torch.ones(B, 3, F, dtype=getattr(torch, dtype)) for dtype in dtypes)
    kept = update_mems([new], [old], mem_len)
    assert kept is not None and kept[0].dtype == torch.float64


def test_no_memory_stays_no_memory() -> None:
    module = stack(batch_first=False)
    assert module(*segments(module, 3))[1] is None


@pytest.mark.parametrize("dropout", [-0.1, 1.0, "0.5"])
def test_a_dropout_that_is_no_share_is_refused(dropout: Any) -> None:
    with pytest.raises(ValueError, match="dropout: wanted a number with 0 <= dropout < 1, got"):
        attention_modules.MultiHeadAttention(F, H, dropout)


@each_layer
def test_every_way_through_a_module_has_the_parameters_of_the_operation(name: str) -> None:
    ways = [f"{name}_{how}" for how in ("module", "module_batch_first", "module_train")]
    assert all(
        way in as_operations.__all__ and getattr(as_operations, way).__wrapped__.__name__ == name
        for way in ways
    )


def example(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.from_numpy(rng(i).standard_normal(shape)) for i, shape in enumerate(shapes)]


COMPILED = {
    "scaled_dot_product_attention": (
        lambda q, k, v, hidden: attention.scaled_dot_product_attention(q, k, v, hidden > 0),
        ((B, H, N, D), (B, H, M, D), (B, H, M, D), (N, M)),
    ),
    "alibi_attention": (alibi.alibi_attention, ((B, H, N, D), (B, H, M, D), (B, H, M, D))),
    "transformer_xl_attention": (
        relative.transformer_xl_attention,
        ((B, H, N, D), (B, H, M, D), (B, H, M, D), (H, M, D), (H, D), (H, D)),
    ),
    "rel_shift": (shifts.rel_shift, ((B, N, M),)),
}


@pytest.mark.parametrize("name", COMPILED)
def test_the_compiler_follows_without_a_break(name: str) -> None:
    function, shapes = COMPILED[name]
    inputs = example(*shapes)
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    assert agree(compiled(*inputs), function(*inputs).numpy())


def test_a_causal_mask_goes_where_it_is_sent() -> None:
    assert masks.causal_mask(2, 3, device="meta").device.type == "meta"
