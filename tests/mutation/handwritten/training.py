"""Mutations of a step of training: of the gradients as equations, of their proofs, and of the update."""

from __future__ import annotations

from tests.mutation.rules import code, text

RULES = (
    code(
        "a product of rows in reverse",
        {"$l.reshape(*$a).transpose(0, 1) @ $r": "$l.reshape(*$a).flip(0).transpose(0, 1) @ $r"},
        within="RowsProduct.run",
    ),
    code(
        "a gradient before its operand",
        {"$y if $x else (operand, gradient)": "$y if $x else (gradient, operand)"},
        within="training_step",
    ),
    code(
        "the weight of an addmm as that of a linear map, which is stored transposed",
        {'$c == "linear" and not $t': "not $t"},
        within="training_step",
    ),
    code(
        "positions that are not summed over texts",
        {"RowsSum(gradient, *$a)": "gradient"},
        within="_Letters._of_lookup",
    ),
    code("a mean of rows for their sum", {"$x.sum(0)": "$x.mean(0)"}, within="RowsSum.run"),
    code(
        "rows added to the token after theirs",
        {"$x.flatten().long()": "$x.flatten().long().roll(1)"},
        within="TokenRows.run",
    ),
    code("rows that were not used above those that were", {"[rows, $z]": "[$z, rows]"}, within="PaddedRows.run"),
    code(
        "a gradient per token of the text for one per token that is predicted",
        {"B * (T - 1)": "B * T"},
        within="LogitsGradient.run",
    ),
    code("targets that are not shifted", {"$t[:, 1:]": "$t[:, :-1]"}, within="LogitsGradient.run"),
    code("the gradient of the last token first", {"[rows, $z]": "[$z, rows]"}, within="LogitsGradient.run"),
    code("the first use of a tied matrix alone", {"Plus(*terms)": "terms[0]"}, within="training_step.equation"),
    code(
        "heads that are not joined",
        {"MergeHeads(gradient, $h)": "gradient.args and Tensor(derivative(step.symbol), tuple(self.axes), key)"},
        within="training_step",
    ),
    code(
        "the factor of a norm without the norm",
        {"Times($n(use.eps, operand), gradient)": "Times(operand, gradient)"},
        within="training_step",
    ),
    code("a norm of roots for a norm of deviations", {"(LayerNorm, NormalisedLayer)": "(LayerNorm, NormalisedRMS)"}),
    code("a letter that its line does not have", {"$a != $b": "False"}, within="_Letters._check"),
    code("a weight as it is stored", {"symbolic[::-1] if $t else $s": "$s"}, within="training_step"),
    text("a target that is the token itself, in print", {r"\ldots,\,1:": r"\ldots,\,:T-1"}, within="LogitsGradient"),
    text("a printed mean over all tokens", {r"B\,\left(T - 1\right)": r"B\,T"}, within="LogitsGradient"),
    code(
        "a printed sum over tokens without the texts", {"map(printer._print, sizes)": "map(printer._print, sizes[-1:])"}
    ),
    code("a printed equation that nobody reads", {"(computed, reading)": "(computed,)"}, within="training_step.prove"),
    text("a printed product without its transpose", {r"}^{\top}": "}"}, within="RowsProduct"),
    text("printed rows of tokens without their transpose", {r"}^{\top}": "}"}, within="TokenRows"),
    text("zeros that are not printed", {r"\ ;\ \mathbf{0}": ""}, within="PaddedRows"),
    text("a derivative that is printed as a quotient", {r"}{\partial ": "}{"}, within="training_step.derivative"),
    code("the smallest error of a cell", {"$x.shares($a).max()": "$x.shares($a).min()"}, within="training_step.prove"),
    code("an unreadable equation that is verified", {"inf if $u else $m": "$m"}, within="training_step.prove"),
    code("the smallest error of equal blocks", {"max($x, default=None)": "min($x, default=None)"}, within="_group"),
    code(
        "the norms of equal blocks in reverse",
        {"tuple($n for $l in group for $n in $l.norms)": "tuple(norm for line in group for norm in line.norms)[::-1]"},
        within="_group",
    ),
    code("a call without a rule for one that has one", {"path in self.uses.unknown": "False"}, within="training_step"),
    code("a loss at tokens that are not the next", {"$t[:, 1:]": "$t[:, :-1]"}, within="training_step._cross_entropy"),
    code(
        "an update uphill", {"weights[path] - rate * $g": "weights[path] + rate * $g"}, within="training_step._descend"
    ),
    code(
        "a prediction of twice the step",
        {"before - rate * squared": "before - 2 * rate * squared"},
        within="training_step._descend",
    ),
    code(
        "a sum of gradients for that of their squares",
        {"$g.square().sum()": "$g.abs().sum()"},
        within="training_step._descend",
    ),
    code("steps one after another", {"weights[path] - $x": "parameter - $x"}, within="training_step._descend"),
    code("a loss that agrees whatever it is", {"AGREES = 0.1": "AGREES = 1000.0"}),
    code("the first rows of a table as all of it", {"part.shape[0] if $x else None": "None"}, within="ParameterUses"),
    code("a layout that is taken for another call", {"func in LAYOUTS and $x": "False"}, within="ParameterUses"),
    code("a bias that is read as a weight", {'("weight", "bias")': '("weight",)'}, within="ParameterUses._record_call"),
    code(
        "a slice from the end as the first rows",
        {"index.stop >= 0": "index.stop"},
        within="training_step._first_rows",
    ),
)
