"""Chains of ops on scores, as plain data: their tensors are kept, once each, and their masks are named."""

from __future__ import annotations

import torch

from tracer.capture.attention.score_replay import MASKED_SCORE, SCORES, closes, hides, is_windowed
from tracer.capture.tensors.tensor_store import TensorStore
from tracer.utils.internals.torch_internals import storage_id


class ScoreOpChains:
    """Chains of one run."""

    def __init__(self, store: TensorStore):
        self._store = store
        self._keys: dict[tuple, str] = {}
        self._hidden: list[torch.Tensor] = []
        self._patterns: dict[tuple[str, str], str] = {}
        self._hiding: dict[str, bool] = {}
        self._fills: dict[str, float] = {}

    def close_link(self, scores: torch.Tensor, queries: int, keys: int) -> tuple[str, tuple]:
        """Return the cells closed by writes into scores `[…, heads, queries, keys]`, as a link."""
        closed = scores <= MASKED_SCORE
        least, most = scores[closed].aminmax() if bool(closed.any()) else (float("-inf"),) * 2
        number = float(least) if least == most else float("-inf")
        for axis in range(closed.dim() - 2):
            if bool((closed == closed.narrow(axis, 0, 1)).all()):
                closed = closed.narrow(axis, 0, 1)
        known = next((link for link in self._hidden if torch.equal(link, closed)), None)
        if known is None:
            known = closed.contiguous()
            self._hidden.append(known)
        return self.link("masked_fill", (SCORES, known, number), queries, keys)

    def link(self, name: str, arguments: tuple, queries: int, keys: int) -> tuple[str, tuple]:
        """Return one link of the chain as plain data: tensors become keys of kept tensors, a causal mask becomes its
        name with the number of its closed cells."""
        plain = []
        for value in arguments:
            if isinstance(value, torch.Tensor) and value.numel() == 1 and name not in ("heads", "cat"):
                value = value.item()
            if isinstance(value, torch.Tensor):
                key = self.keep(value, "mask")
                if name in ("add", "masked_fill") and self._pattern(key, value, name, queries, keys) == "causal":
                    return "causal", (float(arguments[2] if name == "masked_fill" else self._fills[key]),)
                value = key
            plain.append(value)
        return name, tuple(plain)

    def _pattern(self, key: str, mask: torch.Tensor, name: str, queries: int, keys: int) -> str:
        """Return the pattern of a mask by its cells: "causal", "windows", or ""."""
        if (key, name) not in self._patterns:
            pattern = ""
            if queries == keys > 1 and mask.shape[-2:] == (queries, keys):
                later = torch.ones(queries, keys, dtype=torch.bool, device=mask.device).triu(1)
                hidden = mask if name == "masked_fill" else closes(mask)
                rest = torch.zeros((), device=mask.device) if name == "masked_fill" else mask.masked_fill(hidden, 0)
                lowest = mask.amin()
                same = name == "masked_fill" or bool((mask == lowest).eq(later).all())
                if same and bool((hidden == later).all()) and not bool(rest.any()):
                    pattern, self._fills[key] = "causal", lowest.item()
                elif is_windowed(hidden):
                    pattern = "windows"
            self._patterns[key, name] = pattern
        return self._patterns[key, name]

    def keep(self, tensor: torch.Tensor, kind: str) -> str:
        place = (
            storage_id(tensor.untyped_storage()),
            tensor.storage_offset(),
            tensor.shape,
            tensor.stride(),
            tensor.dtype,
        )
        key = self._keys.get(place)
        if key is None:
            key = self._keys[place] = f"attention.{kind}{len(self._keys)}"
            self._store.offer(key, tensor, needed=True)
        return key

    def mask_kind(self, chain) -> str:
        """Return the kind of mask in a chain: "none", "causal", "windows", or "given" for any other."""
        closing = [link for link in chain if self._hides(link)]
        names = {name for name, _ in closing}
        patterns = {self._patterns.get((arguments[1], name)) for name, arguments in closing if len(arguments) > 1}
        if not closing:
            return "none"
        if names == {"pieces"}:
            return "windows"
        return "causal" if names == {"causal"} else "windows" if patterns == {"windows"} else "given"

    def _hides(self, link: tuple[str, tuple]) -> bool:
        """Return whether a link hides keys; computed once for links that all layers share."""
        name = repr(link)
        if name not in self._hiding:
            self._hiding[name] = hides(link, self._store.get)
        return self._hiding[name]
