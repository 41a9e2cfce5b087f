"""Drawings and texts of lessons and tables, read back in a real browser and compared with recomputed values."""

import copy
import re

import numpy as np
import pytest
import torch

import tracer
from tests.app.browser.test_browser import SLOW, quiet, wait_until_settled
from tests.support import oracle
from tests.support.oracle import CELLS, close, draw, number, numbers, open_address, plots, read, run, says, value
from tracer.lessons.training_step import training_step

pytestmark = pytest.mark.browser


@pytest.fixture(autouse=True)
def patience(page) -> None:
    page.set_default_timeout(SLOW)
    page.set_viewport_size({"width": 1400, "height": 1000})


@pytest.mark.sweep
def test_learned_positions_are_as_alike_as_is_said(page):
    table = (
        next(p for name, p in tracer.load("vit").net.named_parameters() if p.shape[-2:] == (65, 128)).detach().double()
    )
    patches = torch.nn.functional.normalize(table.reshape(65, 128)[1:], dim=-1)
    cosines = (patches @ patches.T).numpy()
    open_address(page, "positions?kind=sinusoidal&patch=9", ".likeness .status")
    said = page.locator(".likeness .status")
    for patch in (9, 36, 63):
        page.locator(".likeness .every canvas").click(position=spot(page.locator(".likeness .every canvas"), patch))
        row = cosines[patch].reshape(8, 8)
        picture = read(page.locator(".likeness .one canvas"), draw(CELLS, (8, 8), patch), [".read"], ".stripe")
        low = page.locator(".likeness .one .bar span").first.inner_text()
        oracle.check_colours(picture._replace(labels=[(low, 0.0), ("1", 1.0)]), row)
        for (down, across), (text,) in zip(picture.points, picture.tooltips, strict=True):
            assert text.startswith(f"row {down + 1}, column {across + 1}: cosine ") and close(
                number(text.partition("cosine")[2]), row[down, across]
            )
        others = np.where(np.arange(64) == patch, -2, cosines[patch])
        best = int(others.argmax())
        place = f"The patch in row {patch // 8 + 1}, column {patch % 8 + 1} is most like the one in "
        place += f"row {best // 8 + 1}, column {best % 8 + 1}: "
        assert said.inner_text().startswith(place) and close(number(said.inner_text()[len(place) :]), others.max(), 2)
    stops = picture.stops
    every = read(page.locator(".likeness .every canvas"), [], [])
    tiles = every._replace(stops=stops, labels=[(low, 0.0), ("1", 1.0)]).values()
    for row in range(8):
        for column in range(8):
            tile = tiles[9 * row : 9 * row + 8, 9 * column : 9 * column + 8]
            assert np.abs(tile - cosines[8 * row + column].reshape(8, 8)).max() < 0.03 * (1 - number(low))
    quiet(page)


def spot(canvas, patch: int) -> dict[str, float]:
    """Return the position of a patch's tile on a canvas, from its upper left corner."""
    box = canvas.bounding_box()
    return {"x": (patch % 8 + 0.5) * box["width"] / 8, "y": (patch // 8 + 0.5) * box["height"] / 8}


@pytest.mark.sweep
def test_panels_of_positions_hold_what_their_titles_say(page):
    open_address(page, "positions?kind=sinusoidal", ".panels figure canvas")
    page.locator(".panels figure", has_text="How much each token").wait_for()
    wait_until_settled(page)
    drawn, read_out = {}, {}
    for number_of, figure in enumerate(page.locator(".panels figure").all()):
        canvas, title = figure.locator("canvas"), figure.locator("figcaption").inner_text()
        size = canvas.evaluate("canvas => [canvas.height, canvas.width]")
        points = (
            [(i, j) for i in range(size[0]) for j in range(size[1])] if size[0] < 16 else draw(CELLS, size, number_of)
        )
        low, high = figure.locator(".bar > span").all_inner_texts()
        picture = read(canvas, points, [".read"], ".stripe")._replace(labels=[(low, 0.0), (high, 1.0)])
        drawn[title] = picture.values()
        read_out[title] = {
            point: number(text.rpartition(":")[2]) for point, (text,) in zip(points, picture.tooltips, strict=True)
        }
        edge = number(high) - number(low)
        for point, text in read_out[title].items():
            assert abs(text - drawn[title][point]) < 0.02 * edge, (title, point)
        for (i, j), (text,) in zip(points, picture.tooltips, strict=True):
            place = numbers(text.rpartition(":")[0])  # on screen they count from 1
            assert place[-1] == j + 1 and (size[0] < 16 or place[0] == i + 1), (title, text)
    rate = 10000.0 ** (-np.arange(0, 32, 2) / 32)
    angles = np.arange(16)[:, None] * rate
    table = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(16, 32)
    for title, expected in (("The table P", table), ("P times itself: PPᵀ", table @ table.T)):
        for point, shown in read_out[title].items():
            assert abs(shown - expected[point]) < 0.01 * np.abs(expected).max(), (title, point)
    names = list(drawn)
    total = sum(drawn[name] for name in names[2:6])
    assert (
        np.abs(total - drawn["their sum"]).max() < 0.1 * edge + 0.3
        and np.abs(drawn["their sum"] - drawn["the scores S that ran"]).max() < 0.1
    )
    order = read_out["How much each token’s output changed"]
    rows = page.locator("[data-testid=stTable] tbody tr, table tbody tr").all_inner_texts()
    largest = [number(row.split("\t")[1]) for row in rows if "×" in row][:4]
    for row, most in enumerate(largest):
        assert close(max(shown for (i, _), shown in order.items() if i == row), most, 2)
    check_penalty(page)
    quiet(page)


def check_penalty(page) -> None:
    """Check the curves of ALiBi: each head subtracts its own slope times the distance from one score, wherever a pair
    is."""
    page.get_by_test_id("stButtonGroup").get_by_text("ALiBi", exact=True).click()
    page.get_by_text("A penalty grows with the distance").wait_for()
    wait_until_settled(page)
    (band, *lines), *_ = plots(page)
    assert [line["name"] for line in lines] == [f"head {head}" for head in range(1, 5)]
    for head, place in draw(CELLS, (4, 31), 7):
        line = lines[head]
        distance, slope = line["x"][place], 2.0 ** (-8 * (head + 1) / 4)
        assert distance == place - 15
        fall = line["y"][15] - line["y"][place]
        assert abs(fall - slope * abs(distance)) < 1e-4, (head, distance, fall)
    assert np.allclose(band["y"][:31], lines[0]["y"], atol=1e-5) and np.allclose(
        band["y"][:30:-1], lines[0]["y"], atol=1e-5
    )


def test_the_loss_of_each_token_is_its_colour_its_title_and_in_the_mean(page):
    model, trace = tracer.load("nanogpt"), run("nanogpt")
    (ids,) = model.inputs()
    logits = torch.as_tensor(trace.output).double()
    losses = torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:], reduction="none").numpy()
    open_address(page, "loss?model=nanogpt", ".loss-text span")
    letters = page.locator(".loss-text span").evaluate_all(
        "all => all.map((one) => [one.textContent, one.title, getComputedStyle(one).backgroundColor])"
    )
    ends = page.locator(".loss-scale").evaluate(
        "box => [box.innerText, getComputedStyle(box.children[1]).backgroundImage]"
    )
    deepest, guess = float(re.findall(r"rgba\(.*?, ([\d.]+)\)", ends[1])[-1]), numbers(ends[0])[1]
    assert close(guess, np.log(logits.shape[-1])) and len(letters) == len(trace.words)
    for (letter, title, colour), word, loss in zip(letters[1:], trace.words[1:], losses, strict=True):
        assert letter == word or word == "\n"
        probability, minus_log = (number(part.partition("= ")[2]) for part in title.split(": ")[-1].split(", "))
        assert close(minus_log, loss) and close(probability, np.exp(-loss))
        alpha = float(re.match(r"rgba\(.*, ([\d.]+)\)", colour)[1])
        assert abs(alpha / deepest * guess - min(loss, guess)) < 0.02
    page.locator("[data-testid=stMetricValue]").nth(6).wait_for()
    metrics = page.locator("[data-testid=stMetricValue]").all_inner_texts()
    mean, perplexity, chance, _, before, norm, after = map(number, metrics)
    assert close(mean, losses.mean()) and close(perplexity, np.exp(losses.mean())) and close(chance, guess)
    step = training_step(model.net, (ids,), ids, trace)
    assert close(before, losses.mean()) and close(norm, step.squared_norm**0.5) and close(after, step.at(0.01).after)
    worst = int(losses.argmax())
    sentence = page.get_by_text("The model expected").inner_text()
    assert f"The model expected {trace.words[worst + 1]!r} least (token {worst + 2}) " in sentence
    assert says(sentence.partition("gave it ")[2].partition("%")[0] + "%", np.exp(-losses[worst]))
    check_gradients(page, model.net, trace, ids)
    _, curves = plots(page)
    assert [line["name"] for line in curves] == ["measured", "predicted: L − η‖∇L‖²"]
    for line, shown in zip(curves, ("after", "prediction"), strict=True):
        assert line["x"] == [descent.rate for descent in step.descents]
        assert np.allclose(line["y"], [getattr(descent, shown) for descent in step.descents], rtol=1e-3, atol=1e-3)
    quiet(page)


def check_gradients(page, net, trace, ids: torch.Tensor) -> None:
    """Check the chart of gradients and the sentence below it, with a Jacobian for each branch, in float64."""
    net, T = copy.deepcopy(net).double(), ids.shape[1]
    streams = [value(trace, "position")] + [value(trace, f"block{number}.mlp.residual") for number in range(1, 5)]
    last = streams[-1].requires_grad_()
    logits = net.norm(last) @ net.tokens.weight.mT
    loss = torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:])
    (whole,) = torch.autograd.grad(loss, last)
    expected, branches = [(whole.norm(), whole.norm())], whole
    mask = torch.full((T, T), -torch.inf, dtype=torch.float64).triu(1)
    for block, entering in reversed(list(zip(map(net.get_submodule, net.blocks), streams, strict=False))):
        entering = entering.detach()
        attention = lambda x, block=block: block.attention(block.norm1(x), mask)  # noqa: E731
        mlp = lambda x, block=block: block.mlp(block.norm2(x))  # noqa: E731
        between = (entering + attention(entering)).detach()
        for part, at in ((mlp, between), (attention, entering)):
            back = lambda gradient, part=part, at=at: torch.autograd.functional.vjp(part, at, gradient)[1]  # noqa: E731
            whole, branches = whole + back(whole), back(branches)
        expected.insert(0, (whole.norm(), branches.norm()))
    page.locator(".js-plotly-plot .scatterlayer .trace").nth(3).wait_for()
    lines, _ = plots(page)
    assert [line["name"] for line in lines] == ["with the residual path", "through attention and MLPs only"]
    for line, numbers_of in zip(lines, zip(*expected, strict=True), strict=True):
        assert line["x"] == list(range(5)) and np.allclose(line["y"], [float(one) for one in numbers_of], rtol=1e-3)
    ratio = float(expected[0][0] / expected[0][1])
    said = page.get_by_text("Each line is one backward pass").inner_text()
    assert close(number(said.rpartition("block, it is ")[2]), ratio) and "times larger with" in said


def shapes(text: str, sizes: dict[str, int]) -> list[list[int]]:
    """Return the shapes in a cell of a table, in symbols, such as `[B, P²·C] [h]`, at these sizes."""
    python = text.replace("·", "*").replace("²", "**2")
    return [[eval(part, {}, sizes) for part in shape.split(",")] for shape in re.findall(r"\[(.*?)\]", python) if shape]


@pytest.mark.sweep
def test_every_operation_stands_in_the_table_with_its_shapes_and_its_cost(page):
    trace = run("vit")
    open_address(page, "operations?zoom=ops&fold=off", ".operations tbody tr")
    heads = page.locator(".operations thead th").all_inner_texts()
    rows = page.locator(".operations tbody tr").evaluate_all(
        "rows => rows.map((row) => [...row.cells].map((cell) => cell.innerText.trim().split(/\\n+/)))"
    )
    assert len(rows) == len(trace.ops)
    column = {name.strip(): place for place, name in enumerate(heads)}
    sizes = {size.name: size.value for size in trace.symbols}
    for op, cells in zip(trace.ops, rows, strict=True):
        cell = {name: cells[place] for name, place in column.items()}
        assert cells[0][-1].removeprefix(str(op.index)).strip() == op.op, cells
        for name, tensors in (("inputs", op.inputs), ("outputs", op.outputs)):
            assert shapes(cell[name][0], sizes) == [list(one.shape) for one in tensors], (op, cell[name])
        assert number(cell["parameters"][0]) == op.params and number(cell["FLOP"][0] or "0") == (op.flops or 0)
    quiet(page)


@pytest.mark.sweep
def test_the_curves_of_sizes_go_through_the_run(page):
    trace = run("vit")
    open_address(page, "sizes", ".js-plotly-plot .legend, .js-plotly-plot .scatterlayer")
    parts = {
        "Q, K, V and output projections": r"attention\.(query|key|value|output|projection)",
        "QKᵀ": r"attention\.scores", "Weighted sum of values": r"attention\.context",
        "MLP": r"\.mlp\.|\.feed", "Embedding and head": r"^(embedding|logits|patches)$",
    }  # fmt: skip
    flops = dict.fromkeys(parts, 0)
    for op in trace.ops:
        if op.flops:
            flops[next(name for name, pattern in parts.items() if re.search(pattern, op.step))] += op.flops
    assert sum(flops.values()) == trace.flops
    curves = page.locator(".js-plotly-plot").evaluate_all(
        "plots => plots.map((plot) => plot.data.map(({ name, x, y }) => [name, [...x], [...y]]))"
    )
    sizes = {size.name: size.value for size in trace.symbols}
    for plot, now in zip(curves, (sizes["N"], sizes["D"]), strict=True):
        for name, x, y in plot:
            share = np.interp(now, x, y)
            assert (
                abs(share / (100 if max(map(max, (y for _, _, y in plot))) > 1 else 1) - flops[name] / trace.flops)
                < 2e-3
            ), name
    shown = page.locator("[data-testid=stMetricValue]").all_inner_texts()[:2]
    counted = sum(one.numel() for one in tracer.load("vit").net.parameters()), trace.flops
    assert [close(number(text) * 1e6, count) for text, count in zip(shown, counted, strict=True)] == [True, True]
    check_tooltips(page, sizes)
    quiet(page)


UNITS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def costs(N: int, D: int, sizes: dict[str, int]) -> dict[str, float]:
    """Return the FLOPs of vit by its parts, counted by hand: 2 for each multiply-add."""
    n, hidden, each = N + 1, sizes["d_ff"] * D // sizes["D"], 2 * sizes["L"] * sizes["B"]
    return {
        "Q, K, V and output projections": each * 4 * n * D * D,
        "QKᵀ": each * n * n * D,
        "Weighted sum of values": each * n * n * D,
        "MLP": each * 2 * n * D * hidden,
        "Embedding and head": 2 * sizes["B"] * (N * sizes["P"] ** 2 * sizes["C"] * D + D * sizes["K"]),
    }


def check_tooltips(page, sizes: dict[str, int]) -> None:
    """Check the tooltips of points on the curves."""
    page.set_viewport_size({"width": 1400, "height": 1600})
    for which, name in enumerate(("N", "D")):
        plot = page.locator(".js-plotly-plot").nth(which)
        box = plot.locator(".nsewdrag").bounding_box()
        seen = set()
        for place in range(CELLS // 2):
            page.mouse.move(box["x"] + (place + 0.5) * box["width"] / (CELLS // 2), box["y"] + 0.4 * box["height"])
            plot.locator(".hoverlayer text").first.wait_for()
            page.wait_for_timeout(60)  # what is read may be of the place before: it says which one it is of
            at, *lines = plot.locator(".hoverlayer text").all_text_contents()
            size = round(number(at.replace("k", "")) * (1000 if "k" in at else 1))
            seen.add(at)
            expected = costs(**{"N": sizes["N"], "D": sizes["D"], name: size}, sizes=sizes)
            whole = sum(expected.values())
            for line in lines:
                part, _, said = line.partition(" : ")
                share, flops = said.split(", ")
                unit = UNITS[flops.removesuffix("FLOP").split()[-1] if flops.removesuffix("FLOP").split()[1:] else ""]
                assert abs(number(share) - 100 * expected[part] / whole) < 0.06, (name, size, line, expected)
                assert close(number(flops) * unit, expected[part]), (name, size, line, expected)
            assert len(lines) == len(expected)
        assert len(seen) > CELLS // 4


@pytest.mark.sweep
def test_pieces_and_ids_of_tokens_spell_the_sentence(page):
    sentence = "My lord, the naïve 🍕 ate."
    open_address(page, f"tokens?sentence={sentence}", ".cut .pieces")
    cuts = page.locator(".cut").evaluate_all(
        """cuts => cuts.map((cut) => [cut.querySelector("strong").textContent,
          [...cut.querySelectorAll(".facts span")].map((one) => one.textContent),
          [...cut.querySelectorAll(".pieces > span")].map((one) => [one.title, one.querySelector("i").textContent])])"""
    )
    assert len(cuts) == 6
    for name, facts, pieces in cuts:
        count, entries = number(facts[0]), number(facts[1])
        assert count == len(pieces) and close(number(facts[2]), len(sentence) / count, 2), name
        ids = {title: int(numbers(id)[-1]) for title, id in pieces}
        assert all(0 <= id < entries for id in ids.values())
        if name == "Characters":
            stands = [re.search(r"stands for '(.*)'$", title)[1] for title, _ in pieces]
            assert "".join(stands) == sentence
        if name == "Bytes":
            assert b"".join(bytes.fromhex(title.removeprefix("bytes ")) for title, _ in pieces) == sentence.encode()
            assert all(bytes([id]).hex().upper() == title.removeprefix("bytes ") for title, id in ids.items())
        if name == "Byte-level BPE":
            assert b"".join(bytes.fromhex(title.removeprefix("bytes ")) for title, _ in pieces) == sentence.encode()
    quiet(page)


@pytest.mark.sweep
def test_the_marks_of_the_notes_are_those_of_their_cards(page):
    open_address(page, "notes", ".verdicts i")
    counts = {
        name: page.locator(f".verdicts li.{name} b").all_inner_texts()
        for name in ("holds", "sense", "not", "elsewhere")
    }
    whole = int(page.locator(".verdicts p b").inner_text())
    marks = page.locator(".verdicts i").evaluate_all("all => all.map((one) => one.className)")
    assert whole == len(marks) == page.locator(".st-key-statements blockquote").count()
    for name, (shown, *_) in ((name, found) for name, found in counts.items() if found):
        assert marks.count(name) == int(shown)
    words = {"holds": "holds", "sense": "holds with a caveat", "not": "does not hold"}
    badges = page.locator(".st-key-statements blockquote").evaluate_all(
        "all => all.map((one) => one.querySelector('.stMarkdownBadge').textContent)"
    )
    for mark, badge in zip(marks, badges, strict=True):
        assert badge.strip().endswith(words.get(mark, "")), (mark, badge)
    quiet(page)
