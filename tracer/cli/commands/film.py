"""Write a run as a film: one HTML file that plays in any browser, without a server.

NAME is a model, as `models` lists them, or a saved run (.safetensors). Without --image and --text, the model runs on
its own sample.
"""

from __future__ import annotations

import argparse

from tracer.cli import shared_options as shared
from tracer.cli.commands.handout import load_run
from tracer.export import letters
from tracer.utils.errors import quote


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add NAME, the inputs, and the output."""
    shared.run_and_file(parser, ".html file")


def run(options: argparse.Namespace) -> int:
    """Run the model, or open the saved run, and write its film."""
    if options.out is not None and not options.out.lower().endswith((".html", ".htm")):
        raise ValueError(f"--out {quote(options.out)}: a film is a web page, expected a name that ends in .html")
    letters.check_text(options.letters)
    shared.write(load_run(options).film(options.letters).html, options.out)
    return 0
