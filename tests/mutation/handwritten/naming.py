"""Mutations of the name of a tensor, an axis or a step, and of the text beside it."""

from __future__ import annotations

from tests.mutation.rules import code

RULES = (
    code(
        "Q called K and K called Q",
        {'zip("QKV", ($q, $k, $v), **$s)': 'zip("QKV", ($k, $q, $v), **$s)'},
        within="Roles._attention",
    ),
    code(
        "V called K and K called V",
        {'zip("QKV", ($q, $k, $v), **$s)': 'zip("QKV", ($q, $v, $k), **$s)'},
        within="Roles._attention",
    ),
    code(
        "the meanings of h and d_k exchanged",
        {'"h"': '"d_k"', '"d_k"': '"h"'},
        within="MEANINGS",
    ),
    code(
        "patches called features",
        {'dict.fromkeys(("N", *$rest), $x)': 'dict.fromkeys(("N", *$rest), "feature")'},
        within="AXES",
    ),
    code(
        "a sum called a difference",
        {
            '_ops("add", BINARY, "Sum", $traits, **$options)': '_ops("add", BINARY, "Difference", $traits, **$options)',
        },
    ),
    code(
        "the number of the next source line",
        {"Source($f, $line, $text)": "Source($f, $line + 1, $text)"},
        within="calls",
    ),
    code(
        "the text of the next source line",
        {"linecache.getline($file, $line)": "linecache.getline($file, $line + 1)"},
        within="calls",
    ),
    code("the stage of every step is embedding", {"$line.stage": "'embedding'"}, within="records"),
    code(
        "layers one too high",
        {"$line.layer": "None if $line.layer is None else $line.layer + 1"},
        within="records",
    ),
    code("no step has a reason", {"$line.why": "''"}, within="records"),
    code(
        "a step covers its last op alone",
        {"Step(ops=$x, **$rest)": "Step(ops=$x[-1:], **$rest)"},
        within="records",
    ),
    code(
        "a step reads all but its first operand",
        {"Step(reads=$x, **$rest)": "Step(reads=$x[1:], **$rest)"},
        within="records",
    ),
    code(
        "operands named without their transposition",
        {"Name($x.name, $x.key, $x.transposed, *$rest)": "Name($x.name, $x.key, False, *$rest)"},
        within="records",
    ),
    code(
        "a product drawn with rows for columns",
        {
            "Operand($s, ($a, $b), ($c, $d))": "Operand($s, ($b, $a), ($d, $c))",
        },
    ),
)
