"""Lowerings of reductions, cumulative sums and sorting."""

from __future__ import annotations

from tracer.expr import (
    AllOf,
    AnyOf,
    ArgMax,
    ArgMin,
    ArgSort,
    ArgTopK,
    CountNonzero,
    CumProd,
    CumSum,
    LogSumExp,
    Max,
    Maximum,
    Mean,
    Min,
    Minimum,
    Node,
    Norm,
    OneHot,
    Prod,
    Sort,
    Std,
    Sum,
    TopK,
    Variance,
)
from tracer.lowering.aten import register_lowering
from tracer.lowering.call_arguments import BoundCall

REDUCTION_NODES = {
    "mean": Mean,
    "sum": Sum,
    "prod": Prod,
    "amax": Max,
    "amin": Min,
    "logsumexp": LogSumExp,
    "special_logsumexp": LogSumExp,
    "argmax": ArgMax,
    "argmin": ArgMin,
    "any": AnyOf,
    "all": AllOf,
    "_is_any_true": AnyOf,
    "_is_all_true": AllOf,
    "count_nonzero": CountNonzero,
}


def reduced_axes(call: BoundCall) -> dict:
    """Return the reduced axes, and whether they stay with size 1."""
    return call.axis_labels("self", call.axes("self", call.get("dim"))) | {"keep": bool(call.get("keepdim", False))}


def _register(name: str, node: type[Node]) -> None:
    register_lowering(name)(lambda call: node(call["self"], **reduced_axes(call)))


for _name, _node in REDUCTION_NODES.items():
    _register(_name, _node)


def _extreme(name: str, two: type[Node], many: type[Node], place: type[Node]) -> None:
    @register_lowering(name)
    def extreme(call: BoundCall) -> Node:
        if "other" in call.arguments:
            return two(call["self"], call["other"])
        return (place if call.position else many)(call["self"], **reduced_axes(call))


_extreme("max", Maximum, Max, ArgMax)
_extreme("min", Minimum, Min, ArgMin)


@register_lowering("var", "std", "var_mean", "std_mean")
def variance(call: BoundCall) -> Node:
    less = call.get("correction")
    if less is None:
        less = int(call.get("unbiased", True))
    if call.position:
        return Mean(call["self"], **reduced_axes(call))
    node = Std if "std" in call.op_name else Variance
    return node(call["self"], less=less, **reduced_axes(call))


@register_lowering("norm", "linalg_vector_norm", "frobenius_norm", "linalg_norm")
def length(call: BoundCall) -> Node | None:
    p = call.get("p", call.get("ord"))
    p = 2 if p is None else p
    axes = reduced_axes(call)
    if isinstance(p, str) or p == -float("inf"):
        return None
    if call.op_name == "aten::linalg_norm" and call.get("ord") is not None and len(axes["axes"]) > 1:
        return None
    last = axes["axes"] == (call.rank("self") - 1,)
    usual = p == 2 and last and axes["keep"]
    return Norm(call["self"], p=int(p) if p == _as_int(p) else p, usual=usual, **axes)


def _as_int(p: float) -> int | None:
    return int(p) if p != float("inf") else None


def _along(call: BoundCall) -> dict:
    rank = call.rank("self")
    return call.axis_labels("self", (call["dim"] % rank,)) if rank else {}


@register_lowering("cumsum")
def cumsum(call: BoundCall) -> Node:
    return CumSum(call["self"], **_along(call))


@register_lowering("cumprod")
def cumprod(call: BoundCall) -> Node:
    return CumProd(call["self"], **_along(call))


@register_lowering("topk")
def topk(call: BoundCall) -> Node | None:
    """Lower a sorted top-k; the order of an unsorted one is the kernel's own."""
    if not call["sorted"]:
        return None
    k = call.result[call["dim"] % call.rank("self")]
    if not k.free_symbols:
        call.get("k")  # for the remark on one that moves
    node = ArgTopK if call.position else TopK
    return node(call["self"], k=k, down=call["largest"], **call.unless_last())


@register_lowering("sort")
def sort(call: BoundCall) -> Node | None:
    """Lower a sort; its indices only if it is stable, since the order of equal elements is the kernel's own
    otherwise."""
    if call.position and not call.get("stable"):
        return None
    node = ArgSort if call.position else Sort
    return node(call["self"], down=call["descending"], **call.unless_last())


@register_lowering("argsort")
def argsort(call: BoundCall) -> Node | None:
    if not call.get("stable"):
        return None
    return ArgSort(call["self"], down=call["descending"], **call.unless_last())


@register_lowering("one_hot")
def one_hot(call: BoundCall) -> Node:
    return OneHot(call["self"], classes=call.result[-1])
