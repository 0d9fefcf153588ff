"""
Twelve problems in the format of KernelBench, of its levels 1 and 2, in our own words, each with
answers: a right one, one that its own check (allclose 1e-2 on its own inputs) notices, and one that
it does not. Wrong answers are the right one with one thing exchanged.
"""

from dataclasses import dataclass

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"


@dataclass(frozen=True)
class Example:
    """
    ``made``: the parameters of the model; ``forward`` and ``right``: what the model gives, and a
    right answer; two exchanges that make it wrong; ``drawn``: the inputs, of these numbers.
    """

    arguments: str
    forward: str
    right: str
    seen: tuple[str, str]
    unseen: tuple[str, str]
    drawn: str
    numbers: str = "rows = 16\nwidth = 64\n"
    made: str = "pass"
    given: str = ""

    def written(self, kind: str, gives: str) -> str:
        names = self.given or "self"
        return (
            f"{HEAD}class {kind}(nn.Module):\n    def __init__({names}):\n"
            f"        super().__init__()\n        {self.made}\n\n"
            f"    def forward(self, {self.arguments}):\n        {gives}\n"
        )

    @property
    def problem(self) -> str:
        given = ", ".join(self.given.split(", ")[1:])
        return (
            f"{self.written('Model', self.forward)}\n\n{self.numbers}\n\n"
            f"def get_inputs():\n    return [{self.drawn}]\n\n\n"
            f"def get_init_inputs():\n    return [{given}]\n"
        )

    def answer(self, *exchanged: str) -> str:
        return self.written(
            "ModelNew", self.right.replace(*exchanged, 1) if exchanged else self.right
        )


LINEAR = {"made": "self.linear = nn.Linear(width, features)", "given": "self, width, features"}
SIZES = "rows = 16\nwidth = 64\nfeatures = 48\n"
ROWS = "torch.randn(rows, width)"

EXAMPLES: dict[str, Example] = {
    "1_product_of_a_transposed": Example(
        *("a, b", "return a.T @ b", "return torch.einsum('kn,km->nm', a, b)"),
        *(("'kn,km->nm', a", "'kn,km->nm', -a"), ("a, b)", "a.bfloat16().float(), b)")),
        "torch.randn(width, rows) / 64, torch.randn(width, rows)",
    ),
    "2_softmax_of_rows": Example(
        *("x", "return torch.softmax(x, dim=1)"),
        "e = (x - x.amax(1, keepdim=True)).exp(); return e / e.sum(1, keepdim=True)",
        *(("e.sum(1", "e.sum(0"), ("x - x.amax(1, keepdim=True)", "x")),
        ROWS,
    ),
    "3_norm_of_rows": Example(
        *("x", "return self.norm(x)"),
        "c = x - x.mean(-1, keepdim=True); v = c.square().mean(-1, keepdim=True); "
        "return c * torch.rsqrt(v + 1e-5) * self.norm.weight + self.norm.bias",
        *(("+ self.norm.bias", "+ self.norm.bias + 0.1"), ("1e-5", "1e-3")),
        ROWS,
        *(SIZES, "self.norm = nn.LayerNorm(width)", "self, width"),
    ),
    "4_root_of_mean_square": Example(
        *("x", "return x / (x.square().mean(1, keepdim=True) + 1e-5).sqrt()"),
        "return x * (x.pow(2).sum(1, keepdim=True) / x.shape[1] + 1e-5).rsqrt()",
        *((".sum(1", ".sum(0"), ("+ 1e-5)", ").clamp(min=1e-3)")),
        ROWS,
    ),
    "5_gelu": Example(
        *("x", "return F.gelu(x)", "return 0.5 * x * torch.erfc(-x * 0.5**0.5)"),
        *(
            ("0.5 * x", "x"),
            ("0.5 * x * torch.erfc(-x * 0.5**0.5)", "F.gelu(x, approximate='tanh')"),
        ),
        ROWS,
    ),
    "6_pool": Example(
        *("x", "return F.max_pool1d(x, 3, 2, 1)"),
        "return F.pad(x, (1, 1), value=float('-inf')).unfold(-1, 3, 2).amax(-1)",
        *(("(1, 1), value=float('-inf')", "(1, 1), value=0.0"), ("float('-inf')", "-9.0")),
        *("torch.randn(rows, 8, width)",),
    ),
    "7_sum_from_the_end": Example(
        *("x", "return torch.flip(torch.cumsum(torch.flip(x, (1,)), 1), (1,))"),
        "return x @ torch.ones(x.shape[1], x.shape[1]).to(x).tril()",
        *((".tril()", ".triu()"), ("x @", "x.half().to(x) @")),
        ROWS,
        numbers="rows = 16\nwidth = 20\n",
    ),
    "8_huber": Example(
        *("a, b", "return F.smooth_l1_loss(a, b)"),
        "d = (a - b).abs(); return torch.where(d < 1, d * d / 2, d - 0.5).mean()",
        *(("d * d / 2", "d * d"), ("d < 1, d * d / 2", "(d < 1) | (d > 6), d * d / 2")),
        "torch.rand(rows, width), torch.rand(rows, width)",
    ),
    "9_linear_then_relu": Example(
        *("x", "return F.relu(self.linear(x))"),
        "return (x @ self.linear.weight.T + self.linear.bias).clamp(min=0)",
        *(("+ self", "- self"), ("(x @", "(x.bfloat16().float() @")),
        *("torch.rand(rows, width)", SIZES),
        **LINEAR,
    ),
    "10_linear_then_swish": Example(
        *("x", "return F.silu(self.linear(x)) * 2"),
        "y = F.linear(x, self.linear.weight, self.linear.bias); return 2 * y * torch.sigmoid(y)",
        *(("2 * y", "y"), ("torch.sigmoid(y)", "torch.sigmoid(y).clamp(1e-3)")),
        *(ROWS, SIZES),
        **LINEAR,
    ),
    "11_convolution_then_tanh": Example(
        *("x", "return torch.tanh(self.conv(x).amin(1, keepdim=True))"),
        "y = F.conv2d(x, self.conv.weight) + self.conv.bias[:, None, None]; "
        "return torch.tanh(-(-y).amax(1, keepdim=True))",
        *(("-(-y).amax", "y.amax"), ("-(-y)", "-(-y).clamp(-3, 3)")),
        *("torch.randn(rows, channels, height, width)",),
        "rows = 8\nchannels = 8\nfeatures = 6\nheight = 9\nwidth = 10\n",
        *("self.conv = nn.Conv2d(channels, features, 3)", "self, channels, features"),
    ),
    "12_linear_then_softplus": Example(
        *("x", "return torch.logsumexp(F.softplus(self.linear(x)), 1)"),
        "y = F.softplus(self.linear(x)); m = y.amax(1, keepdim=True); "
        "return (y - m).exp().sum(1).log() + m[:, 0]",
        *(("+ m[:, 0]", "+ m[:, 0].relu() * 2"), ("F.softplus(", "F.softplus(threshold=5, input=")),
        *(ROWS, SIZES),
        **LINEAR,
    ),
}
"""By the name of its file."""
