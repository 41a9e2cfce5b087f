"""Measure ratios, side by side in one run: tracing beside the plain forward, threads, memory; --app: the pages."""

from __future__ import annotations

import argparse
import json


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add --app, --json."""
    parser.add_argument("--app", action="store_true", help="what a visitor of the app waits for, in a real browser")
    parser.add_argument("--json", action="store_true", help="the figures as JSON")


def run(options: argparse.Namespace) -> int:
    """Measure and print; a missed target is reported, and is no failure."""
    from tracer.benchmarks import page_latency, tracing_overhead

    rows = (page_latency if options.app else tracing_overhead).bench()
    print(json.dumps(rows, indent=1) if options.json else tracing_overhead.text(rows))
    return 0
