"""One attention of a run in parts: its input, its results, and the module itself to run on other tokens."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import nn

from tracer.attention.step_inputs import reads
from tracer.lessons.notes.claims.measurement import tensor_of
from tracer.models.shared.spec import Model
from tracer.record import Trace


class BlockAttention:
    """Attention of one block.

    Raise ValueError, in a sentence, for a model without an attention that can be taken apart, and for a run that did
    not keep its tensors.
    """

    def __init__(self, model: Model, trace: Trace, layer: int = 0):
        if len(trace.attentions) <= layer:
            raise ValueError(f"{model.name} has no attention {layer + 1}")
        record = trace.attentions[layer]
        self.model, self.trace, self.record, self.path = model, trace, record, record.module
        self.block, self.layer = self.path.rpartition(".")[0], layer
        known = {step.id for step in trace.steps}
        if not {f"{self.path}.{name}" for name in ("query", "key", "value", "scores", "context")} <= known:
            raise ValueError(f"the attention of {model.name} is not written out in steps of its own")

    def value(self, id: str) -> torch.Tensor:
        """Return the tensor of a step."""
        return tensor_of(self.trace, id)

    def step_value(self, name: str) -> torch.Tensor:
        """Return the tensor of a step of this attention, such as "query"; a single head gets an axis of its own too."""
        value = self.value(f"{self.path}.{name}")
        return value[:, None] if value.dim() == 3 and name not in ("context", "output") else value

    @property
    def heads(self) -> int:
        """Number of heads of the queries."""
        return self.step_value("query").shape[1]

    @property
    def scope(self) -> str:
        """Block and the heads of this attention, in words."""
        part = f" of the {self.record.part}" if self.record.part else ""
        return f"block {self.layer + 1}{part}, {f'all {self.heads} heads' if self.heads > 1 else 'its one head'}"

    @cached_property
    def weights(self) -> torch.Tensor:
        """Attention weights that ran, `[B, h, S, S]`; computed from queries and keys if the run kept none."""
        id = f"{self.path}.weights"
        known = id in {step.id for step in self.trace.steps} and self.trace.value(id) is not None
        return self.step_value("weights") if known else self.trace.attention(self.layer, part=self.record.part)

    @cached_property
    def entering(self) -> torch.Tensor:
        """Input of queries, `[B, S, D]`."""
        return self.value(reads(self.trace, f"{self.path}.query")[0])

    @cached_property
    def module(self) -> nn.Module:
        """Attention itself."""
        return self.model.net.get_submodule(self.path)

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """Arguments of the attention besides the tokens, by name, as in this run."""
        names = list(inspect.signature(self.module.forward).parameters)[1:]
        part, known = self.path.rpartition("block")[0], {step.id for step in self.trace.steps}
        return {name: self.value(f"{part}{name}") if f"{part}{name}" in known else None for name in names}

    @cached_property
    def attend(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """Attention as a function of tokens `[B, S, D]`, mask and all else as in this run."""

        @torch.no_grad()
        def attend(x: torch.Tensor) -> torch.Tensor:
            return self.module(x, **self.arguments)

        return attend

    @cached_property
    def is_masked(self) -> bool:
        """True if some pair of tokens was closed."""
        return bool(torch.isinf(self.step_value("scores")).any())

    def linear(self, name: str) -> nn.Linear:
        """Return the matrix of queries, keys or values, as a module."""
        layer = getattr(self.module, name, None)
        if not isinstance(layer, nn.Linear):
            raise ValueError(f"{self.model.name} has no matrix of its own for {name}")
        return layer


def blocks(trace: Trace) -> list[str]:
    """Return the paths of the blocks of the first tower."""
    first = trace.attentions[0].part if trace.attentions else ""
    return [record.module.rpartition(".")[0] for record in trace.attentions if record.part == first]
