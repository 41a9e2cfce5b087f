"""List the models: names, descriptions, sources of weights."""

from __future__ import annotations

import argparse


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing."""


def run(options: argparse.Namespace) -> int:
    """Print one line per model."""
    from tracer import models
    from tracer.export.to_table import align
    from tracer.utils.note_titles import with_titles

    print(
        align(
            [{"name": m["name"], "weights": m["weights"], "what": with_titles(m["summary"])} for m in models.describe()]
        )
    )
    return 0
