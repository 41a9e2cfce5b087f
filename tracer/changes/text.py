"""Changes as text, as they stand in links and on the command line: `block3.attention.weights=drop_heads(1)`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from torch import Tensor

from tracer.changes import kinds, of_inputs
from tracer.changes.kinds import Change, Function, Replace, Several, join_changes
from tracer.changes.of_inputs import InputChange
from tracer.record import Trace
from tracer.utils.errors import quote, shorten

KINDS: dict[str, type[Change]] = {
    kind.name: kind
    for module in (kinds, of_inputs)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Change) and kind.name and kind not in (Function, Replace)
}
"""The kinds of changes that a text can name."""
KEYS = {
    key: [kind.example for kind in KINDS.values() if issubclass(kind, InputChange) and kind.key == key]
    for key in ("image", "text", "weights")
}
"""What stands in the place of a line for inputs and weights, with examples of their changes."""
MAX_NAME_LETTERS = max(map(len, KINDS)) + 8
"""Number of characters of an unknown name that are compared with the known ones."""
CALL = re.compile(r"([a-z_]+)(?:\(([^()]*)\))?")


def parse(text: str) -> Change:
    """Return the change that a text names, such as `zero`, `scale(0.5)` or `drop_heads(1,3)`.

    Raise ValueError in one sentence that quotes the text.
    """
    match = CALL.fullmatch(text.strip())
    if match is None or match[1] not in KINDS:
        near = get_close_matches((match[1] if match else text)[:MAX_NAME_LETTERS], KINDS, n=1)
        hint = f"did you mean {quote(near[0])}?" if near else f"expected one of {', '.join(KINDS)}"
        raise ValueError(f"there is no change {quote(text)}; {hint}")
    kind = KINDS[match[1]]
    try:
        return kind.read(match[2] or "")
    except (TypeError, ValueError) as error:
        expected = f"expected something like {kind.example}" if kind.example else f"{kind.name} takes no arguments"
        raise ValueError(f"the change {quote(text)} can't be read: {expected}") from error


def parse_all(texts: Iterable[str]) -> dict[str, Change]:
    """Return the changes of texts such as `block3.attention.weights=zero`, by line; several of one line in order.

    Raise ValueError in one sentence that quotes the text.
    """
    by_line: dict[str, list[Change]] = {}
    for text in texts:
        line, equals, change = text.rpartition("=")
        if not equals or not line.strip():
            raise ValueError(
                f"{quote(text)} is not a change of a line, expected one like 'block1.attention.weights=drop_heads(0)'"
            )
        by_line.setdefault(line.strip(), []).append(parse(change))
    return {line: join_changes(several) for line, several in by_line.items()}


def divide(changes: Mapping[str, Change]) -> tuple[dict[str, Change], list[InputChange]]:
    """Return the changes of lines, and those of inputs and weights, in order.

    Raise ValueError for a change of an input that stands beside another name.
    """
    lines, of_inputs = {}, list[InputChange]()
    for line, change in changes.items():
        if line not in KEYS:
            lines[line] = change
            continue
        for edit in change.parts:
            if not isinstance(edit, InputChange) or edit.key != line:
                raise ValueError(
                    f"{quote(line)} can't be changed by {shorten(str(edit))}, expected {' or '.join(KEYS[line])}"
                )
            of_inputs.append(edit)
    return lines, of_inputs


def moves_tokens(changes: Mapping[str, Change]) -> bool:
    """Return whether, after these changes, a token may be in the row of another one; rows of a parameter are none."""
    return any(change.moves_tokens for line, change in divide(changes)[0].items() if not line.startswith("parameter "))


def changes_of(values: Mapping[str, Any]) -> dict[str, Change]:
    """Return changes by the lines that they change. Raise ValueError for anything else."""
    if not isinstance(values, Mapping) or not all(isinstance(line, str) for line in values):
        raise ValueError(f"change={quote(values)}, expected changes by the ids of lines, such as {{'logits': 'zero'}}")
    return {line: change_of(value) for line, value in values.items()}


def change_of(value: Any) -> Change:
    """Return a change, a tensor, a trace, a function, a text, or several of these, as one change."""
    if isinstance(value, Change):
        return value
    if isinstance(value, (Tensor, Trace)):
        return Replace(value)
    if isinstance(value, str):
        return parse(value)
    if isinstance(value, (list, tuple)) and value:
        return Several(tuple(map(change_of, value)))
    if isinstance(value, type) and issubclass(value, Change):
        raise ValueError(
            f"{quote(value.name)} is a kind of change, expected one with its arguments, as in {value.name}()"
        )
    if callable(value):
        return Function(value)
    raise ValueError(f"{quote(value)} is not a change, expected one of tracer.changes, a tensor, a trace or a function")


def has_name(change: Change) -> bool:
    """Return whether a change can be written as text: a tensor, a trace and a function can't."""
    return all(part.name in KINDS for part in change.parts)


def write(changes: Mapping[str, Change]) -> tuple[str, ...]:
    """Return changes as texts that `parse_all` reads. Raise ValueError for one that has no name."""
    texts = []
    for line, change in changes.items():
        for part in change.parts:
            if part.name not in KINDS:
                raise ValueError(f"the change of {quote(line)} is {part}, which has no name that can be written")
            texts.append(f"{line}={part}")
    return tuple(texts)
