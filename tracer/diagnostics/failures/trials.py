"""Trials of a repair: the failing code with some lines edited, or a module replaced, run to its end at two sizes.

Everything runs on copies, which share the parameters; the user's module, classes and functions are left alone."""

from __future__ import annotations

import ast
import builtins
import linecache
import math
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from itertools import islice
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tracer.capture import OpEvent, Recording, inputs_of, record
from tracer.capture.calls import source
from tracer.capture.modes import FailedCall, Function
from tracer.capture.tensors import named_tensors, same_outputs
from tracer.diagnostics.failures.alike_lines import Alike, alike_edits
from tracer.diagnostics.failures.doubts import doubts_of
from tracer.diagnostics.failures.explanation import Fix, Operand, construction_of, sizes_text
from tracer.diagnostics.failures.failure_site import (
    UNKNOWN_SITE,
    Expression,
    FailureSite,
    arguments_of,
    is_users,
    line_of,
    locate_failure,
    modules_of,
)
from tracer.record import Source, dtype_name
from tracer.shapes import UNKNOWN, Solution, Vocabulary, solve
from tracer.shapes.probes import candidate_probes, copies_at_same_sizes, named_axes
from tracer.shapes.variation import other_inputs, parameters, shadow_copy
from tracer.symbols import notation
from tracer.tracing import FailedRun
from tracer.utils.errors import reason, shorten
from tracer.utils.files import Edit, apply_edits, edit_node, line_edits
from tracer.utils.torch_internals import map_hooks
from tracer.utils.torch_state import seeded_draws

# Shapes of a failing forward in symbols: the code runs at other sizes, and what ran before the error is solved.
#
# Two entries that are no ops stand at the end of each run: one takes all inputs and parameters, one takes the operands
# of the failed call. Their shapes are solved like those of any op.

INPUT_ENTRY, FAILURE_ENTRY = "given", "failed"
"""The names of the two entries at the end of a run."""
PICTURES = (1, 3, 4)
"""Numbers of channels by which a picture is known."""
WAYS = 3
"""Most ways in which sizes are chosen."""


class OtherFailure(RuntimeError):
    """Error of a module that fails before it reaches the call that is explained."""


@dataclass(frozen=True)
class FailingVocabulary(Vocabulary):
    """Named sizes of a module whose forward raises. `outcomes` are the messages by sizes, "" where it ran to its end;
    `line` is where the explained error came from."""

    line: tuple[str, int] | None = None
    outcomes: dict[tuple, str] = field(default_factory=dict, compare=False)

    def probe(
        self, sizes: dict[str, int], *, primitives: Any = False, values: int = 0, change: Any = None, before: Any = None
    ) -> Recording:
        """Run the module at these sizes and return what it did before it failed, or to its end. It is not run with
        other arguments: what the lines before the failure take for granted does not explain it."""
        if change is not None or before is not None:
            raise ValueError("a module that fails is run with its own arguments")
        key = (*sizes.items(), values)
        if key not in self.recordings:
            with (self.mode or nullcontext)():
                with seeded_draws(0):
                    module, args, *kwargs = self.build(sizes)
                if values:
                    args, *kwargs = other_inputs((args, *kwargs), values)
                recording, error = run_to_error(module, args, kwargs[0] if kwargs else {})
            if error is not None and line_of(error) != self.line:
                raise OtherFailure(reason(error)) from error
            if not values:
                self.outcomes[tuple(sizes.items())] = "" if error is None else reason(error)
            self.recordings[key] = Recording(
                ops=entries(recording, module),
                numbers=list(range(len(recording.ops) + 2)),
                scalars=recording.scalars,
                constants=recording.constants,
                positions=recording.positions,
            )
        return self.recordings[key]


def run_to_error(module: torch.nn.Module, args: tuple, kwargs: dict) -> tuple[Recording, Exception | None]:
    """Run a module and return the recording, so far as the module ran, and its error."""
    try:
        return record(module, args, kwargs, attention=False), None
    except Exception as error:
        if "recording" not in vars(error):
            raise
        return vars(error).pop("recording"), error


def entries(recording: Recording, module: torch.nn.Module) -> list[OpEvent]:
    """Return the ops of a run with the two entries at its end."""
    weights = dict(module.named_parameters()) | dict(module.named_buffers())
    inputs = {f"input {name}": tensor for name, tensor in recording.inputs.items()}
    externals = tuple((tuple(tensor.shape), tensor.dtype, name) for name, tensor in (weights | inputs).items())
    ends = [OpEvent(INPUT_ENTRY, False, "", 0, "", 0, None, externals, ())]
    if recording.failed_call is not None and recording.makers is not None:
        operands = call_tensors(recording)
        taken = tuple((tuple(tensor.shape), tensor.dtype, "operand") for tensor in operands)
        ends.append(OpEvent(FAILURE_ENTRY, False, "", 0, "", 0, None, taken, ()))
    return [*recording.ops, *ends]


def call_tensors(recording: Recording) -> list[Tensor]:
    """Return the tensors that the failed call took, in order."""
    call = recording.failed_call
    if call is None:
        return []
    return [tensor for _, tensor in named_tensors("", (call.args, call.kwargs))]


@dataclass(frozen=True)
class Shapes:
    """Shapes of a failed run in symbols.

    `symbolic` has those of inputs and parameters by name, and `operands` those of the failed call's tensors, in order.
    `probes` are sizes at which the module came to the same call, `messages` the error at those. `build(sizes)` returns
    the module and its arguments at other sizes; None where no size could be changed.
    """

    sizes: dict[str, int] = field(default_factory=dict)
    solution: Solution | None = None
    symbolic: dict[str, tuple[str, ...]] = field(default_factory=dict)
    operands: tuple[tuple[str, ...], ...] = ()
    probes: tuple[dict[str, int], ...] = ()
    messages: tuple[tuple[dict[str, int], str], ...] = ()
    build: Callable[[dict[str, int]], tuple] | None = None
    note: str = ""


def solve_shapes(run: FailedRun, line: tuple[str, int] | None) -> Shapes:
    """Return the symbolic shapes of a failed run; none where the code does not run at other sizes."""
    outcomes: dict[tuple, str] = {}
    sizes, ways, note = _ways(run, partial(_failing, line=line, outcomes=outcomes))
    if not sizes:
        return Shapes()
    events = entries(run.recording, run.module)
    for vocabulary, probes in islice(ways, WAYS):
        try:
            solution = solve(Recording(ops=events), sizes, vocabulary, probes)
        except Exception:  # at these sizes the code fails elsewhere: at others it may not
            continue
        names = [name for _, _, name in events[len(run.recording.ops)].inputs]
        index = len(run.recording.ops)
        symbolic = dict(zip(names, solution.inputs[index], strict=True))
        operands = solution.inputs[index + 1] if len(events) > index + 1 else ()
        kept = solution.inputs[:index], solution.outputs[:index], solution.notes[:index]
        solution = replace(solution, inputs=kept[0], outputs=kept[1], notes=kept[2], parts=solution.parts[:index])
        reached = tuple(at for at in probes if tuple(at.items()) in outcomes)
        messages = tuple((at, outcomes[tuple(at.items())]) for at in reached)
        built = vocabulary.build
        return Shapes(sizes, solution, symbolic, operands, reached, messages, built, vocabulary.note or note)
    return Shapes(sizes, note=note)


def _failing(vocabulary: Vocabulary, line: tuple[str, int] | None, outcomes: dict[tuple, str]) -> FailingVocabulary:
    own = {name: getattr(vocabulary, name) for name in Vocabulary.__dataclass_fields__ if name != "recordings"}
    return FailingVocabulary(**own, line=line, outcomes=outcomes)


def _ways(run: FailedRun, adapt: Callable[[Vocabulary], Vocabulary]) -> tuple[dict[str, int], Iterator, str]:
    """Return the sizes of a run, the ways to choose other ones, and a note on default names."""
    if run.sizes is not None and run.build is not None:
        vocabulary = adapt(Vocabulary(tuple(run.sizes), {}, run.build))
        return run.sizes, candidate_probes(vocabulary, run.sizes), ""
    arguments = run.recording.arguments
    symbols, note = dict(run.symbols or {}), ""
    if not symbols:
        symbols = default_symbols(inputs_of(run.module, *arguments))
        note = default_note(symbols)
    try:
        return *named_axes(run.module, run.recording, symbols, run.build, adapt), note
    except ValueError:  # symbols of axes that the inputs lack
        return {}, iter(()), ""


def default_symbols(inputs: dict[str, Tensor]) -> dict[str, Any]:
    """Return names for the unnamed axes of inputs: B for the first, T for the second of tokens, H and W of pictures.

    Where an input has another first axis, such as the state of a recurrent layer, or one more axis of T, such as a mask
    of tokens by tokens, these axes have the same name."""
    tensors = {name: tensor for name, tensor in inputs.items() if tensor.dim()}
    if not tensors:
        return {}
    first, symbols = next(iter(tensors)), dict[str, Any]()
    tensor = tensors[first]
    batch = [(name, place) for name, other in tensors.items() if (place := _batch_axis(other, tensor)) is not None]
    symbols["B"] = 0 if [(name, 0) for name in tensors] == batch else batch if len(batch) > 1 else (first, 0)
    if tensor.dim() == 4 and (channels := next((axis for axis in (1, 3) if tensor.shape[axis] in PICTURES), None)):
        symbols |= {"H": (first, 3 - channels if channels == 1 else 1), "W": (first, 3 if channels == 1 else 2)}
    elif tensor.dim() == 3 or (tensor.dim() == 2 and not tensor.is_floating_point()):
        length = tensor.shape[1]
        tokens = [
            (name, axis)
            for name, other in tensors.items()
            for axis, size in enumerate(other.shape)
            if size == length and (name, axis) not in batch and (name != first or axis == 1)
        ]
        if length in (tensor.shape[0], *tensor.shape[2:]) and len(tokens) > 1:  # which of two it is, nobody knows
            tokens = [(name, axis) for name, axis in tokens if axis == 1]
        alone = [(name, 1) for name in tensors] == tokens
        symbols["T"] = 1 if alone else tokens if len(tokens) > 1 else (first, 1)
    return symbols


def _batch_axis(tensor: Tensor, first: Tensor) -> int | None:
    """Return the axis of a tensor that is the batch, axis 0 of the first input; None where none can be."""
    size = first.shape[0]
    if tensor.shape[0] == size:
        return 0
    places = [axis for axis, length in enumerate(tensor.shape) if length == size]
    return places[0] if len(places) == 1 and tensor.dim() > 1 and size not in first.shape[1:] else None


def default_note(symbols: dict[str, Any]) -> str:
    """Return in a sentence which axes were named."""
    if not symbols:
        return ""
    places = {
        name: site if isinstance(site, int) else (site[0] if isinstance(site, list) else site)[1]
        for name, site in symbols.items()
    }
    names = [f"{name} is axis {place}" for name, place in places.items()]
    return f"{', '.join(names)} of the input; symbols= names others."


def is_solved(symbolic: tuple[str, ...] | None) -> bool:
    """Return whether all sizes of a shape have a formula."""
    return symbolic is not None and UNKNOWN not in symbolic


# Edits of a user's source: the functions of a module recompiled.

Codes = dict[tuple[str, int], CodeType]
"""Code objects by their qualified name and first line."""


@lru_cache(4)  # a repair runs at several sizes
def _compiled(text: str, file: str) -> CodeType:
    return compile(text, file, "exec", dont_inherit=True)


def codes_of(text: str, file: str) -> Codes:
    """Return the code of all functions in a text. Raise SyntaxError if it is not Python."""
    whole = _compiled(text, file)

    def walk(code: CodeType) -> Iterator[CodeType]:
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield constant
                yield from walk(constant)

    return {(code.co_qualname, code.co_firstlineno): code for code in walk(whole)}


def with_codes(module: nn.Module, file: str, codes: Codes, detach: bool = False) -> nn.Module:
    """Have a copied module and its submodules run the edited code of a file; the classes themselves stay as they are.

    Functions of the file that the methods call by their global names, or close over, are the edited ones, too. With
    `detach`, the module is a function that was not copied: the twin of it reads copies of the modules around it.
    """
    copies: dict[int, nn.Module] = {}
    if detach:
        children = dict(module.named_children())
        copied = shadow_copy(children, parameters(module))
        copies = {id(child): copied[name] for name, child in children.items()}
        module = Function(module.forward)
        for name, child in copied.items():
            module.add_module(name, child)
    return Rebinder(file, codes, copies).rebind_all(module)


class Rebinder:
    """Edited twins of the functions and classes of one file."""

    def __init__(self, file: str, codes: Codes, copies: dict[int, nn.Module]):
        self._file, self._codes, self._copies = file, codes, copies
        self._globals: dict[int, dict[str, Any]] = {}
        self._functions: dict[int, FunctionType] = {}
        self._classes: dict[type, type] = {}

    def rebind_all(self, root: nn.Module) -> nn.Module:
        """Change the classes of a module and of all inside it to their edited twins."""
        for module in root.modules():
            module.__class__ = self.twin(type(module))
            forward = vars(module).get("forward")
            if isinstance(forward, FunctionType):
                vars(module)["forward"] = self.function(forward)
            elif isinstance(forward, MethodType) and isinstance(forward.__self__, nn.Module):
                forward.__self__.__class__ = self.twin(type(forward.__self__))  # a copy, as all of the module
                vars(module)["forward"] = getattr(forward.__self__, forward.__name__)
            map_hooks(module, lambda hook: self.function(hook) if isinstance(hook, FunctionType) else hook)
        return root

    def twin(self, kind: type) -> type:
        """Return the edited twin of a class, the class itself if nothing of it is of this file."""
        if kind not in self._classes:
            own: dict[str, Any] = {}
            for base in reversed(kind.__mro__):
                for name, value in vars(base).items():
                    if isinstance(value, FunctionType) and (edited := self.function(value)) is not value:
                        own[name] = edited
                    elif name in own:
                        del own[name]
            self._classes[kind] = type(kind.__name__, (kind,), own | {"__module__": kind.__module__}) if own else kind
        return self._classes[kind]

    def function(self, function: FunctionType) -> FunctionType:
        """Return the edited twin of a function, the function itself if it is not of this file."""
        code = function.__code__
        if code.co_filename != self._file or not is_users(code):
            return function
        if id(function) in self._functions:
            return self._functions[id(function)]
        edited = self._codes.get((code.co_qualname, code.co_firstlineno))
        if edited is None or edited.co_freevars != code.co_freevars:
            return function
        around = function.__closure__
        cells = tuple(CellType() for _ in around) if around is not None else None
        twin = FunctionType(edited, self._globals_of(function), function.__name__, function.__defaults__, cells)
        self._functions[id(function)] = twin
        for mine, theirs in zip(cells or (), around or (), strict=True):  # a function may close over itself
            self._fill(mine, theirs)
        twin.__kwdefaults__, twin.__dict__ = function.__kwdefaults__, dict(vars(function))
        return twin

    def _fill(self, cell: CellType, original: CellType) -> None:
        try:
            content = original.cell_contents
        except ValueError:  # a name that has no value yet
            return
        if id(content) in self._copies:
            content = self._copies[id(content)]
        elif isinstance(content, FunctionType):
            content = self.function(content)
        cell.cell_contents = content

    def _globals_of(self, function: FunctionType) -> dict[str, Any]:
        names = function.__globals__
        if id(names) not in self._globals:
            twins = self._globals[id(names)] = dict(names)
            for name, value in names.items():
                if id(value) in self._copies:
                    twins[name] = self._copies[id(value)]
                elif isinstance(value, FunctionType):
                    twins[name] = self.function(value)
        return self._globals[id(names)]


def run_text(text: str, file: str, name: str) -> ModuleType:
    """Run the text of a file as a module of that name, without adding it to the imported ones."""
    module = ModuleType(name)
    module.__file__ = file
    module.__dict__["__builtins__"] = builtins
    if package := getattr(sys.modules.get(name), "__package__", ""):
        module.__package__ = package
    exec(_compiled(text, file), module.__dict__)  # the user's own code, edited
    return module


MAX_TRIALS, MAX_SECONDS = 160, 40.0
"""Most repairs that are tried for one error, and the time after which no further one is."""
MAX_DOUBTED = 6
"""Repairs with doubts after which no further one is tried."""
MAX_OFFERS = 3
"""Repairs that are offered at most."""
MARGIN = 1.0
"""How much more than the first repair another may cost."""
FAILS = object()
"""In place of the output of a forward that does not run to its end."""
NEAR_SIZES = (1, 3, 5)
"""Numbers that are added to all sizes where the code fails at no other ones."""
SECOND_SIZES = 3
"""Most other sizes with all symbols changed at which a repair is tried."""
SIBLINGS = 256
"""Most modules that one repair of a constructor replaces: those in other blocks have the same line."""

Change = Callable[[nn.Module, dict[str, int]], nn.Module]
"""What is put in the place of a module at some sizes."""


@dataclass(frozen=True)
class Candidate:
    """A possible repair: its sentence, edits of the source, and a module that is rebuilt.

    `cost` orders repairs: the smaller, the less is changed; a move adds its own. `replace` returns the new module for
    the one at `path`, and for those at the paths `siblings`. Of the repairs of one `family` one is enough. `sizes` are
    sizes of the factory that the repair changes.
    """

    message: str
    cost: float = 0.0
    edits: tuple[Edit, ...] = ()
    path: str | None = None
    replace: Change | None = None
    family: str = ""
    sizes: tuple[tuple[str, int], ...] = ()
    siblings: tuple[str, ...] = ()


@dataclass
class Trials:
    """Trials of one error. `line` is the user's line that it came from, None where only modules of PyTorch ran.
    `attempts` counts the repairs that were tried."""

    run: FailedRun
    site: FailureSite
    shapes: Shapes
    line: tuple[str, int] | None
    attempts: int = 0
    limit: int = MAX_TRIALS
    deadline: float = field(default_factory=lambda: time.monotonic() + MAX_SECONDS)

    def choose(self, candidates: list[Candidate]) -> list[Fix]:
        """Return the repairs with which the forward runs to its end at two sizes, those that change least first.

        Of repairs that give the same output, the first is kept; those that change much more than the first are left
        out. Those with doubts are left out where there are others, and follow those with fewer.
        """
        fixes: list[Fix] = []
        doubted: list[Fix] = []
        outputs: list[object] = []
        families: set[str] = set()
        texts: set[tuple[Edit, ...]] = set()
        best = math.inf
        masked = any(tensor.dtype == torch.bool for tensor in call_tensors(self.run.recording))  # perhaps of one value
        for candidate in sorted(candidates, key=lambda candidate: candidate.cost):
            full = len(fixes) >= MAX_OFFERS or len(doubted) >= MAX_DOUBTED
            full = full or self.attempts >= self.limit or time.monotonic() > self.deadline
            if full or candidate.cost > best + MARGIN:
                break
            if (candidate.edits and candidate.edits in texts) or (candidate.family and candidate.family in families):
                continue
            texts.add(candidate.edits)
            self.attempts += 1
            here = {**self.shapes.sizes, **dict(candidate.sizes)}
            output = self.output(candidate, here)
            if output is FAILS and (more := self._with_alike(candidate, here)) is not None:
                candidate, output = more, self.output(more, here)
            same = not masked and any(_are_same(output, before) for before in outputs)
            if output is FAILS or same or (trial := self._at_other_sizes(candidate, here)) is None:
                continue
            outputs.append(output)
            sizes, doubts = trial
            doubts += self._doubts(candidate, here)
            fix = Fix(candidate.message, _of_whole_lines(candidate.edits), (here, *sizes), doubts)
            if doubts:
                doubted.append(fix)
                continue
            fixes.append(fix)
            families.add(candidate.family)
            best = min(best, candidate.cost)
        return fixes or sorted(doubted, key=lambda fix: len(fix.doubts))[:MAX_OFFERS]

    def _with_alike(self, candidate: Candidate, sizes: dict[str, int]) -> Candidate | None:
        """Return a repair that edits the lines too that are written alike and fail one after the other, as those of
        keys and of values; None where it does not run to its end then."""
        if len(candidate.edits) != 1 or candidate.sizes or self.run.module is None:
            return None
        others = self._alike_of(candidate.edits[0])
        names: list[str] = []
        while len(names) < len(others) and (error := self._error(candidate, sizes)) is not None:
            self.attempts += 1
            alike = next((each for each in others if each.name not in names and _is_at(each, error)), None)
            if alike is None:
                return None
            names.append(alike.name)
            parent = candidate.path.rpartition(".")[0] if candidate.path else ""
            path = ".".join(filter(None, [parent, alike.name]))
            siblings = (*candidate.siblings, path) if candidate.replace is not None else ()
            edits = (*candidate.edits, alike.edit)
            candidate = replace(candidate, edits=edits, siblings=siblings)
        if not names or self._error(candidate, sizes) is not None:
            return None
        listed = " and ".join(f"`{name}`" for name in names)
        return replace(candidate, message=f"{candidate.message}, and the same for {listed}")

    def _alike_of(self, edit: Edit) -> list[Alike]:
        with suppress(Exception):  # code of another form
            return list(alike_edits(edit))
        return []

    def _error(self, candidate: Candidate, sizes: dict[str, int]) -> Exception | None:
        """Return the error of a repaired forward; None where it runs to its end."""
        try:
            with seeded_draws(0), torch.set_grad_enabled(self.run.recording.grad):
                self._repaired(candidate, sizes)
        except Exception as error:
            return error
        return None

    def _at_other_sizes(
        self, candidate: Candidate, here: dict[str, int]
    ) -> tuple[tuple[dict[str, int], ...], tuple[str, ...]] | None:
        """Return the other sizes at which a repair runs, where there are any, and the doubt of one that does not run at
        all that were tried; None for one that runs at none of them.

        A number of the code, such as the rows of a table, may be too small at others.
        """
        fixed = dict(candidate.sizes)
        others = self._other_sizes(here, fixed)
        if not others:
            return (), ()
        apart = [at for at in others if all(at[name] != here[name] for name in at if name not in fixed)]
        second = next((at for at in others if self.output(candidate, at) is not FAILS), None)
        if second is None:
            return None
        doubted = apart and second not in apart and not candidate.family
        return (second,), (f"It does not run at {sizes_text(apart[0])}.",) if doubted else ()

    def failure(self, candidate: Candidate) -> tuple[BaseException, FailedRun] | None:
        """Return the error with which a repaired forward fails elsewhere than before; None where it fails at the same
        place, or before its first line."""
        try:
            with seeded_draws(0), torch.set_grad_enabled(self.run.recording.grad):
                module, args, kwargs, _ = self._apply_candidate(candidate, self.shapes.sizes)
                record(module, args, kwargs, attention=False)
        except Exception as error:
            site = locate_failure(error)
            if "recording" not in vars(error) or site is None or site.file != self.site.file:
                return None
            if (site.line, site.columns) == (self.site.line, self.site.columns):
                return None
            return error, FailedRun(module, vars(error).pop("recording"))
        return None

    def _other_sizes(self, here: dict[str, int], fixed: dict[str, int]) -> list[dict[str, int]]:
        """Return other sizes: those with all changed at which the module failed in the same call, then the first
        changed alone; multiples where it reached none, or where a repair has `fixed` some."""
        if fixed or (not self.shapes.probes and self.run.rebuild is not None):
            multiples = [{name: size * factor for name, size in here.items()} for factor in (2, 3)]
            alone = [{**here, name: here[name] * 2} for name in here if name not in fixed]
            return [at for at in ({**at, **fixed} for at in (*multiples[:1], *alone, *multiples[1:])) if at != here]
        others = self._failing_sizes
        alone = [{**here, name: at[name]} for at in self.shapes.probes[:1] for name in list(at)[:1]]
        return [at for at in (*others, *alone) if at != here]

    @cached_property
    def _failing_sizes(self) -> list[dict[str, int]]:
        """Sizes at which the code as it is fails in the same call; where it runs at all that were tried for its
        symbols, such as multiples of a window, larger ones by a little."""
        here, build, reached = self.shapes.sizes, self.shapes.build, self.shapes.probes
        failing = [at for at, message in self.shapes.messages if message and at != here]
        for more in NEAR_SIZES if reached and not failing else ():
            if build is None:
                break
            at = {name: size + more for name, size in here.items()}
            with suppress(Exception), seeded_draws(0), torch.set_grad_enabled(self.run.recording.grad):
                module, args, *kwargs = build(at)
                _, error = run_to_error(module, args, kwargs[0] if kwargs else {})
                failing += [at] if error is not None and line_of(error) == self.line else []
        return (failing or [at for at in reached if at != here])[:SECOND_SIZES]

    def _doubts(self, candidate: Candidate, sizes: dict[str, int]) -> tuple[str, ...]:
        """Return what the findings say of the repaired run; none where it can't be traced."""
        with suppress(Exception), seeded_draws(0), torch.set_grad_enabled(self.run.recording.grad):
            module, args, kwargs, _ = self._repaired(candidate, sizes)
            symbols = default_symbols(inputs_of(module, args, kwargs)) | dict(self.run.symbols or {})
            return doubts_of(module, args, kwargs, symbols)
        return ()

    def output(self, candidate: Candidate, sizes: dict[str, int]) -> object:
        """Return the output of the repaired forward at these sizes, `FAILS` if it does not run to its end."""
        try:
            with seeded_draws(0), torch.set_grad_enabled(self.run.recording.grad):
                repaired = self._repaired(candidate, sizes)
        except Exception:  # code that does not compile, a constructor that fails
            return FAILS
        return repaired[-1]

    def _repaired(self, candidate: Candidate, sizes: dict[str, int]) -> tuple[nn.Module, tuple, dict[str, Any], object]:
        """Return the repaired module, its arguments and its output at these sizes. Raise the error of one that does not
        run to its end."""
        module, args, kwargs, replace = self._apply_candidate(candidate, sizes)
        replaced: set[str] = set()
        for _ in range(SIBLINGS):
            try:
                return module, args, kwargs, record(module, args, kwargs, attention=False).output
            except Exception as error:
                path = self._path_to_replace(candidate, module, error) if replace else None
                if path is None or path in replaced or replace is None:
                    raise
                replaced.add(path)
                module = _replace_at(module, path, replace, sizes)
        raise OtherFailure("more modules fail than one repair replaces")

    def _apply_candidate(
        self, candidate: Candidate, sizes: dict[str, int]
    ) -> tuple[nn.Module, tuple, dict[str, Any], Change | None]:
        """Return the module with the edits of a candidate, its arguments, and what is still to be replaced."""
        edits = candidate.edits
        if edits and self.run.rebuild is not None and all(edit.file == self.run.file for edit in edits):
            lines = linecache.getlines(self.run.file)
            module, args, *kwargs = self.run.rebuild(sizes, apply_edits(lines, edits))
            return module, tuple(args), kwargs[0] if kwargs else {}, None
        if self.shapes.build is not None:
            module, args, *kwargs = self.shapes.build(sizes)
        else:
            module, args, *kwargs = next(copies_at_same_sizes(self.run.module, self.run.recording)).build({})
        outside = isinstance(module, Function) and not module.owned
        if not outside:
            module = shadow_copy(module, parameters(module))  # its classes and layers are changed
        texts = {self.site.file: "".join(self.site.lines)} if outside else {}
        if candidate.replace is None:
            for file in {edit.file for edit in edits}:
                texts[file] = apply_edits(linecache.getlines(file), [edit for edit in edits if edit.file == file])
        for file, text in texts.items():
            module = with_codes(module, file, codes_of(text, file), detach=outside)
        return module, tuple(args), kwargs[0] if kwargs else {}, candidate.replace

    def _path_to_replace(self, candidate: Candidate, module: nn.Module, error: Exception) -> str | None:
        """Return the path of the module that stands for `candidate.path` in the block that failed, if the same line
        failed."""
        modules = modules_of(error)
        if candidate.path is None or not modules:
            return None
        if _without_numbers(path := path_of(module, modules[-1])) in map(_without_numbers, candidate.siblings):
            return path
        if line_of(error) != self.line:
            return None
        before = path_of(self.run.module, self.site.modules[-1])
        return moved_path(candidate.path, before, path_of(module, modules[-1]))


def _without_numbers(path: str) -> str:
    """Return a path without the numbers of blocks."""
    return ".".join(part for part in path.split(".") if not part.isdigit())


def _is_at(alike: Alike, error: Exception) -> bool:
    """Return whether an error came from a line that is written alike, or reads what a constructor assigns there."""
    site, modules = locate_failure(error), modules_of(error)
    if site is None:
        return False
    if not alike.in_constructor:
        return site.line in alike.lines
    holder = site.frame.f_locals.get("self")
    own = dict(holder.named_children()) if isinstance(holder, nn.Module) else {}
    if modules and any(module is modules[-1] for module in own.values()):
        return own.get(alike.name) is modules[-1]
    return any(node.attr == alike.name for node in site.nodes_of_line(ast.Attribute))


def _are_same(output: object, other: object) -> bool:
    """Return whether two outputs are the same; False for tensors without values."""
    with suppress(NotImplementedError):
        return same_outputs(output, other)
    return False


def _of_whole_lines(edits: tuple[Edit, ...]) -> tuple[Edit, ...]:
    """Return edits of which several are in one line as one edit of that line each."""
    places = [(edit.file, edit.line) for edit in edits]
    if len(set(places)) == len(places) or any(edit.start[0] != edit.end[0] for edit in edits):
        return edits
    whole: list[Edit] = []
    for file in dict.fromkeys(edit.file for edit in edits):
        lines = linecache.getlines(file)
        whole += line_edits(file, lines, apply_edits(lines, [edit for edit in edits if edit.file == file]))
    return tuple(whole)


def path_of(root: nn.Module, module: nn.Module) -> str:
    """Return the path of a module in another; "" for itself, and for one that it does not hold."""
    return next((path for path, inner in root.named_modules() if inner is module), "")


def moved_path(path: str, before: str, now: str) -> str:
    """Return a path with the numbers of blocks in which `now` differs from `before`: `blocks.0.up` beside
    `blocks.0.down` and `blocks.1.down` gives `blocks.1.up`."""
    moved = path.split(".")
    for index, (old, new) in enumerate(zip(before.split("."), now.split("."), strict=False)):
        if old == new or index >= len(moved) or moved[index] != old:
            continue
        moved[index] = new
    return ".".join(moved)


def _replace_at(root: nn.Module, path: str, replace: Change, sizes: dict[str, int]) -> nn.Module:
    """Return a module with the one at a path replaced; the parents are those of a copy."""
    if not path:
        return replace(root, sizes)
    parent, _, name = path.rpartition(".")
    holder = root.get_submodule(parent)
    new = replace(holder.get_submodule(name), sizes)
    holder.add_module(name, new)
    return root


# Facts of a failed call: its tensors, their names in the code, their shapes, and their origins.

REFLECTED_OPERATORS = frozenset("radd rsub rmul rtruediv rdiv rpow rmatmul rand ror".split())
"""Operators that take their operands the other way round."""


@dataclass(frozen=True, eq=False)
class Clash:
    """Mismatch of a call: the kind of call, the reason in a sentence, the axes of its tensors that clash, by the
    tensor's `id`, and the names of tensors that are unnamed in the code."""

    kind: str
    message: str
    axes: dict[int, tuple[int, ...]]
    tensors: tuple[Tensor, ...] = ()


@dataclass(frozen=True, eq=False)
class Scene:
    """A failed run, the location of its error, and its shapes in symbols."""

    run: FailedRun
    error: BaseException
    site: FailureSite
    shapes: Shapes

    @property
    def call(self) -> FailedCall | None:
        """Call of PyTorch that failed, None where code around it did."""
        return self.run.recording.failed_call

    @cached_property
    def tensors(self) -> list[Tensor]:
        """Tensors of the failed call, in order; of a module that refused them, as they arrived."""
        return call_tensors(self.run.recording) if self.call is not None else self.arguments

    @cached_property
    def arguments(self) -> list[Tensor]:
        """Tensors that the module of PyTorch took which the failed line calls; none where it calls no module."""
        called = self.site.modules[self.site.own :]
        return [tensor for _, tensor in named_tensors("", arguments_of(self.error, called[0]))] if called else []

    @cached_property
    def operands(self) -> tuple[Expression, ...]:
        """Operands of the failed expression, whose tensors are those of the failed call."""
        tensors = (*self.arguments, *self.tensors)
        values = {text: tensor for tensor in tensors if (text := self._texts.get(id(tensor)))}
        return tuple(replace(each, value=values.get(each.text, each.value)) for each in self.site.operands)

    @cached_property
    def node(self) -> ast.AST | None:
        """Expression of the failed line in which a call of PyTorch failed."""
        node = self.site.node if self.call is not None else None
        return node.value if isinstance(node, (ast.Return, ast.Assign, ast.Expr)) else node

    def edit(self, node: ast.AST, text: str) -> Edit:
        """Return the edit that replaces a node of the failed line's file by a text."""
        return edit_node(self.site.file, self.site.lines, node, text)

    @cached_property
    def module(self) -> nn.Module | None:
        """Module whose forward failed: `Linear` where the line calls it, else the one that the line is in."""
        return self.site.modules[-1] if self.site.modules else None

    @cached_property
    def path(self) -> str:
        """Path of that module."""
        return path_of(self.run.module, self.module) if self.module is not None else ""

    @property
    def is_module_call(self) -> bool:
        """True if the failed line calls a module of PyTorch, in which the call failed."""
        return len(self.site.modules) > self.site.own

    def symbolic(self, tensor: Tensor) -> tuple[str, ...] | None:
        """Return the shape of a tensor in symbols, None where not all of it is solved."""
        if len(self.shapes.operands) == len(self.tensors):
            for known, symbolic in zip(self.tensors, self.shapes.operands, strict=True):
                if known is tensor and len(symbolic) == tensor.dim() and is_solved(symbolic):
                    return symbolic
        maker = self.maker(tensor)
        solution = self.shapes.solution
        if isinstance(maker, str):
            symbolic = self.shapes.symbolic.get(maker)
            return symbolic if symbolic and len(symbolic) == tensor.dim() and is_solved(symbolic) else None
        if solution is not None and 0 <= maker < len(solution.outputs):
            ran = self.run.recording.ops[maker].outputs
            for (shape, *_), symbolic in zip(ran, solution.outputs[maker], strict=True):
                if shape == tuple(tensor.shape) and is_solved(symbolic):
                    return symbolic
        return None

    def maker(self, tensor: Tensor) -> int | str:
        """Return the op that produced a tensor, or the name of the input or parameter that it is."""
        makers = self.run.recording.makers
        return makers.of(tensor)[2] if makers is not None else "constant"

    def shape(self, tensor: Tensor) -> str:
        """Return a shape as symbols where they are known, else in numbers: `[B, T, 3·D]`."""
        symbolic = self.symbolic(tensor)
        return notation.shape_text(symbolic) if symbolic and tensor.dim() else str(list(tensor.shape))

    def label(self, tensor: Tensor, role: str) -> str:
        """Return the name of a tensor with its shape."""
        return f"{self.name(tensor, role)} {self.shape(tensor)}"

    def layer(self, role: str) -> str:
        """Return the path of the module whose forward failed as code, or its role where it has none."""
        return f"`{self.path}`" if self.path else role

    def size(self, tensor: Tensor, axis: int) -> str:
        """Return the size of an axis, `3·D = 24`, or `24` without a symbol."""
        number, symbolic = tensor.shape[axis], self.symbolic(tensor)
        text = notation.text(symbolic[axis]) if symbolic else str(number)
        return f"{text} = {number}" if text != str(number) else text

    def formula(self, tensor: Tensor, axis: int) -> str:
        """Return the size of an axis as a formula: `3*D`, or `24`."""
        symbolic = self.symbolic(tensor)
        return symbolic[axis] if symbolic else str(tensor.shape[axis])

    def name(self, tensor: Tensor, role: str) -> str:
        """Return the name of a tensor in the code, or its role in the call: "the weight of `fc`"."""
        if known := self.site.name_of(tensor) or self._texts.get(id(tensor), ""):
            return f"`{shorten(known, 60)}`"
        maker = self.maker(tensor)
        if isinstance(maker, str) and maker in self._weights:
            return f"`{maker}`"
        return role

    @cached_property
    def _texts(self) -> dict[int, str]:
        """Texts of the failed line's operands by the `id` of their tensors, where these are as many and in their
        order."""
        operands = [o for o in self.site.operands if o.value is UNKNOWN_SITE or isinstance(o.value, Tensor)]
        tensors = self.arguments if self.is_module_call else self.tensors
        if len(operands) != len(tensors):
            return {}
        pairs = list(zip(operands, tensors, strict=True))
        if any(o.value is not UNKNOWN_SITE and o.value.shape != tensor.shape for o, tensor in pairs):
            return {}
        reflected = self.call is not None and self.call.name in REFLECTED_OPERATORS
        return {} if reflected else {id(tensor): operand.text for operand, tensor in pairs}

    @cached_property
    def _weights(self) -> set[str]:
        module = self.run.module
        return {name for name, _ in (*module.named_parameters(), *module.named_buffers())}

    def operand(self, tensor: Tensor, role: str, clash: tuple[int, ...] = ()) -> Operand:
        """Return the record of a tensor."""
        words, line = self._origin(tensor)
        axes = tuple(sorted({axis % max(1, tensor.dim()) for axis in clash})) if tensor.dim() else ()
        return Operand(
            self.name(tensor, role).strip("`"),
            tuple(tensor.shape),
            self.symbolic(tensor),
            dtype_name(tensor.dtype),
            str(tensor.device),
            axes,
            words,
            line,
        )

    def _origin(self, tensor: Tensor) -> tuple[str, Source | None]:
        """Return in words the origin of a tensor, and the line that computed it."""
        maker = self.maker(tensor)
        if isinstance(maker, int):
            op = self.run.recording.ops[maker]
            inside = f" in {op.module}" if op.module else ""
            return f"computed by {op.function or op.name}{inside}", source(*op.line) if op.line else None
        if maker in self._weights:
            kind = "a parameter" if maker in dict(self.run.module.named_parameters()) else "a buffer"
            path = maker.rpartition(".")[0]
            built = construction_of(self.run.module, path) if path else None
            return kind, source(built.file, built.call.lineno) if built else None
        if maker.startswith("input "):
            return "an input", None
        return "", None


def letters(formula: str) -> list[str]:
    """Return the sizes in a formula; none of an unsolved one."""
    return [] if formula == UNKNOWN else [str(letter) for letter in notation.parse(formula).free_symbols]


# Moves: the ways to repair a failure, each one entry. No repair is shown that `Trials` did not run to its end.

EDITS = ("constructor", "call", "operand", "code", "number")
"""What a move edits, in the order in which repairs of one cost are tried."""


class Move(NamedTuple):
    """A way to repair a failure.

    `kinds` are the kinds of clashes that it is for, all where there are none, `cost` is that of its least change, and
    `candidates` yields its repairs, whose costs are added to it.
    """

    kinds: tuple[str, ...]
    cost: float
    edits: str
    candidates: Callable[[Scene, Clash], Iterator[Candidate]]


MOVES: list[Move] = []
"""All moves, in the order of their definitions."""

Candidates = Callable[[Scene, Clash], Iterator[Candidate]]


def move(*kinds: str, cost: float, edits: str) -> Callable[[Candidates], Candidates]:
    """Register a function that yields repairs as a move; the arguments are the fields of `Move`."""

    def register(candidates: Candidates) -> Candidates:
        MOVES.append(Move(kinds, cost, edits, candidates))
        return candidates

    return register


def repairs(scene: Scene, *clashes: Clash, edits: Collection[str] = EDITS) -> Iterator[Candidate]:
    """Yield the repairs of all moves with these `edits`, each for the first of the clashes that it is for.

    Those of a move end where one can't be written: code may have any unforeseen form, and an explanation without a
    repair is better than none.
    """
    for move in sorted(MOVES, key=lambda move: EDITS.index(move.edits)):
        clash = next((clash for clash in clashes if not move.kinds or clash.kind in move.kinds), None)
        if clash is not None and move.edits in edits:
            with suppress(Exception):
                for candidate in move.candidates(scene, clash):
                    yield replace(candidate, cost=move.cost + candidate.cost)


def argument(call: FailedCall, position: int, name: str, default: Any = None) -> Any:
    """Return an argument of a call, by its position or its name."""
    return call.args[position] if position < len(call.args) else call.kwargs.get(name, default)
