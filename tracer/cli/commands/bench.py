"""Measure ratios, side by side in one run: tracing beside the plain forward, threads, memory; --app: the pages."""

from __future__ import annotations

import argparse
import json

from tracer.cli import shared_options as shared


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add --app, --json."""
    parser.add_argument(
        "--app", action="store_true", help="measure what a visitor of the app waits for, in a real browser"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def run(options: argparse.Namespace) -> int:
    """Measure and print; a missed target is reported, and is not a failure."""
    from tracer import benchmarks

    rows = _measure_pages() if options.app else benchmarks.bench()
    print(json.dumps(rows, indent=1) if options.json else benchmarks.text(rows))
    return 0


def _measure_pages() -> list[dict]:
    """Return the waiting times of a visitor, as the tests of a checkout measure them."""
    shared.add_checkout("--app", "benchmarks")
    from tests.benchmarks import page_latency  # below the folder that was added above

    return page_latency.bench()
