"""The letters of a page: of each line by its role, of each parameter by the line that takes it; no two alike."""

from __future__ import annotations

from collections import Counter

from tracer.derive.graph import base, refs
from tracer.derive.roles import NORMS, Roles

ACCENTS = (r"\tilde{\mathbf{X}}", r"\hat{\mathbf{X}}", r"\bar{\mathbf{X}}")
"""The first, second and third norm of a block."""
LETTERS = {
    "patches": (r"\mathbf{X}", "p"),
    "I": (r"\mathbf{I}", ""),
    "sequence": (r"\mathbf{X}", r"\mathrm{seq}"),
    "first": (r"\mathbf{x}", "f"),
    "angles": (r"\boldsymbol{\Theta}", ""),
    "cosine": (r"\mathbf{c}", ""),
    "sine": (r"\mathbf{s}", ""),
    "P": (r"\mathbf{P}", ""),
    "E": (r"\mathbf{X}", "E"),
    "router": (r"\mathbf{r}", ""),
    "routed": (r"\mathbf{p}", ""),
    "top": (r"\mathbf{p}", r"\mathrm{top}"),
    "gates": (r"\mathbf{g}", ""),
    "chosen": (r"\mathbf{e}", ""),
}
"""Letters of roles outside of blocks, with what stands below them."""
WEIGHTS = {"router": "r", "I": "E", "U": "1", "U'": "3", "F": "2", "Z": r"\mathrm{out}"}
"""What stands below the matrix of a role whose letter does not."""


def text(words: str) -> str:
    r"""Words of a program below a letter: `\text{down\_proj}`."""
    return rf"\text{{{words.replace('_', chr(92) + '_')}}}"


class Names:
    """`of[key]` is the LaTeX of a line's tensor; `parameter(path)` that of a parameter or buffer."""

    def __init__(self, roles: Roles):
        self._roles, self._graph, self._places = roles, roles.graph, roles.places
        self.of: dict[str, str] = {}
        self.parts: dict[str, tuple[str, str, str]] = {}
        self._taken: set[str] = set()
        self._norms: Counter = Counter()
        for key in roles.plan.lines:
            self.of[key] = self._unlike(*self._line(key))
        self._users = self._uses()
        self._parameters: dict[str, str] = {}

    def above(self, module: str) -> str:
        """What stands above the letters of a module's lines: its tower and the number of its block."""
        tower, numbers = self._places.tower(module), self._places.numbers(module)
        return " ".join(([rf"\mathrm{{{tower}}}"] if tower else []) + ([f"({numbers})"] if numbers else []))

    def _line(self, key: str) -> tuple[str, str, str]:
        """The letter of a line, what stands below it and what above."""
        roles = self._roles
        role, module = roles.of.get(key, ""), roles.module(key)
        above = self.above(module)
        if role == "norm":
            nth = self._norms[above]
            self._norms[above] += 1
            if not self._places.numbers(module):
                last = all(self._roles.places.numbers(self._roles.module(o)) for o in self._roles.operands[key])
                return r"\mathbf{X}", "f" if last else text(_own(module)), above
            return (ACCENTS[nth], "", above) if nth < len(ACCENTS) else (ACCENTS[0], text(_own(module)), above)
        if role == "X0":
            return r"\mathbf{X}", "", above + ("(0)" if not above else " (0)")
        if role in LETTERS:
            return *LETTERS[role], above
        if role in ("QKV", "QK", "KV"):
            return rf"\mathbf{{{role}}}", "", above
        if role:
            letter, primes = role.rstrip("'"), role[len(role.rstrip("'")) :]
            return rf"\mathbf{{{letter}}}" + primes, "", above
        return r"\mathbf{Y}", text(_own(module)) if module else "", above

    def _unlike(self, letter: str, below: str, above: str) -> str:
        """A name that no other line has: the second one of a kind gets a number."""
        number, name = 1, _name(letter, below, above)
        while name in self._taken:
            number += 1
            name = _name(letter, f"{below},{number}" if below else str(number), above)
        self._taken.add(name)
        return name

    def _uses(self) -> dict[str, list[tuple[str, str]]]:
        """The lines that take a parameter, each with the name of the call that does."""
        found: dict[str, list[tuple[str, str]]] = {}
        plan, graph = self._roles.plan, self._graph
        for key in plan.lines:
            raw = plan.raw(key)
            for index in plan.inside[raw] if raw is not None else ():
                for ref in refs(graph.calls[index].arguments):
                    root = graph.root(ref.key)
                    if root.startswith("parameter "):
                        found.setdefault(root, []).append((key, base(graph.calls[index].name)))
        return found

    def given(self, key: str) -> str:
        """The LaTeX of an input, by its key `input NAME`: token numbers **t**, a photo **X**_img, else **x**."""
        if key not in self._parameters:
            ref, name = self._graph.ref[key], key.removeprefix("input ")
            if not ref.dtype.is_floating_point and not ref.dtype.is_complex and "id" in name:
                letter, below = r"\mathbf{t}", "" if name in ("input_ids", "ids", "tokens", "t") else text(name)
            elif len(ref.shape) == 4 and ref.shape[1] in (1, 3):
                letter, below = r"\mathbf{X}", r"\mathrm{img}"
            else:
                letter, below = r"\mathbf{x}", text(name) if name not in ("x", "input", "inputs", "0") else ""
            self._parameters[key] = self._unlike(letter, below, "")
        return self._parameters[key]

    def parameter(self, key: str) -> str:
        """The LaTeX of a parameter or buffer, by its key `parameter PATH`."""
        if key not in self._parameters:
            self._parameters[key] = self._unlike(*self._parameter(key))
        return self._parameters[key]

    def _parameter(self, key: str) -> tuple[str, str, str]:
        path = key.removeprefix("parameter ")
        module, _, own = path.rpartition(".")
        uses = self._users.get(key, [])
        lines = dict.fromkeys(line for line, _ in uses)
        role = self._roles.of.get(next(iter(lines)), "") if len(lines) == 1 else ""
        above = self.above(module)
        below = WEIGHTS.get(role, role.rstrip("'")) if role not in ("norm", "X", "X0", "R", "H", "G", "E", "P") else ""
        if below in ("", "S", "A"):
            below = text(_own(module) or own)
        calls = {call for _, call in uses}
        if calls & {"experts"}:
            weights = [ref.key for ref in self._roles.call(uses[0][0]).arguments["weights"]]
            rank = len(self._graph.shape(key))
            number = 1 + [one for one in weights if len(self._graph.shape(one)) == rank].index(key)
            return r"\mathbf{W}" if rank > 2 else r"\mathbf{b}", str(number), above
        of_norm = calls & NORMS or "norm" in self._kind(lines).lower()
        if of_norm and self._roles.of.get(next(iter(lines), "")) == "norm":
            accent = self._norm_number(next(iter(lines)))
            below = accent or below
        match own:
            case "running_mean":
                return r"\boldsymbol{\mu}", below, above
            case "running_var":
                return r"\boldsymbol{\sigma}^2", below, above
            case "weight" if of_norm:
                return r"\boldsymbol{\gamma}", below, above
            case "bias" if of_norm:
                return r"\boldsymbol{\beta}", below, above
            case "bias":
                return r"\mathbf{b}", below, above
        if calls & {"embedding"}:
            return r"\mathbf{E}", "" if len(self._tables()) < 2 else text(_own(module)), above
        if not self._graph.ref[key].dtype.is_floating_point:
            return r"\mathbf{n}", text(own), above
        if "pos" in own.lower():
            return r"\mathbf{P}", "", above
        if own.lower().startswith(("cls", "class")):
            return r"\mathbf{x}", r"\mathrm{cls}", above
        if own == "weight" or own.endswith("_weight"):
            return r"\mathbf{W}", below, above
        if own.endswith("bias"):
            return r"\mathbf{b}", below, above
        return r"\boldsymbol{\theta}", text(own), above

    def tied(self, key: str) -> bool:
        """Whether a parameter is a table of embeddings and the matrix of a linear map, too."""
        calls = {call for _, call in self._users.get(key, ())}
        return "embedding" in calls and "linear" in calls

    def _tables(self) -> set[str]:
        return {key for key, uses in self._users.items() if any(call == "embedding" for _, call in uses)}

    def _kind(self, lines) -> str:
        return self._roles.kind(next(iter(lines))) if lines else ""

    def _norm_number(self, key: str) -> str:
        """Which norm of its block a line is: "1", "2"; "f" outside of blocks."""
        name = self.of.get(key, "")
        return next((str(n) for n, accent in enumerate(ACCENTS, 1) if accent in name), "f" if "_{f}" in name else "")


def _own(module: str) -> str:
    """A module's own name, with the one around it if it is a number."""
    parts = module.split(".")
    return ".".join(parts[-2:]) if parts[-1].isdigit() and len(parts) > 1 else parts[-1]


def _name(letter: str, below: str, above: str) -> str:
    r"""A letter with what stands below and above it, primes right behind it: `\mathbf{X}'^{(1)}`."""
    bare = letter.rstrip("'")
    primes = letter[len(bare) :]
    if bare.endswith("^2") and above:
        bare, above = bare[:-2], f"2 {above}"
    return bare + (f"_{{{below}}}" if below else "") + primes + (f"^{{{above}}}" if above else "")
