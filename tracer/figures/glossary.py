r"""Signs of equations and words of the field in plain words: of each, where it stands in a run, and what it says.

They explain notation, and claim nothing of a run.
"""

from collections.abc import Iterable

SIGNS = (
    (r"\mathcal{U}", r"\mathcal{U}_P", "unfold: cuts a picture into squares with $P$ pixels a side, each a row"),
    (r"\operatorname{heads}", r"\operatorname{heads}_h", "takes the columns apart into $h$ heads of equal width"),
    (r"\operatorname{concat}", r"\operatorname{concat}_h", "puts the heads beside one another again"),
    (r"\operatorname{split}", r"\operatorname{split}", "takes one matrix apart into several along an axis"),
    (r"\ ;\ ", r"[\,a\ ;\ b\,]", "a above b: the rows of both, one after the other"),
    (r"\odot", r"\odot", "multiplies cell by cell"),
    (r"\top", r"{}^{\top}", "transposed: rows become columns"),
    (r"\operatorname{softmax}", r"\operatorname{softmax}", "makes numbers positive, with the sum 1"),
    (r"\mu(", r"\mu,\ \sigma^2", "mean and variance of the numbers of each token"),
    (r"\operatorname{GELU}", r"\operatorname{GELU}", "lets large numbers through, holds negative ones back, smoothly"),
    (r"\operatorname{ReLU}", r"\operatorname{ReLU}", "sets negative numbers to 0"),
    (r"^{(1)}", r"{}^{(\ell)}", "of block $\\ell$, counted from 1"),
)  # fmt: skip
"""(what it looks like in LaTeX, how it is shown, what it says)."""
WORDS = (
    ("token", "one row of what flows through the model: a patch, a word, a character, or one that the model adds"),
    (
        "residual stream",
        "the tokens on their way from block to block; a residual sum adds to them what was made of them",
    ),
    ("query, key, value", "what a token looks for, what it can be found by, and what it passes on"),
    ("head", "one attention of its own, on a part of the numbers of each token"),
    ("logits", "the scores before the softmax that makes probabilities of them"),
)


def signs(equations: Iterable[str]) -> list[tuple[str, str]]:
    """(sign, meaning) of those that stand in any of these equations."""
    written = "\n".join(equations)
    return [(shown, meaning) for mark, shown, meaning in SIGNS if mark in written]
