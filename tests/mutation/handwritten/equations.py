"""Mutations of the value of an equation, and of its printed form."""

from __future__ import annotations

from tests.mutation.rules import code, text

RULES = (
    code(
        "parts of a tensor that all begin at its first number",
        {"from_strides($v.shape, $v.stride(), $v.storage_offset())": "from_strides($v.shape, $v.stride())"},
        within="index_maps._layout_map",
    ),
    code(
        "the scale dropped from the printed scores",
        {"Over($x, $n) if $a else Div($x, Scalar($n))": "$x if $a else Div($x, Scalar($n))"},
    ),
    code(
        "d_k for √d_k",
        {"Over($x, $n) if $a else Div($x, Scalar($n))": "Over($x, $n**2) if $a else Div($x, Scalar($n))"},
    ),
    code(
        "a head that is off printed as the only one that is not",
        {"NEGATIONS[$sign]": "$sign"},
        within="indexing.index_condition",
    ),
    code("a head printed by its index", {"$x + 1": "$x"}, within="Head._latex"),
    code(
        "queries and keys exchanged in the equation",
        {"$node($x[$a], $x[$b])": "$node($x[$b].T, $x[$a].T) if $node is Product else $node($x[$a], $x[$b])"},
        within="layers.matmul",
    ),
    code("keys that are not transposed", {"Transposed($x)": "$x"}, within="RearrangePrinter._split_and_merge"),
    code("a residual sum of the wrong tensor", {"Plus($a, $b)": "Plus($a, $a)"}, within="call_arguments.plus"),
    code(
        "the bias left out of an equation",
        {'Plus($x, $y["bias"]) if $y.has("bias") else $x': "$x"},
        within="linear",
    ),
    code(
        "another ε in the norms of blocks",
        {'LayerNorm($x["eps"], *$rest)': "LayerNorm(1e-3, *$rest)"},
        within="layer_norm",
    ),
    code(
        "the norm's variance over n − 1",
        {"($x * $x).mean(dim=-1, keepdim=True)": "$x.var(dim=-1, keepdim=True)"},
        within="LayerNorm.run",
    ),
    code(
        "a softmax over queries",
        {"$x.sum(dim=-1, keepdim=True)": "$x.sum(dim=-2, keepdim=True)"},
        within="arithmetic.softmax",
    ),
    code(
        "GELU by tanh for the exact one",
        {"$x * (1 + ($x / sqrt(2)).erf()) / 2": "$x * (1 + (sqrt(2 / pi) * ($x + 0.044715 * $x**3)).tanh()) / 2"},
    ),
    code("another number in GELU by tanh", {"0.044715 * $x": "0.0447 * $x"}, within="GELUTanh"),
    code(
        "heads dealt out in turn",
        {"$x.unflatten(-1, ($heads, -1)).transpose(-3, -2)": "$x.unflatten(-1, (-1, $heads)).movedim(-1, -3)"},
        within="SplitHeads.run",
    ),
    code(
        "the second token for CLS",
        {"int(size(self.args[1]))": "int(size(self.args[1])) + 1"},
        within="Row.slices",
    ),
    code(
        "a causal mask that hides the token itself",
        {"$x.masked_fill($j > $i, $lowest)": "$x.masked_fill($j >= $i, $lowest)"},
        within="CausalMask.run",
    ),
    code("a prefix that is one too long", {"$j >= $prefix": "$j > $prefix"}, within="PrefixMask.run"),
    code(
        "pixels of a patch in another order",
        {"unfold($x, *$rest, stride=$s)": "unfold($x.flip(1), *$rest, stride=$s)"},
        within="Unfold.run",
    ),
    code(
        "a vector over its squared length",
        {"($x * $x).sum(dim=-1, keepdim=True).sqrt()": "($x * $x).sum(dim=-1, keepdim=True)"},
        within="UnitLength",
    ),
    code("a temperature without its power", {"$power.exp()": "$power"}, within="ScaledBy.run"),
    code("waves of places that are too slow", {"$i / base ** $x": "$i / (2 * base) ** $x"}, within="Sinusoids.run"),
    code(
        "a transposition that is not printed",
        {r'rf"{{{$x}}}^{{\top}}"': 'rf"{{{$x}}}"'},
        within="Transposed._latex",
    ),
    code(
        "a fraction printed upside down",
        {r'rf"\frac{{{$a}}}{{{$b}}}"': r'rf"\frac{{{$b}}}{{{$a}}}"'},
        within="Over._latex",
    ),
    code("a sum printed as a difference", {'" + ".join($x)': '" - ".join($x)'}, within="Plus._latex"),
    code("factors printed in reverse", {"beside($x, $printer)": "beside($x[::-1], $printer)"}, within="Product._latex"),
    code(
        "another token printed",
        {"$printer._print(self.args[1])": "$printer._print(self.args[1] + 1)"},
        within="Row._latex",
    ),
    text("a norm printed without its root", {r"\sqrt{\sigma^2(": r"{\sigma^2("}, within="LayerNorm._latex"),
    text(
        "a mask printed one off",
        {r"0 & j \le i \\ ": r"0 & j < i \\ ", " & j > i": r" & j \ge i"},
        within="CausalMask._latex",
    ),
    text("a power that is not printed", {"e^{": "{"}, within="ScaledBy._latex"),
    code(
        "one sequence printed after the other",
        {"($f($x) for $x in self.args)": "($f($x) for $x in self.args[::-1])"},
        within="ConcatTokens._latex",
    ),
    text("one function printed for another", {"{softmax}": "{ReLU}"}, within="Softmax.word"),
    code(
        "two tensors of one name",
        {"self._unlike($letter, *$rest, plain=True)": "$letter"},
        within="StepSymbols.__init__",
    ),
    code(
        "γ and β exchanged", {"[$x[$n] for $n in $names], $y": "[$x[$n] for $n in $names[::-1]], $y"}, within="layers"
    ),
    code(
        "the bias left out where there is a batch",
        {'$y.has("bias")': '$y.has("bias") and $y.rank("input") < 3'},
        within="linear",
    ),
    text("GELU printed as SiLU", {r"\operatorname{GELU}": r"\operatorname{SiLU}"}, within="GELU"),
    code(
        "any number near a root is that root",
        {"abs(float($root) - $x) <= TOLERANCE * $x": "abs(float($root) - $x) <= 0.1 * $x"},
    ),
    code(
        "any number near a formula of sizes is that formula",
        {"is_near(value_of($t, $s), $x)": "abs(value_of($t, $s) - $x) <= 0.1 * abs($x)"},
        within="fits",
    ),
)
