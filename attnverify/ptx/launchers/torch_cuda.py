"""
PyTorch for files that expect a GPU: what they put on "cuda" stays on the CPU, where the machine
finds it.

    with pretended_cuda(target=90), on_machine(target=90):
        import their_kernels

Functions with ``device="cuda"``, ``x.cuda()`` and ``x.to("cuda")`` work on the host; ``x.is_cuda``
is true, ``x.device`` is cuda:0, and the questions about devices, streams and events that kernels'
launchers ask are answered. No tensor core of PyTorch's own is modelled: its operators compute as
they do on a CPU.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import wraps
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from attnverify.ptx.launchers.tensors.allocations import tensors_in
from attnverify.ptx.launchers.tensors.sides import CURRENT, PINNED, asked_side

__all__ = ["own_device", "pretended_cuda"]

HOST, DEVICE = torch.device("cpu"), torch.device("cuda", 0)


def is_device(x: Any) -> bool:
    """Tell whether something names a GPU."""
    if isinstance(x, torch.device):
        return x.type == "cuda"
    return isinstance(x, str) and (x == "cuda" or x.startswith("cuda:"))


class OnHost(TorchFunctionMode):
    """Sends what is meant for a GPU to the host."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = dict(kwargs or {})
        if function in (torch.device, torch._C._nn._parse_to):
            return function(*args, **given)
        if function in ANSWERS:
            return ANSWERS[function](args[0])
        if function in (torch.Tensor.numpy, torch.Tensor.__array__):
            refuse_numpy(args[0])
        target = asked_side(function, args, given, is_device)
        if not target and isinstance(function, torch._ops.OpOverload):
            target = None  # called by a mode for C++, whose "cuda" is the host
        made = self.called(function, args, given)
        known = CURRENT.get()
        if known is not None and target is not None:
            made = known.moved(made, list(tensors_in(list(args))), target)
        if function is torch.Tensor.pin_memory or given.get("pin_memory"):
            PINNED[made] = True
        return made

    def called(self, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """Call a function, with the host for a GPU."""
        if function in (torch.Tensor.cuda, torch.Tensor.pin_memory):
            return args[0]
        given = {
            name: HOST if is_device(x) else x for name, x in kwargs.items() if name != "pin_memory"
        }
        if isinstance(given.get("device"), int):
            given["device"] = HOST
        return function(*(HOST if is_device(x) else x for x in args), **given)


def is_of_gpu(x: torch.Tensor) -> bool:
    """Whether a tensor lies on the GPU, as far as anybody said."""
    known = CURRENT.get()
    return known is None or known.is_on_gpu(x) is not False


def refuse_numpy(x: torch.Tensor) -> None:
    """NumPy has no arrays on a GPU."""
    known = CURRENT.get()
    if known is not None and known.is_on_gpu(x):
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. "
            "Use Tensor.cpu() to copy the tensor to host memory first."
        )


def from_numpy(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return ``torch.from_numpy``, which no mode sees: its tensors lie on the host."""

    @wraps(make)
    def made(x: Any) -> torch.Tensor:
        y, known = make(x), CURRENT.get()
        if known is not None:
            known.put(y, False)
        return y

    return made


def interface(x: torch.Tensor) -> dict[str, Any]:
    """What other libraries ask of an array on a GPU: version 2 of the CUDA array interface."""
    if x.requires_grad:
        raise RuntimeError("Can't get __cuda_array_interface__ on Variable that requires grad")
    told = x.detach().numpy().__array_interface__
    strides = None if x.is_contiguous() else tuple(n * x.element_size() for n in x.stride())
    return {**{name: told[name] for name in ("typestr", "shape")}, "strides": strides,
            "data": (x.data_ptr(), False), "version": 2}  # fmt: skip


ANSWERS: dict[Any, Callable[[torch.Tensor], Any]] = {
    torch.Tensor.is_cuda.__get__: is_of_gpu,  # type: ignore[attr-defined]
    torch.Tensor.device.__get__: lambda x: DEVICE if is_of_gpu(x) else HOST,
    torch.Tensor.is_pinned: lambda x: x in PINNED,
    torch.Tensor.get_device: lambda x: 0 if is_of_gpu(x) else -1,
    torch.Tensor.__cuda_array_interface__.__get__: interface,
}
"""What tensors say of themselves."""


class Generator(torch.Generator):
    """A generator of "cuda": its numbers are those of the CPU's."""

    def __new__(cls, device: Any = "cpu") -> "Generator":
        host = HOST if is_device(device) else device
        return super().__new__(cls, host)  # type: ignore[call-arg]


def autocast_on_host(init: Callable[..., None]) -> Callable[..., None]:
    """Return ``autocast.__init__`` for which "cuda" is the CPU; its usual type stays float16."""

    @wraps(init)
    def begin(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.float16
        init(self, device_type, dtype, *args, **kwargs)

    return begin


PRETENDED: ContextVar[bool] = ContextVar("PRETENDED", default=False)


def own_device() -> torch.device:
    """Where tensors lie that a kernel takes: "cuda" while it is pretended, otherwise the CPU."""
    return DEVICE if PRETENDED.get() else HOST


def on_host(function: Callable[..., Any]) -> Callable[..., Any]:
    """
    Return the body of an operator, or of a backward pass, as it runs here: PyTorch calls it without
    the mode that saw the operator's own call.
    """

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with OnHost() if PRETENDED.get() else nullcontext():
            return function(*args, **kwargs)

    return run


def operators_on_host(define: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``custom_op``, or ``triton_op``, for operators whose bodies run on the host."""

    def defined(name: str, function: Any = None, /, **kwargs: Any) -> Any:
        if function is None:
            return lambda body: define(name, on_host(body), **kwargs)
        return define(name, on_host(function), **kwargs)

    return defined


class Event:
    """An event; nothing is timed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.recorded = False

    def record(self, stream: Any = None) -> None:
        self.recorded = True

    def wait(self, stream: Any = None) -> None:
        """Launches have ended when they return."""

    def synchronize(self) -> None:
        """Launches have ended when they return."""

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: "Event") -> float:
        return 0.0


class Stream(Event):
    """A stream; everything runs at once."""

    cuda_stream = 0
    device = DEVICE

    def wait_stream(self, stream: Any) -> None:
        """Launches have ended when they return."""

    def wait_event(self, event: Any) -> None:
        """Launches have ended when they return."""


def answers(target: int) -> dict[str, Any]:
    """Collect what ``torch.cuda`` says and does."""
    capability = divmod(target, 10)
    shared = {80: 166912, 86: 101376, 89: 101376, 90: 232448}.get(target, 101376)
    properties = SimpleNamespace(
        name="attnverify's machine",
        major=capability[0],
        minor=capability[1],
        multi_processor_count=132 if target >= 90 else 108,
        total_memory=80 << 30,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=shared,
        shared_memory_per_multiprocessor=shared + 1024,
        max_threads_per_multi_processor=2048,
        regs_per_multiprocessor=65536,
        warp_size=32,
        L2_cache_size=50 << 20,
    )
    return {
        "is_available": lambda: True,
        "mem_get_info": lambda device=None: (80 << 30, 80 << 30),
        **{name: lambda device=None: 0 for name in COUNTS},
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_capability": lambda device=None: capability,
        "get_device_properties": lambda device=None: properties,
        "get_device_name": lambda device=None: properties.name,
        "current_stream": lambda device=None: Stream(),
        "default_stream": lambda device=None: Stream(),
        "stream": lambda stream: nullcontext(),
        "device": lambda device: nullcontext(),
        "device_of": lambda x: nullcontext(),
        "Event": Event,
        "Stream": Stream,
        "is_bf16_supported": lambda *args, **kwargs: True,
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
        "is_current_stream_capturing": lambda: False,
        **{name: ignored() for name in IGNORED},
    }


COUNTS = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")

IGNORED = (
    "synchronize",
    "set_device",
    "empty_cache",
    "manual_seed",
    "manual_seed_all",
    "init",
    "reset_peak_memory_stats",
)


def ignored() -> Callable[..., None]:
    """
    Make a function that has nothing to do, one for each name: torch.compile keeps a rule for each
    function of PyTorch, and finds one function under two names to have two.
    """
    return lambda *args, **kwargs: None


@contextmanager
def pretended_cuda(target: int = 90) -> Iterator[None]:
    """PyTorch behaves as if the machine were its GPU; afterwards it is what it was."""
    instead: list[tuple[Any, str, Any]] = [
        (torch.cuda, name, x) for name, x in answers(target).items()
    ]
    instead += [
        (torch.library, name, operators_on_host(getattr(torch.library, name)))
        for name in ("custom_op", "triton_op")
        if not PRETENDED.get()
    ]
    if not PRETENDED.get():
        cast = torch.amp.autocast_mode.autocast
        instead += [
            (torch, "Generator", Generator),
            (torch, "from_numpy", from_numpy(torch.from_numpy)),
            (cast, "__init__", autocast_on_host(cast.__init__)),
        ]
        backward = torch.autograd.function.BackwardCFunction
        instead.append((backward, "apply", on_host(backward.apply)))
    before = [(module, name, getattr(module, name)) for module, name, _ in instead]
    for module, name, x in instead:
        setattr(module, name, x)
    token = PRETENDED.set(True)
    try:
        with OnHost():
            yield
    finally:
        PRETENDED.reset(token)
        for module, name, x in before:
            setattr(module, name, x)
