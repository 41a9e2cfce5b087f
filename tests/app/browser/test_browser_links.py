"""Address in a real browser: it holds the state of the screen, Back walks through it, and a link of it can be
copied."""

import re

import pytest
from playwright.sync_api import expect

from tests.app.browser.test_browser import SLOW, give, jpeg, quiet, wait_until_settled

pytestmark = pytest.mark.browser


@pytest.fixture(autouse=True)
def patience(page) -> None:
    page.set_default_timeout(SLOW)


@pytest.mark.sweep
def test_block_head_and_query_are_in_the_address_and_back_walks_through_them(page):
    page.goto("/attention")
    lead = page.locator(".lead")
    lead.wait_for()
    wait_until_settled(page)
    seen = [lead.inner_text()]
    for name, number in (("Block", "2"), ("Head", "3")):
        page.get_by_role("group", name=name, exact=True).get_by_role("radio", name=number, exact=True).check()
        seen.append(lead.inner_text())
    with page.expect_response("**/position"):
        page.locator(".photo").press("ArrowRight")
    seen.append(lead.inner_text())
    page.wait_for_url("**/attention?block=2&head=2&query=*&scale=linear")  # a head counts from 0 there
    assert len(set(seen)) == 4 and "Block 2, head 3" in seen[3]
    address = page.url
    page.get_by_role("link", name="Trace").click()
    page.get_by_role("heading", name="Step by step").wait_for()
    page.get_by_role("link", name="Attention").click()
    page.wait_for_url(address)
    lead.wait_for()
    wait_until_settled(page)
    assert lead.inner_text() == seen[3]
    page.evaluate("history.go(-2)")
    page.wait_for_url(address)
    lead.wait_for()
    for said in reversed(seen[:3]):
        page.evaluate("history.back()")
        page.locator(".lead", has_text=said).wait_for()
        wait_until_settled(page)
    assert page.url.endswith("/attention")
    page.goto(address)
    page.locator(".lead", has_text=seen[3]).wait_for()
    quiet(page)


@pytest.mark.sweep
def test_a_query_that_is_told_after_the_next_page_was_asked_for_is_there_on_the_way_back(page):
    page.goto("/attention")
    lead = page.locator(".lead")
    lead.wait_for()
    wait_until_settled(page)
    late = []
    page.route("**/position", lambda route: late.append(route))
    page.locator(".photo").press("ArrowRight")
    page.wait_for_url("**/attention?*query=*")
    said, address = lead.inner_text(), page.url
    page.get_by_role("link", name="Trace").click()  # at once
    page.get_by_role("heading", name="Step by step").wait_for()
    wait_until_settled(page)
    with page.expect_response("**/position"):
        for request in late:
            request.continue_()
    page.get_by_role("link", name="Attention").click()
    page.wait_for_url(address)
    page.locator(".lead", has_text=said).wait_for()
    quiet(page)


@pytest.mark.sweep
def test_mask_query_and_zoom_are_in_the_address_and_back_undoes_them(page):
    page.goto("/mask?model=nanogpt&mask=bidirectional&query=3")
    page.get_by_text("The mask is bidirectional").wait_for()
    wait_until_settled(page)
    page.get_by_role("heading", name="The row of 4:").wait_for()
    page.locator(".cells").press("ArrowDown")
    page.wait_for_url("**query=4*")
    page.get_by_role("heading", name="The row of 5:").wait_for()
    wait_until_settled(page)
    page.evaluate("history.back()")
    page.get_by_role("heading", name="The row of 4:").wait_for()
    wait_until_settled(page)
    page.get_by_role("link", name="Operations").click()
    page.wait_for_url("**/operations?model=nanogpt&mask=bidirectional")
    page.get_by_role("radio", name="steps").click()
    page.wait_for_url("**zoom=steps")
    page.get_by_role("button", name="Open it on the page Trace").wait_for()
    wait_until_settled(page)
    page.evaluate("history.back()")
    page.get_by_role("heading", name="the model itself").wait_for()
    quiet(page)


def test_a_link_is_copied_with_its_code_and_a_private_photo_is_not_in_it(page, browser, app_server):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto("/trace?step=embedding")
    page.locator(".stepper .equation .katex").first.wait_for()
    give(page, jpeg(), "mine.jpg")
    page.wait_for_url("**file=mine.jpg*")
    wait_until_settled(page)
    page.get_by_role("button", name="Link").click()
    page.get_by_role("img", name="QR code of this link").wait_for()
    page.get_by_text("does not contain your photo").wait_for()
    page.get_by_role("button", name="Copy link").click()
    page.get_by_role("button", name="Copied").wait_for()
    link = page.evaluate("navigator.clipboard.readText()")
    assert link == page.url
    other = browser.new_context().new_page()
    other.set_default_timeout(SLOW)
    other.goto(link)
    other.get_by_text("This link is about the photo 'mine.jpg'").wait_for()
    other.get_by_role("heading", name="Embed").wait_for()
    other.context.close()
    quiet(page)


def test_what_is_on_a_page_is_saved_as_pictures_tables_and_equations(page):
    page.goto("/trace?step=block1.attention.scores")
    page.locator(".stepper .equation .katex").first.wait_for()
    wait_until_settled(page)
    page.get_by_role("button", name="Save", exact=True).click()
    for name, begins in (
        ("SVG: The tensor", b"<svg "),
        ("PNG: The tensor", b"\x89PNG"),
        ("CSV: Operations of this step", b"op,name,inputs"),
        ("LaTeX: ", rb"\mathbf{S}"),
    ):
        with page.expect_download() as download:
            page.get_by_role("button", name=name).first.click()
        kept = download.value.path().read_bytes()
        assert kept.startswith(begins), (name, kept[:80])
        if name.startswith("SVG"):
            assert b"query" in kept and b"data:image/png" in kept
    for name, file, parts in (
        ("Download a handout", "vit-horse.html", ("<math", "data:image/")),
        ("Download the film", "vit-horse.film.html", ('class="film"', 'id="message"')),
    ):
        with page.expect_download() as download:
            page.get_by_role("button", name=name).click()
        assert download.value.suggested_filename == file
        kept = download.value.path().read_text(encoding="utf-8")
        assert kept.startswith("<!doctype html>") and all(part in kept for part in parts), name
    quiet(page)


@pytest.mark.sweep
def test_filter_folds_and_order_are_in_the_address_and_back_undoes_them(page):
    page.goto("/operations?zoom=ops")
    status, flop = page.locator(".operations [role=status]"), page.get_by_role("columnheader", name="FLOP")
    status.filter(has_text="333 ops").wait_for()
    wait_until_settled(page)
    page.get_by_role("button", name="block2", exact=True).click()
    page.wait_for_url("**open=ops*")
    page.get_by_role("searchbox", name="Filter").press_sequentially("softmax")
    page.wait_for_url("**filter=softmax*")
    page.get_by_role("checkbox", name="Fold by module").uncheck()
    page.wait_for_url("**fold=off*")
    page.get_by_role("button", name="FLOP", exact=True).click()
    page.wait_for_url("**sort=ops*")
    address, rows = page.url, page.locator(".operations tbody tr.row")
    assert status.inner_text().startswith("6 of 333 ops") and rows.count() == 6
    page.get_by_role("link", name="Trace").click()
    page.get_by_role("heading", name="Step by step").wait_for()
    page.get_by_role("link", name="Operations").click()
    page.wait_for_url(address)
    flop.and_(page.locator("[aria-sort=descending]")).wait_for()
    expect(rows).to_have_count(6)
    page.goto(address)  # as whoever is handed the link
    flop.and_(page.locator("[aria-sort=descending]")).wait_for()
    wait_until_settled(page)
    assert status.inner_text().startswith("6 of 333 ops")
    page.get_by_role("searchbox", name="Filter").fill("")
    status.filter(has_text="333 ops").wait_for()
    page.get_by_role("checkbox", name="Fold by module").check()
    assert page.get_by_role("button", name="block2", exact=True).get_attribute("aria-expanded") == "true"
    page.evaluate("history.back()")
    page.wait_for_url("**fold=off*")
    page.locator(".operations input[type=checkbox]:not(:checked)").wait_for()
    page.evaluate("history.back()")
    page.wait_for_url("**filter=softmax*")
    status.filter(has_text="6 of 333 ops").wait_for()
    page.goto("/operations?zoom=ops&fold=maybe&sort=ops_77")
    page.get_by_text("This page has no fold 'maybe', expected 'on' or 'off'.").wait_for()
    page.get_by_text("This page has no sort 'ops_77', expected one from ops_0 to ops_-").wait_for()
    page.goto("/operations")
    page.locator(".operations tbody").wait_for()
    wait_until_settled(page)
    before = rows.count()
    page.get_by_role("button", name="block2", exact=True).click()
    page.wait_for_url("**/operations?module=*&open=modules_*")
    page.get_by_role("heading", name="block2: Block").wait_for()
    wait_until_settled(page)
    unfolded = rows.count()
    page.get_by_role("button", name="block2", exact=True).click()
    page.wait_for_url(lambda url: "open=" not in url)
    assert rows.count() == before < unfolded
    page.evaluate("history.back()")
    page.wait_for_url("**open=modules_*")
    rows.nth(unfolded - 1).wait_for()
    page.reload()
    rows.nth(unfolded - 1).wait_for()
    assert rows.count() == unfolded
    quiet(page)


@pytest.mark.sweep
def test_the_tab_of_the_overview_is_in_its_address_and_back_undoes_it(page):
    page.goto("/?query=3")
    tab = page.get_by_role("tab", name="What the model sees")
    tab.click()
    page.wait_for_url("**tab=What+the+model+sees")
    page.locator("svg.patches").wait_for()
    wait_until_settled(page)
    page.evaluate("history.back()")
    page.get_by_role("tab", name="The full path", selected=True).wait_for()
    page.goto("/?query=99&tab=What+the+model+sees")
    page.get_by_role("tab", name="What the model sees", selected=True).wait_for()
    page.get_by_text("This page has no query '99', expected one from 0 to 64.").wait_for()
    quiet(page)


HELD_CHECK = """
const request = window.fetch;
const clicked = new Promise((resolve) => {
  const told = ({ target }) => target.closest("[data-testid=stPageLink-NavLink]") && setTimeout(resolve, 1);
  addEventListener("click", told, true);
});
window.fetch = (place, ...rest) => String(place).includes("check-status")
  ? clicked.then(() => (window.checked = true) && new Response(null, { status: 204 }))
  : request(place, ...rest);
"""
"""A check of the lines that is done in the moment in which a link to a page is clicked."""


def test_a_link_to_a_page_is_followed_where_a_check_of_the_lines_arrives_with_the_click(page):
    page.add_init_script(HELD_CHECK)
    page.goto("/?change=position=noise(0.1,91)")  # nobody else changes it so: its check is pending
    page.get_by_text("The run in numbers").wait_for()
    wait_until_settled(page)
    page.wait_for_timeout(1500)  # the browser has asked for the check
    page.get_by_role("link", name="Mask").click()
    page.wait_for_url("**/mask?change=*")
    page.get_by_role("heading", name=re.compile("attend to|Who may look")).wait_for()
    wait_until_settled(page)
    assert page.evaluate("window.checked")
    assert "/mask?change=" in page.url
    quiet(page)
