"""Symbols of parameters, by the lines that use them, and of inputs, by their kind."""

from __future__ import annotations

from tracer.capture.composite_calls import refs
from tracer.graph.module_tree import TOWERS, own_name
from tracer.ops import CONVOLUTIONS, LINEAR, MATMULS, NORMS, base
from tracer.textbook.step_symbols import StepSymbols, text, token

WEIGHTS = {"router": "r", "I": "E", "gate": "g", "U": "1", "F": "2", "Z": r"\mathrm{out}"}
"""Subscripts of the matrix of a role, if they differ from its letter."""
OF_GATED = {"U": "u", "F": "d"}
"""The same in an MLP with a gate."""
OF_HEADS = {"K": r"\mathrm{cls}", "V": r"\mathrm{vocab}"}
"""Subscripts of the matrix that computes logits, by their last size."""
GREEK = frozenset(
    "alpha beta gamma delta epsilon zeta eta kappa lambda mu nu xi rho sigma tau phi chi psi omega".split()
)
"""Names of parameters that are letters."""
TOKENS = "input_ids", "ids", "tokens", "t"
"""Usual names of token ids in programs."""


class ParameterSymbols(StepSymbols):
    """`of[key]` is the LaTeX of a line's tensor; `parameter(path)` that of a parameter or buffer."""

    def __init__(self, *hints):
        super().__init__(*hints)
        self._users = self._uses()
        self._parameters: dict[str, str] = {}

    def _uses(self) -> dict[str, list[tuple[str, str]]]:
        """Return the lines that use a parameter, each with the name of its call."""
        uses: dict[str, list[tuple[str, str]]] = {}
        plan, graph = self._roles.plan, self._graph
        for key in plan.lines:
            raw = plan.raw(key)
            for index in plan.inner_calls[raw] if raw is not None else ():
                for ref in refs(graph.calls[index].arguments):
                    root = graph.root(ref.key)
                    if root.startswith("parameter "):
                        uses.setdefault(root, []).append((key, base(graph.calls[index].name)))
        return uses

    def input_symbol(self, key: str) -> str:
        """Return the LaTeX of an input, by its key `input NAME`.

        Token ids are **t**, positions of selected tokens **π**, a photo **X**_img, else **x**, unless a hint sets
        another letter.
        """
        if key not in self._parameters:
            ref, name, hinted = self._graph.ref[key], key.removeprefix("input "), self._hint_letters.letter(key)
            numbers, above = not ref.dtype.is_floating_point and not ref.dtype.is_complex, ""
            if hinted:
                letter, below, above = self._by_hand(hinted, "")
            elif numbers and self._places_of_tokens(key):
                letter, below = r"\boldsymbol{\pi}", ""
            elif numbers and ("id" in name or name in TOKENS):
                letter, below = r"\mathbf{t}", "" if name in TOKENS else text(name)
            elif len(ref.shape) == 4 and (ref.shape[1] in (1, 3) or str(self._shapes.of(key)[1]) == "C"):
                letter, below = r"\mathbf{X}", r"\mathrm{img}"
            else:
                letter, below = r"\mathbf{x}", text(name) if name not in ("x", "input", "inputs", "0") else ""
            self._parameters[key] = self._unlike(letter, below, above)
        return self._parameters[key]

    def _places_of_tokens(self, key: str) -> bool:
        """Return whether an input selects tokens by position."""
        graph = self._graph
        calls = (graph.calls[index] for index in graph.consumers[key] if len(graph.shape(key)) == 2)
        return any(base(call.name) == "gather" and graph.root(call.arguments["index"].key) == key for call in calls)

    def parameter(self, key: str) -> str:
        """Return the LaTeX of a parameter or buffer, by its key `parameter PATH`."""
        if key not in self._parameters:
            hinted, module = self._hint_letters.letter(key), key.removeprefix("parameter ").rpartition(".")[0]
            symbol = self._by_hand(hinted, module) if hinted else self._parameter(key)
            self._parameters[key] = self._unlike(*symbol, plain=bool(hinted))
        return self._parameters[key]

    def _parameter(self, key: str) -> tuple[str, str, str]:
        path = key.removeprefix("parameter ")
        module, _, own = path.rpartition(".")
        uses = self._users.get(key, [])
        lines = dict.fromkeys(line for line, _ in uses)
        line = next(iter(lines)) if len(lines) == 1 else None
        role = self._roles.of.get(line, "") if line else ""
        above = self.superscript(module)
        calls = {call for _, call in uses}
        if calls & {"experts"}:
            call = self._graph.call_of(self._roles.plan.computed_key(uses[0][0]))
            weights = [ref.key for ref in call.arguments["weights"]]
            rank = len(self._graph.shape(key))
            number = 1 + [weight for weight in weights if len(self._graph.shape(weight)) == rank].index(key)
            return r"\mathbf{W}" if rank > 2 else r"\mathbf{b}", str(number), above
        of_norm = bool(calls & NORMS) or "norm" in self._kind(lines).lower()
        mark = self._below(line, role, of_norm) or text(own_name(module))
        below = mark or text(own)
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
        added = own == "weight" and "pos" in own_name(module).lower() and not calls & (LINEAR | MATMULS | CONVOLUTIONS)
        if added or "pos" in own.lower() or (role == "position" and len(self._graph.shape(key)) > 1):
            return r"\mathbf{P}", self._kind_of_places(key, own), above
        if kind := token(own):
            return r"\mathbf{x}", kind, above
        if own == "weight" or own.endswith("_weight"):
            return r"\mathbf{W}", below, above
        if own.endswith("bias"):
            return r"\mathbf{b}", below, above
        word, _, number = own.strip("_").partition("_")
        if word in GREEK and (not number or number.isdecimal()):
            return rf"\boldsymbol{{\{word}}}", number or mark, above
        return r"\boldsymbol{\theta}", text(own), above

    def _kind_of_places(self, key: str, own: str) -> str:
        """Return the subscript of one of several position tables, from its name."""
        word = next((short for known, short in TOWERS.items() if known in own.lower()), "")
        others = [table for table in self._users if table != key and "pos" in table.rpartition(".")[2].lower()]
        alike = [table for table in others if not self.superscript(table.removeprefix("parameter ").rpartition(".")[0])]
        return rf"\mathrm{{{word}}}" if word and alike else ""

    def _below(self, line: str | None, role: str, of_norm: bool) -> str:
        """Return the subscript of a line's matrix, or of its γ; "" if its role has none."""
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
        if plain in OF_GATED and self._roles.is_gated(line):
            return OF_GATED[plain]
        return WEIGHTS.get(role, plain if plain in ("Q", "K", "V", "O", "QKV", "QK", "KV") else "")

    def _table(self, key: str, module: str) -> tuple[str, str]:
        """Return the letter of a table and its subscript: **E** for token embeddings, **P** for positions."""
        graph = self._graph
        calls = (graph.calls[index] for index in graph.consumers[key])
        numbers = [call.arguments["indices"].key for call in calls if base(call.name) == "embedding"]
        if any(graph.depends[number] == "x" for number in numbers):
            others = [table for table in self._tables() if table != key and self._of_tokens(table)]
            return r"\mathbf{E}", text(own_name(module)) if others else ""
        if "type" in module.lower():
            return r"\mathbf{E}", r"\mathrm{type}"
        return r"\mathbf{P}", ""

    def _of_tokens(self, key: str) -> bool:
        calls = (self._graph.calls[index] for index in self._graph.consumers[key])
        return any(
            self._graph.depends[call.arguments["indices"].key] == "x" for call in calls if "indices" in call.arguments
        )

    def is_tied(self, key: str) -> bool:
        """Return whether a parameter is both an embedding table and the matrix of a linear map."""
        calls = {call for _, call in self._users.get(key, ())}
        return "embedding" in calls and "linear" in calls

    def _tables(self) -> set[str]:
        tables = {key for key, uses in self._users.items() if any(call == "embedding" for _, call in uses)}
        return {key for key in tables if self._graph.ref[key].dtype.is_floating_point}

    def _kind(self, lines) -> str:
        return self._roles.kind(next(iter(lines))) if lines else ""
