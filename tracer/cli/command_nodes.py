"""The nodes that equations are made of: their names, and what each is."""

from __future__ import annotations

import argparse


def arguments(parser: argparse.ArgumentParser) -> None:
    """None."""


def run(options: argparse.Namespace) -> int:
    """Prints one line per node."""
    from tracer import equations
    from tracer.figures.views.to_table import align

    told = {name: " ".join((node.__doc__ or "").split("\n\n")[0].split()) for name, node in equations.nodes().items()}
    print(align([{"name": name, "what": said} for name, said in told.items()]))
    return 0
