"""Tokens of any kind of input: each kind is one file here, each tokenization one `Tokenization`.

All end in `[B, n, D]`, and that is all that a transformer needs: the same block, with the same weights, takes every
sequence. Equations are derived from the run, as those of any model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from inspect import Parameter, signature
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from tracer.record import Trace
from tracer.shapes import Solution, Vocabulary
from tracer.spec.blocks import Block
from tracer.spec.spec import build_seeded
from tracer.textbook.names import Hint
from tracer.tracing import assemble, counterfactual, record_or_explain, solve_first
from tracer.tracing.transfer import lighten
from tracer.utils.cache import Cache
from tracer.utils.job_queue import doing

SHARED_SIZES = {"D": 32, "h": 4, "d_ff": 64}
"""The sizes of the block that takes the tokens of every way."""
PROBES = ({"D": 66, "h": 6, "d_ff": 23}, {"D": 14, "h": 2, "d_ff": 29}, {"D": 52, "h": 4, "d_ff": 37})
"""The same in the runs at which dimensions are solved: a way's own sizes differ from these."""
KEEP = 2 * 2**20
"""Bytes of tensors that a trace keeps."""
BLOCK = "block1"


@dataclass(frozen=True, eq=False)
class Tokenization:
    """A way to turn an input into tokens.

    `name` stands in addresses, `says` is one sentence. `build(sizes)` gives a net at any sizes and what its forward
    takes there, `(net, args)`: a module from the raw input to `[B, n, D]`, with D of `sizes`. `names` are the sizes
    that a dimension may be beside `B, n, D` and those of the block, in order of preference; `derived` says what others
    equal, such as `{"n": "H*W/P**2"}`; `probes` are three tiny sizes, all distinct, and distinct from `PROBES`.
    """

    kind: str
    name: str
    title: str
    says: str
    build: Callable[[dict[str, int]], tuple[nn.Module, tuple[Tensor, ...]]]
    names: tuple[str, ...]
    probes: tuple[dict[str, int], ...]
    derived: dict[str, str]
    hints: tuple[Hint, ...] = ()


class TokenModel(nn.Module):
    """Tokens of a way and the block that all share: `[B, n, D]` in between and at the end.

    Its inputs have the parameter names of the way's own forward.
    """

    def __init__(self, tokens: nn.Module, block: nn.Module):
        super().__init__()
        self.tokens = tokens
        self.add_module(BLOCK, block)

        def forward(own, *raw):
            return getattr(own, BLOCK)(own.tokens(*raw))

        taken = signature(tokens.forward)
        own = Parameter("own", Parameter.POSITIONAL_OR_KEYWORD)
        forward.__signature__ = taken.replace(parameters=(own, *taken.parameters.values()))  # type: ignore[attr-defined]
        self.forward = MethodType(forward, self)  # of a copy, too, its own


@cache
def block() -> nn.Module:
    """Return the block that takes the tokens of every way: one object, with seeded weights and no training."""
    return build_seeded(Block, SHARED_SIZES).requires_grad_(False)


@cache
def vocabulary(way: Tokenization) -> Vocabulary:
    """Return the sizes that a way's dimensions are solved over, and its construction at other sizes."""

    def build(sizes: dict[str, int]) -> tuple:
        net, args = way.build(sizes)
        return TokenModel(net.eval(), Block(D=sizes["D"], h=sizes["h"], d_ff=sizes["d_ff"]).eval()), args

    names = ("B", "n", "D", *way.names, "h", "d_k", "d_ff")
    return Vocabulary(names, {**way.derived, "d_k": "D/h"}, build)


_solutions, _checks = Cache(64), Cache(64)


def trace(way: Tokenization, net: nn.Module, *args: Tensor, **sizes: int) -> Trace:
    """Run a way's net and the shared block on a raw input and prove every step; `sizes` are the way's own, B too.

    The output is the block's, `[B, n, D]`; the tokens themselves are the output of the last step in `before`.
    """
    known = vocabulary(way)
    module, full = TokenModel(net.eval(), block()), known.complete({"B": 1, **sizes, **SHARED_SIZES})
    with torch.no_grad():
        with doing("Running it"):
            recording = record_or_explain(module, args, {}, None, True, calls=True)
        with doing("Running it at other sizes, to tell which sizes are which"):
            solution, notes = _solve(way, known, recording, full)
        facts: dict[str, Any] = {"model": f"tokens of {way.title}", "sizes": full, "derived": known.derived}
        assembled = assemble(module, recording, solution=solution, notes=notes, hints=way.hints, lend=True, **facts)
        assembled = _with_verdicts(way, assembled)
    return lighten(assembled, KEEP)


def _with_verdicts(way: Tokenization, assembled: Trace) -> Trace:
    """Return the run with the verdicts of other runs on its lines, checked once for each textbook of a way."""
    key = way, tuple(step.latex for step in assembled.steps)
    if (verdicts := _checks.get(key)) is None:
        with doing("Checking its lines on other runs"):
            _checks.put(key, verdicts := counterfactual.results(counterfactual.check(assembled)))
    return counterfactual.apply(verdicts, assembled)


def _solve(
    way: Tokenization, known: Vocabulary, recording, full: dict[str, int]
) -> tuple[Solution | None, tuple[str, ...]]:
    """Return the earlier solution for this op list if it predicts this run, else the run's own solution."""
    key = way, tuple((op.name, op.module, op.line) for op in recording.ops)
    solution = _solutions.get(key)
    if solution is None or solution[0] is None or not solution[0].predicts(recording, full):
        probes = [{**own, **shared} for own, shared in zip(way.probes, PROBES, strict=True)]
        solution = solve_first(recording, {name: full[name] for name in probes[0]}, [(known, probes)])
        _solutions.put(key, solution)
    return solution


def before(trace: Trace) -> tuple:
    """Return the steps from the raw input to the tokens, the output of the last one."""
    return tuple(step for step in trace.steps if step.layer is None)


def after(trace: Trace) -> tuple:
    """Return the steps of the shared block."""
    return tuple(step for step in trace.steps if step.layer is not None)


def embedding(*shape: int) -> nn.Parameter:
    """Return an untrained table or matrix: seeded normal numbers at the initial scale of embeddings."""
    return nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 0.02, requires_grad=False)
