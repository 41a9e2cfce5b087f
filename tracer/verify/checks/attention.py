"""Attention, computed again."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import replace
from math import sqrt

import numpy as np
import torch

from tracer.attention import parts, places, rollout
from tracer.attention.head_effects import HeadSwitchboard, head_sites, region
from tracer.attention.masks import (
    ChangedPositions,
    blocks,
    change_token,
    close_picture,
    influence,
    kind,
    predict_under_mask,
    reach,
    row,
    rows,
    visible,
)
from tracer.attention.textbook_claims import TERMS, terms
from tracer.figures import attention_maps
from tracer.record import dtype_name, tolerance
from tracer.utils.torch_internals import tree_map_only
from tracer.verify.checks import check
from tracer.verify.checks.changes import TOLERANCE, heads_of, without_heads
from tracer.verify.checks.reference_run import PlainRun, array, attached, plain, softmax, tensors

# Words of a text with the picture masked in some blocks: the net itself, its blocks masked by hooks.


@check
def check_ablation(run: PlainRun) -> Iterator[str]:
    """Compare the probability of each word, with no block, the first block and all blocks closed."""
    if not getattr(run.model.spec, "whole", False) or ":" in run.model.name:
        return
    segments = {segment.name: segment for segment in run.inputs.segments}
    if not {"image", "text"} <= segments.keys() or any(segment.part for segment in run.inputs.segments):
        return
    image, text = segments["image"], segments["text"]
    blocks = [name for name, _ in run.model.net.named_children() if name.startswith("block")]
    shares = softmax(array(run.output[0]))  # [T, V]
    words = [*run.inputs[1][0, 1:].tolist(), int(shares[-1].argmax())]
    for layers in ((), (0,), tuple(range(len(blocks)))):
        shown = close_picture(run.model, run.inputs, layers)
        recomputed = softmax(array(_run_masked(run, [blocks[layer] for layer in layers], image, text)[0]))
        for name, expected, best in (("open", shares, shown.best), ("closed", recomputed, shown.instead)):
            row, said = [expected[place, word] for place, word in enumerate(words)], getattr(shown, name)
            if len(row) != len(said) or not abs(np.array(said) - row).max() <= 1e-5:
                yield f"with the blocks {layers} closed, the words are said to have the shares {said}"
            likely = [expected[place].argmax() for place in range(len(words))]
            same = [[likely[i] == likely[j] for j in range(len(words))] for i in range(len(words))]
            if same != [[a == b for b in best] for a in best]:
                yield f"with the blocks {layers} closed, the likeliest words are said to be {best}"
        if shown.words[:-1] != tuple(run.inputs.words[1:]) or shown.words[-1] != shown.best[-1]:
            yield f"the words that follow are said to be {shown.words}"


def _run_masked(run: PlainRun, blocks: list[str], image, text) -> torch.Tensor:
    """Return the net's output if these blocks don't let words attend to the picture."""

    def close(module, args):
        mask = args[1].clone() if len(args) > 1 and args[1] is not None else torch.zeros(text.stop, text.stop)
        mask[text.start :, image.start : image.stop] = float("-inf")
        return args[0], mask

    hooks = [run.model.net.get_submodule(name).register_forward_pre_hook(close) for name in blocks]
    with attached(hooks), torch.no_grad():
        return run.model.net(*run.inputs)


# Attention: the weights of every layer and head, rows of them, and rollout, against the softmaxes that ran.


@check
def check_attention_weights(run: PlainRun) -> Iterator[str]:
    """Compare the trace's attention with the softmaxes of the plain run, tower by tower; of models of text also for one
    of two tokens."""
    yield from _compare(run)
    if "T" in getattr(run.model.spec, "runs", ()) and run.trace.picture is None and ":" not in run.model.name:
        model = replace(run.model)
        yield from _compare(plain(model, model.inputs(T=2), model.trace(T=2, prove=False)))


def _compare(run: PlainRun) -> Iterator[str]:
    ran, lost = match_softmaxes(run)
    yield from lost
    for part, layers in ran.items():
        for layer, weights in layers.items():
            yield from _layer(run.trace, part, layer, weights)
        yield from _rollout(run.trace, part, [weights.mean(axis=1) for weights in layers.values()])
    yield from _regions(run.trace, ran)


def match_softmaxes(run: PlainRun) -> tuple[dict[str, dict[int, np.ndarray]], list[str]]:
    """Return the softmax that ran for each attention of the trace, `[B, h, S_q, S_k]`, by tower and layer, in the order
    of the run; and a sentence for each attention without a softmax."""
    left, matched, lost = iter(run.softmaxes), {}, []
    for record in run.trace.attentions:
        layers = matched.setdefault(record.part, {})
        shape = (record.queries, record.keys)
        weights = next((w for w in left if w.ndim >= 3 and w.shape[-2:] == shape and _heads(w, record.heads)), None)
        if weights is None:
            lost.append(f"no softmax of {record.heads} heads, {shape}, ran for layer {len(layers)} of {record.part!r}")
            return {}, lost
        layers[len(layers)] = np.nan_to_num(weights).reshape(-1, record.heads, *shape)
    problem = {(record.part, record.layer) for record in run.trace.attentions if record.problem}
    return {p: {n: w for n, w in each.items() if (p, n) not in problem} for p, each in matched.items()}, lost


def _heads(weights: np.ndarray, heads: int) -> bool:
    return weights.shape[-3] == heads if weights.ndim == 4 else weights.shape[0] % heads == 0


def _layer(trace, part: str, layer: int, ran: np.ndarray) -> Iterator[str]:
    where = f"layer {layer}" + (f" of {part!r}" if part else "")
    record = [record for record in trace.attentions if record.part == part][layer]
    allowed = tolerance(dtype_name(trace.values[record.q].dtype))
    shown = array(trace.attention(layer, part=part))
    if shown.shape != ran.shape:
        yield f"{where} has weights of shape {shown.shape}, the softmax that ran {ran.shape}"
        return
    if not abs(shown - ran).max() <= allowed:
        yield f"{where} is off by {abs(shown - ran).max():.1e} from the softmax that ran"
    for head in range(ran.shape[1]):
        query = (7 * head + 3) % ran.shape[2]
        head_rows, row = trace.attention(layer, head, part=part), trace.attention(layer, head, query, part=part)
        if not abs(array(head_rows) - ran[:, head]).max() <= allowed:
            yield f"{where}: head {head} is not the one that ran"
        if not abs(array(row) - ran[:, head, query]).max() <= allowed:
            yield f"{where}: row {query} of head {head} is not the one that ran"


def _rollout(trace, part: str, means: list[np.ndarray]) -> Iterator[str]:
    """Check the rollout: each token keeps half of itself and reads half of others, layer after layer (Abnar and Zuidema
    2020)."""
    count = sum(record.part == part for record in trace.attentions)
    if len(means) < count or any(mean.shape != means[0].shape or mean.shape[-1] != mean.shape[-2] for mean in means):
        return
    shown = array(rollout(trace, part=part, steps=True))
    if len(shown) != count:
        yield f"rollout of {part!r} has {len(shown)} layers, the run {count}"
        return
    for first in {0, count // 2}:
        carried = np.eye(means[0].shape[-1])[None]
        for layer, mean in enumerate(means[first:], first):
            carried = 0.5 * (mean @ carried + carried)
            if first == 0 and not abs(shown[layer] - carried).max() <= 1e-5:
                yield f"rollout of {part!r} after layer {layer} is off by {abs(shown[layer] - carried).max():.1e}"
        if not abs(array(rollout(trace, part=part, start=first)) - carried).max() <= 1e-5:
            yield f"rollout of {part!r} from layer {first} on is not that of the weights that ran"


def _regions(trace, ran) -> Iterator[str]:
    """Check the attention of a word on the picture: the row of the token before it, as a grid of patches."""
    text = next((segment for segment in trace.segments if segment.name == "text" and not segment.part), None)
    image = next((segment for segment in trace.segments if segment.name == "image" and not segment.part), None)
    if trace.picture is None or text is None or image is None:
        return
    for layer, weights in ran.get("", {}).items():
        for place in {1, text.stop - text.start}:
            row = weights[0, :, text.start + place - 1, image.start : image.stop]
            for head, expected in ((None, row.mean(axis=0)), (1 % len(row), row[1 % len(row)])):
                shown = array(region(trace, place, layer, head)).ravel()
                if shown.shape != expected.shape or not abs(shown - expected).max() <= 1e-5:
                    yield f"where word {place} looks in layer {layer} is not the row of weights that ran"


# Heads switched off, compared with a plain run in which their rows of the output projection are 0.

HEADS = 2
"""Number of heads that are tried."""


@check
def check_effects_of_heads(run: PlainRun) -> Iterator[str]:
    """Yield a sentence for each head without which the output is not that of a plain run with its rows at 0."""
    if (weights := heads_of(run)) is None:
        return
    id, heads, parameter = weights
    step = run.trace.step(id)
    ops = {*step.ops, step.inside}
    part = next((record.part for record in run.trace.attentions if record.op in ops), "")
    try:
        switchboard = HeadSwitchboard(run.model, run.inputs, head_sites(run.trace, part or None))
    except ValueError:  # it has no weights that can be changed
        return
    switchboard.heads = tuple(head for head in switchboard.heads if head.layer == step.layer)[-HEADS:]
    probe = switchboard.probe(run.inputs)
    for head, output in zip(switchboard.heads, probe.outputs[1:], strict=True):
        expected = next(
            output for output in without_heads(run, parameter, heads, {head.head}) if output.is_floating_point()
        )
        if expected.shape[1:] != output.shape:
            continue
        error = float((output - expected[0]).abs().max())
        if not error <= 10 * TOLERANCE * float(expected.abs().max()):
            yield f"the output without head {head.head} of {id!r} differs from that without its rows, by {error}"


# Photo lit by attention: the order of lightness of its patches is the order of their weights.

WEIGHT_RESOLUTION = 1 / 32
"""Weights that differ by less than this share of the largest may look alike."""


@check
def check_map_luminance(run: PlainRun) -> Iterator[str]:
    """Yield a sentence for each layer whose map over the photo has patches in another order than their weights."""
    picture = run.trace.picture
    if picture is None or (photo := run.trace.values.get(picture.value)) is None:
        return
    pixels = np.asarray(photo)
    greys = attention_maps.sketch(pixels, picture.crop, picture.rows, picture.columns)
    for part in parts(run.trace):
        patches = places(run.trace, part)
        records = [record for record in run.trace.attentions if record.part == part and not record.problem]
        for layer, record in enumerate(records):
            tokens = sorted(token for token in patches if token < record.keys)
            if not tokens or record.over != "tokens" or record.queries != record.keys:
                continue
            weights = array(run.trace.attention(layer, part=part)[0].mean(0))[0]
            shares = np.zeros(picture.rows * picture.columns)
            shares[[patches[token] for token in tokens]] = weights[tokens]
            shares = (shares / max(shares.max(), 1e-12)).reshape(picture.rows, picture.columns)
            if exchanged := _swapped_patches(attention_maps.light(greys, picture.crop, shares), picture.crop, shares):
                first, second = exchanged
                yield f"layer {layer}: patch {first} has more weight than patch {second} and is not brighter"


def _swapped_patches(colours: np.ndarray, crop, shares: np.ndarray) -> tuple[int, int] | None:
    """Return two patches of which the first has clearly more weight and is not lighter, if there are any."""
    left, top, right, bottom = crop
    rows, columns = shares.shape
    row = np.floor((np.arange(colours.shape[0]) + 0.5 - top) / (bottom - top) * rows).astype(int)
    column = np.floor((np.arange(colours.shape[1]) + 0.5 - left) / (right - left) * columns).astype(int)
    light = _lightness(colours)
    luminance = np.array([light[row == r][:, column == c].mean() for r in range(rows) for c in range(columns)])
    weights = shares.ravel()
    wrong = (weights[:, None] - weights > WEIGHT_RESOLUTION) & (luminance[:, None] <= luminance)
    return (int(np.argwhere(wrong)[0][0]), int(np.argwhere(wrong)[0][1])) if wrong.any() else None


def _lightness(colours: np.ndarray) -> np.ndarray:
    """Return L* of sRGB colours `[…, 3]` from 0 to 255. Source: CIE 15:2004, section 8.2.1; IEC 61966-2-1."""
    parts = colours / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    luminance = linear @ (0.2126, 0.7152, 0.0722)
    return np.where(luminance > 216 / 24389, 116 * np.cbrt(luminance) - 16, 24389 / 27 * luminance)


# Masks by perturbation: a token of an attention or of the blocks is replaced, and the outputs that differ are those
# that may attend to it. All in float64, on a copy of the net, so that a small weight does not look like a closed cell.

PATCHES_AND_WORDS = ("image", "text", "visible")
"""The segments whose tokens are part of the input, and can be another one."""


@check
def check_mask_by_perturbation(run: PlainRun) -> Iterator[str]:
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
    calls = run.attention_inputs[record.module]
    args, kwargs = calls[number] if number < len(calls) else ((), {})
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
    if any(abs(shares - weights[query]).max() > 1e-5 for shares in (powers / powers.sum(), array(read.weights))):
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
    with last.register_forward_hook(lambda module, args, output: captured.append(array(tensors(output)[0]))):
        for inputs in (run.inputs, changed):
            run.model.net(*inputs, **inputs.named)
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


# Letters of queries, keys and values: each must match the operand of the scores.
#
# The record of an attention says what the code multiplied as queries and as keys; the textbook's letters come from the
# derivation. Where a tensor with a letter holds the very numbers of one of the two, the letter has to be its own.

LETTER = re.compile(r"\\mathbf\{([QKV])\}")


@check
def check_qkv_letters(run: PlainRun) -> Iterator[str]:
    """Compare every step named Q, K or V with the queries and keys of each attention, and a block's number with the one
    in its path."""
    trace = run.trace
    for step in trace.steps:
        block = re.search(r"\bblock(\d+)\.", step.id)
        if block and step.layer != int(block[1]) - 1:
            yield f"step {step.id!r} is in layer {step.layer}, its path says {int(block[1]) - 1}"
        letter, value = LETTER.match(step.symbol), trace.value(step)
        if not letter or value is None:
            continue
        for record in trace.attentions:
            q, k = trace.values.get(record.q), trace.values.get(record.k)
            if q is None or k is None or hold_same_numbers(q, k):
                continue
            for name, operand in (("Q", q), ("K", k)):
                if hold_same_numbers(value, operand) and letter[1] != name:
                    called = f"step {step.id!r}, called {step.symbol},"
                    yield f"{called} holds the numbers that attention {record.layer} took as {name}"


def hold_same_numbers(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors hold the same numbers in the same order, or transposed, whatever the layout of their
    batch."""
    return a.numel() == b.numel() and any(x.reshape(-1).equal(b.reshape(-1)) for x in (a, a.mT if a.ndim > 1 else a))


# Four terms of the first block's scores, content and position against each other, from the parameters in NumPy.

QUERY = "block1.attention.query"
"""The step whose equation says whether the first block reads tokens plus positions as they are."""


@check
def check_score_decomposition(run: PlainRun) -> Iterator[str]:
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
