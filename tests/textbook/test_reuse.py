"""Equations derived from a run at one size are reused at others, where they are verified; else derived anew."""

from dataclasses import replace

import pytest

import tracer
from tests.support.sweeping import cases
from tracer.expr.arithmetic import Scaled
from tracer.expr.function_call import Scalar
from tracer.textbook import derivation

SMALL = {"D": 12, "h": 2, "d_ff": 10, "L": 2}
CASES = {
    "nanogpt": ({**SMALL, "T_max": 60}, ("to be or not to", "what light through yonder window")),
    "llama": ({**SMALL, "h_kv": 1}, ("to be or not to", "what light through yonder window")),
    "vit-text": ({**SMALL, "H": 12, "W": 8, "P": 4, "V": 19}, ("a large red circle", "a red circle")),
    "transformer": (SMALL, ("abcdefg", "abcdefghi")),
}


def steps(name: str, texts: tuple[str, ...]) -> tuple:
    model = tracer.load(name, **CASES[name][0])
    return tuple(model.trace(text=text).steps for text in texts)[-1]


@pytest.fixture(autouse=True)
def empty():
    """Clear the books of other tests."""
    derivation._books.clear()
    derivation._lenders.clear()


@pytest.mark.parametrize("name", cases(CASES, ("nanogpt", "transformer")))
def test_lent_is_what_would_be_derived(name, monkeypatch):
    """At another length, one book for both is word for word that of the second alone."""
    derived, real = [], derivation._derive
    monkeypatch.setattr(derivation, "_derive", lambda *given: derived.append(real(*given)) or derived[-1])
    lent = steps(name, CASES[name][1])
    assert len(derived) == 1
    derivation._books.clear()
    derivation._lenders.clear()
    alone = steps(name, CASES[name][1][1:])
    assert len(derived) == 2
    assert [replace(step, error=None, margin=None) for step in lent] == [
        replace(step, error=None, margin=None) for step in alone
    ]


def test_lent_and_wrong_is_derived_anew():
    """A book that does not hold for the second run is not shown there."""
    model = tracer.load("nanogpt", **CASES["nanogpt"][0])
    first, second = CASES["nanogpt"][1]
    model.trace(text=first)
    lender = derivation._lenders.values()[0]
    place = next(i for i, step in enumerate(lender.book.steps) if step.line.id == "block1.attention.scores")
    step = lender.book.steps[place]
    lender.book.steps[place] = step._replace(line=replace(step.line, equation=Scaled(Scalar(2), step.line.equation)))
    trace = model.trace(text=second)
    assert {step.verdict for step in trace.steps} == {"verified"}
    assert trace.steps == tracer.load("nanogpt", **CASES["nanogpt"][0]).trace(text=second).steps


def test_not_lent_where_sizes_were_equal():
    """A run whose length is that of another size lends nothing: the one could be taken for the other."""
    sizes = {"B": 1, "T": 12, "D": 12}
    lender = derivation.ReusableTextbook(None, sizes, derivation.Textbook())
    assert not lender.lends({"B": 1, "T": 13, "D": 12})
    assert derivation.ReusableTextbook(None, {**sizes, "T": 11}, derivation.Textbook()).lends(
        {"B": 1, "T": 13, "D": 12}
    )
    assert not derivation.ReusableTextbook(None, {**sizes, "T": 1}, derivation.Textbook()).lends(
        {"B": 1, "T": 13, "D": 12}
    )
