"""Letters of the texts: the same lines with other names, each read again, and no two that look alike."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.latex_reader.test_latex_reader import tiny_model
from tests.support.loaded_models import load
from tracer import export
from tracer.export.letters import TITLES, letters_of, names_of, sizes_with_letters, with_letters
from tracer.export.to_html import equation
from tracer.figures import handout
from tracer.figures.film import message
from tracer.figures.film.storyboard import storyboard
from tracer.latex_reader.evaluator import Operands, deviation, evaluate
from tracer.latex_reader.parser import read
from tracer.record import tolerance
from tracer.symbols import notation
from tracer.symbols.letters import OURS, SIZES, TENSORS, TEXTS, Letters, PrintedNames, look
from tracer.verify.checks.printed import check_letters, printed_operands

MODELS = ("nanogpt", "vit", "vit-text", "vit-note", "segmenter", "mae", "clip", "transformer", "torchvision:vit_b_16")


@pytest.fixture(scope="module")
def runs():
    kept = {}

    def of(name):
        if name not in kept:
            model = tiny_model(name, {})
            kept[name] = SimpleNamespace(model=model, inputs=model.inputs(), trace=model.trace(keep=2**30, prove=False))
        return kept[name]

    return of


@pytest.mark.parametrize("name", MODELS)
def test_each_line_is_the_same_in_the_letters_of_every_text_and_no_two_names_look_alike(runs, name):
    assert list(check_letters(runs(name))) == []


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", ["transformer", "vit-text"])
def test_lines_in_other_letters_give_the_tensors_of_the_run(runs, name, text):
    run = runs(name)
    letters, own = letters_of(run.trace, text), printed_operands(run.trace, run.model.net, run.inputs)
    steps = [with_letters(step, letters) for step in run.trace.steps]
    table = {letters.line(symbol): symbol for symbol in names_of(run.trace).tensors}
    sizes = {notation.latex(size.name): size.value for size in sizes_with_letters(run.trace, letters)}
    operands = Operands(table, sizes, own)
    for step in steps:
        line = read(step.latex, operands.names)
        assert line.name == step.symbol
        assert deviation(evaluate(line, operands, step.shape), operands(step.symbol)).max() <= tolerance(step.dtype)
        values = {size.name: size.value for size in sizes_with_letters(run.trace, letters)}
        assert tuple(notation.parse(size).subs({notation.symbol(name): value for name, value in values.items()})
                     for size in step.symbolic) == step.shape  # fmt: skip


LINES = [
    ("transformer", "004", "block1.attention.query",
     r"\mathbf{Q}^{(1)} = \operatorname{heads}_{H}\left(\mathbf{Z}^{(0)}\,\mathbf{W}^{Q (1)}\right)", "[B, H, n, d_k]"),
    ("transformer", "004", "block1.attention.output",
     r"\mathbf{O}'^{(1)} = \mathbf{O}^{(1)}\,\mathbf{W}^{O (1)}", "[B, n, d_model]"),
    ("transformer", "004", "probabilities", r"\mathbf{probs} = \operatorname{softmax}\left(\mathbf{logits}\right)",
     "[B, n, V]"),
    ("vit-note", "001", "block1.attention.weights",
     r"\hat{\mathbf{A}}^{(1)} = \operatorname{softmax}\left(\mathbf{A}^{(1)}\right)", "[B, N+1, N+1]"),
    ("vit-note", "001", "sequence",
     r"\mathbf{Z}_{\mathrm{seq}} = \left[\mathbf{z}_{\mathrm{cls}}\ ;\ \mathbf{Z}_{\mathrm{patches}}\right]",
     "[B, N+1, D]"),
    ("vit", "002", "block2.attention.residual",
     r"\mathbf{Z}_{2}' = \mathbf{Z}_{1} + \mathbf{Z}_{\mathrm{out}}^{(2)}", "[B, N+1, D]"),
    ("vit", "003", "embedding", r"\mathbf{I} = \mathbf{X}_p\,\mathbf{W}_{E} + \mathbf{b}_{E}", "[N, N_p, D]"),
    ("vit", "2021", "block1.attention.residual", r"\mathbf{z}_{1}' = \mathbf{z}_{0} + \mathbf{MSA}^{(1)}",
     "[B, N+1, D]"),
    ("nanogpt", "000", "block1.mlp.residual", r"\mathbf{X}^{(1)} = \mathbf{X}'^{(1)} + \mathbf{M}_{\mathrm{MLP}}^{(1)}",
     "[B, T, D]"),
    ("nanogpt", "001", "position",
     r"\mathbf{Z}^{(0)} = \mathbf{X}_t + {\mathbf{P}_{\mathrm{pos}}}_{[:T]}", "[B, T, D]"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "step", "latex", "shape"), LINES)
def test_a_step_is_written_as_the_text_writes_it(runs, name, text, step, latex, shape):
    trace = runs(name).trace
    line = with_letters(trace.step(step), letters_of(trace, text))
    assert (line.latex, notation.shape_text(line.symbolic)) == (latex, shape)


def test_what_collides_has_a_subscript(runs):
    sizes = {size.name for size in sizes_with_letters(runs("vit").trace, letters_of(runs("vit").trace, "004"))}
    assert {"H", "H_img", "W_img", "d_model"} <= sizes and not {"h", "D"} & sizes
    letters = letters_of(runs("vit").trace, "003")
    assert letters.differences == [("B", "N"), ("N", "N_p")]
    assert notation.shape_text(letters.shape(("B", "N + 1", "H*W/P**2"))) == "[N, N_p+1, H·W/P²]"


@pytest.mark.parametrize(
    ("text", "names", "kept"),
    [
        ("004", PrintedNames(("T", "n"), {}, ()), "T"),  # n is another size of this run
        ("2021", PrintedNames(("h",), {}, (r"2k/h",)), "h"),  # k is an index
        ("001", PrintedNames((), {r"\mathbf{P}": "", r"\mathbf{P}_{\mathrm{pos}}": ""}, ()), r"\mathbf{P}"),
        ("004", PrintedNames(("H",), {r"\mathbf{H}": "", r"\mathbf{O}": "", r"\mathbf{O}'": ""}, ()), r"\mathbf{O}"),
    ],
)
def test_our_letter_stays_where_the_texts_would_stand_for_two_things(text, names, kept):
    assert Letters(text, names).line(kept) == kept
    printed = [Letters(text, names).line(name) for name in (*names.sizes, *names.tensors)]
    assert len(set(printed)) == len(printed)
    assert len(set(map(look, printed))) >= len(set(map(look, (*names.sizes, *names.tensors))))


def test_mistakes_in_letters_are_found(runs, monkeypatch):
    """A letter for two things, a letter at one place only, and a line that changes with its letters."""
    run, line = runs("transformer"), Letters.line
    for wrong in (
        lambda self, latex: line(self, latex).replace(r"\mathbf{V}", r"\mathbf{K}"),
        lambda self, latex: line(self, latex).replace(r"\mathbf{S}^{(1)}\right)", r"\mathbf{A}^{(1)}\right)"),
        lambda self, latex: line(self, latex).replace(r"^{\top}", ""),
        lambda self, latex: line(self, latex).replace("_{H}", "_{n}"),
    ):
        monkeypatch.setattr(Letters, "line", wrong)
        assert any("letters of 004" in problem for problem in check_letters(run)), wrong


def test_a_line_that_cannot_be_read_is_left_to_another_check(runs):
    run = runs("transformer")
    steps = tuple(replace(step, latex=r"\heartsuit") if step.id == "logits" else step for step in run.trace.steps)
    assert list(check_letters(SimpleNamespace(trace=replace(run.trace, steps=steps)))) == []


def test_the_table_names_what_is_there():
    assert set(TITLES) == set(TEXTS) and {text for row in (*SIZES.values(), *TENSORS.values()) for text in row} <= set(
        TEXTS
    )
    assert set(SIZES) <= set(notation.MEANINGS) and OURS not in {text for row in SIZES.values() for text in row}
    with pytest.raises(ValueError, match="there are no letters '005', expected one of ours, 000, 001"):
        letters_of(PrintedNames((), {}, ()), "005")


@pytest.mark.parametrize("format", ["markdown", "latex", "table"])
def test_a_run_is_written_in_the_letters_of_a_text(format):
    trace = load("vit").trace()
    ours, theirs = (export.render(trace, format=format, letters=text) for text in ("ours", "2021"))
    assert r"\mathbf{X}^{(\ell-1)}" in ours and r"\operatorname{heads}_{h}" in ours and "d_k" in ours
    assert r"\mathbf{X}^{(" not in theirs and r"\mathbf{z}_{\ell-1}" in theirs  # the block is below, at any block, too
    assert r"\operatorname{heads}_{k}" in theirs and "D_h" in theirs


def test_pages_are_written_in_the_letters_of_a_text():
    """The handout, the film and HTML differ in letters alone."""
    trace, their = load("vit").trace(), "2021"
    letters, film = letters_of(trace, their), storyboard(trace)
    of_text, own = message.build(film, letters=letters)["beats"], message.build(film)["beats"]
    for beat, other in zip(of_text, own, strict=True):
        assert all(beat[name] == other[name] for name in ("title", "sentence", "proof", "steps"))
        if beat["kind"] == "block":
            step = with_letters(trace.step(beat["shown"]), letters)
            assert equation(step.latex) in beat["equation"] and beat["equation"] != other["equation"]
            assert equation(f"{step.symbol} \\in {notation.shape_latex(step.symbolic)}") in beat["shape"]
    line = equation(with_letters(trace.step("patches"), letters).latex)
    for pages in (
        [handout.render(trace, their), handout.render(trace)],
        [export.render(trace, format="html", letters=their), export.html(trace)],
    ):
        assert [line in page for page in pages] == [True, False]
        assert len({re.sub(r"<math.*?</math>", "", page).count("\n") for page in pages}) == 1


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"letters": "005"}, "there are no letters '005', expected one of ours, 000"),
        ({"letters": "004", "format": "json"}, "format 'json': letters of a text are for steps that people read"),
        ({"letters": "004", "level": "ops"}, "level 'ops' and format 'table'"),
    ],
)
def test_letters_that_a_view_lacks_are_quoted(options, problem):
    with pytest.raises(ValueError, match=re.escape(problem)):
        export.render(load("vit").trace(), **options)
