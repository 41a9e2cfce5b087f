"""Notes' claims on a model's structure: its blocks, its lines in order, its code, its two paths."""

from __future__ import annotations

import copy
from collections import Counter

import torch
from torch import nn

import tracer
from tracer.attention.step_inputs import reads
from tracer.export.math_labels import scientific
from tracer.figures.predictions.class_bars import percent
from tracer.lessons.notes.claims.attention_inputs import BlockAttention, blocks
from tracer.lessons.notes.claims.measurement import Measurement, close, off, tensor_of, verdict_of
from tracer.models.shared.spec import Model, build_seeded
from tracer.record import Trace
from tracer.tracing import attention_backends

FILES = ("vision_transformer.py", "activation.py", "functional.py", "misc.py")
"""The source files that note 003 lists."""


def numbered(model: Model, trace: Trace) -> Measurement:
    """Measure whether each block has parameters of its own."""
    block_list = blocks(trace)
    named = {name: value for name, value in model.net.named_parameters(remove_duplicate=False)
             if name.startswith(tuple(f"{path}." for path in block_list))}  # fmt: skip
    own = {value.data_ptr() for value in named.values()}
    each = len(named) // max(1, len(block_list))
    return Measurement(
        f"all {len(block_list)} blocks, their parameters by name and by memory",
        f"{each} in each, {len(own)} in all, none of them shared" if len(own) == len(named) else
        f"{each} in each, {len(own)} in all, {len(named) - len(own)} of them shared",
        f"Blocks that shared theirs would have {each} in all",
        verdict_of(len(own) == len(named) == each * len(block_list)),
        "trace",
    )  # fmt: skip


def four_times(model: Model, trace: Trace) -> Measurement:
    """Measure the hidden width over the width."""
    D, hidden = model.sizes["D"], model.sizes["d_ff"]
    return Measurement(
        "the MLP of every block",
        f"here d_ff is {hidden}, which is {hidden / D:g} D",
        f"With D = {D}, 4 D is {4 * D}",
        "holds" if hidden == 4 * D else "sense",
        "overview",
        (("model", model.name),),
    )


def in_order(model: Model, trace: Trace) -> Measurement:
    """Measure all lines of the run in order: the number of proven ones, and whether each reads only earlier values."""
    proven = sum(step.verdict == "proven" for step in trace.steps)
    at = {step.id: number for number, step in enumerate(trace.steps)}
    pairs = [(at[step.id], at[source]) for step in trace.steps for source in reads(trace, step.id) if source in at]
    early = len({line for line, source in pairs if source > line})
    reversals = len({line for line, source in pairs if source < line})
    return Measurement(
        f"all {len(trace.steps)} lines of the run",
        f"{proven} are proven; in this order {early} lines read what comes after them",
        f"In the reverse order {reversals} would",
        verdict_of(proven == len(trace.steps) and early == 0 < reversals),
        "operations",
        (("zoom", "steps"),),
    )


def both_paths(model: Model, trace: Trace) -> Measurement:
    """Measure one attention, on the standard and on the fused path."""
    inputs = model.inputs()
    comparison = attention_backends.compare(model.net, *inputs)
    names = [way.name for way in comparison.ways]
    a, b = names.index("standard"), names.index("fused")
    error = comparison.outputs[b][a]
    rounded = copy.deepcopy(model.net)
    attention = next(module for module in rounded.modules() if isinstance(module, nn.MultiheadAttention))
    with torch.no_grad():
        attention.out_proj.weight.copy_(attention.out_proj.weight.bfloat16())
        coarse = off(rounded(*inputs), model.net(*inputs))
    return Measurement(
        "the attention of block 1, one photo",
        f"standard {len(comparison.ways[a].ops)} ops, fused {len(comparison.ways[b].ops)}; the outputs differ by "
        f"{scientific(error)}",
        f"With $W_O$ rounded to bfloat16 the model's output changes by {scientific(coarse)}",
        verdict_of(close(error) and not close(coarse)),
        "operations",
    )


def source_files(model: Model, trace: Trace) -> Measurement:
    """Measure the number of ops that ran in each source file that the note lists, and in others."""
    ran: Counter[str] = Counter()
    for op in trace.ops:
        parts = op.module.split(".") if op.module else []
        paths_above = [".".join(parts[:depth]) for depth in range(len(parts) + 1)]
        kinds = [kind for path in paths_above for kind in type(model.net.get_submodule(path)).__mro__]
        files = {_file(kind.__module__) for kind in kinds if kind.__module__.startswith("torch")}
        function = getattr(torch.nn.functional, op.function or "", None)
        if hasattr(function, "__code__"):
            files.add(_file(function.__module__))
        ran.update(files)
    missing = [file for file in FILES if not ran[file]]
    others = sorted(ran.keys() - set(FILES))
    return Measurement(
        f"{len(trace.ops)} ops, by the classes of the modules that they ran in and by the functions that were called",
        ", ".join(f"{ran[file]} ran in `{file}`" for file in FILES),
        f"Of files that the note does not list: {', '.join(f'{ran[file]} in `{file}`' for file in others)}",
        verdict_of(not missing),
        "operations",
    )


def _file(module: str) -> str:
    return f"{module.rpartition('.')[2]}.py"


def biases_optional(model: Model, trace: Trace) -> Measurement:
    """Measure a run without biases: the lines that add one, and the parameters saved."""
    layers = [module for module in model.net.modules() if isinstance(module, nn.Linear | nn.LayerNorm)]
    biased = sum(module.bias is not None for module in layers)
    lines = sum(r"\mathbf{b}" in step.latex for step in trace.steps)
    sizes = [
        _count(build_seeded(model.spec.net, {**model.sizes, **model.options, "bias": bias})) for bias in (False, True)
    ]
    own = _count(model.net)
    return Measurement(
        f"{len(layers)} linear layers and norms, {len(trace.steps)} lines of the run",
        f"{biased} of them have a bias, {lines} lines add one; the run has {own:,} parameters",
        f"With biases it has {sizes[1]:,}, that is {sizes[1] - sizes[0]:,} more",
        verdict_of(biased == lines == 0 and own == sizes[0] < sizes[1]),
        "trace",
        (("step", "block1.mlp.hidden"),),
    )


def _count(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def types_optional(model: Model, trace: Trace) -> Measurement:
    """Measure a run with type embeddings: each vector is added to its own segment alone."""
    parameters = dict(model.net.named_parameters())
    if not {"image_type", "text_type"} <= parameters.keys():
        raise ValueError(f"this {model.name} has no type embeddings")
    added = [tensor_of(trace, after) - tensor_of(trace, before)
             for before, after in (("position", "image_type"), ("text_position", "text_type"))]  # fmt: skip
    image, text = (parameters[name].detach() for name in ("image_type", "text_type"))
    error = max(
        float((difference - vector).abs().max()) for difference, vector in zip(added, (image, text), strict=True)
    )
    crossed = min(float((added[0] - text).abs().max()), float((added[1] - image).abs().max()))
    without, own = (
        _count(build_seeded(model.spec.net, {**model.sizes, **model.options, "types": types}))
        for types in (False, True)
    )
    return Measurement(
        f"{added[0].shape[1]} patches and {added[1].shape[1]} words, the largest difference",
        f"each kind of token has its own vector of {len(image)} numbers added, to within {scientific(error)}",
        f"The vector of the other kind would be off by {crossed:.2g}; a run without the option has {own - without} "
        "parameters fewer",
        verdict_of(error < 1e-5 < crossed and own - without == 2 * len(image)),
        "trace",
        (("step", "sequence"),),
    )


def mask_optional(model: Model, trace: Trace) -> Measurement:
    """Measure the attention with the mask of this run and without any, on the same tokens and weights."""
    inside = BlockAttention(model, trace)
    with torch.no_grad():
        runs = [
            tracer.trace(copy.deepcopy(inside.module), inside.entering, **arguments, prove=False)
            for arguments in (inside.arguments, dict.fromkeys(inside.arguments))
        ]
    with_mask, without = (float((run.attention(0) > 0).float().mean()) for run in runs)
    moved = off(runs[1].output, runs[0].output)
    return Measurement(
        f"{inside.scope}, the same tokens and weights",
        f"with its mask {percent(with_mask)} of the pairs have weight; it runs without one, too, and its output "
        f"changes by {percent(moved)} of the largest value",
        f"Without the mask {percent(without)} of the pairs have weight",
        verdict_of(with_mask < without == 1 and not close(moved)),
        "mask",
    )
