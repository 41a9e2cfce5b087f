"""Facts of a failed call: its tensors, their names in the code, their shapes, and their origins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from tracer.capture.dispatch_modes import FailedCall
from tracer.capture.source_lines import source
from tracer.capture.tensors.pytree import named_tensors
from tracer.diagnostics.failures.constructions import construction_of
from tracer.diagnostics.failures.explanation import Operand
from tracer.diagnostics.failures.failure_site import UNKNOWN, FailureSite
from tracer.diagnostics.failures.probing import Shapes, is_solved
from tracer.diagnostics.failures.trials import path_of
from tracer.record import Source
from tracer.shapes import UNKNOWN as UNSOLVED
from tracer.symbols import notation
from tracer.tracing import FailedRun
from tracer.utils.error_text import shorten

REFLECTED_OPERATORS = frozenset("radd rsub rmul rtruediv rdiv rpow rmatmul rand ror".split())
"""Operators that take their operands the other way round."""


@dataclass(frozen=True, eq=False)
class Clash:
    """Mismatch of a call: the kind of call, the reason in a sentence, the axes of its tensors that clash, by the
    tensor's `id`, and the names of tensors that are unnamed in the code."""

    kind: str
    message: str
    axes: dict[int, tuple[int, ...]]
    tensors: tuple[Tensor, ...] = ()


@dataclass(frozen=True, eq=False)
class Scene:
    """A failed run, the location of its error, and its shapes in symbols."""

    run: FailedRun
    error: BaseException
    site: FailureSite
    shapes: Shapes

    @property
    def call(self) -> FailedCall | None:
        """Call of PyTorch that failed, None where code around it did."""
        return self.run.recording.failed_call

    @cached_property
    def tensors(self) -> list[tuple[str, Tensor]]:
        """Tensors of the failed call, with their positions in it."""
        return list(named_tensors("", (self.call.args, self.call.kwargs))) if self.call else []

    @cached_property
    def module(self) -> nn.Module | None:
        """Module whose forward failed: `Linear` where the line calls it, else the one that the line is in."""
        return self.site.modules[-1] if self.site.modules else None

    @cached_property
    def path(self) -> str:
        """Path of that module."""
        return path_of(self.run.module, self.module) if self.module is not None else ""

    def path_of(self, module: nn.Module) -> str:
        """Return the path of a module in the one that ran."""
        return path_of(self.run.module, module)

    @property
    def is_module_call(self) -> bool:
        """True if the failed line calls a module of PyTorch, in which the call failed."""
        return len(self.site.modules) > self.site.own

    def symbolic(self, tensor: Tensor) -> tuple[str, ...] | None:
        """Return the shape of a tensor in symbols, None where not all of it is solved."""
        if len(self.shapes.operands) == len(self.tensors):
            for (_, known), symbolic in zip(self.tensors, self.shapes.operands, strict=True):
                if known is tensor and len(symbolic) == tensor.dim() and is_solved(symbolic):
                    return symbolic
        maker = self.maker(tensor)
        solution = self.shapes.solution
        if isinstance(maker, str):
            symbolic = self.shapes.symbolic.get(maker)
            return symbolic if symbolic and len(symbolic) == tensor.dim() and is_solved(symbolic) else None
        if solution is not None and 0 <= maker < len(solution.outputs):
            ran = self.run.recording.ops[maker].outputs
            for (shape, *_), symbolic in zip(ran, solution.outputs[maker], strict=True):
                if shape == tuple(tensor.shape) and is_solved(symbolic):
                    return symbolic
        return None

    def maker(self, tensor: Tensor) -> int | str:
        """Return the op that produced a tensor, or the name of the input or parameter that it is."""
        makers = self.run.recording.makers
        return makers.of(tensor)[2] if makers is not None else "constant"

    def shape(self, tensor: Tensor) -> str:
        """Return a shape as symbols where they are known, else in numbers: `[B, T, 3·D]`."""
        symbolic = self.symbolic(tensor)
        return notation.shape_text(symbolic) if symbolic and tensor.dim() else str(list(tensor.shape))

    def size(self, tensor: Tensor, axis: int) -> str:
        """Return the size of an axis, `3·D = 24`, or `24` without a symbol."""
        number, symbolic = tensor.shape[axis], self.symbolic(tensor)
        text = notation.text(symbolic[axis]) if symbolic else str(number)
        return f"{text} = {number}" if text != str(number) else text

    def formula(self, tensor: Tensor, axis: int) -> str:
        """Return the size of an axis as a formula: `3*D`, or `24`."""
        symbolic = self.symbolic(tensor)
        return symbolic[axis] if symbolic else str(tensor.shape[axis])

    def name(self, tensor: Tensor, role: str) -> str:
        """Return the name of a tensor in the code, or its role in the call: "the weight of `fc`"."""
        if known := self.site.name_of(tensor) or self._texts.get(id(tensor), ""):
            return f"`{shorten(known, 60)}`"
        maker = self.maker(tensor)
        if isinstance(maker, str) and maker in self._weights:
            return f"`{maker}`"
        return role

    @cached_property
    def _texts(self) -> dict[int, str]:
        """Texts of the failed line's operands by the `id` of their tensors, where these are as many and in their
        order."""
        operands = [o for o in self.site.operands if o.value is UNKNOWN or isinstance(o.value, Tensor)]
        if self.call is None or self.is_module_call or len(operands) != len(self.tensors):
            return {}
        pairs = [(operand, tensor) for operand, (_, tensor) in zip(operands, self.tensors, strict=True)]
        if any(o.value is not UNKNOWN and o.value.shape != tensor.shape for o, tensor in pairs):
            return {}
        return {} if self.call.name in REFLECTED_OPERATORS else {id(tensor): operand.text for operand, tensor in pairs}

    @cached_property
    def _weights(self) -> set[str]:
        module = self.run.module
        return {name for name, _ in (*module.named_parameters(), *module.named_buffers())}

    def operand(self, tensor: Tensor, role: str, clash: tuple[int, ...] = ()) -> Operand:
        """Return the record of a tensor."""
        words, line = self._origin(tensor)
        axes = tuple(sorted({axis % max(1, tensor.dim()) for axis in clash})) if tensor.dim() else ()
        return Operand(
            self.name(tensor, role).strip("`"),
            tuple(tensor.shape),
            self.symbolic(tensor),
            str(tensor.dtype).removeprefix("torch."),
            str(tensor.device),
            axes,
            words,
            line,
        )

    def _origin(self, tensor: Tensor) -> tuple[str, Source | None]:
        """Return in words the origin of a tensor, and the line that computed it."""
        maker = self.maker(tensor)
        if isinstance(maker, int):
            op = self.run.recording.ops[maker]
            inside = f" in {op.module}" if op.module else ""
            return f"computed by {op.function or op.name}{inside}", source(*op.line) if op.line else None
        if maker in self._weights:
            kind = "a parameter" if maker in dict(self.run.module.named_parameters()) else "a buffer"
            path = maker.rpartition(".")[0]
            built = construction_of(self.run.module, path) if path else None
            return kind, source(built.file, built.call.lineno) if built else None
        if maker.startswith("input "):
            return "an input", None
        return "", None


def letters(formula: str) -> list[str]:
    """Return the sizes in a formula; none of an unsolved one."""
    return [] if formula == UNSOLVED else [str(letter) for letter in notation.parse(formula).free_symbols]


Rule = Callable[[Scene, FailedCall], "Clash | None"]


def argument(call: FailedCall, position: int, name: str, default: Any = None) -> Any:
    """Return an argument of a call, by its position or its name."""
    return call.args[position] if position < len(call.args) else call.kwargs.get(name, default)
