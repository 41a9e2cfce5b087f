"""Write a run as one HTML file that prints well: photo, answer, attention maps, equations, shapes and verdicts.

NAME is a model, as `models` lists them, or a saved run (.safetensors). Without --image and --text, the model runs on
its own sample.
"""

from __future__ import annotations

import argparse

import tracer
from tracer.cli import shared_options as shared
from tracer.export import letters
from tracer.record import Trace
from tracer.utils.errors import quote


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add NAME, the inputs, and the output."""
    shared.run_and_file(parser)


def run(options: argparse.Namespace) -> int:
    """Run the model, or open the saved run, and write the handout."""
    letters.check_text(options.letters)
    trace = load_run(options)
    from tracer.figures import handout  # here, so that --help answers at once

    shared.write(handout.render(trace, options.letters), options.out)
    return 0


def load_run(options: argparse.Namespace) -> Trace:
    """Return the saved run of that name, or a run of the model, its lines checked on other runs."""
    from tracer import serialization

    inputs = shared.given_inputs(options)
    if options.name.endswith(shared.RUN_SUFFIX):
        if given := next((option for option, value in inputs.items() if value is not None), None):
            raise ValueError(
                f"--{given} with {quote(options.name)}: a saved run has its input, expected the file alone"
            )
        return serialization.open(options.name)
    from tracer.tracing import counterfactual  # loads more than a saved run needs

    photo = shared.photo(options.image)
    model = tracer.load(options.name)
    shared.check_takes(options.name, inputs, model.takes)
    return counterfactual.check(model.trace(image=photo, text=options.text))
