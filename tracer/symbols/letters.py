r"""Letters of the texts: one table of what each text calls our sizes and tensors, and the rewriting of printed lines.

The line stays the same object with the same numbers; only the letters of its names change. Tensors stay bold in every
text, and keep the number of their block. Where a text has one letter for two things of a model, the table gives one of
them a subscript; `Letters` leaves ours where a letter of the text would still look like another name of the run.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from typing import NamedTuple

from tracer.symbols import notation

# The table.

OURS = "ours"
TEXTS = (OURS, "000", "001", "002", "003", "004", "2017", "2021")
"""The five notes by number; Vaswani et al. 2017, section 3; Dosovitskiy et al. 2021, sections 3.1 and A."""

SIZES: Mapping[str, Mapping[str, str]] = {
    "B": {"003": "N"},
    "N": {"003": "N_p"},
    "T": {"004": "n", "2017": "n"},
    "D": {"004": "d_model", "2017": "d_model"},
    "h": {"004": "H", "2021": "k"},
    "H": {"004": "H_img"},
    "W": {"004": "W_img"},
    "d_k": {"002": "D_h", "2021": "D_h"},
}
"""Names of our sizes in each text that has another. 003 counts the batch as N, so its patches have a subscript; 004
counts the heads as H, so the sides of a picture have one."""

TENSORS: Mapping[str, Mapping[str, str]] = {
    # patches and tokens
    r"\mathbf{X}_p": {
        "000": r"\mathbf{X}_{\mathrm{patch}}",
        "001": r"\mathbf{X}_{\mathrm{patches}}",
        "002": r"\mathbf{x}_p",
        "2021": r"\mathbf{x}_p",
    },
    r"\mathbf{W}_E": {"000": r"\mathbf{W}_{\mathrm{patch}}", "002": r"\mathbf{W}_{LP}", "2021": r"\mathbf{E}"},
    r"\mathbf{b}_E": {"000": r"\mathbf{b}_{\mathrm{patch}}"},
    r"\mathbf{X}_{\mathrm{patch}}": {
        "001": r"\mathbf{X}_{\mathrm{patches}}",
        "002": r"\mathbf{x}_p",
        "2021": r"\mathbf{x}_p",
    },
    r"\mathbf{W}_{\mathrm{patch}}": {"001": r"\mathbf{W}_E", "002": r"\mathbf{W}_{LP}"},
    r"\mathbf{b}_{\mathrm{patch}}": {"001": r"\mathbf{b}_E"},
    r"\mathbf{I}": {"001": r"\mathbf{Z}_{\mathrm{patches}}"},
    r"\mathbf{x}_{\mathrm{cls}}": {
        "001": r"\mathbf{z}_{\mathrm{cls}}",
        "002": r"\mathbf{w}_{CLS}",
        "2021": r"\mathbf{x}_{\mathrm{class}}",
    },
    r"\mathbf{X}_{\mathrm{seq}}": {"001": r"\mathbf{Z}_{\mathrm{seq}}"},
    r"\mathbf{P}": {
        "001": r"\mathbf{P}_{\mathrm{pos}}",
        "002": r"\mathbf{W}_{\mathrm{pos}}",
        "2017": r"\mathbf{PE}",
        "2021": r"\mathbf{E}_{pos}",
    },
    r"\mathbf{X}_t": {"004": r"\mathbf{X}"},
    r"\mathbf{X}_E": {"004": r"\mathbf{X}"},
    # the residual stream and its norms
    r"\mathbf{X}^{(0)}": {
        "001": r"\mathbf{Z}^{(0)}",
        "002": r"\mathbf{Z}_0",
        "004": r"\mathbf{Z}^{(0)}",
        "2021": r"\mathbf{z}_0",
    },
    r"\mathbf{X}": {
        "001": r"\mathbf{Z}",
        "002": r"\mathbf{Z}_{\ell}",
        "004": r"\mathbf{Z}_{\mathrm{out}}",
        "2021": r"\mathbf{z}_{\ell}",
    },
    r"\mathbf{X}'": {
        "001": r"\mathbf{Z}'",
        "002": r"\mathbf{Z}'_{\ell}",
        "004": r"\mathbf{Z}'",
        "2021": r"\mathbf{z}'_{\ell}",
    },
    r"\tilde{\mathbf{X}}": {"001": r"\tilde{\mathbf{Z}}"},
    r"\hat{\mathbf{X}}": {"001": r"\hat{\mathbf{Z}}"},
    r"\mathbf{X}_f": {"001": r"\mathbf{Z}_f"},
    # attention
    **{
        rf"\mathbf{{W}}_{name}": dict.fromkeys(("004", "2017"), rf"\mathbf{{W}}^{{{name}}}")
        for name in ("Q", "K", "V", "O")
    },
    r"\mathbf{S}": {"001": r"\mathbf{A}"},
    r"\mathbf{A}": {"001": r"\hat{\mathbf{A}}"},
    r"\mathbf{H}": {"001": r"\mathbf{SA}", "002": r"\mathbf{Z}_{\mathrm{heads}}", "004": r"\mathbf{O}"},
    r"\mathbf{O}": {
        "001": r"\mathbf{MSA}",
        "002": r"\mathbf{Z}_{\mathrm{out}}",
        "004": r"\mathbf{O}'",
        "2021": r"\mathbf{MSA}",
    },
    # the MLP
    r"\mathbf{F}": {
        "000": r"\mathbf{M}_{\mathrm{MLP}}",
        "001": r"\mathbf{MLP}",
        "002": r"\mathbf{MLP}",
        "004": r"\mathbf{FFN}",
        "2017": r"\mathbf{FFN}",
        "2021": r"\mathbf{MLP}",
    },
    # the head
    r"\mathbf{X}_{\mathrm{patches}}": {"001": r"\mathbf{Z}_{\mathrm{patches}}^{\mathrm{out}}"},
    r"\mathbf{X}_{\mathrm{grid}}": {"001": r"\mathbf{Z}_{\mathrm{grid}}"},
    r"\mathbf{x}_f": {"001": r"\mathbf{z}_f", "2021": r"\mathbf{y}"},
    r"\mathbf{x}_{\mathrm{out}}": {"001": r"\mathbf{z}_{\mathrm{out}}"},
    r"\mathbf{W}_{\mathrm{out}}": {"004": r"\mathbf{W}^{\mathrm{out}}"},
    r"\mathbf{Z}": {
        "001": r"\hat{\mathbf{y}}",
        "002": r"\mathbf{Z}_{\mathrm{logits}}",
        "004": r"\mathbf{logits}",
    },
}
r"""Letters of our tensors in each text that has another. `\ell` stands for the number of the block where a text has it
below; else it stays above. 001 writes `\mathbf{Z}` for all of the stream, and 002 for the joined heads too: the indices
say which. 000 has M for the mask and for the result of the MLP."""
ROLES: Mapping[str, Mapping[str, str]] = {"probabilities": {"004": r"\mathbf{probs}"}}
"""Letters by the role of a step, for letters that are of several things."""


# Names, as they are printed.

_NAME = re.compile(
    r"""(?P<letter>(?:\\(?:tilde|hat|bar|check)\{\\(?:mathbf|boldsymbol)\{[^{}]*\}\}|\\(?:mathbf|boldsymbol)\{[^{}]*\}))
    (?P<early>'*)(?:_(?:\{(?P<below>(?:[^{}]|\{[^{}]*\})*)\}|(?P<one>\w)))?(?P<primes>'*)
    (?:\^\{(?P<above>(?:[^{}]|\{[^{}]*\})*)\})?""",
    re.VERBOSE,
)
_BLOCK = re.compile(r"\((?P<number>\d+(?:\.\d+)*|\\ell(?:[+-]\d+)?)\)$")


class _Name(NamedTuple):
    """A printed name: its letter with accents, subscript, primes, and superscript without the number of its block."""

    letter: str
    below: str
    primes: str
    above: str
    block: str

    @property
    def stem(self) -> tuple[str, str, str]:
        return self.letter, self.below, self.primes


@lru_cache(maxsize=4096)
def _read(symbol: str) -> _Name | None:
    match = _NAME.fullmatch(symbol)
    if match is None:
        return None
    above = match["above"] or ""
    block = _BLOCK.search(above)
    rest = above[: block.start()].strip() if block else above
    below = match["below"] or match["one"] or ""
    return _Name(match["letter"], below, match["early"] + match["primes"], rest, block["number"] if block else "")


def _write(name: _Name) -> str:
    above = " ".join(filter(None, (name.above, f"({name.block})" if name.block else "")))
    return name.letter + (f"_{{{name.below}}}" if name.below else "") + name.primes + (f"^{{{above}}}" if above else "")


@lru_cache(maxsize=len(TEXTS))
def _table(text: str) -> dict[tuple[tuple[str, str, str], str], _Name]:
    """Return the names of a text by our stem and the number of a block, "" for any."""
    table = {}
    for ours, others in TENSORS.items():
        if text in others and (own := _read(ours)) and (name := _read(others[text])):
            table[own.stem, own.block] = name
    return table


def _translate(symbol: str, role: str, text: str) -> str:
    """Return the name of a tensor in a text, in which nothing is known of other names."""
    own = _read(symbol)
    if own is None:
        return symbol
    table = _table(text)
    name = _read(ROLES[role][text]) if text in ROLES.get(role, ()) else None
    name = name or table.get((own.stem, own.block)) or table.get((own.stem, ""))
    if name is None:
        return symbol
    above = " ".join(filter(None, (name.above, own.above)))
    if r"\ell" in name.below:
        return _write(name._replace(below=own.block, above=above)) if own.block else symbol
    has_number = name.block or any(sign.isdigit() for sign in name.below)
    return _write(name._replace(above=above, block=name.block if has_number else own.block))


def look(latex: str) -> str:
    r"""Return how a name looks in plain type: `\mathbf{H}` and `H` look alike."""
    return re.sub(r"\\(?:mathbf|boldsymbol|mathrm|text)(?![A-Za-z])|[{}\s]|\\[,; ]", "", latex)


# Lines.

_GROUP = r"\\(?:mathbf|boldsymbol|mathrm|text|operatorname|mathcal|mathbb|begin|end)\{[^{}]*\}"
_INDEX = re.compile(rf"{_GROUP}|\\[A-Za-z]+|[a-z]")


class PrintedNames(NamedTuple):
    """All that the lines of a run name: its sizes, its tensors as they are printed with their roles, and the lines."""

    sizes: tuple[str, ...]
    tensors: Mapping[str, str]
    lines: tuple[str, ...]


class Letters:
    """Letters of a text for the names of one run; `size` and `tensor` have the names that differ from ours."""

    def __init__(self, text: str, run: PrintedNames):
        tensors, printed = run.tensors, {notation.latex(name): name for name in run.sizes}
        wanted = {latex: notation.latex(SIZES.get(name, {}).get(text, name)) for latex, name in printed.items()}
        wanted |= {symbol: _translate(symbol, role, text) for symbol, role in tensors.items()}
        known = _pattern(wanted)
        indices = {sign for line in run.lines for sign in _INDEX.findall(known.sub("", line)) if len(sign) == 1}
        names = _without_lookalikes(wanted, indices)
        self.size = {name: SIZES[name][text] for latex, name in printed.items() if names[latex] != latex}
        self.tensor = {symbol: names[symbol] for symbol in tensors if names[symbol] != symbol}
        self._names, self._pattern = names, known
        self._symbols = {notation.symbol(name): notation.symbol(other) for name, other in self.size.items()}

    def line(self, latex: str) -> str:
        """Return a printed line in these letters."""
        if not (self.size or self.tensor):
            return latex

        def other(match: re.Match) -> str:
            name = match["name"]
            if name is None:
                return match[0]
            theirs = self._names[name]
            script = latex[match.end() : match.end() + 1]
            return f"{{{theirs}}}" if script in ("_", "^") and script in theirs and theirs != name else theirs

        return self._pattern.sub(other, latex)

    def markdown(self, text: str) -> str:
        """Return sentences with their mathematics in these letters."""
        return re.sub(r"\$[^$]+\$", lambda match: self.line(match[0]), text)

    def formula(self, symbolic: str) -> str:
        """Return a symbolic dimension in these letters."""
        return (
            symbolic if symbolic == "?" or not self._symbols else str(notation.parse(symbolic).xreplace(self._symbols))
        )

    def shape(self, symbolic: Iterable[str]) -> tuple[str, ...]:
        """Return a symbolic shape in these letters."""
        return tuple(map(self.formula, symbolic))

    @cached_property
    def differences(self) -> list[tuple[str, str]]:
        """Return what these letters call our sizes and tensors, where that differs: pairs of LaTeX, each tensor once
        for all blocks."""
        pairs = {notation.latex(name): notation.latex(other) for name, other in self.size.items()}
        for symbol, other in self.tensor.items():
            own, name = _read(symbol), _read(other)
            if own is not None and name is not None and own.block and own.block != "0":
                below = r"\ell" if name.below == own.block else name.below
                symbol = _write(own._replace(block=r"\ell"))
                other = _write(name._replace(below=below, block=r"\ell" if name.block else ""))
            pairs.setdefault(symbol, other)
        return list(pairs.items())


def _pattern(names: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern of names, the longest first, and of commands that have letters which are none."""
    alternatives = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True) if name)
    own = rf"(?P<name>{alternatives})" if alternatives else r"(?P<name>(?!))"
    return re.compile(rf"{own}|{_GROUP}|\\[A-Za-z]+")


def _without_lookalikes(wanted: Mapping[str, str], indices: set[str]) -> dict[str, str]:
    """Return names by ours, where ours stays for those whose other name looks like that of something else, or like an
    index. A size and a tensor may share a letter where they do so in ours: it is italic for one and bold for the
    other."""
    names = dict(wanted)
    while True:
        groups = defaultdict(list)
        for own, name in names.items():
            groups[look(name)].append(own)
        clash = set()
        for seen, group in groups.items():
            apart = {look(own) for own in group}, {names[own] for own in group}
            if seen in indices or len(apart[0]) > 1 or len(apart[1]) < len(group):
                clash |= {_stem(own) for own in group if names[own] != own}
        if not clash:
            return names
        names = {own: own if _stem(own) in clash else name for own, name in names.items()}


def _stem(symbol: str) -> object:
    name = _read(symbol)
    return (name.stem, name.block == "0") if name else symbol


OWN = Letters(OURS, PrintedNames((), {}, ()))
"""Our letters, for any run."""
