"""The panel "What if?": which values are replaced, and what that does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import streamlit as st
from PIL import Image
from streamlit.delta_generator import DeltaGenerator

from pages import components
from pages.jobs import run_cache, single_flight
from pages.jobs.single_flight import of
from pages.sections.mask_controls import MaskRequest, once
from pages.state import session, url_state
from pages.state.visitor import HIDING, model_name, visitor
from pages.ui import screen, texts
from tracer import models
from tracer.attention import block_names, layers, places
from tracer.figures import drawing, predictions
from tracer.figures.attention_maps import on_grid
from tracer.figures.drawing import points
from tracer.figures.tensors import Panel, as_array, edge, encode_image, rescale
from tracer.record import CHANGED_SUFFIX, Picture, Step, Trace
from tracer.utils.errors import shorten
from tracer.utils.lazy_import import lazy_import
from tracer.utils.text import percent

if TYPE_CHECKING:
    from tracer import comparison
    from tracer.attention import head_effects
    from tracer.attention.head_effects import HidingTest
    from tracer.changes import of_inputs, options
    from tracer.changes.options import Option
else:  # imported when first used
    head_effects = lazy_import("tracer.attention.head_effects")
    of_inputs = lazy_import("tracer.changes.of_inputs")
    options = lazy_import("tracer.changes.options")
    comparison = lazy_import("tracer.comparison")


# Changes of the run on screen, one line at the top of every page: each can be undone, or all at once.


def show_active_changes(place: DeltaGenerator) -> None:
    """Draw the line in a container at the top of the page, once the page has its run; nothing for a plain run."""
    trace, now = session.current_run(), session.changes()
    if trace is None or not now:
        return
    saved = session.user_input().kind == "trace"
    words = describe(trace if saved else session.reference_trace(), now)
    with place, st.container(key="changes", horizontal=True, vertical_alignment="center", gap="small"):
        if saved:
            st.markdown(f"**The saved run was changed:** {texts.escape('; '.join(words))}.")
            return
        st.markdown("**This run is changed:**", width="content")
        for at, (text, description) in enumerate(zip(now, words, strict=True)):
            st.button(
                texts.literal(description),
                key=f"change {at} {text}",
                icon=":material/close:",
                icon_position="right",
                help=f"Take this change back. In a link and in Python it is `{text}`.",
                on_click=_take_back,
                args=(at, text),
            )
        _undo(type="tertiary")
    for line in zeroed_together(trace, now):
        with place:
            st.caption(texts.plain(f"Together, these changes set all numbers of {line} to 0."))


def _undo(**more) -> None:
    """Draw the button that takes all changes back."""
    st.button("Undo the changes", icon=":material/undo:", on_click=session.change, args=((),), **more)


def zeroed_together(trace: Trace, changes: tuple[str, ...]) -> list[str]:
    """Return the lines, in words, of which several changes leave nothing, such as a head that is off and the only one
    that is on."""
    lines = Counter(text.partition("=")[0] for text in changes)
    steps = {step.id.removesuffix(CHANGED_SUFFIX): step for step in trace.steps if step.id.endswith(CHANGED_SUFFIX)}
    zeroed = []
    for line, count in lines.items():
        step = steps.get(line)
        values = None if step is None or count < 2 else trace.values.get(step.value)
        if step is not None and values is not None and not values.any():
            title, block = step.title.removesuffix(", changed").lower(), options.block_title(trace, step).lower()
            zeroed.append(f"the {title} of {block}" if block else f"the {title}")
    return zeroed


def describe(trace: Trace, changes: tuple[str, ...]) -> list[str]:
    """Describe changes in plain words, by the lines of the run without them; unchanged where they can't be read."""
    from tracer.changes import options, parse_all  # torch, which pages start without

    descriptions = []
    for text in changes:
        try:
            ((line, change),) = parse_all([text]).items()
        except ValueError:  # of a saved run: a tensor or a function has no name that could be read
            descriptions.append(shorten(text))
        else:
            make = partial(options.describe, trace, line, change)
            descriptions.append(single_flight.of(trace, ("described", text), make))
    return descriptions


def _take_back(at: int, text: str) -> None:
    now = session.changes()
    if at < len(now) and now[at] == text:  # it comes late, when it was taken back already
        session.change(now[:at] + now[at + 1 :])


# Run without changes beside the changed one: the answer, the attention, the equations and the numbers.

ROW_SUM_TOLERANCE = 0.01
"""Tolerance of a row's sum of weights around 1, in the least exact of the dtypes."""
MIN_DIGITS_CHANGE = 0.05
"""Percentage points below which a change is told in words."""
LINES, ROWS = 6, 12
"""Most equations, and most rows of numbers."""
WIDTH = 640
"""Pixels that the bars take at most."""
CLASSES = {"classes": "classes", "sentences": "sentences", "next": "tokens", "labels": "classes"}
"""Where a result of a kind holds the names of its shares."""
BARS = ("classes", "sentences", "next")
"""Kinds of results whose bars the overview draws."""
PIXELS = "labels"
"""Kind of results with a class for each pixel."""
MAP = "map"
"""Kind of results with a number for each pixel."""
WORDS = ("caption", "tokens")
"""Kinds of results that are words."""


def show_before_after(
    trace: Trace, shown: tuple[int, str] | None = None, query: int = 0, head: str = "mean", with_answer: bool = True
) -> None:
    """Draw both runs side by side below the picture; nothing for a plain run, or a saved one. `shown` is the layer and
    the tower whose attention is on screen, `query` and `head` the defaults where the address names no other."""
    if not trace.changes or session.user_input().kind == "trace":
        return
    plain = session.plain_trace()
    st.header("Before and after the changes")
    if with_answer:
        with st.container(width=WIDTH):
            answer(plain, trace, "answer before and after")
    if shown is not None:
        place = st.query_params.get("head", head), st.query_params.get("query", str(query))
        attention(plain, trace, *shown, *place)
    if lines := changed_lines(trace):  # none where only an input was changed
        url_state.open_step(components.equations(trace, lines[:LINES], "equations changed"))
        first = f" These are the first {LINES} of {len(lines)} such lines; the page Trace has all of them."
        left_out = first if len(lines) > LINES else ""
        st.caption(
            "A tensor that is changed directly has a caron, as in $\\check{\\mathbf{A}}$; others follow from it. "
            f"The verdicts are those of this run.{left_out}"
        )
    numbers(plain, trace)


def shares(result: Mapping[str, Any]) -> tuple[list[str], list[float]] | None:
    """Return the names and probabilities of a result, or None if it has none."""
    names = result.get(CLASSES.get(str(result.get("kind")), ""))
    each = result.get("probabilities", result.get("shares"))
    if not isinstance(names, Sequence) or not isinstance(each, Sequence) or len(names) != len(each):
        return None
    return [predictions.visible_token(str(name)) for name in names], [float(share) for share in each]


def answer(plain: Trace, trace: Trace, key: str, top: int = drawing.TOP) -> None:
    """Draw the answer of both runs: bars of the `top` classes with arrows where it has probabilities, else in words."""
    before, after = shares(plain.result), shares(trace.result)
    if before and after:
        axis = {"next": "token", "sentences": "sentence"}.get(str(trace.result.get("kind")), "class")
        value = "share of the pixels" if trace.result.get("kind") == PIXELS else "probability"
        bars = of(trace, ("comparison", axis, top), lambda: drawing.comparison(before, after, axis, top, value))
        components.drawing(bars, key)
        st.markdown(texts.plain(effect_sentence(plain, trace)))
        return
    if trace.result.get("kind") == MAP:
        st.markdown(_of_map(*(np.asarray(run.result["map"], float) for run in (plain, trace))))
        return
    if trace.result.get("kind") in WORDS:
        answers = [texts.plain(predictions.short(run.result)) for run in (plain, trace)]
        same = "The answer is the same." if answers[0] == answers[1] else "The answer differs."
        st.table({"": ["before", "after"], "what the model answers": answers}, hide_index=True)
        st.caption(same)


def effect_sentence(plain: Trace, trace: Trace) -> str:
    """Return a sentence on the likeliest name before and after, in Markdown; "" for results without probabilities."""
    both = [each for run in (plain, trace) if (each := shares(run.result))]
    if len(both) < 2:
        return ""
    if trace.result.get("kind") == PIXELS:
        return _of_pixels(*(np.asarray(run.result["labels"]) for run in (plain, trace)))
    (first, before), (now, after) = (drawing.ranking(*each)[0] for each in both)
    if first == now:
        points = drawing.points(before, after)
        if abs(points) < MIN_DIGITS_CHANGE:
            share = percent(after)
            return f"The answer stays **{texts.escape(now)}**, and its probability hardly changes: it is {share}."
        way = "more" if points > 0 else "less"
        return f"The answer stays **{texts.escape(now)}**, {abs(points):.1f} percentage points {way} probable."
    return f"The answer changes from **{texts.escape(first)}** to **{texts.escape(now)}**."


def _of_map(before: np.ndarray, after: np.ndarray) -> str:
    if before.shape != after.shape:
        return ""
    apart = np.abs(after - before)
    if not apart.any():
        return "The map stays the same, in whole percent."
    return f"The map changes by {apart.mean():.1f} percentage points on average, by {apart.max():.0f} at most."


def _of_pixels(before: np.ndarray, after: np.ndarray) -> str:
    if before.shape != after.shape:
        return ""
    differing = float((before != after).mean())
    if not differing:
        return "No pixel changes its class."
    return f"**{percent(differing)}** of the pixels change their class."


def attention(plain: Trace, trace: Trace, layer: int, part: str, head: str, query: str) -> None:
    """Draw the attention of one layer before and after, and the difference: of a head and a query, as an address names
    them."""
    if len(layers(trace, part)) <= layer or any(layers(run, part)[layer].problem for run in (plain, trace)):
        return
    record = layers(trace, part)[layer]
    number = _index(head, record.heads)
    counts = {layers(run, part)[layer].queries for run in (plain, trace)}
    at = _index(query, min(counts)) or 0
    key = "attention before and after", layer, part, number, at
    maps = partial(_maps, plain, trace, layer, part, number)
    components.panels(trace, key, lambda: _attention_panels(trace, part, maps(), at), "attention changed")
    which = "mean over the heads" if number is None else f"head {number + 1}"
    common = f" Only the first {min(counts)} tokens are drawn, which both runs have." if len(counts) > 1 else ""
    st.caption(f"Block {layer + 1}, {which}. Before and after share one scale.{common}")
    key = "concentration", layer, part, number
    st.markdown(texts.plain(of(trace, key, lambda: concentration(*maps()))))


def _index(text: str | None, count: int) -> int | None:
    """Return one of `count` numbers from 0 as an address names it; None where it names no such number."""
    return int(text) if text is not None and text.isdecimal() and int(text) < count else None


def _maps(plain: Trace, trace: Trace, layer: int, part: str, head: int | None) -> list[np.ndarray]:
    """Return the weights `[S_q, S_k]` of a head, by default the mean of all, before and after."""
    weights = [as_array(run.attention(layer, part=part))[0] for run in (plain, trace)]
    return [each.mean(0) if head is None else each[head] for each in weights]


def concentration(before: np.ndarray, after: np.ndarray) -> str:
    """Return how concentrated attention is before and after, from weights `[S_q, S_k]`: the largest weight of a row
    and its entropy, means over queries."""
    if any(np.nanmax(np.abs(weights.sum(-1) - 1)) > ROW_SUM_TOLERANCE for weights in (before, after)):
        return "Not every row of these weights sums to 1, so how concentrated they are can’t be compared."
    largest = [percent(float(np.nanmean(weights.max(-1)))) for weights in (before, after)]
    rows = [(weights * np.log(np.where(weights > 0, weights, 1))).sum(-1) for weights in (before, after)]
    entropies = [-float(np.nanmean(row)) for row in rows]
    first, last = (f"{entropy:.2f}" for entropy in entropies)
    if first == last:
        return f"Attention is as concentrated as before: the entropy of a row is {first} nats, a mean over all queries."
    way, what = ("falls", "more concentrated") if entropies[1] < entropies[0] else ("rises", "more spread out")
    return (
        f"Attention is {what} than before: the entropy of a row {way} from {first} to {last} nats, and its largest "
        f"weight goes from {largest[0]} to {largest[1]}. Both are means over all queries."
    )


def _attention_panels(trace: Trace, part: str, maps: list[np.ndarray], query: int) -> list[Panel]:
    axes, where = ("query", "key"), ""
    patches, picture = places(trace, part), trace.picture
    if picture is not None and patches and maps[0].shape[1] > max(patches):
        maps = [on_grid(patches, each[query], picture.rows, picture.columns, np.nan) for each in maps]
        axes, where = ("row", "column"), f" of token {query + 1}"
    if maps[0].shape != maps[1].shape:  # a model that reads its own text may write a longer one
        rows, columns = map(min, *(each.shape for each in maps))
        maps = [each[:rows, :columns] for each in maps]
    top, difference = float(np.nanmax(maps)) or 1.0, maps[1] - maps[0]
    return [
        Panel(f"Attention{where} before", maps[0], *axes, first=(1, 1), top=top, weights=True),
        Panel(f"Attention{where} after", maps[1], *axes, first=(1, 1), top=top, weights=True),
        Panel("After − before", difference, *axes, first=(1, 1), edge=edge(difference)),
    ]


def changed_lines(trace: Trace) -> list[Step]:
    """Return the lines of the changes, and those that read a changed tensor."""
    lines = [step for step in trace.steps if step.id.endswith(CHANGED_SUFFIX)]
    symbols = [step.symbol for step in lines]
    readers = [step for step in trace.steps if step not in lines and any(each in step.latex for each in symbols)]
    return sorted((*lines, *readers), key=trace.steps.index)


def numbers(plain: Trace, trace: Trace) -> None:
    """Draw how far the lines of both runs differ: the changed ones, the residual stream after each block, the last."""
    rows = of(trace, "differences", lambda: differences(plain, trace))
    if not rows:
        return
    with st.expander("How far the change spreads, in numbers"):
        shown = rows if len(rows) <= ROWS else [*rows[: ROWS - 1], rows[-1]]
        columns = ("step", "largest difference", "as a share of the largest value before")
        texts.show(dict(zip(columns, zip(*shown, strict=True), strict=True)), alt="Differences of both runs")
        st.caption("Differences are between the tensor of the step before and after the changes, cell by cell.")


def differences(plain: Trace, trace: Trace) -> list[tuple[str, str, str]]:
    """Return the title of each line that is displayed in numbers, the largest difference of both runs, and its share of
    the largest value."""
    ends = {step.layer: step.id for step in trace.steps if step.layer is not None and step.id.endswith("residual")}
    wanted = {*ends.values(), trace.steps[-1].id} | {
        step.id for step in trace.steps if step.id.endswith(CHANGED_SUFFIX)
    }
    rows = []
    for row in comparison.compare(plain, trace).rows:
        if row.id in wanted and row.values.difference is not None:
            title = ", ".join(filter(None, (options.block_title(trace, row.step), row.step.title)))
            share = "" if row.values.relative is None else percent(row.values.relative)
            rows.append((title, f"{row.values.difference:.3g}", share))
    return rows


# Brush that hides patches on the photo itself: its data for the browser, and the browser's answer.

HIDE = "image=hide("
"""How the texts of changes begin that hide patches."""
SIDE = 160
"""Pixels of a picture of fills, along its longer side."""
WHY = "This model always runs on all of its patches, so none can be removed from the sequence."
"""Why patches are hidden in the photo alone."""
TOP_CLASSES = 3
"""Classes whose probabilities are shown beside the brush."""


def facts(trace: Trace) -> dict[str, Any] | None:
    """Return the browser's data for hiding patches of a run's photo; None for a run that can't be repeated, or has no
    photo in square patches."""
    picture, sizes = trace.picture, {size.name for size in trace.symbols}
    if picture is None or session.user_input().kind == "trace" or not {"H", "W", "P"} <= sizes:
        return None
    patches, fill = current_patches()
    plain = session.plain_trace() if trace.changes else trace
    pictures = of(plain, "fills", lambda: _fills(plain, picture))
    removable = [of_inputs.REMOVED_FILL] if models.spec_of(model_name()).subset else []
    return {
        "patches": patches,
        "fill": fill,
        "fills": [*pictures, *removable],
        "pictures": pictures,
        "photo": of(plain, "photo", lambda: _jpeg(rescale(_photo(plain, picture)))) if trace.changes else None,
        "why": "" if removable else WHY,
        "status": _status(plain, trace),
        "answer": _answer(plain, trace),
    }


def _status(plain: Trace, trace: Trace) -> str:
    """Return what the changes do to the answer; with others than hidden patches, it says that it is of all of them."""
    sentence = effect_sentence(plain, trace).replace("*", "")
    others = not all(text.startswith(HIDE) for text in session.changes())
    return f"All changes together: {sentence[:1].lower()}{sentence[1:]}" if others and sentence else sentence


def current_patches() -> tuple[list[int], str]:
    """Return the patches that the changes on screen hide, and their fill."""
    from tracer.changes import parse_all  # torch, which pages start without

    patches, fill = set[int](), ""
    for text in session.changes():
        if text.startswith(HIDE):
            change = parse_all([text])["image"]
            if isinstance(change, of_inputs.Hide):
                patches, fill = patches | set(change.patches), change.fill
    return sorted(patches), fill


def hide(value: object) -> None:
    """Hide these patches in place of those that are hidden now: `{"patches": [27, 28], "fill": "mean"}`."""
    now = [text for text in session.changes() if not text.startswith(HIDE)]
    try:
        if not isinstance(value, Mapping) or not isinstance(value.get("patches"), list):
            raise ValueError("the browser did not send a list of patches")
        if value["patches"]:
            now.append(f"image={of_inputs.Hide(value['patches'], str(value.get('fill')))}")
    except (TypeError, ValueError) as error:
        visitor().refusal = f"{error}. {session.STAYS}"
        return
    session.change(now)


def _photo(trace: Trace, picture: Picture) -> Image.Image:
    return Image.fromarray(np.asarray(trace.values[picture.value]))


def _fills(trace: Trace, picture: Picture) -> dict[str, bytes]:
    """Return the crop of a photo with all patches hidden, by fill, as JPEG."""
    crop, every = _photo(trace, picture).crop(picture.crop), np.ones((picture.rows, picture.columns), dtype=bool)
    crop.thumbnail((SIDE, SIDE))
    photo, box = np.asarray(crop), (0, 0, *crop.size)
    return {fill: _jpeg(Image.fromarray(of_inputs.paint_patches(photo, box, every, fill))) for fill in of_inputs.FILLS}


def _jpeg(picture: Image.Image) -> bytes:
    return encode_image(picture, "JPEG")


def _answer(plain: Trace, trace: Trace) -> list[tuple[str, str, tuple[str, float], str]]:
    """Return the likeliest classes of a changed run: the name, the probability before and after, and the arrow."""
    before, after = shares(plain.result), shares(trace.result)
    if not trace.changes or before is None or after is None:
        return []
    old = dict(zip(*before, strict=True))
    ranked, new = drawing.ranking(*after), dict(zip(*after, strict=True))
    names = dict.fromkeys([drawing.ranking(*before)[0][0], *(name for name, _ in ranked)])
    return [
        (name, percent(old[name]), (percent(new[name]), new[name]), drawing.arrow(old[name], new[name]))
        for name in list(names)[:TOP_CLASSES]
        if name in old and name in new
    ]


# Controls of changes: each is in force or not, or has a factor; a choice changes the run on screen.


def toggles(label: str, choices: Iterable[Option], instead: str = "") -> None:
    """Draw changes that are each in force or not; a new one replaces those whose texts start with `instead`."""
    titles = {option.text: option.title for option in choices}
    if not titles:
        return
    key = f"what if {label}"
    st.session_state[key] = [text for text in titles if text in session.changes()]
    st.pills(
        label,
        list(titles),
        selection_mode="multi",
        format_func=titles.__getitem__,
        key=key,
        on_change=_toggle,
        args=(key, tuple(titles), instead),
    )


def _toggle(key: str, texts: Sequence[str], instead: str) -> None:
    chosen, now = st.session_state[key], session.changes()
    new = [text for text in chosen if text not in now]
    remaining = [text for text in now if text not in texts or text in chosen]
    if instead and new:
        remaining = [text for text in remaining if not text.startswith(instead)]
    session.change((*remaining, *new))


def slider(label: str, step: Step, factors: Sequence[float], choices: Iterable[Option]) -> None:
    """Draw a slider of the factor of a line's value; a factor that `choices` names is not its own."""
    from tracer.changes import scale  # torch, which pages start without

    own = {option.text for option in choices}
    now = [text for text in session.changes() if text.startswith(f"{step.id}=scale(") and text not in own]
    factor = float(now[0].rpartition("(")[2].rstrip(")")) if now else 1.0
    key = f"what if × {step.id}"
    st.session_state[key] = factor
    texts = {each: f"{step.id}={scale(each)}" for each in factors if each != 1}
    st.select_slider(
        label,
        sorted({*factors, factor}),
        format_func=lambda each: f"× {each:g}",
        key=key,
        on_change=_scale,
        args=(key, tuple(now), texts),
    )


def _scale(key: str, replaced: Sequence[str], texts: dict[float, str]) -> None:
    remaining = [text for text in session.changes() if text not in replaced]
    if (text := texts.get(st.session_state[key])) is not None:
        remaining.append(text)
    session.change(remaining)


# Patches of the photo hidden: those that the model attended to most, beside as many in the centre and at random.

COUNT, FILL = "what if patches", "what if fill"
"""Keys of the number of patches to hide, and of what they show."""
COMPARED = "compare hidden"
"""Key of the toggle that compares them."""
ALMOST = 0.8
"""Share of a loss from which another is told to be almost as much."""
SHARES = (16, 8, 4, 2)
"""One of so many patches is hidden."""
FILLS = {"mean": "mean colour", "grey": "grey", "blur": "blurred"}
"""What hidden patches show, and its name on screen."""


def show_hidden_patches(plain: Trace) -> None:
    """Offer to hide patches of the photo, beside the other changes of the run; nothing for a run that names no class of
    a photo, or without attention over it."""
    if plain.picture is None or plain.result.get("kind") != "classes":
        return
    others = tuple(text for text in session.changes() if not text.startswith("image="))
    base = session.changed_trace(others) if others else plain
    try:
        attended = head_effects.rank_by_attention(base)
    except ValueError:
        return
    counts = list(dict.fromkeys(max(1, len(attended) // share) for share in SHARES))
    central = head_effects.nearest_to_centre(plain.picture.rows, plain.picture.columns)
    random = np.random.default_rng(0).permutation(len(attended)).tolist()
    orders = {"Most attended": attended, "In the centre": central, "At random": random}
    hidden, shown = current_patches()
    order = next((order for order in orders.values() if hidden and set(hidden) == set(order[: len(hidden)])), None)
    if order is not None and len(hidden) in counts and shown in FILLS:  # the controls show what is in force
        st.session_state[COUNT], st.session_state[FILL] = len(hidden), shown
    st.session_state.setdefault(COUNT, counts[len(counts) // 2])
    st.session_state.setdefault(FILL, next(iter(FILLS)))
    left, right = st.columns(2)
    again: dict[str, Any] = {"on_change": _hide_again, "args": (order,)}
    count = left.select_slider("Patches to hide", counts, key=COUNT, **again)
    fills = {"options": list(FILLS), "format_func": FILLS.__getitem__, "key": FILL}
    fill = right.segmented_control("Hidden patches show", required=True, **fills, **again)
    offered = [options.Option("image", of_inputs.Hide(order[:count], fill), title) for title, order in orders.items()]
    toggles("Hide", offered, instead=HIDE)
    if st.toggle("Compare hiding what it looked at with hiding other patches", key=COMPARED):
        _compare(base, others, count, fill)


def _hide_again(order: Sequence[int] | None) -> None:
    """Hide as many patches of an order as the controls say now, in place of those that are hidden; nothing without
    one."""
    if order is not None:
        hide({"patches": list(order[: st.session_state[COUNT]]), "fill": st.session_state[FILL]})


def _compare(base: Trace, changes: tuple[str, ...], count: int, fill: str) -> None:
    """Draw the probability of the answer of a run under these changes, with the patches of each choice hidden."""
    request = MaskRequest(model_name(), run_cache.with_changes(session.options(), changes), session.user_input())

    def run():
        model = run_cache.load(request.model, request.options)
        arguments = session.inputs(model, request.chosen, request.options)
        return head_effects.hide_attended(model, base, count, fill, **arguments)

    result = once("hidden", request, (count, fill), run, "Hiding patches")
    mean, spread = float(np.mean(result.random)), float(np.std(result.random))
    ways = ["none", "most attended", "in the centre", f"at random, {len(result.random)} times"]
    st.table(
        {
            f"{count} patches hidden": ways,
            texts.escape(f"probability of {result.answer}"): [
                percent(result.plain),
                percent(result.attended),
                percent(result.central),
                f"{percent(mean)} ± {percent(spread)}",
            ],
        },
        hide_index=True,
    )
    low, high = mean - spread, mean + spread
    if result.attended < low:
        verdict = "Hiding what it attended to costs more than chance: here the map says something about the answer."
    elif result.attended > high:
        verdict = "Hiding what it attended to costs less than chance: here the map does not show what the answer needs."
    else:
        verdict = "Hiding what it attended to costs about as much as chance: here the map says little about the answer."
    st.caption(f"{verdict} {beside_centre(result)} “±” is the standard deviation over the random choices.")


def beside_centre(result: HidingTest) -> str:
    """Return a sentence on the effect of hiding the centre on the answer, beside hiding the most attended patches."""
    attended, central = (points(result.plain, share) for share in (result.attended, result.central))
    if min(attended, central) < 0 and max(attended, central) <= 0:
        ratio = central / attended if attended else float("inf")
        word = "almost as much" if ALMOST <= ratio < 1 else "less" if ratio < 1 else "more" if ratio > 1 else "as much"
        return (
            f"The centre costs {word}: {abs(central):.1f} percentage points, and the most attended patches "
            f"{abs(attended):.1f}."
        )
    return (
        f"With the centre hidden, the probability is {percent(result.central)}, and with the most attended patches "
        f"hidden {percent(result.attended)}."
    )


# Panel "What if?" beside a picture: the possible changes here, and their effect on the answer.
#
# It is drawn only while it is open, so a page without changes costs nothing more.

KEY = "what if"
FACTORS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0, 8.0)
"""The factors of a slider."""
PANEL_CLASSES = 2
"""Classes whose bars the panel draws."""
HEADS = 16
"""Heads of a block that are offered each; of more, the one on screen."""


def show_panel(offer: Callable[[Trace], None]) -> None:
    """Draw the button that opens the panel; `offer(trace)` draws the possible changes of the run without changes.
    Nothing for a saved run, which can't be run again."""
    if session.user_input().kind == "trace":
        return
    if visitor().panel == HIDING:
        visitor().panel = ""
        st.session_state[KEY] = st.session_state[COMPARED] = True
    with st.container(key="what-if"):
        panel = st.popover("What if?", icon=":material/science:", key=KEY, on_change="rerun", width="content")
    if not panel.open:
        return
    plain = session.plain_trace()
    with panel:
        offer(plain)
        trace = screen.trace()
        if trace.changes:
            answer(plain, trace, "panel answer", PANEL_CLASSES)
            _undo(key="undo in panel")
        else:
            st.caption("Choose a change: the model runs again with it, and the page shows both runs.")


def blocks(plain: Trace) -> None:
    """Offer the whole parts of a model: positions, and the attention, MLP, norms and residual connections of a
    block."""
    toggles("Whole model", options.of_model(plain))
    show_hidden_patches(plain)
    if known := options.blocks(plain):
        block = st.selectbox("Block", list(known), format_func=known.__getitem__, key="what if block")
        toggles("In this block", options.of_block(plain, block))
    if not known and plain.steps:
        last = plain.steps[-1]
        line(plain, last)


def show_attention_controls(plain: Trace, layer: int, part: str | None, head: str | None = None) -> None:
    """Offer the changes of the attention on screen: of one head, by its number in the address, and of all."""
    record = layers(plain, part)[layer]
    number = _index(head, record.heads)
    offered = list(options.of_attention(plain, record, number))
    where = f"{record.part} attention of {block_names(plain, part)[layer]}".strip()
    toggles(f"{where[:1].upper()}{where[1:]}", offered)
    if weights := options.attention_lines(plain, record).get("weights"):
        heads = [each for index in range(record.heads) for each in options.of_attention(plain, record, index)]
        off = [option for option in heads if option.line == weights.id and option.change.name == "drop_heads"]
        if number is None and 1 < len(off) <= HEADS:
            toggles("Heads that are off", off)
    if scores := options.attention_lines(plain, record).get("scores"):
        factors = FACTORS if record.mask == "none" else FACTORS[1:]  # 0 times a closed cell, −∞, is not a number
        slider("Multiply the scores by 1 / temperature", scores, factors, offered)


def line(plain: Trace, step: Step) -> None:
    """Offer the changes of one line of the textbook."""
    offered = list(options.of_step(plain, step))
    if not offered:
        st.caption("The value of this step can’t be changed by itself: it is not a tensor of floating-point numbers.")
        return
    where = options.block_title(plain, step)
    toggles(f"{where}: {step.title}" if where else step.title, offered)
    slider("Multiply its numbers by", step, FACTORS, offered)
