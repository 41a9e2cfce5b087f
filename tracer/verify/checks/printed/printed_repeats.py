r"""Blocks that are printed once: the line, with each number substituted for ℓ, has to be that of each block."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tracer.export.repeated_blocks import as_printed
from tracer.utils.error_text import quote
from tracer.verify.checks.reference_run import PlainRun


def problems(run: PlainRun) -> Iterator[str]:
    """Yield a sentence for each line that the first block has and another lacks."""
    steps, at = list(run.trace.steps), 0
    for repeat, lines in as_printed(run.trace):
        for number in repeat.blocks if repeat else ("",):
            for line in lines:
                step, at = steps[at], at + 1
                printed = (
                    (write_block(line.latex, number), write_block(line.symbol, number))
                    if repeat
                    else (line.latex, line.symbol)
                )
                if printed != (step.latex, step.symbol):
                    yield f"step {step.id!r} says {quote(step.latex)}, but its repeat {quote(printed[0])}"
                if (line.symbolic, line.shape, line.stage) != (step.symbolic, step.shape, step.stage):
                    yield f"step {step.id!r} has another shape or stage than its repeat"
                if (step.error or 0) > (line.error or 0) and not step.recomputed:
                    yield f"step {step.id!r} has a larger error than its repeat says"
    if at != len(steps):
        yield f"{at} of {len(steps)} steps are printed"


def write_block(latex: str, number: str) -> str:
    """Return a line of block ℓ as that of a block of this number: `3`, or `2.3` in a stage."""
    own = int(number.split(".")[-1])
    return re.sub(r"\\ell([+-]\d+)?(?=\)\})", lambda match: str(own + int(match[1] or 0)), latex)
