"""Attention found while a run is recorded: which ops compute it, and which tensors it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import sqrt
from typing import Any, NamedTuple

import torch

from tracer.capture.calls import OpKind
from tracer.capture.score_path import (
    SCORES,
    Atom,
    Axes,
    OpCall,
    PathLost,
    ScoreOpChains,
    ScoreReader,
    arrange,
    axes_after,
    axes_of,
    leaves,
    pick_rows,
    scores_rows,
    size_of,
    softmax_of,
)
from tracer.capture.tensors import TensorStore
from tracer.ops import MATMULS, SHAPE_ONLY, ops_with
from tracer.record import AttentionRecord, dtype_name, tolerance
from tracer.symbols.axes import AxisFactor
from tracer.utils import devices
from tracer.utils.errors import describe_error

# Attention weights from their softmax on: through the ops on them, to the op that multiplies values by them.

MOVEMENTS = ops_with("movement")


class AttentionWeights(NamedTuple):
    """Weights of a softmax: its op, the axes (None if they are lost), which of their atoms are keys, queries and
    heads, whether they were `read` back to queries and keys, the ops that changed them, whether they were broadcast
    over values, and the other softmaxes that they are a sum with."""

    softmax: int
    axes: Axes | None
    keys: tuple[Atom, ...]
    queries: tuple[Atom, ...]
    heads: tuple[Atom, ...]
    read: bool
    changed: tuple[str, ...] = ()
    spread: bool = False
    beside: tuple[int, ...] = ()


class ConsumedWeights(NamedTuple):
    """Weights that an op multiplied values by, and the axes of its output; None if they are lost."""

    weights: AttentionWeights
    axes: Axes | None


class WeightTracker:
    """Weights of one run that have not been applied to values yet, by their op."""

    def __init__(self, reader: ScoreReader):
        self._reader = reader
        self.weights: dict[int, AttentionWeights] = {}

    def end(self, softmaxes) -> None:
        """Drop softmaxes that have been applied to values."""
        self.weights = {op: weights for op, weights in self.weights.items() if weights.softmax not in softmaxes}

    def see(self, index: int, facts: OpKind, name: str, inputs: tuple, result) -> ConsumedWeights | None:
        """Follow weights through an op that has run; return them if it multiplied values by them."""
        tracked = self.weights
        operands = [(order, tracked[maker]) for order, (_, _, maker) in enumerate(inputs) if maker in tracked]
        if not operands or name in SHAPE_ONLY:
            return None
        result = result[0] if isinstance(result, (list, tuple)) and result else result
        if not isinstance(result, torch.Tensor) or not result.is_floating_point():
            return None
        (order, weights), shape = operands[0], tuple(result.shape)
        operand_shape, axes = inputs[order][0], weights.axes
        if facts.attention in ("product", "mixing") or name == "linear":
            return self._product(index, name, inputs, order, weights, shape)
        if facts.layout:
            axes = None if axes is None else axes_after(name, self._reader.settings.get(index, ()), axes, shape)
            tracked[index] = weights._replace(axes=axes)
        elif name in MOVEMENTS:
            tracked[index] = weights._replace(axes=None)
        elif name == "mul" and result.numel() > torch.Size(operand_shape).numel():
            tracked[index] = weights._replace(axes=_spread(axes, shape), spread=True)
        elif name == "sum" and weights.spread:
            return self._sum(index, weights)
        elif result.numel() == torch.Size(operand_shape).numel():
            stochastic = name == "native_dropout" or any(self._is_dropout(maker) for _, _, maker in inputs)
            changed = () if name in ("exp", "bernoulli") else ("dropout",) if stochastic else (name,)
            others = {weights_too.softmax for _, weights_too in operands} | set(weights.beside)
            tracked[index] = weights._replace(
                axes=axes if shape == operand_shape else None,
                changed=weights.changed + changed,
                beside=tuple(sorted(others - {weights.softmax})) if name in ("add", "sub") else weights.beside,
            )
        return None

    def replace(self, before: int, after: int) -> None:
        """Follow the tensor that was put in the place of weights."""
        if before in self.weights and after not in self.weights:
            weights = self.weights[before]
            self.weights[after] = weights._replace(changed=(*weights.changed, "replaced"))

    def _product(
        self, index: int, name: str, inputs: tuple, order: int, weights: AttentionWeights, shape
    ) -> ConsumedWeights | None:
        """Follow weights through a product: one over the keys applies them to values; one over the heads mixes them."""
        first, axes = 0 if name == "linear" else len(inputs) - 2, weights.axes
        if order < first:  # it is added to a product
            return None
        left = order == first
        inner = None if axes is None else leaves(axes[-1 if left else -2])
        new = (Atom(shape[-1 if left else -2]),)
        output_axes = None if axes is None else (*axes[:-1], new) if left else (*axes[:-2], new, axes[-1])
        if inner is None or any(atom.is_part_of(weights.keys) for atom in inner) or not (inner or weights.keys):
            # a linear map of weights, such as of a gate, takes no values
            learned = self._reader.is_learned(inputs[2 * first + 1 - order][2])
            return ConsumedWeights(weights, output_axes) if name in MATMULS and (weights.read or not learned) else None
        self.weights[index] = weights._replace(axes=output_axes, changed=(*weights.changed, "heads mixed"))
        return None

    def _sum(self, index: int, weights: AttentionWeights) -> ConsumedWeights | None:
        """Return the weights of a sum over the keys of weights times values, a product written out; only if the weights
        were read, since other softmaxes distribute things among branches."""
        axes, settings = weights.axes or (), self._reader.settings.get(index, ())
        summed = [axes[axis] for axis in (settings[0] if settings and axes else ()) or ()]
        keys = any(atom.is_part_of(weights.keys) for axis in summed for atom in leaves(axis))
        return ConsumedWeights(weights, None) if keys and weights.read else None

    def _is_dropout(self, maker) -> bool:
        """Return whether a tensor holds the random zeros of dropout."""
        for _ in range(2):
            if not isinstance(maker, int) or not self._reader.ops[maker].inputs:
                return False
            if self._reader.ops[maker].name == "bernoulli_":
                return True
            maker = self._reader.ops[maker].inputs[0][2]
        return False


def _spread(axes: Axes | None, shape: tuple[int, ...]) -> Axes | None:
    """Return the axes of a tensor that is broadcast to a shape."""
    if axes is None:
        return None
    axes = ((),) * (len(shape) - len(axes)) + axes
    return tuple(axis or ((Atom(size),) if size > 1 else ()) for axis, size in zip(axes, shape, strict=True))


# Pieces of a layer whose attention runs in several: single heads, segments of queries, or of the batch.
#
# Pieces are attentions of which none reads what another made, and whose contexts one op puts side by side. Laid
# together they are one attention, where their sizes and what was done to their scores allow; else one sentence says why
# not.

CHUNKS_PROBLEM = "its attention ran in {count} pieces that don't make up one matrix of queries and keys"


class AttentionOutput(NamedTuple):
    """Output of an attention, after layout ops: its record, its module, its axes, and their atoms that are queries,
    features, or heads."""

    record: int
    module: str
    axes: Axes | None
    queries: tuple[Atom, ...]
    features: tuple[Atom, ...]
    heads: tuple[Atom, ...] = ()


class ChunkMerger:
    """Outputs of a run's attentions, followed to the op that concatenates several."""

    def __init__(self, ops: list, settings: dict[int, tuple]):
        self._ops, self._settings = ops, settings
        self._levels: list[int] = []
        self._contexts: dict[int, AttentionOutput] = {}
        self._level: dict[int, int] = {}
        self._groups: list[tuple[str, list[int]]] = []

    def see(self, index: int, name: str, layout: bool, inputs: tuple) -> None:
        """Inspect one op that has run and return the number of consecutive attentions that its inputs came through."""
        levels, contexts, level, any_context = self._levels, self._contexts, 0, False
        for _, _, maker in inputs:  # a plain loop: every op of a run comes here
            if type(maker) is int:
                level = max(level, levels[maker])
                any_context = any_context or maker in contexts
        levels.append(level)
        if not any_context:
            return
        operands = [(order, contexts[maker]) for order, (_, _, maker) in enumerate(inputs) if maker in contexts]
        first = operands[0][1]
        if name in ("cat", "stack") or (name == "copy" and len(operands) > 1):
            self._join(index, name, [context for _, context in operands], inputs)
            self._contexts[index] = first
        elif (name == "add" and self._ops[index].module == first.module) or name in ("copy", "slice", "select"):
            self._contexts[index] = first  # a sum of products with parts of the values, or a part of the context
        elif layout:
            shape = self._ops[index].outputs[0][0]
            axes = None if first.axes is None else axes_after(name, self._settings.get(index, ()), first.axes, shape)
            self._contexts[index] = first._replace(axes=axes)

    def context(self, index: int) -> AttentionOutput | None:
        """Return the output of an attention that an op computed or laid out; None for any other op."""
        return self._contexts.get(index)

    def begin(self, index: int, record: int, axes: Axes | None, queries=(), features=(), heads=()) -> None:
        """Record that op `index` computed the output of an attention."""
        self._level[record] = self._levels[index]
        self._levels[index] += 1
        self._contexts[index] = AttentionOutput(
            record, self._ops[index].module, axes, tuple(queries), tuple(features), tuple(heads)
        )

    def group_heads(self, records: list[int]) -> None:
        """Record that one product applied the sum of these attentions to values: they are heads of one layer."""
        for record in records[1:]:
            self._level[record] = self._level[records[0]]
        if len(records) > 1:
            self._groups.append(("heads", records))

    def _join(self, index: int, name: str, contexts: list[AttentionOutput], inputs: tuple) -> None:
        records = list(dict.fromkeys(context.record for context in contexts))
        if len(records) < 2 or len({self._level[record] for record in records}) > 1:
            return
        kind = "heads"
        if name != "stack":  # a copy is into a slice, of which the axis that is short says where
            axis = self._short(inputs) if name == "copy" else next(iter(self._settings.get(index, ())), 0)
            kind = self._kind(contexts[-1 if name == "copy" else 0], axis)
            if kind == "heads" and len(contexts[-1].axes or ()) == 3 and axis in (0, -3):
                kind = "batch and heads"
        known = next((group for group in self._groups if set(group[1]) & set(records)), None)
        if known is None:
            self._groups.append((kind, records))
        else:
            known[1].extend(record for record in records if record not in known[1])

    def _short(self, inputs: tuple) -> int | None:
        maker = inputs[0][2]
        if not isinstance(maker, int) or not self._ops[maker].inputs:
            return None
        whole, part = self._ops[maker].inputs[0][0], inputs[0][0]
        if len(whole) != len(part):
            return next(iter(self._settings.get(maker, ())), None)
        return next((i for i, (size, part_size) in enumerate(zip(whole, part, strict=True)) if size != part_size), None)

    @staticmethod
    def _kind(context: AttentionOutput, axis: int | None) -> str:
        """Return the kind of the axis along which outputs are concatenated."""
        if context.axes is None or axis is None or not -len(context.axes) <= axis < len(context.axes):
            return ""
        own = leaves(context.axes[axis])
        if any(atom.is_part_of(leaves(context.queries)) for atom in own):
            return "queries"
        if any(atom.is_part_of(leaves(context.features)) for atom in own):
            return "heads"
        return "batch" if own or axis in (0, -len(context.axes)) else "heads"

    def merge(
        self, records: list[AttentionRecord], get: Callable, chains: ScoreOpChains, batch: int
    ) -> list[AttentionRecord]:
        """Return the records, one for each layer, counted from 0; the run's inputs have a batch of this size."""
        merged: dict[int, AttentionRecord] = {}
        absorbed: set[int] = set()
        for kind, numbers in self._groups:
            numbers = sorted(numbers)
            merged[numbers[0]] = _together([records[number] for number in numbers], kind, get, chains, batch)
            absorbed.update(numbers[1:])
        remaining = [merged.get(number, record) for number, record in enumerate(records) if number not in absorbed]
        return [piece if piece.layer == layer else replace(piece, layer=layer) for layer, piece in enumerate(remaining)]


def _together(pieces: list[AttentionRecord], kind: str, get, chains: ScoreOpChains, batch: int) -> AttentionRecord:
    """Merge several pieces into one record; without weights, and with the reason, if they do not form one."""
    first, count = pieces[0], len(pieces)
    lost = replace(first, q="", k="", chain=(), problem=CHUNKS_PROBLEM.format(count=count))
    if problem := next((piece.problem for piece in pieces if piece.problem), ""):
        return replace(lost, problem=f"its attention ran in {count} pieces, one of which is lost: {problem}")
    alike = {(len(piece.chain), piece.after, piece.over) for piece in pieces}
    q, k = [get(piece.q) for piece in pieces], [get(piece.k) for piece in pieces]
    if not kind or len(alike) > 1 or min(q[0].dim(), k[0].dim()) < 4:
        return lost
    same = all(keys.shape == k[0].shape and torch.equal(keys, k[0]) for keys in k[1:])
    axis = {"queries": -2, "heads": -3, "batch and heads": -3, "batch": 0}[kind]
    try:
        links = [_link([piece.chain[i] for piece in pieces], axis, q, get) for i in range(len(first.chain))]
        queries = torch.cat(q, axis)
        keys = k[0] if kind == "queries" and same else torch.cat(k if kind == "queries" else _alike(q, k), axis)
        if kind == "queries" and not same:  # stretches that see only themselves
            if any(name not in ("mul", "div", "causal") for name, _ in links):
                return lost
            links.append(("pieces", tuple(size for piece in pieces for size in (piece.queries, piece.keys))))
    except (RuntimeError, ValueError):
        return lost
    if kind == "batch and heads" and queries.shape[:-3].numel() == 1 and queries.shape[-3] % batch == 0:
        count = queries.shape[-3]
        queries, keys = _split_batch(queries, count, batch), _split_batch(keys, count, batch)
        links = [(name, tuple(_split_batch(value, count, batch) for value in values)) for name, values in links]
    chain = [chains.link(*link, queries.shape[-2], keys.shape[-2]) for link in links]
    return replace(first, heads=queries.shape[-3], **chains.keep_operands(queries, keys, chain))


def _split_batch(value: Any, count: int, batch: int) -> Any:
    """Return heads that are folded into the batch, `[1, B·h, …]`, as `[B, h, …]`; anything else as it is."""
    if not isinstance(value, torch.Tensor) or value.dim() < 3 or value.shape[-3] != count:
        return value
    return value.reshape(batch, count // batch, *value.shape[-2:])


def _alike(q: list[torch.Tensor], k: list[torch.Tensor]) -> list[torch.Tensor]:
    """Repeat keys until they have as many heads as the queries."""
    return [
        keys.repeat_interleave(queries.shape[-3] // keys.shape[-3], dim=-3) for queries, keys in zip(q, k, strict=True)
    ]


def _link(links: list[tuple[str, tuple]], axis: int, q: list[torch.Tensor], get) -> tuple[str, tuple]:
    """Merge the same link of all pieces, their tensors concatenated; raise ValueError if they differ in more than
    these."""
    name, arguments = links[0]
    if any(link[0] != name or len(link[1]) != len(arguments) for link in links):
        raise ValueError(name)
    joined = []
    for position, value in enumerate(arguments):
        values = [link[1][position] for link in links]
        if isinstance(value, str) and value != SCORES and len(set(values)) > 1 and name != "heads":
            tensors = [get(entry) for entry in values]
            if any(tensor is None or tensor.dim() < -axis for tensor in tensors):
                raise ValueError(name)
            if all(torch.equal(tensors[0], tensor) for tensor in tensors[1:]) and tensors[0].shape[axis] == 1:
                value = values[0]
            else:
                wide = [
                    tensor.expand(*tensor.shape[:axis], queries.shape[axis], *tensor.shape[axis:][1:])
                    for tensor, queries in zip(tensors, q, strict=True)
                ]
                value = torch.cat(wide, axis)
        elif any(entry != value for entry in values):
            raise ValueError(name)
        joined.append(value)
    return name, tuple(joined)


# Detection of attention in the stream of ops; keeps its queries, keys and mask: `S·d_k` numbers per head, not `S²`.
#
# Fused kernels are read through their schema. Attention that is written out is a softmax, by name or by its values,
# whose weights are followed, through whatever the model does to them, to the matrix product that takes values by them.
# The search goes backwards from its scores (`score_path.py`); what it finds is replayed on a few rows and compared
# with the softmax that ran. Where that fails, the attention is recorded without its weights, with the reason.

RECENT = 24
"""How many of the ops that scores may be made of are remembered, from the product of queries and keys on."""
MAX_MIXING_NUMEL = 1 << 14
"""Numbers of a matrix that may mix heads."""


NOT_INSPECTED = "attention is not followed through {} ({})"
"""Note on what could not be inspected, and the error."""


def _rows(queries: int) -> range:
    """Return the first, the middle and the last row, on which the recorded chain is checked."""
    return range(0, queries, max(1, (queries - 1) // 2))


class AttentionDetector:
    """Attention ops of one run, in order."""

    def __init__(self, ops: list, store: TensorStore, inputs: dict[str, torch.Tensor]):
        self.records: list[AttentionRecord] = []
        self._ops, self._store = ops, store
        self._settings: dict[int, tuple] = {}
        self._recent: dict[int, OpCall] = {}
        self._batch = lambda: next((t.shape[0] for t in inputs.values() if not t.is_nested and t.dim()), 1)
        self._reader = ScoreReader(ops, self._settings, self._recent, self._batch)
        self._pieces = ChunkMerger(ops, self._settings)
        self._waiting: dict[int, tuple[AttentionRecord, torch.Tensor | None]] = {}
        self._followed = WeightTracker(self._reader)
        self._observed: dict[int, torch.Tensor] = {}
        self._chains = ScoreOpChains(store)
        self.problems: dict[str, None] = {}
        self.head_factors: dict[int, AxisFactor] = {}
        """Axes of heads of scores, weights and contexts, by the ops."""

    def see(self, index: int, facts: OpKind, module: str, args: tuple, kwargs: dict, inputs: tuple, result) -> None:
        """Inspect one op that has run. One that can't be inspected is left out, and `problems` say so: an observer
        never raises into the forward."""
        try:
            self._see(index, facts, module, args, kwargs, inputs, result)
        except Exception as error:  # whatever no rule foresaw
            self._give_up(facts.name, error)

    def replace(self, before: str, after: str) -> None:
        """Follow the tensor that an intervention put in the place of another, both by their keys."""
        ops = [key.partition(".")[0] for key in (before, after)]
        if all(map(str.isdecimal, ops)):
            self._followed.replace(*map(int, ops))

    def _give_up(self, where: str, error: Exception) -> None:
        self.problems[NOT_INSPECTED.format(where, describe_error(error))] = None

    def _see(self, index: int, facts: OpKind, module: str, args: tuple, kwargs: dict, inputs: tuple, result) -> None:
        """Inspect one op; `facts.attention` names the part that it may play in attention."""
        name, part = facts.plain, facts.attention
        if facts.axis_arguments and len(args) > 1:
            self._settings[index] = tuple([value for value in args[1:] if not isinstance(value, torch.Tensor)])
        self._pieces.see(index, name, facts.layout, inputs)
        if (context := self._pieces.context(index)) is not None:
            self._note_heads(index, context.axes, context.heads)
        if self._waiting:
            taken = self._followed.see(index, facts, name, inputs, result)
            if taken is not None:
                self._took(index, taken)
                return
        if not part or part == "reduction":
            return
        if part == "fused":
            self._record_fused(OpCall(index, name, module, args, kwargs, inputs), facts, result)
        elif part == "softmax":
            self._softmax(index, module, inputs[0], args[0], args[1], result, name == "_log_softmax")
        elif part == "product":
            self._remember(OpCall(index, name, module, args, kwargs, inputs))
        elif part == "mixing":
            if args[2].numel() <= MAX_MIXING_NUMEL and self._reader.origin(inputs[1][2]) in self._recent:
                self._remember(OpCall(index, name, module, args, kwargs, inputs))
        else:
            self._elementwise(OpCall(index, name, module, args, kwargs, inputs), result)

    def _elementwise(self, call: OpCall, result: torch.Tensor) -> None:
        scored = [self._reader.origin(maker) in self._recent for _, _, maker in call.inputs]
        if not any(scored):
            return
        if call.name in ("exp", "div") and self._end_softmax(call, result):
            return
        if sum(scored) == 1 and call.name != "cat":  # the scores themselves, which are large, can be let go
            order = iter(scored)
            args = tuple(SCORES if isinstance(a, torch.Tensor) and next(order) else a for a in call.args)
            call = call._replace(args=args)
        self._remember(call)

    def _end_softmax(self, call: OpCall, result: torch.Tensor) -> bool:
        """Return whether this op ends a softmax that is written out: its rows are exponentials that sum to 1."""
        shape, _, maker = call.inputs[0]
        axis = result.dim() - 1
        if call.name == "div":
            if len(call.inputs) < 2 or len(call.inputs[1][0]) != len(shape):
                return False
            axis = next((i for i, size in enumerate(call.inputs[1][0]) if size == 1 != shape[i]), axis)
            maker = self._reader.origin(maker)
            if not isinstance(maker, int) or self._ops[maker].name.rstrip("_") != "exp":
                return False
            shape, _, maker = self._ops[maker].inputs[0]
        if result.dim() < 2 or tuple(result.shape) != shape or not result.numel():
            return False
        if result.is_meta or not result.is_floating_point():
            return False
        off = float((result.detach().movedim(axis, -1).flatten(0, -2)[:64].sum(dim=-1) - 1).abs().max())
        if not off <= max(1e-4, tolerance(dtype_name(result.dtype))):
            return False
        self._softmax(call.index, call.module, (shape, None, maker), None, axis, result, False)
        return True

    def _remember(self, call: OpCall) -> None:
        self._recent[call.index] = call
        if len(self._recent) > RECENT:
            del self._recent[next(iter(self._recent))]

    def _record_fused(self, call: OpCall, facts: OpKind, result) -> None:
        result = result[0] if isinstance(result, (list, tuple)) else result
        bound = dict(zip(facts.arguments, call.args, strict=False)) | call.kwargs
        q, k = bound["query"], bound["key"]
        scale = bound.get("scale")
        mask = bound.get("attn_mask", bound.get("attn_bias"))
        axes = axes_of(q.shape)
        features = self._reader.features(axes, call.inputs[0][2])
        batch, heads, over = list(range(q.dim() - 3)), q.dim() - 3, "tokens"
        if features is not None:
            parts = [[atom.is_part_of(leaves(features)) for atom in leaves(axis)] for axis in axes]
            on = [i for i, part in enumerate(parts) if part and all(part)]
            over = "channels" if q.dim() - 2 in on else "tokens"
            own = [i for i in on if i < q.dim() - 2]
            if own != [heads] and len(own) <= 1 and (own or q.shape[heads] > 1):
                heads = own[0] if own else None
                batch = [i for i in range(q.dim() - 2) if i != heads]
        order = [*batch, *([] if heads is None else [heads]), q.dim() - 2, q.dim() - 1]

        def place(tensor: torch.Tensor) -> torch.Tensor:
            tensor = tensor.reshape((1,) * (q.dim() - tensor.dim()) + tuple(tensor.shape)).permute(order)
            return tensor.unsqueeze(-3) if heads is None else tensor

        chain: list[tuple[str, tuple]] = [("mul", (SCORES, 1 / sqrt(q.shape[-1]) if scale is None else float(scale)))]
        if bound.get("is_causal"):
            chain.append(("causal", (float("-inf"),)))
        if mask is not None:
            name = "masked_fill" if mask.dtype == torch.bool else "add"
            arguments = (~mask, float("-inf")) if mask.dtype == torch.bool else (mask,)
            arguments = (place(arguments[0]), *arguments[1:])
            chain.append(self._chains.link(name, (SCORES, *arguments), q.shape[-2], k.shape[-2]))
        q, k = place(q), place(k)
        self._add(self._record(call.module, call.index, q, k, chain, heads=q.shape[-3], over=over, fused=True), None)
        own = axes_of(result.shape)
        on = own[heads] if heads else ()
        self._pieces.begin(call.index, len(self.records) - 1, own, own[-2], (*own[-1], *on), on)

    def _softmax(self, index: int, module: str, source: tuple, scores, axis: int, result, logarithm: bool) -> None:
        shape, _, maker = source
        if len(shape) < 2 or not result.numel():
            return
        axis %= len(shape)
        axes, ran = axes_of(shape), None
        groups = [list(axes[axis - 1]), list(axes[axis])]
        try:
            path = self._reader.read(shape, maker, axis)
            axes, groups = path.axes, path.groups
            queries, keys = path.q.shape[-2], path.k.shape[-2]
            chain = [self._chains.link(*link, queries, keys) for link in path.links]
            if path.edited:
                if scores is None:
                    raise PathLost("something was written into a part of its scores")
                chain.append(self._chains.close_link(arrange(scores.detach(), axes, path.groups), queries, keys))
            record = self._record(module, index, path.q, path.k, chain, heads=path.heads, over=path.over)
            ran = arrange(result.detach(), axes, path.groups)
            ran = ran.exp() if logarithm else ran
            if path.edited:  # any row may have been written into
                record = replace(record, problem=self._problem(record, devices.to_cpu(ran), range(queries)))
            ran = devices.copy_to_cpu(pick_rows(ran, _rows(queries)))
        except (PathLost, LookupError, RuntimeError, TypeError, ValueError) as lost:
            # a shape that the way back did not foresee is lost too
            heads = shape[-3] if len(shape) > 3 else 1
            record = self._unreadable(module, index, heads, shape[-2] if axis else shape[-1], shape[axis], str(lost))
        self._waiting[index] = record, ran
        heads, queries, _ = (tuple(group) for group in ([], *groups)[-3:])
        if not record.problem:
            self._note_heads(index, axes, heads)
            self._note_heads(maker, axes, heads)
        keys = tuple(leaves(axes[axis]))
        weights = AttentionWeights(index, axes, keys, queries, heads, read=not record.problem)
        self._followed.weights[index] = weights

    def _took(self, index: int, taken: ConsumedWeights) -> None:
        """Record the attention whose weights an op has multiplied with values."""
        weights, number = taken.weights, len(self.records)
        changed = tuple(dict.fromkeys(weights.changed))
        together = [softmax for softmax in (weights.softmax, *weights.beside) if softmax in self._waiting]
        for softmax in together:
            record, ran = self._waiting.pop(softmax)
            self._add(record, ran, changed)
        self._followed.end(together)
        new = () if taken.axes is None else (*taken.axes[-1], *taken.axes[-2])
        features = [atom for atom in new if not atom.is_part_of(weights.queries)]
        self._pieces.begin(index, number, taken.axes, weights.queries, (*features, *weights.heads), weights.heads)
        self._note_heads(index, taken.axes, weights.heads)
        self._pieces.group_heads([i for i in range(number, len(self.records)) if not self.records[i].problem])

    def _note_heads(self, index, axes: Axes | None, heads: tuple[Atom, ...]) -> None:
        """Note the axis on which the heads of an op's output are, and their place among its factors."""
        if axes is None or not heads or not isinstance(index, int):
            return
        known = leaves(heads)
        for axis, factors in enumerate(map(leaves, axes)):
            places = [place for place, atom in enumerate(factors) if atom in known]
            if len(places) == len(known) and places[-1] - places[0] + 1 == len(places):
                inner = size_of(factors[places[-1] + 1 :]) if places[0] else None
                self.head_factors[index] = AxisFactor(axis, size_of(known), inner)

    def _add(self, record: AttentionRecord, ran: torch.Tensor | None, after: tuple[str, ...] = ()) -> None:
        if ran is not None:
            self._observed[len(self.records)] = ran
        self.records.append(replace(record, layer=len(self.records), after=after))

    def _record(
        self, module: str, op: int, q, k, chain, *, heads: int, over: str = "tokens", fused: bool = False
    ) -> AttentionRecord:
        if not q.numel() or not k.numel():
            return self._unreadable(module, op, heads, q.shape[-2], k.shape[-2], "it has no queries or no keys")
        kept = self._chains.keep_operands(q, k, chain)
        return AttentionRecord(-1, "", module, op, heads, **kept, fused=fused, over=over)

    @staticmethod
    def _unreadable(module: str, op: int, heads: int, queries: int, keys: int, problem: str) -> AttentionRecord:
        return AttentionRecord(-1, "", module, op, heads, queries, keys, "", "", (), problem=problem)

    def over(self) -> None:
        """Finish the run: replay a few rows of every attention that was written out, and compare them with the softmax
        that ran. Merge the pieces of a layer, and release the tensors that attention might still have been computed
        from."""
        self._recent.clear()
        self._waiting.clear()
        self._followed.weights.clear()
        for number, ran in self._observed.items():
            record = self.records[number]
            if problem := record.problem or self._problem(record, ran, _rows(record.queries)):
                self.records[number] = replace(self.records[number], problem=problem)
        self._observed.clear()
        try:
            self.records = self._pieces.merge(self.records, self._store.get, self._chains, self._batch())
        except Exception as error:  # as in `see`
            self._give_up("the pieces of a layer", error)

    def _problem(self, record: AttentionRecord, ran: torch.Tensor, rows: range) -> str:
        """Return why the replayed record differs from these rows `ran` of the softmax, or ""."""
        q, k = self._store.get(record.q), self._store.get(record.k)
        if q is None or k is None:
            return "its queries or its keys were not kept"
        try:
            scores = scores_rows(q, k, record.chain, rows, self._store.get)
            replayed = softmax_of(scores)
            error = float((replayed - ran.nan_to_num(0.0)).abs_().max())
        except Exception as error:  # a chain that no rule foresaw
            return f"the recorded chain can't be replayed: {describe_error(error)}"
        largest = float(scores.masked_fill(scores.isinf(), 0).abs().max())  # rounding in a score grows with it
        allowed = max(tolerance(dtype_name(tensor.dtype)) for tensor in (q, ran))
        if error <= allowed * max(1, largest / 4):  # a weight moves by at most a quarter of what its score does
            return ""
        return f"the recorded chain, replayed, differs from the softmax that ran by {error:.1e}"

    def keys(self) -> list[str]:
        """Return the keys of all kept tensors that the records refer to."""
        keys = []
        for record in self.records:
            keys += [record.q, record.k]
            keys += [a for _, arguments in record.chain for a in arguments if isinstance(a, str) and a != SCORES]
        return [key for key in dict.fromkeys(keys) if key]
