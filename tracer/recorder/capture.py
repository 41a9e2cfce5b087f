"""Finds attention in the stream of ops and keeps its queries, keys and mask: `S·d_k` numbers per head, not `S²`.

Fused kernels are read through their schema. Explicit attention is a softmax whose output, through layout ops,
is the first operand of a matrix product, and whose input comes, through element-wise ops, from a matrix product
of queries and keys. What the model did to the scores is recorded as a chain, replayed on a few rows and
compared with the softmax that ran; where that fails, the attention is marked as not recoverable.
"""

from __future__ import annotations

from math import prod, sqrt
from typing import NamedTuple

import torch

from tracer.attention.chain import SCORES, softmax_rows
from tracer.record import AttentionRecord
from tracer.recorder.ops import VIEWS, OpKind

PRODUCTS = frozenset(("bmm", "mm", "matmul", "baddbmm"))
SOFTMAX = frozenset(("_softmax", "_safe_softmax"))
ELEMENTWISE = frozenset(("add", "sub", "mul", "div", "masked_fill", "where", "tanh", "clamp"))
CARRIED = VIEWS | {"native_dropout", "_to_copy", "expand", "dropout"}
TOLERANCE = 1e-5
HIDDEN = -1e4
"""An additive mask this low hides its key: models write -∞, the lowest number of their dtype, or -10,000."""


class Call(NamedTuple):
    """An op as it was called, while its arguments are still alive; `inputs` are (shape, dtype, maker)."""

    index: int
    facts: OpKind
    module: str
    args: tuple
    kwargs: dict
    inputs: tuple


class Attentions:
    """The attention ops of one run, in order."""

    def __init__(self, recording, recent):
        self.records: list[AttentionRecord] = []
        self._recording, self._recent = recording, recent
        self._waiting: dict[int, AttentionRecord] = {}
        self._keys: dict[tuple, str] = {}
        self._causal: dict[str, bool] = {}

    def see(self, call: Call, result) -> None:
        name = call.facts.name
        if name.startswith("_scaled_dot_product_") and "backward" not in name:
            self._fused(call)
        elif name in SOFTMAX:
            self._softmax(call, result)
        elif name in PRODUCTS and self._waiting:
            softmax = self._origin(call.inputs[0][2])
            if softmax in self._waiting:
                record = self._waiting.pop(softmax)
                self.records.append(_at(record, layer=len(self.records)))
                self._waiting.clear()

    def _origin(self, maker):
        """Back through layout ops and dropout."""
        calls = {call.index: call for call in self._recent}
        while (call := calls.get(maker)) is not None and call.facts.name in CARRIED:
            maker = call.inputs[0][2]
        return maker

    def _fused(self, call: Call) -> None:
        given = dict(zip(call.facts.arguments, call.args, strict=False)) | call.kwargs
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
        a, b = product.args[-2:] if product.facts.name != "baddbmm" else product.args[1:3]
        if product.facts.name == "baddbmm":
            beta, alpha = product.kwargs.get("beta", 1), product.kwargs.get("alpha", 1)
            chain[:0] = [("mul", (SCORES, alpha)), self._link("add", (SCORES, product.args[0] * beta), *shape[-2:])]
        width = a.shape[-1]
        if prod(shape[:-2]) * shape[-2] * width != a.numel() or prod(shape[:-2]) * shape[-1] * width != b.numel():
            return
        q = a.reshape(*shape[:-1], width)
        k = b.transpose(-2, -1).reshape(*shape[:-2], shape[-1], width)
        if len(shape) == 3:
            batch = next((t.shape[0] for t in self._recording.inputs.values() if t.dim()), 1)
            heads = shape[0] // batch if shape[0] % batch == 0 else 1
        else:
            heads = shape[-3]
        record = self._record(call, q, k, chain, heads=heads, fused=False, layer=-1)
        rows = sorted({0, shape[-2] // 2, shape[-2] - 1})
        problem = ""
        try:
            replayed = softmax_rows(q, k, record.chain, rows, self._recording.kept.get)
            error = (replayed - result[..., rows, :]).abs().max()
            if not error <= TOLERANCE:
                problem = f"the recorded chain, replayed, differs from the softmax that ran by {float(error):.1e}"
        except (RuntimeError, NotImplementedError) as error:
            problem = f"the recorded chain can't be replayed: {str(error).splitlines()[0]}"
        self._waiting[call.index] = _at(record, problem=problem)

    def _product(self, maker, shape) -> tuple[Call, list] | None:
        """The matrix product that the scores come from, and what was done to it, in order."""
        call = next((call for call in self._recent if call.index == maker), None)
        if call is None:
            return None
        name = call.facts.name.rstrip("_")
        if name in PRODUCTS:
            return call, []
        if name in VIEWS or name in ("_to_copy", "expand"):
            return self._product(call.inputs[0][2], shape)
        if name not in ELEMENTWISE or any(value != 1 for key, value in call.kwargs.items() if key == "alpha"):
            return None
        tensors = [position for position, value in enumerate(call.args) if isinstance(value, torch.Tensor)]
        for order, position in enumerate(tensors):
            found = self._product(call.inputs[order][2], shape)
            if found is not None:
                arguments = tuple(SCORES if i == position else value for i, value in enumerate(call.args))
                found[1].append(self._link(name, arguments, *shape[-2:]))
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
            self._recording.kept.offer(key, tensor, needed=True)
        return key

    def _record(self, call: Call, q, k, chain, *, heads: int, fused: bool, layer: int) -> AttentionRecord:
        names = [name for name, _ in chain]
        given = any(isinstance(a, str) and a != SCORES for _, arguments in chain for a in arguments)
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

    def keys(self) -> list[str]:
        """The keys of all kept tensors that the records refer to."""
        found = []
        for record in self.records:
            found += [record.q, record.k]
            found += [a for _, arguments in record.chain for a in arguments if isinstance(a, str) and a != SCORES]
        return list(dict.fromkeys(found))


def _at(record: AttentionRecord, **changes) -> AttentionRecord:
    from dataclasses import replace

    return replace(record, **changes)
