"""Interface of the code that proves a trace's lines, which is in a higher layer than the record."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from tracer.record.steps import Step


class Prover(Protocol):
    """A prover of pending steps: on the model that ran, or on the tensors of the file that was opened."""

    def __call__(self, steps: Sequence[Step]) -> dict[str, Step]:
        """Return these steps with their proofs, by id."""


class DeferredProver(Prover, Protocol):
    """A prover that holds the model, the equations and their tensors."""

    @property
    def derived_steps(self) -> Sequence[Any]:
        """Steps of the run with their equations."""

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of the run by their names."""

    def spell(self, steps: Any) -> Any:
        """Return the trace as its code spells it where these steps refute the name of a formula, else None."""

    def rewrite(self, change: Callable[[Any], Any]) -> DeferredProver:
        """Return the same run, with the equations that `change` returns for its lines."""

    def values(self, kind: Any = None) -> Any:
        """Return the tensors of the run by their keys."""

    def rewritten(self) -> set[str]:
        """Return the keys of parameters and buffers that have changed since the run."""


class Replayer(Protocol):
    """A recipe to run a traced module again, on other inputs, weights and sizes."""

    @property
    def notes(self) -> list[str]:
        """Notes on the checks, besides those of single lines."""

    def check(self, steps: Sequence[Step], later: Any = None, ids: Collection[str] | None = None) -> tuple[Step, ...]:
        """Return the steps with the number of other runs on which each line holds, of these steps or of all."""

    def shorten(self, shortened: bool) -> Replayer:
        """Return the recipe that runs one block of each kind, or the whole module."""
