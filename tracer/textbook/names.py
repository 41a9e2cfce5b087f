"""The symbol, the title and the letter of each step."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import chain, count
from typing import NamedTuple, cast

from tracer import ops
from tracer.capture.calls import Ref, refs
from tracer.expr import BatchNorm, Einsum, GroupNorm, Node
from tracer.graph.dataflow import TOWERS, own_name
from tracer.graph.value_shapes import Shapes
from tracer.ops import ACTIVATIONS, ATTENTION, CONVOLUTIONS, LINEAR, MATMULS, NORMS, RECURRENT
from tracer.record import (
    ATTENTION_WEIGHTS,
    LOGITS,
    RESIDUAL_STREAM,
    SCORES,
    SELECTED_TOKENS,
    SEQUENCE,
)
from tracer.textbook.claims import Claim, Context, Explanation, Why, explain
from tracer.textbook.roles import Roles, splits_grid

# Hints that a person adds to a derived textbook: a letter, a title, an explanation, a source.
#
# Hints are beside the model that they are for, 10 to 40 lines of them. A book without hints is complete, only drier.

PARAMETER = "parameter "
SOURCE_PREFIXES = PARAMETER, "input "


@dataclass(frozen=True)
class Hint:
    r"""Labels for the lines that match `at`, `role` and `module`, patterns with `*`; "" keeps what was derived.

    `at` is the line's id without hints (`"*.attention.scores"`), `role` its role (`"S masked"`, see `Roles.detail`),
    `module` the path of the module that runs it. `letter` is the symbol without the block's number (`r"\mathbf{X}_t"`),
    `below` the subscript of the line's matrix and bias, `id` replaces the id after the block's path, and `source` names
    a paper with its section or equation. `why` is a claim, or several: one that does not hold of the run is not shown,
    and `verify` fails; a plain text explains in general. `note` is on differences between texts and the run; its claims
    that do not hold are not shown. Of several hints that match, the later ones count.

    `apart` names calls directly in `module`, such as `"add"` or `"slice"`, whose results get lines of their own instead
    of being inlined. `intent` acknowledges the findings of the rule `finding`: the reason why what looks like a mistake
    is on purpose. At `"parameter PATH"` or `"input NAME"` a hint sets the letter of a parameter or input.
    """

    at: str = "*"
    role: str = "*"
    module: str = "*"
    title: str = ""
    why: Why | Claim | str = ()
    note: Why | Claim | str = ()
    source: str = ""
    letter: str = ""
    below: str = ""
    stage: str = ""
    id: str = ""
    apart: str = ""
    finding: str = ""
    intent: str = ""

    def __post_init__(self):
        for name in ("why", "note"):
            if isinstance(claim := getattr(self, name), Claim):
                object.__setattr__(self, name, (claim,))

    def fits(self, at: str, role: str, module: str) -> bool:
        """Return whether the hint applies to this line."""
        conditions = (at, self.at), (role, self.role), (module, self.module)
        return all(fnmatchcase(value, pattern) for value, pattern in conditions)

    def says(self) -> bool:
        """Return whether the hint sets anything for lines."""
        return not self.at.startswith(SOURCE_PREFIXES) and any(getattr(self, name) for name in HINT_FIELDS)

    def reason(self, derived: Why, context: Context) -> Explanation:
        """Return the explanation of the line, from the hint or as derived, with its source."""
        own = (Claim(self.why),) if isinstance(self.why, str) else cast(Why, self.why)
        explanation = explain(own or derived, context, strict=bool(own))
        source = f"Source: {self.source}." if self.source else ""
        return explanation._replace(text=" ".join(filter(None, (explanation.text, source))))

    def remark(self, context: Context) -> str:
        """Return the note on how texts differ from this line, without claims that the run contradicts."""
        if isinstance(self.note, str):
            return self.note
        return " ".join(
            filter(None, (fact.text for claim in cast(tuple[Claim, ...], self.note) if (fact := claim.of(context))))
        )


HINT_FIELDS = tuple(
    field.name for field in fields(Hint) if field.name not in ("at", "role", "module", "apart", "finding", "intent")
)
"""Fields that a hint can set for a line."""


class Hints:
    """Hints of one model, and those that matched a line of this book."""

    def __init__(self, hints: Iterable[Hint] = ()):
        self._hints = tuple(hints)
        self.matched_hints: set[Hint] = set()

    def of(self, at: str, role: str = "", module: str = "") -> Hint:
        """Return all hints for a line, merged into one."""
        matching = [hint for hint in self._hints if hint.fits(at, role, module) and hint.says()]
        self.matched_hints.update(matching)
        texts = {name: value for hint in matching for name in HINT_FIELDS if (value := getattr(hint, name))}
        return Hint(at, role, module, **texts)

    def letter(self, name: str) -> str:
        """Return the letter of a parameter or an input, by its key; "" if no hint sets one."""
        matching = [hint for hint in self._hints if hint.at.startswith(SOURCE_PREFIXES) and fnmatchcase(name, hint.at)]
        self.matched_hints.update(matching)
        return matching[-1].letter if matching else ""

    def separates(self, call: str, module: str) -> bool:
        """Return whether a hint assigns the result of a call a line of its own."""
        matching = [hint for hint in self._hints if hint.apart == call and fnmatchcase(module, hint.module)]
        self.matched_hints.update(matching)
        return bool(matching)


def idle(hints: Sequence[Hint], books: Iterable) -> list[Hint]:
    """Return the hints that matched no line of these books; a test fails for them, a run does not."""
    matched = set().union(*(book.matched_hints for book in books))
    return [hint for hint in hints if hint not in matched]


# Symbols of lines, by their roles; all differ on a page.

ACCENTS = (r"\tilde{\mathbf{X}}", r"\hat{\mathbf{X}}", r"\bar{\mathbf{X}}")
"""The first, second and third norm of a block."""


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
            return r"\mathbf{X}", text(roles.mixed[key].removeprefix("parameter ").rpartition(".")[2]), above
        if role == "every token":
            return r"\mathbf{X}", token(self._graph.root(key).rpartition(".")[2]) or r"\mathrm{same}", above
        if role == "result":
            return r"\mathbf{Z}", text(roles.result_name(key)) or r"\mathrm{out}", above
        if role == "pre-activations":
            return r"\mathbf{a}", text(self._own(module)) if module else "", above
        if role in ROLE_LABELS and (label := ROLE_LABELS[role]).letter:
            return label.letter, label.below, above
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


# Titles, stages and ids of lines by their roles.


class StepLabel(NamedTuple):
    """Labels of a role: its stage, its title, and the end of its id; the role in the words of the field where that is
    another word, and the letter where it is not the role, with its subscript."""

    stage: str
    title: str
    id: str = ""
    words: str = ""
    letter: str = ""
    below: str = ""


ROLE_LABELS = {
    "patches": StepLabel("patches", "Cut into patches", "patches", letter=r"\mathbf{X}", below="p"),
    "I": StepLabel("embedding", "Embed the patches", "embedding", "patch embeddings", r"\mathbf{I}"),
    "sequence": StepLabel("embedding", "Make the sequence", "sequence", SEQUENCE, r"\mathbf{X}", r"\mathrm{seq}"),
    "cls in front": StepLabel("embedding", "CLS in front", "sequence"),
    "E": StepLabel("embedding", "Look up the tokens", "embedding", "token embeddings", r"\mathbf{X}", "E"),
    "P": StepLabel("position", "Positions", "positions", "positional embeddings", r"\mathbf{X}", "P"),
    "position": StepLabel("position", "Add positions", "position", "embeddings with positions", r"\mathbf{X}", "P"),
    "places": StepLabel("position", "Number the positions", "places", "position ids", r"\mathbf{p}"),
    "one": StepLabel("attention", "Check that positions are contiguous", "one", "contiguity check", "r"),
    "M": StepLabel("attention", "Mask", "mask", "mask"),
    "bias": StepLabel("position", "Bias of the distance", "bias", "position bias", r"\mathbf{B}"),
    "ALiBi": StepLabel(
        "position", "ALiBi: slopes times positions", "alibi", "ALiBi bias", r"\mathbf{M}", r"\mathrm{ALiBi}"
    ),
    "causal M": StepLabel("attention", "Causal mask", "mask"),
    "padding M": StepLabel("attention", "Padding mask", "mask"),
    "prefix M": StepLabel("attention", "Prefix mask", "mask"),
    "types": StepLabel("embedding", "Token-type ids", "types", "token type ids", r"\mathbf{n}"),
    "angles": StepLabel("position", "Angles", "angles", "rotary angles", r"\boldsymbol{\Theta}"),
    "cosine": StepLabel("position", "Cosine", "cosine", "rotary cosines", r"\mathbf{c}"),
    "sine": StepLabel("position", "Sine", "sine", "rotary sines", r"\mathbf{s}"),
    "first norm": StepLabel("norm", "Normalise", "embedding.norm"),
    "norm1": StepLabel("norm", "Normalise each token", "norm1"),
    "norm2": StepLabel("norm", "Normalise again", "norm2"),
    "norm": StepLabel("norm", "Normalise"),
    "last norm": StepLabel("norm", "Last norm", "norm"),
    "QKV": StepLabel("attention", "Packed product", "attention.packed", "queries, keys and values"),
    "QK": StepLabel("attention", "Packed product", "attention.packed", "queries and keys"),
    "KV": StepLabel("attention", "Packed product", "attention.packed", "keys and values"),
    "Q": StepLabel("attention", "Queries", "attention.query", "queries"),
    "K": StepLabel("attention", "Keys", "attention.key", "keys"),
    "V": StepLabel("attention", "Values", "attention.value", "values"),
    "rotated Q": StepLabel("position", "Rotate queries (RoPE)", "attention.rotated query"),
    "rotated K": StepLabel("position", "Rotate keys (RoPE)", "attention.rotated key"),
    "S": StepLabel("attention", "Scores", "attention.scores", SCORES),
    "masked S": StepLabel("attention", "Scores", "attention.scores"),
    "A": StepLabel("attention", "Attention weights", "attention.weights", ATTENTION_WEIGHTS),
    "H": StepLabel("attention", "Context", "attention.context", "context"),
    "linear Q": StepLabel("attention", "Queries", "attention.query"),
    "linear K": StepLabel("attention", "Keys", "attention.key"),
    "linear V": StepLabel("attention", "Values", "attention.value"),
    "linear H": StepLabel("attention", "Context", "attention.context"),
    "features Q": StepLabel("attention", "Features of the queries", "attention.query features"),
    "features K": StepLabel("attention", "Features of the keys", "attention.key features"),
    "shared QKV": StepLabel("attention", "Queries, keys and values", "attention.shared"),
    "shared QK": StepLabel("attention", "Queries and keys", "attention.shared"),
    "shared KV": StepLabel("attention", "Keys and values", "attention.shared"),
    "memory": StepLabel("attention", "Keys times values", "attention.memory", "keys times values", r"\mathbf{KV}"),
    "normaliser": StepLabel("attention", "Sum of the weights", "attention.normaliser", letter=r"\mathbf{z}"),
    "O": StepLabel("attention", "Output projection", "attention.output", "attention output"),
    "scaled O": StepLabel("attention", "Scale the attention output", "attention.scaled"),
    "scaled F": StepLabel("mlp", "Scale the result", "mlp.scaled"),
    "X": StepLabel("", "Residual sum", "residual", RESIDUAL_STREAM),
    "Y": StepLabel("", "Residual sum", "residual", "residual sum"),
    "R": StepLabel("", "Sum", "sum", "sum"),
    "mix": StepLabel("", "Mix of two", words="token mix"),
    "placed": StepLabel(
        "position", "Add positions", "attention.placed", "queries and keys with positions", r"\mathbf{X}", "P"
    ),
    "gate": StepLabel("mlp", "Gate", "mlp.gate", letter=r"\mathbf{U}", below="g"),
    "U": StepLabel("mlp", "Expand", "mlp.hidden", "MLP hidden"),
    "G": StepLabel("mlp", "Activate", "mlp.activation", "activation"),
    "activated gate": StepLabel("mlp", "Activate the gate", "mlp.activation"),
    "gated": StepLabel("mlp", "Gate (element-wise product)", "mlp.gated", "gated activation", r"\mathbf{U}'"),
    "F": StepLabel("mlp", "Contract", "mlp.output", "MLP output"),
    "state": StepLabel("recurrence", "Recurrence", "state", letter=r"\mathbf{h}"),
    "cell": StepLabel("recurrence", "State of the cell", "cell", "cell state", r"\mathbf{c}"),
    "state normaliser": StepLabel("recurrence", "Normaliser of the cell", "normaliser", letter=r"\mathbf{n}"),
    "stabiliser": StepLabel("recurrence", "Largest exponent", "stabiliser", letter=r"\mathbf{m}"),
    "pre-activations": StepLabel("recurrence", "Pre-activations of the gates", "gates"),
    "read": StepLabel("recurrence", "Read the state", "read", "state output", r"\mathbf{y}"),
    "decay": StepLabel("recurrence", "State decay", "stays", "state decay", r"\bar{\mathbf{A}}"),
    "enter": StepLabel("recurrence", "State input", "enters", "state input", r"\bar{\mathbf{B}}"),
    "delta": StepLabel("recurrence", "Step in time", "step", "time step", r"\boldsymbol{\Delta}"),
    "router": StepLabel("experts", "Scores of the experts", words="router logits", letter=r"\mathbf{r}"),
    "routed": StepLabel("experts", "Shares of the experts", words="router probabilities", letter=r"\mathbf{p}"),
    "top": StepLabel(
        "experts",
        "Shares of the chosen experts",
        words="top router probabilities",
        letter=r"\mathbf{p}",
        below=r"\mathrm{top}",
    ),
    "chosen": StepLabel("experts", "Chosen experts", words="chosen experts", letter=r"\mathbf{e}"),
    "gates": StepLabel("experts", "Gates", words="expert weights", letter=r"\mathbf{g}"),
    "experts": StepLabel("mlp", "Mixture of experts", "mlp.output"),
    "cls": StepLabel("head", "Take the CLS token", "cls"),
    "first": StepLabel("head", "Take the first token", "first", "first token", r"\mathbf{x}", "f"),
    "every token": StepLabel("embedding", "Broadcast one vector to all tokens", "every", "one vector for all tokens"),
    "chosen tokens": StepLabel(
        "patches", "Choose tokens", "chosen", SELECTED_TOKENS, r"\mathbf{X}", r"\mathrm{chosen}"
    ),
    "put": StepLabel("embedding", "Scatter tokens back", "put", "scattered tokens", r"\mathbf{X}", r"\mathrm{all}"),
    "tokens": StepLabel("head", "Take some of the tokens", "tokens", "some tokens", r"\mathbf{X}", r"\mathrm{tok}"),
    "grid": StepLabel("head", "Tokens to a grid", "grid", "token grid", r"\mathbf{X}", r"\mathrm{grid}"),
    "pixels": StepLabel("head", "Unpatchify", "logits"),
    "Z": StepLabel("head", "Output", "logits", LOGITS),
    "result": StepLabel("head", "Output", "output", "output"),
    "shares": StepLabel("head", "Probabilities", "probabilities", "probabilities", r"\mathbf{Y}"),
    "classes": StepLabel("head", "Classify", "logits"),
    "vocabulary": StepLabel("head", "Score every token", "logits"),
}


def words(role: str) -> str:
    """Return a role in the words of the field, as a trace has them."""
    return (ROLE_LABELS[role].words if role in ROLE_LABELS else "") or role


def role(roles: Roles, key: str) -> str:
    """Return the role of a line in words, "" without one: "queries", "residual stream"."""
    shared = roles.shared_letters.get(key, "")
    plain = shared if len(shared) > 1 else roles.of.get(key, "").rstrip("'")
    if not plain and roles.name(key) == "masked_scatter" and "E" in roles.of_operands(key):
        plain = "sequence"  # patches among the tokens of a text
    return words(plain)


def part(roles: Roles, key: str, shape: tuple) -> str:
    """Return the label key of a line in `ROLE_LABELS`: its role with details, such as rotated queries or the first norm
    of a block."""
    role = roles.of.get(key, "")
    plain = role.rstrip("'")
    around = {roles.of.get(operand) for operand in roles.operands[key]}
    nth = roles.nth.get(key)
    if role == "norm" and key in roles.first:
        return "first norm"
    if role == "norm" or (plain == "X" and nth):
        return {0: "last norm", 1: "norm1", 2: "norm2", None: "norm"}.get(nth, "norm")
    if plain in ("Q", "K") and ({"cosine", "sine"} & around or "rope" in roles.call_names(key)):
        return f"rotated {plain}"
    if len(roles.shared_letters.get(key, "")) > 1:
        return f"shared {roles.shared_letters[key]}"
    if key in roles.linear:
        return f"features {plain}" if role != plain and plain in ("Q", "K") else f"linear {plain}"
    if role == "S" and "M" in around:
        return "masked S"
    if role == "M" and roles.hides_keys(key):
        return "padding M"
    if role == "sequence" and roles.learned_first(key):
        return "cls in front"
    if role in ("O'", "F'"):
        return f"scaled {plain}"
    if role == "F" and roles.name(key) == "experts":
        return "experts"
    if role == "G" and roles.is_gated(key):
        return "activated gate"
    if role == "first" and any(roles.learned_first(operand) for operand in roles.of):
        return "cls"
    if role == "Z" and roles.call(key) is None and splits_grid(roles.graph, key, roles.graph.root(key)):
        return "pixels"
    if role == "Z":
        return {"K": "classes", "V": "vocabulary"}.get(str(shape[-1]) if shape else "", role)
    return plain


def stage(roles: Roles, key: str, part: str) -> str:
    """Return the stage of a line by its role, else by its call or a word in its module's path, else "other"."""
    module, call = roles.module(key), roles.name(key)
    if part in ("X", "Y", "R"):
        module, call = stage_of_sum(roles, key) or module, ""
    elif part in ROLE_LABELS and ROLE_LABELS[part].stage:
        return ROLE_LABELS[part].stage
    if call in CONVOLUTIONS or call in RECURRENT:
        return "convolution" if call in CONVOLUTIONS else "recurrence"
    words = module.lower()
    if "expert" in words:
        return "experts"
    stages = ("attention", "mlp", "norm", "embedding", "head")
    return next((candidate for candidate in stages if candidate[:4] in words), "other")


def stage_of_sum(roles: Roles, key: str) -> str:
    """Return the stage of a residual sum, that of the added value; "" if that has no role."""
    for operand in reversed(roles.operands[key]):
        stage = {"O": "attention", "F": "mlp"}.get(roles.of.get(operand, "").rstrip("'"))
        if stage:
            return stage
    return ""


OF_MAPS = {BatchNorm: "Normalise each channel", GroupNorm: "Normalise groups of channels"}
"""Titles of norms that are not over tokens."""


def title(part: str, call: str, equation: Node, result: str | None, formula: str = "") -> str:
    """Return the title of a line: `Scores`, or its output field `result`, or that of its `formula`, or the name of its
    call, `Convolution`."""
    of_maps = next((label for kind, label in OF_MAPS.items() if equation.has(kind)), "")
    if of_maps and part.rstrip("12").endswith("norm"):
        return of_maps
    if part in ROLE_LABELS and part not in ("Z", "result"):
        of_formula = f" ({formula})" if formula and part in ("G", "activated gate") else ""
        return ROLE_LABELS[part].title + of_formula
    if result is not None and "loss" not in ops.schema(call).traits:
        return result
    if call == "einsum" and any(not node.contracts for node in equation.atoms(Einsum)):
        return "Outer product"
    return formula or ops.title(call)


def ids(roles: Roles, parts: dict[str, str]) -> dict[str, str]:
    """Return an id for each line: the path of its block and its role, or the path of its module and its call."""
    return _apart({key: _id(roles, key, parts[key]) for key in roles.plan.lines})


def apply_hint_ids(roles: Roles, ids: dict[str, str], hints: dict[str, Hint]) -> dict[str, str]:
    """Return the ids with the endings that hints set."""

    def whole(key: str) -> str:
        module = roles.module(key)
        around = roles.places.prefix(module) or roles.places.part(module)
        return ".".join(filter(None, (around, hints[key].id))) if hints[key].id else ids[key]

    return _apart({key: whole(key) for key in ids})


def _apart(ids: dict[str, str]) -> dict[str, str]:
    """Return the ids with a number appended to repeated ones."""
    distinct: dict[str, str] = {}
    taken: set[str] = set()
    for key, id in ids.items():
        distinct[key] = free_id(id, taken)
        taken.add(distinct[key])
    return distinct


def free_id(id: str, taken: Collection[str]) -> str:
    """Return an id, with a number appended if it is taken."""
    numbered = (id if number == 1 else f"{id}{number}" for number in count(1))
    return next(whole for whole in numbered if whole not in taken)


def _id(roles: Roles, key: str, part: str) -> str:
    module, places = roles.module(key), roles.places
    own = ROLE_LABELS[part].id if part in ROLE_LABELS else ""
    if part in ("X", "Y"):
        own = f"{stage(roles, key, part)}.residual"
    elif part == "R" or not own:
        end = own or ("" if part == "norm" else roles.last_name(key).strip("_") or "layout")
        return ".".join(filter(None, (module, end))) or part
    return ".".join(filter(None, (places.prefix(module) or places.part(module), own)))


# Symbols of parameters, by the lines that use them, and of inputs, by their kind.

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
AFFINE = {"weight": r"\boldsymbol{\gamma}", "bias": r"\boldsymbol{\beta}"}
"""Letters of the arguments of a norm."""
TOKENS = "input_ids", "ids", "tokens", "t"
"""Usual names of token ids in programs."""


class ParameterSymbols(StepSymbols):
    """`of[key]` is the LaTeX of a line's tensor; `parameter(path)` that of a parameter or buffer."""

    def __init__(self, *hints):
        super().__init__(*hints)
        self._affine: dict[str, str] = {}
        self._users = self._uses()
        self._parameters: dict[str, str] = {}

    def _uses(self) -> dict[str, list[tuple[str, str]]]:
        """Return the lines that use a parameter, each with the name of its call; `_affine` gets the letters of those
        that scale or shift what a norm has normalised."""
        uses: dict[str, list[tuple[str, str]]] = {}
        plan, graph = self._roles.plan, self._graph
        for key in plan.lines:
            raw = plan.raw(key)
            for index in plan.inner_calls[raw] if raw is not None else ():
                call = graph.calls[index]
                for name in AFFINE if "norm" in call.op.traits else ():
                    if isinstance(vector := call.arguments.get(name), Ref):
                        self._affine[graph.root(vector.key)] = AFFINE[name]
                for ref in refs(call.arguments):
                    root = graph.root(ref.key)
                    if root.startswith("parameter "):
                        uses.setdefault(root, []).append((key, graph.calls[index].op.name))
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
            elif len(ref.shape) == 4 and self._is_photo(key):
                letter, below = r"\mathbf{X}", r"\mathrm{img}"
            else:
                letter, below = r"\mathbf{x}", text(name) if name not in ("x", "input", "inputs", "0") else ""
            self._parameters[key] = self._unlike(letter, below, above)
        return self._parameters[key]

    def _is_photo(self, key: str) -> bool:
        """Return whether an input of four axes is a photo: of one channel or three, and no scores, queries, keys or
        values of as many heads."""
        graph, ref = self._graph, self._graph.ref[key]
        for index in graph.consumers[key]:
            call = graph.calls[index]
            of_inputs = all(graph.depends[operand.key] == "x" for operand in graph.inputs[index])
            if "softmax" in call.op.traits or call.name == ATTENTION or ("matmul" in call.op.traits and of_inputs):
                return False
        return ref.shape[1] in (1, 3) or str(self._shapes.of(key)[1]) == "C"

    def _places_of_tokens(self, key: str) -> bool:
        """Return whether an input selects tokens by position."""
        graph = self._graph
        calls = (graph.calls[index] for index in graph.consumers[key] if len(graph.shape(key)) == 2)
        return any(call.op.name == "gather" and graph.root(call.arguments["index"].key) == key for call in calls)

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
        of_norm = bool(calls & NORMS) or (bool(lines) and "norm" in self._roles.kind(next(iter(lines))).lower())
        mark = self._below(line, role, of_norm) or text(own_name(module))
        below = mark or text(own)
        if not self._graph.ref[key].dtype.is_floating_point:
            return (r"\mathbf{p}", "", above) if "position" in own else (r"\mathbf{n}", text(own), above)
        match own:
            case "running_mean":
                return r"\boldsymbol{\mu}", below, above
            case "running_var":
                return r"\boldsymbol{\sigma}^2", below, above
            case _ if key in self._affine:
                return self._affine[key], mark, above
            case "weight" if of_norm:
                return r"\boldsymbol{\gamma}", mark, above
            case "bias" if of_norm:
                return r"\boldsymbol{\beta}", mark, above
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
        if self._of_tokens(key):
            others = [table for table in self._tables() if table != key and self._of_tokens(table)]
            return r"\mathbf{E}", text(own_name(module)) if others else ""
        if "type" in module.lower():
            return r"\mathbf{E}", r"\mathrm{type}"
        return r"\mathbf{P}", ""

    def _of_tokens(self, key: str) -> bool:
        """Return whether a table has rows that the input selects."""
        calls = (self._graph.calls[index] for index in self._graph.consumers[key])
        numbers = (call.arguments["indices"].key for call in calls if call.op.name == "embedding")
        return any(self._graph.depends[number] == "x" for number in numbers)

    def has_two_layouts(self, key: str) -> bool:
        """Return whether a parameter is both the matrix of a linear map, with its axes exchanged, and read as it is
        stored, such as an embedding table. One letter is one matrix, so the linear map then reads its transpose."""
        return len(self._layouts.get(key, ())) > 1

    @cached_property
    def _layouts(self) -> dict[str, set[bool]]:
        """For each parameter, whether it is the matrix of a linear map, for all calls that read it."""
        graph, lines = self._graph, self._roles.plan.lines
        layouts: dict[str, set[bool]] = {root: {False} for root in map(graph.root, lines) if root.startswith(PARAMETER)}
        calls = [graph.calls[index] for index in graph.computing_calls()]
        for call in [
            *calls,
            *chain.from_iterable(call.arguments["body"].calls for call in calls if call.name == "scan"),
        ]:
            matrix = call.arguments.get("weight") if call.op.name == "linear" else None
            for ref in refs(call.arguments):
                if call.name != "scan" and (root := graph.root(ref.key)).startswith(PARAMETER):
                    layouts.setdefault(root, set()).add(ref is matrix and self._is_as_stored(root, ref.key))
        return layouts

    def _is_as_stored(self, root: str, key: str) -> bool:
        """Return whether a value is a parameter without any layout."""
        graph = self._graph
        return all(graph.kind[graph.producer[step]] == "same" for step in graph.chain(key, root))

    def _tables(self) -> set[str]:
        tables = {key for key, uses in self._users.items() if any(call == "embedding" for _, call in uses)}
        return {key for key in tables if self._graph.ref[key].dtype.is_floating_point}
