"""Errata of notes 001 and 002."""

from __future__ import annotations

import math

import torch

from tracer.export.math_labels import scientific, shape_numbers
from tracer.lessons.notes.claims import attention, vision
from tracer.lessons.notes.claims.measurement import tensor_of
from tracer.lessons.notes.errata.erratum import Evidence
from tracer.lessons.notes.reference_runs import Provider
from tracer.record import tolerance

TOLERANCE = tolerance("float32")


def epsilon(run: Provider, of: str) -> Evidence:
    model, trace = run("vit-note")
    x, norm = tensor_of(trace, "position").double(), model.net.block1.norm1
    ran, gamma, beta = tensor_of(trace, "block1.norm1").double(), norm.weight.detach(), norm.bias.detach()
    centred = x - x.mean(-1, keepdim=True)

    def off(scale: torch.Tensor) -> float:
        normalised = centred / scale * gamma + beta
        return float((normalised - ran).abs().max() / ran.abs().max())

    biased, unbiased = x.var(-1, unbiased=False, keepdim=True), x.var(-1, unbiased=True, keepdim=True)
    root, plain, other_error = (
        off((biased + norm.eps).sqrt()),
        off(biased.sqrt() + norm.eps),
        off((unbiased + norm.eps).sqrt()),
    )
    evidence = (
        f"√(σ² + ε) gives what ran to within {scientific(root)}, σ + ε to within {scientific(plain)}, "
        "the unbiased variance "
        f"to within {scientific(other_error)}; ε is {norm.eps:g}"
    )
    return Evidence(evidence, root < TOLERANCE < other_error)


def invariant(run: Provider, of: str) -> Evidence:
    measured = attention.order(*run("vit"))
    return Evidence(measured.text, measured.verdict == "not")


def symmetric(run: Provider, of: str) -> Evidence:
    measured = attention.symmetric(*run("vit"))
    return Evidence(measured.text, measured.verdict == "sense")


def channels_last(run: Provider, of: str) -> Evidence:
    plain, reordered = (
        vision.strided_error(*run("vit-note"), last=False),
        vision.strided_error(*run("vit-note"), last=True),
    )
    evidence = f"as a convolution: with the weights as stored it is off by {100 * plain:.3g} %, reordered by "
    f"{scientific(reordered)}"
    return Evidence(evidence, reordered < TOLERANCE < plain)


def no_last_norm(run: Provider, of: str) -> Evidence:
    ran = sorted({op.module for op in run("vit-note")[1].ops if op.op == "native_layer_norm"})
    return Evidence(f"the norms that ran: {', '.join(ran)}", ran == ["block1.norm1", "block1.norm2"])


def anomaly_in_pixels(run: Provider, of: str) -> Evidence:
    trace = run("mae")[1]
    step, width = trace.step("prediction"), trace.step("encoder.norm").shape[-1]
    evidence = f"compared are {step.shape[-1]} pixel values of a patch, not the {width} numbers of its representation"
    return Evidence(evidence, step.symbolic[-1] == "C*P**2")


def higher(run: Provider, of: str) -> Evidence:
    out, into = run("vit-note")[0].net.embedding.weight.shape
    return Evidence(f"with the sizes of B/16 the matrix goes from {into} to {out}", into == out)


def columns(run: Provider, of: str) -> Evidence:
    trace = run("vit")[1]
    q, k = tensor_of(trace, "block1.attention.query"), tensor_of(trace, "block1.attention.key")
    at = q.shape[2] // 2
    row = (q[:, :, at, None] @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)[:, :, 0]
    off = float((row - trace.attention(0, query=at)).abs().max())
    words = f"from row {at + 1} of Q alone comes row {at + 1} of the weights, to within {scientific(off)}"
    return Evidence(words, off < TOLERANCE)


def thirds(run: Provider, of: str) -> Evidence:
    model, trace = run("vit")
    D, h, d_k = model.sizes["D"], model.sizes["h"], trace.step("block1.attention.query").shape[-1]
    return Evidence(f"D = {D}, h = {h}: a head is {d_k} wide, and D/3 is {D / 3:.4g}", d_k == D // h and d_k * 3 != D)


def last_norm(run: Provider, of: str) -> Evidence:
    model, trace = run("vit")
    last = max(step.layer for step in trace.steps if step.layer is not None) + 1
    with torch.no_grad():
        without = model.net.head(tensor_of(trace, f"block{last}.mlp.residual")[:, 0])
    ran = tensor_of(trace, "logits")
    off = float((without - ran).abs().max() / ran.abs().max())
    return Evidence(
        f"without it, the logits would be off by {100 * off:.3g} %", off > TOLERANCE and bool(trace.step("norm").ops)
    )


def linear_head(run: Provider, of: str) -> Evidence:
    model, trace = run("vit")
    ops = [trace.ops[i].op for i in trace.step("logits").ops]
    return Evidence(
        f"the head is one matrix, {shape_numbers(tuple(model.net.head.weight.shape))}; it ran {', '.join(ops)}",
        "addmm" in ops,
    )


def no_upsampling(run: Provider, of: str) -> Evidence:
    trace = run(of)[1]
    cells, pixels = tensor_of(trace, "cells").flatten(), tensor_of(trace, "logits").flatten()
    same = torch.equal(cells.sort().values, pixels.sort().values)
    evidence = (
        f"the {len(pixels):,} scores of the pixels are the decoder's {len(cells):,} numbers, moved and not interpolated"
    )
    return Evidence(evidence, same)
