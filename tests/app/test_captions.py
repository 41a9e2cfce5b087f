"""Captions that count or compare: each is true of its run by a check, or is listed with why no run denies it."""

import ast
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import tracer
from tracer.figures.pipeline import pipeline

ROOT = Path(__file__).resolve().parents[2]
SHOWS = {"caption", "header", "info", "markdown", "subheader", "success", "title", "warning"}
COMPARES = re.compile(
    r"\b(more|less|fewer|\w*(?:larg|small|high|low|near|long|short)e(?:r|st)|least|most|than|never|always|every|each|all"
    r"|only|same|equal|alike|exactly|changes?|sees?)\b|\d",
    re.IGNORECASE,
)


GENERAL = {
    "All heads at a glance": "the title of the table, which has a cell for each head of the run",
    "Before and after the changes": "a title; what differs is measured below it",
    "Choose a change: the model runs again with it, and the page shows both runs.": "what a click does",
    "Differences are between the tensor of the step before and after the changes, cell by cell.": "how it is measured",
    (
        "Each head is switched off in a run of its own: its weights are set to 0, and everything else stays as it is "
        "in this run. The effects need not add up, since other heads may do the same work (Michel et al. 2019). Choose "
        "a cell to open that head above."
    ): "how the effects are measured; that they add up is not claimed",
    (
        "The line at the marked head is its standard deviation over the photos (distance over the depth: Dosovitskiy "
        "et al. 2021, figure 7)."
    ): "what the chart draws, and whose chart it is",
    "The lines are standard deviations over the photos (hiding what a map marks: Samek et al. 2017).": (
        "what the chart draws, and whose test it is"
    ),
    "This runs the model once more.": "what a click does",
    "**not the same**.": "said where the difference measured is more than rounding",
    (
        "A fused kernel computes scores, softmax and context in one operation and never stores the scores. The "
        "standard path writes them out. Both compute the same formula. Where the order of additions differs, the last "
        "digits may differ."
    ): "what the two paths are; how far apart they are is measured below",
    "An empty text has no tokens, so n = 0 and there is nothing to look up.": "said of an empty text alone",
    "Click a module to unfold it, a row to see its details below, or a column header to sort by it.": (
        "how the table works"
    ),
    (
        "Closed means that −∞ is added to the scores of words for patches in these blocks: their weights are "
        "0. The words keep what they read from the picture in other blocks."
    ): "what is run: the change is made by the page",
    "Only matrix products are counted, as usual: 2 FLOP per multiply-add.": ("how FLOPs are counted"),
    "Every operation that ran": "the name of the page",
    "From here on, all inputs are treated alike": "one block with one seed takes all kinds, which the page runs",
    "This token does not enter this tower, so the tower never saw it.": (
        "said where nothing that enters the tower moved"
    ),
    "A saved run has the sizes that it was made with. Choose a model in the sidebar to change them.": (
        "what the page can do"
    ),
    "Activations are all tensors that the steps compute. A program that frees each of them needs far less.": (
        "how activations are counted; what is freed is not counted"
    ),
    "Each net is built without memory, and its parameters are counted.": "what a click does",
    "The gradient of each parameter": "a heading",
    (
        "The backward pass begins at the logits and goes through the calls in reverse order. There, the gradient of "
        "a parameter needs two tensors only: the input, and the gradient at the output. Each equation ran on these, "
        "and its result was compared with the gradient of PyTorch’s autograd, number by number."
    ): "how the page computes; each equation below has a verdict of its own",
    "The step is taken by the model without the change of the run on screen.": "how the page computes",
    "The lines that the positions change": "the name of a table of these lines",
    (
        "The tokens are shuffled, the model runs on them, and its outputs are put back into the original order. Where "
        "a token then has the same output as before, the model did not see the order."
    ): "what is run, and how to read it; what came out is measured below",
    "The weights are random, all from one seed, and have learned nothing. Only the positions differ.": (
        "how the lesson makes its weights"
    ),
    "There is only one sentence to choose from: a softmax over one choice is always 100 %.": (
        "said of one sentence; a softmax over one number is 1"
    ),
    "There is only one token, so a causal mask and no mask are the same: the token attends to itself.": (
        "said of one token alone"
    ),
    "This run was saved without steps: it shows its operations only.": "said of a run without steps",
    "What a convolution sees, layer by layer, and what attention sees": "names what is measured below",
    "What a second picture in the batch changes": "names what is measured below",
    "What another mask changes": "names what is measured below",
    "What does each size cost?": "a question",
    "Without a causal mask, each token sees the very token that it should predict.": (
        "said where the mask is bidirectional: nothing is closed"
    ),
    (
        "With random weights, which token gets more attention is a matter of chance. The value below the colour bar "
        "is what each token would get if all got the same."
    ): "said of random weights",
    "Without merges, the tokens are bytes. Move the slider: each merge joins the pair that is then most frequent.": (
        "what byte-level BPE is"
    ),
    "Each word is predicted from the picture and the words before it.": "how captions are written",
    "Without a mask, each word is predicted from the picture and all words, also those that come later.": (
        "said where the record of every attention has no mask"
    ),
    "One step against all": "the name of a table of one step with a cache and of a run of all tokens",
    (
        "Your file needs a function that returns the model and its inputs. Each of its arguments, if it has any, needs "
        "a default: `def model(B=2, D=8): return MyModule(D), (torch.randn(B, D),)`."
    ): "what a file has to have",
    (
        "This page runs your file with your rights, on this machine: it can read, change and send what you can. Run "
        "only code that you would run in a terminal. Your text is not saved: copy it before you close or reload this "
        "page."
    ): "what the page does",
    "the same, up to rounding.": "said where the difference measured is rounding",
}
"""Each such sentence, and why it is true of every run that shows it."""


def captions() -> set[str]:
    """Return the sentences of pages that hold no value and count or compare: all arguments of what Streamlit shows."""
    found = set()
    for path in sorted((ROOT / "pages").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        formatted = {id(part) for one in ast.walk(tree) if isinstance(one, ast.JoinedStr) for part in ast.walk(one)}
        for call in ast.walk(tree):
            shows = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in SHOWS
            for one in ast.walk(ast.Tuple(call.args)) if shows else ():
                if isinstance(one, ast.Constant) and isinstance(one.value, str) and id(one) not in formatted:
                    found |= {one.value} if " " in one.value and COMPARES.search(one.value) else set()
    return found


def test_a_caption_that_compares_is_listed_with_why_no_run_denies_it():
    assert captions() == set(GENERAL)


class Block(nn.Module):
    """A pre-norm MLP beside the residual; the MLP has no matrices where it is `bare`."""

    def __init__(self, bare: bool):
        super().__init__()
        self.norm = nn.LayerNorm(8, elementwise_affine=not bare)
        self.mlp = nn.GELU() if bare else nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8))

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class Stack(nn.Module):
    """Three blocks of a kind: with weights of their own, with a `tied` weight, or `bare`."""

    def __init__(self, kind: str):
        super().__init__()
        self.blocks = nn.ModuleList(Block(kind == "bare") for _ in range(3))
        for block in self.blocks if kind == "tied" else ():
            block.mlp[2].weight = self.blocks[0].mlp[2].weight
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.mark.parametrize("kind", ["own", "tied", "bare"])
def test_blocks_are_said_to_have_weights_of_their_own_where_they_have(kind):
    trace = tracer.trace(Stack(kind).eval(), torch.randn(2, 5, 8), prove=False)
    drawn = pipeline(trace)
    assert bool(trace.repeats) is (kind != "tied")
    assert ("each with its own weights" in drawn) is (kind == "own")
    assert "From the blocks to the answer" in drawn
