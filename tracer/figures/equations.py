"""Equations with marks, as a strip of panels, and the glossary of their letters."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from difflib import SequenceMatcher

import numpy as np

from tracer.attention import layers
from tracer.export import verdicts
from tracer.export.to_html import equation, text
from tracer.figures.tensors import as_array
from tracer.latex_reader.parser import TokenCursor
from tracer.record import AttentionRecord, Step, Trace, tolerance
from tracer.symbols import notation
from tracer.utils.text import scientific, shape_numbers

# Two equations with the parts that differ marked: `\textcolor` around each, in both.

MARK = "#d8486b"
"""The colour of a part that differs; a page replaces it by its own."""
OPENING_BRACKETS, CLOSING_BRACKETS = {"{", r"\left", r"\begin"}, {"}", r"\right", r"\end"}
SCRIPTS = {"^", "_"}
UNMARKABLE_SIGNS = (r"\begin", "&", r"\\", r"\text")
"""Signs of an equation of several lines, or of words, that no colour can go around."""
COMMANDS = frozenset(
    r"\frac \sqrt \mathbf \mathrm \boldsymbol \mathcal \mathbb \check \tilde \hat \bar \left \right".split()
)
"""Commands whose argument, or bracket, comes behind them."""


def mark_differences(a: str, b: str, names: Collection[str]) -> tuple[str, str]:
    """Return two lines of LaTeX with their differences in colour; `names` are the letters of tensors, each taken whole.

    A part that no colour can go around stays as it is.
    """
    if a == b:
        return a, b
    first, second = _units(a, names), _units(b, names)
    codes = SequenceMatcher(a=first, b=second, autojunk=False).get_opcodes()
    parts = [(code[1:3], code[3:5]) for code in codes if code[0] != "equal"]
    return _mark_parts(first, [part[0] for part in parts]), _mark_parts(second, [part[1] for part in parts])


def _units(latex: str, names: Collection[str]) -> list[str]:
    """Return the letters of tensors, and the other signs, of a line."""
    signs, spans = TokenCursor(latex, names), []
    while signs.next:
        if name := signs.name():
            spans.append(name)
        else:
            spans.append(signs.next)
            signs.at += 1
    return spans


def _mark_parts(units: Sequence[str], parts: Sequence[tuple[int, int]]) -> str:
    """Return a line with a colour around these parts of it, widened to what a colour can enclose."""
    ends: dict[int, int] = {}
    for start, stop in parts:
        if start < stop and (span := _widen(units, start, stop)):
            ends[span[0]] = max(span[1], ends.get(span[0], 0))
    return "".join(_colour(units, ends))


def _widen(units: Sequence[str], start: int, stop: int) -> tuple[int, int] | None:
    """Return the smallest part around this one whose brackets are balanced; None where there is none."""
    for wide in range(len(units)):
        for before in range(wide + 1):
            low, high = start - before, stop + wide - before
            if low >= 0 and high <= len(units) and _whole(units, low, high):
                return low, high
    return None


def _whole(units: Sequence[str], low: int, high: int) -> bool:
    inside, before, after = units[low:high], units[low - 1] if low else "", units[high] if high < len(units) else ""
    if (
        any(sign.startswith(UNMARKABLE_SIGNS) for sign in inside)
        or inside[0] in SCRIPTS
        or inside[-1] in SCRIPTS | COMMANDS
    ):
        return False
    if before in SCRIPTS | COMMANDS or (before == "}" and inside[0] == "{") or (after == "{" and inside[-1] == "}"):
        return False
    depth = 0
    for sign in inside:
        depth += (sign in OPENING_BRACKETS) - (sign in CLOSING_BRACKETS)
        if depth < 0:
            return False
    return depth == 0


def _colour(units: Sequence[str], ends: dict[int, int]) -> Iterator[str]:
    stop = 0
    for at, sign in enumerate(units):
        if at in ends and at >= stop:
            stop = ends[at]
            yield rf"\textcolor{{{MARK}}}{{"
        yield sign + (" " if sign.startswith("\\") and sign[-1].isalpha() else "")
        if at + 1 == stop:
            yield "}"


# Captions of pictures in a line: the equation of a step, its tensor's shape in symbols and numbers, the verdict.


def lines(steps: Iterable[Step]) -> str:
    """Return steps as HTML, a line each: the equation as MathML, the shape, the verdict, and a button to the step."""
    return "".join(f"<p>{_line(step)}</p>" for step in steps)


def _line(step: Step) -> str:
    inside = f"{step.symbol} \\in {notation.shape_latex(step.symbolic)}" if step.shape else step.symbol
    return (
        f'<span class="formula">{equation(step.latex)}</span>'
        f'<span class="formula">{equation(inside)} = {text(shape_numbers(step.shape))}</span>'
        f'<button type="button" data-step="{text(step.id)}" title="{text(verdicts.MEANING)}">'
        f"{text(step.title)}: {text(verdicts.sentence(step))}</button>"
    )


def of_attention(trace: Trace, record: AttentionRecord, letters: str = "A") -> str:
    """Return the lines of an attention's mask "M", scores "S" and weights "A", as far as the run has them, and after
    each the line that changes it.

    The mask is among them if its scores name it.
    """
    tensors = {"A": _weights(trace, record)}
    if tensors["A"] is not None:
        tensors["S"] = _before(trace, tensors["A"], "S")
    if (scores := tensors.get("S")) is not None:
        mask = _before(trace, scores, "M")
        tensors["M"] = mask if mask is not None and mask.symbol in scores.latex else None
    chosen = [step for letter in letters if (step := tensors.get(letter)) is not None]
    return lines(line for step in chosen for line in (step, trace.changed_step(step.id)) if line is not None)


def _weights(trace: Trace, record: AttentionRecord) -> Step | None:
    """Return the step of an attention's weights: the softmax that the record names, or the one inside the fused op."""
    steps = (step for step in trace.steps if record.op in step.ops or step.inside == record.op)
    return next((step for step in steps if step.symbol.startswith(_bold("A"))), None)


ROLLOUT = (
    r"\mathbf{R} = \prod_{\ell = L}^{1} \frac{1}{2}"
    r"\left(\frac{1}{h}\sum_{i = 1}^{h} \mathbf{A}^{(\ell)}_{i} + \mathbf{1}\right)"
)
"""Attention rollout (Abnar and Zuidema 2020, section 3): the last block stands on the left."""


def of_rollout(trace: Trace, part: str | None, shown: np.ndarray) -> str:
    """Return the line of a rollout `[S, S]` as displayed: its equation, its shape, and whether it fulfils the equation,
    recomputed from the weights of each block."""
    error = rollout_error(trace, part, shown)
    verdict = "verified" if error <= tolerance("float32") else "refuted"
    shape = ", ".join(map(str, shown.shape))
    sentence = f"Rollout: {verdicts.SIGNS[verdict]} {verdict} on this run"
    hint = (
        "The equation, executed on the attention weights of this run, differs by at most "
        f"{scientific(error)} of the largest."
    )
    symbol, sign = (
        equation(r"\mathbf{R}"),
        f'<span class="proof {verdict}" title="{text(hint)}">{text(sentence)}</span>',
    )
    return (
        f'<p><span class="formula">{equation(ROLLOUT)}</span>'
        f'<span class="formula">{symbol} ∈ [{shape}]</span>{sign}</p>'
    )


def rollout_error(trace: Trace, part: str | None, shown: np.ndarray) -> float:
    """Return the largest difference of a rollout to its equation, as a share of the largest value.

    It is computed from the last block to the first, in float64 and with NumPy alone.
    """
    product = np.eye(len(shown))
    for record in reversed(layers(trace, part)):
        heads = as_array(trace.attention(record.layer, part=part))[0].astype(np.float64)
        product = product @ ((heads.mean(0) + np.eye(len(shown))) / 2)
    return float(np.abs(product - shown).max() / np.abs(product).max())


def weights_step(trace: Trace, record: AttentionRecord) -> str:
    """Return the id of the step whose tensor has a cell for each weight of an attention, changed or not,
    `[B, h, S_q, S_k]`; "" where there is none."""
    step = _weights(trace, record)
    step = (step and trace.changed_step(step.id)) or step
    return step.id if step and step.shape[1:] == (record.heads, record.queries, record.keys) else ""


def _before(trace: Trace, step: Step, letter: str) -> Step | None:
    """Return the nearest step before this one whose symbol has that letter."""
    earlier = trace.steps[: trace.steps.index(step)]
    return next(
        (earlier_step for earlier_step in reversed(earlier) if earlier_step.symbol.startswith(_bold(letter))), None
    )


def _bold(letter: str) -> str:
    return rf"\mathbf{{{letter}}}"


# Symbols of equations and terms of the field in plain words, each with its meaning and its positions in a run.
#
# They explain notation, and claim nothing of a run.

GLOSSARY_SIGNS = (
    (r"\mathcal{U}", r"\mathcal{U}_P", "unfold: cuts a picture into squares of $P \\times P$ pixels, one per row"),
    (r"\ ;\ ", r"[\,a\ ;\ b\,]", "a above b: the rows of a, then the rows of b"),
    (r"\odot", r"\odot", "multiplies cell by cell"),
    (r"\top", r"\mathbf{X}^{\top}", "transposed: rows become columns"),
    (r"\leftrightarrow", r"\mathbf{X}^{a \leftrightarrow b}", "the axes of sizes a and b are swapped"),
    (r" \to ", r"\mathbf{X}_{[a\,b \to b\,a]}", "a rearrangement: the axes before and after; parentheses merge axes"),
    (r"[\ldots,\,", r"\mathbf{X}_{[\ldots,\,a:b]}", "a slice: the entries a to b − 1 of the last axis"),
    (r"\begin{cases}", r"\{", "the value of the first line whose condition holds"),
    (r"\lnot", r"\lnot", "not: 1 where there was 0, and 0 elsewhere"),
    (r"\text{max}_{\text{float", r"\text{max}_{\text{float32}}", "the largest number that float32 has"),
    (r"\mathbf{0}_", r"\mathbf{0}_{a \times b}", "zeros: a rows of b"),
    (r"\mathbf{1}_", r"\mathbf{1}_{a \times b}", "ones: a rows of b"),
    (r"\sum_{e", r"\sum_{e}", "a sum over the experts e"),
    ("_{kij} =", r"\mathbf{X}_{kij}", "one cell: its places along the last three axes, counted from 0"),
    ("_{ij} =", r"\mathbf{X}_{ij}", "one cell: its row and its column, counted from 0"),
    (r"\text{head }", r"\text{head }n", "the index of the head with this number; numbers of heads count from 1"),
    (r"\right]_{ij", r"[\,\ldots\,]_{ij}", "the tensor whose cell i, j is the expression in brackets"),
    (r"\text{for }", r"\text{for }t", "a loop: each step is computed from the one before"),
    (r"\star_", r"\star", "convolution: kernels slide over the input, with one product at each position"),
    (r"\downarrow", r"\star_{\downarrow n}", "with stride n, so that the result is smaller"),
    (r"\star^{\top}", r"\star^{\top}", "transposed convolution: each position adds a kernel to the result"),
    (r"\text{pad }", r"\star_{\text{pad }n}", "with a border of n zeros around it"),
    (r"\mu(", r"\mu,\ \sigma^2", "mean and variance of the numbers that are normalised together"),
    (r"\sigma\left(", r"\sigma", "sigmoid: maps any number to between 0 and 1"),
    (r",\,\uparrow", r"\uparrow", "the smallest first, instead of the largest"),
    (r"^{(1)}", r"\mathbf{X}^{(\ell)}", "of block $\\ell$, counted from 1"),
)  # fmt: skip
"""(its form in LaTeX, the LaTeX that is shown, its meaning)."""
FUNCTIONS = {
    "heads_h": "splits the columns into $h$ heads of equal width",
    "concat_h": "concatenates the heads again",
    "split": "splits one matrix into several along an axis",
    "maxpool": "keeps the largest number of each window",
    "avgpool": "keeps the mean of each window",
    "im2col": "lays each window of a picture out as a column",
    "col2im": "puts columns back as the windows of a picture, and adds where they overlap",
    "resize": "scales a picture to another height and width",
    "softmax": "turns numbers into weights: none is negative, and their sum is 1",
    "GELU": "a smooth ReLU: keeps large numbers almost as they are, and brings negative ones close to 0",
    "SiLU": "a number times its own sigmoid",
    "Mish": "a number times the tanh of its softplus",
    "ReLU": "sets negative numbers to 0",
    "ReLU6": "sets negative numbers to 0, and those above 6 to 6",
    "LeakyReLU": "makes negative numbers small instead of 0",
    "PReLU": "multiplies negative numbers by a trainable factor",
    "ELU": "keeps positive numbers, and lets negative ones approach a lower bound",
    "SELU": "a scaled ELU",
    "GLU": "the first half of the numbers times the sigmoid of the second half",
    "HardSwish": "a SiLU made of straight lines and a parabola",
    "HardSigmoid": "a sigmoid made of straight lines",
    "HardShrink": "sets small numbers to 0",
    "SoftShrink": "moves all numbers towards 0, and sets small ones to 0",
    "softplus": "a smooth ReLU",
    "GRU": "reads a sequence step by step, with two gates on what it remembers",
    "LSTM": "reads a sequence step by step, with gates on what it keeps, adds and outputs",
    "RNN": "reads a sequence step by step, each state from the one before",
    "mean_n": "the mean along the axis of size n",
    "sum_n": "the sum along the axis of size n",
    "prod_n": "the product along the axis of size n",
    "var_n": "the variance along the axis of size n",
    "std_n": "the standard deviation along the axis of size n",
    "logsumexp_n": "the logarithm of the sum of exponentials",
    "count_n": "how many are not 0 along the axis of size n",
    "any_n": "1 where any is not 0, along the axis of size n",
    "all_n": "1 where none is 0, along the axis of size n",
    "cumsum_n": "running sum: of each entry and all before it",
    "cumprod_n": "running product: of each entry and all before it",
    "top_k": "the k largest numbers, the largest first",
    "argtop_k": "the indices of the k largest numbers",
    "argmax": "the index of the largest number",
    "linspace_n": "n evenly spaced numbers, from the first to the last",
    "nonzero": "the indices of all entries that are not 0",
    "argmin": "the index of the smallest number",
    "sort": "sorts numbers",
    "argsort": "the indices that sort the numbers",
    "full_{a \\times b}": "one number in all cells, a rows of b",
    "onehot_K": "K numbers: 1 at the index, 0 elsewhere",
    "gather": "reads the numbers at these indices",
    "scatter": "writes numbers at these indices",
    "fill": "writes a number into the marked cells",
    "tril": "keeps the diagonal and what is below it, with 0 above",
    "triu": "keeps the diagonal and what is above it, with 0 below",
    "pad": "adds a border",
    "roll": "shifts all entries along an axis; what leaves at one end enters at the other",
    "flip": "reverses the order along an axis",
    "stack": "joins tensors along a new axis",
    "groups": "splits the channels into groups of equal size",
    "pairs": "groups numbers into pairs",
    "round": "the nearest whole number",
    "trunc": "drops the digits after the decimal point",
    "sign": "-1, 0 or 1, for a negative number, 0 or a positive number",
    "finite": "replaces infinite numbers and NaN by finite numbers",
    "erf": "the error function: an S-shaped curve from -1 to 1",
    "atan2": "the angle of a point in the plane",
    "complex": "a complex number from its real and imaginary part",
    "polar": "a complex number from its length and angle",
    "conj": "the complex conjugate: the imaginary part changes its sign",
    "Re": "the real part of a complex number",
    "Im": "the imaginary part of a complex number",
    "float16": "the nearest 16-bit number, with about 3 digits",
    "bfloat16": "the nearest 16-bit number with the range of float32, with about 2 digits",
    "int8": "the whole part as an 8-bit number: beyond 127 it goes on at -128",
    "uint8": "the whole part as an 8-bit number: beyond 255 it goes on at 0",
    "int16": "the whole part as a 16-bit number: beyond 32,767 it goes on at -32,768",
    "uint16": "the whole part as a 16-bit number: beyond 65,535 it goes on at 0",
    "turn": "the second half of the numbers, negated, then the first half",
    "grid_{a \\times b}": "arranges tokens in a rows of b",
    "windows_w": "cuts a grid into windows, w cells a side",
    "unwindow": "puts windows back into the grid",
    "unroll": "the kernels of a convolution as one matrix, which multiplies patches",
    "fold": "puts patches back into the picture",
    "repeat_n": "repeats each entry n times in a row",
}
"""Functions by their printed names with subscripts, and their meaning."""
WORDS = (
    (
        "token",
        ("attention", "embedding"),
        "one row of what flows through the model, such as a patch, a word or a character",
    ),
    (
        "residual stream",
        ("attention",),
        "the tokens on their way from block to block, to which each block adds its results",
    ),
    ("query, key, value", ("attention",), "what a token looks for, what it can be found by, and what it passes on"),
    ("head", ("attention",), "one attention with its own scores; several can run in parallel"),
    ("feature map", ("convolution",), "one number per position of a picture: the response of one kernel"),
    ("channel", ("convolution",), "one of the stacked feature maps"),
    ("state", ("recurrence",), "what a model remembers of everything that it has read so far"),
    ("logits", ("head",), "scores that a softmax turns into probabilities"),
)
"""Words of the field, the stages that they belong to, and what they mean."""


def words(stages: Iterable[str]) -> list[tuple[str, str]]:
    """Return (word, meaning) of the terms that belong to any of these stages."""
    there = set(stages)
    return [(word, meaning) for word, of, meaning in WORDS if there & set(of)]


def signs(equations: Iterable[str]) -> list[tuple[str, str]]:
    """Return (sign, meaning) of the signs that occur in any of these equations."""
    written = "\n".join(equations)
    entries = [(shown, meaning) for mark, shown, meaning in GLOSSARY_SIGNS if mark in written]
    for sign, meaning in FUNCTIONS.items():
        word, _, below = sign.partition("_")
        if rf"\operatorname{{{word}}}" in written:
            entries.append((rf"\operatorname{{{word}}}" + (f"_{below}" if below else ""), meaning))
    return entries
