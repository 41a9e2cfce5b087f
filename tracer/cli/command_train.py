"""Makes the shipped weights of a model from nothing, or goes on from --out."""

from __future__ import annotations

import argparse

from tracer.cli.options import whole


def arguments(parser: argparse.ArgumentParser) -> None:
    """NAME, --data, --out, --epochs, --seed."""
    parser.add_argument("name", metavar="NAME", help="a model with a recipe")
    parser.add_argument("--data", metavar="F", help="the folder or zip file with the training data")
    parser.add_argument("--out", metavar="F", help="the file of the weights (default: the shipped one)")
    parser.add_argument("--epochs", metavar="INT", type=whole(1), help="passes over the data (default: the recipe's)")
    parser.add_argument(
        "--seed", metavar="INT", type=whole(0), default=0, help="seed of everything random (default: 0)"
    )


def run(options: argparse.Namespace) -> int:
    """Trains and prints the file of the weights."""
    from tracer.models.training import train

    print(train(options.name, data=options.data, out=options.out, epochs=options.epochs, seed=options.seed))
    return 0
