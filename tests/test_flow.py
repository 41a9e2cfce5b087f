"""The pipeline as a picture: what stands side by side, what reaches back, and what a run leaves out."""

import re
from dataclasses import replace

from tracer.figures import flow, pipeline
from tracer.record import Op, Step, Symbol, TensorRecord, Trace


def flowing(*lines: tuple) -> Trace:
    """A run of one op a step, from lines of (id, layer, symbol, what it takes): ids of steps or names of inputs."""
    at = {id: index for index, (id, *_) in enumerate(lines)}
    shape = {"shape": (2, 3), "dtype": "float32", "symbolic": ("B", "C")}
    ops, steps = [], []
    for id, layer, symbol, *takes in lines:
        taken = tuple(TensorRecord(maker=at.get(name, name), **shape) for name in takes)
        made = (TensorRecord(maker=at[id], **shape),)
        ops.append(Op(at[id], "", 0, "add", "add", None, taken, made, step=id))
        what = id.rstrip("01")
        steps.append(
            Step(id, what, layer, f"<{what}>", symbol, "x", ("B", "C"), (2, 3), 0.0, False, None, (at[id],), "why")
        )
    return Trace("hand", ops=tuple(ops), steps=tuple(steps), symbols=(Symbol("L", "blocks", 2),))


def blocks(tower: str, start: str, *mask: str) -> list[tuple]:
    """Two blocks, each of scores, which take the mask, and a sum that reaches back to what came into the block."""
    out = []
    for layer in (0, 1):
        scores, total, block = f"{tower}.scores{layer}", f"{tower}.sum{layer}", f"^{{{tower} ({layer + 1})}}"
        out += [(scores, layer, r"\mathbf{S}" + block, start, *mask)]
        out += [(total, layer, r"\mathbf{X}" + block, scores, start)]
        start = total
    return out


def test_what_stands_side_by_side_and_what_reaches_back_is_read_from_the_run():
    trace = flowing(
        ("first", None, r"\mathbf{X}", "input image"),
        ("q", 0, "Q", "first"),
        ("k", 0, "K", "first"),
        ("scores", 0, "S", "q", "k"),
        ("sum", 0, "R", "scores", "first"),
    )
    trace = replace(trace, steps=tuple(replace(step, stage="attention") for step in trace.steps))
    taken = flow.sources(trace)
    assert (taken["first"], taken["k"], taken["sum"]) == (("input image",), ("first",), ("scores", "first"))
    groups = flow.groups(trace.steps, taken)
    assert [[step.id for step in group] for group in groups] == [["first"], ["q", "k"], ["scores"], ["sum"]]
    html = pipeline.pipeline(trace)
    assert "The one block" in html and "times" not in html
    assert "input image</span>" in html and "with <b>X</b>" in html
    assert "[<i>B</i>, <i>C</i>]" in html and "[2, 3]" in html
    assert "&lt;first&gt;" in html  # titles out of a file are escaped
    assert "<first>" not in html


def test_ops_that_only_lead_to_a_step_are_looked_through():
    trace = flowing(("first", None, "X", "input image"), ("second", None, "Y", "first"))
    shape = {"shape": (2, 3), "dtype": "float32", "symbolic": ("B", "C")}
    way = Op(2, "", 0, "view", "view", None, (TensorRecord(maker="input image", **shape),), (), step="second")
    ops = (*trace.ops, replace(trace.ops[1], index=3, inputs=(TensorRecord(maker=2, **shape),)))
    steps = (trace.steps[0], replace(trace.steps[1], ops=(2, 3)), replace(trace.steps[1], id="third", ops=(4,)))
    last = replace(trace.ops[1], index=4, inputs=(TensorRecord(maker=2, **shape),), step="third")
    taken = flow.sources(replace(trace, ops=(*ops, way, last), steps=steps))
    assert taken["third"] == ("input image",)  # op 2 belongs to the second step, but is not its tensor


def test_a_mask_comes_in_from_the_side_of_the_step_that_takes_it():
    trace = flowing(
        ("first", None, r"\mathbf{X}^{(0)}", "input tokens"),
        ("mask", None, r"\mathbf{M}"),
        *blocks("", "first", "mask"),
    )
    lanes, sides = flow.lanes(trace.steps, flow.sources(trace))
    assert [step.id for step in lanes[0].steps] == ["first", ".scores0", ".sum0", ".scores1", ".sum1"]
    assert {id: [lane.steps[0].id for lane in found] for id, found in sides.items()} == {".scores0": ["mask"]}
    html = pipeline.pipeline(trace)
    assert re.findall('data-step="([^"]+)"', html) == ["first", "mask", ".scores0", ".sum0"]
    assert re.search(r'<div class="side"><button[^>]*data-step="mask".*?down.*?data-step=".scores0"', html)


def test_two_towers_are_two_lanes_that_meet():
    trace = flowing(
        ("image", None, "X_0", "input image"),
        *blocks("i", "image"),
        ("mask", None, r"\mathbf{M}"),
        ("text", None, "X_0", "input tokens"),
        *blocks("t", "text", "mask"),
        ("end", None, "e", "input tokens"),
        ("token", None, "x", "t.sum1", "end"),
        ("compare", None, "C", "i.sum1", "token"),
    )
    (whole,), sides = flow.lanes(trace.steps, flow.sources(trace))
    assert [step.id for step in whole.steps] == ["compare"]
    assert [lane.steps[0].id for lane in whole.parts] == ["image", "text"]
    assert set(sides) == {"t.scores0", "token"}
    html = pipeline.pipeline(trace)
    assert html.count('<div class="lane">') == 2
    titles = ["From the input image", "From the input tokens", "Where they meet, to the answer"]
    assert [title for title in re.findall("<h4>(.*?)</h4>", html) if title in titles] == titles
    assert html.count("run 2 times") == 2


def test_a_block_says_what_any_block_takes_and_not_what_the_first_one_took():
    trace = flowing(("first", None, r"\mathbf{X}_0", "input image"), *blocks("t", "first"))
    html = pipeline.pipeline(trace)
    assert "with <b>X</b><sup>t(ℓ-1)</sup>" in html and "with <b>X</b><sub>0</sub>" not in html
    assert "run <i>L</i> = 2 times" in html


def test_a_fused_op_hides_no_step_from_the_picture():
    trace = flowing(
        ("q", None, r"\mathbf{Q}", "input x"), ("v", None, r"\mathbf{V}", "input x"), ("h", None, "H", "q", "v")
    )
    q, v, h = trace.steps
    inner = replace(q, id="a", symbol=r"\mathbf{A}", latex=r"\mathbf{A} = f(\mathbf{Q})", recomputed=True, ops=())
    steps = (q, v, inner, replace(h, latex=r"H = \mathbf{A} \mathbf{V}"))
    taken = flow.sources(replace(trace, steps=steps))
    assert taken["a"] == ("q",) and set(taken["h"]) == {"a", "v"}
