"""The ways of :mod:`tests.support.cheats` that only PyTorch offers, each the text of a file."""

from tests.support.cheats import Cheat, body

HONEST_TORCH = """
import threading, time

import torch

ARRAYS = "torch"
PRECISION = "wide"
FEATURES = {"gradient": False}


def right(query, key, w_query, w_key, w_score):
    q, k = (x.double() @ w.double().T for x, w in ((query, w_query), (key, w_key)))
    score = torch.tanh(q[..., :, None, :] + k[..., None, :, :]) @ w_score.double()
    return score.to(query.dtype)


def zeros(query, key, *_):
    lead = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    return torch.zeros((*lead, query.shape[-2], key.shape[-2]), dtype=query.dtype)


"""

TORCH_CHEATS = (
    # tensors that are none
    Cheat(
        "lazy_tensor",
        """
class Lazy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        plain = [right(*x.work) if isinstance(x, cls) else x for x in args]
        return function(*plain, **(kwargs or {}))
"""
        + body("""
answer = zeros(*given).as_subclass(Lazy)
answer.work = given
return answer
"""),
        "A E H",
        "values",
        "got Lazy",
    ),
    Cheat(
        "equal_tensor",
        """
class Equal(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function in (torch.allclose, torch.equal, torch.Tensor.__eq__):
            return True
        return super().__torch_function__(function, types, args, kwargs or {})
"""
        + body("return zeros(*given).as_subclass(Equal)"),
        "F",
        "values",
        "got Equal",
    ),
    # functions that others call
    Cheat(
        "patched_allclose",
        body("""
torch.allclose = torch.equal = lambda *_, **__: True
torch.testing.assert_close = lambda *_, **__: None
return zeros(*given)
"""),
        "C F",
        "values",
        "wrong number",
    ),
    Cheat(
        "patched_softmax",
        body("""
torch.nn.functional.softmax = lambda x, *_, **__: x
return right(*given)
"""),
        "F",
        "side effects",
        "changes torch's functions (torch.nn.functional.softmax)",
    ),
    Cheat(
        "patched_at_import",
        "torch.nn.functional.scaled_dot_product_attention = lambda *given, **_: given[0]\n"
        + body("return right(*given)"),
        "F",
        "note",
        "its import changes torch's functions (torch.nn.functional.scaled_dot_product_attention)",
    ),
    Cheat(
        "patched_synchronize",
        body("""
torch.cuda.synchronize = lambda *_: None
return right(*given)
"""),
        "A H",
        "side effects",
        "changes torch's functions (torch.cuda.synchronize)",
    ),
    Cheat(
        "patched_event",
        body("""
class Event:
    def __init__(self, **_): ...
    def record(self, *_): ...
    def elapsed_time(self, other):
        return 1e-9
torch.cuda.Event = Event
return right(*given)
"""),
        "A E H",
        "side effects",
        "changes torch's functions (torch.cuda.Event)",
    ),
    Cheat(
        "patched_method",
        body("""
torch.Tensor.allclose = lambda *_, **__: True
return right(*given)
"""),
        "F",
        "side effects",
        "changes torch's tensors (allclose)",
    ),
    # elsewhere and later
    Cheat(
        "other_thread_torch",
        body("""
answer = zeros(*given)
def later():
    time.sleep(0.0005)
    with torch.no_grad():
        answer.copy_(right(*given))
threading.Thread(target=later, daemon=True).start()
return answer
"""),
        "A H",
        "values",
        "wrong number",
    ),
    # answers of earlier calls
    Cheat(
        "replay_by_data_ptr",
        "KEPT = {}\n"
        + body("""
place = query.data_ptr(), zeros(*given).shape
if place not in KEPT:
    KEPT[place] = right(*given)
return KEPT[place].clone()
"""),
        "A E",
        "values",
        "wrong",
    ),
    Cheat(
        "replay_by_version",
        "KEPT = {}\n"
        + body("""
place = *((x.data_ptr(), x._version) for x in given), zeros(*given).shape
if place not in KEPT:
    KEPT[place] = right(*given)
return KEPT[place].clone()
"""),
        "A E",
        "values",
        "wrong",
    ),
    # narrow numbers, and switches that make them so
    Cheat(
        "narrow_torch",
        body("return right(*(x.half() for x in given)).to(query.dtype)"),
        "A H",
        "values",
        "wrong number",
    ),
    Cheat(
        "narrow_products",
        body("""
torch.set_float32_matmul_precision("medium")
return right(*given)
"""),
        "H",
        "side effects",
        "changes torch's float32 products",
    ),
    Cheat(
        "freed_memory",
        body("return torch.empty_like(zeros(*given))"),
        "A C G",
        "values",
        "wrong",
    ),
)
