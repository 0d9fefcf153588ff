"""
The two sides of a CUDA source: what NVRTC compiles for the device, and what a C++ compiler can
compile for the host.

Declarations are told apart by their qualifiers, as nvcc does it. On the host a kernel is left as a
function that hands its arguments over, and a launch as a call of it:

    scale<float><<<blocks, 128>>>(x, n)    (::machine::configure(blocks, 128), scale<float>(x, n))

and where a tensor lies is asked of the machine: ``x.is_cuda()`` is ``::machine::on_gpu(x)``.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["device_side", "host_side"]

OF_CUDA = re.compile(r"cuda|cooperative_groups|mma\.h|cub/|thrust/|sm_\d+")
OF_BOTH = re.compile(r"[<\"]c?(math|float|limits|assert|stdint|stdio)(\.h)?[>\"]")
HOSTS_OWN = re.compile(r"<cuda\.h>|cuda_runtime|cuda_profiler|helper_cuda|/cuda/")
OF_HOST = re.compile(r"\b(torch|at|c10|std|pybind11|py)::")
COMMENTS = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', re.S)
QUALIFIERS = re.compile(r"__launch_bounds__\s*\([^)]*\)|__cluster_dims__\s*\([^)]*\)")
QUALIFYING = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+((?:\w+[ \t]+)*__(?:device|global|host)__\b[^\n(]*)$",
    re.M,
)
"""Macros that stand for qualifiers: their names, and what they stand for."""
SCOPE = re.compile(r'(?:inline\s+)?namespace\s*([\w:]*)\s*\{|extern\s*"C"\s*\{')
MACRO = re.compile(r"[A-Z][A-Z0-9_]*\s*(?=\()")
TYPES = re.compile(r"(?:template\s*<.*?>\s*)?(?:struct|class|union|enum|using|typedef)\b", re.S)
CONSTANT = re.compile(r"\b(const|constexpr|namespace|__shared__|__managed__)\b|^[\s;]*$")
INNERMOST = re.compile(r"\([^()]*\)|<[^<>]*>")
SIDE = re.compile(
    r"(\b\w+(?:\.\w+|\[\w+\])*|(?<!\w)\([\w.]+\))(?:\.(?:device|type|options)\(\))?\.is_(cuda|cpu)\(\)"
)
CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">"}


@dataclass(frozen=True)
class Declaration:
    """A piece of a source at the top or in a namespace, and the names of these."""

    text: str
    scope: tuple[str, ...] = ()
    told: str = ""
    """The text, with the qualifiers that a macro of the source stands for."""

    @property
    def is_line(self) -> bool:
        return self.text.lstrip().startswith("#")

    @property
    def is_kernel(self) -> bool:
        return "__global__" in self.head

    @property
    def is_marked(self) -> bool:
        """Whether a qualifier says that it is the device's too."""
        return any(word in self.told for word in ("__device__", "__constant__"))

    @property
    def head(self) -> str:
        """What stands before its body."""
        return self.told.partition("{")[0]

    @property
    def is_of_types(self) -> bool:
        return TYPES.match(self.text.strip()) is not None

    @property
    def is_constant(self) -> bool:
        """Whether it is a variable of both sides, which no qualifier says, or of a block's."""
        return "(" not in self.head and CONSTANT.search(self.head) is not None

    @property
    def is_scope(self) -> bool:
        return SCOPE.fullmatch(self.text.strip()) is not None or self.text.strip() == "}"

    @property
    def is_function(self) -> bool:
        return "{" in self.text and "(" in self.head and not self.is_of_types


def device_side(source: str) -> str:
    """Return what NVRTC is given; what is left out leaves its lines empty."""
    return "".join(x.text if for_device(x) else blank(x.text) for x in declarations(source))


def host_side(source: str) -> str:
    """Return what the host's compiler is given."""
    return "".join(for_host(each) for each in declarations(source))


def blank(text: str) -> str:
    return "\n" * text.count("\n")


def for_device(x: Declaration) -> bool:
    if x.is_line:
        included = x.text.lstrip().startswith("#include")
        return not included or bool(OF_BOTH.search(x.text)) or is_of_device(x.text)
    if x.is_kernel or x.is_marked or x.is_scope:
        return True
    if x.is_function or "PYBIND11_MODULE" in x.text or "TORCH_LIBRARY" in x.text:
        return "constexpr" in x.head
    return not OF_HOST.search(x.text) and (x.is_of_types or x.is_constant)


def is_of_device(include: str) -> bool:
    """Tell whether an included header is CUDA's own, and none of PyTorch's about CUDA."""
    named = include.partition("include")[2].strip()
    return bool(OF_CUDA.search(named)) and not HOSTS_OWN.search(named)


def for_host(x: Declaration) -> str:
    if x.is_line:
        included = x.text.lstrip().startswith("#include")
        return blank(x.text) if included and OF_CUDA.search(x.text) else with_calls(x.text)
    if x.is_kernel:
        return handed_over(x)
    if "__constant__" in x.head or "__shared__" in x.head:
        return blank(x.text)
    if "__device__" in x.head and "__host__" not in x.head and not x.is_of_types:
        return blank(x.text)
    return with_calls(x.text)


# declarations


def declarations(source: str) -> Iterator[Declaration]:
    """Split a source; joined, the pieces are the source without its comments."""
    text = COMMENTS.sub(lambda m: m[0] if m[0][0] in "\"'" else blank(m[0]) or " ", source)
    at, scope, macros = 0, list[str](), dict(QUALIFYING.findall(text))
    while at < len(text):
        end = end_of(text, at)
        piece = text[at:end]
        if opened := SCOPE.fullmatch(piece.strip()):
            scope.append(opened[1] or "")
        told = piece
        for name in macros if not piece.lstrip().startswith("#") else ():
            told = re.sub(rf"\b{name}\b", macros[name], told)
        yield Declaration(piece, tuple(scope), told)
        if piece.strip() == "}" and scope:
            scope.pop()
        at = end


def end_of(text: str, at: int) -> int:
    """Find where the declaration ends that begins here."""
    start = at + len(text[at:]) - len(text[at:].lstrip())
    if text.startswith("#", start):
        return line_end(text, start)
    if opened := SCOPE.match(text, start):
        return opened.end()
    if called := MACRO.match(text, start):
        end = after_pair(text, called.end())
        if text[end:].lstrip()[:1] not in ("{", ";"):
            return end
    while at < len(text):
        if text[at] == ";" or (text[at] == "}"):
            return at + 1
        if text[at] == "{":
            at = after_pair(text, at)
            whole = text[start:at]
            if not (TYPES.match(whole) or is_assigned(whole.partition("{")[0])):
                return at
            continue
        at = after_pair(text, at) if text[at] in "([" else skipped(text, at)
    return at


def is_assigned(head: str) -> bool:
    """Whether a variable is given a value here; the defaults of a template are none."""
    before = ""
    while head != before:
        before, head = head, INNERMOST.sub("", head)
    return "=" in head and "operator" not in head


def line_end(text: str, at: int) -> int:
    """Find the end of a preprocessor's line, with those that it goes on in."""
    while (end := text.find("\n", at)) > 0 and text[end - 1] == "\\":
        at = end + 1
    return len(text) if end < 0 else end + 1


def skipped(text: str, at: int) -> int:
    """Go on by a character, or by a string."""
    found = COMMENTS.match(text, at)
    return found.end() if found else at + 1


def after_pair(text: str, at: int) -> int:
    """Find what lies behind the bracket that closes the one here."""
    opening, closing, depth = text[at], CLOSING[text[at]], 0
    while at < len(text):
        depth += (text[at] == opening) - (text[at] == closing)
        at = skipped(text, at)
        if not depth:
            return at
    raise ValueError(f"cuda_sources: wanted a {closing!r} for each {opening!r}, got none")


# kernels and launches


def handed_over(kernel: Declaration) -> str:
    """Return the function that stands for a kernel on the host, on as many lines."""
    head = QUALIFIERS.sub("", kernel.head)
    head = re.sub(r'__global__|\bstatic\b|\binline\b|extern\s*"C"', "", head)
    opened = head.rindex("(") if head.count("(") == 1 else head.index("(", name_end(head))
    before, given = head[:opened], head[opened + 1 : head.rindex(")")]
    name = before.split()[-1]
    names = [named(part) for part in parts_of(given)]
    if "{" not in kernel.text:
        return blank(kernel.text)
    template = re.match(r"\s*template\s*<", before)
    arguments = (
        before[template.end() : after_pair(before, template.end() - 1) - 1] if template else ""
    )
    asked = ", ".join(f"::machine::spelled<{named(part)}>()" for part in parts_of(arguments))
    whole = "::".join([*filter(None, kernel.scope), name])
    packed = ", ".join(f"::machine::packed({each})" for each in names)
    body = f'::machine::launch("{whole}", {{{asked}}}, {{{packed}}});'
    lines = blank(kernel.told[len(kernel.head) :])
    return f"{before.replace('void', 'static void', 1)}({given}) {{ {body} }}{lines}"


def name_end(head: str) -> int:
    """Find where the result's type ends: behind a template's parameters."""
    return head.rindex("void")


def parts_of(text: str) -> list[str]:
    """Split at the commas outside of all brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{<") - (letter in ")]}>")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part.strip()]


def named(parameter: str) -> str:
    """Return the name that a parameter declares, without its default."""
    declared = re.sub(r"\[[^]]*\]", "", parameter.partition("=")[0])
    return re.findall(r"\w+", declared)[-1]


def with_calls(text: str) -> str:
    """Write launches as calls, and questions where a tensor lies."""
    text = SIDE.sub(
        lambda m: f"::machine::{'on_gpu' if m[2] == 'cuda' else 'on_host'}({m[1]})", text
    )
    while (at := without_strings(text).find("<<<")) >= 0:
        end = without_strings(text).index(">>>", at)
        start = start_of_name(text, at)
        behind = text.index("(", end)
        stop = after_pair(text, behind)
        setting, kernel = text[at + 3 : end], text[start:at].strip()
        call = f"(::machine::configure({setting}), {kernel}{text[behind:stop]})"
        text = text[:start] + call + text[stop:]
    return text


def without_strings(text: str) -> str:
    return COMMENTS.sub(lambda found: " " * len(found[0]), text)


def start_of_name(text: str, at: int) -> int:
    """Find where the name before a launch begins, with its template's arguments."""
    end = at
    while text[end - 1].isspace():
        end -= 1
    if text[end - 1] == ">":
        depth = 0
        while end:
            end -= 1
            depth += (text[end] == ">") - (text[end] == "<")
            if not depth:
                break
    begin = re.search(r"[\w:#]+\s*\Z", text[:end])
    return begin.start() if begin else end
