"""Drawings and texts of pages, read back in a real browser and compared with the run: canvases, tables, tooltips."""

import re
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image
from playwright.sync_api import expect

from tests.app.browser.test_browser import SLOW, quiet, until
from tests.support import oracle
from tests.support.oracle import CELLS, close, draw, number, numbers, open_address, read, run, says, unpack, value
from tracer.attention.head_effects import _Layout
from tracer.inputs.model_inputs import samples

pytestmark = pytest.mark.browser


@pytest.fixture(autouse=True)
def patience(page) -> None:
    page.set_default_timeout(SLOW)
    page.set_viewport_size({"width": 1400, "height": 1000})


STEP = """() => {
  const find = (selector) => document.querySelector(`.stepper ${selector}`);
  const bare = (node) => [...node.childNodes].filter((one) => !one.querySelector?.(".katex"));
  const words = (node) => bare(node).map((one) => one.textContent);
  const row = (line) => [...line.cells].map((cell) => cell.textContent);
  return {
    title: find(".title").textContent, stage: find(".stage").textContent,
    count: find(".count").textContent, latex: find(".equation annotation").textContent, why: words(find(".why")),
    sizes: find(".sizes annotation").textContent, code: find(".code").textContent,
    verdict: find(".verdict").textContent, kind: find(".verdict").dataset.verdict,
    ops: [...document.querySelectorAll(".stepper .covered tbody tr")].map(row),
  };
}"""


def check_step(page, trace, step, index: tuple[int, ...]) -> None:
    """Check every text of the Trace page on a step, and its heatmap where the leading axes are at `index`."""
    shown = page.evaluate(STEP)
    number_of = trace.steps.index(step) + 1
    assert (shown["title"], shown["stage"], shown["count"]) == (
        step.title,
        step.stage,
        f"{number_of} of {len(trace.steps)}",
    )
    assert shown["latex"] == step.latex
    assert shown["sizes"].replace("\\ ", " ").endswith(f"= {list(step.shape)}") and shown["sizes"].startswith(
        step.symbol
    )
    at = 0
    for words in shown["why"]:  # what is no formula stands in the reason of this very step, in this order
        at = step.why.index(words.strip(), at) + len(words.strip())
    assert len("".join(shown["why"])) > 0.6 * len(re.sub(r"\$[^$]*\$", "", step.why))
    assert shown["kind"] == step.verdict
    if step.error:
        assert any(close(one, step.error, 2) for one in numbers(shown["verdict"])), (
            step.id,
            shown["verdict"],
            step.error,
        )
    elif step.error == 0:
        assert "exactly" in shown["verdict"]
    assert step.source.text.strip() in shown["code"] or not step.ops
    by_index = {op.index: op for op in trace.ops}
    for cells in shown["ops"]:
        op = by_index[int(cells[0])]
        outputs = "  ".join(str(list(one.shape)) for one in op.outputs)
        assert (cells[1], cells[3], cells[7]) == (op.op, outputs, op.module) and int(
            cells[5].replace(",", "")
        ) == op.params
    tensor = value(trace, step.id)
    matrix = tensor[(0,) * (tensor.ndim - 2 - len(index)) + index] if tensor.ndim > 2 else tensor
    cells = matrix.reshape(-1, matrix.shape[-1]).numpy()
    check_heat(page.locator(".stepper canvas.cells"), cells, number_of)
    check_ticks(page.locator(".stepper .ticks.rows").first.evaluate(TICKS, "top"), len(cells))
    columns = page.locator(".stepper .ticks.columns").first.evaluate(TICKS, "left")
    if all(text.isdecimal() for text, _ in columns):  # else they have names
        check_ticks(columns, cells.shape[1])


TICKS = "(box, side) => [...box.children].map((one) => [one.textContent, parseFloat(one.style[side]) / 100])"


def check_ticks(ticks: list[tuple[str, float]], size: int) -> None:
    """Check that the number of each tick, counted from 1, is that of the cell where it stands."""
    numbers_of, places = [int(text) for text, _ in ticks], [place * size for _, place in ticks]
    assert numbers_of[0] == 1
    for said, place in zip(numbers_of, places, strict=True):  # they stand in the middle of a cell, or of some in one
        assert abs((said - 1) - (place - places[0])) < 0.5 + 0.05 * said, ticks


def check_heat(canvas, matrix: np.ndarray, seed: int) -> None:
    """Check the colours of a heatmap on Trace, and the texts of 20 of its cells."""
    rows, columns = matrix.shape
    picture = read(canvas, draw(CELLS, matrix.shape, seed), [".read"], ".stripe", ".ends", flip=True)
    if any("∞" in text for text, _ in picture.labels):
        open_colour = picture.pixels[0, 0]  # the first token may look at itself
        assert ((picture.pixels == open_colour).all(-1) == np.isfinite(matrix)).all()
    else:
        oracle.check_colours(picture, matrix)
    for (row, column), (said,) in zip(picture.points, picture.tooltips, strict=True):
        _, down, _, across, shown = re.fullmatch(r"(.*?) (\d+), (.*?) (\d+): (.*)", said).groups()
        assert (int(down) - 1, int(across) - 1) == (row, column), said  # on screen they count from 1
        assert close(number(shown), matrix[row, column], 3), (said, matrix[row, column])
    assert f"{rows} rows × {columns} columns" in picture.alt
    if "smallest" in picture.alt:
        known = matrix[np.isfinite(matrix)]
        said = numbers(picture.alt.partition("smallest")[2])
        assert all(map(close, said, (known.min(), known.mean(), known.max()), (2, 2, 2))), picture.alt


def test_trace_says_and_draws_each_step_of_a_block(page):
    trace = run("vit")
    open_address(page, "trace?step=block2.norm1", ".stepper .equation .katex")
    first = next(i for i, step in enumerate(trace.steps) if step.id == "block2.norm1")
    for step in trace.steps[first : first + 14]:
        until(page, f"location.search.includes('step={step.id}')")
        check_step(page, trace, step, ())
        page.keyboard.press("ArrowRight")
    open_address(page, "trace?step=block1.attention.weights&index=0.2", ".stepper .equation .katex")
    check_step(page, trace, trace.step("block1.attention.weights"), (2,))
    quiet(page)


@pytest.mark.sweep
def test_terms_of_scores_add_up_on_the_scale_that_is_said(page):
    trace = run("transformer")
    open_address(page, "trace?model=transformer&step=block1.attention.scores&index=0.1", ".stepper .maps canvas")
    scores = value(trace, "block1.attention.scores")[0, 1].numpy()
    said = page.locator(".terms .status").inner_text()
    low, high = re.search(r"from (\S+) to (\S+)\.", said).groups()
    assert said.startswith("Head 2,") and number(low) == -number(high)
    maps, stops = {}, None
    for figure in page.locator(".stepper .maps figure").all():
        picture = read(figure.locator("canvas"), [], [])
        if stops is None:
            bar = read(page.locator(".stepper canvas.cells"), [], [], ".stripe", ".ends", flip=True)
            stops = bar.stops
        shown = picture._replace(stops=stops, labels=[(low, 0.0), (high, 1.0)])
        maps[figure.locator("figcaption").inner_text()] = shown.values()
    names = list(maps)
    assert len(names) == 6 and f"{scores.shape[0]} × {scores.shape[1]}" in picture.alt
    edge = number(high)
    assert np.abs(maps[names[5]] - scores).max() < 0.04 * edge and np.abs(maps[names[4]] - scores).max() < 0.04 * edge
    assert np.abs(sum(maps[name] for name in names[:4]) - scores).max() < 0.1 * edge
    largest = max(names[:4], key=lambda name: (maps[name] ** 2).mean())
    assert f"the largest is {largest}" in said
    quiet(page)


MAP = """(photo) => {
  const root = photo.getRootNode();
  const find = (selector) => root.querySelector(selector);
  const all = (selector) => [...root.querySelectorAll(selector)];
  const texts = (selector) => all(selector).map((one) => one.textContent.trim());
  const heat = find("canvas.heat");
  const bytes = (canvas) => canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const pixels = (canvas) => btoa(Array.from(bytes(canvas), (byte) => String.fromCharCode(byte)).join(""));
  return {
    lead: find(".lead").textContent, top: texts(".top li"), alt: photo.getAttribute("aria-label"), heat: pixels(heat),
    ticks: texts(".over .ticks span"), others: texts(".others button small"), same: texts(".over .same")[0],
    heads: all(".heads button").map((one) =>
      [one.lastChild.textContent, pixels([...one.querySelectorAll("canvas")].at(-2))]),
    table: all(".numbers tbody tr").map((line) => [...line.cells].map((cell) => cell.textContent)),
    title: texts(".heads-title")[0], rule: texts(".rule")[0], python: texts(".python code")[0],
  };
}"""
COLUMNS = 8
"""Columns of patches of vit."""


def patch_name(token: int) -> str:
    """Return the name of a token of vit on screen."""
    return (
        "CLS" if token == 0 else f"patch {token} (row {(token - 1) // COLUMNS + 1}, column {(token - 1) % COLUMNS + 1})"
    )


def check_shade(shown: dict, weights: np.ndarray) -> None:
    """Check that a patch is the brighter the larger its weight is in the row of a query `[tokens]`."""
    light, on_patches = unpack(shown["heat"])[:, 3] / 255, weights[1:]
    assert np.abs(light - on_patches / on_patches.max()).max() < 0.005
    assert says(shown["ticks"][-1], on_patches.max()) and shown["ticks"][0] == "0"


def check_row(shown: dict, weights: np.ndarray) -> None:
    """Check the map over the photo and the lists beside it against the row of a query `[tokens]`."""
    order = np.argsort(-weights, kind="stable")
    best = [patch_name(int(token)) for token in order[:5]]
    for line, name, token in zip(shown["top"], best, order[:5], strict=True):
        assert line.startswith(name) and says(line, weights[token]), (line, name, weights[token])
    check_shade(shown, weights)
    for line in shown["table"]:
        rank, token = int(line[0]), int(line[1]) - 1
        assert order[rank - 1] == token and line[2] == patch_name(token) and says(line[3], weights[token]), line
    assert says(shown["same"], 1 / len(weights))


def check_habits_of_patches(text: str, trace, weights: np.ndarray) -> None:
    """Check what is said of a head of vit over all queries against the measures of Python, by its weights."""
    summary = _Layout(trace, None).describe(torch.from_numpy(weights)[None])
    spread, far, even, special = re.search(
        r"over about ([\d.]+) of 65 keys .* lie ([\d.]+) patch .* it would be ([\d.]+)\. Patches give (\S+\s%)", text
    ).groups()
    assert close(float(spread), np.exp(summary.entropy[0]), 2) and close(float(far), summary.distance[0], 2), text
    assert close(float(even), _Layout(trace, None).distances.mean().item(), 2) and says(special, summary.special[0]), (
        text
    )


def check_photo(screenshot: bytes, photo: Image.Image) -> None:
    """Check that the image under the map is the middle square of a photo, and not its mirror image."""
    side = min(photo.size)
    left, top = ((length - side) // 2 for length in photo.size)
    expected = np.asarray(photo.convert("L").crop((left, top, left + side, top + side)).resize((32, 32)), float).ravel()
    shown = np.asarray(Image.open(BytesIO(screenshot)).convert("L").resize((32, 32)), float)
    alike = [np.corrcoef(expected, one.ravel())[0, 1] for one in (shown, shown[:, ::-1], shown[::-1])]
    assert alike[0] > 0.98 and max(alike[1:]) < 0.9, alike


def test_attention_over_the_photo_is_that_of_the_query_that_is_pointed_at(page):
    weights = value(run("vit"), "block2.attention.weights")[0].numpy()
    open_address(page, "attention?block=2&head=3", ".lead")
    photo, heat = page.locator(".photo"), page.locator("canvas.heat")
    page.locator(".numbers summary").click()
    page.locator(".numbers tbody tr").nth(64).wait_for()
    shown = photo.evaluate(MAP)
    assert shown["lead"] == "Block 2, head 4: CLS attends most to:" and len(shown["table"]) == 65
    check_row(shown, weights[3, 0])
    habits = page.locator(".habits").inner_text()
    assert habits.startswith("Over all 65 queries, head 4 of block 2 "), habits
    check_habits_of_patches(habits, run("vit"), weights[3])
    assert says(shown["others"][0], weights[3, 0, 0]) and shown["others"][0].startswith("CLS gets")
    largest = weights[:, 0, 1:].max()
    assert shown["title"].startswith("All heads of block 2") and says(shown["title"], largest)
    for head, (name, pixels) in enumerate(shown["heads"]):
        assert name == f"head {head + 1}"
        light = unpack(pixels)[:, 3] / 255
        assert np.abs(light - weights[head, 0, 1:] / largest).max() < 0.005
    page.get_by_test_id("stMain").evaluate("main => main.scrollTo(0, 0)")
    for row, column in draw(CELLS, (8, 8), 1):
        token = 1 + 8 * row + column
        box = heat.bounding_box()
        at = box["x"] + (column + 0.5) * box["width"] / 8, box["y"] + (row + 0.5) * box["height"] / 8
        page.mouse.move(*at)
        shown = photo.evaluate(MAP)
        assert shown["lead"] == f"Block 2, head 4: {patch_name(token)} attends most to:"
        assert patch_name(token) in shown["alt"] and shown["rule"].startswith(f"Patch n = {token} of 64,")
        assert shown["python"] == f"trace.attention(layer=1, head=3, query={token})"
        check_row(shown | {"table": shown["table"][::9]}, weights[3, token])
        frame = page.locator(".query").bounding_box()
        assert (
            frame["x"] <= at[0] <= frame["x"] + frame["width"] and frame["y"] <= at[1] <= frame["y"] + frame["height"]
        )
    page.mouse.move(0, 0)
    page.get_by_role("radio", name="Photo", exact=True).check()
    check_photo(page.screenshot(clip=heat.bounding_box()), samples("photos")["horse"]())
    page.locator(".each input").check()
    for head, (name, _) in enumerate(photo.evaluate(MAP)["heads"]):
        assert name.startswith(f"head {head + 1}, to ") and says(name, weights[head, 0, 1:].max())
    quiet(page)


def names(trace) -> list[str]:
    """Return the names of the tokens of a text of characters on screen."""
    return [f"{at + 1}: { ({' ': '␣', chr(10): '⏎'}.get(word, word))!r}" for at, word in enumerate(trace.words)]


@pytest.mark.sweep
def test_the_matrix_from_token_to_token_is_that_of_the_head(page):
    trace = run("nanogpt")
    weights = value(trace, "block2.attention.weights")[0, 1].numpy()
    is_open = np.isfinite(value(trace, "mask").numpy())
    open_address(page, "attention?model=nanogpt&block=2&head=1&scale=linear", ".lead")
    picture = read(
        page.locator(".grid canvas"), draw(CELLS, weights.shape, 2), [".cell", ".lead"], ".gradient", ".bar .ticks"
    )
    grey = picture.pixels[0, -1]
    assert ((picture.pixels == grey).all(-1) == ~is_open).all()
    shown, most = picture.values()[is_open], max(number(text) for text, _ in picture.labels)
    assert np.abs(shown - np.minimum(100 * weights[is_open], most)).max() < 0.02 * most
    words = names(trace)
    for (query, key), (said, lead) in zip(picture.points, picture.tooltips, strict=True):
        assert said.startswith(f"{words[query]} → {words[key]}: "), said
        assert says(said, weights[query, key]) if is_open[query, key] else said.endswith("closed by the causal mask")
        assert lead == f"Block 2, head 2: {words[query]} attends most to:"
    spread, even, *shares = re.search(
        r"over about ([\d.]+) of the ([\d.]+) that equal weights .* gives (\S+\s%) to itself, (\S+\s%) to .* and "
        r"(\S+\s%) to the",
        page.locator(".habits").inner_text(),
    ).groups()
    entropy = torch.special.entr(torch.from_numpy(weights)).sum(-1).mean().exp().item()
    assert close(float(spread), entropy, 2) and close(float(even), np.exp(np.log(is_open.sum(-1)).mean()), 2)
    before = weights[np.arange(2, len(weights)), np.arange(1, len(weights) - 1)]
    for share, expected in zip(shares, (np.diag(weights)[2:], before, weights[2:, 0]), strict=True):
        assert says(share, expected.mean()), (share, expected.mean())
    quiet(page)


ROW = """(row) => {
  const root = row.getRootNode();
  const find = (selector) => root.querySelector(selector);
  const path = (selector) => find(selector)?.getAttribute("d") ?? "";
  const scale = (selector) => [...find(selector).children].map((one) => [one.textContent, parseFloat(one.style.top)]);
  const strip = find(".strip canvas");
  const box = strip.getBoundingClientRect();
  const keys = Array.from({ length: strip.width }, (_, key) => {
    const [clientX, clientY] = [box.left + ((key + 0.5) * box.width) / strip.width, box.top + box.height / 2];
    const below = root.elementFromPoint(clientX, clientY);
    below.dispatchEvent(new PointerEvent("pointermove", { clientX, clientY, bubbles: true, composed: true }));
    return find(".key").textContent;
  });
  const { data } = strip.getContext("2d").getImageData(0, 0, strip.width, 1);
  return {
    keys, strip: [...data].filter((_, at) => at % 4 === 0),
    title: find("h3").textContent, status: find(".status").textContent, top: find(".weights .top").textContent,
    open: path(".before .open"), shut: path(".before .shut"), weight: path(".weights .weight"),
    scores: scale(".before .scale"), shares: scale(".weights .scale"),
    table: [...root.querySelectorAll("tbody tr")].map((line) => [...line.cells].map((cell) => cell.textContent)),
  };
}"""


def bars(path: str, scale: list[tuple[str, float]]) -> dict[int, float]:
    """Return the values of bars, by their position, from their heights and the labels of the scale beside them."""
    at, shown = zip(*sorted((at, number(text)) for text, at in scale if text), strict=True)
    line = np.polyfit(at, shown, 1)
    found = re.findall(r"M([\d.]+) [\d.e+-]+V([\d.e+-]+)h", path)
    return {int(float(x)): float(np.polyval(line, float(y))) for x, y in found}


def test_the_mask_and_the_row_of_each_head_are_those_that_ran(page):
    trace = run("nanogpt")
    queries, keys, weights = (value(trace, f"block1.attention.{name}")[0] for name in ("query", "key", "weights"))
    before = (queries @ keys.transpose(-1, -2) / queries.shape[-1] ** 0.5).numpy()
    mask = value(trace, "mask").numpy()
    is_open, words = np.isfinite(mask), names(trace)
    open_address(page, "mask?model=nanogpt&query=14&head=2", ".mask .row-of svg path")
    picture = read(page.locator(".cells canvas"), draw(CELLS, mask.shape, 3), [".cell"])
    blue = picture.pixels[0, 0]
    assert ((picture.pixels == blue).all(-1) == is_open).all()
    for (query, key), (said,) in zip(picture.points, picture.tooltips, strict=True):
        may = "may attend to" if is_open[query, key] else "may not attend to"
        assert said == f"{words[query]} {may} {words[key]}"
    page.locator(".mask summary").click()
    page.locator(".mask tbody tr").nth(len(words) - 1).wait_for()
    for query, head in ((14, 2), (27, 3), (5, 0)):
        page.get_by_role("slider", name="Query").fill(str(query))
        page.get_by_role("slider", name="Head of block").fill(str(head))
        shown = page.locator(".row-of").evaluate(ROW)
        row, shares, seen = before[head, query], weights[head, query].numpy(), is_open[query]
        assert shown["title"] == f"The row of {words[query]}" and shown["top"] == words[shares.argmax()]
        drawn = bars(shown["open"] + shown["shut"], shown["scores"])
        assert sorted(drawn) == list(range(len(words)))
        assert np.abs(np.array([drawn[key] for key in range(len(row))]) - row).max() < 0.02 * np.ptp(row)
        assert sorted(bars(shown["open"], shown["scores"])) == np.flatnonzero(seen).tolist()
        heights = bars(shown["weight"], shown["shares"])
        assert np.abs([heights[key] - 100 * shares[key] for key in heights]).max() < 0.1 + shares.max()
        assert [cell == shown["strip"][0] for cell in shown["strip"]] == seen.tolist()
        for key, said in enumerate(shown["keys"]):
            score, state, weight = re.fullmatch(
                r"score (\S+), (\w+), weight (.*)", said.removeprefix(f"{words[key]}: ")
            ).groups()
            assert abs(number(score) - row[key]) < 6e-4 and says(weight, shares[key])
            assert state == ("open" if seen[key] else "closed")
        for key, (name, score, added, weight) in enumerate(shown["table"]):
            assert name == words[key] and abs(number(score) - row[key]) < 6e-4 and says(weight, shares[key])
            assert number(added) == mask[query, key]
        count = f"{seen.sum()} of {len(words)} keys are open to this query. "
        count += f"The highest weight is that of {words[shares.argmax()]}: "
        assert shown["status"].startswith(count) and says(
            shown["status"][len(count) :].partition("%")[0] + "%", shares.max()
        )
    quiet(page)


POINT_AT_PATCH = """(film, [patch, rows, columns]) => {
  const { photo } = film.film.place();
  const box = film.querySelector("canvas").getBoundingClientRect();
  return [
    box.x + photo.x + ((patch % columns) + 0.5) * (photo.w / columns),
    box.y + photo.y + (Math.floor(patch / columns) + 0.5) * (photo.h / rows),
  ];
}"""
READ_LIT_PATCHES = """film => {
  const canvas = film.querySelector("canvas");
  const { photo } = film.film.place();
  const ratio = canvas.width / canvas.clientWidth;
  const [wide, high] = [photo.w / 8, photo.h / 8];
  return [...Array(64).keys()].map((patch) => {
    const [x, y] = [photo.x + (patch % 8) * wide, photo.y + Math.floor(patch / 8) * high];
    const box = [x, y, wide, high].map((side) => Math.round(side * ratio));
    const pixels = canvas.getContext("2d").getImageData(...box).data;
    const sums = [0, 0, 0, 0];
    pixels.forEach((value, at) => (sums[at % 4] += value));
    return (4 * (0.2126 * sums[0] + 0.7152 * sums[1] + 0.0722 * sums[2])) / pixels.length;
  });
}"""


def test_overview_shows_the_answer_the_steps_and_the_map_of_the_run(page):
    trace = run("vit")
    shares = torch.as_tensor(trace.output).double().softmax(-1)[0].numpy()
    weights = value(trace, "block6.attention.weights")[0].mean(0).numpy()
    page.emulate_media(reduced_motion="reduce")
    open_address(page, "", ".film .bar.first")
    page.locator(".pipeline [data-step=logits]").wait_for(state="attached")
    bars = page.locator(".film .bar").evaluate_all(
        """all => all.map((bar) => {
          const [name, value, track] = bar.children;
          const fill = track.firstChild.getBoundingClientRect().width;
          return [name.textContent, fill / track.clientWidth, value.textContent];
        })"""
    )
    assert len(bars) == 10
    for (name, width, text), at in zip(bars, range(10), strict=True):
        assert name == trace.result["classes"][at] and says(text, shares[at])
        assert abs(width - shares[at]) < 0.02
    best = trace.result["classes"][int(shares.argmax())]
    expect(page.get_by_role("heading", name=re.compile(f"^The answer: {best}, "))).to_have_count(1)
    boxes = page.locator(".pipeline [data-step]").evaluate_all(
        "all => all.map((one) => [one.dataset.step, one.textContent])"
    )
    for step, text in boxes:
        assert trace.step(step).title in text and text.endswith(f" {list(trace.step(step).shape)}"), step
    film, point = page.locator(".film"), page.locator(".film .point")
    for row, column in [(-1, -1), *draw(CELLS, (8, 8), 5)]:
        token = 0 if row < 0 else 1 + 8 * row + column
        page.mouse.move(*(film.evaluate(POINT_AT_PATCH, [token - 1, 8, 8]) if token else (5, 5)))
        most = int(weights[token].argmax())
        name = lambda at: f"row {(at - 1) // 8 + 1}, column {(at - 1) % 8 + 1}" if at else "CLS"  # noqa: E731
        target = "itself" if most == token else name(most)
        text = point.inner_text()
        assert f"{name(token)[0].upper()}{name(token)[1:]} looks most at {target}: " in text, text
        assert says(text.rpartition(": ")[2].removesuffix("."), weights[token].max())
        light, lit = np.array(film.evaluate(READ_LIT_PATCHES)), weights[token, 1:] / weights[token, 1:].max()
        rows, columns = np.divmod(np.arange(64), 8)
        clear = (abs(rows - row) > 1) | (abs(columns - column) > 1)  # of the frame around the patch that is pointed at
        light, lit = light[clear], lit[clear]
        pairs = np.argwhere((lit[:, None] - lit > 1 / 12) & (light[:, None] <= light))
        assert not pairs.size, (token, pairs[:4])
    quiet(page)


def test_overview_colours_a_text_by_what_its_tokens_get(page):
    """The words on the stage and the line below it, for tokens chosen with the keyboard."""
    weights = value(run("nanogpt"), "block4.attention.weights")[0].mean(0).numpy()
    page.emulate_media(reduced_motion="reduce")
    open_address(page, "?model=nanogpt", ".film .token")
    for query in (27, 9, 14):
        page.locator(".film .token").select_option(str(query))
        row = page.locator(".film").evaluate("film => [...film.film.eye.rowAt(0)]")
        np.testing.assert_allclose(row, weights[query], rtol=2e-3, atol=1e-6)
        text = page.locator(".film .point").inner_text()
        assert says(text.rpartition(": ")[2].removesuffix("."), weights[query].max())
    page.wait_for_url("**query=14*")
    quiet(page)
