"""Each statement of the notes is seen where its own lines lead: one visit for each page and model."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the server inherits it

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

import pytest

from pages.state import page_registry
from tests.app.browser.test_browser import SLOW, quiet, wait_until_settled
from tracer.export.rows import NOTE_TITLES
from tracer.lessons.notes.lookup import BOTH_PATHS, LEGEND
from tracer.lessons.notes.statements import rows, sections

pytestmark = pytest.mark.browser

READ_STATEMENTS = """() => [...document.querySelectorAll('.st-key-statements blockquote')].map((card) =>
  [...card.querySelectorAll('p')].map((line) => ({
    text: line.innerText,
    code: [...line.querySelectorAll('code, strong')].map((one) => one.textContent),
    symbols: [...line.querySelectorAll('annotation')].map((one) => one.textContent),
    link: line.querySelector('a')?.getAttribute('href'),
  })))"""
STEPS = """() => {
  const [found, part] = [{}, document.querySelector('.stepper .part')];
  for (const { value } of part.options) {
    part.value = value;
    part.dispatchEvent(new Event('change'));
    for (const row of document.querySelectorAll('.stepper .list button')) found[row.dataset.step] = row.textContent;
  }
  return found;
}"""
ROWS = (
    "rows => Object.fromEntries(rows.map(row => [row.querySelector('button:last-of-type').dataset.row, row.innerText]))"
)
NAMES = "inputs => inputs.map(input => (input.labels?.[0] ?? input).textContent.trim().toLowerCase())"
READY = {
    "overview": "text=The run in numbers",
    "trace": ".stepper .list button",
    "attention": ".lead",
    "mask": "text=The mask of this run",
    "operations": ".operations tbody tr",
    "loss": "[data-testid=stMetricValue]",
    "sizes": ".st-key-sizes [data-testid=stSelectbox] label",
    "tokens": "text=From here on, all inputs are treated alike",
    "positions": ".likeness",
    "notes": ".st-key-cards h2",
}
"""What stands on a page once all above it does."""
LESSONS = ("tokens", "positions", "notes")
"""Pages whose address says what they are about, each of which is a visit of its own."""
WITHIN = {page.path.stem: page.places for page in page_registry.find_pages()}
HERE = re.compile("holds|does not hold|on another page")
READINGS: dict[tuple[str, ...], Seen] = {}
"""What was read at each page and model, for the notes that come to it later."""


class Place(NamedTuple):
    """Target of a link: a page, its run, and the position on it."""

    link: str
    page: str
    of: dict[str, str]
    at: dict[str, str]

    @classmethod
    def to(cls, link: str) -> Place:
        split = urlsplit(link)
        page, of = split.path.strip("./") or "overview", dict(parse_qsl(split.query))
        own = () if page in LESSONS else WITHIN[page] if page != "overview" else ()
        return cls(link, page, of, {name: of.pop(name) for name in own if name in of})

    @property
    def visit(self) -> tuple[str, ...]:
        return self.page, str(self.of), *([self.at["step"]] if self.primitives else [])

    @property
    def primitives(self) -> bool:
        """Return whether the target is the primitives of a step's op, each of which is a visit of its own."""
        return self.at.get("zoom") == "primitives" and "step" in self.at


class Seen(NamedTuple):
    """Content of a page: its words, the rows of its table by their names, the sizes of its run, its choices, and its
    model."""

    text: str
    rows: Mapping[str | int, str]
    sizes: list[str]
    choices: list[str]
    model: str


def visit(page, place: Place) -> Seen:
    page.goto(f"/{place.link.removeprefix('./')}")
    model = place.of.get("model", "")
    if ":" in model:
        load = page.get_by_role("button", name="Load it")
        load.click()
        load.wait_for(state="detached")
    page.get_by_test_id("stMain").get_by_role("heading").first.wait_for()
    page.locator(READY[place.page]).first.wait_for()
    wait_until_settled(page)
    return read(page, place)


def read(page, place: Place) -> Seen:
    """Read the content of the open page."""
    model, found = place.of.get("model", ""), {}
    if place.page == "trace":
        found = page.evaluate(STEPS)
    if place.primitives:
        page.get_by_role("heading", name="Its primitives").wait_for()
        wait_until_settled(page)
        found = dict(enumerate(page.locator(".operations tbody tr.row").all_inner_texts()))
    elif place.page == "operations":
        for level in dict.fromkeys((place.at["zoom"], *(("modules", "primitives") if ":" in model else ()))):
            page.get_by_test_id("stButtonGroup").get_by_text(level, exact=True).click()
            page.locator(".operations [role=status]").filter(has_text=level).wait_for()
            wait_until_settled(page)
            page.get_by_role("checkbox", name="Fold by module").set_checked(False)
            found |= page.locator(".operations tbody tr.row").evaluate_all(ROWS)
        if ":" in model:
            page.get_by_role("button", name=BOTH_PATHS).click()
            page.get_by_text("All ways to run it").wait_for()
    quiet(page)
    return Seen(
        page.get_by_test_id("stMain").inner_text(),
        found,
        page.locator(".st-key-legend annotation").all_text_contents(),
        page.get_by_role("radio").or_(page.locator("label")).evaluate_all(NAMES),
        page.get_by_test_id("stSidebar").get_by_role("combobox").first.input_value(),
    )


def plain(latex: str) -> str:
    r"""Return a shape in the form of tables: `[B,\ N + 1,\ d_{\mathrm{ff}}]` is `[B, N+1, d_ff]`."""
    for old, new in ((r"\ ", " "), (r"\,", "·"), ("^{2}", "²"), (r"\mathrm", ""), ("\\", ""), (" + ", "+")):
        latex = latex.replace(old, new)
    return re.sub(r"[{}]", "", latex)


def is_seen(line: dict, place: Place, seen: Seen) -> bool:
    """Return whether the content of a statement's line is on the page that it leads to."""
    said = line["text"].rpartition("→")[0]
    numbers = re.findall(r"\[[\d, ]+\]", said)
    if ":" in place.of.get("model", ""):  # the note's run has a batch of 2, that of the page 1
        said = re.sub("B = 2 $", "B = 1 ", said)
        numbers = [re.sub(r"^\[2, ", "[1, ", one) for one in numbers]
    shapes = [plain(one) for one in line["symbols"] if one.startswith("[")]
    if seen.model != place.of.get("model", seen.model) or re.search("This page has no|could not be run", seen.text):
        return False
    if LEGEND in line["text"]:
        name, number = line["symbols"][0], said.rpartition("=")[2].strip().replace(",", "")
        return any(one.startswith(f"{name} =") and one.endswith(f"= {number}") for one in seen.sizes)
    if BOTH_PATHS in line["text"]:
        return "standard: " in seen.text
    if place.primitives:
        primitive, op = line["code"][:2]
        rows_of = [row for row in seen.rows.values() if re.match(rf"\d+\.\d+\s*{primitive}\b", row)]
        return f": {op}\n" in seen.text and any(all(one in row for one in shapes) for row in rows_of)
    if step := place.at.get("step"):
        row = seen.rows.get(step, "")
        title = line["code"][0] if said.startswith("step") else ""
        return bool(row) and title in row and all(one in row for one in numbers if title)
    if op := place.at.get("op"):
        row = seen.rows.get(f"op {op}", "")
        name = line["code"][0] if said.startswith("op ") else ""
        return bool(row) and name in row and all(one in row for one in shapes)
    if said.startswith("calls"):
        return any(one in row for one in line["code"] for row in seen.rows.values())
    if place.page == "operations":
        return any(
            one in row for one in re.findall(r"\d[\d,]+", said) for row in (f"{len(seen.rows)}", *seen.rows.values())
        )
    if place.page == "mask":
        kind = said.rpartition("mask: ")[2].strip()
        shown = "This model has no mask" if kind == "none" else f"The mask of this run: {kind}"
        return "mask:" not in said or shown in seen.text
    if "claim" in place.of:
        return "".join(said.partition(": ")[2].split()) in "".join(seen.text.split())
    if place.page == "tokens" and "pieces" in said:
        return all(
            f"n = {n}" in seen.text and f"V = {of}" in seen.text
            for n, of in re.findall(r"(\d+) pieces of ([\d,]*\d)", said)
        )
    return all(place.at[name] in seen.choices for name in ("head", "block") if name in place.at)


FEW = "000", True


@pytest.mark.sweep
@pytest.mark.parametrize(("note", "few"), (FEW, *((note, False) for note in NOTE_TITLES)))
def test_every_statement_is_seen_where_its_lines_lead(page, note, few):
    """With `few`, each page is visited with the first model alone that a line leads to."""
    page.set_default_timeout(SLOW)
    page.goto(f"/notes?note={note}")
    page.locator(".st-key-statements blockquote").nth(len(rows(note)) - 1).wait_for()
    wait_until_settled(page)
    cards = page.evaluate(READ_STATEMENTS)
    assert len(cards) == len(rows(note))
    lines = [(number, line) for number, (_, *told) in enumerate(cards, 1) for line in told]
    missing, first = [], {}
    for number, line in ((number, line) for number, line in lines if line["link"]):
        place = Place.to(line["link"])
        if few and first.setdefault(place.page, place.visit) != place.visit:
            continue
        if place.visit not in READINGS:
            READINGS[place.visit] = visit(page, place)
        if not is_seen(line, place, READINGS[place.visit]):
            missing.append(f"{number}: {' '.join(line['text'].split())} ({line['link']})")
    assert not missing, "\n".join(missing)
    alone = [number for number, (head, *told) in enumerate(cards, 1) if not any(line["link"] for line in told)]
    slips = [row.number for row in rows(note) if any(place.startswith("slip") for place in row.where)]
    assert set(alone) <= set(slips)


@pytest.mark.sweep
def test_a_note_keeps_its_place_while_a_model_loads(page):
    page.set_default_timeout(SLOW)
    page.goto("/notes?note=003&section=3&model=torchvision:squeezenet1_1")
    page.get_by_role("button", name="Load it").click()
    own = [row for row in rows("003") if row.section == sections("003")[2]]
    page.locator(".st-key-statements blockquote").nth(len(own) - 1).wait_for()
    wait_until_settled(page)
    assert {"note=003", "section=3", "model=torchvision:squeezenet1_1"} <= set(page.url.partition("?")[2].split("&"))
    assert page.locator(".st-key-statements h2").all_inner_texts() == [own[0].section]
    lines = [
        line for _, *told in page.evaluate(READ_STATEMENTS) for line in told if line["text"].startswith("primitive")
    ]
    assert len(lines) == sum(place.startswith("prim ") for row in own for place in row.where) > 6
    assert all(Place.to(line["link"]).primitives for line in lines)
    quiet(page)
