"""Repeated blocks are found, printed once, and compared with every block that they stand for."""

from dataclasses import replace
from types import SimpleNamespace

import tracer
from tracer import export
from tracer.export.rows import as_printed
from tracer.record import Step, Trace
from tracer.record.steps import at_any
from tracer.verify.checks import printed


def book(*lines: tuple) -> Trace:
    """Return a trace of steps alone, from (layer, symbol, right side)."""
    steps = [
        Step(f"b{n}", "s", layer, "t", symbol, f"{symbol} = {right}", ("B",), (2,), n * 1e-7, False, None, (), "why")
        for n, (layer, symbol, right) in enumerate(lines)
    ]
    return Trace("hand", ops=(), steps=tuple(steps))


def block(number: str, before: str, layer: int, word: str = "f") -> tuple:
    return layer, rf"\mathbf{{X}}^{{({number})}}", rf"\operatorname{{{word}}}(\mathbf{{X}}^{{({before})}})"


def test_blocks_that_are_alike_are_printed_once():
    trace = book((None, r"\mathbf{X}^{(0)}", "x"), *(block(str(n), str(n - 1), n - 1) for n in (1, 2, 3)))
    (repeat,) = trace.repeats
    assert (repeat.start, repeat.length, repeat.times, repeat.blocks) == (1, 1, 3, ("1", "2", "3"))
    (_, first), (_, (line,)) = as_printed(trace)
    assert [step.id for step in first] == ["b0"] and line.id == "b*" and line.error == 3e-7
    assert line.latex == r"\mathbf{X}^{(\ell)} = \operatorname{f}(\mathbf{X}^{(\ell-1)})"
    assert not list(printed.check_printed_repeats(SimpleNamespace(trace=trace)))


def test_blocks_in_turn_and_of_stages_repeat():
    lines = [block(f"2.{n}", f"2.{n - 1}", 1, "fg"[n % 2]) for n in range(1, 7)]
    (repeat,) = book(*lines).repeats
    assert (repeat.period, repeat.times, repeat.blocks) == (2, 3, ("2.1", "2.3", "2.5"))
    assert at_any(r"\mathbf{X}^{(2.4)}", "2.3") == r"\mathbf{X}^{(2.\ell+1)}"
    assert at_any(r"\mathbf{X}^{(1.4)}", "2.3") == r"\mathbf{X}^{(1.4)}"


def test_a_block_that_differs_is_not_hidden():
    lines = [block("1", "0", 0), block("2", "1", 1), block("3", "2", 2, "g"), block("4", "2", 3)]
    (repeat,) = book(*lines).repeats
    assert (repeat.start, repeat.times) == (0, 2)


def test_the_check_finds_a_repeat_that_hides_a_difference():
    trace = book(block("1", "0", 0), block("2", "1", 1), block("3", "2", 2))
    assert trace.repeats[0].times == 3  # and now one of them says something else
    other = replace(trace.steps[2], latex=trace.steps[2].latex.replace("{f}", "{g}"))
    vars(trace)["steps"] = (*trace.steps[:2], other)
    assert list(printed.check_printed_repeats(SimpleNamespace(trace=trace)))


def test_own_models_print_one_block():
    run = tracer.load("nanogpt").trace(prove=False)
    assert [repeat.times for repeat in run.repeats] == [4]
    assert not list(printed.check_printed_repeats(SimpleNamespace(trace=run)))
    text = export.render(run, "steps", "latex")
    assert text.count(r"\mathbf{A}^{(\ell)} &=") == 1
    assert r"\times\,4" in text and r"^{(2)}" not in text
