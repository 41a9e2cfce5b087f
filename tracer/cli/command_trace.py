"""Runs a model once and shows every step or op of the run.

Without --image and --text: the model's own sample. `--set B=4` repeats the input four times. Another size than the
weights were made for (D, h, L, …) runs with seeded random weights.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tracer.cli import options as shared
from tracer.record import Trace


def arguments(parser: argparse.ArgumentParser) -> None:
    """NAME, the inputs, the sizes, the weights, and the view."""
    parser.add_argument("name", metavar="NAME", help="a model, as `models` lists them")
    parser.add_argument("--image", metavar="F", help="a photo")
    parser.add_argument("--text", metavar="T", help="a text")
    parser.add_argument(
        "--set", metavar="SYMBOL=INT", type=size, nargs="+", action="extend", default=[], help="a size, e.g. D=64 h=4"
    )
    parser.add_argument("--weights", metavar="F", help="a safetensors file with the model's weights")
    shared.view(parser)


def size(text: str) -> tuple[str, int]:
    """`"D=64"` as ("D", 64). ArgumentTypeError for anything else."""
    name, equals, value = text.partition("=")
    if not (name.isidentifier() and equals and shared.WHOLE.fullmatch(value) and int(value)):
        wanted = "expected SYMBOL=INT with a whole number from 1, such as D=64"
        raise argparse.ArgumentTypeError(f"{shared.quoted(text)} is not a size, {wanted}")
    return name, int(value)


def run(options: argparse.Namespace) -> int:
    """Traces the model and shows the trace."""
    shared.checked(options)
    names = [name for name, _ in options.set]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"--set {name}=… is given {names.count(name)} times, expected once")
    photo = _photo(options.image) if options.image is not None else None
    try:
        trace = _traced(options, photo)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "alloc" not in str(error):
            raise
        given = " ".join(f"{name}={value}" for name, value in options.set) or options.name
        raise ValueError(f"{given!r} needs more memory than there is, expected smaller sizes") from error
    shared.show(trace, options)
    return 0


def _traced(options: argparse.Namespace, photo) -> Trace:
    import tracer
    from tracer.models import spec_of

    decided = spec_of(options.name).runs  # by the input, not by the weights: B, T
    own = {name: value for name, value in options.set if name not in decided}
    model = tracer.load(options.name, weights=options.weights, **own)
    for kind in ("image", "text"):
        if getattr(options, kind) is not None and kind not in model.takes:
            given = f"--{kind} {getattr(options, kind)!r}"
            raise ValueError(f"{given}: {options.name!r} takes no {kind}, expected {' and '.join(model.takes)}")
    if own and options.weights is None and model.weights != _usual(options.name):
        given = ", ".join(f"{name}={value}" for name, value in own.items())
        print(f"{options.name} with {given}: {model.weights}", file=sys.stderr)
    return model.trace(image=photo, text=options.text, **{n: value for n, value in options.set if n in decided})


def _usual(name: str) -> str | None:
    from tracer import models

    return next((model["weights"] for model in models.describe() if model["name"] == name), None)


def _photo(path: str):
    from tracer.inputs.images import open_photo

    try:
        return open_photo(Path(path).read_bytes())
    except OSError as error:
        raise type(error)(f"can't read {path!r}: {error.strerror or error}") from error
    except ValueError as error:
        raise ValueError(f"{path!r}: {error}") from error
