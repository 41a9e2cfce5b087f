"""Run a model once and show every module, step, call, op or primitive of the run.

Without --image and --text, the model runs on its own sample. `--set B=4` repeats the input four times. Another size
than the weights were made for (D, h, L, …) runs with seeded random weights. `--set` also takes a model's other choices,
such as `gelu=tanh`. `--no-values` runs it on the device `meta` instead, at any size, without weights and without
memory, also from a folder with a `config.json` alone; `T_past` is then the number of tokens in the cache. `--module
FILE.py:factory`, or `package.file:factory`, runs your own module: `factory()` returns `(module, args)`, and its
arguments with whole numbers for defaults are the symbols. If it fails, the command prints why, with the line, both
shapes and repairs that were tried, and its exit status is 1. `--change block1.attention.weights="drop_heads(0)"`
replaces the value of a line, by its id, in the run. `--cache` reads the last token of a text, after a cache of the keys
and values of the tokens before it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import tracer
from tracer import models
from tracer.cli import shared_options as shared
from tracer.record import Trace
from tracer.utils.errors import quote, shorten

if TYPE_CHECKING:
    from tracer.spec.spec import Spec


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add NAME, the inputs, the sizes, the weights, and the view."""
    parser.add_argument("name", metavar="NAME", nargs="?", help="a model, as `models` lists them")
    parser.add_argument(
        "--module",
        metavar="FILE:FACTORY",
        help="your own module: a function, as FILE.py:NAME or package.file:NAME, that returns (module, args)",
    )
    shared.inputs(parser)
    shared.several(parser, "--set", "SYMBOL=INT", "a size, e.g. D=64 h=4")
    parser.add_argument(
        "--weights", metavar="F", help="a file with the model's weights: safetensors, or .pt of PyTorch"
    )
    parser.add_argument(
        "--device", metavar="D", default="cpu", help="the device to run on: cpu, cuda or mps (default: cpu)"
    )
    parser.add_argument(
        "--cache", action="store_true", help="read the last token alone, after a cache of the keys and values of others"
    )
    parser.add_argument(
        "--no-values", action="store_true", help="shapes, symbols and costs alone: no weights, no memory, any size"
    )
    shared.change(parser)
    shared.view(parser)


def parse_choice(name: str, value: str, choices: dict[str, tuple], settings: Collection[str] = ()) -> Any:
    """Return the value of a size, from 1, of a setting such as a seed, from 0, or of one of the model's choices.

    Raise ValueError for one that is none of these.
    """
    for choice in choices.get(name, ()):
        if str(choice).lower() == value.lower():
            return choice
    if name in choices:
        allowed = " or ".join(f"{name}={choice}" for choice in choices[name])
        raise ValueError(f"{quote(f'{name}={value}')} is not a choice, expected {allowed}")
    if name in settings and not shared.INTEGER_PATTERN.fullmatch(value):
        raise ValueError(f"{quote(f'{name}={value}')} can't be set, expected a whole number from 0")
    if name not in settings and not (shared.INTEGER_PATTERN.fullmatch(value) and int(value)):
        raise ValueError(f"{quote(f'{name}={value}')} is not a size, {shared.SET_EXPECTATION}")
    return int(value)


def split_choices(
    spec: Spec, chosen: Sequence[tuple[str, str]], more: Sequence[str] = ()
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the sizes and choices of a model, and those of its input, which include `more`."""
    sizes = {name: parse_choice(name, value, spec.options, spec.settings) for name, value in chosen}
    return sizes, {name: sizes.pop(name) for name in (*spec.runs, *spec.settings, *more) if name in sizes}


def run(options: argparse.Namespace) -> int:
    """Trace the model and show the trace."""
    shared.check_view(options)
    names = [name for name, _ in options.set]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"--set {shorten(name)}=… is given {names.count(name)} times, expected once")
    if (options.name is None) == (options.module is None):
        conflict = f"{quote(options.name)} and --module {quote(options.module)} are two models, expected one"
        raise ValueError("required: NAME, or --module FILE:FACTORY" if options.name is None else conflict)
    if options.module and (
        input_option := next((o for o in ("image", "text", "weights") if getattr(options, o)), None)
    ):
        raise ValueError(f"--{input_option} with --module: your own function makes the inputs, expected --set alone")
    if options.no_values:
        needs = {"module": options.module, "weights": options.weights, "change": options.change}
        needs |= {"device": options.device if options.device != "cpu" else None}
        if wanted := next((name for name, value in needs.items() if value), None):
            value = " ".join(needs[wanted]) if wanted == "change" else needs[wanted]
            raise ValueError(
                f"--{wanted} {quote(value)} with --no-values: nothing has values there, expected sizes alone"
            )
        if options.level == "primitives":
            raise ValueError("--level primitives with --no-values: nothing has values there, expected another level")
    if options.module and options.device != "cpu":
        conflict = f"--device {quote(options.device)} with --module"
        raise ValueError(f"{conflict}: your own function says where its module runs, expected --set alone")
    if options.module and options.cache:
        raise ValueError("--cache with --module: your own function makes the cache, expected --set alone")
    from tracer.zoo.user_factory import OwnCodeError

    photo = shared.photo(options.image)
    try:
        trace = _trace(options, photo)
    except OwnCodeError as error:
        return _explain(error)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "alloc" not in str(error):
            raise
        conflict = " ".join(f"{name}={value}" for name, value in options.set) or options.name or options.module
        raise ValueError(f"{quote(conflict)} needs more memory than there is, expected smaller sizes") from error
    shared.show(_check(trace, options), options)
    return 0


def _explain(error: ValueError) -> int:
    """Print why the user's own module failed; return the exit status."""
    print(tracer.explain(error), file=sys.stderr)
    return 1


def _check(trace: Trace, options: argparse.Namespace) -> Trace:
    """Return the trace with its lines checked on other runs and its findings, where these are shown; print in one line
    why lines were not checked."""
    from tracer.tracing import counterfactual

    if options.no_values:
        return trace
    saved = (options.out or "").endswith(shared.RUN_SUFFIX)  # nobody believes the checks in a file
    if saved:
        return trace.diagnose()
    if not (options.level == "steps" or options.format == "json" or (options.out or "").endswith(".json")):
        return trace
    if trace.steps and (problem := counterfactual.too_large(trace)):
        print(f"{shorten(trace.model)}: {problem}", file=sys.stderr)
    return counterfactual.check(trace).diagnose()


def _trace(options: argparse.Namespace, photo) -> Trace:
    from tracer import changes, zoo
    from tracer.spec.decoding import T_PAST
    from tracer.zoo import user_factory

    change = changes.parse_all(options.change)
    primitives = options.level == "primitives"
    if options.module:
        sizes = {name: parse_choice(name, value, {}, {}) for name, value in options.set}
        return user_factory.trace(options.module, primitives=primitives, change=change, **sizes)
    spec = models.spec_of(options.name)
    sizes, input_sizes = split_choices(spec, options.set, [T_PAST] if options.cache or options.no_values else [])
    where = {"weights": options.weights, "device": options.device, "values": not options.no_values}
    model = tracer.load(options.name, **where, **sizes)
    shared.check_takes(options.name, shared.given_inputs(options), model.takes)
    if options.no_values:
        pass  # whoever asks for no values knows that there are no weights
    elif model.valueless or zoo.is_foreign(options.name):
        print(f"{options.name}: {model.weights}", file=sys.stderr)
    elif sizes and options.weights is None and model.weights != models.origin(options.name):
        sizes_text = ", ".join(f"{name}={value}" for name, value in sizes.items())
        print(f"{options.name} with {sizes_text}: {model.weights}", file=sys.stderr)
    options.no_values = model.valueless
    settings = {"primitives": primitives, "change": change, "cache": options.cache, "values": not model.valueless}
    return model.trace(photo, options.text, **settings, **input_sizes)
