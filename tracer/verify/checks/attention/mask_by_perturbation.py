"""Masks by perturbation: a token of an attention or of the blocks is replaced, and the outputs that differ are those
that may attend to it. All in float64, on a copy of the net, so that a small weight does not look like a closed cell."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
import torch

from tracer.attention.masks import (
    ChangedPositions,
    blocks,
    influence,
    kind,
    predict_under_mask,
    reach,
    row,
    rows,
    visible,
)
from tracer.attention.masks.perturbation import change_token
from tracer.utils.internals.torch_internals import tree_map_only
from tracer.verify.checks.reference_run import PlainRun, array, tensors

PATCHES_AND_WORDS = ("image", "text", "visible")
"""The segments whose tokens are part of the input, and can be another one."""


def problems(run: PlainRun) -> Iterator[str]:
    """Check the mask of every layer, tower by tower, against the perturbed outputs, and the influence proof of our own
    models."""
    trace, calls = run.trace, {}
    for part in dict.fromkeys(record.part for record in trace.attentions):
        for layer, record in enumerate(record for record in trace.attentions if record.part == part):
            number = calls[record.module] = calls.get(record.module, -1) + 1
            where = f"layer {layer}" + (f" of {part!r}" if part else "")
            if record.problem or record.queries != record.keys:
                continue
            cells = [array(visible(trace, layer, head=head, part=part)) > 0 for head in range(record.heads)]
            if (record.mask == "none") != np.all(cells):
                yield f"{where} has the mask {record.mask!r}, {np.mean(cells):.0%} of its cells are open"
            yield from (f"{where} {problem}" for problem in _moves(run, record, number, np.any(cells, axis=0)))
            if layer == 0:
                yield from (f"{where} {problem}" for problem in _reads(trace, part, cells[0]))
    if run.model.spec.whole:
        yield from _influence(run)
        yield from _check_segments(run)


def _moves(run: PlainRun, record, number: int, open_cells: np.ndarray) -> Iterator[str]:
    """Check which rows of an attention's output change when one token of its input is replaced."""
    args, kwargs = (
        run.attention_inputs[record.module][number] if number < len(run.attention_inputs[record.module]) else ((), {})
    )
    read = next((x for x in tensors((args, kwargs)) if x.dim() == 3 and x.shape[1] == record.keys), None)
    if read is None or any("cache" in name or "past" in name for name, value in kwargs.items() if value is not None):
        return
    module = copy.deepcopy(run.model.net.get_submodule(record.module)).double()
    before = _run_with(module, args, kwargs, read, read.double())
    random = np.random.default_rng(0)
    for token in sorted({0, 1, record.keys // 2, record.keys - 1} & set(range(record.keys))):
        changed = read.double().clone()
        changed[:, token] += torch.from_numpy(random.normal(size=read.shape[-1])) * (1 + read.double().std())
        moved = (_run_with(module, args, kwargs, read, changed) != before).any(axis=-1)
        expected = open_cells[:, token]
        moved[token] = expected[token]  # its own query is another one, whatever it looks at
        if (moved != expected).any():
            wrong = np.flatnonzero(moved != expected)[0]
            yield f"lets query {wrong} see token {token}: {bool(expected[wrong])}, but its output moves: {moved[wrong]}"


def _run_with(module, args, kwargs, read, changed) -> np.ndarray:
    """Return the output of a module in float64 with `changed` instead of `read`, `[S, D]` of the first input of the
    batch."""

    def exact(x: torch.Tensor) -> torch.Tensor:
        if x is read:
            return changed
        return x.double() if x.is_floating_point() else x

    args, kwargs = tree_map_only(torch.Tensor, exact, (args, kwargs))
    with torch.no_grad():
        return array(tensors(module(*args, **kwargs))[0])[0]


def _reads(trace, part: str, cells: np.ndarray) -> Iterator[str]:
    """Check the kind of a mask, the shares of its segments, one row of scores, and all rows of weights."""
    known = _kinds(*cells.shape, 1 + len(cells) // 2)
    for name, mask in {**known, "other": known["padded"] & known["causal"]}.items():
        if kind(torch.from_numpy(mask)) != name:
            yield f"would be called {kind(torch.from_numpy(mask))} if it were {name}"
    known = _kinds(*cells.shape, int(cells[0].sum()))
    expected = next((name for name, mask in known.items() if (mask == cells).all()), "other")
    if kind(torch.from_numpy(cells)) != expected and kind(torch.from_numpy(cells)) in (*known, "other"):
        yield f"is called {kind(torch.from_numpy(cells))}, it is {expected}"
    own = [segment for segment in trace.segments if segment.part in ("", part)]
    pairs = [(a, b) for a in own for b in own]
    for block, (a, b) in zip(blocks(torch.from_numpy(cells), tuple(own)), pairs, strict=True):
        share = cells[a.start : a.stop, b.start : b.stop].mean()
        if (block.queries, block.keys) != (a.name, b.name) or abs(block.share - share) > 1e-6:
            yield f"{block.queries} see {block.share:.3f} of {block.keys}, expected {share:.3f}"
    query = len(cells) // 2
    read, weights = row(trace, query, part=part), array(trace.attention(0, 0, part=part))[0]
    if ((array(read.mask) > -16) != cells[query]).any():
        yield f"shows a mask of row {query} that is not the one that ran"
    if (array(read.before) <= -1e4).any():
        yield f"shows scores of row {query} before the mask that are masked"
    scores = array(read.before) + array(read.mask)
    powers = np.exp(scores - scores.max())
    if (
        abs(powers / powers.sum() - weights[query]).max() > 1e-5
        or abs(array(read.weights) - weights[query]).max() > 1e-5
    ):
        yield f"shows scores of row {query} whose softmax is not its weights"
    every = rows(trace, part=part)
    closed = weights[~cells].max() if (~cells).any() else None
    if abs(every.off - abs(weights.sum(axis=-1) - 1).max()) > 1e-6 or (every.closed is None) != (closed is None):
        yield "says of its rows what does not hold"
    elif closed is not None and abs(every.closed - closed) > 1e-9:
        yield f"says that closed cells have weights up to {every.closed}, expected {closed}"


def _kinds(queries: int, keys: int, count: int) -> dict[str, np.ndarray]:
    """Return the named masks of `count` first tokens."""
    i, j = np.indices((queries, keys))
    every, causal, first = j >= 0, j <= i, j < count
    return {"bidirectional": every, "causal": causal, "prefix": causal | first, "padded": first}


def _influence(run: PlainRun) -> Iterator[str]:
    """Check the positions that a token changes through all blocks of each tower: by hooks, by the mask, and by the
    library."""
    trace = run.trace
    for number, part in enumerate(dict.fromkeys(record.part for record in trace.attentions)):
        own = [record for record in trace.attentions if record.part == part]
        segment = next((s for s in trace.segments if s.name in PATCHES_AND_WORDS and s.part in ("", part)), None)
        if segment is None or any(record.problem or record.queries != record.keys for record in own):
            continue
        token = (segment.start + segment.stop) // 2
        with torch.no_grad():
            change: ChangedPositions = influence(run.model, run.inputs, token, part=part)
            differs = _leaving(run, own, change_token(run.model, run.inputs, token, part=part))
            again = influence(run.model, run.inputs, token) if number == 0 else change
        if change.leaving != differs or again != change:
            yield f"says that token {token} moves {change.leaving}, what the last block returns differs at {differs}"
        if number == 0:
            if change.entering != (token,):
                yield f"says that token {token} enters the blocks as {change.entering}"
            yield from _check_reach(run, part, own, token)
    if any(record.problem for record in trace.attentions):
        return
    prediction = predict_under_mask(run.model, run.inputs)
    result = run.model.spec.result(run.model, run.inputs, run.output)
    if trace.attentions and (
        (array(prediction.cells) != array(visible(trace))).any() or dict(prediction.result) != dict(result)
    ):
        yield "says another thing under its own mask than it said"


def _check_reach(run: PlainRun, part: str, own, token: int) -> Iterator[str]:
    """Check that the positions that a token reaches through the masks of a tower are those that it changes in
    float64."""
    open_cells = [array(visible(run.trace, layer, part=part)) > 0 for layer in range(len(own))]
    expected = np.arange(own[0].keys) == token
    for cells in open_cells:
        expected = expected | (cells & expected).any(axis=1)
    predicted = tuple(np.flatnonzero(expected).tolist())
    if reach(torch.from_numpy(open_cells[0]), token, len(own)) != predicted:
        yield f"says that token {token} can move {reach(torch.from_numpy(open_cells[0]), token, len(own))}"
    moved = _through(run, own, token)
    if moved != predicted:
        yield f"masks say that token {token} moves {predicted}, seen in float64 it moves {moved}"


def _check_segments(run: PlainRun) -> Iterator[str]:
    """Check that the segments of each tower are adjacent, and cover all of its sequence."""
    for part, tokens in {record.part: record.keys for record in run.trace.attentions}.items():
        own = sorted((s.start, s.stop) for s in run.trace.segments if s.part in ("", part))
        edges = [0, *(stop for _, stop in own)]
        if [start for start, _ in own] != edges[:-1] or edges[-1] != tokens:
            yield f"the segments of {part!r} lie at {own}, of {tokens} tokens"


def _leaving(run: PlainRun, own, changed) -> tuple[int, ...]:
    """Return the positions at which the last block's output differs for other inputs."""
    last, captured = run.model.net.get_submodule(own[-1].module.rpartition(".")[0]), []
    hook = last.register_forward_hook(lambda module, args, output: captured.append(array(tensors(output)[0])))
    try:
        for inputs in (run.inputs, changed):
            run.model.net(*inputs, **inputs.named)
    finally:
        hook.remove()
    return tuple(np.flatnonzero((captured[0] != captured[1]).any(axis=(0, 2))).tolist())


def _through(run: PlainRun, own, token: int) -> tuple[int, ...]:
    """Return the positions that change in the last block's output when a token of the first one's input is replaced."""
    net = copy.deepcopy(run.model.net).double()
    first, last = (net.get_submodule(record.module.rpartition(".")[0]) for record in (own[0], own[-1]))
    inputs = tree_map_only(torch.Tensor, lambda x: x.double() if x.is_floating_point() else x, tuple(run.inputs))
    captured, pushes = [], iter((0.0, 1.0))

    def push(module, args):
        x = args[0].clone()
        x[:, token] += next(pushes) * torch.linspace(-1, 1, x.shape[-1]).double() ** 2
        return (x, *args[1:])

    first.register_forward_pre_hook(push)
    last.register_forward_hook(lambda module, args, output: captured.append(array(tensors(output)[0])[0]))
    with torch.no_grad():
        net(*inputs, **run.inputs.named)
        net(*inputs, **run.inputs.named)
    return tuple(np.flatnonzero((captured[0] != captured[1]).any(axis=-1)).tolist())
