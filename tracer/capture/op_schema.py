"""Per-op facts of the recorder from PyTorch's schemas; op categories are in `tracer.ops`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import Tensor

from tracer.ops import CONCATENATIONS, LINEAR, MATMULS, RESHAPES, SOFTMAXES, is_layout, ops_with, schema
from tracer.utils.internals.torch_internals import HigherOrderOperator, function_schema, has_composite_kernel

VIEWS = RESHAPES | ops_with("alias", "copy")
"""Ops that keep the elements in order; `view` and `clone` + `_unsafe_view` are one reshape in two spellings."""

PRODUCTS = MATMULS
PROJECTIONS = MATMULS | LINEAR
"""Ops that make queries: their last axis is of features."""
ATTENTION = {
    **dict.fromkeys(LINEAR, "mixing"),
    **dict.fromkeys(MATMULS, "product"),
    **dict.fromkeys(SOFTMAXES | ops_with("log-softmax"), "softmax"),
    **dict.fromkeys(ops_with("score"), "elementwise"),
    **dict.fromkeys(ops_with("reduce"), "reduction"),
}
"""What part an op may have in attention that is written out; fused kernels go by their own names."""

UNDECLARED_WRITES = dict.fromkeys(("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"), (3, 4))
"""Argument positions that an op writes to although its schema does not say so: running mean and variance."""


class OpKind(NamedTuple):
    """Facts of one op from its schema: name, `plain` without the mark of one that writes, argument names, positions
    that it writes to, whether it only changes the layout, its part in attention, whether it takes lists of tensors,
    whether its other arguments say where axes go, the defaults of those whose arguments are recorded, the defaults of
    optional arguments by name, whether it takes functions, and whether it is one of PyTorch's own that writes to
    nothing and is never decomposed."""

    name: str
    plain: str
    arguments: tuple[str, ...]
    written: tuple[int, ...]
    layout: bool
    attention: str
    lists: bool
    func: object
    axis_arguments: bool = False
    defaults: tuple = ()
    optional: Mapping[str, Any] = MappingProxyType({})
    higher: bool = False
    whole: bool = False


_kinds: dict[int, OpKind] = {}
"""By the id of the `OpOverload`, whose hash is two calls deep and asked for at every op; an op that is held here keeps
its id."""


def kind(func) -> OpKind:
    """Read an `OpOverload`'s schema once; `aten.add.Tensor` is named `add`, foreign ops keep their namespace."""
    return _kinds.get(id(func)) or _read(func)


def _read(func) -> OpKind:
    if isinstance(func, HigherOrderOperator):
        facts = _kinds[id(func)] = OpKind(
            name := f"higher_order.{func.name()}", name, (), (), False, "", True, func, higher=True
        )
        return facts
    space, _, name = function_schema(func).name.partition("::")
    arguments = function_schema(func).arguments
    written = tuple(i for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write)
    written += UNDECLARED_WRITES.get(name, ())
    plain = name.rstrip("_")
    sized = space == "aten" and schema(plain).size_rule not in ("", "merge")
    layout = space == "aten" and is_layout(name)
    fused = name.startswith("_scaled_dot_product_") and "backward" not in name
    part = "fused" if fused else ATTENTION.get(plain, "")
    facts = _kinds[id(func)] = OpKind(
        name=name if space == "aten" else f"{space}.{name}",
        plain=plain if space == "aten" else f"{space}.{plain}",
        arguments=tuple(a.name for a in arguments),
        written=written,
        layout=layout,
        attention=part,
        lists=any("List[" in str(a.type) and "Tensor" in str(a.type) for a in arguments),
        func=func,
        defaults=tuple(a.default_value for a in arguments) if sized else (),
        axis_arguments=layout or part == "reduction" or (space == "aten" and plain in CONCATENATIONS),
        optional={a.name: a.default_value for a in arguments if a.has_default_value()},
        whole=space == "aten" and not written and not has_composite_kernel(func),
    )
    return facts


def settings(facts: OpKind, args: tuple, kwargs: dict) -> tuple:
    """Return all arguments of an op's call as plain data: None for tensors, tuples for lists."""
    values = [*args, *facts.defaults[len(args) :]]
    if kwargs:
        values = [kwargs.get(name, value) for name, value in zip(facts.arguments, values, strict=True)]
    return tuple(
        [None if isinstance(value, Tensor) else tuple(value) if isinstance(value, list) else value for value in values]
    )


def written_tensors(facts: OpKind, args: tuple, kwargs: dict) -> Iterator[Tensor]:
    """Yield the tensors among an op's arguments that it writes to."""
    for position in facts.written:
        value = args[position] if position < len(args) else kwargs.get(facts.arguments[position])
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from value


def tensors(values) -> list[Tensor]:
    """Return the tensors among an op's arguments, also in lists."""
    flat = []
    for value in values:
        if isinstance(value, Tensor):
            flat.append(value)
        elif isinstance(value, (list, tuple)):
            flat += tensors(value)
    return flat
