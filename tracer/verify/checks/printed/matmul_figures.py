"""Matrix products drawn to scale: the inner sides are equal, and the outer ones are those of the result."""

from __future__ import annotations

from collections.abc import Iterator

from tracer.verify.checks.reference_run import PlainRun


def problems(run: PlainRun) -> Iterator[str]:
    """Check the sides of every product, and that each symbol is as long as the run's."""
    sizes = {size.name: size.value for size in run.trace.symbols}
    for step in run.trace.steps:
        if step.product is None:
            continue
        left, right, result = step.product
        (rows, inner), (below, columns) = left.shape, right.shape
        if inner != below or tuple(result.shape) != (rows, columns):
            yield (
                f"step {step.id!r} draws [{rows} × {inner}] times [{below} × {columns}], which gives no "
                f"[{' × '.join(map(str, result.shape))}]"
            )
        for operand in step.product:
            for symbolic, size in zip(operand.symbolic, operand.shape, strict=True):
                if sizes.get(symbolic, size) != size:
                    yield f"step {step.id!r} draws {operand.symbol} with {symbolic} = {size}"
