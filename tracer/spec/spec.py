"""A model of ours: a net, its sizes, its textbook, and the preparation of its input from a photo or a sentence."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import Any, cast

import torch
from PIL.Image import Image

from tracer.capture import Recording
from tracer.capture.interventions import Intervention, with_interventions
from tracer.changes import Change, changes_of, divide, has_name, moves_tokens, write
from tracer.changes.of_inputs import REMOVED_FILL, Hide, InputChange, Permute
from tracer.inputs.images import MEAN, STD
from tracer.inputs.model_inputs import Inputs
from tracer.record import MOVED_TOKENS, Picture, Trace
from tracer.shapes import Solution, Vocabulary
from tracer.shapes.variation import OnMeta, on_meta
from tracer.spec.without_values import trace_without_values, with_meanings
from tracer.textbook.derivation import DerivedStep
from tracer.textbook.names import Hint
from tracer.tracing import SINGLE_TOWER, assemble, lay_book, record_or_explain, solve_first
from tracer.tracing.changed_runs import LineSite, changing_build, interventions_of, line_sites, take_over_solution
from tracer.utils.cache import Cache
from tracer.utils.errors import limits, quote, quoted_setting, reason
from tracer.utils.job_queue import doing
from tracer.utils.torch_internals import disable_dispatch_modes
from tracer.utils.torch_state import seeded_draws

CHANGES_CACHE_SIZE = 32
"""Number of changed copies of one model, and of sizes whose lines can be changed, that are cached."""

META = torch.device("meta")
"""The device whose tensors have shapes and no values."""

NO_WEIGHTS = "no weights: on the device meta, tensors have shapes and no values"
"""What is said of the weights of a model there."""

EAGER = "eager"
"""The implementation of attention that is written out, where nets have several."""

PROBED_NETS = 32
"""Nets at the sizes of probes that are cached, of all models together."""
SOLUTIONS = 64
"""Number of op lists and sizes of one model that are cached with their symbols: each length of a text is one."""


@dataclass(frozen=True)
class Spec:
    """Description of a model in its file, besides the net.

    `sizes` are the sizes that the weights depend on and their defaults, `runs` those of the input (B, T), `options`
    other choices and their allowed values, the default first; `derived` are formulas of other sizes, `names` the
    symbols of dimensions, in order of preference, and `probes` the tiny sizes at which dimensions are solved, all
    distinct. `example(sizes)` returns the args of a probe, or its `Inputs`; `prepare(model, image, text, given)` the
    `Inputs`, with the caller's sizes for this run; `result(model, inputs, output)` the answer as plain data;
    `segments(sizes)` the named segments of the sequence. `samples` is the kind of samples that suit it (see
    `tracer.inputs.model_inputs`). `settings` are other whole numbers for `prepare`, and their defaults, such as a seed.
    `convert(tensors, given)` converts weights in another layout to ours, with their sizes, or returns None for an
    unknown layout. `parts` names the towers of a model of several by their modules' paths, each with the symbol of its
    number of blocks. `idle(options)` names the sizes that a net with these options does not have. `whole` is True if
    the lines cover every computing op, and `tiny` are sizes at which a large model is verified. A model without a
    description has `ways(model, inputs, recording)` instead of `probes`: see `tracer.zoo.user_factory`. `hints` are
    people's additions to derived lines (`tracer.textbook.names`). `presets` are sizes and options of published
    models, by name. `meanings` are those of sizes that no other model has; the words up to the first colon or comma
    name it. `subset` has the fields that differ where patches are left out of the sequence, if the model can do that:
    its `prepare` returns the numbers of the tokens that stay as `named["kept"]`. `decoder(model)` returns the model
    that reads the last tokens of a text after a cache of keys and values (`tracer.spec.decoding`).
    `configure_valueless(net)` changes settings of a net that a run without values needs, such as that it returns its
    cache.
    `spell(model, numbers)` returns the texts of tokens, by default those of the vocabulary.
    """

    net: Callable[..., torch.nn.Module]
    takes: tuple[str, ...]
    sizes: dict[str, int]
    derived: dict[str, str]
    names: tuple[str, ...]
    probes: tuple[dict[str, int], ...]
    example: Callable
    prepare: Callable
    result: Callable
    segments: Callable
    runs: tuple[str, ...] = ("B",)
    options: dict[str, tuple] = field(default_factory=dict)
    vocabulary: Sequence[str] = ()
    samples: str = ""
    settings: dict[str, int] = field(default_factory=dict)
    convert: Callable | None = None
    parts: dict[str, str] = field(default_factory=lambda: dict(SINGLE_TOWER))
    idle: Callable[[dict], tuple[str, ...]] = lambda options: ()
    whole: bool = True
    tiny: dict[str, int] = field(default_factory=dict)
    ways: Callable | None = None
    hints: tuple[Hint, ...] = ()
    presets: dict[str, dict[str, Any]] = field(default_factory=dict)
    meanings: dict[str, str] = field(default_factory=dict)
    subset: dict[str, Any] = field(default_factory=dict)
    decoder: Callable[[Model], Model] | None = None
    configure_valueless: Callable[[torch.nn.Module], None] = lambda net: None
    spell: Callable[[Model, Sequence[int]], list[str]] | None = None

    @property
    def defaults(self) -> dict[str, Any]:
        """Sizes and options of a net that nobody sets others for."""
        return {**self.sizes, **{option: choices[0] for option, choices in self.options.items()}}

    def probe_inputs(self, sizes: Mapping[str, int]) -> Inputs:
        """Return the `Inputs` of a probe."""
        example = self.example(sizes)
        return example if isinstance(example, Inputs) else Inputs(tuple(example))


@dataclass
class Model:
    """A model that is ready to run, built by `tracer.load`.

    `fixed` is True if nobody changes the net any more, as in the app: its captions may then be cached, in `captions`.
    `device` is the device that it runs on. `changes` are made in every run of it, by its
    `interventions`; `base` is the model without them.
    """

    name: str
    net: torch.nn.Module
    spec: Spec
    sizes: dict[str, int]
    options: dict
    weights: str
    card: dict | None = None
    fixed: bool = False
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    captions: dict[bytes, list[int]] = field(default_factory=dict, repr=False, compare=False)
    base: Model | None = field(default=None, repr=False, compare=False)
    changes: Mapping[str, Change] = field(default_factory=dict)
    interventions: tuple[Intervention, ...] = field(default=(), repr=False, compare=False)
    _solutions: dict = field(default_factory=dict, repr=False)
    _origin: Model | None = field(default=None, repr=False, compare=False)
    _changed: Cache = field(default_factory=lambda: Cache(CHANGES_CACHE_SIZE), init=False, repr=False, compare=False)
    _lines: Cache = field(default_factory=lambda: Cache(CHANGES_CACHE_SIZE), init=False, repr=False, compare=False)
    _opened: Cache = field(default_factory=lambda: Cache(CHANGES_CACHE_SIZE), init=False, repr=False, compare=False)
    _by_outline: Cache = field(default_factory=lambda: Cache(CHANGES_CACHE_SIZE), init=False, repr=False, compare=False)
    _own_solutions: Cache = field(default_factory=lambda: Cache(SOLUTIONS), init=False, repr=False, compare=False)

    @classmethod
    def of(cls, name: str, spec: Spec, net: torch.nn.Module, config: dict, **more: Any) -> Model:
        """Return the model of a net that was built with `config`, its sizes and options."""
        sizes, options = ({key: config[key] for key in keys} for keys in (spec.sizes, spec.options))
        return cls(name=name, net=net, spec=spec, sizes=sizes, options=options, **more)

    @classmethod
    def without_weights(cls, name: str, spec: Spec, config: dict, card: dict | None = None) -> Model:
        """Return a model at these sizes and options on the device `meta`; the `card` says how inputs are read."""
        net = build_without_values(spec, config)
        return cls.of(name, spec, net, config, weights=NO_WEIGHTS, card=card, device=META)

    @property
    def takes(self) -> tuple[str, ...]:
        """Inputs of `inputs` and `trace`: "image", "text" or both."""
        return self.spec.takes

    @property
    def valueless(self) -> bool:
        """True if the model is on the device `meta`, where tensors have shapes but no values."""
        return self.device.type == META.type

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Sizes that dimensions are solved over, and the construction of the net at other sizes."""

        def build_empty(sizes: dict[str, int]) -> tuple:
            own = {name: value for name, value in sizes.items() if name in self.spec.sizes}
            with disable_dispatch_modes():
                net = build_without_values(self.spec, {**own, **self.options})
                example = self.spec.probe_inputs(sizes).on(META)
                return self.intervene(net), tuple(example), example.named

        if self.valueless:
            return Vocabulary(self.spec.names, self.spec.derived, build_empty, OnMeta, device=self.device)

        def build(sizes: dict[str, int]) -> tuple:
            own = {name: value for name, value in sizes.items() if name not in self.spec.runs}
            example = self.spec.probe_inputs(sizes)
            net = self.intervene(_probed_net(self.spec.net, tuple({**own, **self.options}.items())))
            return net, tuple(example), example.named

        return Vocabulary(self.spec.names, self.spec.derived, build, device=self.device)

    def inputs(self, image: Image | None = None, text: str | None = None, **sizes: int) -> Inputs:
        """Return the inputs of forward, from a PIL photo or a text; `batch=4` (or `B=4`) repeats them.

        Without either, they are the model's own sample. Other sizes of the input, such as `T`, cut or repeat the
        sample. Raise ValueError for an input that the model does not take.
        """
        return self.change_inputs(self._prepare(image, text, sizes), divide(self.changes)[1])

    def _prepare(self, image: Image | None, text: str | None, sizes: dict[str, int]) -> Inputs:
        """Return the inputs without the changes of the model, on the CPU."""
        given = (("image", "an image", image, Image, "a PIL image"), ("text", "a text", text, str, "a string"))
        for kind, named, argument, *_ in given:
            if argument is not None and kind not in self.takes:
                known = " and ".join(self.takes) or "its own sample alone"
                raise ValueError(f"{quote(self.name)} takes {known}, but was given {named}")
        for kind, _, argument, wanted, what in given:
            if argument is not None and not isinstance(argument, wanted):
                raise ValueError(f"{kind}={_short(argument)} was given to {quote(self.name)}, expected {what}")
        if "batch" in sizes:
            sizes["B"] = sizes.pop("batch")
        known = (*self.spec.runs, *self.spec.settings)
        for symbol, value in sizes.items():
            least = 0 if symbol in self.spec.settings else 1
            if symbol not in known:
                raise ValueError(
                    f"{quoted_setting(symbol, value)} is not a size of this input; {' and '.join(known)} can be given"
                )
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(
                    f"{quoted_setting(symbol, value)} can't run, expected a whole number of at least {least}"
                )
        prepared = self.spec.prepare(self, image, text, {"B": 1, **self.spec.settings, **sizes})
        limits().check_tokens(prepared.sizes.get("T", 0))
        return prepared

    def change_inputs(self, inputs: Inputs, edits: Iterable[InputChange]) -> Inputs:
        """Return the inputs with these changes, on the device of the model. Raise ValueError if they lack what is
        changed."""
        for edit in edits:
            inputs = edit.change(inputs, self.vocabulary.complete({**inputs.sizes, **self.sizes}), self._normalisation)
        return inputs.on(self.device)

    def on(self, device: torch.device) -> Model:
        """Return the model with its weights moved to a device, in place.

        They are drawn on the CPU, so they are equal on every device.
        """
        self.net.to(device)
        self.device = device
        return self

    def trace(
        self,
        image: Image | None = None,
        text: str | None = None,
        *,
        keep: int | None = None,
        prove: bool | str = True,
        primitives: bool | Collection[int] = False,
        change: Mapping[str, Any] | None = None,
        cache: bool = False,
        values: bool = True,
        **sizes: int,
    ) -> Trace:
        """Run the model once and prove every line that it shows.

        See `inputs`, and `tracer.trace` for `keep`, `prove`, `primitives` and `change`. With `cache`, the run reads the
        last token of the text alone (`T` sets how many), after the keys and values of all tokens before it.

        With `values=False` the model runs on the device `meta`, without weights and without memory, at any size:
        shapes, symbols and costs are those of that run, and its lines are verified on a small twin of it. `T_past` is
        then the number of tokens in the cache: `T=1, T_past=8191` is the step that reads token 8,192.
        """
        if not values:
            if primitives or change:
                wanted = "primitives" if primitives else "change"
                raise ValueError(f"{wanted}={quote(primitives or change)} needs values, and values=False was given")
            return trace_without_values(self, image, text, sizes, cache)
        if self.valueless:
            raise ValueError(f"{quote(self.name)} has no weights here, only shapes: expected values=False")
        if cache:
            if change:
                raise ValueError(
                    f"change={quote(change)} with a cache: its keys and values are those of a run without changes, "
                    "expected a run without a cache"
                )
            settings = {"keep": keep, "prove": prove, "primitives": primitives}
            return cast(Any, self.decoder).trace(image, text, **settings, **sizes)
        inputs = self._prepare(image, text, sizes)
        model = self.with_changes(change, inputs.on(self.device)) if change else self
        inputs = inputs if model.spec is self.spec else model._prepare(image, text, sizes)
        return model.trace_inputs(model.change_inputs(inputs, divide(model.changes)[1]), keep, prove, primitives)

    def trace_inputs(
        self,
        inputs: Inputs,
        keep: int | None = None,
        prove: bool | str = True,
        primitives: bool | Collection[int] = False,
    ) -> Trace:
        """Return the run of inputs as `inputs` prepares them; see `trace`."""
        with torch.no_grad():
            with doing("Running the model"):
                recording = self._record(inputs, keep, prove, primitives)
            with doing("Running it at other sizes, to tell which sizes are which"):
                solution, notes = self._solve(recording, {**inputs.sizes, **self.sizes}, inputs)
        full = self.vocabulary.complete({**inputs.sizes, **self.sizes})
        picture, values, segments = None, {}, inputs.segments
        if inputs.crop is not None and moves_tokens(self.changes):
            notes = (*notes, MOVED_TOKENS)
            segments = tuple(replace(segment, places=()) for segment in segments)
        elif inputs.crop is not None:
            rows, columns = full["H"] // full["P"], full["W"] // full["P"]
            first = next(segment.start for segment in inputs.segments if segment.name in ("image", "visible"))
            picture = Picture("photo", inputs.crop.box, rows, columns, first)
            values["photo"] = torch.from_numpy(inputs.photo)
        trace = assemble(
            self.net,
            recording,
            prove=prove,
            lend=prove is True,
            model=self.name,
            sizes=full,
            derived=self.spec.derived,
            solution=solution,
            hints=self.spec.hints,
            notes=notes,
            picture=picture,
            values=values,
            parts=self.spec.parts,
            words=inputs.words,
            segments=segments,
            result=self.spec.result(self, inputs.on(torch.device("cpu")), recording.output),
            weights=self.weights,
            changes=tuple(f"{line}={change}" for line, change in self.changes.items()),
        )
        return with_meanings(self, trace)

    @cached_property
    def empty(self) -> Model:
        """Copy of the model on the device `meta`, without weights."""
        return self if self.valueless else self.at_sizes({})

    def at_sizes(self, sizes: Mapping[str, int], values: bool = False) -> Model:
        """Return the model with some of its sizes changed: without weights on the device `meta`, or with `values`, on
        the CPU, with seeded random ones."""
        options = self.options if values or self.valueless else {**self.options, **written_out(self.spec)}
        config = {**self.sizes, **options, **{name: sizes[name] for name in self.sizes if name in sizes}}
        if not values:
            return Model.without_weights(self.name, self.spec, config, self.card)
        net = build_seeded(self.spec.net, config)
        self.spec.configure_valueless(net)
        return Model.of(self.name, self.spec, net, config, weights="seeded random weights")

    def intervene(self, net: torch.nn.Module) -> torch.nn.Module:
        """Return a net of this model, perhaps at other sizes, with the model's changes."""
        return with_interventions(net, self.interventions) if self.interventions else net

    def with_changes(self, change: Mapping[str, Any], inputs: Inputs | None = None) -> Model:
        """Return a copy of the model, which shares its weights, in whose runs the values of lines are changed.

        `inputs` are those of a run, by default of the sample, whose textbook has the lines. Raise ValueError in one
        sentence for an unknown line, or a change that does not fit it.
        """
        wanted = changes_of(change)
        if self.base is not None:
            return self.base.with_changes({**self.changes, **wanted}, inputs)
        inputs = self.inputs() if inputs is None else inputs
        at = tuple(sorted(inputs.sizes.items())) if any(change.checks_sizes for change in wanted.values()) else None
        key = (write(wanted), at) if all(map(has_name, wanted.values())) else None
        changed = self._changed.get(key) if key else None
        if changed is None:
            lines, of_inputs = divide(wanted)
            model = self
            if (
                any(isinstance(edit, Hide) and edit.fill == REMOVED_FILL for edit in of_inputs)
                and self._subset is not None
            ):
                model, inputs = self._subset, self._subset.inputs()
            self.change_inputs(inputs, of_inputs)
            changed = replace(model, base=self, changes=wanted, captions={})
            if permuted := [edit for edit in of_inputs if isinstance(edit, Permute)]:
                changed.net = copy.deepcopy(self.net)
                for edit in permuted:
                    edit.change_net(changed.net)
            if lines:
                lines_of = partial(model._line_sites, inputs, at)
                changed.interventions = interventions_of(lines, lines_of)
                changed.net = with_interventions(changed.net, changed.interventions)
                changed._solutions = self._solutions_of(wanted, at) if key else {}
                openings = tuple(entry for entry in changed.interventions if entry.change is None)
                changed._origin = (model._with_interventions(openings) if openings else model) if key else None
            if key:
                self._changed.put(key, changed)
        return changed

    def _solutions_of(self, changes: Mapping[str, Change], at: tuple[tuple[str, int], ...] | None) -> dict:
        """Return the solutions that are shared by changes which differ in numbers alone, such as those of another
        head."""
        key = tuple((line, change.outline) for line, change in changes.items()), at
        if (solutions := self._by_outline.get(key)) is None:
            self._by_outline.put(key, solutions := {})
        return solutions

    @cached_property
    def decoder(self) -> Model:
        """Copy of the model, which reads the last token of a text after a cache of the keys and values of all others.

        Raise ValueError for a model that keeps none.
        """
        if self.spec.decoder is None:
            raise ValueError(f"{quote(self.name)} writes no text, so it keeps no cache of keys and values")
        if self.options.get("mask") == "bidirectional":
            raise ValueError(
                "mask='bidirectional' with a cache: the keys of earlier tokens change with each new one, expected a "
                "mask that hides later tokens"
            )
        return self.spec.decoder(self)

    @cached_property
    def _subset(self) -> Model | None:
        """Model on some of its patches; None where it can't leave any out."""
        return replace(self, spec=replace(self.spec, **self.spec.subset), _solutions={}) if self.spec.subset else None

    @property
    def _normalisation(self) -> dict[str, Sequence[float]]:
        """Mean and standard deviation by which pixels were normalised."""
        return {name: (self.card or {}).get(name, usual) for name, usual in (("mean", MEAN), ("std", STD))}

    def forget_captions(self) -> None:
        """Drop the cached captions of its runs, changed or not."""
        for model in (self, *self._changed.values()):
            model.captions.clear()

    def _line_sites(
        self, inputs: Inputs, at: tuple[tuple[str, int], ...] | None, interventions: tuple[Intervention, ...]
    ) -> dict[str, LineSite]:
        """Return the lines that can be changed in a run of these inputs with some interventions; unless sizes are given
        by `at`, they may be those of a run at other sizes."""
        key = interventions, at
        if (lines := self._lines.get(key)) is None:
            model = self._with_interventions(interventions) if interventions else self
            with torch.no_grad():
                recording = model._record(inputs, 0, False, False)
                solution, _ = model._solve(recording, {**inputs.sizes, **self.sizes}, inputs)
            full = self.vocabulary.complete({**inputs.sizes, **self.sizes})
            book, _ = lay_book(recording, full, self.spec.derived, solution, self.spec.hints)
            lines = line_sites(recording, book.steps)
            self._lines.put(key, lines)
        return lines

    def _with_interventions(self, interventions: tuple[Intervention, ...]) -> Model:
        """Return the model with these interventions and its solutions, which runs at several sizes share."""
        if (model := self._opened.get(interventions)) is None:
            net = with_interventions(self.net, interventions)
            model = replace(self, net=net, interventions=interventions, _solutions={})
            self._opened.put(interventions, model)
        return model

    def derived_steps(self, recording: Recording, sizes: dict[str, int]) -> list[DerivedStep]:
        """Return the textbook's steps for a run of these inputs' sizes, without proofs."""
        full = self.vocabulary.complete({**sizes, **self.sizes})
        return lay_book(recording, full, self.spec.derived, None, self.spec.hints)[0].steps

    def _record(
        self, inputs: Inputs, keep: int | None, prove: bool | str, primitives: bool | Collection[int]
    ) -> Recording:
        """Return the run.

        Raise ValueError in one sentence if a model without a description does not run on these inputs.
        """
        try:
            return record_or_explain(self.net, tuple(inputs), inputs.named, keep, prove, primitives, calls=True)
        except Exception as error:
            if self.spec.ways is None or isinstance(error, MemoryError) or "alloc" in str(error):
                raise
            at = ", ".join(f"{symbol}={size}" for symbol, size in inputs.sizes.items())
            message = f"{quote(self.name)} does not run at {at}: {reason(error)}"
            raise ValueError(message) from error

    def _solve(
        self, recording: Recording, sizes: dict[str, int], inputs: Inputs
    ) -> tuple[Solution | None, tuple[str, ...]]:
        """Return the solution of this op list at these sizes.

        It does not depend on values, so it is solved once. A solution at other sizes is reused if it predicts every
        shape of this run.
        """
        at, ops = tuple(sorted(sizes.items())), hash(tuple((op.name, op.module, op.line) for op in recording.ops))
        parts = tuple(tuple(part.name for part in op.parts) if op else () for op in recording.opened)
        plain, key = ((ops, kind, at) for kind in (hash(()), hash(parts)))
        if key not in self._solutions:
            if len(self._solutions) >= SOLUTIONS:
                del self._solutions[next(iter(self._solutions))]
            self._solutions[key] = self._reuse_solution(recording, sizes, ops) or self._solved_now(
                recording, sizes, inputs, self._with_own_build(plain)
            )
        return self._with_own_build(key), self._solutions[key][1]

    def _with_own_build(self, key: tuple) -> Solution | None:
        """Return a known solution that builds this model at other sizes: changes of one outline share solutions, but
        each change has numbers of its own.

        It is the same object at each run, so that what is cached of it, such as its textbook, is reused.
        """
        solution, _ = self._solutions.get(key, (None, ()))
        if solution is None or solution.way is None or self._origin is None:
            return solution
        shared, own = self._own_solutions.get(key) or (None, None)
        if shared is not solution:
            vocabulary, probes = solution.way
            vocabulary = self._own_vocabulary(vocabulary)
            own = replace(solution, way=vocabulary and (vocabulary, probes))
            if vocabulary is not None:
                self._own_solutions.put(key, (solution, own))
        return own

    def _own_vocabulary(self, vocabulary: Vocabulary) -> Vocabulary | None:
        """Return the vocabulary of another change of this outline with this change; None where it isn't known how to
        build the net at other sizes."""
        if not self.spec.ways:
            return self.vocabulary
        if (plain := next(self.base.solved_runs(), None) if self.base else None) is None:
            return None
        return replace(vocabulary, build=changing_build(plain.way[0].build, self.interventions), recordings={})

    def _reuse_solution(
        self, recording: Recording, sizes: dict[str, int], ops: int
    ) -> tuple[Solution | None, tuple[str, ...]] | None:
        """Return the solution of this op list at other sizes, or that of its primitives, if it predicts this run; else
        None."""
        if any(recording.opened):
            return None
        full = self.vocabulary.complete(sizes)
        known = [solution for (of, *_), solution in self._solutions.items() if of == ops]
        return next((size for size in known if size[0] is not None and size[0].predicts(recording, full)), None)

    def _solved_now(
        self, recording: Recording, sizes: dict[str, int], inputs: Inputs, known: Solution | None
    ) -> tuple[Solution | None, tuple[str, ...]]:
        """Solve a run in the same way as without its primitives, if it was solved before."""
        if known and known.way:
            ways = [known.way]
        elif taken_over := self._take_over_solution(recording, sizes):
            return taken_over
        elif self.spec.ways:
            ways = self.spec.ways(self, inputs, recording)
        else:
            ways = [(self.vocabulary, [{**self.sizes, **probe} for probe in self.spec.probes])]
        return solve_first(recording, sizes, ways, self.net)

    def _take_over_solution(
        self, recording: Recording, sizes: dict[str, int]
    ) -> tuple[Solution, tuple[str, ...]] | None:
        """Return the solution of a changed run by that of a run without the changes; None where none is confirmed."""
        if self._origin is None or self.base is None:
            return None
        for known in self._origin.solved_runs():
            vocabulary, probes = known.way
            if (vocabulary := self._own_vocabulary(vocabulary)) is None:
                continue
            if solution := take_over_solution(known, recording, sizes, vocabulary, probes):
                return solution, tuple(filter(None, [vocabulary.note, solution.problem]))
        return None

    def solved_runs(self) -> Iterator[Solution]:
        """Yield the solutions of its runs that were found by runs at other sizes."""
        return (solution for solution, _ in tuple(self._solutions.values()) if solution and solution.way)


def written_out(spec: Spec) -> dict[str, Any]:
    """Return the option by which a net computes attention explicitly, so that scores and weights have lines of their
    own in runs without values; none for a net without that option."""
    return {"attention": EAGER} if EAGER in spec.options.get("attention", ()) else {}


def build_without_values(spec: Spec, config: dict) -> torch.nn.Module:
    """Return the net at these sizes and options on the device `meta`, in eval mode."""
    net = on_meta(lambda: spec.net(**config)).eval()
    spec.configure_valueless(net)
    return net


@lru_cache(maxsize=PROBED_NETS)
def _probed_net(net: Callable[..., torch.nn.Module], config: tuple[tuple[str, Any], ...]) -> torch.nn.Module:
    """Return `build_seeded` of a net at the sizes of a probe, which nothing modifies: each change of a model is solved
    with the same ones."""
    return build_seeded(net, dict(config))


def build_seeded(net: Callable[..., torch.nn.Module], config: dict) -> torch.nn.Module:
    """Return the net at these sizes and options with seeded random weights, in eval mode.

    The weights do not depend on other random draws. Parameters that start as zeros get small random values, so that no
    proof on them is empty.
    """
    with seeded_draws(0):
        module = net(**config).eval()
        for parameter in module.parameters():
            if not parameter.any():
                torch.nn.init.normal_(parameter, std=0.02)
    return module


def _short(value: object) -> str:
    """Return a value in a few words: the type, and the shape and dtype if it has them."""
    facts = [str(list(value.shape))] if hasattr(value, "shape") else []
    facts += [str(value.dtype).removeprefix("torch.")] if hasattr(value, "dtype") else []
    return " ".join([type(value).__name__, *facts])
