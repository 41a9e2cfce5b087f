"""Expression tree of one expert: products with its own weights, and the ops between them."""

from __future__ import annotations

from dataclasses import dataclass

from tracer.capture.composite_calls import Call


@dataclass(frozen=True)
class Token:
    """The token that is an expert's input."""


@dataclass(frozen=True)
class Part:
    """An expert's slice of weight `number`, with its last two axes transposed if `turned`."""

    number: int
    turned: bool = False


@dataclass(frozen=True)
class Columns:
    """A slice of the last axis of `of`: `start`, `stop`, `step`."""

    of: object
    start: int
    stop: int
    step: int


@dataclass(frozen=True)
class Applied:
    """A pointwise call, with nodes of this tree among its arguments."""

    call: Call
    arguments: dict[str, object]


@dataclass(frozen=True)
class Product:
    """A node of this tree times a weight, with an optional bias."""

    left: object
    weight: Part
    bias: Part | None = None


def turns(what) -> dict[int, bool]:
    """Return for each weight of an expert whether its last two axes are transposed."""
    match what:
        case Product(left, weight, bias):
            return turns(left) | {weight.number: weight.turned} | (turns(bias) if bias else {})
        case Columns(inner):
            return turns(inner)
        case Applied(_, arguments):
            return {number: turned for one in arguments.values() for number, turned in turns(one).items()}
    return {}


def alike(one, other) -> bool:
    """Return whether two experts have the same structure, each with its own tensors."""
    match one, other:
        case (Applied(call, given), Applied(name_of, others)):
            same = call.name == name_of.name and given.keys() == others.keys()
            return same and all(alike(given[name], others[name]) for name in given)
        case (Product(left, weight, bias), Product(other_left, other_weight, other_bias)):
            return (weight, bias) == (other_weight, other_bias) and alike(left, other_left)
        case (Columns(), Columns()):
            ranges = [(columns.start, columns.stop, columns.step) for columns in (one, other)]
            return ranges[0] == ranges[1] and alike(one.of, other.of)
    return one == other
