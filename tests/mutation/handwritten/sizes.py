"""Mutations of costs, shapes and symbols."""

from __future__ import annotations

from tests.mutation.rules import code, text

RULES = (
    code("FLOPs twice", {"cost.flops(*$x)": "2 * cost.flops(*$x)"}, within="records._ops"),
    code(
        "parameters counted at each use",
        {"sum([$x[$name] for $name in fresh])": "sum([$x[$name] for $name in names])"},
        within="records._ops",
    ),
    code("a block too many in a formula", {"parse($x) * $y[0]": "(parse($x) + 1) * $y[0]"}, within="cost.total"),
    code(
        "the first block's cost for all blocks and none for the rest",
        {"($f(*$rest) for $x in $shapes)": "($f(*$rest) for $x in $shapes[:1])"},
        within="cost.elements",
    ),
    code(
        "probes that are all alike",
        {"self.spec.probes": "self.spec.probes[:1] * len(self.spec.probes)"},
        within="Model._solved_now",
    ),
    code(
        "a solution of a changed run that no run at other sizes confirms",
        {"not $other and solved == ($inputs, $outputs, $scalars, $edges, $positions)": "True"},
        within="_TakenSolution.is_confirmed",
    ),
    code(
        "a changed run that is checked with the numbers of another change",
        {"replace($solution, way=$way)": "$solution"},
        within="Model._with_own_build",
    ),
    code(
        "N for N + 1",
        {"($x[-2] for $x in $shapes)": "($x[-2] for $x in $shapes[1:])"},
        within="ConcatTokens.infer",
    ),
    code(
        "every two sizes are one",
        {"return $a == $b or vanishes(base_form(str($a), $p) - base_form(str($b), $p))": "return True"},
    ),
    text("a derived size that is too large", {"H*W/P**2": "H*W/P"}, within="models.vit.SPEC"),
    text(
        "the meaning of another symbol",
        {"model width: numbers": "hidden width of the MLP: numbers"},
        within="MEANINGS",
    ),
    text("height for width", {"width of the picture": "height of the picture"}, within="MEANINGS"),
    code(
        "the wrong tokens for patches",
        {'Segment("image", 1, $n + 1)': 'Segment("image", 0, $n)'},
        within="models.vit.SPEC",
    ),
    code("the FLOPs of QKᵀ and of AV exchanged", {"SCORES if $x else WEIGHTED_SUM": "WEIGHTED_SUM if $x else SCORES"}),
    code(
        "activations without the batch",
        {"cost.elements(($x.symbolic,))": "cost.elements(($x.symbolic[1:],))"},
        within="costs.scaling",
    ),
)
