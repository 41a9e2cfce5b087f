"""Train the shipped weights of a model from scratch, or continue from --out."""

from __future__ import annotations

import argparse

from tracer.cli.shared_options import pair, whole


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add NAME, --data, --out, --epochs, --seed, --set."""
    parser.add_argument("name", metavar="NAME", help="a model with a recipe")
    parser.add_argument("--data", metavar="F", help="the folder or zip file with the training data")
    parser.add_argument("--out", metavar="F", help="the file of the weights (default: the shipped one)")
    parser.add_argument("--epochs", metavar="INT", type=whole(1), help="passes over the data (default: the recipe's)")
    parser.add_argument(
        "--seed", metavar="INT", type=whole(0), default=0, help="seed of everything random (default: 0)"
    )
    parser.add_argument(
        "--set", metavar="NAME=VALUE", type=pair, nargs="+", action="extend", default=[],
        help="a size or an option of the model, e.g. h=1 or positions=relative: makes weights beside the shipped ones",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Train and print the file of the weights."""
    from tracer.models.training import recipe, train

    trained, changed = recipe(options.name), dict(options.set)
    sizes = {name: whole(1)(changed.pop(name)) for name in trained.sizes if name in changed}
    settings = {"sizes": {**trained.sizes, **sizes}, **changed} if sizes else changed
    print(train(options.name, data=options.data, out=options.out, epochs=options.epochs, seed=options.seed, **settings))
    return 0
