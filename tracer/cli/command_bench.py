"""Measures ratios, side by side in one run: tracing beside the plain forward, threads, memory."""

from __future__ import annotations

import argparse
import json


def arguments(parser: argparse.ArgumentParser) -> None:
    """--json."""
    parser.add_argument("--json", action="store_true", help="the figures as JSON")


def run(options: argparse.Namespace) -> int:
    """Measures and prints; a missed target is said, and is no failure."""
    from tracer.verify.bench import bench, text

    rows = bench()
    print(json.dumps(rows, indent=1) if options.json else text(rows))
    return 0
