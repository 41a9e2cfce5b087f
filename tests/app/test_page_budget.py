"""Saved runs of the maximum size: every page shows them in words or in part, and sends no more than a few MB."""

from dataclasses import replace

import pytest
import torch
from streamlit.runtime.scriptrunner_utils.script_run_context import ScriptRunContext

from tests.app.test_app import PAGES, open_page, text, upload
from tests.security.test_bounded_files import encode_trace, lone
from tests.support.handmade import sample
from tests.support.sweeping import cases
from tracer.figures.drawing import PAGE
from tracer.record import Op, Picture, Segment, Step, Symbol, TensorRecord, Trace

SIDE = 2000


def ops(count: int, **changes) -> tuple[Op, ...]:
    """Return a chain of operations, each on the previous result and on an input of its own."""
    out = TensorRecord((2, 3), "float32", 0)
    return tuple(
        Op(i, f"blocks.{i // 9}.attention", 1, "aten.add", "add", None,
           (replace(out, maker=max(0, i - 1)), replace(out, maker=f"input {i}")), (replace(out, maker=i),), **changes)
        for i in range(count)
    )  # fmt: skip


def steps(count: int, **changes) -> tuple[Step, ...]:
    """Return steps whose equations name many symbols of others."""
    right = " ".join(f"b_{{{i}}}" for i in range(200))
    made = Step("", "mlp", None, "One", "a", f"a = {right}", ("?", "?"), (2, 3), None, True, None, (), "")
    return tuple(
        replace(made, id=f"s{i}", symbol=f"b_{{{i}}}", layer=i // 500, ops=(i,), **changes) for i in range(count)
    )


def attentive(tokens: int, records: int = 1) -> Trace:
    run = lone(torch.randn(1, 1, tokens, 2), torch.randn(1, 1, tokens, 2), 1)
    return replace(run, attentions=tuple(replace(run.attentions[0], layer=i) for i in range(records)))


def trace_with_picture() -> Trace:
    """Return a run whose attention is lost, with 100 × 100 patches of a picture of noise."""
    noise = torch.randint(255, (SIDE, SIDE, 3), dtype=torch.uint8)
    record = replace(sample().attentions[1], queries=10_001, keys=10_001)
    return sample(
        values={**sample().values, "photo": noise}, picture=Picture("photo", (0.0, 0.0, SIDE, SIDE), 100, 100, 1),
        attentions=(record,), segments=(Segment("CLS", 0, 1), Segment("image", 1, 10_001)),
        symbols=(*(s for s in sample().symbols if s.name not in "HWPN"), Symbol("H", "", SIDE), Symbol("W", "", SIDE),
                 Symbol("N", "", 4)),
    )  # fmt: skip


def result(**fields) -> Trace:
    return sample(result=fields)


LARGE = {
    "30,000 tokens": lambda: attentive(30_000),
    "1,200 tokens": lambda: attentive(1200),
    "700 tokens, 64 blocks": lambda: attentive(700, 64),
    "120 tokens, 1,024 blocks": lambda: attentive(120, 1024),
    "10,000 patches": trace_with_picture,
    "9,000 operations": lambda: Trace("x", ops(9000)),
    "3,000 steps": lambda: Trace("x", ops(3000), steps(3000)),
    "2,000 steps that take what came before": lambda: Trace(
        "x", ops(2000), steps(2000, recomputed=False, latex="a = b")
    ),
    "an empty tensor": lambda: sample(
        values={**sample().values, "scores": torch.empty(0, 2, 5, 5)},
        steps=(replace(sample().steps[0], shape=(0, 2, 5, 5), symbolic=("?",) * 4, product=None),),
        ops=tuple(replace(op, step=None) for op in sample().ops),
    ),
    "a scalar": lambda: sample(
        values={**sample().values, "scores": torch.tensor(1.0)},
        steps=(replace(sample().steps[0], shape=(), symbolic=(), product=None),),
        ops=tuple(replace(op, step=None) for op in sample().ops),
    ),
    "a large tensor": lambda: sample(
        values={**sample().values, "big": torch.ones(1, 20_000_000, dtype=torch.bool)},
        steps=(replace(sample().steps[0], value="big", shape=(1, 20_000_000), symbolic=("?", "?"), product=None),),
        ops=tuple(replace(op, step=None) for op in sample().ops),
    ),
    "a hundred thousand classes": lambda: result(
        kind="classes", classes=["x" * 20 + str(i) for i in range(100_000)], probabilities=[0.0] * 100_000
    ),
    "a class of 90,000 letters": lambda: result(kind="classes", classes=["x" * 90_000] * 9, probabilities=[0.1] * 9),
    "a map of long names": lambda: result(
        kind="labels", classes=["x" * 90_000], labels=[[0] * 300] * 300, shares=[1.0]
    ),
    "a map of many classes": lambda: result(
        kind="labels", classes=[str(i) for i in range(40_000)], labels=[list(range(200))] * 200, shares=[0.0] * 40_000
    ),
    "a large drawing": lambda: result(
        kind="reconstruction", pixels=[[[0.5] * 3] * 390] * 390, anomaly=[[0.1] * 390] * 390, visible=[]
    ),
    "a long text": lambda: result(
        kind="tokens", text=["a"] * 90_000, tokens=["b" * 5] * 90_000, probabilities=[0.5] * 90_000
    ),
    "a result of nothing": lambda: result(kind="tokens", text=3, tokens=None),
    "an answer that is not a list": lambda: result(kind="caption", caption=3, tokens=[], pointing=3),
}  # fmt: skip

MORE = (
    "1,200 tokens", "10,000 patches", "9,000 operations", "a scalar", "a class of 90,000 letters", "a large drawing",
    "a map of long names", "a long text", "700 tokens, 64 blocks", "3,000 steps", "a map of many classes",
    "120 tokens, 1,024 blocks", "2,000 steps that take what came before",
)  # fmt: skip
"""Those that only the sweep tries: another like it is tried always."""


@pytest.mark.parametrize("name", cases(LARGE, LARGE.keys() - MORE))
def test_every_page_shows_it_within_its_budget(name, monkeypatch):
    sent, plainly = [], ScriptRunContext.enqueue
    monkeypatch.setattr(
        ScriptRunContext, "enqueue", lambda self, msg: (sent.append(msg.ByteSize()), plainly(self, msg))
    )
    at = upload(open_page(), encode_trace(LARGE[name]()), "large.safetensors")
    for page in PAGES:
        sent.clear()
        at.switch_page(page).run()
        assert not at.exception and not at.error, page
        assert sum(sent) <= PAGE, page
    assert text(at)
