"""Prove what is shown, model by model: shapes, equations, attention, cost, and that tracing changes nothing.

The exit status is 1 if any check fails. --mutate puts small mistakes into copies of the program, one at a time, and
reports which check caught each; the exit status is 1 if a listed one survived, or more than a twentieth of those drawn.
--zoo derives and verifies the textbooks of many small models with random weights. --zoo --sizes derives them at several
sizes of the input, and reports the lines that do not read the same at all of them. --names builds and traces every name
of the libraries, and reports how many opened, why the rest did not, and what looks like a mistake in their code; the
exit status is 1 if fewer than 95 % of a library's did, or if one has a finding that nobody acknowledged.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from tracer import models, zoo
from tracer.cli import shared_options as shared
from tracer.utils.lazy_import import lazy_import

if TYPE_CHECKING:
    from tracer import verify
    from tracer.verify import surveys
else:  # imported when first used
    verify = lazy_import("tracer.verify")
    surveys = lazy_import("tracer.verify.surveys")

MIN_OPEN_SHARE = 0.95
"""Share of a library's names that have to open."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add NAMEs, --json, --mutate and --seed."""
    parser.add_argument("names", metavar="NAME", nargs="*", help="models (default: all, also of installed libraries)")
    parser.add_argument("--json", action="store_true", help="print a list of reports as JSON")
    parser.add_argument(
        "--mutate",
        action="store_true",
        help="try mutants (deliberate mistakes) instead; each NAME is a mutant, a file or FILE:LINE",
    )
    parser.add_argument(
        "--names",
        dest="libraries",
        metavar="LIBRARY",
        nargs="*",
        help="open all names of these libraries: hf, timm, torchvision",
    )
    parser.add_argument("--zoo", action="store_true", help="derive the textbooks of many models (or of NAMEs)")
    parser.add_argument("--sizes", action="store_true", help="with --zoo: compare the textbooks at several sizes")
    parser.add_argument(
        "--sample", type=shared.whole(1), metavar="N", help="with --names: draw N names from each library"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="the seed for mutants drawn besides the listed ones (default: 0)"
    )


def run(options: argparse.Namespace) -> int:
    """Verify the models and print the reports."""
    if options.mutate:
        return _verify_mutations(options)
    if options.libraries is not None:
        return _verify_names(options)
    if options.zoo:
        return _zoo(options)
    reports = [verify.verify(name) for name in options.names or (*models.names(), *zoo.examples())]
    print(json.dumps(reports, indent=1) if options.json else verify.text(reports))
    return 1 if any(verify.failures(report) for report in reports) else 0


def _verify_names(options: argparse.Namespace) -> int:
    """Open names and print the results: those that did not open as they come, then the figures."""
    everything, enough, reports = [], True, {}
    for library in options.libraries or [name for name in zoo.libraries() if zoo.available(name)]:
        names = surveys.sample(surveys.list_names(library), options.sample, options.seed)
        outcomes = []
        for outcome in surveys.survey(names):
            outcomes.append(outcome)
            if outcome.reason and not options.json:
                print(f"{outcome.name}: {outcome.reason}", flush=True)
        everything += ["", *surveys.names_summary(library, outcomes)]
        reports[library] = [outcome._asdict() for outcome in outcomes]
        opened, models = sum(not outcome.reason for outcome in outcomes), sum(outcome.model for outcome in outcomes)
        enough = enough and opened >= MIN_OPEN_SHARE * models and not any(outcome.findings for outcome in outcomes)
    print(json.dumps(reports, indent=1) if options.json else "\n".join(everything))
    return 0 if enough else 1


def _zoo(options: argparse.Namespace) -> int:
    """Derive textbooks and print the result of each, as they end."""
    outcomes: list = []
    ways = (surveys.compare, surveys.report_line, surveys.summary)
    derive, line, summarize = ways if options.sizes else (surveys.book, surveys.line, surveys.zoo_summary)
    outcome: Any
    for outcome in map(derive, options.names or surveys.NAMES):
        outcomes.append(outcome)
        if not options.json:
            print(line(outcome), flush=True)
    return _print_outcomes(options, [outcome._asdict() for outcome in outcomes], summarize(outcomes))


def _print_outcomes(options: argparse.Namespace, outcomes: list[dict], summary: tuple[list[str], bool]) -> int:
    """Print all outcomes as JSON, or the summary below those that were printed; return the exit status."""
    lines, enough = summary
    print(json.dumps(outcomes, indent=1) if options.json else "\n".join(["", *lines]))
    return 0 if enough else 1


def _verify_mutations(options: argparse.Namespace) -> int:
    """Try mutants and print the check that caught each, as they end."""
    shared.add_checkout("--mutate", "mutation")
    from tests.mutation import report  # below the folder that was added above

    outcomes = []
    for kind, trial in report.run_trials(options.names, seed=options.seed):
        outcomes.append((kind, trial))
        if not options.json:
            print(report.format_trial(trial), flush=True)
    plain = [report.trial_as_json(*outcome) for outcome in outcomes]
    return _print_outcomes(options, plain, report.summarize(outcomes))
