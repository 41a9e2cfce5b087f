"""What must hold between the fields of a trace, so that no view of a stranger's file fails later.

Each check is one function of the trace, and raises ValueError with what was expected and where.
"""

from __future__ import annotations

import re
from collections import Counter
from math import isfinite

import torch

from tracer.attention import weights
from tracer.record import AttentionRecord, Symbol, Trace
from tracer.storage.formulas import UNKNOWN, formula, mathematics, value

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check(trace: Trace) -> None:
    """Runs every check of this file; ValueError at the first that fails."""
    for rule in (_symbols, _ops, _decompositions, _steps, _attentions, _picture, _segments):
        rule(trace)
    for name in ("params", "flops"):
        _count(getattr(trace, name), name)
        _agrees(getattr(trace, f"{name}_symbolic"), getattr(trace, name), trace.symbols, name)


def _symbols(trace: Trace) -> None:
    names = [symbol.name for symbol in trace.symbols]
    _expect(len(set(names)) == len(names), "symbols", "each name once")
    for symbol in trace.symbols:
        _expect(NAME.fullmatch(symbol.name), f"symbol {symbol.name!r}", "letters, digits and _")
        _count(symbol.value, f"symbol {symbol.name!r}")
        if symbol.equals:
            _agrees(symbol.equals, symbol.value, trace.symbols, f"symbol {symbol.name!r}")


def _ops(trace: Trace) -> None:
    steps = {step.id for step in trace.steps}
    for position, op in enumerate(trace.ops):
        where = f"op {position}"
        _expect(op.index == position, where, f"index {position}, got {op.index}")
        for tensor in (*op.inputs, *op.outputs):
            _shape(tensor.shape, tensor.symbolic, trace.symbols, where)
            if isinstance(tensor.maker, int):
                _expect(0 <= tensor.maker < len(trace.ops), where, f"a maker among {len(trace.ops)} ops")
        _expect(op.step is None or op.step in steps, where, f"a step of this trace, got {op.step!r}")
        for name in ("call", "params", "flops"):
            _count(getattr(op, name), f"{where}.{name}")
        _agrees(op.params_symbolic, op.params, trace.symbols, f"{where}.params")
        _agrees(op.flops_symbolic, op.flops, trace.symbols, f"{where}.flops")
        _source(op.source, where)


def _decompositions(trace: Trace) -> None:
    if not trace.decompositions:
        return
    _expect(len(trace.decompositions) == len(trace.ops), "decompositions", f"one for each of {len(trace.ops)} ops")
    for position, opened in enumerate(trace.decompositions):
        where = f"decomposition {position}"
        _expect(opened.op == position, where, f"op {position}, got {opened.op}")
        _expect(opened.error is None or not opened.error < 0, where, "an error that is not negative")
        for primitive in opened.primitives:
            for tensor in (*primitive.inputs, *primitive.outputs):
                _shape(tensor.shape, tensor.symbolic, trace.symbols, where)
                if isinstance(tensor.maker, int):
                    count = len(opened.primitives)
                    _expect(0 <= tensor.maker < count, where, f"a maker among {count} primitives")


def _steps(trace: Trace) -> None:
    ids = [step.id for step in trace.steps]
    _expect(len(set(ids)) == len(ids), "steps", "each id once")
    for step in trace.steps:
        where = f"step {step.id!r}"
        _shape(step.shape, step.symbolic, trace.symbols, where)
        _expect(all(0 <= op < len(trace.ops) for op in step.ops), where, f"indices of {len(trace.ops)} ops")
        _expect(step.layer is None or step.layer >= 0, where, "a layer that counts from 0")
        _expect(step.error is None or not step.error < 0, where, "an error that is not negative")
        mathematics(step.symbol, where)
        mathematics(step.latex, where)
        _source(step.source, where)
        for operand in step.product or ():
            _shape(operand.shape, operand.symbolic, trace.symbols, where)
            mathematics(operand.symbol, where)


def _attentions(trace: Trace) -> None:
    before = Counter()
    for number, record in enumerate(trace.attentions):
        where = f"attention {number}"
        _expect(0 <= record.op < len(trace.ops), where, f"an op among {len(trace.ops)}")
        for name in ("layer", "heads", "queries", "keys"):
            _count(getattr(record, name), f"{where}.{name}")
        if not record.problem:
            _recoverable(trace, record, before[record.part], where)
        before[record.part] += 1


def _recoverable(trace: Trace, record: AttentionRecord, layer: int, where: str) -> None:
    """What is kept gives weights of the recorded sizes; tried on one query."""
    q, k = (trace.values.get(key) for key in (record.q, record.k))
    _expect(q is not None and k is not None, where, "kept queries and keys")
    fits = q.ndim == k.ndim and q.ndim >= 3 and q.is_floating_point() and k.is_floating_point()
    fits = fits and q.shape[-2:] == (record.queries, k.shape[-1]) and k.shape[-2] == record.keys and q.numel() > 0
    _expect(fits, where, f"queries and keys of {record.queries} and {record.keys} vectors of one width")
    scores = q.shape[:-2].numel() * record.queries * record.keys
    for _, arguments in record.chain:
        others = [trace.values[item] for item in arguments if isinstance(item, str) and item in trace.values]
        _expect(all(tensor.numel() <= scores for tensor in others), where, "a mask no larger than the scores")
    try:
        row = weights(trace, layer, query=0, part=record.part)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise ValueError(f"{where}: its weights can't be recomputed ({error})") from error
    fits = row.ndim == 3 and row.shape[-2:] == (record.heads, record.keys)
    _expect(fits, where, f"weights of {record.heads} heads over {record.keys} keys")


def _picture(trace: Trace) -> None:
    picture = trace.picture
    if picture is None:
        return
    pixels = trace.values.get(picture.value)
    _expect(pixels is not None and pixels.dtype == torch.uint8, "picture", "kept pixels of 8 bits")
    _expect(pixels.ndim == 3 and pixels.shape[-1] == 3 and pixels.numel() > 0, "picture", "pixels [H, W, 3]")
    left, top, right, bottom = picture.crop
    _expect(
        all(map(isfinite, picture.crop)) and left < right and top < bottom,
        "picture",
        "a crop (left, top, right, bottom)",
    )
    _expect(picture.rows > 0 and picture.columns > 0 and picture.first >= 0, "picture", "a grid of patches")
    longest = max((record.keys for record in trace.attentions), default=None)
    if longest is not None:
        _expect(picture.first + picture.rows * picture.columns <= longest, "picture", f"patches among {longest} tokens")


def _segments(trace: Trace) -> None:
    patches = trace.picture.rows * trace.picture.columns if trace.picture else 0
    for segment in trace.segments:
        where, places = f"segment {segment.name!r}", segment.places
        _expect(0 <= segment.start <= segment.stop, where, "0 ≤ start ≤ stop")
        if places:
            _expect(len(places) == segment.stop - segment.start, where, "a place for each token")
            _expect(all(0 <= place < patches for place in places), where, f"places among {patches} patches")
            _expect(len(set(places)) == len(places), where, "each place once")


def _shape(shape: tuple[int, ...], symbolic: tuple[str, ...] | None, symbols: tuple[Symbol, ...], where: str) -> None:
    _expect(all(size >= 0 for size in shape), where, "sizes that are not negative")
    if symbolic is not None:
        _expect(len(symbolic) == len(shape), where, f"{len(shape)} symbolic sizes, got {len(symbolic)}")
        for text, size in zip(symbolic, shape, strict=True):
            _agrees(text, size, symbols, where)


def _agrees(text: str, number: int, symbols: tuple[Symbol, ...], where: str) -> None:
    """A formula is one over the trace's own symbols, and has the number beside it for its value."""
    formula(text)
    if text != UNKNOWN:
        found = value(text, symbols)
        _expect(found == number, where, f"{text!r} to be {number}, got {found}")


def _source(source, where: str) -> None:
    if source is not None:
        _count(source.line, f"{where}.source")


def _count(value: int, where: str) -> None:
    _expect(value >= 0, where, "a number that is not negative")


def _expect(holds, where: str, what: str) -> None:
    if not holds:
        raise ValueError(f"{where}: expected {what}")
