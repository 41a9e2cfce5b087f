"""Expression tree of one expert: products with its own weights, and the ops between them."""

from __future__ import annotations

from dataclasses import dataclass

from tracer.capture.composite_calls import Call


@dataclass(frozen=True)
class ExpertInput:
    """Token that is an expert's input."""


@dataclass(frozen=True)
class ExpertWeight:
    """An expert's slice of weight `number`, with its last two axes transposed if `transposed`."""

    number: int
    transposed: bool = False


@dataclass(frozen=True)
class ColumnSlice:
    """A slice of the last axis of `of`: `start`, `stop`, `step`."""

    of: object
    start: int
    stop: int
    step: int


@dataclass(frozen=True)
class Pointwise:
    """A pointwise call, with nodes of this tree among its arguments."""

    call: Call
    arguments: dict[str, object]


@dataclass(frozen=True)
class MatMul:
    """A node of this tree times a weight, with an optional bias."""

    left: object
    weight: ExpertWeight
    bias: ExpertWeight | None = None


def find_transposed(what) -> dict[int, bool]:
    """Return for each weight of an expert whether its last two axes are transposed."""
    match what:
        case MatMul(left, weight, bias):
            return find_transposed(left) | {weight.number: weight.transposed} | (find_transposed(bias) if bias else {})
        case ColumnSlice(inner):
            return find_transposed(inner)
        case Pointwise(_, arguments):
            return {
                number: transposed
                for argument in arguments.values()
                for number, transposed in find_transposed(argument).items()
            }
    return {}


def same_structure(a, b) -> bool:
    """Return whether two experts have the same structure, each with its own tensors."""
    match a, b:
        case (Pointwise(call, arguments), Pointwise(name_of, others)):
            same = call.name == name_of.name and arguments.keys() == others.keys()
            return same and all(same_structure(arguments[name], others[name]) for name in arguments)
        case (MatMul(left, weight, bias), MatMul(other_left, other_weight, other_bias)):
            return (weight, bias) == (other_weight, other_bias) and same_structure(left, other_left)
        case (ColumnSlice(), ColumnSlice()):
            ranges = [(columns.start, columns.stop, columns.step) for columns in (a, b)]
            return ranges[0] == ranges[1] and same_structure(a.of, b.of)
    return a == b
