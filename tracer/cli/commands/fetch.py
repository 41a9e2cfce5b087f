"""Download weights of libraries' models, so that a machine has them before the lesson.

Without names, it lists the models that the app offers beside ours, their cost, and which of them are on this machine.
"""

from __future__ import annotations

import argparse
import signal
import sys

from tracer.export.to_table import align
from tracer.utils.text import amount
from tracer.zoo import recommendations


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add NAME …"""
    parser.add_argument("names", nargs="*", metavar="NAME", help="such as timm:deit_tiny_patch16_224")


def run(options: argparse.Namespace) -> int:
    """Print a line for each model."""
    if not options.names:
        rows = [
            {
                "name": offer.name,
                "on this machine": "yes" if recommendations.is_downloaded(offer) else "no",
                "size": amount(offer.size, "B"),
                "licence": offer.licence,
                "what": f"{offer.title}: {offer.what}",
            }
            for offer in recommendations.offers()
        ]
        print(align(rows) if rows else "(none: neither timm, transformers nor torchvision is installed)")
        return 0

    from tracer.zoo.downloads import fetch

    signal.signal(signal.SIGTERM, _exit)
    for name in options.names:
        print(f"{name}: {fetch(name)}")
    return 0


def _exit(number: int, frame) -> None:
    """Exit as after an error, so that unfinished downloads are removed."""
    sys.exit(128 + number)
