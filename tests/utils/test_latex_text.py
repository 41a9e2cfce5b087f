"""LaTeX as plain text and as HTML."""

import pytest

from tracer.utils.text import sentence_math, svg_text, symbol_html, symbol_text, symbol_unicode

SYMBOLS = [
    (r"\mathbf{X}_p", "<b>X</b><sub>p</sub>", "X_p"),
    (r"\mathbf{X}^{(\ell)}", "<b>X</b><sup>(ℓ)</sup>", "X^(ℓ)"),
    (r"\mathbf{X}'^{(1)}", "<b>X</b>′<sup>(1)</sup>", "X′^(1)"),
    (r"\tilde{\mathbf{X}}", "<b>X̃</b>", "X̃"),
    (r"{\mathbf{K}}^{\top}", "<b>K</b><sup>⊤</sup>", "K^⊤"),
    (r"\mathbf{X}_{\mathrm{img}}", "<b>X</b><sub>img</sub>", "X_img"),
    (
        r"\mathcal{U}^{\mathrm{chw}}_{P}\left(\mathbf{X}_p\right)",
        "<i>U</i><sup>chw</sup><sub>P</sub>(<b>X</b><sub>p</sub>)",
        "U^chw_P(X_p)",
    ),
    (r"{\mathbf{X}}^{B \leftrightarrow N}", "<b>X</b><sup>B↔N</sup>", "X^B↔N"),
    (r"\mathbf{<script>}", "<b>&lt;script&gt;</b>", "<script>"),
    (r"\mathbf{X", "<b>X</b>", "X"),
]


@pytest.mark.parametrize(("latex", "html", "text"), SYMBOLS)
def test_symbols_are_written_without_latex(latex, html, text):
    assert symbol_html(latex) == html
    assert symbol_text(latex) == text


def test_subscripts_in_svg_return_to_the_line():
    assert svg_text("<b>X</b><sub>p</sub>") == (
        '<tspan font-weight="700">X</tspan><tspan dy="0.3em" font-size="70%">p</tspan>'
        '<tspan dy="-0.21em">&#8203;</tspan>'
    )


@pytest.mark.parametrize(
    ("latex", "letters"),
    [
        (r"\mathbf{S}", "S"),
        (r"\mathbf{Q}^{(12)}", "Q⁽¹²⁾"),
        (r"\mathbf{X}_f", "X_f"),
        (r"\mathbf{X}_{\mathrm{seq}}", "X_seq"),
        (r"\mathbf{X}'^{(1)}", "X′⁽¹⁾"),
        (r"\tilde{\mathbf{X}}^{(1)}", "X\N{COMBINING TILDE}⁽¹⁾"),
        (r"{\mathbf{K}^{(1)}}^{\top}", "K⁽¹⁾ᵀ"),
        (r"{\mathbf{K}^{\mathrm{enc} (2)}}^{\top}", "K^enc(2)ᵀ"),
        (r"\mathbf{A}^{(1)}\,\mathbf{V}^{(1)}", "A⁽¹⁾ V⁽¹⁾"),
        (r"\mathbf{W}_{1,2}", "W_(1,2)"),
        (r"\mathbf{H}_{\text{layer 0}}", "H_(layer 0)"),
    ],
)
def test_symbols_in_the_terminal(latex, letters):
    assert symbol_unicode(latex) == letters


@pytest.mark.parametrize(
    ("latex", "text"),
    [
        (r"S = QK^\top / \sqrt{D} + M", "S = QKᵀ/√D + M"),
        (r"X_f W_{\text{vocab}} \in [B,T,V]", "X_f W_vocab ∈ [B, T, V]"),
        (r"\gamma \odot \frac{\mathbf{x} - \mu}{\sigma + \epsilon}", "γ ⊙ (x-μ)/(σ + ε)"),
        (r"X \in \mathbb{R}^{(N+1) \times D}", "X ∈ ℝ^((N + 1)×D)"),
        (r"X^{(\ell)} = \frac{QK^\top}{\sqrt{d_{\text{model}} + 1}}", "X⁽ˡ⁾ = QKᵀ/√(d_model + 1)"),
        (r"b \in \mathbb{R}^{768}", "b ∈ ℝ⁷⁶⁸"),
    ],
)
def test_equations_are_text_within_a_sentence(latex, text):
    assert sentence_math(latex) == text
