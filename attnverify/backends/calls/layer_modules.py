"""
Modules of torch as layers: a class whose constructor and whose weights are given the sizes and the
parameters of a case, so that each call is one of a module of its own.

What a constructor or a weight means is known by its name, as tutorials and libraries choose them,
or by what the file says of it in ARGUMENTS; names that are known by neither are refused, all at
once, with the line to add.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from itertools import cycle
from typing import Any, cast

from attnverify.backends.calls.arguments import UnknownArgument
from attnverify.backends.declarations import TAKES_NO
from attnverify.catalogue.operation import Operation
from attnverify.contract.layers import MULTI_HEAD, SELF_ATTENTION

SIZES: dict[str, tuple[str, ...]] = {
    "width": (
        *("d_model", "embed_dim", "n_embd", "dim", "hidden_size", "emb_dim", "embedding_dim"),
        *(
            "d_in",
            "dim_in",
            "model_dim",
            "embed_size",
            "d_embed",
            "n_embed",
            "hidden_dim",
            "in_dim",
        ),
        *("in_features", "input_dim", "embd_dim", "emb_size", "features", "d", "c", "channels"),
    ),
    "output": ("d_out", "dim_out", "out_dim", "out_features", "output_dim"),
    "heads": (
        *("num_heads", "n_head", "n_heads", "heads", "nhead", "nheads", "h", "num_head"),
        *("num_attention_heads", "num_key_value_heads", "n_kv_heads"),
    ),
    "keys": (
        *("head_dim", "dim_head", "d_k", "d_head", "head_size", "dim_k", "d_key", "d_kq"),
        *("d_out_kq", "d_q", "dim_q"),
    ),
    "values": ("d_v", "dim_v", "d_value", "d_out_v"),
    "length": (
        *("block_size", "context_length", "max_len", "max_seq_len", "seq_len", "context_size"),
        *("max_length", "max_position_embeddings", "num_tokens", "n_ctx", "sequence_length"),
    ),
    "dropout": (
        *("dropout", "dropout_p", "attn_dropout", "resid_dropout", "proj_drop", "attn_drop"),
        *("dropout_rate", "drop_rate", "attention_dropout", "attn_pdrop", "resid_pdrop"),
    ),
    "bias": ("bias", "qkv_bias", "use_bias", "attention_bias", "out_bias", "proj_bias"),
}
"""What constructors call what they are given."""

CONFIGS = ("config", "cfg", "args", "params", "conf")
"""What they call a record of such things."""

Said = Mapping[str, str | None]
"""What a file says that its own names mean."""

LONGEST = 1024
"""Positions that a module is made for at least, where it has a mask of its own."""

BESIDES = "w|to|fc|c|attn|linear|lin|proj|projection|layer|net|transform|matrix|mat|weights?"
ROLES = {
    "qkv": "qkv|query_?key_?value|in_?proj|c_?attn|attn",
    "kv": "kv|key_?value",
    "q": "q|query|queries",
    "k": "k|key|keys",
    "v": "v|value|values",
    "o": "o|out|output|c_?proj|proj|projection|dense|fc|linear|final",
}
"""What weights are called, and what else may stand in such a name."""

JOINED = ("qkv", "kv")
KNOWN_SIZES = "d_model", "num_heads", "head_dim", "dropout", "bias", "block_size", "d_out", "d_v"

MULTI_HEADED = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}
SINGLE_HEADED = {"q": "w_query", "k": "w_key", "v": "w_value"}


def is_module(thing: Any) -> bool:
    """Tell whether something is a module of torch, or a class of such."""
    of = thing if isinstance(thing, type) else type(thing)
    return any(one.__module__ == "torch.nn.modules.module" for one in of.__mro__)


def as_function(module: Any, operation: Operation, said: Said) -> Callable[..., Any]:
    """
    Return a module of torch, or its class, as a function of what it is called with; one with
    weights as one of ``parameters`` and ``num_heads`` too. ``said``: what its file says of names.
    Raises ValueError where it is no layer whose weights are known by their names, or nothing is
    known by which it is made.
    """
    of: Any = module if isinstance(module, type) else type(module)
    patterns = {MULTI_HEAD: MULTI_HEADED, SELF_ATTENTION: SINGLE_HEADED}
    names = patterns.get(operation.forward.traits.parameters, {})
    made = module if of is not module and not names else make(of, sizes_for(8, 2, 16), {}, said)
    if not names and [*made.parameters()]:
        raise ValueError(
            f"{of.__name__} has weights of its own: wanted a function of the arguments of "
            f"{operation.name}, {', '.join(operation.arguments)}"
        )
    if names:
        place_weights(made, names, said)
    own = [*inspect.signature(of.forward).parameters.values()][1:]
    if operation.requires("key") and len(own) == 1:
        raise UnknownArgument(
            f"{of.__name__}: its forward takes {own[0].name} alone, where {operation.name} has "
            "query, key and value; if these are one: multi_head_self_attention"
        )

    def layer(*args: Any, parameters: Mapping[str, Any], num_heads: int = 1, **given: Any) -> Any:
        x = next(iter((*args, *given.values())))
        widths = {
            what: len(parameters[own])
            for what, own in (("keys", "w_key"), ("values", "w_value"), ("output", "w_value"))
            if own in parameters
        }
        bias = any(name.endswith(".bias") for name in parameters)
        sizes = sizes_for(x.shape[-1], num_heads, x.shape[-2]) | widths | {"bias": bias}
        made = make(of, sizes, {"device": x.device, "dtype": x.dtype}, said)
        weights = weights_of(made, parameters, place_weights(made, names, said), names, num_heads)
        return import_module("torch").func.functional_call(made, weights, args, given)

    function: Any = layer if names else partial(call, made)
    extra = [one for one in ("parameters", "num_heads") if names and one in operation.arguments]
    added = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in extra]
    variable = [p for p in own if p.kind is p.VAR_KEYWORD]
    signature = [*(p for p in own if p not in variable), *added, *variable]
    function.__signature__ = inspect.Signature(signature)
    return cast("Callable[..., Any]", function)


def call(module: Any, *args: Any, **given: Any) -> Any:
    """Call a module without weights, as it is."""
    return module(*args, **given)


def sizes_for(F: int, H: int, N: int) -> dict[str, Any]:
    """Say what the arguments of a constructor are given, of a width F, H heads and N positions."""
    widths = {"width": F, "output": F, "heads": H, "keys": F // H, "values": F // H}
    return widths | {"length": max(N, LONGEST), "dropout": 0.0, "bias": True}


def make(of: type, sizes: Mapping[str, Any], place: Mapping[str, Any], said: Said) -> Any:
    """
    Make a module of these sizes, as one evaluates it; the random numbers of others stay as they
    are. Raises ValueError for arguments of no known name.
    """
    unknown: list[str] = []

    def size(name: str, default: Any = inspect.Parameter.empty) -> Any:
        meant = said.get(name) or name
        if known := next((what for what, names in SIZES.items() if meant in names), ""):
            return sizes[known]
        if default is inspect.Parameter.empty:
            unknown.append(name)
        return default

    def refuse() -> None:
        if unknown:
            raise by_no_name(of, "argument", unknown, KNOWN_SIZES)

    class Sizes:
        """A record whose fields are known by their names."""

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            value = size(name)
            refuse()
            return value

    given = {
        name: Sizes() if name in CONFIGS and p.default is p.empty else size(name, p.default)
        for name, p in inspect.signature(of).parameters.items()
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    }
    refuse()
    with import_module("torch").random.fork_rng(devices=()):
        return of(**given).to(**place).eval() if place else of(**given).eval()


def by_no_name(of: type, what: str, unknown: list[str], known: tuple[str, ...]) -> UnknownArgument:
    """Name all that is known by no name, and a line by which the file says what it means."""
    pairs = ", ".join(f'"{name}": "{one}"' for name, one in zip(unknown, cycle(known)))
    s, are, they = ("s", "are", "they are") if len(unknown) > 1 else ("", "is", "it is")
    return UnknownArgument(
        f"{of.__name__}: its {what}{s} {', '.join(unknown)} {are} known by no name; say what "
        f"{they}, each by one of {', '.join(known)}, perhaps: ARGUMENTS = {{{pairs}}}"
    )


def place_weights(
    made: Any, names: Mapping[str, str], said: Said
) -> dict[str, tuple[str, int | None]]:
    """
    Say of each weight of a module what it is for, ``q``, ``qkv``, ``o``, and of which head, or None
    for all. Raises ValueError for what no name tells, and where something is missing or twice.
    """
    places: dict[str, tuple[str, int | None]] = {}
    unknown: list[str] = []
    for name, weight in made.named_parameters():
        owner = re.sub(r"\.(weight|bias)$", "", name)
        role = role_of(said.get(owner) or owner)
        if not role or weight.ndim > 2:
            unknown += [owner] if owner not in unknown else []
            continue
        head = re.search(r"\.(\d+)\.", name)
        places[name] = (role, int(head[1]) if head and role != "o" and "o" in names else None)
    if unknown:
        known = {letter for role, _ in places.values() for letter in role}
        missing = [role for role in names if role not in known]
        wide = {owner: parts_in(made, owner, missing) for owner in unknown}
        missing = [role for role in missing if role not in "".join(wide.values())]
        joined = [role for role in JOINED if role == "".join(missing) and len(unknown) == 1]
        left = iter(dict.fromkeys((*joined, *missing, *names, *JOINED)))
        said_first = [wide[owner] or next(left, "q") for owner in unknown]
        ordered = dict.fromkeys((*said_first, *names, *JOINED))
        raise by_no_name(type(made), "weight", unknown, (*ordered,))
    weights = [place for name, place in places.items() if made.get_parameter(name).ndim == 2]
    found = sorted(letter for role, head in weights if not head for letter in role)
    if found != sorted(names):
        raise ValueError(
            f"{type(made).__name__}: wanted one weight each for {', '.join(names)}, got "
            f"{', '.join(places) or 'none'}"
        )
    return places


def parts_in(made: Any, owner: str, missing: list[str]) -> str:
    """Say which of the missing roles a weight has that is twice or three times as long as wide."""
    shape = next((tuple(p.shape) for n, p in made.named_parameters() if n == f"{owner}.weight"), ())
    many = shape[0] // shape[1] if len(shape) == 2 and shape[0] % shape[1] == 0 else 0
    return next((one for one in JOINED if len(one) == many and {*one} <= {*missing}), "")


def in_small_letters(name: str) -> str:
    """Write a name of capitals in small letters, its words apart: CausalAttention."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def role_of(name: str) -> str:
    """Say what a weight is for by its name; "" where it is not known."""
    path = re.sub(r"(^|[._])(weight|bias)$", "", name)
    last = re.sub(r"\.\d+$", "", path).rpartition(".")[2]
    word = in_small_letters(last)
    for role, words in ROLES.items():
        if re.fullmatch(rf"(({BESIDES})_?)*({words})(_?({BESIDES}))*", word):
            return role
    return ""


def weights_of(
    made: Any,
    parameters: Mapping[str, Any],
    places: Mapping[str, tuple[str, int | None]],
    names: Mapping[str, str],
    H: int,
) -> dict[str, Any]:
    """
    Write a case's parameters under the names of a module, by what each is for: those of several in
    one weight, of one head alone, or turned round where the module is no ``Linear``. Raises
    NotImplementedError for what it has no place for.
    """
    torch, given = import_module("torch"), {}
    taken = set[str]()
    for name, (role, head) in places.items():
        weight = made.get_parameter(name)
        owns = [f"{names[letter]}.{'bias' if weight.ndim == 1 else 'weight'}" for letter in role]
        taken.update(owns)
        empty = torch.zeros_like(weight).chunk(len(owns))
        parts = [
            parameters.get(own, parameters.get(own.removesuffix(".weight"), none))
            for own, none in zip(owns, empty, strict=True)
        ]
        if head is not None:
            parts = [
                x.unflatten(0, (H, -1))[head] if own in parameters else x
                for own, x in zip(owns, parts, strict=True)
            ]
        whole = torch.cat(parts)
        given[name] = whole.T if is_turned(made, name, weight, whole) else whole
        if given[name].shape != weight.shape:
            raise NotImplementedError(f"{TAKES_NO}{' '.join(owns)} {[*given[name].shape]}")
    for own in parameters:
        if own.endswith(".bias") and own not in taken:
            raise NotImplementedError(f"{TAKES_NO}{own}")
    return given


def is_turned(made: Any, name: str, weight: Any, whole: Any) -> bool:
    """Tell whether a weight is [in out]: one of no ``Linear``, unless it has the other's shape."""
    if weight.ndim == 1 or weight.shape[0] != weight.shape[1]:
        return bool(weight.shape != whole.shape)
    owner = made.get_submodule(name.rpartition(".")[0])
    return not isinstance(owner, import_module("torch").nn.Linear)
