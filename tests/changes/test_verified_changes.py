"""Verification of changes: each kind is compared with plain PyTorch, and one that does something else is found."""

import pytest
import torch

import tracer
from tracer.attention import head_effects
from tracer.changes import kinds, of_inputs
from tracer.tracing.logit_lens import LogitLens
from tracer.verify.checks import attention, changes, outputs, reference_run

SIZES = {
    "vit": {"D": 12, "h": 2, "d_ff": 10, "L": 2, "K": 3, "H": 12, "W": 8, "P": 4},
    "nanogpt": {"D": 12, "h": 2, "d_ff": 10, "L": 2},
}
CHECKS = (
    changes.check_changed_values,
    changes.check_changed_scores,
    outputs.check_lens_answers,
    attention.check_effects_of_heads,
)


@pytest.fixture(scope="module")
def runs():
    found = {}
    for name, sizes in SIZES.items():
        model = tracer.load(name, **sizes)
        with torch.no_grad():
            found[name] = reference_run.plain(model, model.inputs(), model.trace())
    return found


def run_comparison(run, monkeypatch):
    """Return the kinds of changes that are compared with plain PyTorch for a run, and the problems."""
    seen, compare = set(), changes.compare

    def spy(run, change, expected):
        ((line, kind),) = change.items()
        kind = "replace" if isinstance(kind, torch.Tensor) else kind.partition("(")[0]
        seen.add(f"parameter {kind}" if line.startswith("parameter") else kind)
        return compare(run, change, expected)

    for check in (changes, changes):
        monkeypatch.setattr(check, "compare", spy)
    return seen, [problem for check in CHECKS for problem in check(run)]


ALL = {
    "zero",
    "scale",
    "mean",
    "noise",
    "shuffle",
    "take",
    "off",
    "drop_heads",
    "keep_heads",
    "causal",
    "window",
    "close",
}
ALL |= {"unscale", "shuffle_positions", "parameter scale", "replace"}


@pytest.mark.parametrize(
    ("name", "own"), [("vit", {"hide"}), ("nanogpt", {"mask_words", "bidirectional", "prefix", "open"})]
)
def test_each_kind_of_change_is_compared_with_plain_pytorch(runs, name, own, monkeypatch):
    assert run_comparison(runs[name], monkeypatch) == (ALL | own, [])


@pytest.mark.parametrize(
    ("module", "function", "mistake", "problem"),
    [
        (kinds, "_scale", lambda x, factor: 2 * x * factor, "scale(-0.5) of"),
        (kinds, "_mask_heads", lambda x, axis, heads, dropped: x, "keep_heads(0) of"),
        (kinds, "_take", lambda x, source: x, "take(embedding) of"),
        (kinds, "_shuffle_positions", lambda x, tokens, axis, seed: x, "shuffle_positions(2) of 'position'"),
        (kinds, "_causal", lambda scores: 2 * scores, "causal of"),
        (kinds, "_window", lambda scores, places: scores, "window(2) of"),
        (kinds, "_close", lambda scores, keys, queries: kinds._cells(scores, queries, keys) + scores, "close(0;2) of"),
        (kinds, "_recompute", lambda scores, *operands, source: scores, "bidirectional of"),
        (kinds, "_prefix", lambda scores, *operands, length, source: source(scores, *operands), "prefix(2) of"),
        (kinds, "_open", lambda scores, *operands, keys, queries, source: scores, "open(2;0) of"),
        (of_inputs.MaskWords, "change", lambda self, inputs, sizes, card: inputs, "mask_words(0;0) of 'text'"),
        (of_inputs.Permute, "change_net", lambda self, net: net, "permute(1) leaves"),
        (head_effects, "_switch_heads", lambda x, layer, switch, axis: x, "the output without head 0"),
        (LogitLens, "_stream", lambda self, depth: self._exact(self.depths[-1].id), "the lens after"),
    ],
)
def test_a_change_that_is_not_what_it_says_is_found(runs, module, function, mistake, problem, monkeypatch):
    run = runs["nanogpt"]
    run.model._changed.clear()
    monkeypatch.setattr(module, function, mistake)
    try:
        problems = [found for check in CHECKS for found in check(run)]
    finally:
        run.model._changed.clear()
    assert any(found.startswith(problem) for found in problems), problems
