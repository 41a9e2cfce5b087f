"""Makes the shipped weights of a model from nothing, or goes on from --out."""

from __future__ import annotations

import argparse


def arguments(parser: argparse.ArgumentParser) -> None:
    """NAME, --data, --out, --epochs, --seed."""
    parser.add_argument("name", metavar="NAME", help="a model with a recipe")
    parser.add_argument("--data", metavar="F", help="the folder or zip file with the training data")
    parser.add_argument("--out", metavar="F", help="the file of the weights (default: the shipped one)")
    parser.add_argument("--epochs", metavar="INT", type=whole(1), help="passes over the data (default: the recipe's)")
    parser.add_argument(
        "--seed", metavar="INT", type=whole(0), default=0, help="seed of everything random (default: 0)"
    )


def whole(least: int):
    """An argument type: a whole number from `least`."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and least <= int(text) < 1 << 31):
            raise argparse.ArgumentTypeError(f"{text!r} is not a number, expected a whole number from {least}")
        return int(text)

    return read


def run(options: argparse.Namespace) -> int:
    """Trains and prints the file of the weights."""
    from tracer.training import train

    print(train(options.name, data=options.data, out=options.out, epochs=options.epochs, seed=options.seed))
    return 0
