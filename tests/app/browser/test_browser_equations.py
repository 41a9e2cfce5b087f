"""Every equation that can be printed, in the KaTeX that Streamlit itself ships and uses."""

import mimetypes
from pathlib import Path

import pytest
import streamlit

from tests.support.model_equations import printed_equations

pytestmark = pytest.mark.browser
SCRIPTS = Path(streamlit.__file__).parent / "static" / "static" / "js"
PLACE = "http://streamlit.test/"

# The plugin replaces what is marked as mathematics, as in a page, and leaves a message where it could not.
RENDER = """async ([script, equations]) => {
    const plugin = (await import(script)).default();
    return equations.filter(value => {
        const text = {type: 'text', value};
        const code = {type: 'element', tagName: 'code', properties: {className: ['language-math']}, children: [text]};
        const said = [], root = {type: 'root', children: [code]};
        plugin(root, {message: reason => said.push(reason)});
        return said.length || root.children[0].tagName === 'code' || JSON.stringify(root).includes('katex-error');
    });
}"""


@pytest.fixture
def find_refused(browser):
    """Return a function that returns the equations that KaTeX refuses."""
    context = browser.new_context()
    page = context.new_page()

    def serve(route) -> None:
        name = route.request.url.removeprefix(PLACE)
        if not name:
            route.fulfill(body="<!doctype html>", content_type="text/html")
        else:
            route.fulfill(path=SCRIPTS / name, content_type=mimetypes.guess_type(name)[0])

    context.route("**/*", serve)
    page.goto(PLACE)
    (script,) = SCRIPTS.glob("rehype-katex.*.js")
    yield lambda equations: page.evaluate(RENDER, [PLACE + script.name, list(equations)])
    context.close()


def test_every_equation_is_drawn(find_refused):
    assert [f"{printed_equations()[latex]}: {latex}" for latex in find_refused(printed_equations())] == []


def test_what_is_no_latex_is_refused(find_refused):
    wrong = [r"\mathbf{X}^{(0)}^2", r"\frac{a}{b", r"\unheard{x}"]
    assert find_refused([*wrong, r"\mathbf{X}^{(0)}"]) == wrong
