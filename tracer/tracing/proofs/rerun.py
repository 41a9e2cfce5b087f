"""Proofs in bounded memory: a second run that holds each tensor until the last line that needs it is proven.

The lines of a run are known only after it, and a large run's tensors do not fit the cap on kept values. So the module
runs again, the same way; each line is proven as soon as its operands and its result have been computed, and what no
later line needs is let go. The proofs count only if the second run did what the first did, bit by bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from tracer.capture import Recording, record
from tracer.capture.tensors.pytree import output_tensors, same_outputs
from tracer.capture.tensors.tensor_store import TensorStore, address, parts
from tracer.textbook.steps import DerivedStep, opaque
from tracer.tracing.proofs.step_proof import Proof, Values, prove
from tracer.utils.error_text import describe_error
from tracer.utils.progress import doing, tell

NOT_THE_SAME = "not executed: a tensor of it was not kept, and the model did not run again the same way"
RERUN_NOTE = "not executed: a tensor of it was not kept, and the model did not run again ({})"


class Rerun:
    """Recipe to run a module again, and to check that it did the same."""

    def __init__(self, module: torch.nn.Module, recording: Recording, sizes: dict[str, int]):
        self._module, self._arguments, self._sizes = module, recording.arguments, sizes
        self._calls = recording.calls
        self._output = [tensor for _, tensor in output_tensors(recording.output)]
        self._grad = recording.grad

    def missing_lines(self, lines: Iterable[DerivedStep], values: Values) -> list[str]:
        """Return the ids of the lines with a tensor that was not kept; none if tensors have no values to compare."""
        if any(tensor.is_meta for tensor in self._output):
            return []
        return [line.line.id for line in lines if not opaque(line.line) and values.lacks(line.line)]

    def prove(self, chosen: Iterable[str], lines: Sequence[DerivedStep]) -> dict[str, Proof]:
        """Return the proofs of the lines of these ids, of all `lines` of the run, by id."""
        chosen = set(chosen)
        waiting = [line for line in lines if line.line.id in chosen]
        if not waiting:
            return {}
        args, kwargs = self._arguments
        with ThreadPoolExecutor(1) as thread, torch.set_grad_enabled(self._grad), doing("Proving in a second run"):
            thread.submit(int).result()  # a thread that starts while the module runs would count as the module's
            window = _Window(self._module, waiting, lines, self._sizes, thread)
            try:
                again = record(self._module, args, kwargs, attention=False, calls=True, store=window)
            except Exception as error:  # the module's own
                return dict.fromkeys(chosen, Proof(None, RERUN_NOTE.format(describe_error(error))))
        if not self._same(again):
            return dict.fromkeys(chosen, Proof(None, NOT_THE_SAME))
        return window.proofs

    def _same(self, again: Recording) -> bool:
        """Return whether a run called the same ops, and returned the same bits."""
        if again.calls is None or self._calls is None or again.calls.signature != self._calls.signature:
            return False
        return same_outputs(again.output, self._output)


class _Window(TensorStore):
    """Tensors that lines still need; each line is proven once they all exist."""

    def __init__(
        self, module, waiting: Sequence[DerivedStep], lines: Sequence[DerivedStep], sizes, thread: ThreadPoolExecutor
    ):
        super().__init__(1)
        self.proofs: dict[str, Proof] = {}
        self._values = Values(module, self, lines, [line.line for line in lines], sizes)
        self._sizes, self._thread, self._count = sizes, thread, len(waiting)
        self._needs = {
            line.line.id: {part for key in self._values.reads(line.line) for part in parts(key)} for line in waiting
        }
        self._lines = {line.line.id: line for line in waiting}
        self._missing = {id: len(keys) for id, keys in self._needs.items()}
        self._uses = Counter(key for keys in self._needs.values() for key in keys)
        self._takers: dict[str, list[str]] = {}
        for id, keys in self._needs.items():
            for key in keys:
                self._takers.setdefault(key, []).append(id)

    def offer(self, key: str, tensor: torch.Tensor, *, needed: bool = False) -> None:
        if key not in self._uses or key in self._tensors:
            return
        super().offer(key, tensor, needed=True)
        for id in self._takers.pop(key, ()):
            self._missing[id] -= 1
            if not self._missing[id]:
                self._prove(id)

    def _prove(self, id: str) -> None:
        """Prove a line in a thread of its own, where no mode of this run is on."""
        self.proofs[id] = self._thread.submit(prove, self._lines[id], self._values, self._sizes).result()
        tell(len(self.proofs), self._count, "step")
        for key in self._needs[id]:
            self._uses[key] -= 1
            if not self._uses[key]:
                self._release(key)

    def _release(self, key: str) -> None:
        tensor = self._tensors.pop(key, None)
        storage = address(tensor) if tensor is not None else None
        if storage in self._storages:
            self._storages[storage].remove(key)
            if not self._storages[storage]:
                del self._storages[storage]
