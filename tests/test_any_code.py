"""Code of any kind: losses, folds, transforms, linear algebra … trace with all they compute in a step, or are refused
in one sentence."""

import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tracer

LABELS, WEIGHTS = torch.tensor([1, 3, 0, 2, 4, 1]), torch.tensor([0.5, 1.0, 2.0, 0.3, 1.5])
KERNEL = "PyTorch's own kernel"


class Runs(nn.Module):
    """A function of inputs, with the modules that it calls."""

    def __init__(self, function, **modules):
        super().__init__()
        self.function = function
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def traced(function, *inputs: torch.Tensor, symbols=None, **modules):
    torch.manual_seed(0)
    return tracer.trace(Runs(function, **modules), *inputs, symbols=symbols)


def assert_complete(trace) -> None:
    """All that computes is in a step, and every step is proven."""
    assert trace.coverage >= 0.97
    assert {step.verdict for step in trace.steps} == {"proven"}, [(step.id, step.note) for step in trace.steps]


LOSSES = {
    "cross entropy": (F.cross_entropy, LABELS, {}),
    "of a sum": (F.cross_entropy, LABELS, {"reduction": "sum"}),
    "of each": (F.cross_entropy, LABELS, {"reduction": "none"}),
    "without a label": (F.cross_entropy, LABELS, {"ignore_index": 1}),
    "without a label that is none": (F.cross_entropy, LABELS.where(LABELS > 0, -100), {}),
    "with weights": (F.cross_entropy, LABELS, {"weight": WEIGHTS}),
    "with weights, without a label": (F.cross_entropy, LABELS, {"weight": WEIGHTS, "ignore_index": 3}),
    "smoothed": (F.cross_entropy, LABELS, {"label_smoothing": 0.1}),
    "of probabilities": (F.cross_entropy, drawn(6, 5).softmax(-1), {}),
    "likelihood": (lambda z, y: F.nll_loss(z.log_softmax(-1), y), LABELS, {}),
    "squares": (F.mse_loss, drawn(6, 5), {}),
    "squares of each": (F.mse_loss, drawn(6, 5), {"reduction": "none"}),
    "absolute": (F.l1_loss, drawn(6, 5), {}),
    "Huber": (F.huber_loss, drawn(6, 5), {"delta": 0.5}),
    "smooth": (F.smooth_l1_loss, drawn(6, 5), {}),
    "binary": (lambda z, y: F.binary_cross_entropy(z.sigmoid(), y), drawn(6, 5).sigmoid(), {}),
    "binary of logits": (F.binary_cross_entropy_with_logits, drawn(6, 5).sigmoid(), {"pos_weight": WEIGHTS}),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
def test_a_loss_has_a_formula(name, grad):
    loss, target, settings = LOSSES[name]
    with torch.set_grad_enabled(grad):
        trace = traced(lambda self, x, y: loss(self.head(x), y, **settings), drawn(6, 8), target, head=nn.Linear(8, 5))
    assert_complete(trace)
    assert not any(KERNEL in step.note for step in trace.steps)


def test_cross_entropy_is_printed_as_the_field_has_it():
    trace = traced(
        lambda self, x, y: F.cross_entropy(self.head(x), y),
        drawn(6, 8),
        LABELS,
        symbols={"B": 0},
        head=nn.Linear(8, 5),
    )
    line = trace.steps[-1].latex.partition(" = ")[2]
    assert line.startswith(r"-\frac{1}{B} \sum_{i} \log\operatorname{softmax}\left(")
    assert line.endswith(r"\right)_{i,\,{\mathbf{x}_{\text{inputs.1}}}_{i}}")


def test_labels_that_are_left_out_are_said_where_there_are_some():
    def lines(labels):
        trace = traced(lambda self, x, y: F.cross_entropy(self.head(x), y), drawn(6, 8), labels, head=nn.Linear(8, 5))
        return trace.steps[-1].latex

    assert r"\ne -100" in lines(LABELS.where(LABELS > 0, -100))
    assert r"\ne" not in lines(LABELS)


def test_a_bilinear_map_is_a_sum_of_products():
    inputs = drawn(2, 3, 4), drawn(2, 3, 5)
    trace = traced(lambda self, x, y: self.map(x, y), *inputs, map=nn.Bilinear(4, 5, 6))
    assert_complete(trace)
    assert r"\sum_{lm}" in trace.steps[-1].latex


FOLDS = {
    "windows": (nn.Unfold(3, padding=1, stride=2), drawn(2, 3, 6, 8)),
    "patches": (nn.Unfold((2, 4), stride=(2, 4)), drawn(2, 3, 6, 8)),
    "sums": (nn.Fold((6, 8), 3, padding=1), drawn(2, 27, 48)),
    "one picture": (nn.Fold((6, 8), 2, stride=2), drawn(12, 12)),
}


@pytest.mark.parametrize("name", FOLDS)
def test_windows_as_columns_have_a_formula(name):
    module, x = FOLDS[name]
    trace = tracer.trace(module, x)
    assert_complete(trace)
    assert not any(KERNEL in step.note for step in trace.steps)
    assert re.search(r"im2col|col2im", trace.steps[-1].latex)


def test_sizes_of_windows_are_symbols():
    trace = traced(lambda self, x: self.fold(self.unfold(x) * 2), drawn(2, 3, 6, 8), symbols={"B": 0}, **WINDOWS)
    assert_complete(trace)
    assert trace.steps[-1].symbolic == ("B", "3", "6", "8")


WINDOWS = {"unfold": nn.Unfold(2, stride=2), "fold": nn.Fold((6, 8), 2, stride=2)}


def positive_definite(x: torch.Tensor) -> torch.Tensor:
    return x @ x.mT + torch.eye(x.shape[-1])


DECOMPOSITIONS = {
    "qr": lambda x, b: torch.linalg.qr(x)[0],
    "both of qr": lambda x, b: torch.matmul(*torch.linalg.qr(x)),
    "solve": torch.linalg.solve,
    "inverse": lambda x, b: torch.linalg.inv(x),
    "cholesky": lambda x, b: torch.linalg.cholesky(positive_definite(x)),
    "svd": lambda x, b: torch.linalg.svd(x)[0],
    "eigenvectors": lambda x, b: torch.linalg.eigh(positive_definite(x))[1],
    "least squares": lambda x, b: torch.linalg.lstsq(x, b).solution,
    "determinant": lambda x, b: torch.linalg.det(x),
}


@pytest.mark.parametrize("name", DECOMPOSITIONS)
def test_linear_algebra_is_covered(name):
    compute = DECOMPOSITIONS[name]
    inputs = drawn(4, 6, 6), drawn(4, 6, 2)
    assert_complete(traced(lambda self, x, b: compute(self.linear(x), b), *inputs, linear=nn.Linear(6, 6)))
