"""Symbols of lines, by their roles; all differ on a page."""

from __future__ import annotations

from tracer.graph.module_tree import own_name
from tracer.graph.value_shapes import Shapes
from tracer.ops import ACTIVATIONS, CONVOLUTIONS
from tracer.textbook.hints import Hint, Hints
from tracer.textbook.roles import Roles

ACCENTS = (r"\tilde{\mathbf{X}}", r"\hat{\mathbf{X}}", r"\bar{\mathbf{X}}")
"""The first, second and third norm of a block."""
LETTERS = {
    "patches": (r"\mathbf{X}", "p"),
    "I": (r"\mathbf{I}", ""),
    "sequence": (r"\mathbf{X}", r"\mathrm{seq}"),
    "first": (r"\mathbf{x}", "f"),
    "chosen tokens": (r"\mathbf{X}", r"\mathrm{chosen}"),
    "put": (r"\mathbf{X}", r"\mathrm{all}"),
    "tokens": (r"\mathbf{X}", r"\mathrm{tok}"),
    "grid": (r"\mathbf{X}", r"\mathrm{grid}"),
    "places": (r"\mathbf{p}", ""),
    "types": (r"\mathbf{n}", ""),
    "bias": (r"\mathbf{B}", ""),
    "ALiBi": (r"\mathbf{M}", r"\mathrm{ALiBi}"),
    "shares": (r"\mathbf{Y}", ""),
    "memory": (r"\mathbf{KV}", ""),
    "normaliser": (r"\mathbf{z}", ""),
    "one": ("r", ""),
    **dict.fromkeys(("position", "placed"), (r"\mathbf{X}", "P")),
    "angles": (r"\boldsymbol{\Theta}", ""),
    "cosine": (r"\mathbf{c}", ""),
    "sine": (r"\mathbf{s}", ""),
    "P": (r"\mathbf{X}", "P"),
    "E": (r"\mathbf{X}", "E"),
    "state": (r"\mathbf{h}", ""),
    "cell": (r"\mathbf{c}", ""),
    "state normaliser": (r"\mathbf{n}", ""),
    "stabiliser": (r"\mathbf{m}", ""),
    "read": (r"\mathbf{y}", ""),
    "decay": (r"\bar{\mathbf{A}}", ""),
    "enter": (r"\bar{\mathbf{B}}", ""),
    "delta": (r"\boldsymbol{\Delta}", ""),
    "router": (r"\mathbf{r}", ""),
    "routed": (r"\mathbf{p}", ""),
    "top": (r"\mathbf{p}", r"\mathrm{top}"),
    "gates": (r"\mathbf{g}", ""),
    "chosen": (r"\mathbf{e}", ""),
    "gate": (r"\mathbf{U}", "g"),
    "gated": (r"\mathbf{U}'", ""),
}
"""Letters of roles that differ from the role, with their subscripts."""


def text(words: str) -> str:
    r"""Return words of a program as a subscript, `\text{down\_proj}`; "" if there are none."""
    return rf"\text{{{words.replace('_', chr(92) + '_')}}}" if words else ""


TOKEN = {"cls": "cls", "class": "cls", "mask": "mask"}
"""Subscripts of parameter tokens, by the beginning of their names."""


class StepSymbols:
    """`of[key]` is the LaTeX of a line's tensor."""

    def __init__(self, roles: Roles, shapes: Shapes, hints: dict[str, Hint], hint_letters: Hints):
        self._roles, self._graph, self._places = roles, roles.graph, roles.places
        self._shapes, self._hints, self._hint_letters = shapes, hints, hint_letters
        self.of: dict[str, str] = {}
        self._taken: set[str] = set()
        names = {roles.name(key) for key in roles.plan.lines}
        self._convolves = bool(names & CONVOLUTIONS) and not roles.plan.sites and not names & {"embedding", "scan"}
        for key in roles.plan.lines:
            letter, below, above = self._line(key)
            if hint_letters := hints[key].letter:
                letter, below, above = self._by_hand(hint_letters, roles.module(key))
            self.of[key] = self._unlike(letter, below, above, plain=True)

    def mask(self, part: str) -> str:
        """Return the LaTeX of a mask that only a kernel in a tower has, in no block."""
        return self._unlike(r"\mathbf{M}", "", rf"\mathrm{{{mark}}}" if (mark := self._places.tower(part)) else "")

    def superscript(self, module: str) -> str:
        """Return the superscript of a module's lines: its tower and the number of its block."""
        tower, numbers = self._places.tower(module), self._places.numbers(module)
        return " ".join(([rf"\mathrm{{{tower}}}"] if tower else []) + ([f"({numbers})"] if numbers else []))

    def _by_hand(self, hinted: str, module: str) -> tuple[str, str, str]:
        r"""Return the letter of a hint with its subscript and superscript: `\mathbf{X}_{\mathrm{txt}}^{(0)}`."""
        own = ""
        if hinted.endswith("}") and "^{" in hinted:
            hinted, _, own = hinted[:-1].rpartition("^{")
        letter, _, below = hinted.partition("_")
        below = below[1:-1] if below.startswith("{") else below
        return letter, below, " ".join(filter(None, (self.superscript(module), own)))

    def _line(self, key: str) -> tuple[str, str, str]:
        """Return the letter of a line, its subscript and its superscript."""
        roles = self._roles
        role, module = roles.of.get(key, ""), roles.module(key)
        above = self.superscript(module)
        if key in roles.first:
            tower = rf"\mathrm{{{mark}}}" if (mark := roles.first[key]) else ""
            return r"\mathbf{X}", "", " ".join(filter(None, (above or tower, "(0)")))
        if self._convolves and (letter := self._map(key, role)):
            return letter, text(own_name(module)), above
        if role == "norm":
            nth = roles.nth.get(key)
            if nth == 0:
                return r"\mathbf{X}", "f", above
            if nth is None:
                return r"\mathbf{X}", text(own_name(module)), above
            return (ACCENTS[nth - 1], "", above) if nth <= len(ACCENTS) else (ACCENTS[0], text(own_name(module)), above)
        if role == "mix":
            return r"\mathbf{X}", text(roles.mixed[key].rpartition(".")[2]), above
        if role == "every token":
            return r"\mathbf{X}", token(self._graph.root(key).rpartition(".")[2]) or r"\mathrm{same}", above
        if role == "result":
            return r"\mathbf{Z}", text(roles.result_name(key)) or r"\mathrm{out}", above
        if role == "pre-activations":
            return r"\mathbf{a}", text(self._own(module)) if module else "", above
        if role in LETTERS:
            return *LETTERS[role], above
        if role in ("QKV", "QK", "KV"):
            return rf"\mathbf{{{role}}}", "", above
        if role:
            letter, primes = role.rstrip("'"), role[len(role.rstrip("'")) :]
            return rf"\mathbf{{{letter}}}" + primes, "", above
        return r"\mathbf{Y}", text(self._own(module)) if module else "", above

    def _own(self, module: str) -> str:
        """Return a module's own name; that of a block without its number, which is the superscript."""
        if self._places.prefix(module) != module:
            return own_name(module)
        around = module.rpartition(".")[0].rpartition(".")[2]
        return module.rpartition(".")[2].rstrip("0123456789") or around or "block"

    def _map(self, key: str, role: str) -> str:
        """Return the letter of a feature map in a convolutional net: Z if normalised, X after an activation."""
        name = self._roles.name(key)
        if name in CONVOLUTIONS and role != "Z":
            return r"\mathbf{Z}"
        if role == "norm":
            return r"\hat{\mathbf{Z}}"
        return r"\mathbf{X}" if name in ACTIVATIONS and role in ("", "G") else ""

    def _unlike(self, letter: str, below: str, above: str, plain: bool = False) -> str:
        """Return a symbol that no other line has, with a number if it is taken; `plain`: a subscript without braces."""
        number, name = 1, _name(letter, below, above)
        if plain and len(below) == 1:
            name = name.replace(f"_{{{below}}}", f"_{below}", 1)
        while name in self._taken:
            number += 1
            name = _name(letter, f"{below},{number}" if below else str(number), above)
        self._taken.add(name)
        return name


def token(name: str) -> str:
    """Return the subscript of a parameter token, by its own name; "" for others."""
    name = name.removeprefix("parameter ").lower()
    return next((rf"\mathrm{{{mark}}}" for word, mark in TOKEN.items() if name.startswith(word)), "")


def _name(letter: str, below: str, above: str) -> str:
    r"""Return a letter with its subscript and superscript, primes first: `\mathbf{X}'^{(1)}`."""
    bare = letter.rstrip("'")
    primes = letter[len(bare) :]
    if bare.endswith("^2") and above:
        bare, above = bare[:-2], f"2 {above}"
    return bare + (f"_{{{below}}}" if below else "") + primes + (f"^{{{above}}}" if above else "")
