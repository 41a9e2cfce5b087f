"""List the nodes that equations are built from: their names and meanings."""

from __future__ import annotations

import argparse

from tracer.export.to_table import align


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing."""


def run(options: argparse.Namespace) -> int:
    """Print one line per node."""
    from tracer import expr

    summaries = {name: " ".join((node.__doc__ or "").split("\n\n")[0].split()) for name, node in expr.nodes().items()}
    print(align([{"name": name, "what": summary} for name, summary in summaries.items()]))
    return 0
