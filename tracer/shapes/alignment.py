"""How the ops of runs at other sizes correspond."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from math import gcd, prod

from tracer.capture import OpEvent, Recording
from tracer.capture.calls import VIEWS, Call, all_calls
from tracer.capture.logged_sizes import Scalars
from tracer.ops import CONCATENATIONS, ops_with, schema
from tracer.shapes.solver import CallIndex, floor_divide

# Output sizes that follow from an op's arguments: sliding windows, slices, padding.

Shape = tuple[str, ...]


def apply_size_rules(op: OpEvent, inputs: Sequence[Shape], others: Sequence[OpEvent] = ()) -> dict[int, list[str]]:
    """Return formulas for axes of an op's outputs over the symbolic shapes of its inputs, from its arguments.

    An axis of a pooling that rounds up has two formulas, since the last window can be left out. An axis whose input has
    no symbol has none. `others` are the same op in other runs. If the padding differs between them, it fills up to
    whole windows. If a reshape merges the same axes in all, the result has the product of their sizes.
    """
    rule = schema(op.name).size_rule
    if rule == "merge":
        return dict(_merge_axes([op, *others], inputs))
    reader = READERS.get(rule)
    if reader is None or not inputs or not all(run_op.settings for run_op in (op, *others)):
        return {}
    formulas_by_axis = {axis: formulas for axis, formulas in reader(op, inputs) if formulas}
    if reader is _padding:
        formulas_by_axis |= dict(_fill_windows([op, *others], inputs))
    return formulas_by_axis


def _window_count(size: str, window: int, stride: int, padding: int, dilation: int, up: bool = False) -> list[str]:
    """Return formulas of the number of windows along an axis: ⌊(H + 2p − d(k − 1) − 1)/s⌋ + 1."""
    if size == "?":
        return []
    offset = 2 * padding - dilation * (window - 1) - 1
    offsets = (offset + 2 * stride - 1, offset + stride - 1) if up else (offset + stride,)
    return [floor_divide(size, each, stride) for each in offsets]


def _convolution(op: OpEvent, inputs) -> Iterator[tuple[int, list[str]]]:
    stride, padding, dilation, transposed, extra = op.settings[3:8]
    windows = inputs[1][2:]
    for i, (size, window) in enumerate(zip(inputs[0][2:], windows, strict=True)):
        if size == "?" or not window.isdecimal():
            continue
        s, p, d = (_at(setting, i) for setting in (stride, padding, dilation))
        if transposed:
            offset = d * (int(window) - 1) + 1 + _at(extra, i) - 2 * p - s
            yield i + 2, [f"{s}*({size}) + {offset}"]
        else:
            yield i + 2, _window_count(size, int(window), s, p, d)


def _pooling(op: OpEvent, inputs) -> Iterator[tuple[int, list[str]]]:
    windows, stride, padding, *rest = op.settings[1:]
    dilation, up = (1, rest[0]) if op.name.startswith("avg") else (rest[0], rest[1])
    count = len(windows)
    rank = len(inputs[0])
    for i in range(count):
        window = _at(windows, i)
        s, p, d = (_at(setting, i) for setting in (stride or windows, padding, dilation))
        yield rank - count + i, _window_count(inputs[0][rank - count + i], window, s, p, d, up)


def _slice(op: OpEvent, inputs) -> Iterator[tuple[int, list[str]]]:
    axis, start, end, step = op.settings[1:5]
    axis %= len(inputs[0])
    size, length = inputs[0][axis], op.inputs[0][0][axis]
    start, end = start or 0, length if end is None else end
    if size != "?":
        first = start if start >= 0 else f"({size}) + ({start})"
        last = f"({size})" if end >= length else f"({size}) + ({end})" if end < 0 else end
        yield axis, [floor_divide(f"{last} - ({first})", step - 1, step)]


def _unfold(op: OpEvent, inputs) -> Iterator[tuple[int, list[str]]]:
    axis, window, step = op.settings[1:4]
    yield axis % len(inputs[0]), _window_count(inputs[0][axis], window, step, 0, 1)


def _padding(op: OpEvent, inputs) -> Iterator[tuple[int, list[str]]]:
    pads, rank = op.settings[1], len(inputs[0])
    for i in range(len(pads) // 2):
        size = inputs[0][rank - 1 - i]
        if size != "?":
            yield rank - 1 - i, [f"({size}) + {pads[2 * i] + pads[2 * i + 1]}"]


def _fill_windows(same: list[OpEvent], inputs) -> Iterator[tuple[int, list[str]]]:
    """Yield axes that are padded to the next multiple of a number, if only one number fits all runs."""
    rank = len(inputs[0])
    for i in range(len(same[0].settings[1]) // 2):
        axis, pads = rank - 1 - i, [sum(op.settings[1][2 * i : 2 * i + 2]) for op in same]
        if inputs[0][axis] == "?" or len(set(pads)) == 1 or min(pads) < 0:
            continue
        whole = gcd(*(op.outputs[0][0][axis] for op in same))
        windows = [k for k in range(max(pads) + 1, whole + 1) if whole % k == 0]
        if len(windows) == 1:
            yield axis, [f"{windows[0]}*({floor_divide(inputs[0][axis], windows[0] - 1, windows[0])})"]


def _merge_axes(same: list[OpEvent], inputs) -> Iterator[tuple[int, list[str]]]:
    """Yield the axes that a reshape merges from several, the same ones in all runs."""
    groups = {_groups(op.inputs[0][0], op.outputs[0][0]) for op in same}
    for axis, parts in enumerate(min(groups) if len(groups) == 1 else ()):
        sizes = [inputs[0][part] for part in parts]
        if len(parts) > 1 and "?" not in sizes:
            yield axis, ["*".join(f"({size})" for size in sizes)]
    if () in groups and "?" not in inputs[0]:
        yield from _remaining_axis(same, inputs[0])


def _remaining_axis(same: list[OpEvent], before: Shape) -> Iterator[tuple[int, list[str]]]:
    """Yield the one axis of a reshape that takes the remaining size, if all others have one size in all runs."""
    shapes = [(op.inputs[0][0], op.outputs[0][0]) for op in same]
    first = next(i for i in range(len(before)) if any(i >= len(b) or a[i] != b[i] for a, b in shapes))
    columns = [{b[axis] for _, b in shapes} for axis in range(len(shapes[0][1]))]
    moving = [axis for axis in range(first, len(columns)) if len(columns[axis]) > 1]
    if len(moving) == 1:
        others = prod(min(columns[axis]) for axis in range(first, len(columns)) if axis != moving[0])
        whole = "*".join(f"({size})" for size in before[first:])
        yield moving[0], [f"({whole})/{others}"]


def _groups(before: Sequence[int], after: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return the axes that each axis of a result is merged from; empty if one is split."""
    left, groups = list(range(len(before))), []
    for size in after:
        parts, whole = list[int](), 1
        while left and whole * before[left[0]] <= size and (not parts or whole != size):
            whole *= before[left[0]]
            parts.append(left.pop(0))
        if whole != size:
            return ()
        groups.append(tuple(parts))
    return tuple(groups) if not left else ()


def _at(setting, position: int) -> int:
    """Return the number at a position; a single number is for all axes."""
    if isinstance(setting, int):
        return setting
    return setting[position] if len(setting) > 1 else setting[0]


READERS = {
    "convolution": _convolution,
    "slice": _slice,
    "unfold": _unfold,
    "pad": _padding,
    "pooling": _pooling,
}
"""The size rules of `tracer.ops`."""


# Calls that run other ops at a batch of one, such as `linear`: `addmm` there, on non-contiguous input, else `bmm`.
#
# Operands and results of such a call have their sizes at any batch.

Shapes = tuple[tuple[str, ...], ...]


def respell(
    run: Sequence[OpEvent],
    calls: Iterable[Call],
    probes: Sequence[tuple[Recording, Sequence[int | None]]],
    notes: Sequence[str],
    inputs: list[Shapes],
    outputs: list[Shapes],
) -> None:
    """Replace the shapes of operands and results of such calls by those of the ops around them, in place.

    `probes` are runs at other sizes, each with the indices of its ops that match this run's. A call is respelled only
    if every probe ran it, too.
    """
    owners = [CallIndex(recording.scalars, recording.numbers) for recording, _ in probes]
    for call in calls:
        inside = range(call.first, call.last)
        if not call.inner or not any(notes[op] for op in inside):
            continue
        if not all(is_in_probe(run, call, *probe, of) for probe, of in zip(probes, owners, strict=True)):
            continue
        for op in filter(notes.__getitem__, inside):
            inputs[op] = tuple(
                _shape_from_producer(run, tensor, notes, inside, outputs) or solved
                for tensor, solved in zip(run[op].inputs, inputs[op], strict=True)
            )
            outputs[op] = tuple(
                _shape_from_user(run, op, shape, notes, inside, inputs) or solved
                for (shape, *_), solved in zip(run[op].outputs, outputs[op], strict=True)
            )


def is_in_probe(run, call: Call, probe: Recording, match: Sequence[int | None], owners: CallIndex) -> bool:
    """Return whether another run made the same call: of the same name, line, numbers and ranks, between matching
    ops."""
    before = next((j for j in reversed(match[: call.first]) if j is not None), -1)
    after = next((j for j in match[call.last :] if j is not None), len(probe.ops))
    line, scalars = (run[call.first].module, run[call.first].line), Scalars.of(call)
    theirs = (
        owners.at(call.name, probe.numbers[op])
        for op in range(before + 1, after)
        if (probe.ops[op].module, probe.ops[op].line) == line
    )
    return any(same is not None and scalars.is_like(same) for same in theirs)


def _shape_from_producer(run, tensor: tuple, notes, inside: range, outputs: list[Shapes]) -> tuple[str, ...] | None:
    """Return the solved shape of a tensor from its producer outside the call; None if there is none."""
    shape, _, maker = tensor
    if not isinstance(maker, int) or maker in inside or notes[maker]:
        return None
    shapes = [numeric for numeric, *_ in run[maker].outputs]
    return outputs[maker][shapes.index(shape)] if shapes.count(shape) == 1 else None


def _shape_from_user(run, op: int, shape: tuple, notes, inside: range, inputs: list[Shapes]) -> tuple[str, ...] | None:
    """Return the solved shape of an op's result from a user outside the call; None if there is none."""
    for taker in range(inside.stop, len(run)):
        for place, (size, _, maker) in enumerate(run[taker].inputs):
            if maker == op and size == shape and not notes[taker]:
                return inputs[taker][place]
    return None


# Alignment of the ops of two runs at different sizes: by module, source line and op.

JOINS = CONCATENATIONS
"""Ops with as many operands as a loop has iterations."""
DEALS = ops_with("split") | {"unbind"}
"""Ops with as many results as a loop has iterations."""

MAX_OPS = 2000
"""Largest number of ops in one iteration of a loop."""

GENERATED_PREFIX = "<"
"""Prefix of the file name of generated code; the name differs in each copy."""

COPIES = ops_with("copy")

ARGUMENT = -1
"""What stands for a producer where an op differs in its arguments, is there at some sizes only, or is returned at some
only."""

SELF_COMPARISONS = {"ge": True, "le": True, "eq": True, "gt": False, "lt": False, "ne": False}
"""What each comparison gives of a position and itself."""

Match = Sequence[int | None]


def align(run, probe) -> list[int | None]:
    """Return for each op of `run` the index of the same op in `probe`, or None if `probe` has none.

    Op lists of one model differ with the batch: at B = 1 a reshape is a `view`, else a `clone` and an `_unsafe_view`.
    So reshapes count as one op, and copies are matched only if both runs have them.
    """
    if [_key(op) for op in run] == [_key(op) for op in probe]:
        return [i if _fits(op, probe_op) else None for i, (op, probe_op) in enumerate(zip(run, probe, strict=True))]
    left = [i for i, op in enumerate(run) if op.name not in COPIES]
    right = [i for i, op in enumerate(probe) if op.name not in COPIES]
    result: list[int | None] = [None] * len(run)
    keys = [_key(run[i]) for i in left], [_key(probe[i]) for i in right]
    for i, j in match_in_order(*keys):
        result[left[i]] = right[j]
    _match_iterations(keys[0], left, result)
    for i, op in enumerate(run):  # a copy belongs to the reshape after it
        if op.name in COPIES and i + 1 < len(run) and (after := result[i + 1]):
            result[i] = after - 1 if _key(probe[after - 1]) == _key(op) else None
    return [j if j is not None and _fits(run[i], probe[j]) else None for i, j in enumerate(result)]


def match_in_order(first: Sequence[Hashable], second: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return the places of equal items of two sequences, in order, as pairs.

    Where only one of them has a stretch, it may lie at the start or at the end of what repeats around it. It is put at
    the end, so that the iterations of two loops match from the first on.
    """
    if first == second:
        return [(place, place) for place in range(len(first))]
    blocks = SequenceMatcher(a=first, b=second, autojunk=False).get_matching_blocks()
    pairs = [(a + offset, b + offset) for a, b, length in blocks for offset in range(length)]
    before = -1, -1
    for number, (i, j) in enumerate(pairs):
        if i == before[0] + 1 and second[before[1] + 1] == second[j]:
            j = before[1] + 1
        elif j == before[1] + 1 and first[before[0] + 1] == first[i]:
            i = before[0] + 1
        before = pairs[number] = i, j
    return pairs


def _match_iterations(keys: list[tuple], left: list[int], result: list[int | None]) -> None:
    """Match the iterations of a loop that the probe has fewer of with the iteration before, or after."""
    missing = [place for place, i in enumerate(left) if result[i] is None]
    for places, step in ((missing, -1), (missing[::-1], 1)):
        start = 0
        while start < len(places):
            stop = start + 1
            while stop < len(places) and places[stop] - places[stop - 1] == -step:
                stop += 1
            stretch = places[start:stop]
            period = _period(keys, stretch, step, lambda place: result[left[place]] is not None)
            if period is not None:
                for place in stretch:
                    result[left[place]] = result[left[place + step * period]]
            start = stop


def _period(keys: list[tuple], stretch: list[int], step: int, known) -> int | None:
    """Return the number of ops in one iteration, if a stretch repeats the matched iteration beside it; else None."""
    first = stretch[0]
    for period in range(1, min(len(stretch), MAX_OPS) + 1):
        beside = range(first + step, first + step * (period + 1), step)
        if not 0 <= beside[-1] < len(keys) or not all(map(known, beside)):
            return None
        if all(keys[place] == keys[place + step * period] for place in stretch):
            return period
    return None


def _key(op) -> tuple:
    axis = op.settings[1] % len(op.inputs[0][0]) if op.name == "slice" else None  # one of `[:H, :W]` may be left out
    line = (GENERATED_PREFIX, op.line[1]) if op.line and op.line[0].startswith(GENERATED_PREFIX) else op.line
    return op.module, line, canonical_name(op.name), axis


def canonical_name(name: str) -> str:
    """Return the name of an op, the same one for all reshapes."""
    return "view" if name in VIEWS and name not in COPIES else name


def _fits(a, b) -> bool:
    def ranks(tensors):
        return [len(shape) for shape, *_ in tensors]

    joins = a.name in JOINS and len(set(ranks(a.inputs) + ranks(b.inputs))) == 1
    deals = a.name in DEALS and len(set(ranks(a.outputs) + ranks(b.outputs))) == 1
    return (joins or ranks(a.inputs) == ranks(b.inputs)) and (deals or ranks(a.outputs) == ranks(b.outputs))


def _dtypes(tensors: Iterable[tuple]) -> set:
    """Return the dtypes of the tensors that an op reads or computes."""
    return {dtype for _, dtype, _ in tensors}


def _is_cast(op: OpEvent) -> bool:
    """Return whether an op that only changes the layout also changes the dtype."""
    return bool(op.inputs) and _dtypes(op.inputs[:1]) != _dtypes(op.outputs)


class Dataflow:
    """Producers of one run's tensors, behind the ops that only change the layout.

    The graph of the textbook, `tracer.graph.dataflow.Graph`, is of calls, which it links by the keys of their values.
    Ops are recorded with the producers of their operands, so that this one holds no links of its own, only the walk
    over layouts, whose rules are those of ops: a copy that a batch of one does not need, or a cast.
    """

    def __init__(self, ops: Sequence[OpEvent], numbers: Sequence[int] | None = None):
        self.ops = ops
        self._place = {number: i for i, number in enumerate(numbers)} if numbers is not None else None

    def source(self, maker: int | str) -> int | str:
        """Return the op that computed the output of `maker`, or the input of the run."""
        while isinstance(maker, int):
            maker = self._at(maker)
            op = self.ops[maker]
            if not op.layout or not op.inputs or op.name.endswith("_") or op.name in JOINS or _is_cast(op):
                return maker
            maker = op.inputs[0][2]
        return maker

    def sources(self, op: OpEvent) -> list[int | str]:
        """Return the producers of an op's operands; a single one for parts of a tensor that are joined again
        unchanged."""
        makers = [maker for *_, maker in op.inputs]
        if op.name in JOINS and len({*makers}) == 1 and isinstance(makers[0], int):
            split = self.ops[self._at(makers[0])]
            if split.name in DEALS and len(split.outputs) == len(makers):
                return [self.source(split.inputs[0][2])]
        return [self.source(maker) for maker in makers]

    def _at(self, maker: int) -> int:
        return maker if self._place is None else self._place.get(maker, maker)


class PositionMasks:
    """Selections of a run by a comparison of positions, such as a causal mask.

    Of a single token such a selection takes all of one operand, so that code may leave it out there.
    """

    def __init__(self, flow: Dataflow, calls: Iterable[Call]):
        self._flow = flow
        self._counts = {
            call.last - 1
            for call in all_calls(calls)
            if call.name == "arange" and "start" not in call.arguments and call.arguments.get("step", 1) == 1
        }

    def find_unmasked(self, op: int | str, shape: tuple[int, ...]) -> tuple[int | str, tuple[int, int]] | None:
        """Return the source of a selection's operand where its result has this shape, and the ops that are not needed
        for it; None if its mask can hide something there, or if the op is no such selection."""
        if isinstance(op, str) or self._flow.ops[op].name not in ("where", "masked_fill"):
            return None
        event, sources = self._flow.ops[op], self._flow.sources(self._flow.ops[op])
        place = 0 if event.name == "where" else 1
        mask, (sizes, *_), (whole, *_) = sources[place], event.inputs[place], event.outputs[0]
        if isinstance(mask, str) or len(shape) != len(whole) or not self._compares_positions(mask):
            return None
        axes = [len(whole) - len(sizes) + axis for axis, size in enumerate(sizes) if size > 1]
        taken = SELF_COMPARISONS[self._flow.ops[mask].name]
        if any(shape[axis] != 1 for axis in axes) or (event.name == "masked_fill" and taken):
            return None
        kept = (1 if taken else 2) if event.name == "where" else 0
        return (sources[kept], (op, mask)) if event.inputs[kept][0] == whole else None

    def _compares_positions(self, op: int) -> bool:
        """Return whether an op compares positions that are both counted from 0."""
        event = self._flow.ops[op]
        return (
            event.name in SELF_COMPARISONS
            and len(event.inputs) == 2
            and self._counts.issuperset(self._flow.sources(event))
        )


def repeated_pairs(match: Match) -> Iterator[tuple[int, int]]:
    """Yield ops of a run that are one op of a probe, which has fewer iterations of a loop: each with the one before."""
    last: dict[int, int] = {}
    for i, j in enumerate(match):
        if j is not None:
            if j in last:
                yield last[j], i
            last[j] = i


def find_diverging_ops(
    run: Sequence[OpEvent], returned: Sequence[int | str], calls: Sequence[Call], probe: Recording, match: Match
) -> Iterator[tuple[int, int]]:
    """Yield each op of a run that has another operand in a probe, with the producer that differs there.

    Several ops that are one in the probe are turns of a loop that it has fewer of: what they take is not compared. A
    mask that hides nothing in the probe may be missing there.
    """
    ours, theirs = Dataflow(run), Dataflow(probe.ops, probe.numbers)
    masks, needless = PositionMasks(ours, calls), set[int]()
    times = Counter(j for j in match if j is not None)

    def differs(a: int | str, b: int | str) -> bool:
        if isinstance(a, str) or isinstance(b, str):
            return a != b
        return match[a] != b and (match[a] is not None or b in times)

    for i, j in enumerate(match):
        if j is None and run[i].name in ("squeeze", "squeeze_"):  # it drops other axes there
            yield i, ARGUMENT
        if j is None or times[j] > 1:
            continue
        run_op, probe_op = run[i], probe.ops[j]
        if _dtypes(run_op.inputs) == _dtypes(probe_op.inputs) and _dtypes(run_op.outputs) != _dtypes(probe_op.outputs):
            yield i, ARGUMENT
        before, there = ours.sources(run_op), theirs.sources(probe_op)
        for place, (a, b) in enumerate(zip(before, there, strict=False)):
            if differs(a, b) and len(before) == len(there) == len(probe_op.inputs):
                unmasked = masks.find_unmasked(a, probe_op.inputs[place][0])
                if unmasked and not differs(unmasked[0], b):
                    before[place] = unmasked[0]
                    needless.update(unmasked[1])
        others = [a for a, b in zip(before, there, strict=False) if differs(a, b)]
        others += before[len(there) :] or ([before[-1]] if len(there) > len(before) > 0 else [])
        yield from ((i, a if isinstance(a, int) else ARGUMENT) for a in others)
    ends, there = (
        [flow.source(maker) for maker in makers] for flow, makers in ((ours, returned), (theirs, probe.returned))
    )
    for n, (maker, a) in enumerate(zip(returned, ends, strict=True)):
        if isinstance(maker, int) and isinstance(a, int) and (n >= len(there) or differs(a, there[n])):
            yield from ((op, a) for op in {maker, a})
    owners = CallIndex(probe.scalars, probe.numbers)
    for call in calls:
        ops = range(call.first, call.last)
        missing = [op for op in ops if match[op] is None and (not run[op].layout or _is_cast(run[op]))]
        missing = [op for op in missing if op not in needless]
        if missing and not (call.inner and is_in_probe(run, call, probe, match, owners)):
            yield from ((op, ARGUMENT) for op in missing)
