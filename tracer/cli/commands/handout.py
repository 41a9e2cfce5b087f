"""Write a run as one HTML file that prints well: photo, answer, attention maps, equations, shapes and verdicts.

NAME is a model, as `models` lists them, or a saved run (.safetensors). Without --image and --text, the model runs on
its own sample.
"""

from __future__ import annotations

import argparse
import sys

import tracer
from tracer.cli import shared_options as shared
from tracer.record import Trace
from tracer.utils import files
from tracer.utils.errors import quote


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add NAME, the inputs, and the output."""
    parser.add_argument("name", metavar="NAME", help="a model, or a saved run (.safetensors)")
    shared.inputs(parser)
    parser.add_argument("--out", metavar="F", help="write to this file (default: standard output)")


def run(options: argparse.Namespace) -> int:
    """Run the model, or open the saved run, and write the handout."""
    trace = load_run(options)
    from tracer.figures import handout  # here, so that --help answers at once

    page = handout.render(trace)
    if options.out is None:
        sys.stdout.write(page)
    else:
        files.write(options.out, page.encode())
    return 0


def load_run(options: argparse.Namespace) -> Trace:
    """Return the saved run of that name, or a run of the model, its lines checked on other runs."""
    return _open(options) if options.name.endswith(shared.RUN_SUFFIX) else _trace(options)


def _open(options: argparse.Namespace) -> Trace:
    from tracer import serialization

    input_option = next((kind for kind in ("image", "text") if getattr(options, kind) is not None), None)
    if input_option:
        raise ValueError(
            f"--{input_option} with {quote(options.name)}: a saved run has its input, expected the file alone"
        )
    return serialization.open(options.name)


def _trace(options: argparse.Namespace) -> Trace:
    from tracer.tracing import counterfactual

    photo = shared.photo(options.image)
    model = tracer.load(options.name)
    shared.check_takes(options, model.takes)
    return counterfactual.check(model.trace(image=photo, text=options.text))
