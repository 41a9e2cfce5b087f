"""Detection of attention in the stream of ops; keeps its queries, keys and mask: `S·d_k` numbers per head, not `S²`.

Fused kernels are read through their schema. Attention that is written out is a softmax, by name or by its values,
whose weights are followed, through whatever the model does to them, to the matrix product that takes values by them.
The search goes backwards from its scores (`score_path.py`); what it finds is replayed on a few rows and compared
with the softmax that ran. Where that fails, the attention is recorded without its weights, with the reason.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import torch

from tracer.capture.attention.axis_tracking import arrange, axes_of, leaves
from tracer.capture.attention.chunked_attention import ChunkMerger
from tracer.capture.attention.score_ops import ScoreOpChains
from tracer.capture.attention.score_path import OpCall, PathLost, ScoreReader
from tracer.capture.attention.score_replay import SCORES, pick_rows, softmax_columns
from tracer.capture.attention.weight_tracking import AttentionWeights, ConsumedWeights, WeightTracker
from tracer.capture.op_schema import OpKind
from tracer.capture.tensors.tensor_store import TensorStore
from tracer.record import TOLERANCES, AttentionRecord
from tracer.utils import devices

RECENT = 24
"""How many of the ops that scores may be made of are remembered, from the product of queries and keys on."""
MAX_MIXING_NUMEL = 1 << 14
"""Numbers of a matrix that may mix heads."""


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

    def see(self, index: int, facts: OpKind, module: str, args: tuple, kwargs: dict, inputs: tuple, result) -> None:
        """Inspect one op that has run; `facts.attention` names the part that it may play in attention."""
        name, part = facts.plain, facts.attention
        if facts.axis_arguments and len(args) > 1:
            self._settings[index] = tuple([value for value in args[1:] if not isinstance(value, torch.Tensor)])
        self._pieces.see(index, name, facts.layout, inputs)
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
            while isinstance(maker, int) and self._ops[maker].layout and self._ops[maker].inputs:
                maker = self._ops[maker].inputs[0][2]
            if not isinstance(maker, int) or self._ops[maker].name.rstrip("_") != "exp":
                return False
            shape, _, maker = self._ops[maker].inputs[0]
        if (
            result.dim() < 2
            or result.is_meta
            or not result.is_floating_point()
            or tuple(result.shape) != shape
            or not result.numel()
        ):
            return False
        off = float((result.detach().movedim(axis, -1).flatten(0, -2)[:64].sum(dim=-1) - 1).abs().max())
        if not off <= max(1e-4, _tolerance(result.dtype)):
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
            on = [
                i
                for i, axis in enumerate(axes)
                if leaves(axis) and all(a.is_part_of(leaves(features)) for a in leaves(axis))
            ]
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
        self._pieces.begin(call.index, len(self.records) - 1, own, own[-2], (*own[-1], *(own[heads] if heads else ())))

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
        except (
            PathLost,
            LookupError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as lost:  # a shape that the way back did not foresee is lost too
            heads = shape[-3] if len(shape) > 3 else 1
            record = self._unreadable(module, index, heads, shape[-2] if axis else shape[-1], shape[axis], str(lost))
        self._waiting[index] = record, ran
        heads, queries, _ = (tuple(group) for group in ([], *groups)[-3:])
        keys = tuple(leaves(axes[axis]))
        self._followed.begin(AttentionWeights(index, axes, keys, queries, heads, read=not record.problem))

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
        self._pieces.begin(index, number, taken.axes, weights.queries, (*features, *weights.heads))
        self._pieces.group_heads([i for i in range(number, len(self.records)) if not self.records[i].problem])

    def _add(self, record: AttentionRecord, ran: torch.Tensor | None, after: tuple[str, ...] = ()) -> None:
        if ran is not None:
            self._observed[len(self.records)] = ran
        self.records.append(replace(record, layer=len(self.records), after=after))

    def _record(
        self, module: str, op: int, q, k, chain, *, heads: int, over: str = "tokens", fused: bool = False
    ) -> AttentionRecord:
        if not q.numel() or not k.numel():
            return self._unreadable(module, op, heads, q.shape[-2], k.shape[-2], "it has no queries or no keys")
        return AttentionRecord(
            layer=-1,
            part="",
            module=module,
            op=op,
            heads=heads,
            queries=q.shape[-2],
            keys=k.shape[-2],
            q=self._chains.keep(q, "q"),
            k=self._chains.keep(k, "k"),
            chain=tuple(chain),
            mask=self._chains.mask_kind(chain),
            fused=fused,
            over=over,
        )

    @staticmethod
    def _unreadable(module: str, op: int, heads: int, queries: int, keys: int, problem: str) -> AttentionRecord:
        return AttentionRecord(-1, "", module, op, heads, queries, keys, "", "", (), problem=problem)

    def over(self) -> None:
        """Finish the run: replay a few rows of every attention that was written out, and compare them with the softmax
        that ran. Merge the pieces of a layer, and release the tensors that attention might still have been computed
        from."""
        self._recent.clear()
        self._waiting.clear()
        self._followed.clear()
        for number, ran in self._observed.items():
            record = self.records[number]
            if problem := record.problem or self._problem(record, ran, _rows(record.queries)):
                self.records[number] = replace(self.records[number], problem=problem)
        self._observed.clear()
        self.records = self._pieces.merge(self.records, self._store.get, self._chains, self._batch())

    def _problem(self, record: AttentionRecord, ran: torch.Tensor, rows: range) -> str:
        """Return why the replayed record differs from these rows `ran` of the softmax, or ""."""
        q, k = self._store.get(record.q), self._store.get(record.k)
        if q is None or k is None:
            return "its queries or its keys were not kept"
        try:
            replayed = softmax_columns(q, k, record.chain, rows, self._store.get)
            error = float((replayed - ran.nan_to_num(0.0)).abs_().max())
        except (RuntimeError, NotImplementedError) as error:
            return f"the recorded chain can't be replayed: {str(error).splitlines()[0]}"
        if error <= max(_tolerance(q.dtype), _tolerance(ran.dtype)):
            return ""
        return f"the recorded chain, replayed, differs from the softmax that ran by {error:.1e}"

    def keys(self) -> list[str]:
        """Return the keys of all kept tensors that the records refer to."""
        keys = []
        for record in self.records:
            keys += [record.q, record.k]
            keys += [a for _, arguments in record.chain for a in arguments if isinstance(a, str) and a != SCORES]
        return [key for key in dict.fromkeys(keys) if key]


def _tolerance(dtype: torch.dtype) -> float:
    """Return the allowed deviation of attention that is recomputed in a dtype."""
    return TOLERANCES.get(str(dtype).removeprefix("torch."), 0.0)
