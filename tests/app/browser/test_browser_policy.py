"""Content security policy in a real browser: every page works under it, and it stops what it should."""

import pytest

from pages.state import page_registry
from tests.app.browser.test_browser import SLOW, quiet, until, wait_until_settled

pytestmark = pytest.mark.browser
_FOUND = page_registry.find_pages()
OF_THE_RUN = ("", *(page.path.stem for page in _FOUND[1:] if not page.heading))
LESSONS = tuple(page.path.stem for page in _FOUND if page.heading)
WATCH = (
    "window.violations = []; addEventListener('securitypolicyviolation', e => violations.push(e.violatedDirective));"
)


@pytest.mark.parametrize("names", [OF_THE_RUN, pytest.param(LESSONS, marks=pytest.mark.sweep)], ids=["run", "lessons"])
def test_no_page_violates_the_policy_or_asks_another_host(page, names):
    page.set_default_timeout(SLOW)
    page.add_init_script(WATCH)
    for name in names:
        page.goto(f"/{name}")
        page.get_by_test_id("stHeading").first.wait_for()
        wait_until_settled(page)
        page.wait_for_load_state("networkidle")
        assert page.evaluate("violations") == []
        quiet(page)


def test_a_script_that_was_smuggled_in_does_not_run(page):
    page.set_default_timeout(SLOW)
    page.add_init_script(WATCH)
    page.goto("/")
    wait_until_settled(page)
    page.evaluate("""() => {
        const script = document.createElement('script');
        script.textContent = 'window.smuggled = true';
        document.head.append(script);
        document.body.insertAdjacentHTML('beforeend', '<img src="/none.png" onerror="window.smuggled = true">');
        document.body.insertAdjacentHTML('beforeend', '<img src="https://elsewhere.example/">');
    }""")
    until(page, "violations.length >= 3")
    assert page.evaluate("window.smuggled") is None
    assert page.seen.foreign == []
