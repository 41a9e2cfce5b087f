"""Download weights of libraries' models, so that a machine has them before the lesson.

Without names: the models that the app offers beside ours, their cost, and which of them are on this machine.
"""

from __future__ import annotations

import argparse
import signal
import sys


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add NAME …"""
    parser.add_argument("names", nargs="*", metavar="NAME", help="such as timm:deit_tiny_patch16_224")


def run(options: argparse.Namespace) -> int:
    """Print a line for each model."""
    from tracer.figures.labels import amount
    from tracer.figures.views.to_table import align
    from tracer.sources import offers

    if not options.names:
        rows = [
            {
                "name": one.name,
                "on this machine": "yes" if offers.here(one) else "no",
                "size": amount(one.size, "B"),
                "licence": one.licence,
                "what": f"{one.title}: {one.what}",
            }
            for one in offers.offers()
        ]
        print(align(rows) if rows else "(none: neither timm, transformers nor torchvision is installed)")
        return 0

    from tracer.sources.fetching import fetch

    signal.signal(signal.SIGTERM, _exit)
    for name in options.names:
        print(f"{name}: {fetch(name)}")
    return 0


def _exit(number: int, frame) -> None:
    """Exit as by an error, so that unfinished downloads are removed."""
    sys.exit(128 + number)
