"""A model of ours: a net, its sizes, its textbook, and the preparation of its input from a photo or a sentence."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from PIL.Image import Image

from tracer.capture import Recording
from tracer.inputs.model_inputs import Inputs
from tracer.record import Picture, Trace
from tracer.shapes import Solution, Vocabulary
from tracer.textbook.hints import Hint
from tracer.textbook.steps import Found
from tracer.tracing import WHOLE, assemble, lay_book, record_or_explain, solve_first
from tracer.utils.error_text import quote, quoted_setting, reason
from tracer.utils.limits import limits
from tracer.utils.progress import doing
from tracer.utils.thread_local_rng import seeded_draws

SOLUTIONS = 64
"""Number of op lists and sizes of one model that are cached with their symbols: each length of a text is one."""


@dataclass(frozen=True)
class Spec:
    """The description of a model in its file, besides the net.

    `sizes` are the sizes that the weights depend on and their defaults, `runs` those of the input (B, T), `options`
    other choices and their allowed values, the default first; `derived` are formulas of other sizes, `names` the
    symbols of dimensions, in order of preference, and `probes` the tiny sizes at which dimensions are solved, all
    distinct. `example(sizes)` returns the args of a probe, or its `Inputs`; `prepare(model, image, text, given)` the
    `Inputs`, with the caller's sizes for this run; `result(model, inputs, output)` the answer as plain data;
    `segments(sizes)` the named segments of the sequence. `samples` is the kind of samples that suit it
    (`tracer.inputs.samples`). `settings` are other whole numbers for `prepare`, and their defaults, such as a seed.
    `convert(tensors, given)` converts weights in another layout to ours, with their sizes, or returns None for an
    unknown layout. `parts` names the towers of a model of several by their modules' paths, each with the symbol of its
    number of blocks. `idle(options)` names the sizes that a net with these options does not have. `whole` is True if
    the lines cover every computing op, and `tiny` are sizes at which a large model is verified. A model without a
    description has `ways(model, inputs, recording)` instead of `probes`: see `tracer.zoo.find_probe_sizes`. `hints` are
    people's additions to derived lines (`tracer.textbook.hints`). `presets` are sizes and options of published
    models, by name. `meanings` are those of sizes that no other model has; the words up to the first colon or comma
    name it.
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
    parts: dict[str, str] = field(default_factory=lambda: dict(WHOLE))
    idle: Callable[[dict], tuple[str, ...]] = lambda options: ()
    whole: bool = True
    tiny: dict[str, int] = field(default_factory=dict)
    ways: Callable | None = None
    hints: tuple[Hint, ...] = ()
    presets: dict[str, dict[str, Any]] = field(default_factory=dict)
    meanings: dict[str, str] = field(default_factory=dict)


@dataclass
class Model:
    """A model that is ready to run, built by `tracer.load`.

    `fixed` is True if nobody changes the net any more, as in the app: its captions may then be cached, in `captions`.
    `device` is the device that it runs on.
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
    _solutions: dict = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, name: str, spec: Spec, net: torch.nn.Module, config: dict, **more: Any) -> Model:
        """Return the model of a net that was built with `config`, its sizes and options."""
        sizes, options = ({key: config[key] for key in keys} for keys in (spec.sizes, spec.options))
        return cls(name=name, net=net, spec=spec, sizes=sizes, options=options, **more)

    @property
    def takes(self) -> tuple[str, ...]:
        """The inputs of `inputs` and `trace`: "image", "text" or both."""
        return self.spec.takes

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The sizes that dimensions are solved over, and the construction of the net at other sizes."""

        def build(sizes: dict[str, int]) -> tuple:
            own = {name: value for name, value in sizes.items() if name not in self.spec.runs}
            made = self.spec.example(sizes)
            return build_seeded(self.spec.net, {**own, **self.options}), tuple(made), getattr(made, "named", {})

        return Vocabulary(self.spec.names, self.spec.derived, build, device=self.device)

    def inputs(self, image: Image | None = None, text: str | None = None, **sizes: int) -> Inputs:
        """Return the inputs of forward, from a PIL photo or a text; `batch=4` (or `B=4`) repeats them.

        Without either, they are the model's own sample. Other sizes of the input, such as `T`, cut or repeat the
        sample. Raise ValueError for an input that the model does not take.
        """
        for kind, given in (("image", image), ("text", text)):
            if given is not None and kind not in self.takes:
                known = " and ".join(self.takes) or "its own sample alone"
                raise ValueError(f"{quote(self.name)} takes {known}, but was given {_article(kind)}")
        for kind, given, wanted in (("image", image, Image), ("text", text, str)):
            if given is not None and not isinstance(given, wanted):
                what = "a PIL image" if kind == "image" else "a string"
                raise ValueError(f"{kind}={_short(given)} was given to {quote(self.name)}, expected {what}")
        if "batch" in sizes:
            sizes["B"] = sizes.pop("batch")
        known = (*self.spec.runs, *self.spec.settings)
        for symbol, value in sizes.items():
            least = 0 if symbol in self.spec.settings else 1
            if symbol not in known:
                raise ValueError(
                    f"{quoted_setting(symbol, value)} is no size of this input; {' and '.join(known)} can be given"
                )
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(
                    f"{quoted_setting(symbol, value)} can't run: a whole number from {least} up was expected"
                )
        made = self.spec.prepare(self, image, text, {"B": 1, **self.spec.settings, **sizes})
        limits().check_tokens(made.sizes.get("T", 0))
        return made.on(self.device)

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
        **sizes: int,
    ) -> Trace:
        """Run the model once and prove every line that it shows.

        See `inputs`, and `tracer.trace` for `keep`, `prove` and `primitives`.
        """
        inputs = self.inputs(image, text, **sizes)
        with torch.no_grad():
            with doing("Running the model"):
                recording = self._recorded(inputs, keep, prove, primitives)
            with doing("Running it at other sizes, to tell which sizes are which"):
                solution, notes = self._solved(recording, {**inputs.sizes, **self.sizes}, inputs)
        full = self.vocabulary.complete({**inputs.sizes, **self.sizes})
        picture, values = None, {}
        if inputs.crop is not None:
            rows, columns = full["H"] // full["P"], full["W"] // full["P"]
            first = next(segment.start for segment in inputs.segments if segment.name == "image")
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
            segments=inputs.segments,
            result=self.spec.result(self, inputs.on(torch.device("cpu")), recording.output),
            weights=self.weights,
        )
        idle, known = self.spec.idle(self.options), self.spec.meanings
        sizes = (replace(size, meaning=known.get(size.name, size.meaning)) for size in trace.symbols)
        return replace(trace, symbols=tuple(size for size in sizes if size.name not in idle))

    def found(self, recording: Recording, sizes: dict[str, int]) -> list[Found]:
        """Return the textbook's steps for a run of these inputs' sizes, without proofs."""
        full = self.vocabulary.complete({**sizes, **self.sizes})
        return lay_book(recording, full, self.spec.derived, None, self.spec.hints)[0].found

    def _recorded(
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
            said = f"{quote(self.name)} does not run at {at}: {reason(error)}"
            raise ValueError(said) from error

    def _solved(
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
            self._solutions[key] = self._lent(recording, sizes, ops) or self._solved_now(
                recording, sizes, inputs, self._solutions.get(plain, (None, ""))[0]
            )
        return self._solutions[key]

    def _lent(
        self, recording: Recording, sizes: dict[str, int], ops: int
    ) -> tuple[Solution | None, tuple[str, ...]] | None:
        """Return the solution of this op list at other sizes that predicts this run, or None."""
        if any(recording.opened):
            return None
        full, plain = self.vocabulary.complete(sizes), hash(())
        known = [found for (of, kind, _), found in self._solutions.items() if (of, kind) == (ops, plain)]
        return next((one for one in known if one[0] is not None and one[0].predicts(recording, full)), None)

    def _solved_now(
        self, recording: Recording, sizes: dict[str, int], inputs: Inputs, known: Solution | None
    ) -> tuple[Solution | None, tuple[str, ...]]:
        """Solve a run, in the way in which it was solved without its primitives, if it was."""
        if known and known.way:
            ways = [known.way]
        elif self.spec.ways:
            ways = self.spec.ways(self, inputs, recording)
        else:
            ways = [(self.vocabulary, [{**self.sizes, **probe} for probe in self.spec.probes])]
        return solve_first(recording, sizes, ways, self.net)


def build_seeded(net: Callable[..., torch.nn.Module], config: dict, seed: int = 0) -> torch.nn.Module:
    """Return the net at these sizes and options with seeded random weights, in eval mode.

    The weights do not depend on other random draws. Parameters that start as zeros get small random values, so that no
    proof on them is empty.
    """
    with seeded_draws(seed):
        module = net(**config).eval()
        for parameter in module.parameters():
            if not parameter.any():
                torch.nn.init.normal_(parameter, std=0.02)
    return module


def _short(given: object) -> str:
    """Return a value in a few words: the type, and the shape and dtype if it has them."""
    facts = [str(list(given.shape))] if hasattr(given, "shape") else []
    facts += [str(given.dtype).removeprefix("torch.")] if hasattr(given, "dtype") else []
    return " ".join([type(given).__name__, *facts])


def _article(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"
