"""Named formulas of positions: sinusoids, distances, prefix masks; near misses have no name."""

import pytest
import torch

import tracer
from tracer.attention import masks


def waves(x, base=10000, share=None, order=(torch.sin, torch.cos)):
    """Add sines and cosines of their positions to tokens, alternately."""
    T, D = x.shape[1:]
    rates = base ** (torch.arange(0, D, 2, dtype=torch.float64) / (share or D))
    angles = torch.arange(T, dtype=torch.float64)[:, None] / rates
    return x + torch.stack([wave(angles) for wave in order], dim=-1).flatten(1).to(x)


def distances(x, least=-2, most=2, turned=False, add=2):
    """Return, for each pair of tokens, the query's number for its distance."""
    place = torch.arange(x.shape[1])
    apart = (place[:, None] - place if turned else place - place[:, None]).clamp(least, most) + add
    return x.gather(-1, apart.expand(x.shape[0], *apart.shape))


def sum_by_distance(x, start=0.0):
    """Return the sum of each query's shares by distance."""
    place = torch.arange(x.shape[1])
    apart = (place - place[:, None]).clamp(-2, 2) + 2
    shares = x @ x.transpose(1, 2)
    return x.new_full((*x.shape[:2], 5), start).scatter_add(-1, apart.expand_as(shares), shares)


def mask_scores(x, mask=lambda T: masks.prefix(T, 3)):
    """Return scores that a mask is added to."""
    return (x @ x.transpose(1, 2) + mask(x.shape[1])).softmax(-1)


def first(x, number=1, find=torch.argmax):
    """Return the token of each sequence at the first occurrence of a number."""
    ends = find((x[..., 0].round().long() == number).int(), dim=1)
    return x[torch.arange(len(x)), ends]


NAMED_POSITIONS = [
    (waves, r"10000^{2k/6}"),
    (distances, r"j - i,\ -2"),
    (mask_scores, "j < 3"),
    (lambda x: x / x.norm(dim=-1, keepdim=True), r"\right\rVert_2}"),
]
NEARLY = [
    (lambda x: waves(x, base=500), "10000"),
    (lambda x: waves(x, share=12), "10000^{2k"),
    (lambda x: waves(x, order=(torch.cos, torch.sin)), "10000^{2k"),
    (lambda x: distances(x, most=3), "j - i"),
    (lambda x: distances(x, add=3), "j - i"),
    (lambda x: distances(x, turned=True), "j - i"),
    (lambda x: sum_by_distance(x, start=1.0), r"\sum_{j"),
    (lambda x: x / x.norm(dim=1, keepdim=True), r"\right\rVert_2"),
    (lambda x: x / (2 * x).norm(dim=-1, keepdim=True), r"\lVert \mathbf{x}"),
    (lambda x: first(x, find=torch.argmin), r"\min\left\{ j"),
]


def trace_function(run):
    torch.manual_seed(0)
    return tracer.trace(run, torch.randn(2, 7, 6), symbols={"B": 0, "T": 1})


@pytest.mark.parametrize(("run", "said"), NAMED_POSITIONS)
def test_what_has_a_name_has_it(run, said):
    steps = trace_function(run).steps
    assert any(said in step.latex for step in steps), [step.latex for step in steps]
    assert {step.verdict for step in steps} == {"verified"}


@pytest.mark.parametrize(("run", "unsaid"), NEARLY)
def test_what_is_nearly_the_same_has_not(run, unsaid):
    steps = trace_function(run).steps
    assert steps and not any(unsaid in step.latex for step in steps), [step.latex for step in steps]
    assert {step.verdict for step in steps} == {"verified"}
