"""Show a trace that `trace … --out x.safetensors` saved; needs no model."""

from __future__ import annotations

import argparse

from tracer.cli import shared_options as shared


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add FILE and the view."""
    parser.add_argument("file", metavar="FILE", help="a saved trace")
    shared.view(parser)


def run(options: argparse.Namespace) -> int:
    """Open the file and show the trace."""
    shared.check_view(options)
    from tracer import serialization

    shared.show(serialization.open(options.file), options)
    return 0
