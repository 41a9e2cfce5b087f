r"""Repeated steps: blocks whose lines differ only in their number, printed once, × L.

A block's number is above its letters, `\mathbf{Q}^{(3)}`, `\mathbf{Q}^{(2.3)}` for the third of the second stage. With
numbers counted from the block's own, `\mathbf{X}^{(\ell-1)}`, equal blocks read the same. Two alternating kinds of
block (windows and shifted windows) are one repeat of period two.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from tracer.record.steps import Step

BLOCK_NUMBER = re.compile(r"\((\d+(?:\.\d+)*)\)\}")
"""The number of a block, at the end of a superscript."""
PERIODS = 4
"""Most kinds of blocks that alternate."""


class Repeat(NamedTuple):
    """`times` runs of `length` steps from step `start` on, with the same lines but for the numbers of `blocks`.

    `blocks` holds the first block of each; `period` blocks make one run.
    """

    start: int
    length: int
    times: int
    period: int
    blocks: tuple[str, ...]

    @property
    def numbers(self) -> str:
        r"""Numbers as LaTeX: `\ell = 1, 2, \ldots, 12`, or `\ell = 3.1, 3.3, 3.5`."""
        shown = self.blocks if self.times < 4 else (*self.blocks[:2], r"\ldots", self.blocks[-1])
        return rf"\ell = {', '.join(shown)}"


class _Block(NamedTuple):
    number: str
    start: int
    stop: int


def repeats(steps: Sequence[Step]) -> tuple[Repeat, ...]:
    """Return the repeats of a book, in order; no two share a step."""
    repeated, blocks, at = [], _blocks(steps), 0
    while at < len(blocks):
        best = max((_repeat(steps, blocks, at, period) for period in range(1, PERIODS + 1)), key=_steps_saved)
        if best.times > 1:
            repeated.append(best)
            at += best.times * best.period
        else:
            at += 1
    return tuple(repeated)


def _steps_saved(repeat: Repeat) -> tuple[int, int]:
    """Return the number of steps that need not be printed, and the negative period, so that the shortest wins."""
    return (repeat.times - 1) * repeat.length, -repeat.period


def _blocks(steps: Sequence[Step]) -> list[_Block]:
    """Return the runs of steps that are in one block each."""
    blocks: list[_Block] = []
    for index, step in enumerate(steps):
        number = _number(step)
        if number is None:
            continue
        last = blocks[-1] if blocks else None
        if last is not None and last.number == number and last.stop == index and steps[last.start].layer == step.layer:
            blocks[-1] = last._replace(stop=index + 1)
        else:
            blocks.append(_Block(number, index, index + 1))
    return blocks


def _number(step: Step) -> str | None:
    """Return the number of a step's block, or None."""
    numbers = BLOCK_NUMBER.findall(step.symbol)
    return None if step.layer is None else numbers[-1] if numbers else str(step.layer + 1)


def _repeat(steps: Sequence[Step], blocks: list[_Block], at: int, period: int) -> Repeat:
    """Return the repeat that starts at a block with that many alternating kinds of blocks, or None."""
    first = blocks[at : at + period]
    times, lines = 1, None
    if _follow(first):
        lines = _lines(steps, first)
        while (
            _follow(both := blocks[at + (times - 1) * period : at + (times + 1) * period]) and len(both) == 2 * period
        ):
            if _lines(steps, both[period:]) != lines:
                break
            times += 1
    numbers = tuple(blocks[at + turn * period].number for turn in range(times))
    return Repeat(first[0].start, first[-1].stop - first[0].start, times, period, numbers)


def _follow(blocks: Sequence[_Block]) -> bool:
    """Return whether blocks follow each other directly, with consecutive numbers."""
    pairs = pairwise(blocks)
    return all(a.stop == b.start and _after(a.number, 1) == b.number for a, b in pairs)


def _after(number: str, count: int) -> str:
    """Return the number of the block `count` after this one, in the same stage."""
    around, point, own = number.rpartition(".")
    return f"{around}{point}{int(own) + count}"


def _lines(steps: Sequence[Step], blocks: Sequence[_Block]) -> list[tuple]:
    """Return all texts of the steps of some blocks, with their numbers counted from the first."""
    own = blocks[0].number
    chosen = steps[blocks[0].start : blocks[-1].stop]
    return [
        (
            at_any(step.latex, own),
            at_any(step.symbol, own),
            step.title,
            step.stage,
            step.symbolic,
            step.shape,
            step.note,
        )
        for step in chosen
    ]


def at_any(latex: str, number: str) -> str:
    r"""Return LaTeX with block numbers of the same stage relative to this one: `\mathbf{X}^{(\ell-1)}`."""
    around, point, own = number.rpartition(".")

    def relative_block(match: re.Match) -> str:
        before, _, last = match[1].rpartition(".")
        if before != around:
            return match[0]
        offset = int(last) - int(own)
        return rf"({around}{point}\ell{f'{offset:+d}' if offset else ''})}}"

    return BLOCK_NUMBER.sub(relative_block, latex)
