"""What the notes claim of a model's outline: its blocks, its lines in order, its code, its two paths."""

from __future__ import annotations

import torch

from tracer.figures.labels import scientific
from tracer.lessons.notes.claims.inside import blocks
from tracer.lessons.notes.claims.measured import Measured, close
from tracer.models.shared.model import Model
from tracer.record import Trace
from tracer.tracing import paths


def numbered(model: Model, trace: Trace) -> Measured:
    """Whether each block has parameters of its own, and the equations its number."""
    found = blocks(trace)
    parameters = {
        name: value.data_ptr() for name, value in model.net.named_parameters() if name.startswith(tuple(found))
    }
    said = f"{len(found)} blocks of {len(parameters) // max(1, len(found))} parameters each, none of them shared"
    return Measured(said, "holds" if len(set(parameters.values())) == len(parameters) else "not", "trace")


def four_times(model: Model, trace: Trace) -> Measured:
    """The hidden width over the width."""
    D, hidden = model.sizes["D"], model.sizes["d_ff"]
    return Measured(
        f"here it is {hidden / D:g} D", "holds" if hidden == 4 * D else "sense", "overview", (("model", model.name),)
    )


def in_order(model: Model, trace: Trace) -> Measured:
    """All lines of the run in order, and how many of them are proven."""
    proven = sum(step.verdict == "proven" for step in trace.steps)
    said = f"{len(trace.steps)} lines in the order in which they ran, {proven} proven"
    return Measured(said, "holds" if proven == len(trace.steps) else "not", "operations", (("zoom", "steps"),))


def both_paths(model: Model, trace: Trace) -> Measured:
    """One attention, on the standard and on the fused path."""
    found = paths.compare(model.net, *model.inputs(B=2))
    names = [way.name for way in found.ways]
    a, b = names.index("standard"), names.index("fused")
    error = found.outputs[b][a]
    counts = f"standard {len(found.ways[a].ops)} ops, fused {len(found.ways[b].ops)}"
    return Measured(
        f"{counts}; the outputs differ by {scientific(error)}", "holds" if close(error) else "not", "operations"
    )


def source_files(model: Model, trace: Trace) -> Measured:
    """The files that the ops of the run were called from."""
    found = {op.source.file.replace("\\", "/").rpartition("/")[2] for op in trace.ops if op.source}
    listed = ["vision_transformer.py", "activation.py", "functional.py", "misc.py"]
    kinds = {kind for one in model.net.modules() for kind in type(one).__mro__}
    modules = {kind.__module__.rpartition(".")[2] + ".py" for kind in kinds}
    said = (
        f"{len(trace.ops)} ops were called from {', '.join(sorted(found))}; its modules are of "
        f"{', '.join(sorted(modules & set(listed)))}"
    )
    inside = torch.nn.functional.multi_head_attention_forward.__module__.rpartition(".")[2] + ".py"
    return Measured(said, "holds" if set(listed) <= found | modules | {inside} else "not", "operations")
