"""The runs of the notes' rows, and how each kind of place in `note_rows` is looked up in them."""

import copy
from functools import cache

import notes
import torch
import torch.nn.functional as F
from torch import nn

import tracer
from tracer.probe import value_of
from tracer.record import verdict
from tracer.sources.missing_ops import imported

STANDARD = "torchvision-standard"


@cache
def run(name):
    """The model of a named run, and its trace."""
    if name == STANDARD:
        return standard()
    model, config, given = notes.RUNS.get(name, (name, {}, {}))
    model = tracer.load(model, **config)
    return model, model.trace(**given)


# torchvision's vit_b_16, of which note 003 speaks


class WithWeights(nn.MultiheadAttention):
    """Attention that is asked for its weights, whatever its caller asks for."""

    def forward(self, *args, need_weights=False, **kwargs):
        return super().forward(*args, need_weights=True, **kwargs)


def standard():
    """torchvision's model of the run `torchvision`, asked for attention weights, and its trace."""
    model = copy.deepcopy(run("torchvision")[0])
    for module in model.net.modules():
        if isinstance(module, nn.MultiheadAttention):
            module.__class__ = WithWeights
    with torch.no_grad():
        trace = tracer.trace(model.net, *model.inputs(B=2), symbols={"B": 0}, primitives=True)
    return model, trace


@cache
def whole():
    """The ops of torchvision's whole vit_b_16 at batch 2, with the module that each ran in."""
    net = imported().models.vit_b_16(weights=None).eval()
    with torch.no_grad():
        return tracer.trace(net, torch.randn(2, 3, 224, 224), prove=False).ops


@cache
def parameters(prefix: str) -> int:
    """Parameters of torchvision's vit_b_16 under a path, counted on `meta`."""
    with torch.device("meta"):
        net = imported().models.vit_b_16(weights=None)
    return sum(value.numel() for name, value in net.named_parameters() if name.startswith(prefix))


def block(ops, layer: int = 0) -> list:
    """The ops of one block."""
    path = f"encoder.layers.encoder_layer_{layer}"
    return [op for op in ops if f"{op.module}.".startswith(f"{path}.")]


def primitives(trace) -> list[str]:
    """The names of the primitives of the first block."""
    return [one.name for op in block(trace.ops) for one in trace.decompositions[op.index].primitives]


def same_blocks() -> bool:
    """Whether the model has 12 blocks, which all run the ops of the one that the rows are looked up in."""

    def outline(ops):
        return [(op.op, [x.shape for x in op.inputs], [x.shape for x in op.outputs]) for op in ops]

    one = outline(block(run("torchvision")[1].ops))
    blocks = [outline(block(whole(), layer)) for layer in range(13)]
    return blocks == [one] * 12 + [[]]


x = torch.randn(2, 6, 12)
CALLS = {
    "add": lambda: x + x,
    "baddbmm": lambda: torch.baddbmm(x[..., :6], x, x.mT),
    "bmm": lambda: x.bmm(x.mT),
    "cat": lambda: torch.cat((x, x)),
    "chunk": lambda: x.chunk(2),
    "contiguous": lambda: x.transpose(0, 1).contiguous(),
    "div": lambda: x / x,
    "dropout": lambda: F.dropout(x, 0.5, training=False),
    "expand": lambda: x[:1].expand(3, -1, -1),
    "gelu": lambda: F.gelu(x),
    "index": lambda: x[1],
    "linear": lambda: F.linear(x, x[0], x[0, :, 0]),
    "mean": lambda: x.mean(1),
    "mul": lambda: x * x,
    "permute": lambda: x.permute(2, 0, 1),
    "pow": lambda: x**3,
    "reshape": lambda: x.reshape(12, 12),
    "rsqrt": lambda: x.rsqrt(),
    "softmax": lambda: x.softmax(-1),
    "split": lambda: x.split(3, dim=-1),
    "squeeze": lambda: x.squeeze(0),
    "sub": lambda: x - x,
    "tanh": lambda: x.tanh(),
    "transpose": lambda: x.transpose(0, 1),
    "unflatten": lambda: x.unflatten(-1, (3, 4)),
    "unsqueeze": lambda: x.unsqueeze(0),
    "view": lambda: x.view(12, 12),
}
"""Note 003's complete op list, each op called once."""


class Called(nn.Module):
    """One of the calls."""

    def forward(self, name):
        return CALLS[name]()


@cache
def dispatched(name: str) -> frozenset[str]:
    """The ops that PyTorch runs for a call of note 003's list, besides those that lay out the example itself."""
    own = {"contiguous": {"transpose"}, "expand": {"slice"}, "bmm": {"transpose"}}
    own |= {"baddbmm": {"transpose", "slice", "alias"}, "linear": {"select"}}
    with torch.no_grad():
        return frozenset(op.op for op in tracer.trace(Called(), name).ops) - own.get(name, set())


@cache
def ran_at_all() -> frozenset[str]:
    """Every op and every primitive that ran in torchvision's model, on the fused and on the standard path."""
    traces = [run(name)[1] for name in ("torchvision", STANDARD)]
    opened = {one.name for trace in traces for op in trace.decompositions for one in op.primitives}
    return frozenset({op.op for trace in traces for op in trace.ops} | opened)


NEVER = {"baddbmm", "chunk", "split", "pow", "tanh"}
PRODUCTS = ("addmm", "mm", "bmm", "baddbmm", "_scaled_dot_product_flash_attention_for_cpu")

COUNTED = {
    "layers": same_blocks,
    "norms": lambda: parameters(f"{notes.BLOCK}ln_") == 3072 and parameters("encoder.ln") == 1536,
    "attention": lambda: parameters(f"{notes.BLOCK}self_attention.") == 2_362_368,
    "mlp": lambda: parameters(f"{notes.BLOCK}mlp.") == 4_722_432,
    "block": lambda: round(parameters(notes.BLOCK) / 1e6, 1) == 7.1,
    "encoder": lambda: round(parameters("encoder.layers.") / 1e6) == 85,
    "products": lambda: sum(op.op in PRODUCTS for op in block(run("torchvision")[1].ops)) == 5,
    "names": lambda: {name for name in CALLS if not dispatched(name) <= ran_at_all()} == NEVER,
}


# Places


def sizes(row, text: str) -> list[int]:
    """The sizes of a shape in a row, axes of size 1 left out."""
    values = {symbol.name: symbol.value for symbol in run(row.run)[1].symbols}
    return [size for size in (value_of(size, values) for size in text.split()) if size != 1]


def fits(row, shape, said: str | None = None) -> bool:
    """Whether a shape is the row's, axes of size 1 left out."""
    said = row.shape.rpartition(">")[2] if said is None else said
    return [size for size in shape if size != 1] == sizes(row, said)


def both_fit(row, op) -> bool:
    """Whether an op or a primitive goes from and to the row's shapes."""
    taken, arrow, _ = row.shape.rpartition(">")
    return fits(row, op.outputs[0].shape) and (not arrow or fits(row, op.inputs[0].shape, taken))


def step(row, name):
    found = run(row.run)[1].step(name)
    assert found.verdict == "proven"
    assert "?" not in found.symbolic
    assert fits(row, found.shape), f"{name} is {found.shape}, {found.symbolic}"


def param(row, path):
    shape = run(row.run)[0].net.get_parameter(path).shape
    assert fits(row, shape) or fits(row, shape[::-1]), f"{path} is {tuple(shape)}"


def given(row, name):
    trace = run(row.run)[1]
    shapes = [tensor.shape for op in trace.ops for tensor in op.inputs if tensor.maker == f"input {name}"]
    assert shapes and fits(row, shapes[0])


def size(row, name):
    trace = run(row.run)[1]
    value = next(symbol.value for symbol in trace.symbols if symbol.name == name)
    assert not row.shape or value == int(row.shape)


def op(row, function, module):
    found = [op for op in run(row.run)[1].ops if op.module == module and op.function == function]
    assert any(fits(row, op.outputs[0].shape) for op in found), [op.outputs[0].shape for op in found]


def ran(row, name, place):
    found = [op for op in run(row.run)[1].ops if op.op == name and place in (op.module, op.step)]
    assert any(both_fit(row, op) for op in found), [(op.inputs[0].shape, op.outputs[0].shape) for op in found]


def prim(row, name, wanted):
    """In every op of that name."""
    trace = run(row.run)[1]
    opened = [trace.decompositions[op.index] for op in trace.ops if op.op == name]
    assert opened and all(verdict(one.error, "float32") == "proven" for one in opened)
    for one in opened:
        made = [part for part in one.primitives if part.name == wanted]
        assert any(both_fit(row, part) for part in made), [part.name for part in one.primitives]


def names(row, *calls):
    assert all(dispatched(call) and dispatched(call) <= ran_at_all() for call in calls)


def count(row, name):
    assert COUNTED[name](), name


def claim(row, name):
    import test_claims

    assert callable(getattr(test_claims, f"test_{name}", None)), f"test_claims.py has no test_{name}"


def option(row, name):
    assert len(run(row.run)[0].spec.options[name]) > 1


def open_(row, name):
    assert name in tracer.models.names()


def named(table):
    def check(row, name):
        assert len(table[name]) > 20

    return check


CHECKS = {
    "step": step,
    "param": param,
    "input": given,
    "size": size,
    "op": op,
    "ran": ran,
    "prim": prim,
    "names": names,
    "count": count,
    "claim": claim,
    "option": option,
    "open": open_,
    "slip": named(notes.SLIPS),
    "outside": named(notes.OUTSIDE),
}
