"""Errata of note 003, from torchvision's block."""

from __future__ import annotations

import copy
import math
from collections import Counter
from typing import Any

import torch
from torch import nn

import tracer
from tracer.export.math_labels import scientific
from tracer.lessons.notes import torchvision_block_counts
from tracer.lessons.notes.claims.measurement import tensor_of
from tracer.lessons.notes.errata.erratum import Evidence
from tracer.lessons.notes.reference_runs import STANDARD, Provider
from tracer.lessons.notes.statements import BLOCK
from tracer.models.shared.spec import Model
from tracer.ops import category, is_layout
from tracer.record import Trace, tolerance

FLASH_OP = "_scaled_dot_product_flash_attention_for_cpu"
TOLERANCE = tolerance("float32")
DROPOUT_RATE = 0.1
DROPOUT_MODULES = ["self_attention", "dropout", "mlp.2", "mlp.4"]
"""The modules of a block with dropout: on the weights, after attention, and twice in the MLP."""


def positions_missing(run: Provider, of: str) -> Evidence:
    added = [op for op in run("torchvision")[1].ops if "encoder.pos_embedding" in op.parameters]
    evidence = "; ".join(f"op {op.index} `{op.op}` adds `encoder.pos_embedding`, {op.outputs[0].shape}" for op in added)
    return Evidence(evidence, [op.op for op in added] == ["add"])


def batch_letter(run: Provider, of: str) -> Evidence:
    sizes = {symbol.name: symbol.value for symbol in run("torchvision")[1].symbols}
    return Evidence(
        f"in this run the batch B is {sizes['B']}, and the patches N are {sizes['N']}", sizes["B"] != sizes["N"]
    )


def dropout(run: Provider, of: str) -> Evidence:
    model, trace = run("torchvision")
    with torch.no_grad():
        handed_on = torch.equal(_dropping(model)(*model.inputs(B=2)), model.net(*model.inputs(B=2)))
        trained = tracer.trace(_dropping(model).train(), *model.inputs(B=2), prove=False).ops
    evaluated = [op for op in trace.ops if "dropout" in op.op or "dropout" in op.module]
    dropouts = [op.module.removeprefix(BLOCK) for op in trained if op.op.startswith("bernoulli")]
    evidence = (
        f"in evaluation they leave {len(evaluated)} of the {len(trace.ops)} ops that ran; a copy that drops a share of "
        f"{DROPOUT_RATE} gives {'the very same' if handed_on else 'another'} output there, and in training it draws "
        f"random numbers {len(dropouts)} times: in {', '.join(f'`{module}`' for module in dropouts)}"
    )
    return Evidence(
        evidence,
        handed_on
        and not evaluated
        and not torchvision_block_counts.dispatch_ops("dropout")
        and dropouts == DROPOUT_MODULES,
    )


def _dropping(model: Model) -> nn.Module:
    """Return the model's net in evaluation mode, with dropout in its block: torchvision's own share is 0."""
    net: Any = copy.deepcopy(model.net).eval()
    for module in net.encoder.layers.modules():
        if isinstance(module, nn.Dropout):
            module.p = DROPOUT_RATE
        elif isinstance(module, nn.MultiheadAttention):
            module.dropout = DROPOUT_RATE
    return net


def _inside(trace: Trace) -> list:
    return [op for op in trace.ops if op.module == f"{BLOCK}self_attention"]


def sequence_first(run: Provider, of: str) -> Evidence:
    inside = _inside(run("torchvision")[1])
    first, last = inside[0], inside[-1]
    evidence = (
        f"`{first.op}` gives {first.outputs[0].shape} first, and `{last.op}` gives {last.outputs[0].shape} in the end"
    )
    so = first.op == last.op == "transpose" and first.outputs[0].shape == last.inputs[0].shape == (197, 2, 768)
    return Evidence(evidence, so and not [op for op in inside[1:-1] if op.outputs[0].shape[:2] == (2, 197)])


def fused_only(run: Provider, of: str) -> Evidence:
    fused, standard = ({op.op for op in run(name)[1].ops} for name in ("torchvision", STANDARD))
    kernels = [op for op in run("torchvision")[1].ops if op.op == FLASH_OP]
    skips_weights = bool(kernels) and kernels[0].source is not None and "need_weights=False" in kernels[0].source.text
    evidence = "its own code asks with `need_weights=False`: `bmm` and `_softmax` run only when weights are asked for"
    return Evidence(evidence, skips_weights and not {"bmm", "_softmax"} & fused and {"bmm", "_softmax"} <= standard)


def merged(run: Provider, of: str) -> Evidence:
    after = {}
    for name in ("torchvision", STANDARD):
        inside = [op.op for op in _inside(run(name)[1])]
        start = max(i for i, op in enumerate(inside) if op in (FLASH_OP, "bmm"))
        after[name] = inside[start + 1 : inside.index("addmm")]
    evidence = "; ".join(
        f"{way} path: {', '.join(ops)}" for way, ops in zip(("fused", "standard"), after.values(), strict=True)
    )
    return Evidence(evidence, "clone" not in after["torchvision"] and "clone" in after[STANDARD])


def _steps_of(trace: Trace, name: str) -> list[list[str]]:
    """Return the computing primitives of each op of that name."""
    opened = [trace.decompositions[op.index] for op in trace.ops if op.op == name]
    return [[part.name for part in decomposition.primitives if not is_layout(part.name)] for decomposition in opened]


def seven_steps(run: Provider, of: str) -> Evidence:
    steps = _steps_of(run("torchvision")[1], "native_layer_norm")
    evidence = f"each of {len(steps)} norms: {', '.join(steps[0])}"
    return Evidence(evidence, all(step == steps[0] and len(step) == 7 for step in steps))


def view_mixes(run: Provider, of: str) -> Evidence:
    N, S, h, d_k = 2, 197, 12, 64
    image = torch.arange(N).view(N, 1, 1).expand(N, S, h * d_k).contiguous()
    wrong = image.view(S, N * h, d_k).transpose(0, 1)[:h]
    right = image.transpose(0, 1).contiguous().view(S, N * h, d_k).transpose(0, 1)[:h]
    evidence = (
        f"{100 * float((wrong == 1).float().mean()):.3g} % of the numbers in the first image's heads "
        "would be of the second "
        f"image; with the transpose that ran it is {100 * float((right == 1).float().mean()):g} %"
    )
    return Evidence(
        evidence,
        bool((wrong == 1).any()) and not (right == 1).any() and _inside(run("torchvision")[1])[0].op == "transpose",
    )


def exact_gelu(run: Provider, of: str) -> Evidence:
    trace = run("torchvision")[1]
    hidden, active = (tensor_of(trace, f"{BLOCK}mlp.{name}").double() for name in ("hidden", "activation"))
    by_erf = float((active - hidden * (1 + (hidden / math.sqrt(2)).erf()) / 2).abs().max())
    by_tanh = float((active - nn.functional.gelu(hidden, approximate="tanh")).abs().max())
    (steps,) = _steps_of(trace, "gelu")
    evidence = f"it ran {', '.join(steps)}; by erf it is off by {scientific(by_erf)}, by tanh by {scientific(by_tanh)}"
    return Evidence(evidence, by_erf < TOLERANCE < by_tanh and "tanh" not in steps)


def _of(run: Provider, names: tuple[str, ...], path: str = STANDARD) -> Counter[str]:
    """Return how often some primitives ran in a block."""
    return Counter(name for name in torchvision_block_counts.primitives(run(path)[1]) if name in names)


def _list_counts(op_counts: Counter[str]) -> str:
    return ", ".join(f"`{name}` × {count}" for name, count in op_counts.most_common())


def six_products(run: Provider, of: str) -> Evidence:
    products = {path: _of(run, ("mm", "bmm"), path) for path in ("torchvision", STANDARD)}
    same = all(counter == {"mm": 4, "bmm": 2} for counter in products.values())
    return Evidence(
        f"opened, a block multiplies matrices {products[STANDARD].total()} times: {_list_counts(products[STANDARD])}",
        same,
    )


def more_binary(run: Provider, of: str) -> Evidence:
    trace, op_counts = run(STANDARD)[1], _of(run, ("mul", "add", "sub", "div"))
    linear = [op for op in torchvision_block_counts.block(trace.ops) if op.op == "addmm"]
    ones = sum(part.name == "mul" for op in linear for part in trace.decompositions[op.index].primitives)
    evidence = (
        f"{op_counts.total()}: {_list_counts(op_counts)}; {ones} of them multiply by 1 in the {len(linear)} `addmm`"
    )
    return Evidence(evidence, op_counts.total() == 29 and ones == 6)


def four_unary(run: Provider, of: str) -> Evidence:
    op_counts = _of(run, ("pow", "rsqrt", "tanh", "erf", "exp", "sqrt"))
    return Evidence(f"{op_counts.total()}: {_list_counts(op_counts)}", op_counts == {"rsqrt": 2, "erf": 1, "exp": 1})


def not_unary(run: Provider, of: str) -> Evidence:
    (gelu,) = _steps_of(run("torchvision")[1], "gelu")
    scores = torch.zeros(8)
    moved = int((scores.index_fill(0, torch.tensor([3]), 1.0).softmax(0) != scores.softmax(0)).sum())
    evidence = (
        f"change one of 8 scores, and softmax changes {moved} weights; `gelu` opens into {len(gelu)} "
        "primitives; `pow` takes "
        f"a base and an exponent. Here they count as {category('_softmax')}, {category('gelu')} and {category('pow')}"
    )
    return Evidence(
        evidence, moved == 8 and category("_softmax") == "Fused" and category("pow") == "Elementwise Binary"
    )


def four_means(run: Provider, of: str) -> Evidence:
    trace = run("torchvision")[1]
    norms = sum(op.op == "native_layer_norm" for op in torchvision_block_counts.block(trace.ops))
    op_counts = _of(run, ("mean", "var_mean"), "torchvision")
    return Evidence(
        f"{norms} norms ran in a block, and in them {_list_counts(op_counts)}",
        norms == 2 and op_counts == {"var_mean": 2},
    )


def never_run(run: Provider, of: str) -> Evidence:
    ran, divided = torchvision_block_counts.ran_at_all(run), set()
    for name in ("torchvision", STANDARD):
        trace = run(name)[1]
        divided |= {
            trace.ops[decomposition.op].op
            for decomposition in trace.decompositions
            if "div" in {p.name for p in decomposition.primitives}
        }
    never = {name for name in torchvision_block_counts.CALLS if not torchvision_block_counts.dispatch_ops(name) <= ran}
    evidence = (
        f"of the two paths' ops and primitives none is of {', '.join(sorted(never))}; `div` is in "
        f"{', '.join(sorted(divided))}"
    )
    return Evidence(evidence, never == torchvision_block_counts.ABSENT_OPS and divided == {FLASH_OP, "_softmax"})


def two_norms(run: Provider, of: str) -> Evidence:
    norms = [
        name
        for name, module in torchvision_block_counts._whole().named_modules()
        if isinstance(module, nn.LayerNorm) and BLOCK in f"{name}."
    ]
    count = torchvision_block_counts.parameters(f"{BLOCK}ln_")
    return Evidence(f"{len(norms)} norms in the block, {count:,} parameters", len(norms) == 2 and count == 3072)
