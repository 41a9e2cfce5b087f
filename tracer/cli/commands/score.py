"""Measure the figures on a model's card again."""

from __future__ import annotations

import argparse
import json

from tracer.export.to_table import align


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add NAME, --data, --weights, --json."""
    parser.add_argument("name", metavar="NAME", help="a model with a recipe")
    parser.add_argument("--data", metavar="F", help="the folder or zip file with the test data")
    parser.add_argument("--weights", metavar="F", help="the file of the weights (default: the shipped one)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def run(options: argparse.Namespace) -> int:
    """Score and print the figures, one per line."""
    from tracer.models.training import score

    figures = score(options.name, data=options.data, weights=options.weights)
    if options.json:
        print(json.dumps(figures))
    else:
        print(
            align(
                [
                    {"figure": name, "value": f"{value:.6g}" if isinstance(value, float) else str(value)}
                    for name, value in figures.items()
                ]
            )
        )
    return 0
