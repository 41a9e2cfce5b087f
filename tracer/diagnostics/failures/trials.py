"""Trials of a repair: the failing code with some lines edited, or a module replaced, run to its end at two sizes.

Everything runs on copies, which share the parameters; the user's module, classes and functions are left alone.
"""

from __future__ import annotations

import linecache
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from tracer.capture import record
from tracer.capture.callable_module import Function
from tracer.capture.tensors.pytree import same_outputs
from tracer.diagnostics.failures.explanation import Edit, Fix
from tracer.diagnostics.failures.failure_site import FailureSite, line_of, locate_failure, modules_of
from tracer.diagnostics.failures.probing import Shapes, call_tensors
from tracer.diagnostics.failures.source_edits import apply_edits, codes_of, with_codes
from tracer.shapes.input_axes import copies_at_same_sizes
from tracer.shapes.shadow_module import parameters, shadow_copy
from tracer.tracing import FailedRun
from tracer.utils.thread_local_rng import seeded_draws

MAX_TRIALS, MAX_SECONDS = 160, 40.0
"""Most repairs that are tried for one error, and the time after which no further one is."""
MAX_OFFERS = 3
"""Repairs that are offered at most."""
MARGIN = 1.0
"""How much more than the first repair another may cost."""
FAILS = object()
"""In place of the output of a forward that does not run to its end."""
SIBLINGS = 256
"""Most modules that one repair of a constructor replaces: those in other blocks have the same line."""

Change = Callable[[nn.Module, dict[str, int]], nn.Module]
"""What is put in the place of a module at some sizes."""


@dataclass(frozen=True)
class Candidate:
    """A possible repair: its sentence, edits of the source, and a module that is rebuilt.

    `cost` orders repairs: the smaller, the less is changed. `replace` returns the new module for the one at `path`. Of
    the repairs of one `family` one is enough. `sizes` are sizes of the factory that the repair changes.
    """

    message: str
    cost: float
    edits: tuple[Edit, ...] = ()
    path: str | None = None
    replace: Change | None = None
    family: str = ""
    sizes: tuple[tuple[str, int], ...] = ()


@dataclass
class Trials:
    """Trials of one error. `line` is the user's line that it came from, None where only modules of PyTorch ran.
    `attempts` counts the repairs that were tried."""

    run: FailedRun
    site: FailureSite
    shapes: Shapes
    line: tuple[str, int] | None
    attempts: int = 0
    deadline: float = field(default_factory=lambda: time.monotonic() + MAX_SECONDS)

    def choose(self, candidates: list[Candidate]) -> list[Fix]:
        """Return the repairs with which the forward runs to its end at two sizes, those that change least first.

        Of repairs that give the same output, the first is kept; those that change much more than the first are left
        out.
        """
        fixes: list[Fix] = []
        outputs: list[object] = []
        families: set[str] = set()
        texts: set[tuple[Edit, ...]] = set()
        best = math.inf
        masked = any(tensor.dtype == torch.bool for tensor in call_tensors(self.run.recording))  # perhaps of one value
        for candidate in sorted(candidates, key=lambda candidate: candidate.cost):
            full = len(fixes) >= MAX_OFFERS or self.attempts >= MAX_TRIALS or time.monotonic() > self.deadline
            if full or candidate.cost > best + MARGIN:
                break
            if (candidate.edits and candidate.edits in texts) or (candidate.family and candidate.family in families):
                continue
            texts.add(candidate.edits)
            self.attempts += 1
            here = {**self.shapes.sizes, **dict(candidate.sizes)}
            output = self.output(candidate, here)
            same = not masked and any(same_outputs(output, before) for before in outputs)
            if output is FAILS or same:
                continue
            others = self._other_sizes(here, dict(candidate.sizes))
            second = next((at for at in others if self.output(candidate, at) is not FAILS), None)
            if second is None and others:
                continue
            outputs.append(output)
            sizes = (here, second) if second is not None else (here,)
            fixes.append(Fix(candidate.message, candidate.edits, sizes))
            families.add(candidate.family)
            best = min(best, candidate.cost)
        return fixes

    def failure(self, candidate: Candidate) -> tuple[BaseException, FailedRun] | None:
        """Return the error with which a repaired forward fails elsewhere than before; None where it fails at the same
        place, or before its first line."""
        try:
            with seeded_draws(0), torch.set_grad_enabled(self.run.recording.grad):
                module, args, kwargs, _ = self._apply_candidate(candidate, self.shapes.sizes)
                record(module, args, kwargs, attention=False)
        except Exception as error:
            site = locate_failure(error)
            if "recording" not in vars(error) or site is None or site.file != self.site.file:
                return None
            if (site.line, site.columns) == (self.site.line, self.site.columns):
                return None
            return error, FailedRun(module, vars(error).pop("recording"))
        return None

    def _other_sizes(self, here: dict[str, int], fixed: dict[str, int]) -> list[dict[str, int]]:
        """Return other sizes at which the module reached the same call: all changed, or the first alone; multiples
        where it reached none, or where a repair has `fixed` some."""
        if fixed or (not self.shapes.probes and self.run.rebuild is not None):
            multiples = [{name: size * factor for name, size in here.items()} for factor in (2, 3)]
            alone = [{**here, name: here[name] * 2} for name in here if name not in fixed]
            return [at for at in ({**at, **fixed} for at in (*multiples, *alone)) if at != here]
        others = [at for at in self.shapes.probes if at != here][:2]
        alone = [{**here, name: at[name]} for at in others[:1] for name in list(at)[:1]]
        return [*others, *(at for at in alone if at != here)]

    def runs(self, candidate: Candidate, sizes: dict[str, int]) -> bool:
        """Return whether the repaired forward runs to its end at these sizes."""
        return self.output(candidate, sizes) is not FAILS

    def output(self, candidate: Candidate, sizes: dict[str, int]) -> object:
        """Return the output of the repaired forward at these sizes, `FAILS` if it does not run to its end."""
        try:
            with seeded_draws(0), torch.set_grad_enabled(self.run.recording.grad):
                module, args, kwargs, replace = self._apply_candidate(candidate, sizes)
                replaced: set[str] = set()
                for _ in range(SIBLINGS):
                    try:
                        return record(module, args, kwargs, attention=False).output
                    except Exception as error:
                        path = self._path_to_replace(candidate, module, error) if replace else None
                        if path is None or path in replaced or replace is None:
                            return FAILS
                        replaced.add(path)
                        module = _replace_at(module, path, replace, sizes)
            return FAILS
        except Exception:  # code that does not compile, a constructor that fails
            return FAILS

    def rebuilds(self, file: str) -> bool:
        """Return whether edits of a file are run with the factory in it."""
        return self.run.rebuild is not None and self.run.file == file

    def _apply_candidate(
        self, candidate: Candidate, sizes: dict[str, int]
    ) -> tuple[nn.Module, tuple, dict[str, Any], Change | None]:
        """Return the module with the edits of a candidate, its arguments, and what is still to be replaced."""
        edits = candidate.edits
        if edits and self.run.rebuild is not None and all(self.rebuilds(edit.file) for edit in edits):
            lines = linecache.getlines(self.run.file)
            module, args, *kwargs = self.run.rebuild(sizes, apply_edits(lines, edits))
            return module, tuple(args), kwargs[0] if kwargs else {}, None
        if self.shapes.build is not None:
            module, args, *kwargs = self.shapes.build(sizes)
        else:
            module, args, *kwargs = next(copies_at_same_sizes(self.run.module, self.run.recording)).build({})
        outside = isinstance(module, Function) and not module.owned
        if not outside:
            module = shadow_copy(module, parameters(module))  # its classes and layers are changed
        texts = {self.site.file: "".join(self.site.lines)} if outside else {}
        if candidate.replace is None:
            for file in {edit.file for edit in edits}:
                texts[file] = apply_edits(linecache.getlines(file), [edit for edit in edits if edit.file == file])
        for file, text in texts.items():
            module = with_codes(module, file, codes_of(text, file), detach=outside)
        return module, tuple(args), kwargs[0] if kwargs else {}, candidate.replace

    def _path_to_replace(self, candidate: Candidate, module: nn.Module, error: Exception) -> str | None:
        """Return the path of the module that stands for `candidate.path` in the block that failed, if the same line
        failed."""
        modules = modules_of(error)
        if candidate.path is None or not modules or line_of(error) != self.line:
            return None
        before = path_of(self.run.module, self.site.modules[-1])
        return moved_path(candidate.path, before, path_of(module, modules[-1]))


def path_of(root: nn.Module, module: nn.Module) -> str:
    """Return the path of a module in another; "" for itself, and for one that it does not hold."""
    return next((path for path, inner in root.named_modules() if inner is module), "")


def moved_path(path: str, before: str, now: str) -> str:
    """Return a path with the numbers of blocks in which `now` differs from `before`: `blocks.0.up` beside
    `blocks.0.down` and `blocks.1.down` gives `blocks.1.up`."""
    moved = path.split(".")
    for index, (old, new) in enumerate(zip(before.split("."), now.split("."), strict=False)):
        if old == new or index >= len(moved) or moved[index] != old:
            continue
        moved[index] = new
    return ".".join(moved)


def _replace_at(root: nn.Module, path: str, replace: Change, sizes: dict[str, int]) -> nn.Module:
    """Return a module with the one at a path replaced; the parents are those of a copy."""
    if not path:
        return replace(root, sizes)
    parent, _, name = path.rpartition(".")
    holder = root.get_submodule(parent)
    new = replace(holder.get_submodule(name), sizes)
    holder.add_module(name, new)
    return root
