"""Write the shapes of your own module into a copy of its source, solved from runs.

`FILE.py:factory` names a function that returns `(module, args)`; its arguments with whole numbers for defaults are the
symbols. With `--style comments`, each line that assigns or returns a tensor ends with its shape; with `--style
jaxtyping`, signatures get annotations. Nothing is ever written into the file itself.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tracer.cli import shared_options as shared
from tracer.utils.errors import quote


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add FILE:FACTORY, the style and the output."""
    parser.add_argument(
        "reference", metavar="FILE:FACTORY", help="your own module: a function that returns (module, args)"
    )
    parser.add_argument(
        "--style", choices=("comments", "jaxtyping"), default="comments", help="what is written (default: comments)"
    )
    parser.add_argument("--out", metavar="F", help="write to this file instead of standard output")


def run(options: argparse.Namespace) -> int:
    """Print or write the annotated source."""
    from tracer import annotations

    if options.out is not None:
        file, _ = annotations.source_of(options.reference)
        if Path(options.out).resolve() == file.resolve():
            raise ValueError(f"--out {quote(options.out)} is the file itself, expected another one")
    shared.write(annotations.annotate(options.reference, options.style), options.out)
    return 0
