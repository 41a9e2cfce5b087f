"""Symbols of equations and terms of the field in plain words, each with its meaning and its positions in a run.

They explain notation, and claim nothing of a run.
"""

from collections.abc import Iterable

SIGNS = (
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
    entries = [(shown, meaning) for mark, shown, meaning in SIGNS if mark in written]
    for sign, meaning in FUNCTIONS.items():
        word, _, below = sign.partition("_")
        if rf"\operatorname{{{word}}}" in written:
            entries.append((rf"\operatorname{{{word}}}" + (f"_{below}" if below else ""), meaning))
    return entries
