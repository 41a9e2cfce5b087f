"""Other ways to show a page, in a real browser: presented to a class, on paper, and to those who don't see it."""

import json
import time
from importlib.resources import files

import pytest
from playwright.sync_api import expect

from pages.state import page_registry
from tests.app.browser.test_browser import FIT, SLOW, quiet, until, wait_until_settled
from tests.support.sweeping import cases
from tracer import models

pytestmark = pytest.mark.browser
PAGES = ("", "trace?step=block1.attention.scores", "attention", "mask", "operations")
FIND_CUT_TEXTS = """() => {
  const inside = (one) => [one, ...(one.shadowRoot ? all(one.shadowRoot) : [])];
  const all = (root) => [...root.querySelectorAll("*")].flatMap(inside);
  return all(document.querySelector("[data-testid=stMain]")).filter((one) => {
    const style = getComputedStyle(one);
    const seen = one.checkVisibility() && one.clientWidth > 1 && one.clientHeight > 1 && style.clipPath === "none";
    if (!seen || style.overflowX === "visible") return false;
    if (one.closest(".katex, svg, .photo, .grid, .cells, .small, .js-plotly-plot, .stDataFrame")) return false;
    return one.scrollWidth > one.clientWidth + 2 || one.scrollHeight > one.clientHeight + 2;
  }).map((one) => `${one.localName}.${one.className} ${one.scrollWidth}/${one.clientWidth}`);
}"""
FIND_SMALL_TARGETS = """() => {
  const inside = (one) => [one, ...(one.shadowRoot ? all(one.shadowRoot) : [])];
  const all = (root) => [...root.querySelectorAll("*")].flatMap(inside);
  const targets = "button, select, summary, input:not([type=range], [type=file])";
  return all(document).filter((one) => one.matches(targets) && one.checkVisibility()).map((one) => {
    const target = (one.matches("[type=checkbox], [type=radio]") && one.closest("label")) || one;
    const { width, height } = target.getBoundingClientRect();
    return width && (width < 31.5 || height < 31.5) ? `${one.outerHTML.slice(0, 90)} ${width} x ${height}` : "";
  }).filter(Boolean);
}"""
FORCED_COLOR_CASES = [
    ("", ".bars i"),
    ("attention?query=20", ".top li"),
    ("mask?model=nanogpt", ""),
    ("loss?model=nanogpt", ".loss-text span"),
    ("positions", ".bar .stripe"),
    ("notes", ".verdicts i"),
    ("?model=nanogpt", ".sentence span"),
]
CONTROLS = ("stSidebar", "stHeader", "stButton", "stSlider", "stSelectbox", "stButtonGroup", "stTextInput")
SERIOUS = ("serious", "critical")
OURS = ("heading-order", "label-content-name-mismatch", "target-size")


@pytest.fixture(autouse=True)
def patience(page) -> None:
    page.set_default_timeout(SLOW)


def open_address(page, address: str) -> None:
    page.goto(f"/{address}")
    page.get_by_role("button", name="Save this run").wait_for(state="attached")
    wait_until_settled(page)


@pytest.mark.sweep
def test_a_step_is_presented_on_one_screen_and_next_stands_still(page):
    page.set_viewport_size({"width": 1024, "height": 768})
    open_address(page, "trace?step=block1.attention.scores")
    title = page.locator(".stepper .title")
    page.keyboard.press("p")
    page.get_by_test_id("stSidebar").wait_for(state="hidden")
    places = []
    for key in ("PageDown", "ArrowRight", "PageDown", "ArrowRight", "PageUp", "ArrowLeft", "PageDown"):
        for part in (".title", ".equation", ".sizes", ".cells", ".ticks.columns", ".verdict"):
            box = page.locator(f".stepper {part}").bounding_box()
            assert box and box["y"] >= 0 and box["y"] + box["height"] <= 768, (title.inner_text(), part, box)
        assert page.locator(".stepper .cells").bounding_box()["height"] > 170
        places.append(page.get_by_role("button", name="Next").bounding_box())
        before = title.inner_text()
        page.keyboard.press(key)
        until(page, f"document.querySelector('.stepper .title').textContent !== {json.dumps(before)}")
    assert places == [places[0]] * len(places) and page.evaluate(FIT)
    size = "parseFloat(getComputedStyle(document.querySelector('.stepper .why')).fontSize)"
    large = page.evaluate(size)
    page.keyboard.press("Escape")
    page.get_by_test_id("stSidebar").wait_for()
    assert large > 1.2 * page.evaluate(size)
    page.get_by_test_id("stMain").evaluate("main => main.scrollTo(0, 400)")
    places = []
    for _ in range(6):
        places.append(page.get_by_role("button", name="Next").bounding_box())
        page.get_by_role("button", name="Next").click()
    assert places == [places[0]] * len(places)
    quiet(page)


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        (
            "",
            (
                ".film .stage",
                ".film .sentence",
                ".film .bar.first",
                ".film .equation",
                ".film .proof",
                ".film .scrubber",
            ),
        ),
        (
            "mask?model=nanogpt",
            (".equations", ".mask .cells", ".mask .axis.across", ".mask .weights", ".mask .ticks.keys"),
        ),
    ],
)
def test_equation_shape_and_picture_are_presented_on_one_screen(page, address, parts):
    page.set_viewport_size({"width": 1024, "height": 768})
    open_address(page, address)
    page.keyboard.press("p")
    page.get_by_test_id("stSidebar").wait_for(state="hidden")
    until(page, "!document.querySelector('#first')")
    page.wait_for_timeout(300)
    for part in parts:
        box = page.locator(part).first.bounding_box()
        assert box and box["y"] >= 0 and box["y"] + box["height"] <= 768, (part, box)
    assert page.evaluate(FIT)
    if not address:
        play = page.locator(".film .play").bounding_box()
        right = [play["x"] + play["width"] - 2, play["y"] + play["height"] / 2]
        under = "([x, y]) => !!document.elementFromPoint(x, y).shadowRoot?.elementFromPoint(x, y).closest('.play')"
        assert page.evaluate(under, right), "something lies over Play"
    if address:  # arrow keys and clickers move the query, whatever has the focus
        assert page.locator(".mask .bars .axis").all_inner_texts() == ["score", "mask", "weight"]
        name, tick = (page.locator(f".mask .plot {part}").first.bounding_box() for part in (".axis.down", ".rows span"))
        assert name["x"] + name["width"] <= tick["x"]
        word, bar = page.locator(".mask .top").bounding_box(), page.locator(".mask .weight").bounding_box()
        assert word["y"] + word["height"] <= bar["y"] + 1
        title, seen = page.locator(".mask .right h3"), []
        for key in ("ArrowLeft", "ArrowUp", "ArrowDown", "PageDown"):
            page.keyboard.press(key)
            seen.append(int(title.inner_text().removeprefix("The row of ").partition(":")[0]))
        assert [at - seen[0] for at in seen] == [0, -1, 0, 1]


@pytest.mark.parametrize("address", cases(PAGES, ("attention",)))
def test_paper_has_no_controls_and_cuts_nothing(page, address):
    page.emulate_media(color_scheme="dark")
    open_address(page, address)
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    for name in CONTROLS:
        expect(page.get_by_test_id(name).filter(visible=True)).to_have_count(0)
    deadline = time.monotonic() + 10
    while (cut := page.evaluate(FIND_CUT_TEXTS)) and time.monotonic() < deadline:  # labels are laid anew
        page.wait_for_timeout(100)
    assert cut == []
    main = page.get_by_test_id("stMain")
    assert (
        main.evaluate("main => main.scrollHeight <= main.clientHeight + 2 && getComputedStyle(main).overflowY")
        == "visible"
    )


def test_paper_has_no_heading_of_what_it_leaves_out(page):
    open_address(page, "?model=nanogpt")
    heading = page.get_by_role("heading", name="Continue the text")
    heading.wait_for()
    page.emulate_media(media="print")
    expect(heading).not_to_be_visible()
    page.emulate_media(media="screen")
    page.get_by_role("button", name="Write the next").click()
    page.get_by_text("What it wrote:").wait_for()
    page.emulate_media(media="print")
    expect(heading).to_be_visible()


@pytest.mark.sweep
def test_paper_has_the_first_rows_of_a_long_table_and_nothing_that_is_folded(page):
    page.goto(f"/loss?model=nanogpt&text={'to be or not '.replace(' ', '+') * 6}")
    page.get_by_text("The same data as a table").click()
    grid, rows = page.get_by_test_id("stDataFrame"), page.locator("[class*=st-key-paper] tbody tr")
    grid.wait_for()
    wait_until_settled(page)
    assert rows.count() == 60 and not rows.first.is_visible()
    page.emulate_media(media="print")
    assert rows.first.is_visible() and rows.last.is_visible() and not grid.is_visible()
    assert page.get_by_text("These are the first 60 of 77 rows.").is_visible()
    page.emulate_media(media="screen")
    page.goto("/operations?zoom=ops")
    folded = (page.get_by_role("heading", name="Its primitives"), page.get_by_text("The same data as tables"))
    for one in folded:
        one.wait_for()
    wait_until_settled(page)
    page.emulate_media(media="print")
    for one in folded:
        one.wait_for(state="hidden")
    assert page.get_by_role("heading", name="Where the FLOPs are").is_visible()
    quiet(page)


MARKS = """() => {
  const inside = (one) => [one, ...(one.shadowRoot ? all(one.shadowRoot) : [])];
  const all = (root) => [...root.querySelectorAll("*")].flatMap(inside);
  const paint = (style) => (style.backgroundImage === "none" ? style.backgroundColor : style.backgroundImage);
  const clear = /rgba\\(.*, 0\\)|transparent/;
  const nothing = (style) => style.backgroundImage === "none" && clear.test(style.backgroundColor);
  const theirs = "input, [class*=st-emotion], [class*=react-aria], .stMarkdownBadge";
  window.marks ??= all(document.querySelector("[data-testid=stMain]")).flatMap((one) => {
    const ours = one.checkVisibility() && !one.matches(theirs) && !one.closest("svg, .equations, .frame");
    const drawn = ["", "::before"].filter((part) => {
      const style = getComputedStyle(one, part || null);
      const data = one.matches("[style*=background], [style*=share]") || !one.textContent.trim();
      const size = part ? parseFloat(style.width) && style.content !== "none" : data && one.offsetWidth;
      return ours && size && !nothing(style);
    });
    return drawn.map((part) => [one, part]);
  });
  const named = (one, part) => `${one.localName}.${one.className}${part}`;
  return window.marks.map(([one, part]) => [named(one, part), paint(getComputedStyle(one, part || null))]);
}"""
FIND_CHOSEN_CONTROLS = """() => {
  const inside = (one) => [one, ...(one.shadowRoot ? all(one.shadowRoot) : [])];
  const all = (root) => [...root.querySelectorAll("*")].flatMap(inside);
  const chosen =
    "[data-selected=true], [role=tab][aria-selected=true], [aria-pressed=true], input:checked + span, [data-chosen]";
  return all(document).filter((one) => one.matches(chosen) && one.checkVisibility())
    .map((one) => [one.outerHTML.slice(0, 120), getComputedStyle(one).outlineStyle]);
}"""


@pytest.mark.parametrize(("address", "marks"), cases(FORCED_COLOR_CASES, FORCED_COLOR_CASES[:1]))
def test_forced_colours_leave_bars_swatches_and_what_is_chosen(page, address, marks):
    page.goto(f"/{address}")
    page.locator("[data-testid=stMain] h1").wait_for()
    wait_until_settled(page)
    if marks:
        page.locator(marks).first.wait_for()
    before = page.evaluate(MARKS)
    page.emulate_media(forced_colors="active")
    after = page.evaluate(MARKS)
    assert after == before and (before or not marks)
    chosen = page.evaluate(FIND_CHOSEN_CONTROLS)
    assert all(outline == "solid" for _, outline in chosen), chosen


def axe(page) -> list[str]:
    """Return the serious findings of axe on a page, in short."""
    if not page.evaluate("Boolean(window.axe)"):
        page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
    rules = {name: {"enabled": True} for name in OURS}
    found = page.evaluate("rules => axe.run({ resultTypes: ['violations'], rules })", rules)["violations"]
    return [
        f"{one['id']}: {node['target']} {node['html'][:160]} {node.get('failureSummary', '')[:200]}"
        for one in found
        if one["impact"] in SERIOUS or one["id"] in OURS
        for node in one["nodes"]
    ]


LESSONS = tuple(page.path.stem for page in page_registry.find_pages() if page.heading)
QUICK_CASE = "light", "vit", ("?inside=block3.attention.scores", PAGES[1], "mask")
LOOKS = [(scheme, model, (*PAGES, *LESSONS)) for scheme in ("light", "dark") for model in models.names()]


@pytest.mark.parametrize(("scheme", "model", "addresses"), cases((QUICK_CASE, *LOOKS), (QUICK_CASE,)))
def test_axe_finds_nothing_serious(page, scheme, model, addresses):
    page.emulate_media(color_scheme=scheme)
    for address in addresses:
        page.goto(f"/{address}{'&' if '?' in address else '?'}model={model}")
        page.locator("[data-testid=stMain] h1").wait_for()
        wait_until_settled(page)
        for look in range(8):  # widgets get their names
            if not (found := axe(page) + page.evaluate(FIND_SMALL_TARGETS)):
                break
            page.wait_for_timeout(300 * look)
        assert found == [], address


@pytest.mark.sweep
def test_another_run_and_another_page_are_said_to_who_sees_neither(page):
    open_address(page, "")
    assert page.title() == "Tensor tracer"
    said = page.locator(".st-key-spoken [role=status]")
    said.filter(has_text="vit has run on horse. The answer: horse, ").wait_for(state="attached")
    expect(said).to_have_count(1)
    page.get_by_role("navigation", name="Lessons").get_by_role("link", name="Sizes").wait_for()
    page.get_by_test_id("stSidebar").get_by_text("dog", exact=True).click()
    said.filter(has_text="vit has run on dog. The answer: ").wait_for(state="attached")
    page.get_by_role("navigation", name="Pages", exact=True).get_by_role("link", name="Mask").click()
    page.get_by_role("heading", name="Which token may attend to which?").wait_for()
    until(page, "document.title === 'Mask · Tensor tracer'")
    quiet(page)
