"""The whole idea in one file: record a GPT, solve its shapes, write its equations, and run them.

A forward pass is a list of ops on tensors. Three passes at different sizes tell what each dimension
is in symbols. An equation is one object, which prints itself and runs. It is verified if it gives
the tensors of all three passes, each of which has its own sizes, weights and tokens.

Sizes: B batch, T text length, T_max positions, D width, h heads, V vocabulary, d_k = D/h.
"""

import math
from collections import namedtuple
from collections.abc import Callable, Sequence
from itertools import product

import torch
from sympy import Eq, Expr, Integer, Symbol, latex, sqrt, symbols
from sympy.core.symbol import Str
from sympy.printing.precedence import PRECEDENCE
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode


# 1. The model: a GPT of two blocks. The comment behind a line is the shape of its result.
class Attention(nn.Module):
    """Causal self-attention with h heads."""

    def __init__(self, D: int, h: int):
        super().__init__()
        self.h = h
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x, mask):
        B, T, D, h, d_k = *x.shape, self.h, x.shape[-1] // self.h
        qkv = self.qkv(x).view(B, T, 3, h, d_k)  # [B, T, 3, h, d_k]
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # [B, h, T, d_k] each
        scores = q @ k.mT / math.sqrt(d_k) + mask  # [B, h, T, T]
        weights = scores.softmax(dim=-1)  # [B, h, T, T]
        context = (weights @ v).transpose(1, 2).reshape(B, T, D)  # [B, T, D]
        return self.out(context)  # [B, T, D]


class Block(nn.Module):
    """Attention and an MLP. Each reads the residual stream through a norm and adds to it."""

    def __init__(self, D: int, h: int):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.attention = Attention(D, h)
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(self, x, mask):
        x = x + self.attention(self.norm1(x), mask)  # [B, T, D]
        return x + self.mlp(self.norm2(x))  # [B, T, D]


class GPT(nn.Module):
    """Decoder that predicts the next token. Its output matrix is the embedding matrix."""

    def __init__(self, T_max: int, D: int, h: int, V: int):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(V, D), nn.Embedding(T_max, D)
        self.block1, self.block2 = Block(D, h), Block(D, h)
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        B, T = tokens.shape
        mask = torch.full((T, T), -math.inf).triu(1)  # [T, T]
        x = self.tokens(tokens) + self.positions(torch.arange(T))  # [B, T, D]
        x = self.block2(self.block1(x, mask), mask)  # [B, T, D]
        return self.head(self.norm(x))  # [B, T, V]


# 2. Record: hooks tell which module runs, and a dispatch mode sees every op. An op has a place,
# such as `gpt.norm/native_layer_norm`. A run has its sizes as a dictionary, and a list of ops.
Op = namedtuple("Op", "place inputs outputs")
Run = namedtuple("Run", "sizes ops")


class Recorder(TorchDispatchMode):
    """The ops that PyTorch's dispatcher runs, each with the innermost of the running modules."""

    def __init__(self):
        super().__init__()
        self.running, self.ops = [], []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        inputs = copies(args)
        result = function(*args, **(kwargs or {}))
        outputs = copies([result] if isinstance(result, Tensor) else result)
        place = f"{self.running[-1]}/{function.overloadpacket.__name__}"
        self.ops.append(Op(place, inputs, outputs))
        return result


def copies(values: Sequence) -> tuple[Tensor, ...]:
    """Return copies of the tensors among some values, not in lists. A later op may write to one."""
    return tuple(value.detach().clone() for value in values if isinstance(value, Tensor))


def record(model: nn.Module, *args: Tensor) -> list[Op]:
    """Run a model and return its ops. The parameters come first, as ops that take nothing."""
    recorder, hooks = Recorder(), []
    for name, module in model.named_modules(prefix="gpt"):
        hooks += [
            module.register_forward_pre_hook(lambda *_, name=name: recorder.running.append(name)),
            module.register_forward_hook(lambda *_, name=name: recorder.running.remove(name)),
        ]
    try:
        with torch.no_grad(), recorder:
            model(*args)
    finally:
        for hook in hooks:
            hook.remove()
    parameters = model.named_parameters(prefix="gpt")
    return [Op(name, (), copies([value])) for name, value in parameters] + recorder.ops


def run_at(seed: int, B: int, T: int, **sizes: int) -> Run:
    """Run a GPT of these sizes with random parameters on random tokens."""
    torch.manual_seed(seed)
    model = GPT(**sizes)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)  # γ = 1 and β = 0, as PyTorch sets them, hide mistakes
    return Run({"B": B, "T": T, **sizes}, record(model, torch.randint(sizes["V"], (B, T))))


# 3. Solve: the formula of a dimension is the only one that fits two runs, and predicts the third.
def predict(runs: Sequence[Run]) -> dict[Expr, tuple]:
    """Return the formulas that a dimension may have, each with its values in the runs."""
    sizes = symbols(list(runs[0].sizes))
    formulas = {n * size for n in (1, 2, 3, 4) for size in (Integer(1), *sizes)}
    for a, b in product(sizes, sizes):
        formulas |= {a + b, a * b, a / b}
    return {formula: tuple(formula.subs(run.sizes) for run in runs) for formula in formulas}


def solve(lengths: tuple[int, ...], predictions: dict[Expr, tuple]) -> Expr:
    """Return the formula of a dimension of these lengths; `?` where it would be a guess."""
    fitting = [formula for formula, values in predictions.items() if values[:2] == lengths[:2]]
    solved = len(fitting) == 1 and predictions[fitting[0]] == lengths
    return fitting[0] if solved else Symbol("?")


def solve_shapes(runs: Sequence[Run]) -> list[Op]:
    """Return the ops of the runs once, with a symbolic shape in place of each tensor."""
    predictions, solved = predict(runs), []

    def shape(*tensors: Tensor) -> tuple[Expr, ...]:
        dimensions = zip(*(tensor.shape for tensor in tensors), strict=True)
        return tuple(solve(lengths, predictions) for lengths in dimensions)

    for same in zip(*(run.ops for run in runs), strict=True):
        places, inputs, outputs = zip(*same, strict=True)
        if len(set(places)) > 1:
            raise ValueError(f"expected the same op in all runs, got {', '.join(places)}")
        solved.append(Op(places[0], tuple(map(shape, *inputs)), tuple(map(shape, *outputs))))
    return solved


# 4. Equations: sympy objects that print in the order in which they are written, and that run.
class Node(Expr):
    """A node: `form` prints it, with brackets around looser operands, and `run` computes it."""

    is_commutative = False  # else sympy sorts the factors of a product
    precedence = PRECEDENCE["Atom"]

    def _latex(self, printer):
        level = 0 if self.precedence == PRECEDENCE["Atom"] else self.precedence
        texts = (printer.parenthesize(x, level, strict=i == 0) for i, x in enumerate(self.args))
        return self.form % tuple(texts)


class Letter(Node):
    """A tensor of a run: LaTeX, the place of its op, and which result there, -1 the last."""

    def __new__(cls, text: str, place: str, number: int = 0):
        return super().__new__(cls, Str(text), Str(place), Integer(number))

    def _latex(self, printer):
        return self.args[0].name

    def find(self, ops: list[Op]) -> Tensor | tuple[Expr, ...]:
        """Return its value; where `ops` are those of `solve_shapes`, its symbolic shape."""
        place, number = self.args[1].name, int(self.args[2])
        return [output for op in ops if op.place == place for output in op.outputs][number]


def operation(name: str, form: str, run: Callable, precedence: str = "Atom") -> Callable[..., Node]:
    """Return a function that makes nodes of a kind: what they print, and what they compute."""
    members = {"form": form, "run": staticmethod(run), "precedence": PRECEDENCE[precedence]}
    kind = type(name, (Node,), members)
    return lambda *args: kind(*args)  # a function binds as a method; a class would not


Node.__add__ = operation("Plus", "%s + %s", torch.add, "Add")
Node.__sub__ = operation("Minus", "%s - %s", torch.sub, "Add")
Node.__mul__ = operation("Times", r"%s \odot %s", torch.mul, "Mul")
Node.__matmul__ = operation("Product", r"%s\,%s", torch.matmul, "Mul")
Node.__truediv__ = operation("Over", r"\frac{%s}{%s}", torch.div)
Node.T = property(operation("Transposed", r"{%s}^{\top}", lambda x: x.mT, "Pow"))
root = operation("Root", r"\sqrt{%s}", torch.sqrt)  # of a tensor; sympy has `sqrt`
mean = operation("Mean", r"\mu(%s)", lambda x: x.mean(-1, keepdim=True))
variance = operation("Variance", r"\sigma^2(%s)", lambda x: x.var(-1, correction=0, keepdim=True))
softmax = operation("Softmax", r"\mathrm{softmax}(%s)", lambda x: (x - x.logsumexp(-1, True)).exp())
phi = operation("Phi", r"\Phi(%s)", lambda x: (1 + torch.erf(x / math.sqrt(2))) / 2)
heads = operation(
    "Heads",
    r"\mathrm{heads}_{%s}(%s)",
    lambda h, x: x.unflatten(-1, (3, h, -1)).permute(2, 0, 3, 1, 4),
)
concat = operation("Concat", r"\mathrm{concat}(%s)", lambda x: x.transpose(1, 2).flatten(2))


def textbook() -> dict[str, Eq]:
    """Return eight equations of the first block and the head, written by hand. Runs judge them."""
    X = Letter(r"\mathbf{X}", "gpt/add")
    gamma = Letter(r"\boldsymbol{\gamma}", "gpt.block1.norm1.weight")
    beta = Letter(r"\boldsymbol{\beta}", "gpt.block1.norm1.bias")
    X_n = Letter(r"\tilde{\mathbf{X}}", "gpt.block1.norm1/native_layer_norm")
    W = Letter(r"\mathbf{W}_{QKV}", "gpt.block1.attention.qkv/t")  # PyTorch keeps its transpose
    b = Letter(r"\mathbf{b}_{QKV}", "gpt.block1.attention.qkv.bias")
    QKV = Letter(r"(\mathbf{Q}, \mathbf{K}, \mathbf{V})", "gpt.block1.attention/permute")
    place = "gpt.block1.attention/unbind"
    Q, K, V = (Letter(rf"\mathbf{{{x}}}", place, i) for i, x in enumerate("QKV"))
    M = Letter(r"\mathbf{M}", "gpt/triu")
    S = Letter(r"\mathbf{S}", "gpt.block1.attention/add")
    A = Letter(r"\mathbf{A}", "gpt.block1.attention/_softmax")
    H = Letter(r"\mathbf{H}", "gpt.block1.attention/_unsafe_view", -1)
    W_O = Letter(r"\mathbf{W}_O", "gpt.block1.attention.out/t")
    b_O = Letter(r"\mathbf{b}_O", "gpt.block1.attention.out.bias")
    X_a = Letter(r"\mathbf{X}'", "gpt.block1/add")
    U = Letter(r"\mathbf{U}", "gpt.block1.mlp.0/view", -1)
    G = Letter(r"\mathbf{G}", "gpt.block1.mlp.1/gelu")
    X_f = Letter(r"\mathbf{X}_f", "gpt.norm/native_layer_norm")
    E = Letter(r"\mathbf{E}", "gpt.tokens.weight")
    Z = Letter(r"\mathbf{Z}", "gpt.head/_unsafe_view", -1)
    h, d_k, epsilon = symbols("h d_k epsilon")
    lines = {
        "layer norm": (X_n, (X - mean(X)) / root(variance(X) + epsilon) * gamma + beta),
        "queries, keys, values": (QKV, heads(h, X_n @ W + b)),
        "scores": (S, Q @ K.T / sqrt(d_k) + M),
        "attention weights": (A, softmax(S)),
        "context": (H, concat(A @ V)),
        "residual stream": (X_a, X + H @ W_O + b_O),
        "GELU": (G, U * phi(U)),
        "logits": (Z, X_f @ E.T),
    }
    return {title: Eq(*sides, evaluate=False) for title, sides in lines.items()}


# 5. Verify: the object that is printed runs on the tensors that ran.
def execute(term: Expr, run: Run) -> Tensor | float:
    """Return the value of a term in a run."""
    if isinstance(term, Letter):
        return term.find(run.ops)
    if isinstance(term, Node):
        return term.run(*(execute(argument, run) for argument in term.args))
    number = term.subs(run.sizes | {"d_k": run.sizes["D"] // run.sizes["h"], "epsilon": 1e-5})
    return int(number) if number.is_Integer else float(number)


def error(equation: Eq, run: Run) -> float:
    """Return max|equation − traced| / max|traced|, where −∞ equals −∞."""
    computed, traced = execute(equation.rhs, run), execute(equation.lhs, run)
    if computed.shape != traced.shape:
        return math.inf
    difference = (computed - traced).abs().where(computed != traced, 0)
    return float(difference.max() / traced[traced.isfinite()].abs().max())


def verify(equation: Eq, runs: Sequence[Run]) -> tuple[str, float]:
    """Return the verdict on an equation, and its largest error in the runs, which may be NaN."""
    largest = float(torch.tensor([error(equation, run) for run in runs]).max())
    return ("✓ verified" if largest <= 1e-6 else "✗ refuted"), largest


def main() -> None:
    """Print eight equations that are verified, and one that is refuted."""
    runs = [
        run_at(seed=1, B=2, T=5, T_max=19, D=12, h=4, V=31),
        run_at(seed=2, B=7, T=2, T_max=11, D=15, h=3, V=23),
        run_at(seed=3, B=3, T=7, T_max=17, D=10, h=2, V=29),
    ]
    solved, equations = solve_shapes(runs), textbook()
    scores = equations["scores"]
    scaled, mask = scores.rhs.args
    equations["scores without √d_k"] = Eq(scores.lhs, scaled.args[0] + mask, evaluate=False)
    print(f"{len(solved)} ops; dimensions without a formula: {str(solved).count('?')}\n")
    row = "{:<23}{:<18}{:<15}{:<12}{:<9}{}"
    print(row.format("step", "symbolic shape", "shape", "verdict", "error", "equation"))
    for title, equation in equations.items():
        verdict, largest = verify(equation, runs)
        symbolic = ", ".join(map(str, equation.lhs.find(solved)))
        actual = ", ".join(map(str, equation.lhs.find(runs[0].ops).shape))
        print(row.format(title, symbolic, actual, verdict, f"{largest:.1e}", latex(equation)))


if __name__ == "__main__":
    main()
