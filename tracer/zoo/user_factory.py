"""A user's own module by name, `package.file:factory` or `FILE.py:factory`: its whole-number arguments are the symbols.

The factory returns `(module, args)` or `(module, args, kwargs)`. Its arguments that have whole numbers for defaults,
such as `def small(B=1, T=5, D=8)`, are sizes: called with others it builds the same module at other sizes, and that is
how every dimension is solved."""

from __future__ import annotations

import importlib
import inspect
import random
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tracer.capture import Recording
from tracer.capture.interventions import Intervention
from tracer.capture.modes import as_module
from tracer.changes import Change
from tracer.diagnostics.failures import run_text
from tracer.record import Trace
from tracer.shapes import Vocabulary
from tracer.shapes.alignment import COPIES, align
from tracer.shapes.variation import OnMeta
from tracer.symbols.notation import parse
from tracer.textbook.names import Hint
from tracer.tracing import FailedRun, assemble, lay_book, note_origin, of_caller, record_or_explain, solve_first
from tracer.tracing.changed_runs import LineSite, changing_build, interventions_of, line_sites
from tracer.utils.errors import quote, reason
from tracer.utils.torch_internals import disable_dispatch_modes, fake_tensor

# Likely mistakes that models of libraries make on purpose, by name, with the reason.
#
# The rules of `tracer.diagnostics.findings` list it as acknowledged.

UNSCALED_NOTE = (
    "Scores are not scaled: the scale is a part of the first weights of the queries, which are smaller ({})."
)
T5 = UNSCALED_NOTE.format("Raffel et al. 2020, code of T5")
INTENTS = (
    (
        "*",
        Hint(
            finding="parameter unused",
            intent="Classes of libraries hold parameters for more uses than this run: hidden patches in training, other"
            " inputs, other heads.",
        ),
    ),
    ("hf:*", Hint(module="*.SelfAttention", finding="scores scale", intent=T5)),
    ("hf:*", Hint(module="*.EncDecAttention", finding="scores scale", intent=T5)),
    (
        "hf:longt5",
        Hint(
            module="*.LocalSelfAttention",
            finding="mask empty row",
            intent="The text is padded to whole blocks; the rows behind its end are cut off again (Guo et al. 2022).",
        ),
    ),
    ("hf:*gpt*neo*", Hint(finding="scores scale", intent=UNSCALED_NOTE.format("Black et al. 2021, code of GPT-Neo"))),
)
"""Patterns of names, each with a hint for models of these names."""


def intents_of(name: str) -> tuple[Hint, ...]:
    """Return the hints for a model of a library that acknowledge findings."""
    return tuple(hint for pattern, hint in INTENTS if fnmatchcase(name, pattern))


# Search for probe sizes of a generic model: sizes at which it runs.
#
# Sizes that are changed together, such as a photo's height and width, are a `SizeGroup`: rows of other sizes to try,
# the most telling first. What runs at none of them stays a number, and a sentence says so.

PROBE_COUNT = 5
"""Runs at other sizes: four that solve, and one that is predicted."""


class SizeGroup(NamedTuple):
    """Sizes that are changed together: `choices` are columns of `PROBES` values for each of the symbols."""

    symbols: tuple[str, ...]
    choices: tuple[tuple[tuple[int, ...], ...], ...]

    def row(self, choice: int, number: int) -> dict[str, int]:
        """Return the sizes of a probe."""
        return {symbol: column[number] for symbol, column in zip(self.symbols, self.choices[choice], strict=True)}

    def equal(self, choice: int) -> list[tuple[str, str]]:
        """Map each symbol with the values of an earlier one in a choice to the first of these."""
        columns = self.choices[choice]
        firsts = [self.symbols[columns.index(column)] for column in columns]
        return [(symbol, first) for symbol, first in zip(self.symbols, firsts, strict=True) if symbol != first]

    def varying_symbols(self, choice: int) -> list[str]:
        """Return the symbols that are not the same in all rows of a choice."""
        return [symbol for symbol, column in zip(self.symbols, self.choices[choice], strict=True) if len({*column}) > 1]


def group(symbol: str, *choices: tuple[int, ...]) -> SizeGroup:
    """Return the choices for a size that changes alone."""
    return SizeGroup((symbol,), tuple((choice,) for choice in choices))


def find_probe_sizes(
    run: Recording,
    vocabulary: Vocabulary,
    base: dict[str, int],
    groups: list[SizeGroup],
) -> Iterator[tuple[Vocabulary, list[dict[str, int]]]]:
    """Return ways to solve `run`: with all groups at other sizes at once, where the model runs the same ops there, else
    each group at the first choice that works with all else as at `base`.

    A group that runs at none of its choices stays at `base`, and its symbols are not names any more. Where the ops
    differ at all choices, those that do stay open.
    """
    base_sizes = {name: base[name] for name in ("B",) if name in base}
    for chosen in _together(groups):
        probes = _probes(base, groups, chosen)
        if all(same_ops(run, vocabulary, {**probe, **base_sizes}) is True for probe in probes):
            yield _over(vocabulary, groups, chosen), probes
            break
    for rows in ((0,), tuple(range(PROBE_COUNT))):
        ways = list(_choose(run, vocabulary, base, groups, rows))
        yield from ways
        if not ways:
            return


def library_ways(
    model: Any, run: Recording, base: dict[str, int], groups: list[SizeGroup], build_empty: Callable, full: Vocabulary
) -> Iterator[tuple[Vocabulary, list[dict[str, int]]]]:
    """Yield the ways to solve a run of a library's model: on the device `meta`, by `build_empty`, where the same ops
    run there, which is cheaper; then, for a model with values, over the `full` vocabulary."""
    plain = Vocabulary(full.names, full.derived, build_empty, OnMeta)
    if model.valueless or same_shapes(run, plain, base):
        yield from find_probe_sizes(run, plain, base, groups)
    if not model.valueless:
        yield from find_probe_sizes(run, full, base, groups)


def _together(groups: list[SizeGroup]) -> Iterator[dict[int, int]]:
    """Return choices for all groups at once: the first of each, then the others of one of them."""
    first = dict.fromkeys(range(len(groups)), 0)
    yield first
    for number, sizes_group in enumerate(groups):
        if sizes_group.symbols != ("B",):
            yield from ({**first, number: choice} for choice in range(1, len(sizes_group.choices)))


def _choose(
    run: Recording, vocabulary: Vocabulary, base: dict[str, int], groups: list[SizeGroup], rows: tuple[int, ...]
):
    """Return the first choice of each group that runs, compared in these rows. An op that differs even at `base`
    differs at any choice."""
    others = _others(run, vocabulary, base)
    chosen, missing_ops, reasons = {}, bool(others), {}
    for number, sizes_group in enumerate(groups):
        runs = None
        for choice in range(len(sizes_group.choices)):
            tries = [same_ops(run, vocabulary, {**base, **sizes_group.row(choice, row)}, others) for row in rows]
            if (failed := next((message for message in tries if isinstance(message, str)), None)) is not None:
                reasons[number] = failed
                continue
            runs = choice if runs is None else runs
            if all(tries) or sizes_group.symbols == ("B",):
                runs = choice
                break
        else:
            missing_ops |= runs is not None
        if runs is not None:
            chosen[number] = runs
    fixed_sizes = [
        symbol for number, sizes_group in enumerate(groups) if number not in chosen for symbol in sizes_group.symbols
    ]
    if not chosen:
        return
    message = next((reasons[number] for number in reasons if number not in chosen), "")
    sentence = f"no symbols for {', '.join(fixed_sizes)}: the model did not run at the other sizes tried ({message})"
    left = replace(_over(vocabulary, groups, chosen), note=sentence if fixed_sizes else "", missing_ops=missing_ops)
    yield left, _probes(base, groups, chosen)
    if not missing_ops:
        yield replace(left, missing_ops=True), _probes(base, groups, chosen)


def _over(vocabulary: Vocabulary, groups: list[SizeGroup], chosen: dict[int, int]) -> Vocabulary:
    """Return the vocabulary over the sizes that the choices change; a size that equals another is derived from it."""
    equal = dict(pair for number, choice in chosen.items() for pair in groups[number].equal(choice))
    varied = {
        name for number, choice in chosen.items() for name in groups[number].varying_symbols(choice)
    } - equal.keys()
    names = tuple(name for name in vocabulary.names if _letters(name, vocabulary.derived) <= varied)
    return replace(vocabulary, names=names, derived=vocabulary.derived | equal)


def same_ops(run: Recording, vocabulary: Vocabulary, at: dict[str, int], but: Collection[int] = ()) -> bool | str:
    """Return True if the model runs the ops of `run`, except `but`, at these sizes; the error if it does not run at
    all."""
    try:
        probe = vocabulary.probe(at, primitives=False)
    except Exception as error:  # whatever a library makes of a size that it was not written for
        return reason(error)
    return all(number in but for number in _missing(run, probe))


def _others(run: Recording, vocabulary: Vocabulary, base: dict[str, int]) -> list[int]:
    """Return the ops of `run` that the model does not run at `base` either; none if it does not run there."""
    try:
        return _missing(run, vocabulary.probe(base, primitives=False))
    except Exception:  # whatever a library makes of a tensor without values
        return []


def _missing(run: Recording, probe: Recording) -> list[int]:
    """Return the ops of a run that another run lacks."""
    matches = zip(run.ops, align(run.ops, probe.ops), strict=True)
    return [number for number, (op, place) in enumerate(matches) if place is None and op.name not in COPIES]


def _letters(name: str, derived: dict[str, str]) -> set[str]:
    """Return the sizes of an expression, with derived ones expanded."""
    letters = {str(letter) for letter in parse(name).free_symbols}
    return (letters - derived.keys()).union(
        *(_letters(derived[letter], derived) for letter in letters & derived.keys())
    )


def same_shapes(run: Recording, vocabulary: Vocabulary, base: dict[str, int]) -> bool:
    """Return whether the model runs the ops of `run` at its own sizes, with outputs of the same shapes."""
    if same_ops(run, vocabulary, base) is not True:
        return False
    probe_ops = vocabulary.probe(base, primitives=False).ops
    return len(probe_ops) == len(run.ops) and all(
        [shape for shape, *_ in first.outputs] == [shape for shape, *_ in two.outputs]
        for first, two in zip(run.ops, probe_ops, strict=True)
    )


def _probes(base: dict[str, int], groups: list[SizeGroup], chosen: dict[int, int]) -> list[dict[str, int]]:
    rows = []
    for number in range(PROBE_COUNT):
        changed = [groups[place].row(choice, number) for place, choice in chosen.items()]
        rows.append({**base, **{symbol: size for row in changed for symbol, size in row.items()}})
    return rows


def valueless(net: torch.nn.Module, mode: Any, device: torch.device) -> torch.nn.Module:
    """Move a net from `meta` to a device in place, with uninitialised tensors."""
    known: dict[int, torch.Tensor] = {}

    def stand_in(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in known:
            known[id(tensor)] = fake_tensor(mode, tensor.detach(), device)
        return known[id(tensor)]

    with disable_dispatch_modes():
        for part in net.modules():
            for name, tensor in [*part.named_parameters(recurse=False, remove_duplicate=False)]:
                setattr(part, name, torch.nn.Parameter(stand_in(tensor), requires_grad=False))
            for name, tensor in [*part.named_buffers(recurse=False, remove_duplicate=False)]:
                setattr(part, name, stand_in(tensor))
    return net


PROBES = 4
TRIES = 1000
TRIES_ALIKE = 200
"""First tries, in which all sizes are changed in one way."""
FACTORS = (2, 3, 4, 5, 6, 7, 9, 10, 11, 13)
TRACER = str(Path(__file__).resolve().parents[1])
SHIFTS = tuple(range(1, 30))
Resize = Callable[[int, random.Random], int]
"""Draws another size than this."""
RESIZES: tuple[Resize, ...] = (
    lambda size, draw: size + draw.choice(SHIFTS),
    lambda size, draw: size * draw.choice(FACTORS),
    lambda size, draw: draw.randint(max(1, size // 2), 2 * size),
)
"""Ways to change a size: near it from above, a multiple, and near it from below or above."""


class OwnCodeError(ValueError):
    """An error of the user's own code, which is its `__cause__`; `tracer.explain` explains it."""


def factory(reference: str) -> Callable:
    """Import the function `package.file:name`, from the working directory, or that of `FILE.py:name`. Raise ValueError
    if that fails."""
    path, colon, name = reference.rpartition(":")
    if not (colon and path and name.isidentifier()):
        raise ValueError(f"{quote(reference)} names no function, expected package.file:function or FILE.py:function")
    if path.endswith(".py"):
        path = _add_to_search_path(Path(path))
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        raise ValueError(f"{quote(path)} can't be imported: {type(error).__name__}: {error}") from error
    except Exception as error:  # the user's own code runs here, and may fail in any way
        raise OwnCodeError(f"{quote(path)} can't be imported: {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise ValueError(f"{quote(path)} has no function {quote(name)}, expected one that returns (module, args)")
    return function


def _add_to_search_path(file: Path) -> str:
    """Make a file importable; return its name as a module."""
    if not file.is_file():
        raise ValueError(f"there is no file {quote(str(file))}, expected package.file:function or FILE.py:function")
    if (folder := str(file.resolve().parent)) not in sys.path:
        sys.path.insert(0, folder)
    loaded = sys.modules.get(file.stem)
    if loaded is not None and Path(loaded.__file__ or "").resolve() != file.resolve():
        del sys.modules[file.stem]  # a file of the same name in another folder
    return file.stem


def sizes_of(function: Callable) -> dict[str, int]:
    """Return the sizes that a factory takes and their defaults, in order."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}
    return {name: value for name, value in defaults.items() if type(value) is int and value > 0}


def unpack(reference: str, returned: Any) -> tuple:
    """Return the module that a factory returned, or a function as one, its arguments as a tuple, and its keyword
    arguments if there are any."""
    if not (isinstance(returned, tuple) and len(returned) in (2, 3) and callable(returned[0])):
        raise ValueError(f"{quote(reference)} returned {type(returned).__name__}, expected (module, args)")
    args = returned[1] if isinstance(returned[1], (tuple, list)) else (returned[1],)
    return as_module(returned[0]), tuple(args), *returned[2:]


def trace(
    reference: str, *, primitives: bool = False, change: Mapping[str, Change] | None = None, **size: int
) -> Trace:
    """Run the module of a factory once, at its default sizes or the ones passed, without gradients.

    `change` replaces the values of lines, as in `tracer.trace`. ValueError in one sentence for a size that the factory
    does not take; `OwnCodeError` where the user's code fails.
    """
    function = factory(reference)
    sizes = sizes_of(function)
    for name in size:
        if name not in sizes:
            known = (
                f"its sizes are {', '.join(sizes)}" if sizes else "it has no argument with a whole number for default"
            )
            raise ValueError(f"{quote(reference)} takes no size {quote(name)}; {known}")
    sizes |= size

    def build(at: dict[str, int]):
        return unpack(reference, function(**at))

    def rebuild(at: dict[str, int], text: str) -> tuple:
        edited = run_text(text, file, function.__module__)
        return unpack(reference, getattr(edited, function.__name__)(**at))

    def lines_of(interventions: tuple[Intervention, ...]) -> dict[str, LineSite]:
        module, args, *named = changing_build(build, interventions)(sizes)
        recording = record_or_explain(module, args, named[0] if named else {}, None, False, calls=True)
        return line_sites(recording, lay_book(recording, sizes, {}, None, ())[0].steps)

    file = function.__code__.co_filename if inspect.isfunction(function) else ""
    origin: dict[str, Any] = {"sizes": sizes, "build": build, "file": file, "rebuild": rebuild if file else None}
    try:
        with torch.no_grad():
            if change:
                build = changing_build(build, interventions_of(change, lines_of))
            module, args, *named = build(sizes)
            size = named[0] if named else {}
            recording = record_or_explain(module, args, size, None, True, primitives, calls=True)
    except Exception as error:
        if isinstance(error, ValueError) and is_refusal(error):
            raise
        if "failed_run" not in vars(error):  # the factory failed: there is no module yet
            vars(error)["failed_run"] = FailedRun(torch.nn.Module(), Recording())
        note_origin(error, **origin)
        first = (str(error).splitlines() or [""])[0]
        raise OwnCodeError(f"{quote(reference)} failed: {type(error).__name__}: {first}") from error
    vocabulary = Vocabulary(tuple(sizes), {}, build)
    with torch.no_grad():
        probes = list(islice(probes_of(vocabulary, sizes, bool(primitives)), PROBES)) if sizes else []
        solution, notes = solve_first(recording, sizes, [(vocabulary, probes)] if sizes else (), module)
    facts: dict[str, Any] = {"sizes": sizes, "derived": {}, "solution": solution, "notes": notes}
    facts["changes"] = tuple(f"{line}={line_change}" for line, line_change in (change or {}).items())
    return of_caller(assemble(module, recording, model=reference, **facts))


def probes_of(vocabulary: Vocabulary, sizes: dict[str, int], primitives: bool) -> Iterator[dict[str, int]]:
    """Return other sizes at which the module runs, all distinct: near the run's, or multiples, since some may have to
    divide others. Where sizes have conditions, each is changed in its own way: all at once, or a few of those at which
    the module ran last."""
    draw, probes, last = random.Random(0), [sizes], sizes
    for attempt in range(TRIES):
        if alike := attempt < TRIES_ALIKE:
            changed = {name: RESIZES[attempt % 2](size, draw) for name, size in sizes.items()}
        else:
            moved = _used_before(last, probes) or [*sizes]
            moved = [*sizes] if attempt % 2 else draw.sample(moved, min(len(moved), 1 + draw.randrange(2)))
            changed = last | {name: draw.choice(RESIZES)(sizes[name], draw) for name in moved}
        distinct = {*changed.values(), *sizes.values()} if alike else {*changed.values()}
        new = len(distinct) == len(changed) + (len({*sizes.values()}) if alike else 0)
        new = new and not _used_before(changed, probes)  # the last one is to be predicted
        if (alike and not new) or prod(changed.values()) > 10_000 * prod(sizes.values()):
            continue
        try:
            vocabulary.probe(changed, primitives=primitives)
        except Exception:  # sizes that don't fit together: others will
            continue
        last = changed
        if new:
            probes.append(changed)
            yield changed


def _used_before(changed: dict[str, int], probes: list[dict[str, int]]) -> list[str]:
    """Return the sizes that are as in one of the probes."""
    return [name for name, size in changed.items() if any(size == probe[name] for probe in probes)]


def is_refusal(error: ValueError) -> bool:
    """Return whether an error is one of the tracer's sentences rather than one of the user's code."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return (
        trace is not None and trace.tb_frame.f_code.co_filename.startswith(TRACER) and "failed_run" not in vars(error)
    )
