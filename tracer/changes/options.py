"""Changes that can be offered for a run, with titles in plain words, by the roles of its lines.

Everything is read from the trace, so it works for any model. As on screen, blocks and heads count from 1 in titles.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from tracer.changes.kinds import (
    Bidirectional,
    Causal,
    Change,
    Drop,
    Keep,
    Mean,
    Noise,
    Off,
    Replace,
    Scale,
    Several,
    Shuffle,
    Take,
    TargetLine,
    Unscale,
    Zero,
)
from tracer.changes.of_inputs import REMOVED_FILL, Hide, InputChange, MaskWords, Permute
from tracer.record import CHANGED_SUFFIX, AttentionRecord, Step, Trace, split_id

PARTS = {"attention": "attention", "cross": "cross-attention", "mlp": "MLP"}
"""What the parts of a block are called, by their names in ids."""
SCALINGS = {"div", "mul"}
"""Ops in the chain of an attention that multiply all scores by one number."""


class Option(NamedTuple):
    """A change that can be offered: the id of its line, the change, and its title."""

    line: str
    change: Change
    title: str

    @property
    def text(self) -> str:
        """Change as text, as in links."""
        return f"{self.line}={self.change}"


def options(trace: Trace) -> tuple[Option, ...]:
    """Return the changes of whole parts of a model, then those of each attention."""
    choices = [*of_model(trace)]
    for block in blocks(trace):
        choices += of_block(trace, block)
    for record in trace.attentions:
        for head in range(record.heads):
            choices += of_attention(trace, record, head)
    return tuple({option.text: option for option in choices}.values())


def blocks(trace: Trace) -> dict[str, str]:
    """Return the blocks of a run that have attention: the start of the ids of their lines, and their titles."""
    titles: dict[str, str] = {}
    for step in trace.steps:
        start, end, _ = split_id(step.id)
        if end == "weights" and step.layer is not None and "." in start:
            titles.setdefault(start.rpartition(".")[0], block_title(trace, step))
    return titles


def block_title(trace: Trace, step: Step) -> str:
    """Return the block that a line belongs to, such as "Block 3" or "Image block 3"; "" outside blocks."""
    if step.layer is None:
        return ""
    tower = next((part for part in {record.part for record in trace.attentions} if _is_in(step, part)), "")
    return f"{tower} block {step.layer + 1}".strip().capitalize()


def _is_in(step: Step, part: str) -> bool:
    return bool(part) and step.id.startswith(f"{part}.")


def of_model(trace: Trace) -> Iterator[Option]:
    """Yield the changes of a whole model: positions off, patches in another order, and no division of the scores in any
    block."""
    parts = {record.part for record in trace.attentions}
    for step in trace.steps:
        end = step.id.rpartition(".")[2]
        if step.layer is not None or step.recomputed or not _has_numbers(step):
            continue
        if step.stage == "position" and end.endswith("position") and "+" in step.latex:
            part = step.id.partition(".")[0]
            which = end.removesuffix("position").strip("_") or (part if len(parts) > 1 and part in parts else "")
            yield Option(step.id, Off(), f"No {which} positions" if which else "No positions")
        elif end == "patches" and len(step.shape) > 2:
            yield Option(step.id, Shuffle(), "Patches in shuffled order")
        elif end == "angles":
            yield Option(step.id, Zero(), "No rotation by position")
    divided = [
        option
        for record in trace.attentions
        for option in of_attention(trace, record)
        if isinstance(option.change, Unscale) and option.line.endswith(".attention.scores")
    ]
    if 1 < len(divided) == len(trace.attentions):
        yield Option("*.attention.scores", Unscale(), "No division by √d_k in any block")


def of_block(trace: Trace, block: str) -> Iterator[Option]:
    """Yield the changes of whole parts of a block: attention, MLP, norms and residual connections off."""
    for step in trace.steps:
        start, _, rest = step.id.partition(f"{block}.")
        part, _, end = rest.rpartition(".")
        if start or not rest or step.recomputed:
            continue
        name = PARTS.get(part, part.replace(".", " "))
        if end == "output" and part in PARTS:
            yield Option(step.id, Zero(), f"No {name}")
        elif end == "residual":
            yield Option(step.id, Off(), f"No residual connection around the {name}")
        elif step.stage == "norm" and not part:
            numbered = re.sub(r"(?<=[a-z])(?=[0-9])", " ", end)
            yield Option(step.id, Off(), f"No {numbered}")


def of_attention(trace: Trace, record: AttentionRecord, head: int | None = None) -> Iterator[Option]:
    """Yield the changes of an attention: of one head, counted from 0, and then of all of them."""
    lines = attention_lines(trace, record)
    weights, scores, queries = (lines.get(name) for name in ("weights", "scores", "query"))
    if weights is not None and head is not None and record.heads > 1 and _target(weights).head_axis is not None:
        yield Option(weights.id, Drop(head), f"Head {head + 1} off")
        yield Option(weights.id, Keep(head), f"Only head {head + 1}")
    chain = [name for name, _ in record.chain]
    factors = [value[1] for name, value in record.chain if name in SCALINGS and len(value) > 1]
    if scores is not None and set(chain) <= SCALINGS and record.mask == "none":
        yield Option(scores.id, Zero(), "Uniform attention")
    elif queries is not None and chain and set(chain) <= SCALINGS | {"causal"}:
        yield Option(queries.id, Zero(), "Uniform attention, as the mask allows")
    if scores is not None and set(chain) <= SCALINGS | {"causal"} and len(factors) == 1 and factors[0] != 1:
        yield Option(scores.id, Unscale(), "No division by √d_k")
    if scores is not None and chain[-1:] == ["causal"] and set(chain) <= SCALINGS | {"causal"}:
        yield Option(scores.id, Bidirectional(), "No mask: later tokens are seen, too")


def causal_everywhere(trace: Trace, part: str | None = None) -> str:
    """Return, as text, the change that closes later tokens in every block of a tower (in every block of the run, if
    `part` is None). It is "" where no mask of that kind fits: a block has one already, its queries and keys are not the
    same tokens, or its scores are not a line of their own."""
    records = [record for record in trace.attentions if part is None or record.part == part]
    fits = all(record.mask == "none" and record.queries == record.keys for record in records)
    lines = [attention_lines(trace, record).get("scores") for record in records]
    if not (records and fits and all(line is not None and line.id.endswith(".attention.scores") for line in lines)):
        return ""
    return f"{f'{part}.' if part else ''}*.attention.scores=causal()"


def attention_lines(trace: Trace, record: AttentionRecord) -> Mapping[str, Step]:
    """Return the lines of an attention by the ends of their ids, such as "query", "scores" and "weights"."""
    inside = (step for step in trace.steps if record.op in step.ops or step.inside == record.op)
    weights = next((step for step in inside if split_id(step.id)[1] == "weights"), None)
    if weights is None:
        return {}
    around, _, number = split_id(weights.id)
    lines = {split_id(step.id): step for step in trace.steps if not step.id.endswith(CHANGED_SUFFIX)}
    return {name: step for (start, name, of), step in lines.items() if (start, of) == (around, number)}


def of_step(trace: Trace, step: Step) -> Iterator[Option]:
    """Yield the changes of one line: off, 0, the mean over positions, positions shuffled, and noise."""
    if not _has_numbers(step) or not step.shape:
        return
    target = _target(step)
    if step.stage == "norm" or step.id.endswith(("residual", "position")):
        yield Option(step.id, Off(), "Off")
    yield Option(step.id, Zero(), "Set to 0")
    if len(step.shape) > 2 and all(step.shape[axis] > 1 for axis in target.token_axes):
        yield Option(step.id, Mean(), "Mean over positions")
        yield Option(step.id, Shuffle(), "Shuffle the order")
    if (spread := _spread(trace, step)) > 0:
        yield Option(step.id, Noise(spread), "Noise of its own size")


def _has_numbers(step: Step) -> bool:
    return "float" in step.dtype


def _target(step: Step) -> TargetLine:
    return TargetLine(step.id, step.symbolic, step.shape)


def _spread(trace: Trace, step: Step) -> float:
    """Return the standard deviation of the value of a line, to two digits; 0 if it was not kept or is not finite."""
    value = trace.value(step)
    if value is None or value.numel() < 2:
        return 0.0
    spread = float(value.double().std())
    return float(f"{spread:.2g}") if spread < float("inf") else 0.0


def describe(trace: Trace, line: str, change: Change) -> str:
    """Return a change of a run in plain words, such as "Block 3: head 1 off" or "Block 1, scores × 0.5"."""
    if isinstance(change, Several):
        return ", ".join(describe(trace, line, each) for each in change.changes)
    if isinstance(change, InputChange):
        return _describe_input(change)
    where, title = _place(trace, line)
    known = next((option.title for option in options(trace) if option.text == f"{line}={change}"), "")
    if known:
        return f"{where}: {known[0].lower()}{known[1:]}" if where and "*" not in line else known
    what = f"{title[:1].lower()}{title[1:]}" if where else title
    return f"{', '.join(filter(None, (where, what)))} {_words(change)}"


def _place(trace: Trace, line: str) -> tuple[str, str]:
    """Return the block and the title of a line; for a pattern, of all that it matches, if they share one title. Any
    other line is named by its id."""
    if step := next((step for step in trace.steps if step.id == line), None):
        return block_title(trace, step), step.title
    steps = [step for step in trace.steps if fnmatchcase(step.id, line)]
    if len({step.title for step in steps}) != 1:
        return line, ""
    blocks = {step.layer for step in trace.steps if step.layer is not None}
    every = {step.layer for step in steps} == blocks
    return "All blocks" if every else f"{len(steps)} blocks", steps[0].title


def _describe_input(change: InputChange) -> str:
    """Return a change of an input or of the weights in words."""
    if isinstance(change, Hide):
        many = "1 patch" if len(change.patches) == 1 else f"{len(change.patches)} patches"
        return f"{many} removed" if change.fill == REMOVED_FILL else f"{many} hidden ({change.fill})"
    if isinstance(change, MaskWords):
        return f"{len(change.places)} word{'s' * (len(change.places) > 1)} masked"
    return "Weights in random order" if isinstance(change, Permute) else str(change)


def _words(change: Change) -> str:
    """Return a change in words that follow the title of its line."""
    if isinstance(change, Scale):
        return f"× {change.factor:g}"
    if isinstance(change, (Keep, Drop)):
        *heads, last = (str(head + 1) for head in change.heads)
        name = f"heads {', '.join(heads)} and {last}" if heads else f"head {last}"
        return f"of {name} alone" if isinstance(change, Keep) else f"without {name}"
    if isinstance(change, Noise):
        return f"with noise of {change.std:g}"
    if isinstance(change, Take):
        return f"replaced by {change.line}"
    words = {
        Causal: "under a causal mask",
        Zero: "set to 0",
        Off: "off",
        Mean: "averaged over positions",
        Replace: "replaced",
    }
    return "in shuffled order" if isinstance(change, Shuffle) else words.get(type(change), str(change))
