"""Mutations of the proofs themselves."""

from __future__ import annotations

from tests.mutation.rules import code

RULES = (
    code("ten thousand times the rounding", {"16": "160000"}, within="error_bounds.FACTOR"),
    code(
        "whatever is undefined is verified",
        {
            '"verified" if $error <= $most else "refuted"': '"refuted" if $error > $most else "verified"',
        },
        within="steps.verdict",
    ),
    code(
        "a tensor verified by itself",
        {"compute_bounds($equation, *$rest)": "(traced.double(), None)"},
        within="proofs.compare",
    ),
    code("the least difference for the largest", {"$x.amax()": "$x.amin()"}, within="Difference.__init__"),
    code(
        "a step that hides its ops", {"tuple(sorted($x - $y))": "tuple(sorted($x - $y))[-1:]"}, within="derivation._ops"
    ),
    code(
        "an error that is always 0",
        {"float($shares.max()) if $x else $y": "0.0"},
        within="proofs._compare",
    ),
    code(
        "operands that are not in float64",
        {"$x.to(exact_dtype($y))": "$x"},
        within="error_bounds.evaluate",
    ),
    code(
        "a cell that is its first term",
        {"sum($x) if $x and $y else $z": "$x[0] if $x and $y else $z"},
        within="ProvenanceWalk.compute",
    ),
    code("a second run that is believed whatever it did", {"not self._same($again)": "False"}, within="Rerun.prove"),
    code(
        "a tensor that is let go too early", {"not self._uses[$key]": "self._uses[$key] < 99"}, within="_Window._prove"
    ),
    code("any curve is one that has a name", {"1e-7": "1.0"}, within="idioms.TOLERANCE"),
)
