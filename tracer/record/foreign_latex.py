"""LaTeX from outside: displayed only where it is mathematics and stays in its line."""

from __future__ import annotations

import re

from tracer.utils.error_text import quote

LATEX = 2000
"""Letters of an equation; the longest of ours has 240."""
MAX_DEPTH = 16
"""Braces within each other in an equation."""
COMMANDS = frozenset(
    """
    alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa varkappa lambda mu nu xi pi varpi rho
    varrho sigma varsigma tau upsilon phi varphi chi psi omega digamma
    Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega ell hbar imath jmath aleph nabla partial infty emptyset
    Re Im prime forall exists nexists neg lnot top bot angle
    mathbf mathrm mathit mathsf mathtt mathcal mathbb mathfrak mathscr boldsymbol bm operatorname text textbf textit
    texttt textrm mathop mathord mathbin mathrel displaystyle textstyle scriptstyle limits nolimits
    hat widehat tilde widetilde bar overline underline vec dot ddot check breve acute grave mathring
    frac dfrac tfrac sqrt binom sum prod int oint bigcup bigcap bigoplus bigotimes coprod
    sin cos tan cot sec csc sinh cosh tanh coth arcsin arccos arctan exp log ln lg min max sup inf lim limsup liminf
    arg det dim ker gcd deg hom Pr bmod mod pmod
    times cdot div pm mp ast star circ bullet odot oplus ominus otimes oslash wedge vee land lor cap cup setminus
    le leq ge geq ne neq equiv approx sim simeq cong propto ll gg prec succ in notin ni subset supset subseteq supseteq
    mid nmid parallel perp to gets rightarrow leftarrow leftrightarrow Rightarrow Leftarrow Leftrightarrow mapsto
    uparrow downarrow updownarrow longrightarrow longleftarrow implies iff rightharpoonup leftharpoonup hookrightarrow
    left right middle big Big bigg Bigg bigl bigr Bigl Bigr langle rangle lfloor rfloor lceil rceil lvert rvert lVert
    rVert vert Vert lbrace rbrace lbrack rbrack backslash
    ldots cdots vdots ddots dots dotsb dotsc dotsm quad qquad colon begin end
    overbrace underbrace overset underset stackrel substack
    """.split()
)
"""Commands of mathematics: none reads, writes, defines, colours, or takes a length, so that none leaves its line."""
SIGNS = frozenset(",;:! {}|_\\&#$%")
"""Signs that make a command with a backslash before them."""
ROWS = 64
"""Rows of all matrices of an equation together."""
BLOCKS = re.compile(r"\\(?:begin|end)\{(?!(?:\w?matrix|cases|aligned|array)\})")


def mathematics(latex: str, where: str) -> None:
    """Raise ValueError unless the LaTeX is short, has matching braces, few rows and commands of mathematics alone."""
    if len(latex) > LATEX:
        raise ValueError(f"{where}: expected LaTeX of at most {LATEX:,} letters, got {len(latex):,}")
    bare = re.sub(r"\\.", "", latex)
    depth = 0
    for letter in bare:
        depth += (letter == "{") - (letter == "}")
        if not 0 <= depth <= MAX_DEPTH:
            break
    if depth:
        raise ValueError(f"{where}: expected LaTeX with matching braces, at most {MAX_DEPTH} within each other")
    if set(bare) & set("$%#~"):
        raise ValueError(f"{where}: expected LaTeX for mathematics, without $, %, # and ~")
    for word, sign in re.findall(r"\\(?:([A-Za-z]+)|(.?))", latex, re.DOTALL):
        if (word and word not in COMMANDS) or (not word and sign not in SIGNS) or not (word or sign):
            raise ValueError(f"{where}: expected LaTeX for mathematics, got {quote(chr(92) + word + sign)}")
    if block := BLOCKS.search(latex) or re.search(r"\^\^|\\\\\s*[\[*]", latex):
        raise ValueError(f"{where}: expected LaTeX for mathematics, got {quote(block.group())}")
    if latex.count(r"\\") > ROWS:
        raise ValueError(f"{where}: expected LaTeX of at most {ROWS} rows, got {latex.count(chr(92) * 2):,}")
