"""Proves the promise model by model: shapes, equations, attention, cost, and that tracing changes nothing.

Exit status 1 if any proof fails. With --mutate: puts small mistakes into copies of the program, one at a time, and says
which check caught each; exit status 1 if one that is listed survived, or more than a tenth of those that are drawn.
"""

from __future__ import annotations

import argparse
import json


def arguments(parser: argparse.ArgumentParser) -> None:
    """NAMEs, --json, --mutate and --seed."""
    parser.add_argument("names", metavar="NAME", nargs="*", help="models (default: all, also of installed libraries)")
    parser.add_argument("--json", action="store_true", help="a list of reports as JSON")
    parser.add_argument(
        "--mutate", action="store_true", help="try mistakes instead; NAMEs are those of mistakes, files or FILE:LINE"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="which mistakes are drawn besides the listed ones (default: 0)"
    )


def run(options: argparse.Namespace) -> int:
    """Verifies the models and prints the reports."""
    if options.mutate:
        return _mutated(options)
    from tracer import models, sources
    from tracer.verify import failures, text, verify

    reports = [verify(name) for name in options.names or (*models.names(), *sources.examples())]
    print(json.dumps(reports, indent=1) if options.json else text(reports))
    return 1 if any(failures(report) for report in reports) else 0


def _mutated(options: argparse.Namespace) -> int:
    """Tries mistakes and prints what caught each, as they end."""
    from tracer.mistakes import report

    found = []
    for kind, trial in report.trials(options.names, seed=options.seed):
        found.append((kind, trial))
        if not options.json:
            print(report.line(trial), flush=True)
    said, enough = report.summary(found)
    print(json.dumps([report.plain(*one) for one in found], indent=1) if options.json else "\n".join(["", *said]))
    return 0 if enough else 1
