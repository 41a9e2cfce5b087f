"""All heads over many photos: those of the samples, or those of a survey that `python -m tracer survey` wrote."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import streamlit as st

from pages import components
from pages.jobs import run_cache
from pages.jobs.single_flight import chart, of
from pages.state import session, url_state
from pages.state.visitor import model_name, visitor
from pages.ui import texts, widgets
from tracer import models
from tracer.figures import attention_charts, attention_maps, tensors
from tracer.figures.attention_maps import Measure, with_sign
from tracer.inputs import images
from tracer.inputs.model_inputs import samples
from tracer.record import Trace
from tracer.survey.result import SurveyResult, collect
from tracer.utils.errors import limits, result_or_reason, shorten
from tracer.utils.job_queue import doing, tell
from tracer.utils.text import percent

if TYPE_CHECKING:
    from tracer.attention.head_effects import HeadEffects


# Measures of each head, in words: for one photo, and for the mean and the spread over many.

NAMES = {
    "effect": "Effect on the answer",
    "loss": "Effect on the loss",
    "entropy": "Entropy",
    "distance": "Distance",
    "special": "Weight on CLS",
}
"""The measures as addresses name them, with their titles."""


class MeasureUnit(NamedTuple):
    """Unit of a measure: `patches` where distances are widths of patches, else of tokens; `points` where
    effects are on a probability, in percentage points."""

    patches: bool
    points: bool


def measure_heads(name: str, values: np.ndarray, unit: MeasureUnit) -> Measure:
    """Return a measure of one run."""
    width = "patch widths" if unit.patches else "tokens"
    if name == "effect" and unit.points:
        title = "Change of the answer’s probability without the head, in percentage points"
        return Measure(title, values, with_sign, lambda value: f"{with_sign(value, 2)} points", signed=True)
    if name == "loss":
        title = "Change of the loss without the head, in nats"
        return Measure(
            title, values, partial(with_sign, digits=2), lambda value: f"{with_sign(value, 3)} nats", signed=True
        )
    if name in ("effect", "special"):
        title = "Change of the output without the head" if name == "effect" else "Weight on CLS, registers and the like"
        return Measure(title, values, lambda value: f"{100 * value:.0f}%", lambda value: f"{100 * value:.1f} %")
    if name == "distance":
        title = f"Mean distance that the head attends over, in {width}"
        return Measure(title, values, lambda value: f"{value:.1f}", lambda value: f"{value:.2f} {width}")
    title = "Mean entropy of the head’s weights, in nats"
    return Measure(title, values, lambda value: f"{value:.1f}", lambda value: f"{value:.2f} nats")


def spread_of(of: Measure, values: np.ndarray, count: int) -> Measure:
    """Return the spread of a measure over photos, which has no sign."""

    short, full = (lambda value, form=form: form(value).removeprefix("+") for form in (of.short, of.full))
    return Measure(f"{of.name}: standard deviation over {count:,} photos", values, short, full)


def choose_measure(known: Sequence[str]) -> str:
    """Draw the choice of the measure that colours the table, and return its name."""
    return widgets.segments("Colour by", "measure", known, format_func=NAMES.__getitem__)


def find_largest(measure: Measure, sign: int = 1) -> tuple[int, int]:
    """Return the row and the head of the largest value, of the least for `sign` -1; signed ones by their size."""
    values = np.abs(measure.values) if measure.signed else measure.values
    row, head = np.unravel_index(int(np.nanargmax(sign * values)), values.shape)
    return int(row), int(head)


def describe_cell(
    measure: Measure, layers: Sequence[int], cell: tuple[int, int], blocks: Sequence[str] = ()
) -> tuple[str, str]:
    """Return the value of a head and which head it is, in words; `blocks` has the names of all layers, by default
    their numbers."""
    layer = layers[cell[0]]
    which = blocks[layer] if blocks else f"block {layer + 1}"
    return measure.full(float(measure.values[cell])), f"head {cell[1] + 1} of {which}"


def describe_ends(measure: Measure, layers: Sequence[int], blocks: Sequence[str] = ()) -> str:
    """Return a sentence on the largest and the smallest value of a table."""
    most, least = (describe_cell(measure, layers, find_largest(measure, sign), blocks) for sign in (1, -1))
    return f"The largest value is {most[0]}, of {most[1]}. The smallest is {least[0]}, of {least[1]}."


def measure_axis(name: str, unit: MeasureUnit) -> str:
    """Return the title of an axis of a measure's numbers."""
    return {
        "effect": "change of the probability, points" if unit.points else "change of the output, share",
        "loss": "change of the loss, nats",
        "entropy": "entropy, nats",
        "distance": f"distance, {'patch widths' if unit.patches else 'tokens'}",
        "special": "weight on CLS, share",
    }[name]


DOING = "Measuring all heads on the sample photos"
TABLES = {
    "effect": ("change", "output_change"),
    "loss": ("loss_change",),
    "entropy": ("entropy",),
    "distance": ("distance",),
    "special": ("special",),
}
"""The tables of a survey for each measure, the first that has numbers."""
STATISTICS = {"mean": "Mean", "spread": "Spread"}
WAYS = {"attended": "most attended", "random": "at random", "centre": "in the centre"}
"""How patches of the hiding test are chosen."""
PROBLEMS = 20
"""Photos that could not be read that are listed."""
EXTREMES = 4
"""Photos with the least and with the largest numbers."""
SIDE = 144
"""Pixels of a small photo."""
LETTERS, FEW_LETTERS = 24, 14
"""Letters of a name on a card, and on a button."""
TOLERANCE = 0.05
"""Percentage points by which a run may differ from a survey: other machines round otherwise."""


def over_samples(part: str) -> None:
    """Draw the heads of the model on screen over all its sample photos."""
    effects = _measure_samples(part)
    if isinstance(effects, str):
        st.caption(texts.plain(f"The heads of this model can’t be switched off one at a time: {effects}."))
        return
    _draw(effects, None)


def over_survey() -> None:
    """Draw the survey that is open, and the way to open another one."""
    now = visitor()
    file = st.file_uploader(
        "A survey",
        type=["parquet", "arrow"],
        key=f"survey {now.uploads}",
        max_upload_size=limits().upload_mb,
        help="It stays in this session and is deleted when you close the page.",
    )
    if file is not None:
        session.take_survey(widgets.read_upload(file), file.name)
        now.uploads += 1
        st.rerun()
    if now.survey is None:
        st.markdown(
            "This command measures the heads on the photos of a folder, and writes a survey. Open its file here:"
        )
        st.code(f"python -m tracer survey {model_name()} --data FOLDER --out rows.parquet", language="sh")
        return
    name, result = now.survey
    known = "1 photo" if len(result) == 1 else f"{len(result):,} photos"
    file_name, model, weights = (texts.literal(shorten(text)) for text in (name, result.model, result.weights))
    st.markdown(f"{file_name}: {known}, measured on {model} ({weights}).")
    st.caption(
        "The numbers are recorded in the file and not checked here. A photo that you open below is measured again."
    )
    if result.problems:
        count = len(result.problems)
        with st.expander(f"{count:,} {'photo' if count == 1 else 'photos'} could not be read"):
            for photo, problem in result.problems[:PROBLEMS]:
                st.caption(texts.literal(f"{photo}: {problem}"))
            if count > PROBLEMS:
                st.caption(f"These are the first {PROBLEMS}.")
    _draw(result, name)


def compare_recorded(trace: Trace, effects: HeadEffects) -> None:
    """State whether a survey recorded the same effects on the photo on screen, where it was opened from one."""
    now = visitor()
    if now.of_survey is None or now.survey is None or now.of_survey[0]() is not session.user_input():
        return
    result, at = now.survey.result, now.of_survey[1]
    if result.model != trace.model or trace.changes or result.layers != effects.layers or not effects.points:
        return
    before = result.tables["change"][at]
    if before.shape != effects.change.shape or not np.isfinite(before).any():
        return
    apart = float(np.nanmax(np.abs(before - effects.change)))
    difference = f"they differ by at most {apart:.2g} points" if apart else "they are equal"
    if apart <= TOLERANCE:
        st.caption(f"The survey recorded the same effects of all heads on this photo: {difference}.")
    elif result.pictures[at].startswith(b"\x89PNG"):  # as the model saw it
        st.warning(
            f"The survey recorded different effects on this photo: {difference}. The run on screen is what this model "
            "does."
        )
    else:
        st.caption(f"The survey measured a larger copy of this photo than it stores. Of the effects, {difference}.")


def _measure_samples(part: str) -> SurveyResult | str:
    name, options = model_name(), session.options()

    def run() -> SurveyResult | str:
        from tracer.survey.rows import PhotoRows  # torch, which pages start without

        model, photos, measured = run_cache.load(name, options), samples(models.samples(name)), []
        rows = PhotoRows(model, part)

        def measure() -> SurveyResult:
            with doing(DOING):
                for at, (sample, photo) in enumerate(photos.items()):
                    tell(at, len(photos), "photos")
                    measured.extend(rows.measure(photo(), sample, sample))
            return collect(name, model.weights, measured)

        return result_or_reason(measure)

    return run_cache.shared_result("survey", (name, options, part), run, DOING)


def _draw(result: SurveyResult, file: str | None) -> None:
    """Draw blocks × heads, one head over the photos, all heads over the depth, the extremes, and the hiding test."""
    tables = {name: next(filter(result.has_numbers, known), None) for name, known in TABLES.items()}
    known = [name for name in NAMES if tables[name]]
    if not known:
        st.info("This survey contains no measurements of heads.")
        return
    name = choose_measure(known)
    statistic = widgets.segments("Over photos", "statistic", STATISTICS, format_func=STATISTICS.__getitem__)
    table = str(tables[name])
    unit = MeasureUnit(True, table == "change")
    mean = of(result, (table, "mean"), partial(result.mean, table))
    spread = of(result, (table, "spread"), partial(result.spread, table))
    of_one = measure_heads(name, mean, unit)
    of_mean = of_one._replace(name=f"{of_one.name}: mean over {len(result):,} photos")
    of_spread = spread_of(of_one, spread, len(result))
    measure = of_spread if statistic == "spread" else of_mean
    cells = {
        f"{result.layers[row] + 1}.{head}": (int(row), int(head))
        for row, head in zip(*np.nonzero(np.isfinite(mean)), strict=True)
    }
    row, head = find_largest(measure)
    most = f"{result.layers[row] + 1}.{head}"
    linked = st.query_params.get("cell")  # as links named the head before a cell was a number of the run
    most = linked if linked in cells else most
    chosen = str(widgets.choice("photos_head", list(cells), most))
    row, head = cells[chosen]

    def more(row: int, head: int) -> str:
        beside = f", standard deviation {of_spread.full(float(spread[row, head]))}"
        beside = beside if statistic == "mean" else f", mean {of_mean.full(float(mean[row, head]))}"
        flips = float(result.flips[:, row, head].mean())
        return (
            f"{beside}; another answer on {percent(flips, 0)} of the photos" if name == "effect" and flips else beside
        )

    nothing = np.zeros(mean.shape, dtype=bool)
    markup = attention_maps.grid(measure, result.layers, nothing, more, (result.layers[row], head))
    components.head_grid(
        markup, lambda layer, head: url_state.keep(photos_head=f"{layer + 1}.{head}"), "heads over photos"
    )
    st.markdown(texts.plain(_describe(result, name, measure, statistic)))
    named = {cell: f"Block {result.layers[row] + 1}, head {head + 1}" for cell, (row, head) in cells.items()}
    widgets.choose(st.selectbox, "Head in the charts below", "photos_head", cells, most, format_func=named.__getitem__)
    values = result.tables[table][:, row, head]
    axis, which = measure_axis(name, unit), named[chosen]
    left, right = st.columns(2)
    with left:
        title = f"{which} over {len(result):,} photos: {axis}"
        st.markdown(f"**{which}, photo by photo**")
        draw = partial(attention_charts.distribution, values, result.names, axis)
        chart(result, ("photos", table, chosen), draw, alt=title)
    with right:
        st.markdown("**Heads over the depth**")
        draw = partial(attention_charts.over_depth, mean, spread, result.layers, (row, head), f"mean {axis}")
        chart(result, ("depth", table, chosen), draw, alt=f"Mean {axis}, of each head over its block")
    st.caption(
        "The line at the marked head is its standard deviation over the photos (distance over the depth: Dosovitskiy "
        "et al. 2021, figure 7)."
    )
    _extremes(result, file, values, of_one, (result.layers[row], head))
    _hiding(result)


def _describe(result: SurveyResult, name: str, measure: Measure, statistic: str) -> str:
    """Describe the table in sentences that are computed from it."""
    if statistic != "mean" or name != "effect":
        return describe_ends(measure, result.layers)
    row, head = find_largest(measure)
    value, which = describe_cell(measure, result.layers, (row, head))
    lower = ""
    if result.has_numbers("change"):
        share = float(np.mean(result.tables["change"][:, row, head] < 0))
        lower = f" The probability falls without it on {percent(share, 0)} of the photos."
    return f"On average, switching off {which} changes the answer most, by {value}.{lower}"


def _extremes(
    result: SurveyResult, file: str | None, values: np.ndarray, measure: Measure, place: tuple[int, int]
) -> None:
    """Draw the photos with the least and with the largest number of a head, each with a button that opens it."""
    known = np.flatnonzero(np.isfinite(values))
    if len(known) < 2:
        return
    order = known[np.argsort(values[known], kind="stable")]
    count = min(EXTREMES, len(order) // 2)
    st.subheader("Photos at the extremes")
    for title, few in (("Smallest numbers", order[:count]), ("Largest numbers", order[::-1][:count])):
        st.markdown(f"**{title}**")
        with st.container(key=f"extremes {title.lower()}", horizontal=True, gap="medium"):
            for at in map(int, few):
                with st.container(width=SIDE, gap="small"):
                    _card(result, file, at, measure.full(float(values[at])), place, title)
    st.caption("A button shows the photo above, as the input of this page, with that block and head open.")


def _card(result: SurveyResult, file: str | None, at: int, number: str, place: tuple[int, int], title: str) -> None:
    picture = of(result, ("picture", at), partial(_picture, result, file, at))
    name, label, answer = shorten(result.names[at], LETTERS), result.labels[at], result.answers[at]
    lines = [
        name,
        f"labelled {shorten(label, LETTERS)}" if label and label != name else "",
        f"answer {shorten(answer, LETTERS)}" if answer else "",
    ]
    components.drawing(attention_charts.photo_card(picture, number, list(filter(None, lines))), f"photo {title} {at}")
    if not picture:
        st.caption("The file has no picture of it.")
    elif st.button(
        texts.literal(f"Open {shorten(name, FEW_LETTERS)}"),
        key=f"open {title} {at}",
        on_click=_open,
        args=(file, at, place),
    ):
        st.rerun()


def _picture(result: SurveyResult, file: str | None, at: int) -> str:
    """Return a small copy of a photo as a `data:` address; empty where there is none."""
    try:
        known = samples(models.samples(result.model)) if file is None else {}
        name = result.names[at]
        photo = known[name]().copy() if name in known else images.open_photo(result.pictures[at])
    except ValueError:
        return ""
    photo.thumbnail((SIDE, SIDE))
    return tensors.data_uri(photo, "PNG" if max(photo.size) < SIDE else "JPEG")


def _open(file: str | None, at: int, place: tuple[int, int]) -> None:
    places = {"block": str(place[0] + 1), "head": str(place[1])}
    if file is None:
        session.take_sample(list(samples(models.samples(model_name())))[at])
    else:
        session.take_surveyed(at)
        visitor().places["attention", model_name()] = places
    url_state.keep(over=None, photos_head=None, cell=None, **places)


def _hiding(result: SurveyResult) -> None:
    """Draw the mean effect of hiding the most attended patches, beside as many others."""
    if not np.isfinite(result.hiding["attended"]).any():
        return
    st.subheader("Is the map what the model used?")
    means = {words: float(np.nanmean(result.hiding[way])) for way, words in WAYS.items()}
    spreads = {words: float(np.nanstd(result.hiding[way])) for way, words in WAYS.items()}
    draw = partial(attention_charts.draw_hiding_test, means, spreads, "change of the probability, points")
    left, right = st.columns(2)
    hidden = result.hiding["hidden"][np.isfinite(result.hiding["hidden"])]
    numbers = "; ".join(f"{words}: {with_sign(value)} points" for words, value in means.items())
    with left:
        chart(result, "hiding", draw, alt=f"Mean change of the answer’s probability with patches hidden. {numbers}")
    with right:
        st.markdown(
            f"With {hidden.mean():.0f} patches grey, the answer’s probability changes on average by "
            f"{with_sign(means['most attended'])} points if they are those that CLS attends to most in the last block, "
            f"by {with_sign(means['at random'])} points if they are chosen at random (20 choices for each photo), and "
            f"by {with_sign(means['in the centre'])} points if they are those in the centre."
        )
        st.caption("The lines are standard deviations over the photos (hiding what a map marks: Samek et al. 2017).")
