"""Shapes in symbols, at sizes that the run did not have: the outputs of each module there, by forward hooks."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tracer.verify.checks.reference_run import PlainRun
from tracer.verify.checks.run.flops_and_params import at, elsewhere


def problems(run: PlainRun) -> Iterator[str]:
    """Compare the symbols of every module's outputs with their shapes at other sizes."""
    if getattr(run.model, "vocabulary", None) is None:
        return
    last = {}
    for op in run.trace.ops:
        parts = op.module.split(".")
        for depth in range(len(parts) + 1):
            last[".".join(parts[:depth])] = op
    sizes, spec = elsewhere(run), run.model.spec
    sizes |= {symbol: run.model.sizes[symbol] for symbol in spec.parts.values() if symbol in run.model.sizes}
    own = {name: value for name, value in sizes.items() if name not in (*spec.runs, *spec.derived)}
    net, args, named = run.model.vocabulary.build({**own, **{name: sizes[name] for name in spec.runs}})
    returned: dict[str, list] = {}
    for path, module in net.named_modules():
        module.register_forward_hook(lambda module, args, out, path=path: returned.setdefault(path, []).append(out))
    with torch.no_grad():
        net(*args, **named)
    for path, outputs in returned.items():
        op = last.get(path)
        if len(outputs) != 1 or not isinstance(outputs[0], torch.Tensor) or op is None or not op.outputs:
            continue
        symbolic, shape = op.outputs[0].symbolic, tuple(outputs[0].shape)
        if symbolic is None or "?" in symbolic:
            continue
        if tuple(at(size, sizes) for size in symbolic) != shape:
            yield f"{path or 'the model'} returns [{', '.join(symbolic)}], at {sizes} it returns {list(shape)}"
