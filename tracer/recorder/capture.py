"""Finds attention in the stream of ops and keeps its queries, keys and mask: `S·d_k` numbers per head, not `S²`.

Fused kernels are read through their schema. Explicit attention is a softmax whose output, through layout ops,
is the first operand of a matrix product, and whose input comes, through element-wise ops, from a matrix product
of queries and keys. What the model did to the scores is recorded as a chain, replayed on a few rows and
compared with the softmax that ran; where that fails, the attention is marked as not recoverable.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod, sqrt
from typing import NamedTuple

import torch

from tracer.attention.chain import HIDDEN, SCORES, hides, picked, softmax_rows
from tracer.record import AttentionRecord
from tracer.recorder.kept import Kept
from tracer.recorder.ops import PRODUCTS, VIEWS, OpKind

ORDERED = VIEWS | {"_to_copy", "expand"}
CARRIED = ORDERED | {"native_dropout", "dropout"}
TOLERANCE = 1e-5

RECENT = 24
"""How many of the ops that scores may be made of are remembered, from the product of queries and keys on."""


def _rows(queries: int) -> range:
    """The first, the middle and the last row, which the recorded chain is checked on."""
    return range(0, queries, max(1, (queries - 1) // 2))


class Call(NamedTuple):
    """An op as it was called; `inputs` are (shape, dtype, maker) of its tensors, `args` are held while it is recent."""

    index: int
    name: str
    module: str
    args: tuple
    kwargs: dict
    inputs: tuple


class Attentions:
    """The attention ops of one run, in order."""

    def __init__(self, ops: list, kept: Kept, inputs: dict[str, torch.Tensor]):
        self.records: list[AttentionRecord] = []
        self._ops, self._kept, self._inputs = ops, kept, inputs
        self._recent: dict[int, Call] = {}
        self._waiting: dict[int, tuple[AttentionRecord, torch.Tensor]] = {}
        self._ran: dict[int, torch.Tensor] = {}
        self._keys: dict[tuple, str] = {}
        self._causal: dict[str, bool] = {}

    def see(self, index: int, facts: OpKind, module: str, args: tuple, kwargs: dict, inputs: tuple, result) -> None:
        """Looks at one op that has run and that attention may be made of: `facts.attention` names its part in it."""
        name, part = facts.name.rstrip("_"), facts.attention
        if part == "product":
            softmax = self._origin(inputs[0][2]) if self._waiting else None
            if softmax in self._waiting:
                record, self._ran[len(self.records)] = self._waiting[softmax]
                self.records.append(replace(record, layer=len(self.records)))
                self._waiting.clear()
            else:
                self._remember(Call(index, name, module, args, kwargs, inputs))
        elif part == "elementwise":
            scored = [self._origin(maker) in self._recent for _, _, maker in inputs]
            if sum(scored) == 1:  # the scores themselves, which are large, can be let go
                order = iter(scored)
                args = tuple(SCORES if isinstance(a, torch.Tensor) and next(order) else a for a in args)
            if any(scored):
                self._remember(Call(index, name, module, args, kwargs, inputs))
        elif part == "softmax":
            self._softmax(Call(index, name, module, args, kwargs, inputs), result)
        else:
            self._fused(Call(index, name, module, args, kwargs, inputs), facts)

    def _remember(self, call: Call) -> None:
        self._recent[call.index] = call
        if len(self._recent) > RECENT:
            del self._recent[next(iter(self._recent))]

    def _origin(self, maker, through: frozenset[str] = CARRIED):
        """Back through ops that only carry their first input on: layout ops and dropout."""
        while isinstance(maker, int) and (op := self._ops[maker]).name.rstrip("_") in through and op.inputs:
            maker = op.inputs[0][2]
        return maker

    def _fused(self, call: Call, facts: OpKind) -> None:
        given = dict(zip(facts.arguments, call.args, strict=False)) | call.kwargs
        q, k = given["query"], given["key"]
        scale = given.get("scale")
        mask = given.get("attn_mask", given.get("attn_bias"))
        chain = [("mul", (SCORES, 1 / sqrt(q.shape[-1]) if scale is None else float(scale)))]
        if given.get("is_causal"):
            chain.append(("causal", (float("-inf"),)))
        if mask is not None:
            name = "masked_fill" if mask.dtype == torch.bool else "add"
            arguments = (~mask, float("-inf")) if mask.dtype == torch.bool else (mask,)
            chain.append(self._link(name, (SCORES, *arguments), q.shape[-2], k.shape[-2]))
        self.records.append(self._record(call, q, k, chain, heads=q.shape[-3], fused=True, layer=len(self.records)))

    def _softmax(self, call: Call, result: torch.Tensor) -> None:
        shape = tuple(result.shape)
        if len(shape) < 3 or call.args[1] not in (-1, len(shape) - 1):
            return
        found = self._product(call.inputs[0][2], shape)
        if found is None:
            return
        product, chain = found
        a, b = product.args[-2:] if product.name != "baddbmm" else product.args[1:3]
        if product.name == "baddbmm":
            beta, alpha = product.kwargs.get("beta", 1), product.kwargs.get("alpha", 1)
            chain[:0] = [("mul", (SCORES, alpha)), self._link("add", (SCORES, product.args[0] * beta), *shape[-2:])]
        width = a.shape[-1]
        if prod(shape[:-2]) * shape[-2] * width != a.numel() or prod(shape[:-2]) * shape[-1] * width != b.numel():
            return
        q = a.reshape(*shape[:-1], width)
        k = b.transpose(-2, -1).reshape(*shape[:-2], shape[-1], width)
        if len(shape) == 3:
            batch = next((t.shape[0] for t in self._inputs.values() if t.dim()), 1)
            heads = shape[0] // batch if shape[0] % batch == 0 else 1
        else:
            heads = shape[-3]
        record = self._record(call, q, k, chain, heads=heads, fused=False, layer=-1)
        self._waiting[call.index] = record, picked(result, _rows(shape[-2])).clone()

    def _product(self, maker, shape) -> tuple[Call, list] | None:
        """The matrix product that the scores come from, and what was done to it, in order."""
        call = self._recent.get(self._origin(maker, ORDERED))
        if call is None or call.kwargs.get("alpha", 1) != 1:
            return None
        if call.name in PRODUCTS:
            return call, []
        tensors = [i for i, value in enumerate(call.args) if isinstance(value, torch.Tensor) or value is SCORES]
        for order, position in enumerate(tensors):
            found = self._product(call.inputs[order][2], shape)
            if found is not None:
                arguments = tuple(SCORES if i == position else value for i, value in enumerate(call.args))
                found[1].append(self._link(call.name, arguments, *shape[-2:]))
                return found
        return None

    def _link(self, name: str, arguments: tuple, queries: int, keys: int) -> tuple[str, tuple]:
        """One link of the chain as plain data: tensors become keys of kept tensors, a causal mask becomes its name."""
        plain = []
        for value in arguments:
            if isinstance(value, torch.Tensor) and value.numel() == 1:
                value = value.item()
            if isinstance(value, torch.Tensor):
                key = self._keep(value, "mask")
                fill = arguments[2] if name == "masked_fill" else float("-inf")
                if name in ("add", "masked_fill") and self._is_causal(key, value, name, queries, keys):
                    return "causal", (float(fill),)
                value = key
            plain.append(value)
        return name, tuple(plain)

    def _is_causal(self, key: str, mask: torch.Tensor, name: str, queries: int, keys: int) -> bool:
        if key not in self._causal:
            causal = False
            if queries == keys > 1 and mask.shape[-2:] == (queries, keys):
                later = torch.ones(queries, keys, dtype=torch.bool, device=mask.device).triu(1)
                hidden = mask if name == "masked_fill" else mask <= HIDDEN
                rest = torch.zeros((), device=mask.device) if name == "masked_fill" else mask.masked_fill(hidden, 0)
                causal = bool((hidden == later).all()) and not bool(rest.any())
            self._causal[key] = causal
        return self._causal[key]

    def _keep(self, tensor: torch.Tensor, kind: str) -> str:
        place = (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride())
        key = self._keys.get(place)
        if key is None:
            key = self._keys[place] = f"attention.{kind}{len(self._keys)}"
            self._kept.offer(key, tensor, needed=True)
        return key

    def _record(self, call: Call, q, k, chain, *, heads: int, fused: bool, layer: int) -> AttentionRecord:
        names = [name for name, _ in chain]
        given = any(link[0] != "causal" and hides(link, self._kept.get) for link in chain)
        return AttentionRecord(
            layer=layer,
            part="",
            module=call.module,
            op=call.index,
            heads=heads,
            queries=q.shape[-2],
            keys=k.shape[-2],
            q=self._keep(q, "q"),
            k=self._keep(k, "k"),
            chain=tuple(chain),
            mask="given" if given else "causal" if "causal" in names else "none",
            fused=fused,
        )

    def over(self) -> None:
        """The run is over: replays a few rows of every attention that was written out, and compares them with the
        softmax that ran. Lets go of the tensors that attention might still have been made of."""
        self._recent.clear()
        self._waiting.clear()
        for layer, ran in self._ran.items():
            if problem := self._problem(self.records[layer], ran):
                self.records[layer] = replace(self.records[layer], problem=problem)
        self._ran.clear()

    def _problem(self, record: AttentionRecord, ran: torch.Tensor) -> str:
        """Why a record does not give back the rows of the softmax that `ran`; empty where it does."""
        q, k = self._kept.get(record.q), self._kept.get(record.k)
        try:
            replayed = softmax_rows(q, k, record.chain, _rows(record.queries), self._kept.get)
            error = float((replayed - ran).abs_().max())
        except (RuntimeError, NotImplementedError) as error:
            return f"the recorded chain can't be replayed: {str(error).splitlines()[0]}"
        if error <= TOLERANCE:
            return ""
        return f"the recorded chain, replayed, differs from the softmax that ran by {error:.1e}"

    def keys(self) -> list[str]:
        """The keys of all kept tensors that the records refer to."""
        found = []
        for record in self.records:
            found += [record.q, record.k]
            found += [a for _, arguments in record.chain for a in arguments if isinstance(a, str) and a != SCORES]
        return list(dict.fromkeys(found))
