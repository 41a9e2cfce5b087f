"""Records of a run as plain data: lines of the textbook with the outcome of their proofs, attention, ops, findings."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from html import escape
from itertools import pairwise
from math import inf
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tracer.utils import files
from tracer.utils.errors import quote
from tracer.utils.lazy_import import provider

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Operand:
    """One factor or the result of a matrix product: its symbol and its last two dimensions."""

    symbol: str
    symbolic: tuple[str, str]
    shape: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Name:
    """A letter of an equation that no step computes: `of` is "input image" or "parameter block1.norm1.weight", which
    the equation reads as it is, or with its last two axes exchanged if `transposed`. A "constant 0" from `outside` of
    PyTorch is another for other values of the input."""

    symbol: str
    of: str
    transposed: bool = False
    outside: bool = False


CHANGED_SUFFIX = ".changed"
"""The end of the id of a line that changes the value of the line before it."""


def split_id(id: str) -> tuple[str, str, str]:
    """Split an id into the location of a line, its name there, and its number among lines of that name, "" for the
    first: ("block1.attention", "scores", "2") for `block1.attention.scores2`, whether it was changed or not."""
    around, _, end = id.removesuffix(CHANGED_SUFFIX).rpartition(".")
    name = end.rstrip("0123456789")
    return around, name, end[len(name) :]


TOLERANCES = {"float64": 1e-11, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
"""By the dtype in which the model computed, the largest difference of two tensors that are called the same where
nothing is known of how each cell came about, as a share of the largest value. Proofs have a bound for each cell."""


@lru_cache(maxsize=64)
def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's name in records: "float32"."""
    return str(dtype).removeprefix("torch.")


def tolerance(dtype: str) -> float:
    """Return the largest difference of two equal tensors of that dtype, as a share of the largest value."""
    return TOLERANCES.get(dtype, 0.0)


def verdict(margin: float | None) -> str:
    """Return the verdict for the largest share of the allowed error: "verified" up to 1, "refuted" beyond it or if it
    is undefined, "not executed" without anything to compare with."""
    if margin is None:
        return "not executed"
    return "verified" if margin <= 1 else "refuted"


def verdict_within(error: float | None, dtype: str) -> str:
    """Return the verdict for an error of tensors of a dtype, as a share of the largest value, by `tolerance`."""
    return verdict(error if error is None or error == 0 else error / tolerance(dtype) if tolerance(dtype) else inf)


INPUT = "input "
"""Prefix of the key of an input of the run."""
RESIDUAL_STREAM, SCORES, ATTENTION_WEIGHTS, LOGITS = "residual stream", "scores", "attention weights", "logits"
SEQUENCE, SELECTED_TOKENS = "sequence", "selected tokens"
"""Roles of steps that figures look for; `tracer.textbook.names` has all."""


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the textbook: a symbol, an equation, a shape, and the proof.

    Attributes:
        reads: The keys of what the equation reads, in its order: ids of steps, "input x", "parameter w", "constant 0".
            A recurrence reads itself.
        role: What the tensor is in a transformer, such as "queries" or "residual stream"; "" without a role.
        error: max|equation - traced| / max|traced|, or None if the equation was not executed (`note` says why).
        margin: The largest error of a cell, as a share of the error that is allowed in that cell. The allowed error
            follows from the rounding of the cell's own terms in the dtype of the run. Up to 1 is verified.
        wrong: The index of the first cell whose error is larger than allowed.
        value: The key of the traced tensor in `Trace.values`.
        product: The matrix product of the line: its left operand, its right operand, and its result.
        names: The letters of the equation that no step computes: inputs and parameters.
        pending: True if the proof is still to come (`Trace.prove`).
        inside: The fused op that computes a recomputed tensor on the way; None for any other tensor.
        checked: The number of other runs whose tensors the printed line gave.
        refuted: True if the printed line contradicts another run.
        replayed: Which run refutes it, and how; or why fewer than three other runs were made (`Trace.check`).
        unseen: The operands, as they are printed, that could be left out or reordered without the proof or one of those
            runs noticing.
        recorded: True if the line stands in a file that was opened, whose tensors do not suffice to prove it again.
        of_input: True if the line has a number that the code computed from the values of this input, so that it holds
            for this input only.
    """

    id: str
    stage: str
    layer: int | None
    title: str
    symbol: str
    latex: str
    symbolic: tuple[str, ...]
    shape: tuple[int, ...]
    error: float | None
    recomputed: bool
    source: Source | None
    ops: tuple[int, ...]
    why: str
    note: str = ""
    value: str = ""
    product: tuple[Operand, Operand, Operand] | None = None
    dtype: str = "float32"
    wrong: tuple[int, ...] | None = None
    names: tuple[Name, ...] = ()
    pending: bool = False
    inside: int | None = None
    margin: float | None = None
    checked: int = 0
    refuted: bool = False
    replayed: str = ""
    unseen: tuple[str, ...] = ()
    recorded: bool = False
    of_input: bool = False
    reads: tuple[str, ...] = ()
    role: str = ""

    def _repr_html_(self) -> str:
        return provider("html of a step")(self)

    @property
    def verdict(self) -> str:
        """Verdict on the equation; it alone decides which lines are displayed as verified.

        It is "recomputed" for a tensor that a fused op never stored, "recorded" for what a file states and nobody has
        verified, "pending" for a proof that is still to come, and otherwise that of `verdict`.
        """
        if self.recomputed:
            return "recomputed"
        if self.refuted:
            return "refuted"
        if self.recorded:
            return "recorded"
        return "pending" if self.pending else verdict(self.margin)


@dataclass(frozen=True, slots=True)
class Symbol:
    """A size of the notation: its meaning, its value at this run, and, for derived sizes, what it equals."""

    name: str
    meaning: str
    value: int
    equals: str = ""


# Repeated steps: blocks whose lines differ only in their number, printed once, × L.
#
# A block's number is above its letters, `\mathbf{Q}^{(3)}`, `\mathbf{Q}^{(2.3)}` for the third of the second stage.
# With numbers counted from the block's own, `\mathbf{X}^{(\ell-1)}`, equal blocks read the same. Two alternating kinds
# of block (windows and shifted windows) are one repeat of period two.

BLOCK_NUMBER = re.compile(r"\((\d+(?:\.\d+)*)\)\}")
"""The number of a block, at the end of a superscript."""
PERIODS = 4
"""Most kinds of blocks that alternate."""


class Repeat(NamedTuple):
    """`times` runs of `length` steps from step `start` on, with the same lines but for the numbers of `blocks`.

    `blocks` holds the first block of each; `period` blocks make one run.
    """

    start: int
    length: int
    times: int
    period: int
    blocks: tuple[str, ...]

    @property
    def numbers(self) -> str:
        r"""Numbers as LaTeX: `\ell = 1, 2, \ldots, 12`, or `\ell = 3.1, 3.3, 3.5`."""
        shown = self.blocks if self.times < 4 else (*self.blocks[:2], r"\ldots", self.blocks[-1])
        return rf"\ell = {', '.join(shown)}"


class _Block(NamedTuple):
    number: str
    start: int
    stop: int


def repeats(steps: Sequence[Step]) -> tuple[Repeat, ...]:
    """Return the repeats of a book, in order; no two share a step."""
    repeated, blocks, at = [], _blocks(steps), 0
    while at < len(blocks):
        best = max((_repeat(steps, blocks, at, period) for period in range(1, PERIODS + 1)), key=_steps_saved)
        if best.times > 1:
            repeated.append(best)
            at += best.times * best.period
        else:
            at += 1
    return tuple(repeated)


def _steps_saved(repeat: Repeat) -> tuple[int, int]:
    """Return the number of steps that need not be printed, and the negative period, so that the shortest wins."""
    return (repeat.times - 1) * repeat.length, -repeat.period


def _blocks(steps: Sequence[Step]) -> list[_Block]:
    """Return the runs of steps that are in one block each."""
    blocks: list[_Block] = []
    for index, step in enumerate(steps):
        number = _number(step)
        if number is None:
            continue
        last = blocks[-1] if blocks else None
        if last is not None and last.number == number and last.stop == index and steps[last.start].layer == step.layer:
            blocks[-1] = last._replace(stop=index + 1)
        else:
            blocks.append(_Block(number, index, index + 1))
    return blocks


def _number(step: Step) -> str | None:
    """Return the number of a step's block, or None."""
    numbers = BLOCK_NUMBER.findall(step.symbol)
    return None if step.layer is None else numbers[-1] if numbers else str(step.layer + 1)


def _repeat(steps: Sequence[Step], blocks: list[_Block], at: int, period: int) -> Repeat:
    """Return the repeat that starts at a block with that many alternating kinds of blocks, or None."""
    first = blocks[at : at + period]
    times, lines = 1, None
    if _follow(first):
        lines = _lines(steps, first)
        while len(both := blocks[at + (times - 1) * period :][: 2 * period]) == 2 * period and _follow(both):
            if _lines(steps, both[period:]) != lines:
                break
            times += 1
    numbers = tuple(blocks[at + turn * period].number for turn in range(times))
    return Repeat(first[0].start, first[-1].stop - first[0].start, times, period, numbers)


def _follow(blocks: Sequence[_Block]) -> bool:
    """Return whether blocks follow each other directly, with consecutive numbers."""
    pairs = pairwise(blocks)
    return all(a.stop == b.start and _after(a.number, 1) == b.number for a, b in pairs)


def _after(number: str, count: int) -> str:
    """Return the number of the block `count` after this one, in the same stage."""
    around, point, own = number.rpartition(".")
    return f"{around}{point}{int(own) + count}"


def _lines(steps: Sequence[Step], blocks: Sequence[_Block]) -> list[tuple]:
    """Return all texts of the steps of some blocks, with their numbers counted from the first."""
    own, others = blocks[0].number, attrgetter("title", "stage", "symbolic", "shape", "note")
    chosen = steps[blocks[0].start : blocks[-1].stop]
    return [(at_any(step.latex, own), at_any(step.symbol, own), *others(step)) for step in chosen]


def at_any(latex: str, number: str) -> str:
    r"""Return LaTeX with block numbers of the same stage relative to this one: `\mathbf{X}^{(\ell-1)}`."""
    around, point, own = number.rpartition(".")

    def relative_block(match: re.Match) -> str:
        before, _, last = match[1].rpartition(".")
        if before != around:
            return match[0]
        offset = int(last) - int(own)
        return rf"({around}{point}\ell{f'{offset:+d}' if offset else ''})}}"

    return BLOCK_NUMBER.sub(relative_block, latex)


# Records of attention, of the positions of tokens on a photo, and of segments of the token sequence.

MOVED_TOKENS = (
    "A change can put the tokens of this run in another order, so attention is not laid over the photo: patch 5 is the "
    "fifth token of the patches here, wherever it was cut from."
)
"""The note of a run whose tokens do not lie on the photo, since a change may have moved them."""


@dataclass(frozen=True, slots=True)
class AttentionRecord:
    """One attention of the run: the keys of its queries, keys and mask, and the ops that compute its scores.

    `chain` lists what the model did to the product of queries and keys before the softmax: pairs of op name
    and its other arguments, each a number or the key of a kept tensor. `problem` says why the weights
    can't be recovered, and is empty where they can. `part` names the tower in models of several. `mask` is "none",
    "causal", "windows" or "given"; `over` says what queries and keys are, "tokens" or "channels". `after` names what
    the model did to the weights between the softmax and the values, which the weights here are from before. `weights`
    is the key of the weights `[B, h, S_q, S_k]` that a change put in their place, and `scores` that of the scores which
    the softmax took, where they do not follow from queries and keys any more.
    """

    layer: int
    part: str
    module: str
    op: int
    heads: int
    queries: int
    keys: int
    q: str
    k: str
    chain: tuple[tuple[str, tuple], ...]
    mask: str = "none"
    fused: bool = False
    problem: str = ""
    over: str = "tokens"
    after: tuple[str, ...] = ()
    weights: str = ""
    scores: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """Layout of the run's tokens on the photo, whose pixels are `Trace.values[value]`, uint8 `[H, W, 3]`.

    `crop` is (left, top, right, bottom) in photo pixels; token `first + row * columns + column` is the patch
    at (row, column) of the crop.
    """

    value: str
    crop: tuple[float, float, float, float]
    rows: int
    columns: int
    first: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A named segment of the token sequence: CLS, image or text; tokens `start` to `stop - 1`.

    `part` names the tower whose sequence it is, in models of several. `places` are the patches that its tokens are,
    one for each and in their order, counted row by row over the grid of the `Picture`, where a tower has only some of
    them; empty elsewhere.
    """

    name: str
    start: int
    stop: int
    part: str = ""
    places: tuple[int, ...] = ()


# Records of a run: ops, their primitives, calls of modules and of composite ops.


@dataclass(frozen=True, slots=True)
class Source:
    """A line of the model's own source code."""

    file: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """A tensor at one op: shape, dtype and producer.

    `maker` is the index of the op that made it, or the name of the parameter, buffer or input it is.
    """

    shape: tuple[int, ...]
    dtype: str
    maker: int | str
    symbolic: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Op:
    """One tensor operation that PyTorch ran.

    Attributes:
        module: The path of the innermost module that was running.
        call: The number of earlier calls of that module.
        function: The Python-level name, if the model called one.
        params: The number of elements of the parameters that are first used here.
        flops: 2 per multiply-add; None if its products are not counted.
    """

    index: int
    module: str
    call: int
    op: str
    function: str
    source: Source | None
    inputs: tuple[TensorRecord, ...]
    outputs: tuple[TensorRecord, ...]
    parameters: tuple[str, ...] = ()
    params: int = 0
    params_symbolic: str = "0"
    flops: int | None = 0
    flops_symbolic: str = "0"
    step: str | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Primitive:
    """One of the operations that an op decomposes into.

    The `maker` of a tensor is the number of the primitive of this op that made it, or which of the op's inputs it is:
    `"input 0"`. `within` names the ops, from the outside in, that PyTorch opened to get from the op to here, such as
    `"_safe_softmax/_softmax"`.
    """

    name: str
    within: str
    inputs: tuple[TensorRecord, ...]
    outputs: tuple[TensorRecord, ...]


@dataclass(frozen=True, slots=True)
class Decomposition:
    """PyTorch's own decomposition of op `op`, run on the op's arguments.

    `error` is max|decomposition - op| / max|op|; None for an op that stays one primitive, and `note` says why unless
    it only lays data out anew.
    """

    op: int
    primitives: tuple[Primitive, ...]
    error: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class ModuleRecord:
    """One call of a module, as the forward hooks saw it: path, class, number of earlier calls, inputs and outputs.

    `around` is the number of the module call that it ran in, or None; its ops are `first` to `last - 1`. `params` are
    the elements of all parameters that these read, `flops` what those cost that are counted. `problem` says in a
    sentence where what the hooks saw and what the ops did are not of one run.
    """

    path: str
    kind: str
    call: int
    around: int | None
    first: int
    last: int
    inputs: tuple[TensorRecord, ...]
    outputs: tuple[TensorRecord, ...]
    params: int = 0
    flops: int = 0
    problem: str = ""

    @property
    def verdict(self) -> str:
        """Return the verdict of the ops beneath on the hooks' record: "verified" or "refuted"."""
        return "refuted" if self.problem else "verified"


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a call by its name in the op's schema: its `value` as text, or its `tensors`, several for a list.
    `default` is True if it equals the schema's default."""

    name: str
    value: str = ""
    tensors: tuple[TensorRecord, ...] = ()
    default: bool = False


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One composite op that the code called, in call `call` of a module; it ran ops `first` to `last - 1`."""

    name: str
    arguments: tuple[Argument, ...]
    outputs: tuple[TensorRecord, ...]
    module: str
    call: int
    first: int
    last: int

    @property
    def text(self) -> str:
        """Return the call as source code: `scaled_dot_product_attention(query, key, value, is_causal=True)`, without
        defaults."""
        arguments = (
            argument.name if argument.tensors else f"{argument.name}={argument.value}"
            for argument in self.arguments
            if not argument.default
        )
        return f"{self.name}({', '.join(arguments)})"


@dataclass(frozen=True, slots=True)
class ReturnedTensor:
    """A tensor that forward returned. `name` is its position in the output: `logits`, `[1]`,
    `past_key_values.layers[0].keys`, "" for a tensor alone.

    `step` is the id of the step whose tensor it is, bit by bit. `of` is what the run was given and gives back as it is:
    "input x", "parameter weight", "constant 0". Both are empty for a tensor that no step has.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    step: str = ""
    of: str = ""


# Likely mistakes in a model's code, as plain data.


@dataclass(frozen=True, slots=True)
class Finding:
    """A place where a model runs and probably does not do what was meant.

    Attributes:
        kind: The name of the rule, such as "axes mixed"; `docs/findings.md` has a section of that name.
        step: The id of the step where it shows, "" where no step has it.
        ops: The ops concerned, in order; their `source` are the lines of code.
        message: What was measured, and what follows from it.
        fix: The repair, as code where there is one.
        intent: Why it is on purpose, from a hint or a comment in the code; "" for a finding that nobody acknowledged.
    """

    kind: str
    step: str
    ops: tuple[int, ...]
    message: str
    fix: str
    intent: str = ""

    def _repr_html_(self) -> str:
        return provider("html of findings")((self,))


class Findings(tuple[Finding, ...]):
    """Findings in order, which a notebook shows as a table."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return provider("html of findings")(self)


# Interface of the code that proves a trace's lines, which is in a higher layer than the record.


class Prover(Protocol):
    """A prover of pending steps: on the model that ran, or on the tensors of the file that was opened."""

    def __call__(self, steps: Sequence[Step]) -> dict[str, Step]:
        """Return these steps with their proofs, by id."""


class DeferredProver(Prover, Protocol):
    """A prover that holds the model, the equations and their tensors."""

    @property
    def derived_steps(self) -> Sequence[Any]:
        """Steps of the run with their equations."""

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of the run by their names."""

    def spell(self, steps: Any) -> Any:
        """Return the trace as its code spells it where these steps refute the name of a formula, else None."""

    def rewrite(self, change: Callable[[Any], Any]) -> DeferredProver:
        """Return the same run, with the equations that `change` returns for its lines."""

    def values(self, kind: Any = None) -> Any:
        """Return the tensors of the run by their keys."""

    def rewritten(self) -> set[str]:
        """Return the keys of parameters and buffers that have changed since the run."""


class Replayer(Protocol):
    """A recipe to run a traced module again, on other inputs, weights and sizes."""

    @property
    def notes(self) -> list[str]:
        """Notes on the checks, besides those of single lines."""

    def check(self, steps: Sequence[Step], later: Any = None, ids: Collection[str] | None = None) -> tuple[Step, ...]:
        """Return the steps with the number of other runs on which each line holds, of these steps or of all."""

    def shorten(self, shortened: bool) -> Replayer:
        """Return the recipe that runs one block of each kind, or the whole module."""


# Film of a run: one page of HTML, as plain data.

HEIGHT = 640
"""Pixels of the film in a notebook."""


@dataclass(frozen=True)
class Film:
    """Film of a run of `model`: `html` is a page that loads nothing and needs no server. A notebook shows it."""

    model: str
    html: str = field(repr=False)

    def save(self, path: str | Path) -> None:
        """Write the film to an HTML file. Raise OSError where that can't be written."""
        files.write(path, self.html.encode())

    def _repr_html_(self) -> str:
        name = escape(f"The run of {self.model} as a film")
        return (
            f'<iframe title="{name}" sandbox="allow-scripts" style="width:100%;height:{HEIGHT}px;border:0" '
            f'srcdoc="{escape(self.html)}"></iframe>'
        )


# LaTeX from outside: displayed only where it is mathematics and stays in its line.

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
