"""Steps of a run as plain records: written once for all runs of one textbook and one list of ops, then proven."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from tracer.expr import Tensor, latex, statement, tensors
from tracer.expr.function_call import Opaque
from tracer.expr.math.algebra import Product
from tracer.expr.node import Node, infer
from tracer.record import Name, Op, Operand, Step, dtype_name
from tracer.shapes import UNKNOWN, Solution, held_size, value_of
from tracer.shapes.solver import names_of
from tracer.textbook.steps import DerivedStep, Line, opaque
from tracer.tracing.proofs.rerun import Rerun
from tracer.tracing.proofs.step_proof import Proof, Values, apply_proof, prove, proven_shape
from tracer.utils.cache import IdentityKey
from tracer.utils.error_text import describe_error
from tracer.utils.progress import doing, tell

Same = Callable[[Any, Any], bool]
"""Whether two sizes are one."""

UNPROVEN = "not executed: the trace was made with prove=False"
FUSED_NOTE = (
    "The fused op {op} never holds this tensor: it is recomputed from the equation, and proven with what follows."
)
HELD_NOTE = "Its shape was solved with {size} held at {number}: it is not known at others."


def steps_of(
    derived_steps: Sequence[DerivedStep],
    ops: Sequence[Op],
    solution: Solution | None,
    sizes: dict[str, int],
    same: Same,
    value: Values | None,
    later: bool,
    rerun: Rerun | None = None,
) -> tuple[tuple[Step, ...], tuple[DerivedStep, ...]]:
    """Return the records of all steps, proven if `value` has the tensors of the run, or if `rerun` recomputes them;
    with `later` their proofs are pending, else they were not executed. Also return the lines in their final form: one
    that can't be expressed is only its call."""
    proof, at = Proof(None, "" if value or later else UNPROVEN), tuple(sizes.items())
    with doing("Writing its equations"):
        steps, lines = _write_steps(IdentityKey(derived_steps), IdentityKey(ops), solution, at, same, proof, later)
    if not value:
        return steps, lines
    records = []
    proofs = rerun.prove(rerun.missing_lines(lines, value), lines) if rerun else {}
    with doing("Proving its equations"):
        for number, (step, line) in enumerate(zip(steps, lines, strict=True), 1):
            tell(number, len(steps), "step")
            proof = step.recomputed or opaque(line.line)
            records.append(step if proof else apply_proof(step, proofs.get(step.id) or prove(line, value, sizes)))
    return tuple(records), lines


@lru_cache(maxsize=32)
def _write_steps(
    derived_steps: IdentityKey, ops: IdentityKey, solution, at, same: Same, proof: Proof, later: bool
) -> tuple[tuple[Step, ...], tuple[DerivedStep, ...]]:
    """Return all steps before they are proven, and their lines, which a run of the same textbook on other values
    shares."""
    steps, lines = [], []
    for number, line in enumerate(derived_steps.it, 1):
        tell(number, len(derived_steps.it), "step")
        try:
            step = _step(line, ops.it, solution, dict(at), same, proof, later)
        except Exception as error:  # whatever is wrong with one line, all others are there
            line = _opaque(line, ops.it[line.op], describe_error(error))
            step = _step(line, ops.it, None, dict(at), same, proof, later)
        steps.append(step)
        lines.append(line)
    return tuple(steps), tuple(lines)


def _opaque(derived: DerivedStep, op: Op, reason: str) -> DerivedStep:
    """Return a line whose right side is only the op that computed its tensor."""
    line = derived.line
    shape = line.tensor.shape if line.place is None else derived.shape or op.outputs[derived.output].shape
    tensor = Tensor(line.tensor.name, shape, line.tensor.key)
    equation = Opaque(*tensors(line.equation), name=op.op, reason=reason, result=shape)
    return derived._replace(line=replace(line, tensor=tensor, equation=equation))


def _step(
    derived: DerivedStep,
    ops: Sequence[Op],
    solution: Solution | None,
    sizes: dict[str, int],
    same: Same,
    proof: Proof,
    later: bool,
) -> Step:
    line, op = derived.line, ops[derived.op]
    fused = line.place is None
    solved = None
    if solution and solution.has_sizes and not fused:
        solved = derived.solved or solution.outputs[derived.op][derived.output]
    symbolic, note = proven_shape(line, solved, same)
    notes = ("", FUSED_NOTE.format(op=op.op)) if fused else (note or _note_held(op, symbolic), proof.note)
    if isinstance(line.equation, Opaque):
        notes = (*notes[:1], line.equation.note)
    return Step(
        id=line.id,
        stage=line.stage,
        layer=line.layer,
        title=line.title,
        symbol=line.tensor.name,
        latex=statement(line.tensor, line.equation),
        symbolic=symbolic,
        shape=tuple(int(value_of(size, sizes)) for size in symbolic)
        if fused
        else derived.shape or op.outputs[derived.output].shape,
        error=None,
        recomputed=fused,
        source=op.source,
        ops=derived.ops,
        why=line.why,
        note=" ".join(filter(None, (line.note, *notes))),
        value="" if fused else derived.value,
        product=_product(line, sizes, same),
        dtype=dtype_name(derived.dtype) if derived.dtype else op.outputs[derived.output].dtype,
        names=_names(line),
        pending=later and not fused and not opaque(line),
        inside=op.index if fused else None,
        of_input=line.of_input,
    )


def _note_held(op: Op, symbolic: Sequence[str]) -> str:
    """Return a note on a shape that was solved with a size held, and may depend on it; "" for any other."""
    held, names = held_size(op.note), {name for size in symbolic if size != UNKNOWN for name in names_of(size)}
    return HELD_NOTE.format(size=held, number=op.note.split()[-1]) if held and names and held not in names else ""


@lru_cache(maxsize=4096)
def _names(line: Line) -> tuple[Name, ...]:
    """Return the inputs and parameters that the equation names."""
    outside = (
        tensor for tensor in tensors(line.equation) if tensor.key.startswith(("input ", "parameter ", "constant "))
    )
    return tuple(Name(tensor.name, tensor.key, tensor.transposed, tensor.key in line.outside) for tensor in outside)


def _product(line: Line, sizes: dict[str, int], same: Same) -> tuple[Operand, Operand, Operand] | None:
    """Return the first matrix product of the equation, to be drawn to scale."""
    factors = [
        Operand(symbol, (row, column), (int(value_of(row, sizes)), int(value_of(column, sizes))))
        for symbol, (row, column) in _factors(line, same)
    ]
    return (factors[0], factors[1], factors[2]) if factors else None


@lru_cache(maxsize=4096)
def _factors(line: Line, same: Same) -> tuple[tuple[str, tuple[str, str]], ...]:
    """Return symbols and last two sizes of left, right and result of the equation's first matrix product."""

    def find(node: Node) -> Product | None:
        if isinstance(node, Product):
            return node
        return next((inner for operand in node.operands if (inner := find(operand))), None)

    product = find(line.equation)
    if product is None or min(len(infer(node, same)) for node in (product, *product.operands)) < 2:
        return ()
    names = [latex(operand) for operand in product.operands]
    names.append(line.tensor.name if line.equation is product else latex(product))
    shapes = [infer(node, same)[-2:] for node in (*product.operands, product)]
    return tuple((name, (str(row), str(column))) for name, (row, column) in zip(names, shapes, strict=True))
