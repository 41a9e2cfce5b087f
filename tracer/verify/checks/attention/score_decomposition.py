"""Four terms of the first block's scores, content and position against each other, from the parameters in NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

import numpy as np

from tracer.attention.score_decomposition import TERMS, terms
from tracer.verify.checks.reference_run import PlainRun, array

QUERY = "block1.attention.query"
"""The step whose equation says whether the first block reads tokens plus positions as they are."""


def problems(run: PlainRun) -> Iterator[str]:
    """Compare each term with that of the parameters, and their sum with the scores before the mask."""
    steps = {step.id: step for step in run.trace.steps}
    if not {"position", QUERY} <= steps.keys() or "block1.attention" not in dict(run.model.net.named_modules()):
        return
    if steps["position"].symbol not in steps[QUERY].latex:
        return
    shown = terms(run.model, run.trace)
    block, values = run.model.net.get_submodule("block1.attention"), run.trace.value
    content, both = array(values("embedding")), array(values("position"))

    def part(linear, tokens: np.ndarray, bias: bool) -> np.ndarray:
        projected = tokens @ array(linear.weight).T
        if bias and linear.bias is not None:
            projected = projected + array(linear.bias)
        width = projected.shape[-1] // block.h
        return np.stack([projected[..., i * width : (i + 1) * width] for i in range(block.h)], axis=1)

    queries = {"content": part(block.query, content, True), "position": part(block.query, both - content, False)}
    keys = {"content": part(block.key, content, True), "position": part(block.key, both - content, False)}
    largest = max(abs(array(term)).max() for term in shown.values())
    for name in TERMS:
        query, key = name.split("–")
        products = np.einsum("bhid,bhjd->bhij", queries[query], keys[key])
        expected = products / sqrt(queries[query].shape[-1])
        if shown[name].shape != expected.shape or not abs(array(shown[name]) - expected).max() <= 1e-5 * largest:
            yield f"the term {name} is not what the parameters give"
