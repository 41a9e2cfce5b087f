"""Search for probe sizes of a generic model: sizes at which it runs.

Sizes that are changed together, such as a photo's height and width, are a `SizeGroup`: rows of other sizes to try, the
most telling first. What runs at none of them stays a number, and a sentence says so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from tracer.capture import Recording
from tracer.shapes import Vocabulary
from tracer.shapes.op_alignment import COPIES, align
from tracer.symbols.notation import parse
from tracer.utils.error_text import reason
from tracer.utils.internals.torch_internals import disable_dispatch_modes, fake_tensor

PROBES = 5
"""Runs at other sizes: four that solve, and one that is predicted."""


class SizeGroup(NamedTuple):
    """Sizes that are changed together: `choices` are columns of `PROBES` values for each of the symbols."""

    symbols: tuple[str, ...]
    choices: tuple[tuple[tuple[int, ...], ...], ...]

    def row(self, choice: int, number: int) -> dict[str, int]:
        """Return the sizes of a probe."""
        return {symbol: column[number] for symbol, column in zip(self.symbols, self.choices[choice], strict=True)}

    def equal(self, choice: int) -> list[tuple[str, str]]:
        """Map each symbol with the values of an earlier one in a choice to the first of these."""
        columns = self.choices[choice]
        firsts = [self.symbols[columns.index(column)] for column in columns]
        return [(symbol, first) for symbol, first in zip(self.symbols, firsts, strict=True) if symbol != first]

    def varying_symbols(self, choice: int) -> list[str]:
        """Return the symbols that are not the same in all rows of a choice."""
        return [symbol for symbol, column in zip(self.symbols, self.choices[choice], strict=True) if len({*column}) > 1]


def group(symbol: str, *choices: tuple[int, ...]) -> SizeGroup:
    """Return the choices for a size that changes alone."""
    return SizeGroup((symbol,), tuple((choice,) for choice in choices))


def find_probe_sizes(
    run: Recording,
    vocabulary: Vocabulary,
    base: dict[str, int],
    groups: list[SizeGroup],
) -> Iterator[tuple[Vocabulary, list[dict[str, int]]]]:
    """Return ways to solve `run`: with all groups at other sizes at once, where the model runs the same ops there, else
    each group at the first choice that works with all else as at `base`.

    A group that runs at none of its choices stays at `base`, and its symbols are not names any more. Where the ops
    differ at all choices, those that do stay open.
    """
    base_sizes = {name: base[name] for name in ("B",) if name in base}
    for chosen in _together(groups):
        probes = _probes(base, groups, chosen)
        if all(same_ops(run, vocabulary, {**probe, **base_sizes}) is True for probe in probes):
            yield _over(vocabulary, groups, chosen), probes
            break
    for rows in ((0,), tuple(range(PROBES))):
        ways = list(_choose(run, vocabulary, base, groups, rows))
        yield from ways
        if not ways:
            return


def _together(groups: list[SizeGroup]) -> Iterator[dict[int, int]]:
    """Return choices for all groups at once: the first of each, then the others of one of them."""
    first = dict.fromkeys(range(len(groups)), 0)
    yield first
    for number, sizes_group in enumerate(groups):
        if sizes_group.symbols != ("B",):
            yield from ({**first, number: choice} for choice in range(1, len(sizes_group.choices)))


def _choose(
    run: Recording, vocabulary: Vocabulary, base: dict[str, int], groups: list[SizeGroup], rows: tuple[int, ...]
):
    """Return the first choice of each group that runs, compared in these rows. An op that differs even at `base`
    differs at any choice."""
    others = _others(run, vocabulary, base)
    chosen, missing_ops, reasons = {}, bool(others), {}
    for number, sizes_group in enumerate(groups):
        runs = None
        for choice in range(len(sizes_group.choices)):
            tries = [same_ops(run, vocabulary, {**base, **sizes_group.row(choice, row)}, others) for row in rows]
            if (failed := next((message for message in tries if isinstance(message, str)), None)) is not None:
                reasons[number] = failed
                continue
            runs = choice if runs is None else runs
            if all(tries) or sizes_group.symbols == ("B",):
                runs = choice
                break
        else:
            missing_ops |= runs is not None
        if runs is not None:
            chosen[number] = runs
    fixed_sizes = [
        symbol for number, sizes_group in enumerate(groups) if number not in chosen for symbol in sizes_group.symbols
    ]
    if not chosen:
        return
    message = next((reasons[number] for number in reasons if number not in chosen), "")
    sentence = f"no symbols for {', '.join(fixed_sizes)}: the model did not run at the other sizes tried ({message})"
    left = replace(_over(vocabulary, groups, chosen), note=sentence if fixed_sizes else "", missing_ops=missing_ops)
    yield left, _probes(base, groups, chosen)
    if not missing_ops:
        yield replace(left, missing_ops=True), _probes(base, groups, chosen)


def _over(vocabulary: Vocabulary, groups: list[SizeGroup], chosen: dict[int, int]) -> Vocabulary:
    """Return the vocabulary over the sizes that the choices change; a size that equals another is derived from it."""
    equal = dict(pair for number, choice in chosen.items() for pair in groups[number].equal(choice))
    varied = {
        name for number, choice in chosen.items() for name in groups[number].varying_symbols(choice)
    } - equal.keys()
    names = tuple(name for name in vocabulary.names if _letters(name, vocabulary.derived) <= varied)
    return replace(vocabulary, names=names, derived=vocabulary.derived | equal)


def same_ops(run: Recording, vocabulary: Vocabulary, at: dict[str, int], but: Collection[int] = ()) -> bool | str:
    """Return True if the model runs the ops of `run`, except `but`, at these sizes; the error if it does not run at
    all."""
    try:
        probe = vocabulary.probe(at, primitives=False)
    except Exception as error:  # whatever a library makes of a size that it was not written for
        return reason(error)
    return all(number in but for number in _missing(run, probe))


def _others(run: Recording, vocabulary: Vocabulary, base: dict[str, int]) -> list[int]:
    """Return the ops of `run` that the model does not run at `base` either; none if it does not run there."""
    try:
        return _missing(run, vocabulary.probe(base, primitives=False))
    except Exception:  # whatever a library makes of a tensor without values
        return []


def _missing(run: Recording, probe: Recording) -> list[int]:
    """Return the ops of a run that another run lacks."""
    matches = zip(run.ops, align(run.ops, probe.ops), strict=True)
    return [number for number, (op, place) in enumerate(matches) if place is None and op.name not in COPIES]


def _letters(name: str, derived: dict[str, str]) -> set[str]:
    """Return the sizes of an expression, with derived ones expanded."""
    letters = {str(letter) for letter in parse(name).free_symbols}
    return (letters - derived.keys()).union(
        *(_letters(derived[letter], derived) for letter in letters & derived.keys())
    )


def same_shapes(run: Recording, vocabulary: Vocabulary, base: dict[str, int]) -> bool:
    """Return whether the model runs the ops of `run` at its own sizes, with outputs of the same shapes."""
    if same_ops(run, vocabulary, base) is not True:
        return False
    probe_ops = vocabulary.probe(base, primitives=False).ops
    return len(probe_ops) == len(run.ops) and all(
        [shape for shape, *_ in first.outputs] == [shape for shape, *_ in two.outputs]
        for first, two in zip(run.ops, probe_ops, strict=True)
    )


def _probes(base: dict[str, int], groups: list[SizeGroup], chosen: dict[int, int]) -> list[dict[str, int]]:
    rows = []
    for number in range(PROBES):
        changed = [groups[place].row(choice, number) for place, choice in chosen.items()]
        rows.append({**base, **{symbol: size for row in changed for symbol, size in row.items()}})
    return rows


def valueless(net: torch.nn.Module, mode: Any, device: torch.device) -> torch.nn.Module:
    """Move a net from `meta` to a device in place, with uninitialised tensors."""
    known: dict[int, torch.Tensor] = {}

    def stand_in(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in known:
            known[id(tensor)] = fake_tensor(mode, tensor.detach(), device)
        return known[id(tensor)]

    with disable_dispatch_modes():
        for part in net.modules():
            for name, tensor in [*part.named_parameters(recurse=False, remove_duplicate=False)]:
                setattr(part, name, torch.nn.Parameter(stand_in(tensor), requires_grad=False))
            for name, tensor in [*part.named_buffers(recurse=False, remove_duplicate=False)]:
                setattr(part, name, stand_in(tensor))
    return net
