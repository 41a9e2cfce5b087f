"""Note 003 against torchvision's vit_b_16: parameters and ops of a block, counted, and the ops behind its names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

import tracer
from tracer.lessons.notes.measurement import STANDARD, Provider
from tracer.lessons.notes.statements import BLOCK
from tracer.ops import BINARY, MATRIX, REDUCTION, UNARY, category
from tracer.record import Op, Trace
from tracer.spec.spec import Model
from tracer.zoo.torchvision_models import import_torchvision

_x = torch.zeros(2, 6, 12)
CALLS: dict[str, Callable] = {
    "add": lambda: _x + _x,
    "baddbmm": lambda: torch.baddbmm(_x[..., :6], _x, _x.mT),
    "bmm": lambda: _x.bmm(_x.mT),
    "cat": lambda: torch.cat((_x, _x)),
    "chunk": lambda: _x.chunk(2),
    "contiguous": lambda: _x.transpose(0, 1).contiguous(),
    "div": lambda: _x / _x,
    "dropout": lambda: F.dropout(_x, 0.5, training=False),
    "expand": lambda: _x[:1].expand(3, -1, -1),
    "gelu": lambda: F.gelu(_x),
    "index": lambda: _x[1],
    "linear": lambda: F.linear(_x, _x[0], _x[0, :, 0]),
    "mean": lambda: _x.mean(1),
    "mul": lambda: _x * _x,
    "permute": lambda: _x.permute(2, 0, 1),
    "pow": lambda: _x**3,
    "reshape": lambda: _x.reshape(12, 12),
    "rsqrt": lambda: _x.rsqrt(),
    "softmax": lambda: _x.softmax(-1),
    "split": lambda: _x.split(3, dim=-1),
    "squeeze": lambda: _x.squeeze(0),
    "sub": lambda: _x - _x,
    "tanh": lambda: _x.tanh(),
    "transpose": lambda: _x.transpose(0, 1),
    "unflatten": lambda: _x.unflatten(-1, (3, 4)),
    "unsqueeze": lambda: _x.unsqueeze(0),
    "view": lambda: _x.view(12, 12),
}
"""The note's complete op list, each op as a call of an example `[2, 6, 12]`."""
ABSENT_OPS = frozenset({"baddbmm", "chunk", "split", "pow", "tanh"})
"""The names in it whose ops did not run in the model."""
PRODUCTS = ("addmm", "mm", "bmm", "baddbmm", "_scaled_dot_product_flash_attention_for_cpu")


class BlockCount(NamedTuple):
    """Counted quantity, in words, and whether it agrees with the note."""

    sentence: str
    holds: bool


class CallModule(nn.Module):
    """A module that runs one of the calls."""

    def forward(self, name) -> torch.Tensor:
        return CALLS[name]()


@cache
def dispatch_ops(name: str) -> frozenset[str]:
    """Return the ops that PyTorch runs for a call of the note's list, without those that lay out the example itself."""
    own = {"contiguous": {"transpose"}, "expand": {"slice"}, "bmm": {"transpose"}}
    own |= {"baddbmm": {"transpose", "slice", "alias"}, "linear": {"select"}}
    with torch.no_grad():
        return frozenset(op.op for op in tracer.trace(CallModule(), name, prove=False).ops) - own.get(name, set())


def ran_at_all(run: Provider) -> frozenset[str]:
    """Return every op and every primitive that ran in torchvision's model, on the fused and on the standard path."""
    traces = [run(name)[1] for name in ("torchvision", STANDARD)]
    opened = {primitive.name for trace in traces for op in trace.decompositions for primitive in op.primitives}
    return frozenset({op.op for trace in traces for op in trace.ops} | opened)


@cache
def parameters(prefix: str) -> int:
    """Return the number of parameters of torchvision's vit_b_16 under a path, counted on `meta`."""
    return sum(value.numel() for name, value in _whole().named_parameters() if name.startswith(prefix))


@cache
def _whole() -> nn.Module:
    """Return the whole model, which takes no memory on `meta`."""
    with torch.device("meta"):
        return import_torchvision().models.vit_b_16(weights=None)


def block(ops: Sequence[Op], layer: int = 0) -> list[Op]:
    """Return the ops of one block."""
    path = f"encoder.layers.encoder_layer_{layer}"
    return [op for op in ops if f"{op.module}.".startswith(f"{path}.")]


def primitives(trace: Trace) -> list[str]:
    """Return the names of the primitives of the first block."""
    return [primitive.name for op in block(trace.ops) for primitive in trace.decompositions[op.index].primitives]


STATED_COUNTS = {MATRIX: "5", BINARY: "~20", UNARY: "~10", REDUCTION: "4"}
"""The note's number of operations of each kind in a block."""


def kinds(run: Provider) -> dict[str, Counter[str]]:
    """Return the primitives of one block on the standard path, the one that the note counts, by kind."""
    return by_kind(primitives(run(STANDARD)[1]))


def by_kind(names: Iterable[str]) -> dict[str, Counter[str]]:
    """Return primitives by the kinds that the note counts."""
    counters: dict[str, Counter[str]] = {kind: Counter() for kind in STATED_COUNTS}
    for name in names:
        if category(name) in counters:
            counters[category(name)][name] += 1
    return counters


def layers(trace: Trace) -> list[int]:
    """Return the blocks of any model, counted from 0."""
    return sorted({step.layer for step in trace.steps if step.layer is not None})


def kinds_of(model: Model, trace: Trace, layer: int, decompositions: Mapping[str, Any]) -> dict[str, Counter[str]]:
    """Return the primitives of a block of any model by kind, from one more run on the input `decompositions`."""
    own = {step.id for step in trace.steps if step.layer == layer}
    ops = tuple(op.index for op in trace.ops if op.step in own)
    opened = model.trace(**decompositions, prove=False, primitives=ops).decompositions
    return by_kind(primitive.name for decomposition in opened for primitive in decomposition.primitives)


def _layers(run: Provider) -> BlockCount:
    blocks = [
        name for name, _ in _whole().named_modules() if name.startswith("encoder.layers.") and name.count(".") == 2
    ]
    sizes = {parameters(f"{name}.") for name in blocks}
    same = f"all of {next(iter(sizes)):,} parameters" if len(sizes) == 1 else "of different sizes"
    return BlockCount(f"{len(blocks)} blocks, {same}", len(blocks) == 12 and len(sizes) == 1)


def _norms(run: Provider) -> BlockCount:
    inside, last = parameters(f"{BLOCK}ln_"), parameters("encoder.ln")
    evidence = f"{inside:,} parameters in the norms of a block, {last:,} in the one after the last block"
    return BlockCount(evidence, (inside, last) == (3072, 1536))


def _sum_parameters(prefix: str, fits: Callable[[int], bool]) -> Callable[[Provider], BlockCount]:
    def count(run: Provider) -> BlockCount:
        counts = parameters(prefix)
        return BlockCount(f"{counts:,} parameters", fits(counts))

    return count


def _products(run: Provider) -> BlockCount:
    op_counts = Counter(op.op for op in block(run("torchvision")[1].ops) if op.op in PRODUCTS)
    evidence = ", ".join(f"`{name}` × {count}" for name, count in op_counts.items())
    return BlockCount(
        f"{op_counts.total()} ops that multiply matrices on the fused path: {evidence}", op_counts.total() == 5
    )


def _names(run: Provider) -> BlockCount:
    ran = ran_at_all(run)
    never = sorted(name for name in CALLS if not dispatch_ops(name) <= ran)
    evidence = f"{len(CALLS) - len(never)} of its {len(CALLS)} names run ops that ran; not {', '.join(never)}"
    return BlockCount(evidence, frozenset(never) == ABSENT_OPS)


COUNT_FUNCTIONS: dict[str, Callable[[Provider], BlockCount]] = {
    "layers": _layers,
    "norms": _norms,
    "attention": _sum_parameters(f"{BLOCK}self_attention.", lambda n: n == 2_362_368),
    "mlp": _sum_parameters(f"{BLOCK}mlp.", lambda n: n == 4_722_432),
    "block": _sum_parameters(BLOCK, lambda n: round(n / 1e6, 1) == 7.1),
    "encoder": _sum_parameters("encoder.layers.", lambda n: round(n / 1e6) == 85),
    "products": _products,
    "names": _names,
}
"""The counted quantity of a statement, and its function."""
COUNTED_MODULES = {
    "norms": f"{BLOCK}ln_1",
    "attention": f"{BLOCK}self_attention",
    "mlp": f"{BLOCK}mlp",
    "block": BLOCK.removesuffix("."),
    "encoder": "encoder.layers",
}
"""Module that a count is about."""
