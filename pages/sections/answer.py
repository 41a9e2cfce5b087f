"""What the model answers, and the text that it writes."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import streamlit as st

from pages import components, ui
from pages.jobs.single_flight import chart, of
from pages.sections import lens, what_if
from pages.state import page_registry, session
from pages.state.visitor import GeneratedText, Key, model_name, visitor
from pages.ui import texts, widgets
from pages.ui.texts import has_random_weights, plain
from tracer.attention import layers
from tracer.figures import drawing, envelope, predictions
from tracer.figures.drawing import ROWS
from tracer.figures.film import block_film, message
from tracer.figures.film.storyboard import storyboard
from tracer.figures.predictions import label_token, visible_token
from tracer.inputs import images
from tracer.inputs.synthetic import VOCABULARY
from tracer.record import Trace
from tracer.utils.errors import shorten
from tracer.utils.lazy_import import lazy_import
from tracer.utils.text import percent

if TYPE_CHECKING:
    from tracer.spec import decoding
else:  # imported when first used
    decoding = lazy_import("tracer.spec.decoding")


# Film of a run for its page: packed once for all visitors, with the names of its beats.

DAMAGE_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What a stranger's file may raise."""


class Reel(NamedTuple):
    """A film in the form sent to the browser: its bytes, the names of its beats in addresses, the number of tokens in
    each of its streams, a name of the run, and the beat of each step inside a block."""

    packed: bytes
    beats: list[str]
    tokens: list[int]
    run: str
    blocks: dict[str, str]

    def weight(self) -> int:
        """Return its size in bytes."""
        return len(self.packed)

    def queries(self, named: str) -> Sequence[int | str]:
        """Return the tokens that an address can name: those of the stream in `named`, such as "1.0", else of the
        first stream."""
        stream, point, _ = named.partition(".")
        if point and stream in map(str, range(len(self.tokens))):
            return [f"{stream}.{token}" for token in range(self.tokens[int(stream)])]
        return range(self.tokens[0] if self.tokens else 0)


def of_run(trace: Trace) -> Reel | None:
    """Return the film of a run; None for one without operations, or one whose file is damaged so that it has none."""
    return of(trace, "film", lambda: _pack(trace))


@st.fragment
def open_block(trace: Trace, reel: Reel) -> None:
    """Send the steps of the block that the browser opens, or that the address names, in a message of their own."""
    asked = session.wanted(Key.BLOCK_FILM, reel.run).get("beat")
    beat = str(asked or "") or reel.blocks.get(st.query_params.get("inside", ""), "")
    known = beat in reel.blocks.values()
    packed = of(trace, ("block film", beat), lambda: _pack_block(trace, beat, reel)) if known else b""
    components.block_film({"run": reel.run, "beat": beat if known else None}, packed)


def _pack_block(trace: Trace, beat: str, reel: Reel) -> bytes:
    """Return the message of a block, nothing where its file is damaged so that it has none."""
    try:
        return envelope.pack(block_film.build(storyboard(trace, prove=False), beat, reel.beats))
    except DAMAGE_ERRORS:
        return b""


def _pack(trace: Trace) -> Reel | None:
    if not trace.ops:
        return None
    try:
        board = storyboard(trace, prove=False)  # not cached: it holds the tensors of the run, which go with the visitor
        names = message.ids(board)
        tokens = [len(stream.lanes) for stream in board.streams]
        blocks = {
            step: name for name, beat in zip(names, board.beats, strict=True) if beat.number for step in beat.steps
        }
        return Reel(envelope.pack(message.build(board)), names, tokens, secrets.token_hex(8), blocks)
    except DAMAGE_ERRORS:
        return None


# Token ids of a text: its pieces and the id of each, the only input of a text model.

MAX_PIECES = 200
"""Pieces that are drawn."""


def show_token_ids(trace: Trace, link: bool = False) -> None:
    """Show the text of a run as ids; nothing for a run without text. With a `link` to the lesson on tokens."""
    html = of(trace, "ids", lambda: _draw(trace))
    if html:
        components.style(ui.STYLES / "pieces.css")
        st.html(html)
        if link:
            st.page_link(page_registry.PAGES / "tokens.py", label="How a text becomes ids", icon=":material/token:")


def _draw(trace: Trace) -> str:
    pieces = predictions.of_run(trace)
    if not pieces:
        return ""
    sizes = {size.name: size.value for size in trace.symbols}
    facts = [f"{len(pieces)} tokens", *([f"V = {sizes['V']:,}"] if "V" in sizes else [])]
    more = f" … and {len(pieces) - MAX_PIECES:,} more" if len(pieces) > MAX_PIECES else ""
    caption = (
        "Under each piece is its id, the number of the row that it looks up. The model sees nothing of the text but "
        f"these ids.{more}"
    )
    return predictions.row("From text to ids t", facts, pieces[:MAX_PIECES], caption)


# Text generation token by token, and links back from each token to the run that predicted it.

MAX_TOKENS = 60
"""Tokens that are written at once."""
DEFAULT_TEMPERATURE = 0.8
"""The temperature at which a text goes on if nobody says otherwise."""
START = 24
"""Tokens that are written if nobody says how many."""


def show_generation(trace: Trace, unit: str, again: str = "", end: str = "") -> None:
    """Let the model continue the text of this run; `unit` is its unit of text, such as "character". Where the run is
    that of a whole text, `again` names it: the text is then written again from the start. `end` is the token that ends
    a text. Choosing a token shows the run that predicted it on all pages."""
    if session.user_input().kind != "trace":
        with st.container(key="continue"):  # paper has it where something was written
            _offer(trace, unit, again, end)


def _offer(trace: Trace, unit: str, again: str, end: str) -> None:
    text = session.user_input().text
    own = text is None
    now = text if text is not None else "" if again else "".join(trace.words)
    finished = not (own and again) and trace.result["tokens"][0] == end
    st.header(f"Watch it write {again}" if own and again else "Continue the text")
    if finished:
        st.caption(f"This text is complete: the next token is {texts.escape(end)}.")
    count = _count(now, unit)
    with st.expander(f"How it chooses each {unit}", icon=":material/tune:"):
        # what a model writes of itself is the likeliest; a text that goes on is more alive where it is drawn
        start = 0.0 if own and again else DEFAULT_TEMPERATURE
        temperature = st.slider("Temperature", 0.0, 2.0, start, 0.1, help="0: always the most probable one")
        random = temperature > 0
        top_k = st.slider("Top-k", 1, 40, 40, disabled=not random, help="Only the k most probable ones can be drawn")
        seed = st.number_input("Seed", 0, 9999, 0, disabled=not random, help="Another seed, another text")
    settings = {"temperature": temperature, "top_k": top_k if random else None, "seed": seed}
    label = f"Write the next {count} {unit}s" if count > 1 else f"Write the next {unit}"
    label = f"Write {again} again" if own and again else label
    pressed = st.button(label, type="primary", disabled=not count or (finished and not random))
    heading, place = st.empty(), st.empty()
    if pressed:
        heading.markdown("It writes:")
        _write(now, count, settings, place)
    written = visitor().writing
    if written and written.of == _of() and now in written.before:
        heading.markdown("What it wrote:")
        place.code(written.text, language=None, wrap_lines=True)
        ran = not (own and again)  # else the run is that of the whole text that the model wrote itself
        _steps(written, written.before.index(now) if ran else None, unit)


def _count(now: str, unit: str) -> int:
    """Return the number of tokens to write: no more than the model has room for."""
    left = decoding.room(session.model(), now)
    most = MAX_TOKENS if left is None else min(MAX_TOKENS, left)
    if most < 2:
        return most
    message = None if left is None else f"The model reads T_max tokens at most: there is room for {most} more."
    return st.slider(f"{unit.capitalize()}s", 1, most, min(START, most), help=message)


def _of() -> tuple:
    """Return the owner of a generated text: a model, its options and the picture."""
    return model_name(), session.options(), id(session.user_input().photo)


def _write(start: str, count: int, settings: dict, place) -> None:
    """Write tokens, and show each in the container `place` as soon as it exists; a run is traced on request."""
    model, chosen_input, tokens = session.model(), session.user_input(), []
    more: dict[str, Any] = {"image": chosen_input.photo} if "image" in model.takes else {}
    for token in decoding.write(model, start, count, **settings, **more):
        tokens.append(token)
        place.code(decoding.join_tokens(decoding.words_of(model), "", tokens), language=None, wrap_lines=True)
    join = partial(decoding.join_tokens, decoding.words_of(model))
    before = [decoding.read_of(model, join(start, tokens[:place])) for place in range(len(tokens))]
    text = join("", tokens)
    visitor().writing = GeneratedText(_of(), tokens, before, text)


def _steps(written: GeneratedText, now: int | None, unit: str) -> None:
    """Draw the tokens as choices; the one whose run is shown is marked."""
    tokens = written.tokens
    st.session_state[Key.WRITING] = now
    st.pills(
        f"Choose a {unit} to see its step on all pages",
        range(len(tokens)),
        key=Key.WRITING,
        wrap=True,
        format_func=lambda place: texts.literal(label_token(tokens[place], place + 1)),
        on_change=lambda: _go(written, st.session_state[Key.WRITING]),
    )
    if now is not None:
        label = f"“{visible_token(tokens[now])}” was read from: {unit} {now + 1} of {len(tokens)}."
        st.caption(texts.plain(f"The run on screen, on all pages, is the one that {label}"))


def _go(written: GeneratedText, place: int | None) -> None:
    if place is not None:
        session.take_step(written.before[place])


# Model outputs below the film, each kind of result in its own form: whatever the film's answer does not show
# already.

BYTES = (
    "This model has no tokenizer here{why}. The {count} bytes of the text are used as token ids, and the answer is a "
    "token id without a text."
)


def show_predictions(trace: Trace, filmed: bool) -> None:
    """Show the result of a run; where it is `filmed`, without the parts that the film shows. A result of an unknown
    kind is skipped; one that a file stores wrongly is reported."""
    if form := FORMS.get(kind(trace)):
        with as_recorded():
            form(trace.result, trace, filmed)


def kind(trace: Trace) -> str:
    """Return the kind of a run's result, a key of `FORMS` if it is known."""
    return str(trace.result.get("kind"))


@contextmanager
def as_recorded():
    """Report a malformed result: it comes from an uploaded file, whose results nobody checked."""
    try:
        yield
    except (*DAMAGE_ERRORS, MemoryError):
        st.caption("The answer recorded in this run can’t be read.")


def result_text(trace: Trace) -> str:
    """Return the text of a run."""
    return shorten(("" if all(len(word) == 1 for word in trace.words) else " ").join(trace.words), FREE_TEXT)


def further_views(trace: Trace, filmed: bool) -> dict[str, Callable[[], None]]:
    """Return further views of a result by name, each drawn when called; `filmed` if the page begins with a film."""
    if kind(trace) == "reconstruction":
        return {"What it draws": partial(_draw_reconstruction, trace)}
    if kind(trace) == "labels" and filmed:  # else the map is in place of the film
        return {"The class of every pixel": partial(_draw_labels, trace)}
    if kind(trace) == "map" and filmed:
        return {"The map": partial(_draw_map, trace)}
    if kind(trace) != "caption":
        return {}
    behind: dict[str, Callable[[], None]] = {"Behind each word": as_recorded()(partial(lens.words, trace))}
    if session.user_input().kind == "trace":
        return behind
    again = partial(show_generation, trace, "word", again="the caption", end=VOCABULARY[1])
    return behind | {"Watch it write": again}


FREE_TEXT = 100_000
"""Letters of a text that is shown; of a longer one the beginning and the end."""
MAX_FEW_CLASSES = 20
"""Classes that are so few that most of what there is to see is none of them."""


def _bars(
    trace: Trace, title: str, names: Sequence[str], axis: str, what: str, count: int | None, filmed: bool
) -> None:
    """Draw the likeliest classes as bars where the film does not, or those of both runs of a change; `what` names them
    in the plural, `count` is the number of classes of the model."""
    visible, shares = [shorten(visible_token(name)) for name in names], trace.result["probabilities"]
    changed = trace.changes and session.user_input().kind != "trace"
    if changed or not filmed:
        st.header(plain(shorten(title, 200)))
    if changed:
        what_if.answer(session.plain_trace(), trace, "bars")
    elif not filmed:
        components.drawing(of(trace, ("bars", axis), lambda: drawing.class_bars(visible, shares, axis=axis)), "bars")
    st.caption(plain(drawing.caption(shares, what, count, None if filmed else drawing.TOP)))


def _best(result, of: str) -> str:
    """Return the most probable of the names that a result has under `of`."""
    return drawing.ranking(result[of], result["probabilities"])[0][0]


def _classes(result, trace, filmed) -> None:
    names, best = result["classes"], _best(result, "classes")
    _bars(trace, f"{_lead(trace)}: {best}", names, "class", "classes", len(names), filmed)
    if 1 < len(names) <= MAX_FEW_CLASSES and not has_random_weights(trace):
        st.caption(f"It knows only {len(names)} classes and must pick one of them, whatever you show it.")
    chosen = session.user_input()
    if chosen.kind == "sample" and images.shows_none(chosen.name, names):
        st.caption("This photo shows none of the classes that the model knows, but the model must choose one of them.")


def _lead(trace: Trace, of_trained: str = "The answer") -> str:
    """Return what the title of an answer begins with: random weights give none."""
    return "What random weights say" if has_random_weights(trace) else of_trained


def _vocabulary(trace: Trace) -> int | None:
    """Return the size of the vocabulary: a result holds the likeliest tokens only."""
    return next((size.value for size in trace.symbols if size.name == "V"), None)


def _next(result, trace, filmed) -> None:
    first, unit = _best(result, "tokens"), result.get("unit", "character")
    bare = result.get("stand_in") == "bytes"
    if bare:
        why = ", because the name of a family has none" if has_random_weights(trace) else ""
        st.info(BYTES.format(why=why, count=len(result["text"])), icon=":material/abc:")
    title = f"{_lead(trace, 'Most probable next')}: {first if bare else repr(visible_token(first))}"
    _bars(trace, title, result["tokens"], f"next {unit}", f"{unit}s", _vocabulary(trace), filmed)
    if unit == "character":
        show_generation(trace, unit)


def _tokens(result, trace, filmed) -> None:
    unit, between = result.get("unit", "token"), " " if "unit" in result else ""  # characters stand without spaces
    if not filmed:
        source, answer = (shorten(between.join(result[name]), FREE_TEXT) for name in ("text", "tokens"))
        st.header(_lead(trace))
        st.code(f"{source}\n→\n{answer}", language=None)
    if result.get("stand_in") == "bytes":
        st.info(BYTES.format(why="", count=len(result["text"])), icon=":material/abc:")
    answer = f"The answer is the most probable {shorten(str(unit))} at each position."
    if (pad := result.get("pad")) and pad in result["text"]:
        answer += f" A text that is too short is padded with “{pad}”."
    place = int(np.argmin(result["probabilities"]))
    least = f"“{visible_token(result['tokens'][place])}” at position {place + 1}"
    answer += f" The least certain, {least}, has a probability of {percent(result['probabilities'][place])}."
    st.caption(plain(answer))
    with st.expander("Each position and its probability"):
        texts.show(
            {
                "position": list(range(1, len(result["tokens"][:ROWS]) + 1)),
                "in": list(map(visible_token, result["text"][:ROWS])),
                "out": list(map(visible_token, result["tokens"][:ROWS])),
                "probability": list(map(percent, result["probabilities"][:ROWS])),
            },
            alt="The most probable token at each position",
        )


def _caption(result, trace, filmed) -> None:
    if not filmed:
        st.header(plain(f"{_lead(trace, 'The caption')}: {result['caption'] or '(none)'}"))
    if result["tokens"][0] != VOCABULARY[1]:
        title = f"Then comes: {result['tokens'][0]}"
        _bars(trace, title, result["tokens"], "next word", "tokens", _vocabulary(trace), filmed)
        return
    if all(record.mask == "none" for record in trace.attentions):
        st.caption("Without a mask, each word is predicted from the picture and all words, also those that come later.")
    else:
        st.caption("Each word is predicted from the picture and the words before it.")


def _sentences(result, trace, filmed) -> None:
    title, count = f"{_lead(trace)}: {_best(result, 'sentences')}", len(result["sentences"])
    _bars(trace, title, result["sentences"], "sentence", "sentences", count, filmed)
    if count == 1:
        st.caption("There is only one sentence to choose from: a softmax over one choice is always 100 %.")


def _labels(result, trace, filmed) -> None:
    if not filmed:
        _draw_labels(trace)


@as_recorded()
def _draw_labels(trace: Trace) -> None:
    """Draw the label map over the photo."""
    result = trace.result
    shares = {name: share for name, share in zip(result["classes"], result["shares"], strict=True) if share}
    shares_text = ", ".join(f"{name} {percent(share)}" for name, share in shares.items())
    view = session.traced_view(trace)
    opacity = st.slider("How much of the photo the labels cover", 0, 100, 100, format="%d %%") if view else 100
    draw = partial(predictions.label_map, result["labels"], result["classes"], view and view.image, opacity / 100)
    chart(trace, ("labels", opacity), draw, alt=f"Label map over the photo: {shares_text}")


def _map(result, trace, filmed) -> None:
    if not filmed:
        _draw_map(trace)
    if trace.changes and session.user_input().kind != "trace":
        what_if.answer(session.plain_trace(), trace, "bars")
    st.caption(plain(predictions.map_sentence(result)))
    if not has_random_weights(trace):
        st.caption("It knows no classes and names nothing. It was trained to tell what people look at in a photo.")


@as_recorded()
def _draw_map(trace: Trace) -> None:
    """Draw the map in colours."""
    values = np.asarray(trace.result["map"], dtype=float)
    draw = partial(predictions.panel, values, "importance in percent", "cell", (0, 100))
    chart(trace, "map", draw, alt=f"The map. {predictions.map_sentence(trace.result)}")


def _reconstruction(result, trace, filmed) -> None:
    error = np.asarray(result["anomaly"], dtype=float)
    row, column = np.unravel_index(int(error.argmax()), error.shape)
    st.header(f"Hardest to predict: row {row + 1}, column {column + 1}")
    most = float(error.max())
    sentence = f"The patch in row {row + 1}, column {column + 1} is the hardest to predict from the others."
    draw = partial(predictions.panel, error, "error in grey levels of 255", "patch", (0, most))
    chart(trace, "error", draw, alt=f"The prediction error, patch by patch. {sentence}")
    st.caption(
        "The prediction error, patch by patch: every patch was hidden in turn and predicted from others, in separate "
        f"runs that are not traced. The scale ends at the largest error of this picture, {most:.3g} grey levels. Even "
        "a flawless surface has a brightest patch, so one bright patch alone is not a defect."
    )


@as_recorded()
def _draw_reconstruction(trace: Trace) -> None:
    """Draw the input and the output of a model that reconstructs."""
    result = trace.result
    pixels = np.asarray(result["pixels"], dtype=float).mean(axis=-1)
    count, dark, light = np.asarray(result["anomaly"]).shape, float(pixels.min()), float(pixels.max())
    panels, view = {}, session.traced_view(trace)
    if view is not None:
        panels["What the encoder sees"] = (
            predictions.visible(np.asarray(view.image.convert("L")), result["visible"], *count),
            "Patches that are hidden from the encoder are plain blue-grey, as on the Attention page. The contrast is "
            "the same as in the predicted picture.",
        )
    panels["The predicted picture"] = (
        pixels,
        "Patches that the encoder saw are copied from the photo; the others are predicted. The contrast is stretched: "
        f"black is grey level {dark:.0f} of 255, white is {light:.0f}.",
    )
    for place, (name, (values, about)) in zip(st.columns(2), panels.items(), strict=False):
        with place:
            st.markdown(f"**{name}**")
            draw = partial(predictions.panel, values, ends=(dark, light))
            chart(trace, ("panel", name), draw, alt=f"{name}. {about}")
            st.caption(about)
    st.caption(
        f"In the traced run, the encoder saw {len(result['visible'])} of {np.prod(count)} patches, and the decoder "
        "predicted the others."
    )


def _embedding(result, trace, filmed) -> None:
    *_, tokens, width = (int(size) for size in result["shape"])
    whose = f"each of {tokens:,} tokens" if len(result["shape"]) > 2 else "the whole input"
    st.header("What comes out")
    st.markdown(
        f"One vector of {width:,} numbers for {whose}, of mean length {float(result['norm']):.3g}. This model has no "
        "head, so it gives no answer by itself. Other programs compare its vectors, or train a head on them."
    )


def _none(result, trace, filmed) -> None:
    st.header("No answer")
    lacks = list(result["lacks"])
    missing = ", ".join(shorten(str(name)) for name in lacks[:4])
    missing += f" and {len(lacks) - 4} others" if len(lacks) > 4 else ""
    st.markdown(
        plain(
            f"The files of this checkpoint lack {missing}. Seeded random numbers take their place, so the output of "
            "the head means nothing and is not shown."
        )
    )


def _tensors(result, trace, filmed) -> None:
    shapes = list(result["shapes"].items())
    st.header("What comes out")
    listing = "".join(f"\n- {shorten(str(name))}: {shorten(str(shape))}" for name, shape in shapes[:12])
    st.markdown(plain(f"The output consists of tensors that this page cannot draw. Their shapes:{listing}"))
    if len(shapes) > 12:
        st.caption(f"and {len(shapes) - 12} others")


FORMS: dict[str, Callable] = {
    "none": _none,
    "classes": _classes,
    "next": _next,
    "tokens": _tokens,
    "caption": _caption,
    "sentences": _sentences,
    "labels": _labels,
    "map": _map,
    "reconstruction": _reconstruction,
    "embedding": _embedding,
    "tensors": _tensors,
}


# Links to the other pages, with the topics of this run there.


def show_next_pages(trace: Trace) -> None:
    """Draw the links from the first page, the recommended one first."""
    with st.container(key="ways"):
        st.header("What to look at next")
        with st.container(key="onward"):
            for page, label, icon in _ways(trace):
                widgets.link(page, label, icon)


def _ways(trace: Trace) -> list[tuple[str, str, str]]:
    """Return (page, label, icon) of each page that this run has something for."""
    ways = []
    if trace.steps:
        ways.append(("trace", f"Walk through its {len(trace.steps):,} steps", ":material/function:"))
    if trace.attentions:
        first = layers(trace)
        heads, many = first[0].heads, len(first)
        label = f"Compare its {many * heads} heads" if many * heads > 1 else "See what its one head does"
        ways.append(("attention", label, ":material/center_focus_strong:"))
        ways.append(("mask", "See which token may attend to which", ":material/grid_on:"))
    ways.append(("operations", f"Browse its {len(trace.ops):,} ops", ":material/account_tree:"))
    return ways
