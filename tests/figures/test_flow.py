"""Pipeline as a picture: steps side by side, lines that reach back, and parts that a run leaves out."""

import json
import re
from dataclasses import replace
from html import unescape
from itertools import pairwise
from math import prod

import pytest

from tests.support.sweeping import cases
from tracer import models
from tracer.expr import tensors
from tracer.figures import pipeline
from tracer.figures.pipeline import circuit
from tracer.record import Op, Step, Symbol, TensorRecord, Trace


def wires(html: str) -> list[dict]:
    """Return the lines of a picture, each with the boxes that it joins, its corners, and its width."""
    return [one for found in re.findall('data-wires="([^"]*)"', html) for one in json.loads(unescape(found))]


def wire_pairs(html: str) -> set[tuple[str, str]]:
    """Return pairs of steps and inputs that lines join; a stand-in for a step of elsewhere is that step."""
    pairs = [(one["from"].removeprefix("from ").partition(" to ")[0], one["to"]) for one in wires(html)]
    return {(source, target) for source, target in pairs if not target.startswith("to ")}


def flowing(*lines: tuple) -> Trace:
    """Return a run of one op per step, from lines of (id, layer, symbol, operands): ids of steps or names of inputs."""
    at = {id: index for index, (id, *_) in enumerate(lines)}
    shape = {"shape": (2, 3), "dtype": "float32", "symbolic": ("B", "C")}
    ops, steps = [], []
    for id, layer, symbol, *takes in lines:
        taken = tuple(TensorRecord(maker=at.get(name, name), **shape) for name in takes)
        made = (TensorRecord(maker=at[id], **shape),)
        ops.append(Op(at[id], "", 0, "add", "add", None, taken, made, step=id))
        what = id.rstrip("01")
        steps.append(
            Step(id, what, layer, f"<{what}>", symbol, "x", ("B", "C"), (2, 3), 0.0, False, None, (at[id],), "why",
                 reads=tuple(takes))
        )  # fmt: skip
    return Trace("hand", ops=tuple(ops), steps=tuple(steps), symbols=(Symbol("L", "blocks", 2),))


def blocks(tower: str, start: str, *mask: str) -> list[tuple]:
    """Return two blocks, each of scores, which read the mask, and a sum that reaches back to the block's input."""
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
    taken = trace.producers
    assert (taken["first"], taken["k"], taken["sum"]) == (("input image",), ("first",), ("scores", "first"))
    html = pipeline.pipeline(trace)
    assert "The one block" in html and "times" not in html
    assert "input image</span>" in html
    assert wire_pairs(html) >= {("first", "q"), ("first", "k"), ("q", "scores"), ("k", "scores"), ("scores", "sum")}
    assert ("first", "sum") in wire_pairs(html)
    assert "[<i>B</i>, <i>C</i>]" in html and "[2, 3]" in html
    assert "&lt;first&gt;" in html  # titles out of a file are escaped
    assert "<first>" not in html


def test_a_mask_comes_in_from_the_side_of_the_step_that_takes_it():
    trace = flowing(
        ("first", None, r"\mathbf{X}^{(0)}", "input tokens"),
        ("mask", None, r"\mathbf{M}"),
        *blocks("", "first", "mask"),
    )
    drawn_lanes, sides = pipeline.lanes(trace.steps, trace.producers)
    assert [step.id for step in drawn_lanes[0].steps] == ["first", ".scores0", ".sum0", ".scores1", ".sum1"]
    assert {id: [lane.steps[0].id for lane in found] for id, found in sides.items()} == {".scores0": ["mask"]}
    html = pipeline.pipeline(trace)
    assert re.findall('data-step="([^"]+)"', html) == ["first", "mask", ".scores0", ".sum0"]
    assert ("mask", ".scores0") in wire_pairs(html)


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
    (whole,), sides = pipeline.lanes(trace.steps, trace.producers)
    assert [step.id for step in whole.steps] == ["compare"]
    assert [lane.steps[0].id for lane in whole.parts] == ["image", "text"]
    assert set(sides) == {"t.scores0", "token"}
    html = pipeline.pipeline(trace)
    assert html.count('<div class="lane">') == 2
    titles = ["From the input image", "From the input tokens", "From the towers to the answer"]
    assert [title for title in re.findall("<h3>(.*?)</h3>", html) if title in titles] == titles
    assert html.count("run 2 times") == 2


def test_a_block_says_what_any_block_takes_and_not_what_the_first_one_took():
    trace = flowing(("first", None, r"\mathbf{X}_0", "input image"), *blocks("t", "first"))
    html = pipeline.pipeline(trace)
    (block,) = re.findall('<details class="block">.*?</details>', html)
    assert "<span><b>X</b><sup>t(ℓ-1)</sup></span>" in block and "<b>X</b><sub>0</sub>" not in block
    assert "next block" in block
    assert "run <i>L</i> = 2 times" in html


MODELS = "vit", "nanogpt", "clip", "transformer", "mae"


@pytest.mark.parametrize("name", cases(MODELS, ("nanogpt", "clip")))
def test_the_lines_are_those_of_the_equations_and_none_ends_in_nothing(name):
    """The picture goes by the record; here the lines of the book are asked, which tensors their equations name."""
    trace = models.load(name).trace()
    book = {found.line.tensor.key: found.line for found in trace.later.derived_steps}
    takes = {
        line.id: {book[one.key].id if one.key in book else one.key for one in tensors(line.equation)}
        for line in book.values()
    }
    html = pipeline.pipeline(trace)
    drawn = wire_pairs(html)
    shown = set(re.findall('data-step="([^"]+)"', html))
    known = {line.id for line in book.values()}
    for step in shown:
        named = {one for one in takes[step] if one in known or one.startswith("input ")}
        assert {source for source, target in drawn if target == step} == named, step
    assert {(one["from"]) for one in wires(html)} >= shown  # each box has a way on, and all but what is given a way in
    sizes = {step.id: prod(step.shape) for step in trace.steps}
    most = max(sizes.values())
    for one in wires(html):
        if one["from"] in sizes:
            assert one["wide"] == pytest.approx(max(1, 10 * sizes[one["from"]] / most), abs=0.01)


def test_a_residual_stream_is_one_straight_line_and_values_go_around_the_scores():
    nodes = "x norm q k v s a h o sum".split()
    takes = {"norm": "x", "q": ["norm"], "k": ["norm"], "v": ["norm"], "s": "qk", "a": "s", "h": "av", "o": "h"}
    found = circuit(nodes, {**takes, "sum": "xo"})
    lines = {(wire.source, wire.target): wire.points for wire in found.wires}
    assert lines["x", "sum"] == ((0, 0), (0, 7)) and found.places["sum"] == (0, 7)
    assert {found.places[one][1] for one in "qkv"} == {2} and len({found.places[one][0] for one in "qkv"}) == 3
    (_, _), (lane, rank), end = lines["v", "h"]
    assert lane == found.places["v"][0] and (end, rank) == ((found.places["h"][0], 5), 5)
    for at, rank in found.places.values():  # no line goes through a box on its way
        for points in lines.values():
            for (a, top), (b, bottom) in pairwise(points):
                assert not (a == b and abs(a - at) < 1 and top < rank < bottom)


def test_lines_of_different_tensors_do_not_run_on_one_another():
    found = circuit(list("abcd"), {"c": "ab", "d": "ab"})
    across = {wire.source: {y for _, y in wire.points if y % 1} for wire in found.wires}
    assert across["a"] and across["b"] and not across["a"] & across["b"]
