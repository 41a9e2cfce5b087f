"""What is printed, read and computed again."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from tracer.export.letters import letters_of
from tracer.export.rows import NOTE_TITLES, as_printed
from tracer.inputs.model_inputs import Inputs
from tracer.latex_reader.evaluator import Operands, deviation, evaluate, names
from tracer.latex_reader.parser import Line, UnreadableLatex, read
from tracer.lessons.notes import claims, lookup
from tracer.lessons.notes.measurement import RUNS, tensor_of
from tracer.lessons.notes.statements import rows
from tracer.record import Step, Trace, tolerance
from tracer.symbols import notation
from tracer.symbols.letters import TEXTS, look
from tracer.textbook.derivation import KERNEL
from tracer.utils.errors import quote
from tracer.verify.checks import check
from tracer.verify.checks.reference_run import PlainRun, array

# Matrix products drawn to scale: the inner sides are equal, and the outer ones are those of the result.


@check
def check_matmul_figures(run: PlainRun) -> Iterator[str]:
    """Check the sides of every product, and that each symbol is as long as the run's."""
    sizes = {size.name: size.value for size in run.trace.symbols}
    for step in run.trace.steps:
        if step.product is None:
            continue
        left, right, result = step.product
        (rows, inner), (below, columns) = left.shape, right.shape
        if inner != below or tuple(result.shape) != (rows, columns):
            drawn = f"[{rows} × {inner}] times [{below} × {columns}]"
            yield f"step {step.id!r} draws {drawn}, which gives no [{' × '.join(map(str, result.shape))}]"
        for operand in step.product:
            for symbolic, size in zip(operand.symbolic, operand.shape, strict=True):
                if sizes.get(symbolic, size) != size:
                    yield f"step {step.id!r} draws {operand.symbol} with {symbolic} = {size}"


# Statements of the notes about a model, looked up and measured again on this run; some of the numbers in NumPy.

FACTORS = (1000, 100, 10)
"""What scores are multiplied by where gradients of the softmax are measured."""


@check
def check_note_statements(run: PlainRun) -> Iterator[str]:
    """Yield statements that do not hold as claimed; only at the sizes and options that the notes are read at."""
    name, model, trace = run.model.name, run.model, run.trace
    if not _of_notes(run):
        return
    for row in (row for note in NOTE_TITLES for row in rows(note) if row.run == name):
        for place in (place for place in row.where if not place.startswith(("claim ", "slip "))):
            if lookup.look(row, place, lambda _: (model, trace)).verdict == "not":
                yield f"note {row.note}, statement {row.number}: {place} is not as it says"
    for claim, measure in claims.CLAIMS.items():
        if name not in {row.run for row in claims.statements(claim)}:
            continue
        measured = measure(model, trace)
        if measured.verdict != claims.DIFFERS.get(claim, "holds"):
            yield f"the claim {claim} is “{measured.verdict}” on this run: {measured.text}"
        for number in NUMBERS.get(claim, lambda run: ())(run):
            if number not in measured.text:
                yield f"the claim {claim} does not say {number}, which NumPy makes of this run: {measured.text}"


def _of_notes(run: PlainRun) -> bool:
    """Return whether a run of the notes is of this model, at its own sizes and first options, with its own weights."""
    known, model = RUNS.get(run.model.name), run.model
    if known is None or known.model != model.name or not known.shipped:
        return False
    first = all(model.options[name] == choices[0] for name, choices in model.spec.options.items())
    return first and model.sizes == (model.card or {}).get("sizes", model.spec.sizes)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}\u00a0%"


def _far(run: PlainRun) -> list[str]:
    """Check the mean distance in every block, and that of even attention, cell by cell of the grid."""
    picture = run.trace.picture
    if picture is None:
        return []
    at = np.stack(np.divmod(np.arange(picture.rows * picture.columns), picture.columns), 1)
    apart = np.sqrt(((at[:, None] - at[None]) ** 2).sum(-1))
    maps = [each.reshape(-1, *each.shape[-2:]).mean(0)[picture.first :, picture.first :] for each in run.softmaxes]
    return [f"{(each * apart).sum() / each.sum():.2f}" for each in maps] + [f"would be {apart.mean():.2f}"]


def _soft_lookup(run: PlainRun) -> list[str]:
    weights = run.softmaxes[0]
    return [f"gets {_percent(weights.max(-1).mean())}", f"gets {_percent((1 / (weights > 0).sum(-1)).mean())}"]


def _heads_differ(run: PlainRun) -> list[str]:
    weights = run.softmaxes[0].reshape(-1, *run.softmaxes[0].shape[-2:])
    pairs = [(i, j) for i in range(len(weights)) for j in range(i)]
    return [f"put {_percent(np.mean([np.abs(weights[i] - weights[j]).sum(-1).mean() / 2 for i, j in pairs]))}"]


def _gradients(run: PlainRun) -> list[str]:
    """Check the norm of diag(a) − aaᵀ, of rows a whose logarithms are multiplied, which scales the scores."""
    scores = np.log(run.softmaxes[0].reshape(-1, run.softmaxes[0].shape[-1]))
    width = next(step.shape[-1] for step in run.trace.steps if step.id == "block1.attention.query")

    def norm(factor: float) -> str:
        powers = np.exp(factor * (scores - scores.max(-1, keepdims=True)))
        rows = powers / powers.sum(-1, keepdims=True)
        return f"{np.mean([np.linalg.norm(np.diag(row) - np.outer(row, row)) for row in rows]):.2g}"

    multiplied = [f"{norm(factor)} at × {factor:,}" for factor in FACTORS]
    return [f"{norm(1)} at this run's scores", f"{norm(np.sqrt(width))} without its", *multiplied]


def _cross_terms(run: PlainRun) -> list[str]:
    """Check queries and keys of contents and of positions, by the parameters themselves."""
    content, both = (array(tensor_of(run.trace, id))[0] for id in ("embedding", "position"))
    parameters = {name: array(value) for name, value in run.model.net.named_parameters()}
    h = run.model.sizes["h"]

    def parts(name: str) -> list[np.ndarray]:
        W, bias = parameters[f"block1.attention.{name}.weight"], parameters.get(f"block1.attention.{name}.bias", 0)
        projected = content @ W.T + bias, (both - content) @ W.T
        return [rows.reshape(len(content), h, -1).swapaxes(0, 1) for rows in projected]

    queries, keys = parts("query"), parts("key")
    terms = [[q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1]) for k in keys] for q in queries]
    total = sum(terms[0]) + sum(terms[1])

    def elsewhere(left_out: np.ndarray) -> str:
        return _percent((np.argmax(total - left_out, -1) != np.argmax(total, -1)).mean())

    cross = terms[0][1] + terms[1][0]
    share = _percent((cross**2).sum() / (total**2).sum())
    return [f"cross terms {elsewhere(cross)}", f"squares are {share}", f"position {elsewhere(terms[1][1])}"]


NUMBERS: dict[str, Callable[[PlainRun], list[str]]] = {
    "far": _far,
    "soft_lookup": _soft_lookup,
    "heads_differ": _heads_differ,
    "gradients": _gradients,
    "cross_terms": _cross_terms,
}
"""What the text of a claim has to hold, of numbers that are computed here by other code."""


# Printed equations against the run: every equation of a trace is parsed again from its LaTeX, and evaluated.
#
# The string that the page shows is all that counts, with the two tables that stand beside it: of sizes, and of the
# tensors that equations name. The reader has neither PyTorch, nor sympy, nor `tracer.expr`.


@check
def check_printed_equations(run) -> Iterator[str]:
    """Yield one sentence for each equation whose LaTeX does not evaluate to the run's tensor, and for each ambiguous
    name.

    `run` has the `trace`, the `model`, and the `inputs` that it was given. The same strings are then read for other
    runs of the same net, with other inputs, weights and sizes, in float64: what a batch of one, a γ of ones or the
    tolerance of float32 hides in the run itself is wrong there.
    """
    if not run.trace.steps:
        return
    wrong = dict(differences(run.trace, run.model.net, run.inputs))
    yield from wrong.values()
    if run.trace.replay is None:
        return
    known = any(step.checked or step.replayed for step in run.trace.steps)
    checked = run.trace.steps if known else run.trace.check().steps
    for step in checked:
        if step.refuted and step.id not in wrong:
            yield f"step {step.id!r} prints {quote(step.latex)}. {step.replayed}"
    if run.model.spec.probes:  # sizes at which it was said to run
        yield from run.trace.replay.notes
    if not any(step.checked for step in checked):
        yield next(step.replayed for step in checked if step.replayed)


def differences(trace: Trace, net: torch.nn.Module, inputs: Inputs) -> Iterator[tuple[str, str]]:
    """Yield each step whose LaTeX does not evaluate to the run's tensor, by its id, with a sentence; first each
    ambiguous name, by itself.

    Steps that a fused op went through have no tensor: theirs is what their own LaTeX gives, and is judged by what
    follows from it.
    """
    sizes = {notation.latex(size.name) for size in trace.symbols}
    for name, things in names(trace.steps).items():
        things = [*things, *["size"] * (name in sizes)]
        if len(things) > 1:
            ambiguous = " and ".join(map(quote, things))
            yield name, f"{quote(name)} is the name of {ambiguous}, expected one thing for each name"
    operands = printed_operands(trace, net, inputs)
    for step in trace.steps:
        if KERNEL in step.note:  # it says that its proof is a weaker one: PyTorch's own op has no words to be read
            continue
        try:
            line = read(step.latex, operands.names)
            if line.name != step.symbol:
                raise UnreadableLatex(f"it says what {quote(line.name)} is")
            evaluated = evaluate(line, operands, step.shape)
            if step.recomputed:
                operands.computed[step.symbol] = evaluated
                continue
            error = float(deviation(evaluated, operands(step.symbol)).max(initial=0))
        except UnreadableLatex as reason:
            yield step.id, f"step {step.id!r} prints {quote(step.latex)}, but {reason}"
            continue
        if not error <= tolerance(step.dtype):
            off = f"off by {error:.2g}, expected at most {tolerance(step.dtype):.2g}"
            yield step.id, f"what step {step.id!r} prints is {off}"


def printed_operands(trace: Trace, net: torch.nn.Module, inputs: Inputs) -> Operands:
    """Return the values of the names in a run's printed lines."""
    table = {name: things[0] for name, things in names(trace.steps).items()}
    sizes = {notation.latex(size.name): size.value for size in trace.symbols}
    return Operands(table, sizes, RunTensors(trace, net, inputs))


class RunTensors:
    """Tensors of a run by the keys of equations, in float64 unless they are whole numbers."""

    def __init__(self, trace: Trace, net, inputs: Inputs):
        self._tensors = {f"parameter {path}": tensor for path, tensor in net.named_buffers()}
        self._tensors |= {f"parameter {path}": tensor for path, tensor in net.named_parameters(remove_duplicate=False)}
        arguments = inspect.signature(net.forward).bind(*inputs, **inputs.named).arguments
        for name, value in arguments.items():  # those that a `*raw` takes are raw.0, raw.1 …
            several = (
                {f".{place}": item for place, item in enumerate(value)} if isinstance(value, tuple) else {"": value}
            )
            self._tensors |= {f"input {name}{place}": tensor for place, tensor in several.items()}
        self._tensors |= {key: value for key, value in trace.values.items() if key.startswith("constant ")}
        self._tensors |= {f"step {step.id}": trace.value(step) for step in trace.steps}

    def __call__(self, key: str) -> np.ndarray | None:
        tensor = self._tensors.get(key)
        if tensor is None and "*" in key:
            tensor = self._of_a_list(*key.split("*", 1))
        if tensor is None:
            return None
        tensor = tensor.detach().cpu()
        return (tensor.double() if tensor.is_floating_point() or tensor.dtype == torch.bool else tensor).numpy()

    def _of_a_list(self, front: str, back: str) -> torch.Tensor | None:
        """Return the parameters that the modules of a list have under one name, concatenated."""
        stack = []
        while (item := self._tensors.get(f"{front}{len(stack)}{back}")) is not None:
            stack.append(item)
        return torch.stack(stack) if stack else None


# Lines in the letters of each text: the same tree with other names, which stay apart.


@check
def check_letters(run: PlainRun) -> Iterator[str]:
    """Yield a sentence for each line that means something else in the letters of a text, and for each two names that
    look alike there and not in ours."""
    trace = run.trace
    own = {notation.latex(size.name) for size in trace.symbols} | set(names(trace.steps))
    lines = [(step, line) for step in trace.steps if (line := _readable(step, own)) is not None]
    for text in TEXTS:
        letters = letters_of(trace, text)
        other = {name: letters.line(name) for name in own}
        ours = {name: printed for printed, name in other.items()}
        yield from (f"in the letters of {text}, {problem}" for problem in _alike(other))
        for step, line in lines:
            printed = letters.line(step.latex)
            try:
                same = _with_names(tuple(read(printed, ours)), ours) == tuple(line)
            except UnreadableLatex as reason:
                yield f"in the letters of {text}, step {step.id!r} prints {quote(printed)}, but {reason}"
                continue
            if not same:
                yield f"in the letters of {text}, step {step.id!r} prints {quote(printed)}, which says something else"


def _readable(step: Step, known: Collection[str]) -> Line | None:
    """Return the printed line of a step; None for one that can't be read, of which another check says so."""
    try:
        return read(step.latex, known)
    except UnreadableLatex:
        return None


def _alike(printed: Mapping[str, str]) -> Iterator[str]:
    looks: dict[str, str] = {}
    for own, name in printed.items():
        before = looks.setdefault(look(name), own)
        if before != own and (look(before) != look(own) or printed[before] == name):
            yield f"{quote(before)} and {quote(own)} look alike, {quote(name)}"


def _with_names(tree: Any, other: Mapping[str, str]) -> Any:
    """Return a tree, or a line, with other names."""
    if isinstance(tree, tuple):
        return tuple(_with_names(part, other) for part in tree)
    return other.get(tree, tree) if isinstance(tree, str) else tree


# Blocks that are printed once: the line, with each number substituted for ℓ, has to be that of each block.


@check
def check_printed_repeats(run: PlainRun) -> Iterator[str]:
    """Yield a sentence for each line that the first block has and another lacks."""
    steps, at = list(run.trace.steps), 0
    for repeat, lines in as_printed(run.trace):
        for number in repeat.blocks if repeat else ("",):
            for line in lines:
                step, at = steps[at], at + 1
                printed = [write_block(text, number) if repeat else text for text in (line.latex, line.symbol)]
                if printed != [step.latex, step.symbol]:
                    yield f"step {step.id!r} says {quote(step.latex)}, but its repeat {quote(printed[0])}"
                if (line.symbolic, line.shape, line.stage) != (step.symbolic, step.shape, step.stage):
                    yield f"step {step.id!r} has another shape or stage than its repeat"
                if (step.error or 0) > (line.error or 0) and not step.recomputed:
                    yield f"step {step.id!r} has a larger error than its repeat says"
    if at != len(steps):
        yield f"{at} of {len(steps)} steps are printed"


def write_block(latex: str, number: str) -> str:
    """Return a line of block ℓ as that of a block of this number: `3`, or `2.3` in a stage."""
    own = int(number.split(".")[-1])
    return re.sub(r"\\ell([+-]\d+)?(?=\)\})", lambda match: str(own + int(match[1] or 0)), latex)


# Meaning of each symbol, measured on the net and its input.


@check
def check_symbol_meanings(run: PlainRun) -> Iterator[str]:
    """Measure every symbol of one of our models by the words of its meaning."""
    if not getattr(run.model.spec, "whole", False) or ":" in run.model.name:
        return
    for symbol in run.trace.symbols:
        meaning = symbol.meaning.split(":")[0].split(",")[0]
        if meaning not in MEASUREMENTS:
            yield f"nothing measures {symbol.name}, “{meaning}”"
            continue
        value = MEASUREMENTS[meaning](run)
        if value is not None and value != symbol.value:
            yield f"{symbol.name} is said to be the {meaning}: {symbol.value}, measured {value}"


def _image(run: PlainRun) -> torch.Tensor:
    return next(x for x in run.inputs if x.is_floating_point())


def _numbers(run: PlainRun) -> torch.Tensor:
    return next(x for x in run.inputs if not x.is_floating_point())


def _module(run: PlainRun, name: str) -> nn.Module:
    """Return the first module of that name, at any depth."""
    return next(module for path, module in run.model.net.named_modules() if path.rpartition(".")[2] == name)


def _parameter(run: PlainRun, *names: str) -> torch.Tensor:
    return next(p for path, p in run.model.net.named_parameters() if path.rpartition(".")[2] in names)


def _towers(run: PlainRun, name: str = "") -> int:
    """Return the number of blocks of one tower: the one of that name, or the first."""
    paths = [path for path, _ in run.model.net.named_modules() if path.rpartition(".")[2].startswith("block")]
    chosen = [path for path in paths if path.startswith(name)] if name else paths
    tower = chosen[0].rpartition(".")[0]
    return sum(path.rpartition(".")[0] == tower for path in paths)


def _patches(run: PlainRun) -> int:
    return _image(run)[0].numel() // _cell(run)


def _cell(run: PlainRun) -> int:
    """Return the number of pixel values of one patch."""
    known = run.model.net.named_parameters()
    return next(p for n, p in known if n.rpartition(".")[2] == "weight" and p.dim() == 2).shape[1]


def _head_width(run: PlainRun) -> int:
    """Return the last axis of the queries that the first attention multiplies."""
    return run.trace.values[run.trace.attentions[0].q].shape[-1]


MEASUREMENTS = {
    "batch": lambda run: run.output.shape[0],
    "height of the picture that the model sees": lambda run: _image(run).shape[-2],
    "width of the picture that the model sees": lambda run: _image(run).shape[-1],
    "colour channels": lambda run: _image(run).shape[1],
    "side of a square patch": lambda run: round((_cell(run) / _image(run).shape[1]) ** 0.5),
    "number of patches": _patches,
    "text length in tokens": lambda run: _numbers(run).shape[1],
    "the longest text that the model can read": lambda run: (
        len(_parameter(run, "positions", "text_positions"))
        if any("positions" in path for path, _ in run.model.net.named_parameters())
        else run.model.net.T_max
    ),
    "size of the vocabulary": lambda run: _module(run, "tokens").weight.shape[0],
    "model width": lambda run: _module(run, "norm1").weight.shape[0],
    "hidden width of the MLP": lambda run: _module(run, "expand").weight.shape[0],
    "number of attention heads": lambda run: _module(run, "query").weight.shape[0] // _head_width(run),
    "number of heads of keys and values": lambda run: _module(run, "key").weight.shape[0] // _head_width(run),
    "width of one head": _head_width,
    "number of blocks": _towers,
    "number of possible answers": lambda run: run.output.shape[-1],
    "reach": lambda run: (len(_parameter(run, "key_distances")) - 1) // 2,
    "number of visible patches": lambda run: _numbers(run).shape[1],
    "number of hidden patches": lambda run: _patches(run) - _numbers(run).shape[1],
    "number of blocks of the decoder": lambda run: _towers(run, "decoder"),
    "width of the space in which photos and sentences are compared": lambda run: (
        _module(run, "projection").out_features
    ),
}
"""The words that a meaning begins with, and what they measure."""
