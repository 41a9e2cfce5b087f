"""Every statement of the five notes is reproduced by a run, or is a slip that a run shows."""

import re
from collections import Counter
from dataclasses import replace

import pytest
import torch

from pages.state import page_registry
from tests.lessons import test_note_003, test_note_slips
from tests.support.note_runs import at_hand, run
from tests.support.sweeping import cases
from tracer import models
from tracer.export.rows import NOTE_TITLES
from tracer.lessons.notes import claims, errata, evaluate, lookup
from tracer.lessons.notes.evaluate import StatementResult
from tracer.lessons.notes.measurement import RUNS, STANDARD, provider, tensor_of
from tracer.lessons.notes.statements import rows, sections
from tracer.symbols import notation
from tracer.utils.text import percent

ROWS = [row for note in NOTE_TITLES for row in rows(note)]
COUNTS = {"000": 122, "001": 86, "002": 62, "003": 97, "004": 96}
"""Statements of each note, counted in the texts: rows of tables, items of lists, displayed formulas, claims."""


def test_no_row_of_the_notes_is_left_out():
    assert Counter(row.note for row in ROWS) == COUNTS
    assert not [row for row in ROWS if not row.where or (row.run not in RUNS and row.run != STANDARD)]
    assert all(row.number == at for note in NOTE_TITLES for at, row in enumerate(rows(note), 1))
    assert all(len(sections(note)) >= 10 for note in NOTE_TITLES)
    with pytest.raises(ValueError, match="there is no note '005', expected one of 000, 001"):
        rows("005")


def test_every_slip_is_named_by_a_row_and_shown_by_a_test():
    named = {place.removeprefix("slip ") for row in ROWS for place in row.where if place.startswith("slip ")}
    assert named == errata.SLIPS.keys()
    tests = [*vars(test_note_slips), *vars(test_note_003)]
    shown = {name.removeprefix("test_slip_") for name in tests if name.startswith("test_slip_")}
    assert shown == errata.SLIPS.keys()
    sentences = [slip.sentence for slip in errata.SLIPS.values()]
    assert all(sentence.endswith(".") and len(sentence) < 120 for sentence in sentences)


def test_every_claim_is_made_by_a_row():
    named = {place.removeprefix("claim ") for row in ROWS for place in row.where if place.startswith("claim ")}
    assert named == claims.CLAIMS.keys()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.note} {row.number}: {row.text}"[:60])
def test_row(row):
    """On the small runs, all of whose sizes differ. What is claimed beyond that is measured below, and in
    `test_claims.py`."""
    for place in row.where:
        if place.startswith("claim "):
            continue
        found = lookup.look(row, place, run)
        if place.startswith("slip "):
            assert found.verdict == errata.SLIPS[place.removeprefix("slip ")].verdict != "holds"
            assert found.slip and found.measured and found.page == "notes"
        else:
            biased = found.slip == lookup.BIAS_SLIP
            assert found.verdict == "sense" if biased else found.verdict in ("holds", "elsewhere"), found
            assert found.page


PARAMETER = re.compile(r"(?<![A-Za-z\\])(?:\\mathbf\{)?[Wb]\}?(?:[_^](?:\{[^{}]*(?:\{[^{}]*\})?[^{}]*\}|\w))+")
"""A matrix or a bias, as the notes write them: `W_Q`, `\\mathbf{b}_E`, `W_h^Q`, `b_{\\text{vocab}}`."""


@pytest.mark.parametrize(
    "row", [row for row in ROWS if PARAMETER.search(row.text)], ids=lambda row: f"{row.note}.{row.number}"
)
def test_every_matrix_and_bias_that_a_statement_names_is_looked_up(row):
    """A parameter by itself, or in the line of a step; a claim measures what it says of its own."""
    named, kinds = set(PARAMETER.findall(row.text)), [place.split()[0] for place in row.where]
    if "param" in kinds or "head" in kinds:
        assert kinds.count("param") + kinds.count("head") >= len(named)
    elif "step" in kinds:
        trace = run(row.run)[1]
        lines = [trace.step(place.split()[-1]) for place in row.where if place.startswith("step ")]
        assert len({name.of for line in lines for name in line.names if "parameter" in name.of}) >= len(named)
    else:
        assert "claim" in kinds


def test_each_place_of_a_statement_has_a_shape_of_its_own():
    row = next(row for row in rows("004") if row.text.startswith("$W_2") and "$b_2$" in row.text)
    assert [row.at(place).shape for place in row.where] == ["d_ff D", "D"]
    assert evaluate.result(row, run).verdict == "holds"
    assert evaluate.result(row._replace(shape="d_ff D; d_ff"), run).verdict == "not"


def test_a_matrix_of_a_head_is_looked_up_head_by_head():
    row = next(row for row in rows("004") if row.where[0].startswith("head ") and len(row.where) == 3)
    found = evaluate.result(row, run)
    assert found.verdict == "holds" and "each of the 3 heads has 4 columns" in found.findings[0].measured
    assert evaluate.result(row._replace(shape="D h*d_k"), run).verdict == "not"
    model, trace = run("transformer")
    values = {key: value.roll(1, 1) if key == trace.step("block1.attention.key").value else value
              for key, value in trace.values.items()}  # fmt: skip
    other = evaluate.result(row, lambda name: (model, replace(trace, values=values)))
    assert [finding.verdict for finding in other.findings] == ["holds", "not", "holds"]


def test_a_bias_that_the_note_lacks_is_told():
    row = next(row for row in rows("002") if row.text == "$K = X W_K$")
    found = evaluate.result(row, run)
    assert (found.verdict, found.slips) == ("sense", (lookup.BIAS_SLIP,))
    key = (
        run("vit")[0].net.block1.attention.key.bias.abs().max()
        / tensor_of(run("vit")[1], "block1.attention.key").detach().abs().max()
    )
    assert f"off by {percent(float(key))} of the largest" in found.findings[0].measured
    assert evaluate.result(row._replace(text="$K = X W_K + b_K$"), run).verdict == "holds"
    assert evaluate.result(row._replace(run="vit-note", shape=""), run).verdict == "holds"  # it has none


def test_the_next_head_is_the_one_after():
    model, trace = run("transformer")  # of three heads: with two, the next is the one before
    q, k, scores = (tensor_of(trace, f"block1.attention.{name}") for name in ("query", "key", "scores"))
    after = torch.stack([q[:, at] @ k[:, (at + 1) % 3].mT / q.shape[-1] ** 0.5 for at in range(3)], 1)
    apart = percent(float((after - scores).abs().max() / scores.abs().max()))
    assert f"the keys of the next head, they are off by {apart}" in claims.CLAIMS["side_by_side"](model, trace).text


def test_a_wrong_row_is_found_wrong():
    """Another shape, another name, another size: none of them holds."""
    for row in (row for row in ROWS if row.run == "nanogpt" and row.shape):
        kind = row.where[0].split()[0]
        wrong = [row._replace(shape=f"{row.shape} 29")]
        if kind in ("step", "param"):
            wrong.append(row._replace(shape=row.shape.replace("D", "T_max").replace("T ", "V ") + " 3"))
        assert all(evaluate.result(one, run).verdict == "not" for one in wrong), row
    row = ROWS[0]
    assert lookup.look(row, "step block1.attention.nothing", run).verdict == "not"
    assert lookup.look(row, "size Q", run).verdict == "not"
    assert lookup.look(row._replace(shape="5"), "size T", run).verdict == "not"
    with pytest.raises(ValueError, match="'sleep well' is not a place of a statement, expected one of step, param"):
        lookup.look(row, "sleep well", run)


def test_the_worst_is_the_verdict_and_slips_are_told():
    by_text = {
        row.text: evaluate.result(row, run)
        for row in ROWS
        if row.run.startswith("nanogpt") and "claim" not in str(row.where)
    }
    held = next(result for result in by_text.values() if "W_O" in result.row.text)
    assert (held.verdict, held.slips) == ("holds", ())
    ids = next(result for result in by_text.values() if "slip ids" in result.row.where)
    assert ids.verdict == "not" and ids.slips == (errata.SLIPS["ids"].sentence,)
    table = next(result for result in by_text.values() if "slip positions" in result.row.where)
    assert table.verdict == "sense"
    assert StatementResult(held.row, (held.findings[0], ids.findings[-1], table.findings[-1])).verdict == "not"


def test_a_slip_is_told_beside_its_step():
    """On the shipped model as on the small one, where a statement with a slip is a step."""
    said = [(row, run(row.run)[1].step(place.split()[1])) for row in ROWS for place in row.where
            if place.startswith("step ") and any(one.startswith("slip ") for one in row.where)]  # fmt: skip
    tied = [row.number for row, step in said if row.run == "vit-text" and step.id == "logits"]
    assert [step.id for row, step in said if f"ote {row.note}" not in step.note and row.number not in tied] == []
    assert len(said) > 15
    book = run("torchvision")[1]
    told = " ".join(step.note for step in book.steps)
    words = (
        "positions",
        "seven",
        "two",
        "sequence in front",
        "mix",
        "never asks",
        "permute",
        "dropout",
        "erf",
        "six, 29",
    )
    assert all(word in told for word in words)


USUAL = ("transformer", "nanogpt", "vit")
SWEPT = (
    "vit-text", "vit-text-types", "nanogpt-no-bias", "transformer-causal", "vit-note", "mae", "segmenter",
    "segmenter-note", "clip", "torchvision",
)  # fmt: skip


@pytest.mark.parametrize("name", cases((*USUAL, *SWEPT), USUAL))
def test_claims_on_the_runs_at_hand(name):
    here = provider(at_hand)
    named = {
        place.removeprefix("claim ") for row in ROWS if row.run == name for place in row.where if place[:5] == "claim"
    }
    assert named
    for one in named:
        found = claims.CLAIMS[one](*here(name))
        assert found.verdict == claims.DIFFERS.get(one, "holds"), (one, found)
        assert found.scope and found.baseline and re.search(r"\d", found.text)
        assert found.page in {"", "overview", *(page.path.stem for page in page_registry.find_pages())}


def test_every_run_of_a_claim_is_tried():
    made = {row.run for row in ROWS for place in row.where if place.startswith("claim ")}
    assert made == {*USUAL, *SWEPT}


def test_no_size_means_two_things():
    assert len(set(notation.MEANINGS.values())) == len(notation.MEANINGS)
    jargon = re.compile(r"\b(logits|embedding|residual|projection|stream|table|axis|dimension)\b")
    assert not [meaning for meaning in notation.MEANINGS.values() if jargon.search(meaning) or len(meaning) > 90]


WAYS = [
    *(name for name in models.names() if name != "saliency"),
    "transformer-relative",
    "nanogpt-separate",
    "segmenter-note",
]


@pytest.mark.parametrize("name", WAYS)
def test_a_size_and_a_tensor_of_one_letter_are_told_apart(name):
    """A bold letter that is a size's too is known for a tensor."""
    trace = run(name)[1]
    sizes = [size.name for size in trace.symbols]
    told = notation.namesakes(sizes, [step.latex for step in trace.steps])
    for size in sizes:
        assert (size in told) == any(rf"\mathbf{{{size}}}" in step.latex for step in trace.steps), size
