"""The record of one run: plain frozen data, no module, no open handle.

Everything that is shown, saved, compared or printed is read from a `Trace`. Shapes are tuples of
integers; symbolic shapes are tuples of strings (sympy's `str` of each dimension, `"?"` where none was
proven), read back with `tracer.symbols.notation.parse`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from tracer.common.quoting import quoted
from tracer.symbols.categories import is_layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    import pandas
    import torch

    from tracer.figures.views.repeats import Repeat
    from tracer.tracing.cell import Cell
    from tracer.tracing.prove import Later


@dataclass(frozen=True, slots=True)
class Source:
    """A line of the model's own source code."""

    file: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """What is known of one tensor at one op: shape, dtype, and where it came from.

    `maker` is the index of the op that made it, or the name of the parameter, buffer or input it is.
    """

    shape: tuple[int, ...]
    dtype: str
    maker: int | str
    symbolic: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Op:
    """One tensor operation that PyTorch ran.

    `module` is the path of the innermost module that was running, `call` counts the calls of that module,
    `function` is the Python-level name where the model called one. `params` are the elements of the
    parameters first used here; `flops` counts 2 per multiply-add, and is None where products are not counted.
    """

    index: int
    module: str
    call: int
    op: str
    function: str
    source: Source | None
    inputs: tuple[TensorRecord, ...]
    outputs: tuple[TensorRecord, ...]
    parameters: tuple[str, ...] = ()
    params: int = 0
    params_symbolic: str = "0"
    flops: int | None = 0
    flops_symbolic: str = "0"
    step: str | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Primitive:
    """One of the operations that an op is made of.

    The `maker` of a tensor is the number of the primitive of this op that made it, or which of the op's inputs it is:
    `"input 0"`. `within` names the ops, from the outside in, that PyTorch opened to get from the op to here, such as
    `"_safe_softmax/_softmax"`.
    """

    name: str
    within: str
    inputs: tuple[TensorRecord, ...]
    outputs: tuple[TensorRecord, ...]


@dataclass(frozen=True, slots=True)
class Decomposition:
    """PyTorch's own decomposition of op `op`, run on the arguments that the op ran with.

    `error` is max|decomposition - op| / max|op|; None for an op that stays one primitive, and `note` says why unless
    it only lays data out anew.
    """

    op: int
    primitives: tuple[Primitive, ...]
    error: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class ModuleRecord:
    """One call of a module, as the forward hooks saw it: its path, its class, how often it was called before, what went
    in and what came out.

    `around` is the number of the module call that it ran in, or None; its ops are `first` to `last - 1`. `params` are
    the elements of all parameters that these read, `flops` what those cost that are counted. `problem` says in a
    sentence where what the hooks saw and what the ops did are not of one run.
    """

    path: str
    kind: str
    call: int
    around: int | None
    first: int
    last: int
    inputs: tuple[TensorRecord, ...]
    outputs: tuple[TensorRecord, ...]
    params: int = 0
    flops: int = 0
    problem: str = ""

    @property
    def verdict(self) -> str:
        """What the ops beneath say of what the hooks saw: "proven" or "disproven"."""
        return "disproven" if self.problem else "proven"


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a call by its name in the op's schema: its `value` as text, or the `tensors` that it is, of which
    it has several where it is a list. `default` says that it is what the schema has for it anyway."""

    name: str
    value: str = ""
    tensors: tuple[TensorRecord, ...] = ()
    default: bool = False


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One composite op that PyTorch was asked for, in call `call` of a module; it ran ops `first` to `last - 1`."""

    name: str
    arguments: tuple[Argument, ...]
    outputs: tuple[TensorRecord, ...]
    module: str
    call: int
    first: int
    last: int

    @property
    def text(self) -> str:
        """As one writes it: `scaled_dot_product_attention(query, key, value, is_causal=True)`, without defaults."""
        said = (one.name if one.tensors else f"{one.name}={one.value}" for one in self.arguments if not one.default)
        return f"{self.name}({', '.join(said)})"


@dataclass(frozen=True, slots=True)
class Operand:
    """One factor or the result of a matrix product: its symbol and its last two dimensions."""

    symbol: str
    symbolic: tuple[str, str]
    shape: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Name:
    """A letter of an equation that no step makes: `of` is "input image" or "parameter block1.norm1.weight", which the
    equation takes as it is, or with its last two axes exchanged if `transposed`."""

    symbol: str
    of: str
    transposed: bool = False


TOLERANCES = {"float64": 1e-11, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
"""Largest error of what is called proven, by the dtype in which the model computed, as a share of the largest value;
other numbers have to be the same."""


@lru_cache(maxsize=64)
def dtype_name(dtype: torch.dtype) -> str:
    """A dtype as records name it: "float32"."""
    return str(dtype).removeprefix("torch.")


def tolerance(dtype: str) -> float:
    """Largest error of a proven equation between tensors of that dtype, as a share of the largest value."""
    return TOLERANCES.get(dtype, 0.0)


def verdict(error: float | None, dtype: str) -> str:
    """What an error says of numbers of a dtype: "proven" within the tolerance, "disproven" beyond it or where it is
    undefined, "not executed" where there was nothing to compare with."""
    if error is None:
        return "not executed"
    return "proven" if error <= tolerance(dtype) else "disproven"


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the textbook: a symbol, an equation, a shape, and the proof.

    `error` is max|equation - traced| / max|traced|, or None where the equation was not executed (`note` says
    why). `wrong` is the first cell, by its index, that is further off than `tolerance`, of a tensor of this `dtype`.
    `value` is the key of the traced tensor in `Trace.values`; `product` holds (left, right, result). `names` says what
    the letters of the equation are that no step makes: inputs and parameters. `pending` says that the proof is still to
    come (`Trace.prove`). `inside` is the fused op that went through a recomputed tensor, None for any other.
    """

    id: str
    stage: str
    layer: int | None
    title: str
    symbol: str
    latex: str
    symbolic: tuple[str, ...]
    shape: tuple[int, ...]
    error: float | None
    recomputed: bool
    source: Source | None
    ops: tuple[int, ...]
    why: str
    note: str = ""
    value: str = ""
    product: tuple[Operand, Operand, Operand] | None = None
    dtype: str = "float32"
    wrong: tuple[int, ...] | None = None
    names: tuple[Name, ...] = ()
    pending: bool = False
    inside: int | None = None

    @property
    def tolerance(self) -> float:
        """Largest error of a proven equation, from the dtype in which the model computed."""
        return tolerance(self.dtype)

    @property
    def verdict(self) -> str:
        """What the run says of the equation; it alone decides what is shown as proven.

        "recomputed" for a tensor that a fused op never held, "pending" for a proof that is still to come, else as in
        `verdict`.
        """
        if self.recomputed:
            return "recomputed"
        return "pending" if self.pending else verdict(self.error, self.dtype)


@dataclass(frozen=True, slots=True)
class Symbol:
    """A size of the notation: its meaning, its value at this run, and, for derived sizes, what it equals."""

    name: str
    meaning: str
    value: int
    equals: str = ""


@dataclass(frozen=True, slots=True)
class AttentionRecord:
    """One attention of the run: where its queries, keys and mask are kept, and how scores come of them.

    `chain` lists what the model did to the product of queries and keys before the softmax: pairs of op name
    and its other arguments, each a number or the key of a kept tensor. `problem` says why the weights
    can't be recovered, and is empty where they can. `part` names the tower in models of several. `mask` is "none",
    "causal", "windows" or "given"; `over` says what queries and keys are, "tokens" or "channels". `after` names what
    the model did to the weights between the softmax and the values, which the weights here are from before.
    """

    layer: int
    part: str
    module: str
    op: int
    heads: int
    queries: int
    keys: int
    q: str
    k: str
    chain: tuple[tuple[str, tuple], ...]
    mask: str = "none"
    fused: bool = False
    problem: str = ""
    over: str = "tokens"
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Picture:
    """How the tokens of the run lie on the photo, whose pixels are `Trace.values[value]`, uint8 `[H, W, 3]`.

    `crop` is (left, top, right, bottom) in photo pixels; token `first + row * columns + column` is the patch
    at (row, column) of the crop.
    """

    value: str
    crop: tuple[float, float, float, float]
    rows: int
    columns: int
    first: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A named stretch of the token sequence: CLS, image or text; tokens `start` to `stop - 1`.

    `part` names the tower whose sequence it is, in models of several. `places` are the patches that its tokens are,
    one for each and in their order, counted row by row over the grid of the `Picture`, where a tower has only some of
    them; empty elsewhere.
    """

    name: str
    start: int
    stop: int
    part: str = ""
    places: tuple[int, ...] = ()


@dataclass(frozen=True, repr=False)
class Trace:
    """One forward pass: ops, steps, proofs, attention. Made by `tracer.trace` or `Model.trace`.

    `decompositions` has one entry for each op that was opened, in order: all of them with `primitives=True`.
    `modules` are the calls of modules and `calls` the composite ops, each in the order in which they began.
    `opened_error` is the relative difference of the output to that of PyTorch's fast path, where a plain forward takes
    one; a note says more.
    `later` proves the steps that are pending, and has the equations that cells are followed by; it holds the model, and
    is no part of the data: nothing saves, copies or compares it.
    """

    model: str
    ops: tuple[Op, ...]
    steps: tuple[Step, ...] = ()
    symbols: tuple[Symbol, ...] = ()
    attentions: tuple[AttentionRecord, ...] = ()
    values: Mapping[str, torch.Tensor] = field(default_factory=dict)
    output: object = None
    picture: Picture | None = None
    words: tuple[str, ...] = ()
    segments: tuple[Segment, ...] = ()
    result: Mapping[str, Any] = field(default_factory=dict)
    params: int = 0
    params_symbolic: str = "0"
    flops: int = 0
    flops_symbolic: str = "0"
    weights: str = ""
    notes: tuple[str, ...] = ()
    decompositions: tuple[Decomposition, ...] = ()
    modules: tuple[ModuleRecord, ...] = ()
    calls: tuple[CallRecord, ...] = ()
    opened_error: float | None = None
    later: Later | None = field(default=None, compare=False)

    @cached_property
    def coverage(self) -> float:
        """Share of the computing ops that belong to a step, 0 to 1; 0 for a run without steps."""
        computing = [op for op in self.ops if not is_layout(op.op)]
        return sum(op.step is not None for op in computing) / len(computing) if computing else 0.0

    @cached_property
    def uncounted(self) -> tuple[Op, ...]:
        """The ops whose products `flops` lacks: there is no formula for them."""
        return tuple(op for op in self.ops if op.flops is None)

    @cached_property
    def repeats(self) -> tuple[Repeat, ...]:
        """The blocks whose lines are one but for their number, as `tracer.figures.views.repeats` finds them."""
        from tracer.figures.views.repeats import repeats  # stands above the record: looked up

        return repeats(self.steps)

    def step(self, id: str) -> Step:
        """The step with that id. KeyError quotes an unknown one."""
        for step in self.steps:
            if step.id == id:
                return step
        raise KeyError(
            f"no step {quoted(id)} in this trace; the first is {quoted(self.steps[0].id)}" if self.steps else id
        )

    def prove(self, ids: str | Iterable[str] | None = None) -> Trace:
        """This trace with the proofs of these steps, of all without `ids`, where they are still to come.

        KeyError quotes an unknown id, ValueError a step whose proof was left for later and whose model is gone.
        """
        chosen = {self.step(id).id for id in ([ids] if isinstance(ids, str) else ids)} if ids is not None else None
        waiting = [step for step in self.steps if step.pending and (chosen is None or step.id in chosen)]
        if not waiting:
            return self
        if self.later is None:
            raise ValueError(f"step {quoted(waiting[0].id)} can't be proven: the model that ran is no longer there")
        proven = self.later(waiting)
        steps = tuple(proven.get(step.id, step) for step in self.steps)
        return replace(self, steps=steps)

    def __getstate__(self) -> dict:
        """What is pickled and copied: plain data, all of it proven."""
        return {**vars(self.prove()), "later": None}

    def value(self, step: str | Step) -> torch.Tensor | None:
        """The traced tensor of a step, or None where it was not kept."""
        step = self.step(step) if isinstance(step, str) else step
        return self.values.get(step.value)

    def cell(self, id: str, index: Sequence[int]) -> Cell:
        """One cell of a step's tensor: its number, the numbers that it was made of, and what each contributed.

        KeyError quotes an unknown id, ValueError an index that the tensor does not have, or says that the equations are
        not at hand, as in a trace that was opened from a file.
        """
        from tracer.tracing.cell import cell  # stands above the record: looked up

        return cell(self, id, index)

    def attention(
        self, layer: int, head: int | None = None, query: int | None = None, *, part: str | None = None
    ) -> torch.Tensor:
        """Attention weights from the queries, keys and mask that ran.

        Returns `[B, h, S_q, S_k]`, without the h axis if `head` is given, without the S_q axis if `query` is.
        Layers, heads and queries count from 0. ValueError for one the run does not have, or where the
        weights can't be recovered. Source: Vaswani et al. 2017, equation 1.
        """
        from tracer.attention import weights  # stands above the record: looked up

        return weights(self, layer, head, query, part=part)

    def table(self, level: str = "ops") -> pandas.DataFrame:
        """The run as a data frame, one row per op, or per module, step, call or primitive (`level="modules"` …).

        ValueError for a level that the trace was made without.
        """
        from tracer.figures.views import table  # stands above the record: looked up

        return table(self, level)

    def save(self, path: str | Path) -> None:
        """Writes the trace to one safetensors file: tensors, and everything else as JSON in its header.

        Proofs that are still to come are made before.
        """
        from tracer.storage import save  # stands above the record: looked up

        save(self, path)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{symbol.name}={symbol.value}" for symbol in self.symbols[:12])
        return f"<Trace of {quoted(self.model)}: {len(self.ops)} ops, {len(self.steps)} steps; {sizes}>"

    def _repr_html_(self) -> str:
        from tracer.figures.views import html  # stands above the record: looked up

        return html(self)
