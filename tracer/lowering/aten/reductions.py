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
from tracer.lowering.aten import of
from tracer.lowering.call_arguments import Given

PLAIN = {
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


def reduced(given: Given) -> dict:
    """Return the reduced axes, and whether they stay with size 1."""
    return given.named("self", given.axes("self", given.get("dim"))) | {"keep": bool(given.get("keepdim", False))}


def _registered(name: str, node: type[Node]) -> None:
    of(name)(lambda given: node(given["self"], **reduced(given)))


for _name, _node in PLAIN.items():
    _registered(_name, _node)


def _extreme(name: str, two: type[Node], many: type[Node], place: type[Node]) -> None:
    @of(name)
    def extreme(given: Given) -> Node:
        if "other" in given.arguments:
            return two(given["self"], given["other"])
        return (place if given.position else many)(given["self"], **reduced(given))


_extreme("max", Maximum, Max, ArgMax)
_extreme("min", Minimum, Min, ArgMin)


@of("var", "std", "var_mean", "std_mean")
def variance(given: Given) -> Node:
    less = given.get("correction")
    if less is None:
        less = int(given.get("unbiased", True))
    if given.position:
        return Mean(given["self"], **reduced(given))
    node = Std if "std" in given.func._schema.name else Variance
    return node(given["self"], less=less, **reduced(given))


@of("norm", "linalg_vector_norm", "frobenius_norm", "linalg_norm")
def length(given: Given) -> Node | None:
    p = given.get("p", given.get("ord"))
    p = 2 if p is None else p
    axes = reduced(given)
    if isinstance(p, str) or p == -float("inf"):
        return None
    if given.func._schema.name == "aten::linalg_norm" and given.get("ord") is not None and len(axes["axes"]) > 1:
        return None
    last = axes["axes"] == (given.rank("self") - 1,)
    usual = p == 2 and last and axes["keep"]
    return Norm(given["self"], p=int(p) if p == _as_int(p) else p, usual=usual, **axes)


def _as_int(p: float) -> int | None:
    return int(p) if p != float("inf") else None


def _along(given: Given) -> dict:
    rank = given.rank("self")
    return given.named("self", (given["dim"] % rank,)) if rank else {}


@of("cumsum")
def cumsum(given: Given) -> Node:
    return CumSum(given["self"], **_along(given))


@of("cumprod")
def cumprod(given: Given) -> Node:
    return CumProd(given["self"], **_along(given))


def _last_unsaid(given: Given) -> dict:
    rank = given.rank("self")
    axis = given["dim"] % rank if rank else 0
    return {} if axis == rank - 1 or not rank else given.named("self", (axis,))


@of("topk")
def topk(given: Given) -> Node | None:
    """Lower a sorted top-k; the order of an unsorted one is the kernel's own."""
    if not given["sorted"]:
        return None
    k = given.result[given["dim"] % given.rank("self")]
    if not k.free_symbols:
        given.get("k")  # for the remark on one that moves
    node = ArgTopK if given.position else TopK
    return node(given["self"], k=k, down=given["largest"], **_last_unsaid(given))


@of("sort")
def sort(given: Given) -> Node | None:
    """Lower a sort; its indices only if it is stable, since the order of equal elements is the kernel's own
    otherwise."""
    if given.position and not given.get("stable"):
        return None
    node = ArgSort if given.position else Sort
    return node(given["self"], down=given["descending"], **_last_unsaid(given))


@of("argsort")
def argsort(given: Given) -> Node | None:
    if not given.get("stable"):
        return None
    return ArgSort(given["self"], down=given["descending"], **_last_unsaid(given))


@of("one_hot")
def one_hot(given: Given) -> Node:
    return OneHot(given["self"], classes=given.result[-1])
