"""Rules, each one entry with its check, and the run as they read it: its record, its graph, its values, second runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch

from tracer.capture import Recording, inputs_of, record
from tracer.capture.calls import Call, CallLog
from tracer.capture.modes import Function
from tracer.graph.attention_sites import AttentionSite, find_attention_sites
from tracer.graph.dataflow import Graph
from tracer.graph.index_maps import IndexMapCache
from tracer.lowering.aten import has_lowering
from tracer.ops import ATTENTION, base
from tracer.record import Finding, Trace
from tracer.shapes.variation import parameters, shadow_copy
from tracer.tracing import counterfactual
from tracer.utils.torch_state import seeded_draws

if TYPE_CHECKING:
    from tracer.tracing.counterfactual import Replay

__all__ = ["RULES", "Evidence", "Rule", "RunView", "live_calls", "rule"]


DOCUMENT = "docs/findings.md"
"""Where each rule has a section."""


class Evidence:
    """Evidence of a rule in a run: the ops of its calls, in order, and the values that the sentences of the rule have.

    `at` is the op whose step the finding has, by default the last. `intent` is why the code is right nevertheless.
    """

    def __init__(self, *calls: Call | int, at: int | None = None, intent: str = "", **values: Any):
        ops = ((call,) if isinstance(call, int) else range(call.first, call.last) for call in calls)
        self.ops = tuple(op for each in ops for op in each)
        self.at = self.ops[-1] if at is None and self.ops else at
        self.intent, self.values = intent, values


class Rule(NamedTuple):
    """A rule, with all that is known of it.

    Attributes:
        kind: Its name, also of its section in the document.
        over: Yields what it looks at in a run: calls, masks, second runs.
        message: What was measured, and what follows, with a `{place}` for each value of the evidence.
        fix: The repair, with such places.
        check: Returns the evidence against one thing that it looks at, None for none.
        lesson: The address of the page of the app that explains its subject, "" for none.
        runs_again: Whether it needs the model, and values of a run besides those of the trace.
    """

    kind: str
    over: Callable[[RunView], Iterable[Any]]
    message: str
    fix: str
    check: Callable[[RunView, Any], Evidence | None]
    lesson: str = ""
    runs_again: bool = False

    @property
    def document(self) -> str:
        """Section about the rule: `docs/findings.md#axes-mixed`."""
        return f"{DOCUMENT}#{self.kind.replace(' ', '-')}"

    def findings(self, run: RunView) -> Iterator[Finding]:
        """Yield the findings of the rule in a run."""
        for subject in self.over(run):
            if (evidence := self.check(run, subject)) is not None:
                step = "" if evidence.at is None else run.step(evidence.at)
                message, fix = (text.format(**evidence.values) for text in (self.message, self.fix))
                yield Finding(self.kind, step, evidence.ops, message, fix, evidence.intent)


RULES: dict[str, Rule] = {}
"""All rules by their kinds, once the files of this folder are imported."""

Subject = TypeVar("Subject")
Check = Callable[["RunView", Subject], Evidence | None]


def rule(
    kind: str,
    over: Callable[[RunView], Iterable[Subject]],
    message: str,
    fix: str,
    lesson: str = "",
    runs_again: bool = False,
) -> Callable[[Check[Subject]], Check[Subject]]:
    """Register a check as a rule; the fields are those of `Rule`."""

    def register(check: Check[Subject]) -> Check[Subject]:
        RULES[kind] = Rule(kind, over, message, fix, check, lesson, runs_again)
        return check

    return register


KEPT_BYTES = 2**30
"""Cap in bytes on the tensors that a second run keeps."""


class RunView:
    """A trace with what follows from it. `replay` has the module that ran, None where that no longer exists. `problems`
    are sentences on second runs that failed."""

    def __init__(self, trace: Trace):
        self.trace = trace
        self.problems: list[str] = []

    @property
    def replay(self) -> Replay | None:
        """Recipe to run the module again."""
        return self.trace.replay  # type: ignore[return-value] # the record knows it by its protocol

    @cached_property
    def repeatable(self) -> bool:
        """True if the module is there, has values, and is small enough to be run again unasked."""
        if self.replay is None:
            return False
        tensors = [*self.replay.module.parameters(), *self.replay.module.buffers()]
        return not any(tensor.is_meta for tensor in tensors) and not counterfactual.too_large(self.trace)

    @cached_property
    def graph(self) -> Graph:
        """Calls of the run with their arguments; none for a trace without its model."""
        return Graph.of(CallLog() if self.replay is None else self.replay.calls, has_lowering)

    @cached_property
    def sites(self) -> tuple[AttentionSite, ...]:
        """Attentions of the run."""
        return tuple(find_attention_sites(self.graph))

    @cached_property
    def maps(self) -> IndexMapCache:
        """Index maps of the layouts of the run."""
        return IndexMapCache()

    def run(
        self, replacements: dict[int, torch.Tensor] | None = None, *, seed: int = 0, whole: bool = False
    ) -> Recording:
        """Run the module again and keep the values of its ops, with `replacements` of inputs by their ids.

        With `whole`, the replacements are those of parameters, in a copy.
        """
        assert self.replay is not None
        replay = self.replay
        module, args, kwargs = replay.module, replay.args, replay.kwargs
        if whole:
            module = shadow_copy(module, parameters(module) | (replacements or {}))
        elif replacements:
            args, kwargs = shadow_copy((tuple(args), dict(kwargs)), replacements)
        with torch.set_grad_enabled(replay.grad), seeded_draws(seed):
            return record(module, args, kwargs, cap=KEPT_BYTES, attention=False, calls=True)

    @cached_property
    def inputs(self) -> dict[str, torch.Tensor]:
        """Tensors that forward received, by name."""
        return {} if self.replay is None else inputs_of(self.replay.module, self.replay.args, self.replay.kwargs)

    @cached_property
    def trains(self) -> bool:
        """True if the module is in training mode, or is a function, which has no mode."""
        return self.replay is None or isinstance(self.replay.module, Function) or self.replay.module.training

    @cached_property
    def draws(self) -> bool:
        """True if the run draws random numbers, which differ between the samples of a batch."""
        names = {base(op.op) for op in self.trace.ops}
        dropout = any(call.arguments.get("dropout_p") for call in self.graph.calls if call.name == ATTENTION)
        return dropout or any(
            name.startswith(("rand", "bernoulli", "native_dropout", "normal", "multinomial", "uniform"))
            for name in names
        )

    @cached_property
    def values(self) -> Recording:
        """Repetition of the run, with the values of its ops kept, by the keys of the graph."""
        return self.run()

    def value(self, key: str) -> torch.Tensor | None:
        """Return the tensor of a key of the graph: of an input, a parameter or an op."""
        assert self.replay is not None
        if key.startswith("parameter "):
            tensors = {**dict(self.replay.module.named_parameters()), **dict(self.replay.module.named_buffers())}
            return tensors.get(key.removeprefix("parameter "))
        if key.startswith("input "):
            return self.values.inputs.get(key.removeprefix("input "))
        return self.values.store.get(key)

    def step(self, op: int) -> str:
        """Return the id of the step that an op belongs to, or the next that reads its result; "" for none."""
        ops, waiting, visited = self.trace.ops, [op], {op}
        while waiting:
            number = waiting.pop(0)
            if (step := ops[number].step) is not None:
                return step
            for user in self.users.get(number, ()):
                if user not in visited:
                    visited.add(user)
                    waiting.append(user)
        return ""

    @cached_property
    def users(self) -> dict[int, list[int]]:
        """Ops that read the result of each op."""
        users: dict[int, list[int]] = {}
        for op in self.trace.ops:
            for maker in {tensor.maker for tensor in op.inputs if isinstance(tensor.maker, int)}:
                users.setdefault(maker, []).append(op.index)
        return users

    def intent(self, finding: Finding) -> str:
        """Return the reason why a finding is on purpose, from the hints of the model; "" if there is none."""
        return self.intent_at(finding.kind, finding.step, self.trace.ops[finding.ops[0]].module if finding.ops else "")

    def intent_at(self, kind: str, step: str, module: str) -> str:
        """Return the reason why findings of a kind are on purpose at a step, or in the module or parameter of a
        path."""
        hints = () if self.replay is None else self.replay.hints
        fitting = (hint.intent for hint in hints if hint.finding == kind and hint.fits(step, "", module))
        return next(filter(None, fitting), "")


def live_calls(run: RunView) -> Iterator[Call]:
    """Yield the calls that an output of a run depends on, in order."""
    return (call for index, call in enumerate(run.graph.calls) if run.graph.is_live(index))
