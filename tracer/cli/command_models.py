"""The models: names, what they are, where their weights come from."""

from __future__ import annotations

import argparse


def arguments(parser: argparse.ArgumentParser) -> None:
    """None."""


def run(options: argparse.Namespace) -> int:
    """Prints one line per model."""
    from tracer import models
    from tracer.common.notes import spelled
    from tracer.figures.views.to_table import align

    print(
        align([{"name": m["name"], "weights": m["weights"], "what": spelled(m["summary"])} for m in models.describe()])
    )
    return 0
