"""The letters of a page: of each line by its role, of each parameter by the line that takes it; no two alike."""

from __future__ import annotations

from tracer.derive.hints import Hint, Hints
from tracer.derive.kinds import ACTIVATIONS, CONVOLVED, NORMS, base
from tracer.derive.places import TOWERS
from tracer.derive.roles import Roles
from tracer.derive.shapes import Shapes
from tracer.recorder.calls import refs

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
    "shares": (r"\mathbf{Y}", ""),
    "one": ("r", ""),
    "position": (r"\mathbf{X}", "P"),
    "angles": (r"\boldsymbol{\Theta}", ""),
    "cosine": (r"\mathbf{c}", ""),
    "sine": (r"\mathbf{s}", ""),
    "P": (r"\mathbf{X}", "P"),
    "E": (r"\mathbf{X}", "E"),
    "state": (r"\mathbf{h}", ""),
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
"""Letters of roles that are not their own, with what stands below them."""
WEIGHTS = {"router": "r", "I": "E", "gate": "g", "U": "1", "F": "2", "Z": r"\mathrm{out}"}
"""What stands below the matrix of a role whose letter does not."""
OF_GATED = {"U": "u", "F": "d"}
"""The same in an MLP with a gate."""
OF_HEADS = {"K": r"\mathrm{cls}", "V": r"\mathrm{vocab}"}
"""What stands below the matrix that makes logits, by their last size."""


def text(words: str) -> str:
    r"""Words of a program below a letter: `\text{down\_proj}`."""
    return rf"\text{{{words.replace('_', chr(92) + '_')}}}"


TOKENS = "input_ids", "ids", "tokens", "t"
"""What programs call token numbers."""
TOKEN = {"cls": "cls", "class": "cls", "mask": "mask"}
"""What stands below a token of parameters, by the beginning of its name."""


class Names:
    """`of[key]` is the LaTeX of a line's tensor; `parameter(path)` that of a parameter or buffer."""

    def __init__(self, roles: Roles, shapes: Shapes, hints: dict[str, Hint], said: Hints):
        self._roles, self._graph, self._places = roles, roles.graph, roles.places
        self._shapes, self._hints, self._said = shapes, hints, said
        self.of: dict[str, str] = {}
        self._taken: set[str] = set()
        convolved = any(roles.name(key) in CONVOLVED for key in roles.plan.lines)
        self._convolves = convolved and not roles.plan.sites
        for key in roles.plan.lines:
            letter, below, above = self._line(key)
            if said := hints[key].letter:
                letter, below, above = self._by_hand(said, roles.module(key))
            self.of[key] = self._unlike(letter, below, above, plain=True)
        self._users = self._uses()
        self._parameters: dict[str, str] = {}

    def mask(self, part: str) -> str:
        """The LaTeX of a mask that no block but a kernel has, in a tower."""
        return self._unlike(r"\mathbf{M}", "", rf"\mathrm{{{mark}}}" if (mark := self._places.tower(part)) else "")

    def above(self, module: str) -> str:
        """What stands above the letters of a module's lines: its tower and the number of its block."""
        tower, numbers = self._places.tower(module), self._places.numbers(module)
        return " ".join(([rf"\mathrm{{{tower}}}"] if tower else []) + ([f"({numbers})"] if numbers else []))

    def _by_hand(self, said: str, module: str) -> tuple[str, str, str]:
        r"""A letter that people said, what stands below it and what above: `\mathbf{X}_{\mathrm{txt}}^{(0)}`."""
        own = ""
        if said.endswith("}") and "^{" in said:
            said, _, own = said[:-1].rpartition("^{")
        letter, _, below = said.partition("_")
        below = below[1:-1] if below.startswith("{") else below
        return letter, below, " ".join(filter(None, (self.above(module), own)))

    def _line(self, key: str) -> tuple[str, str, str]:
        """The letter of a line, what stands below it and what above."""
        roles = self._roles
        role, module = roles.of.get(key, ""), roles.module(key)
        above = self.above(module)
        if key in roles.first:
            tower = rf"\mathrm{{{mark}}}" if (mark := roles.first[key]) else ""
            return r"\mathbf{X}", "", " ".join(filter(None, (above or tower, "(0)")))
        if self._convolves and (letter := self._map(key, role)):
            return letter, text(_own(module)), above
        if role == "norm":
            nth = roles.nth.get(key)
            if nth == 0:
                return r"\mathbf{X}", "f", above
            if nth is None:
                return r"\mathbf{X}", text(_own(module)), above
            return (ACCENTS[nth - 1], "", above) if nth <= len(ACCENTS) else (ACCENTS[0], text(_own(module)), above)
        if role == "every token":
            return r"\mathbf{X}", _token(self._graph.root(key).rpartition(".")[2]) or r"\mathrm{same}", above
        if role in LETTERS:
            return *LETTERS[role], above
        if role in ("QKV", "QK", "KV"):
            return rf"\mathbf{{{role}}}", "", above
        if role:
            letter, primes = role.rstrip("'"), role[len(role.rstrip("'")) :]
            return rf"\mathbf{{{letter}}}" + primes, "", above
        return r"\mathbf{Y}", text(_own(module)) if module else "", above

    def _map(self, key: str, role: str) -> str:
        """The letter of a feature map in a net of convolutions: Z, normalised, and X once it is bent."""
        name = self._roles.name(key)
        if name in CONVOLVED and role != "Z":
            return r"\mathbf{Z}"
        if role == "norm":
            return r"\hat{\mathbf{Z}}"
        return r"\mathbf{X}" if name in ACTIVATIONS and role in ("", "G") else ""

    def _unlike(self, letter: str, below: str, above: str, plain: bool = False) -> str:
        """A name that no other line has: the second one of a kind gets a number. `plain`: a letter below without
        braces."""
        number, name = 1, _name(letter, below, above)
        if plain and len(below) == 1:
            name = name.replace(f"_{{{below}}}", f"_{below}", 1)
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
        """The LaTeX of an input, by its key `input NAME`: token numbers **t**, places of chosen tokens **π**, a photo
        **X**_img, else **x**."""
        if key not in self._parameters:
            ref, name = self._graph.ref[key], key.removeprefix("input ")
            numbers = not ref.dtype.is_floating_point and not ref.dtype.is_complex
            if numbers and self._places_of_tokens(key):
                letter, below = r"\boldsymbol{\pi}", ""
            elif numbers and ("id" in name or name in TOKENS):
                letter, below = r"\mathbf{t}", "" if name in TOKENS else text(name)
            elif len(ref.shape) == 4 and (ref.shape[1] in (1, 3) or str(self._shapes.of(key)[1]) == "C"):
                letter, below = r"\mathbf{X}", r"\mathrm{img}"
            else:
                letter, below = r"\mathbf{x}", text(name) if name not in ("x", "input", "inputs", "0") else ""
            self._parameters[key] = self._unlike(letter, below, "")
        return self._parameters[key]

    def _places_of_tokens(self, key: str) -> bool:
        """Whether what the run was given says which tokens are chosen."""
        graph = self._graph
        calls = (graph.calls[index] for index in graph.consumers[key] if len(graph.shape(key)) == 2)
        return any(base(call.name) == "gather" and graph.root(call.arguments["index"].key) == key for call in calls)

    def parameter(self, key: str) -> str:
        """The LaTeX of a parameter or buffer, by its key `parameter PATH`."""
        if key not in self._parameters:
            said, module = self._said.letter(key), key.removeprefix("parameter ").rpartition(".")[0]
            made = self._by_hand(said, module) if said else self._parameter(key)
            self._parameters[key] = self._unlike(*made, plain=bool(said))
        return self._parameters[key]

    def _parameter(self, key: str) -> tuple[str, str, str]:
        path = key.removeprefix("parameter ")
        module, _, own = path.rpartition(".")
        uses = self._users.get(key, [])
        lines = dict.fromkeys(line for line, _ in uses)
        line = next(iter(lines)) if len(lines) == 1 else None
        role = self._roles.of.get(line, "")
        above = self.above(module)
        calls = {call for _, call in uses}
        if calls & {"experts"}:
            weights = [ref.key for ref in self._roles.call(uses[0][0]).arguments["weights"]]
            rank = len(self._graph.shape(key))
            number = 1 + [one for one in weights if len(self._graph.shape(one)) == rank].index(key)
            return r"\mathbf{W}" if rank > 2 else r"\mathbf{b}", str(number), above
        of_norm = bool(calls & NORMS) or "norm" in self._kind(lines).lower()
        below = self._below(line, role, of_norm) or text(_own(module) or own)
        if not self._graph.ref[key].dtype.is_floating_point:
            return (r"\mathbf{p}", "", above) if "position" in own else (r"\mathbf{n}", text(own), above)
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
        if role in ("O'", "F'"):
            return r"\boldsymbol{\lambda}", {"O'": "1", "F'": "2"}[role], above
        if calls & {"embedding"}:
            return *self._table(key, module), above
        if role == "angles":
            return r"\boldsymbol{\theta}", "", above
        if "pos" in own.lower() or (role == "position" and len(self._graph.shape(key)) > 1):
            return r"\mathbf{P}", self._kind_of_places(key, own), above
        if mark := _token(own):
            return r"\mathbf{x}", mark, above
        if own == "weight" or own.endswith("_weight"):
            return r"\mathbf{W}", below, above
        if own.endswith("bias"):
            return r"\mathbf{b}", below, above
        return r"\boldsymbol{\theta}", text(own), above

    def _kind_of_places(self, key: str, own: str) -> str:
        """What stands below one of several tables of places, by what its name says that they are of."""
        word = next((short for known, short in TOWERS.items() if known in own.lower()), "")
        others = [other for other in self._users if other != key and "pos" in other.rpartition(".")[2].lower()]
        alike = [other for other in others if not self.above(other.removeprefix("parameter ").rpartition(".")[0])]
        return rf"\mathrm{{{word}}}" if word and alike else ""

    def _below(self, line: str | None, role: str, of_norm: bool) -> str:
        """What stands below a line's matrix, or its γ; "" where its role does not say."""
        if line is None:
            return ""
        if self._hints[line].below:
            return self._hints[line].below
        nth = self._roles.nth.get(line)
        if of_norm and line in self._roles.first:
            return "E"
        if of_norm and nth is not None:
            return str(nth) if nth else "f"
        if role == "Z":
            shape = self._shapes.of(line)
            return OF_HEADS.get(str(shape[-1]) if shape else "", WEIGHTS["Z"])
        plain = role.rstrip("'")
        if plain in OF_GATED and self._roles.gated(line):
            return OF_GATED[plain]
        return WEIGHTS.get(role, plain if plain in ("Q", "K", "V", "O", "QKV", "QK", "KV") else "")

    def _table(self, key: str, module: str) -> tuple[str, str]:
        """The letter of a table, and what stands below: **E** where the tokens that were given are looked up, **P**
        where places are."""
        graph = self._graph
        calls = (graph.calls[index] for index in graph.consumers[key])
        numbers = [call.arguments["indices"].key for call in calls if base(call.name) == "embedding"]
        if any(graph.depends[one] == "x" for one in numbers):
            others = [other for other in self._tables() if other != key and self._of_tokens(other)]
            return r"\mathbf{E}", text(_own(module)) if others else ""
        if "type" in module.lower():
            return r"\mathbf{E}", r"\mathrm{type}"
        return r"\mathbf{P}", ""

    def _of_tokens(self, key: str) -> bool:
        calls = (self._graph.calls[index] for index in self._graph.consumers[key])
        return any(
            self._graph.depends[call.arguments["indices"].key] == "x" for call in calls if "indices" in call.arguments
        )

    def tied(self, key: str) -> bool:
        """Whether a parameter is a table of embeddings and the matrix of a linear map, too."""
        calls = {call for _, call in self._users.get(key, ())}
        return "embedding" in calls and "linear" in calls

    def _tables(self) -> set[str]:
        found = {key for key, uses in self._users.items() if any(call == "embedding" for _, call in uses)}
        return {key for key in found if self._graph.ref[key].dtype.is_floating_point}

    def _kind(self, lines) -> str:
        return self._roles.kind(next(iter(lines))) if lines else ""


def _token(own: str) -> str:
    """What stands below a token of parameters, by its own name; "" for others."""
    name = own.removeprefix("parameter ").lower()
    return next((rf"\mathrm{{{mark}}}" for word, mark in TOKEN.items() if name.startswith(word)), "")


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
