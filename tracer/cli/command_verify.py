"""Proves the promise model by model: shapes, equations, attention, cost, and that tracing changes nothing.

Exit status 1 if any proof fails.
"""

from __future__ import annotations

import argparse
import json


def arguments(parser: argparse.ArgumentParser) -> None:
    """NAMEs and --json."""
    parser.add_argument("names", metavar="NAME", nargs="*", help="models (default: all, also of installed libraries)")
    parser.add_argument("--json", action="store_true", help="a list of reports as JSON")


def run(options: argparse.Namespace) -> int:
    """Verifies the models and prints the reports."""
    from tracer import models, sources
    from tracer.verify import failures, text, verify

    reports = [verify(name) for name in options.names or (*models.names(), *sources.examples())]
    print(json.dumps(reports, indent=1) if options.json else text(reports))
    return 1 if any(failures(report) for report in reports) else 0
