"""Train the shipped weights of a model from scratch, continue from --out, or convert them --from a file."""

from __future__ import annotations

import argparse
from typing import Any

from tracer.cli.shared_options import several, whole
from tracer.utils.errors import quote

KINDS = {int: "a whole number", float: "a number", bool: "True or False"}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add NAME, --from, --data, --out, --epochs, --seed, --set."""
    parser.add_argument("name", metavar="NAME", help="a model with a recipe")
    parser.add_argument(
        "--from", dest="source", metavar="F", help="the file to convert, for weights that others trained"
    )
    parser.add_argument("--data", metavar="F", help="the folder or zip file with the training data")
    parser.add_argument("--out", metavar="F", help="the file of the weights (default: the shipped one)")
    parser.add_argument("--epochs", metavar="INT", type=whole(1), help="passes over the data (default: the recipe's)")
    parser.add_argument(
        "--seed", metavar="INT", type=whole(0), default=0, help="seed of everything random (default: 0)"
    )
    help = "a size, an option of the model or a setting of the recipe, e.g. h=1, positions=relative or batch=64"
    several(parser, "--set", "NAME=VALUE", help)


def run(options: argparse.Namespace) -> int:
    """Train and print the file of the weights."""
    from tracer.models.training import convert, recipe, train

    if options.source:
        print(convert(options.name, options.source, options.out))
        return 0

    trained, changed = recipe(options.name), dict(options.set)
    sizes = {name: whole(1)(changed.pop(name)) for name in trained.sizes if name in changed}
    settings = {name: _read(name, text, getattr(trained, name, "")) for name, text in changed.items()}
    settings |= {"sizes": {**trained.sizes, **sizes}} if sizes else {}
    print(train(options.name, data=options.data, out=options.out, epochs=options.epochs, seed=options.seed, **settings))
    return 0


def _read(name: str, text: str, default: Any) -> Any:
    """Return the value of a setting, of the kind of its default. Raise ValueError for another text."""
    kind = type(default)
    try:
        return {"True": True, "False": False}[text] if kind is bool else kind(text) if kind in KINDS else text
    except (KeyError, ValueError):
        raise ValueError(f"{name}={quote(text)}: expected {KINDS[kind]}, such as {name}={default}") from None
