"""Ops that take functions, such as `flex_attention` and its `score_mod`: their eager implementation in other ops."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from tracer.utils.internals.torch_internals import HigherOrderOperator, eager_kernel


@lru_cache(maxsize=256)
def written_out(func) -> Callable | None:
    """Return the eager code of `flex_attention`: the scores, the caller's function on them, a softmax, a product. None
    for any other op."""
    if not isinstance(func, HigherOrderOperator) or func.name() != "flex_attention":
        return None
    return eager_kernel(func)
