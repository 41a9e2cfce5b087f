"""Symbols of equations and terms of the field in plain words, each with its meaning and its positions in a run.

They explain notation, and claim nothing of a run.
"""

from collections.abc import Iterable

SIGNS = (
    (r"\mathcal{U}", r"\mathcal{U}_P", "unfold: cuts a picture into squares with $P$ pixels a side, each a row"),
    (r"\ ;\ ", r"[\,a\ ;\ b\,]", "a above b: the rows of both, one after the other"),
    (r"\odot", r"\odot", "multiplies cell by cell"),
    (r"\top", r"\mathbf{X}^{\top}", "transposed: rows become columns"),
    (r"\leftrightarrow", r"\mathbf{X}^{a \leftrightarrow b}", "the axes of the sizes a and b change places"),
    (r" \to ", r"\mathbf{X}_{[a\,b \to b\,a]}", "laid out anew: its axes before and after; brackets join axes"),
    (r"[\ldots,\,", r"\mathbf{X}_{[\ldots,\,a:b]}", "a part: of the last axis, the entries from a up to b"),
    (r"\begin{cases}", r"\{", "the value of the first line whose condition holds"),
    (r"\lnot", r"\lnot", "not: 1 where there was 0, and 0 elsewhere"),
    (r"\text{max}_{\text{float", r"\text{max}_{\text{float32}}", "the largest number that float32 has"),
    (r"\mathbf{0}_", r"\mathbf{0}_{a \times b}", "zeros: a rows of b"),
    (r"\mathbf{1}_", r"\mathbf{1}_{a \times b}", "ones: a rows of b"),
    (r"\sum_{e", r"\sum_{e}", "a sum over the experts e"),
    (r"\right]_{ij", r"[\,\ldots\,]_{ij}", "the tensor whose cell i, j is what stands in brackets"),
    (r"\text{for }", r"\text{for }t", "one step after the other, each made of the one before"),
    (r"\star_", r"\star", "convolution: kernels slide over what it takes, one product at each place"),
    (r"\downarrow", r"\star_{\downarrow n}", "in steps of n places, so that the result is smaller"),
    (r"\star^{\top}", r"\star^{\top}", "transposed convolution: each place spreads a kernel over the result"),
    (r"\text{pad }", r"\star_{\text{pad }n}", "with a border of n zeros around it"),
    (r"\mu(", r"\mu,\ \sigma^2", "mean and variance of the numbers that are normalised together"),
    (r"\sigma\left(", r"\sigma", "sigmoid: brings any number between 0 and 1"),
    (r",\,\uparrow", r"\uparrow", "the smallest first, in place of the largest"),
    (r"^{(1)}", r"\mathbf{X}^{(\ell)}", "of block $\\ell$, counted from 1"),
)  # fmt: skip
"""(its form in LaTeX, the LaTeX that is shown, its meaning)."""
FUNCTIONS = {
    "heads_h": "takes the columns apart into $h$ heads of equal width",
    "concat_h": "puts the heads beside one another again",
    "split": "takes one matrix apart into several along an axis",
    "maxpool": "keeps the largest number of each window",
    "avgpool": "keeps the mean of each window",
    "im2col": "lays each window of a picture out as a column",
    "col2im": "puts columns back as the windows of a picture, and adds up where they overlap",
    "resize": "stretches a picture to another height and width",
    "softmax": "makes shares of numbers: none is negative, and their sum is 1",
    "GELU": "lets large numbers through, holds negative ones back, smoothly",
    "SiLU": "a number times its own sigmoid",
    "Mish": "a number times a smooth gate of its own",
    "ReLU": "sets negative numbers to 0",
    "ReLU6": "sets negative numbers to 0, and those above 6 to 6",
    "LeakyReLU": "makes negative numbers small instead of 0",
    "PReLU": "multiplies negative numbers by a trainable factor",
    "ELU": "lets negative numbers level off",
    "SELU": "a scaled ELU",
    "GLU": "one half times the sigmoid of the other",
    "HardSwish": "a SiLU of straight lines",
    "HardSigmoid": "a sigmoid of straight lines",
    "HardShrink": "sets small numbers to 0",
    "SoftShrink": "brings all numbers nearer to 0, small ones onto it",
    "softplus": "a ReLU whose corner is round",
    "GRU": "reads a sequence step by step, with two gates on what it remembers",
    "LSTM": "reads a sequence step by step, with gates on what it keeps, adds and shows",
    "RNN": "reads a sequence step by step, each from the one before",
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
    "top_k": "the k largest, the largest first",
    "argtop_k": "where the k largest are",
    "argmax": "where the largest is",
    "linspace_n": "n evenly spaced numbers, from the first to the last",
    "nonzero": "the indices of all entries that are not 0",
    "argmin": "where the smallest is",
    "sort": "put in order",
    "argsort": "which entry comes where when they are put in order",
    "full_{a \\times b}": "one number in all cells, a rows of b",
    "onehot_K": "K numbers: 1 at the place that is said, 0 elsewhere",
    "gather": "takes the numbers at the places that are said",
    "scatter": "puts numbers at the places that are said",
    "fill": "puts numbers into the cells that are marked",
    "tril": "keeps what is on and below the diagonal, with 0 above it",
    "triu": "keeps what is on and above the diagonal, with 0 below it",
    "pad": "puts a border around",
    "roll": "moves all along an axis; what leaves at one end comes in at the other",
    "flip": "turns the order along an axis around",
    "stack": "puts tensors side by side along a new axis",
    "groups": "takes the channels apart into groups of equal size",
    "pairs": "takes numbers two by two",
    "round": "the nearest whole number",
    "trunc": "without what stands behind the point",
    "sign": "-1, 0 or 1, as a number is negative, 0 or positive",
    "finite": "with other numbers in place of infinite ones and of those that are none",
    "erf": "the error function: an S from -1 to 1",
    "atan2": "the angle of a point in the plane",
    "complex": "a complex number, of its real and imaginary part",
    "polar": "a complex number, of its length and angle",
    "conj": "a complex number with the other sign of its imaginary part",
    "Re": "the real part of a complex number",
    "Im": "the imaginary part of a complex number",
    "float16": "the nearest number of 16 bits, with about 3 digits",
    "bfloat16": "the nearest number of 16 bits that has the range of 32, with about 2 digits",
    "turn": "the second half of the numbers with the other sign, then the first half",
    "grid_{a \\times b}": "lays tokens out as a rows of b",
    "windows_w": "cuts a grid into windows, w cells a side",
    "unwindow": "puts windows back into their grid",
    "unroll": "the kernels of a convolution as one matrix, that patches are multiplied by",
    "fold": "puts patches back into their picture",
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
        "the tokens on their way from block to block, to which residual sums add what was made of them",
    ),
    ("query, key, value", ("attention",), "what a token looks for, what it can be found by, and what it passes on"),
    ("head", ("attention",), "an attention with scores of its own; several can run side by side"),
    ("feature map", ("convolution",), "one number for each place of a picture: what one kernel found there"),
    ("channel", ("convolution",), "one of the feature maps that lie on one another"),
    ("state", ("recurrence",), "what a model remembers of all that it has read so far"),
    ("logits", ("head",), "scores that a softmax makes probabilities of"),
)
"""Words of the field, the stages that they belong to, and what they mean."""


def words(stages: Iterable[str]) -> list[tuple[str, str]]:
    """Return (word, meaning) of the terms that belong to any of these stages."""
    there = set(stages)
    return [(word, meaning) for word, of, meaning in WORDS if there & set(of)]


def signs(equations: Iterable[str]) -> list[tuple[str, str]]:
    """Return (sign, meaning) of the signs that occur in any of these equations."""
    written = "\n".join(equations)
    found = [(shown, meaning) for mark, shown, meaning in SIGNS if mark in written]
    for said, meaning in FUNCTIONS.items():
        word, _, below = said.partition("_")
        if rf"\operatorname{{{word}}}" in written:
            found.append((rf"\operatorname{{{word}}}" + (f"_{below}" if below else ""), meaning))
    return found
