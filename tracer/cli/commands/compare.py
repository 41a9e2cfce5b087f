"""Compare two runs, line by line: saved files, or models by their names, each run once.

It compares values, equations, shapes, attention and answers. --image and --text are for the models that are run,
--image-b, --text-b, --set-b and --change for B alone: `compare vit vit --change
block3.attention.weights="drop_heads(1)"` shows what that head does, and `compare hf:gpt2 hf:gpt2 --set-b
attention=eager` whether a fused kernel computes its formula. The exit status is 0 where all values that both runs kept
are equal up to rounding, 1 where they differ, 2 for bad input.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

import tracer
from tracer.cli import shared_options as shared
from tracer.cli.commands.trace import split_choices
from tracer.export import to_table
from tracer.record import Trace
from tracer.utils.errors import quote, shorten
from tracer.utils.text import scientific, shape_numbers

if TYPE_CHECKING:
    from tracer.comparison import Comparison, TensorRelation

MAX_ANSWERS = 5
"""Answers that are listed with their probabilities."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add A, B, the inputs, the change, --json."""
    for name in "ab":
        parser.add_argument(
            name, metavar=name.upper(), help=f"a saved run (*{shared.RUN_SUFFIX}), or the name of a model"
        )
    shared.inputs(parser)
    parser.add_argument("--image-b", metavar="F", help="a photo for B")
    parser.add_argument("--text-b", metavar="T", help="a text for B")
    shared.several(parser, "--set-b", "NAME=VALUE", "a size or a choice of B, e.g. attention=eager")
    shared.change(parser)
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON")


def run(options: argparse.Namespace) -> int:
    """Compare, print, and return 0 where the runs are equal up to rounding, else 1."""
    saved = [name for name in (options.a, options.b) if name.endswith(shared.RUN_SUFFIX)]
    for option in ("image", "text"):
        if (value := getattr(options, option)) is not None and len(saved) == 2:
            raise ValueError(f"--{option} {quote(value)}: both runs are saved ones, expected the name of a model")
    of_b = {"image-b": options.image_b, "text-b": options.text_b, "change": next(iter(options.change), None)}
    for option, value in (of_b | {"set-b": "=".join(next(iter(options.set_b), ())) or None}).items():
        if value is not None and options.b in saved:
            raise ValueError(f"--{option} {quote(value)}: {quote(options.b)} is a saved run, expected a model")
    inputs = shared.given_inputs(options)
    inputs_of_b: dict[str, str | None] = {}
    for kind, value in inputs.items():
        own = of_b[f"{kind}-b"]
        inputs_of_b |= {kind: value} if own is None else {f"{kind}-b": own}
    a = _trace(options.a, inputs)
    b = _trace(options.b, inputs_of_b, options.set_b, options.change)
    comparison = tracer.compare(a, b)
    if options.json:
        print(json.dumps(tree(comparison), indent=1, ensure_ascii=False, allow_nan=False))
    else:
        sys.stdout.write(text(comparison))
    return 0 if comparison.equal else 1


def _trace(
    name: str, inputs: Mapping[str, str | None], chosen: Sequence[tuple[str, str]] = (), change: Sequence[str] = ()
) -> Trace:
    """Open a saved run, or run a model by its name; `inputs` are those given, by option."""
    from tracer import changes, models, serialization, zoo

    if name.endswith(shared.RUN_SUFFIX):
        return serialization.open(name)
    sizes, input_sizes = split_choices(models.spec_of(name), chosen)
    model = tracer.load(name, **sizes)
    shared.check_takes(name, inputs, model.takes)
    arguments: dict[str, Any] = {
        option.removesuffix("-b"): value for option, value in inputs.items() if value is not None
    }
    if "image" in arguments:
        arguments["image"] = shared.photo(arguments["image"])
    if zoo.is_foreign(name) or (sizes and model.weights != models.origin(name)):
        print(f"{name}: {model.weights}", file=sys.stderr)
    return model.trace(**arguments, change=changes.parse_all(change), **input_sizes)


def tree(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as dictionaries and lists; an infinite number is the string "inf"."""
    answers = comparison.answers
    return {
        "a": comparison.a.model,
        "b": comparison.b.model,
        "equal": comparison.equal,
        "first": comparison.first and comparison.first.id,
        "counts": comparison.counts(),
        "rows": [{name: _plain(value) for name, value in row.items()} for row in comparison.records()],
        "output": _values(comparison.output),
        "attention": [{"part": row.part, "layer": row.layer, **_values(row.values)} for row in comparison.attention],
        "answers": answers
        and {"a": answers.a, "b": answers.b, "shares": [share._asdict() for share in answers.shares]},
    }


def _values(values: TensorRelation) -> dict[str, Any]:
    return {
        "values": str(values.relation),
        "difference": _plain(values.difference),
        "relative": _plain(values.relative),
        "note": values.note,
    }


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def text(comparison: Comparison) -> str:
    """Return the comparison as an aligned table below a summary."""
    return "\n".join([*_summary(comparison), "", to_table.align(_table(comparison))]).rstrip("\n") + "\n"


def _summary(comparison: Comparison) -> list[str]:
    """Return the outcome, the answers and the attention in a line each."""
    a, b, first = comparison.a, comparison.b, comparison.first
    counted = ", ".join(f"{count} {what}" for what, count in comparison.counts().items())
    lines = [
        f"a: {shorten(a.model)}{_changes(a)}",
        f"b: {shorten(b.model)}{_changes(b)}",
        f"lines: {counted or 'none'}",
        f"output: {_words(comparison.output)}",
    ]
    if first is not None:
        lines.append(f"first difference: {first.id}: {_words(first.values)}")
    else:
        lines.append("first difference: none" if comparison.equal else "first difference: in no line")
    if comparison.attention:
        phrases = [
            f"{f'{row.part} ' if row.part else ''}{row.layer}: {_number(row.values.difference, row.values)}"
            for row in comparison.attention
        ]
        lines.append(f"attention, max difference by layer: {', '.join(phrases)}")
    if answers := comparison.answers:
        lines.append(f"answer: {quote(answers.a)} / {quote(answers.b)}")
        for entry in answers.shares[:MAX_ANSWERS]:
            shares = " / ".join("–" if share is None else f"{share:.4f}" for share in (entry.a, entry.b))
            lines.append(f"  {quote(entry.name)}: {shares}")
    return lines


def _changes(trace: Trace) -> str:
    return f" with {', '.join(trace.changes)}" if trace.changes else ""


def _words(values: TensorRelation) -> str:
    """Describe the relation of values in words, with the difference and the note."""
    amount = "" if not values.difference else f", at most {scientific(values.difference)}"
    share = "" if not values.relative else f" ({scientific(values.relative)} of the largest value)"
    return f"{values.relation}{amount}{share}{f' ({values.note})' if values.note else ''}"


def _number(difference: float | None, values: TensorRelation) -> str:
    return str(values.relation) if difference is None else f"{difference:.2g}"


def _table(comparison: Comparison) -> list[dict[str, str]]:
    """Return the cells of a table, with the id and the shape of `b` where they differ."""
    table = []
    for row in comparison.rows:
        a, b = row.a, row.b
        shapes = list(dict.fromkeys(shape_numbers(step.shape) for step in (a, b) if step))
        ids = list(dict.fromkeys(step.id for step in (a, b) if step))
        table.append(
            {
                "": ">" if row is comparison.first else "≠" if row.differs else "",
                "line": " / ".join(ids),
                "values": str(row.values.relation),
                "difference": "" if row.values.difference is None else f"{row.values.difference:.1e}",
                "relative": "" if row.values.relative is None else f"{row.values.relative:.1e}",
                "equations": str(row.equations or f"only in {'b' if a is None else 'a'}"),
                "shapes": " / ".join(shapes),
                "note": row.values.note if not row.alone or row.beside else "",
            }
        )
    return table
