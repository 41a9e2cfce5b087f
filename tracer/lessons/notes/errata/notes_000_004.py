"""Errata of notes 000 and 004."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from tracer.export.math_labels import scientific, shape_numbers
from tracer.lessons.notes.claims import heads
from tracer.lessons.notes.claims.measurement import close, tensor_of
from tracer.lessons.notes.errata.erratum import Evidence
from tracer.lessons.notes.reference_runs import Provider
from tracer.lessons.tokenization import text_tokenizers

TEXT = "reverse this one"
"""The sentence that is tokenized."""


def ids(run: Provider, of: str) -> Evidence:
    model, _ = run(of)
    V, others = model.net.tokens.num_embeddings, tuple(model.inputs())[:-1]
    with torch.no_grad():
        model.net(*others, torch.tensor([[V - 1]]))
        try:
            model.net(*others, torch.tensor([[V]]))
        except IndexError:
            evidence = f"the table E of {model.name} has rows 0 to {V - 1}: id {V - 1} runs, and id {V} is refused"
            return Evidence(evidence, True)
    return Evidence(f"on {model.name}, the ids {V - 1} and {V} both run", False)


def positions(run: Provider, of: str) -> Evidence:
    model, trace = run(of)
    text = "text_position" in {step.id for step in trace.steps}
    table = model.net.text_positions if text else model.net.positions
    before, after = ("words", "text_position") if text else ("embedding", "position")
    rows, T = len(table), trace.step(after).shape[1]
    added = tensor_of(trace, after) - tensor_of(trace, before)
    off = float((added - table[:T]).detach().abs().max())
    return Evidence(
        f"the table of {model.name} has {rows} rows; the first {T} were added, to within {scientific(off)}",
        rows > T and off < 1e-5,
    )


def letters(run: Provider, of: str) -> Evidence:
    model, trace = run(of)
    symbols = {step.id: step.symbol for step in trace.steps}
    mask, mlp = symbols["mask"], symbols["block1.mlp.output"]
    evidence = (
        f"on {model.name}, the mask is ${mask}$ and the MLP's output ${mlp}$; {len(set(symbols.values()))} "
        f"different symbols for {len(symbols)} steps"
    )
    return Evidence(evidence, mask != mlp and len(set(symbols.values())) == len(symbols))


def b_vocab(run: Provider, of: str) -> Evidence:
    model, trace = run(of)
    bias, latex = model.net.head.bias, trace.step("logits").latex
    read = any("head.bias" in op.parameters for op in trace.ops)
    evidence = f"the bias of the head of {model.name} has shape {shape_numbers(tuple(bias.shape))}"
    return Evidence(evidence, read and r"\mathbf{b}_{\mathrm{vocab}}" in latex)


def patches_causal(run: Provider, of: str) -> Evidence:
    trace = run("vit-text")[1]
    N = next(segment.stop for segment in trace.segments if segment.name == "image")
    weights = trace.attention(0)
    later, first = float(weights[..., :N, :N].triu(1).max()), float(weights[..., 0, 0].min())
    evidence = f"the largest weight of a patch on a later patch is {later:g}; the first patch gives itself {first:g}"
    return Evidence(evidence, later == 0 and first == 1)


def first_word(run: Provider, of: str) -> Evidence:
    trace = run("vit-text")[1]
    before, read = trace.step("sequence").shape[1], trace.step("text").shape[1]
    same = torch.equal(tensor_of(trace, "text"), tensor_of(trace, "norm")[:, before - read :])
    evidence = (
        f"{before} tokens went in, the last {read} are read; the word after the picture is predicted at the begin token"
    )
    return Evidence(evidence, same and before > read)


def add_and_norm(run: Provider, of: str) -> Evidence:
    trace = run("vit-text")[1]
    ran = [trace.ops[i].op for i in trace.step("block1.attention.residual").ops]
    return Evidence(f"the ops of this step: {', '.join(ran)}", ran == ["add"])


def two_dimensions(run: Provider, of: str) -> Evidence:
    model, trace = run("vit-text")
    sizes = {symbol.name: symbol.value for symbol in trace.symbols}
    rows, grid = len(model.net.image_positions), (sizes["H"] // sizes["P"], sizes["W"] // sizes["P"])
    evidence = (
        f"the table has {rows} rows for a grid of {grid[0]} × {grid[1]}; of a row and a column each it "
        f"would have {sum(grid)}"
    )
    return Evidence(evidence, rows == math.prod(grid))


def heads_undefined(run: Provider, of: str) -> Evidence:
    h = run("transformer")[1].step("block1.attention.query").shape[1]
    return Evidence(f"h = {h} heads ran", h == run("transformer")[0].sizes["h"])


def single_multi(run: Provider, of: str) -> Evidence:
    measured = heads.heads_are_columns(*run("transformer"))
    return Evidence(f"the single head's formula, for each of the heads: {measured.text}", measured.verdict == "holds")


def no_root(run: Provider, of: str) -> Evidence:
    model, trace = run("transformer")
    embedded, E = tensor_of(trace, "embedding")[0], model.net.tokens.weight
    same = int((embedded[:, None] == E).all(-1).any(-1).sum())
    evidence = (
        f"{same} of {len(embedded)} embedded tokens are rows of E bit for bit; √d_model would be "
        f"{math.sqrt(E.shape[1]):.3g}"
    )
    return Evidence(evidence, same == len(embedded))


def relative(run: Provider, of: str) -> Evidence:
    steps = [step.id for step in run("transformer-relative")[1].steps]
    evidence = "no step adds positions to the tokens; `block1.attention.relative` adds to the scores"
    return Evidence(evidence, "position" not in steps and "block1.attention.relative" in steps)


def log_mask(run: Provider, of: str) -> Evidence:
    mask = torch.full((3, 3), -math.inf).triu(1)
    finite = int(mask.log().isfinite().sum())
    weights = run("transformer-causal")[1].attention(0)
    off = float((weights.sum(-1) - 1).abs().max())
    evidence = (
        f"log of a mask of 0 and -∞ has {finite} finite cells of 9; with the mask itself rows sum to 1 "
        f"within {scientific(off)}"
    )
    return Evidence(evidence, finite == 0 and float(weights.triu(1).max()) == 0 and close(off))


def key_rows(run: Provider, of: str) -> Evidence:
    trace = run("transformer")[1]
    k, s = trace.step("block1.attention.key"), trace.step("block1.attention.scores")
    evidence = (
        f"K is {shape_numbers(k.shape)}, a row for each of {k.shape[-2]} tokens; in S, "
        f"{shape_numbers(s.shape)}, they are columns"
    )
    return Evidence(evidence, k.symbolic[-2] == s.symbolic[-1] == "T")


def byte_pairs(run: Provider, of: str) -> Evidence:
    speller = text_tokenizers.shipped_tokenizers()["bpe"]
    pieces = speller.encode(TEXT)
    longer = sum(len(piece.raw or b"") > 1 for piece in pieces)
    evidence = (
        f"byte-level BPE, as GPT-2 has it, cuts the {len(TEXT.encode())} bytes of “{TEXT}” to "
        f"{len(pieces)} pieces, {longer} "
        f"of them of more than one byte; of its {len(speller.vocabulary):,} ids 256 are bytes. GPT-2 "
        "has 50,257: 256 bytes, "
        "50,000 merges and the end of a text (Radford et al. 2019, section 2.2)"
    )
    return Evidence(evidence, longer > 0 and len(speller.vocabulary) > 256)


def from_papers(evidence: str) -> Callable[[Provider, str], Evidence]:
    """Return a function that states what papers say, which no run measures."""
    return lambda run, of: Evidence(evidence, True, "the papers")
