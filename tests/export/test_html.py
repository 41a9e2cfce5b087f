"""Page of a trace as HTML: well-formed, harmless, its equations drawn, nothing loaded from elsewhere."""

import dataclasses
import re
from html.parser import HTMLParser

import pytest
import torch

import tracer
from tests.export.test_formats import hostile
from tests.support.handmade import sample
from tracer import export
from tracer.export import to_html


class Tags(HTMLParser):
    """Tags and attributes of a piece of HTML, and whether each tag is closed."""

    def __init__(self, text: str):
        super().__init__()
        self.seen, self.open = set(), []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.seen.add((tag, *(name for name, _ in attrs)))
        if tag not in ("br", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_html_is_well_formed_and_harmless():
    for level in export.LEVELS:
        tags = Tags(export.render(hostile(), level, "html"))
        assert not tags.open
        ours = set("meta div style strong span abbr table tr th td br code".split())
        assert {tag for tag, *_ in tags.seen} <= ours | to_html.TAGS
        assert {name for _, *names in tags.seen for name in names} <= {
            "class",
            "title",
            "charset",
            "rowspan",
        } | to_html.ATTRIBUTES


def test_equations_in_html_are_drawn():
    """Latex of every kind our equations have becomes MathML."""
    for latex in (
        r"\mathbf{X}''^{(1)} = \mathbf{X}'^{(1)} + {\mathbf{X}'''^{\mathrm{dec} (1)}}^{\top}",
        r"\tilde{\mathbf{X}}^{(1)} = \frac{\mathbf{X}^{(0)} - \mu}{\sqrt{\sigma^2 + \epsilon}} \odot \gamma_{1}^{(1)}",
        r"\frac{\mathbf{Q}\,{\mathbf{K}^{(1)}}^{\top}}{\sqrt{d_k}} + \mathbf{M}",
        r"\operatorname{softmax}\left(\left[\mathbf{x}_{\mathrm{cls}}\ ;\ \mathbf{I}\right]\right)",
        r"\begin{cases} 0 & j \le i \\ -\infty & j > i \end{cases}",
    ):
        assert to_html.equation(latex).startswith("<math ")
    assert "<mi>𝐊</mi>" in to_html.equation(r"\mathbf{K}")


@pytest.mark.parametrize(
    ("latex", "name"),
    [
        (r"\operatorname{rotate\_half}\left(\mathbf{Q}\right)", "<mtext>rotate_half</mtext>"),
        (r"\operatorname{ReLU6}\left(\mathbf{U}\right)", "<mtext>ReLU6</mtext>"),
        (r"\operatorname{softmax}\left(\mathbf{S}\right)", "<mo>softmax</mo>"),
        (r"\mathbf{b}_{\text{dt\_proj}}", "<mtext>dt_proj</mtext>"),
    ],
)
def test_a_name_is_one_word_without_backslashes(latex, name):
    assert name in to_html.equation(latex)


def test_the_brace_of_cases_is_as_tall_as_their_rows_without_a_mathematical_font():
    for rows in (2, 3):
        drawn = to_html.equation(r"\begin{cases} " + r" \\ ".join(["0 & j"] * rows) + r" \end{cases}")
        [brace] = re.findall(r"<mo ([^>]*)>{</mo>", drawn)
        assert 'stretchy="false"' in brace and f"scaleY({1.2 * rows:g})" in brace
        assert drawn.count('<mtd style="text-align: left">') == 2 * rows and "columnalign" not in drawn


@pytest.mark.parametrize(
    "latex",
    [
        r"\href{javascript:alert(1)}{x}",
        r"\text{<img src=x onerror=alert(1)>}",
        r"\text{</math><script>alert(1)</script>}",
        r"\style{position:fixed}{x}",
        r"\class{other}{x}",
        r"\color{red}{x}",
        r"x^{1}^{2}",
        "{" * 5000,
    ],
)
def test_equations_that_are_more_than_mathematics_stay_text(latex):
    assert to_html.equation(latex) == f"<code>{to_html.text(latex)}</code>"


def test_html_loads_nothing():
    assert not re.search(r"https?:|url\(|@import|src=", export.html(sample()))


def test_a_bold_letter_is_a_character_of_its_own():
    """Browsers read no variant of a letter but `normal`."""
    page = to_html.equation(r"\mathbf{QKV} + \boldsymbol{\gamma}_1 + \boldsymbol{0}")
    assert all(letter in page for letter in "𝐐𝐊𝐕𝜸𝟎") and "mathvariant" not in page


def merge(heads):
    return heads.reshape(2, 5, 12)  # [B, h, T, d_k], not transposed


def test_a_notebook_shows_the_findings_of_a_run_and_each_alone():
    trace = tracer.trace(merge, torch.randn(2, 3, 5, 4))
    (finding,) = trace.findings
    for shown in (trace, trace.findings, finding):
        page = shown._repr_html_()
        assert not Tags(page).open and finding.kind in page and "<code>.transpose(1, 2)</code>" in page
    right = tracer.trace(lambda heads: heads.transpose(1, 2).reshape(2, 5, 12), torch.randn(2, 3, 5, 4))
    assert "No finding" in right.findings._repr_html_() and "axes mixed" not in right._repr_html_()


def test_a_notebook_shows_one_step_with_its_reason():
    step = dataclasses.replace(sample().steps[-1], why="Because x < y.")
    page = step._repr_html_()
    assert not Tags(page).open and "Because x &lt; y." in page and to_html.equation(step.latex) in page


def test_cells_are_on_the_left_in_a_notebook():
    """Jupyter's own style would put them on the right."""
    assert re.search(r"td \{ text-align: left !important", to_html.STYLE)


def test_a_trace_shows_itself_in_a_notebook():
    assert sample()._repr_html_() == export.html(sample().diagnose())
    assert "1.5e-07" in export.html(sample()) and "[B, h, N+1, N+1]" in export.html(sample())
