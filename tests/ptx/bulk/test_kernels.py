"""Kernels that copy by tensor maps give PyTorch's answer; bugs planted in one are told."""

import pytest
import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as Laid
from triton.tools.tensor_descriptor import TensorDescriptor

from attnverify import ptx
from attnverify.ptx.launchers.triton import on_machine
from tests.ptx.bulk import kernels


def whole(*shape: int) -> torch.Tensor:
    """Small whole numbers, whose products float16 holds."""
    return torch.randint(-3, 4, shape).half()


def test_a_persistent_product_makes_its_maps() -> None:
    x, y, z = whole(100, 48), whole(72, 48), torch.full((100, 72), torch.nan).half()
    with on_machine(90, timeout=60):
        kernels.persistent[(3,)](x, y, z, 100, 72, 48, 64, 32, 3)
    assert torch.equal(z, x @ y.T)


def test_a_product_by_maps_of_the_host_is_added() -> None:
    x, y, z = whole(100, 48), whole(72, 48), torch.ones(100, 72)
    of_x, of_y = (TensorDescriptor.from_tensor(each, [64, 32]) for each in (x, y))
    with on_machine(90, timeout=60):
        kernels.given_maps[(2, 2)](
            of_x, of_y, TensorDescriptor.from_tensor(z, [64, 64]), 48, 64, 32
        )
    assert torch.equal(z, 1 + x.float() @ y.float().T)


def test_products_of_a_group_make_a_map_each() -> None:
    sizes = [64, 100, 7]
    given = [(whole(m, 48), whole(64, 48), torch.zeros(m, 64).half()) for m in sizes]
    addresses = torch.tensor([x.data_ptr() for each in given for x in each])
    with on_machine(90, timeout=60):
        kernels.grouped[(2,)](addresses, torch.tensor(sizes, dtype=torch.int32), 3, 64, 48, 64, 32)
    assert all(torch.equal(z, x @ y.T) for x, y, z in given)


def specialise(bug: str) -> bool:
    x, y, z = whole(72, 128), whole(128, 64), torch.zeros(72, 64).half()
    boxes = ((x, [64, 32]), (y, [32, 64]), (z, [64, 64]))
    laid = [
        Laid.from_tensor(of, box, gl.NVMMASharedLayout.get_default_for(box, gl.float16))
        for of, box in boxes
    ]
    with on_machine(90, timeout=60):
        kernels.specialised[(2, 1)](*laid, 128, 2, bug, num_warps=4)
    return torch.equal(z, x @ y)


def test_a_product_of_specialised_warps() -> None:
    assert specialise("")


@pytest.mark.parametrize(("bug", "told"), [
    ("a full buffer is not waited for", "not waited for: a thread reads what a bulk copy brings"),
    ("an empty buffer is not waited for", "not waited for|race"),
    ("freed before it is read", "not waited for: a wgmma that was not waited for|race"),
    ("the other parity is waited for", "deadlock|not waited for|unwritten"),
    ("never freed", "deadlock: .*missing are 1 arrivals, 0 bytes"),
    ("too many bytes are expected", "deadlock: .*missing are 0 arrivals, 16 bytes"),
    ("too few bytes are expected", "deadlock: .*16 bytes too many came"),
    ("no fence", "missing fence: no fence.proxy.async since a thread stored what this copy takes"),
    ("the result is not waited for", "not waited for: a block has ended"),
    ("not initialised", "unwritten: there is no mbarrier"),
])  # fmt: skip
def test_a_planted_bug_is_seen(bug: str, told: str) -> None:
    with pytest.raises(ptx.Finding, match=told):
        specialise(bug)
