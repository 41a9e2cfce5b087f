"""List the models: names, descriptions, sources of weights."""

from __future__ import annotations

import argparse

from tracer import models
from tracer.export.rows import with_titles
from tracer.export.to_table import align


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing."""


def run(options: argparse.Namespace) -> int:
    """Print one line per model."""
    print(
        align(
            [{"name": m["name"], "weights": m["weights"], "what": with_titles(m["summary"])} for m in models.describe()]
        )
    )
    return 0
