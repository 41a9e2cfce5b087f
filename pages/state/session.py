"""Visitor's model, input and trace: chosen once, kept across pages, and shared with no other visitor.

The state of a visitor is in `visitor.py`; `pages/jobs/run_cache.py` has what visitors share. Nothing here imports torch
before a trace is asked for."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import streamlit as st
from PIL import Image

import tracer
from pages.jobs import background_checks, render_gate, run_cache, single_flight
from pages.state.visitor import FIRST_MODEL, Key, OpenSurvey, UserInput, View, model_name, visitor
from pages.ui import page_frame, texts
from pages.ui.texts import escape, plain
from tracer import models, zoo
from tracer.inputs import images
from tracer.inputs.model_inputs import samples
from tracer.record import Decomposition, Trace
from tracer.utils.errors import limits, quote, shorten
from tracer.utils.lazy_import import lazy_import
from tracer.utils.text import amount
from tracer.zoo import recommendations

if TYPE_CHECKING:
    from tracer.record import costs as record_costs
    from tracer.record.costs import Scaling
    from tracer.survey import file
    from tracer.zoo import downloads
else:  # imported when first used
    record_costs = lazy_import("tracer.record.costs")
    file = lazy_import("tracer.survey.file")
    downloads = lazy_import("tracer.zoo.downloads")


STAYS = "The page still shows what it showed before."
UNCHANGED_NOTE = "The page shows the run without changes."


def user_input() -> UserInput:
    """Return the visitor's input, at first a sample. An input that the current model can't take is set aside until one
    can."""
    now = visitor()
    chosen, aside = now.user_input, now.aside
    if aside is not None and _suits(aside):
        return now.choose(aside)
    if chosen is not None and _suits(chosen):
        return chosen
    photo = chosen and replace(chosen, kind="photo", text=None, model="")
    fitting = now.choose(photo) if photo and photo.own and _suits(photo) else take_sample(sample_names()[0])
    now.aside = chosen if chosen is not None and chosen.kind != "sample" else aside
    return fitting


def _suits(chosen: UserInput) -> bool:
    if chosen.kind == "sample":
        return chosen.name in sample_names()
    if chosen.kind == "text":
        return chosen.model == model_name()
    return chosen.trace is not None or "image" in models.takes(model_name())


def sample_names() -> list[str]:
    """Return the samples that suit the model; a text model has one of its own."""
    return run_cache.sample_names(model_name())


def take_sample(name: str) -> UserInput:
    """Switch to a sample."""
    photo = None if name == run_cache.OWN_SAMPLE else samples(models.samples(model_name()))[name]()
    st.session_state.pop(text_key(), None)
    return visitor().choose(UserInput("sample", name, photo))


def text_key() -> str:
    """Return the widget key of the text typed for the current model."""
    return Key.TEXT.format(model_name())


def take_text(text: str, key: str) -> None:
    """Set the text, beside the photo where the model takes both; an empty one leads back to the model's own."""
    if key != text_key():  # it comes late, from a model that was left meanwhile
        return
    try:
        limits().check_text(text)
    except ValueError as error:
        visitor().refusal = f"{error}. {STAYS}"
        return
    if text and not text.strip():
        visitor().refusal = f"{quote(text)} contains only spaces, expected some text. {STAYS}"
        return
    chosen = user_input()
    bare = "photo" if chosen.own else "sample"
    model = model_name() if text else ""
    visitor().choose(replace(chosen, kind="text" if text else bare, text=text or None, model=model))


def write(text: str) -> None:
    """Set a text that was written on the page, and copy it to the box in the sidebar."""
    key = text_key()
    st.session_state[key] = text
    take_text(text, key)


def take_step(text: str) -> None:
    """Set a text unchanged, also an empty one: the text before one step of generation."""
    st.session_state[text_key()] = text
    visitor().choose(replace(user_input(), kind="text", text=text, model=model_name()))


def take_file(data: bytes, name: str) -> None:
    """Open a photo or a saved trace. An unreadable file is refused with a message, and the current input stays."""
    saved_run = name.lower().endswith(".safetensors")
    try:
        limits().check_file(len(data), saved_run)
        if saved_run:
            recorded = tracer.open(data, name=name, prove="later")
            chosen = UserInput("trace", name, trace=single_flight.in_turn(recorded.prove, "Verifying its lines again"))
        else:
            if "image" not in models.takes(model_name()):
                raise ValueError(f"{model_name()} takes no photo, expected text or a saved run (.safetensors)")
            chosen = UserInput("photo", name, images.open_photo(data), own=True)
    except ValueError as error:
        visitor().refusal = str(error) if name in str(error) else f"{name}: {error}"
    else:
        visitor().choose(chosen)


def take_survey(data: bytes, name: str) -> bool:
    """Open a survey file; return whether it could be read. An unreadable one is refused with a message, and the open
    survey stays."""
    most = limits().upload_mb << 20
    try:
        result = single_flight.in_turn(lambda: file.open_survey(data, name, most), "Reading the survey")
    except ValueError as error:
        visitor().refusal = f"{error}. {STAYS}"
        return False
    visitor().survey, visitor().refusal = OpenSurvey(name, result), ""
    return True


def take_surveyed(at: int) -> None:
    """Switch to a photo of the survey that is open, and to the survey's model."""
    now = visitor()
    if now.survey is None:
        return
    result = now.survey.result
    st.session_state[Key.MODEL] = result.model
    chosen = now.choose(UserInput("photo", result.names[at], images.open_photo(result.pictures[at]), own=True))
    now.of_survey = weakref.ref(chosen), at


def take_photo(chosen: UserInput) -> None:
    """Switch to a photo of the visitor's."""
    visitor().choose(replace(chosen, kind="photo", text=None, model=""))


def card() -> dict | None:
    """Return the card of the model's weights: sizes, classes, scores; None for a saved trace or a model without.

    Scores are left out with other options than they were measured with.
    """
    try:
        known = dict(run_cache.without_changes(options()))
        facts = None if user_input().kind == "trace" else models.card(model_name(), known)
    except ValueError as error:  # a damaged one says which file it is
        st.error(texts.escape(str(error)))
        page_frame.leave()
    if facts and options() and (run_cache.changes(options()) or not models.fits(facts, model_name(), known)):
        return {name: fact for name, fact in facts.items() if name != "says"}
    return facts


def view() -> View | None:
    """Return the photo as the model sees it, before any model is loaded; None where there is no photo or no card."""
    chosen = user_input()
    if chosen.trace is not None:
        return traced_view(chosen.trace)
    sizes = (card() or {}).get("sizes", {}) | dict(options())
    if not {"H", "W", "P"} <= sizes.keys():
        return None
    image, crop = images.centre_crop(chosen.photo, sizes["H"], sizes["W"])
    return View(chosen.photo, crop, _match_channels(image, sizes), sizes["H"] // sizes["P"], sizes["W"] // sizes["P"])


def traced_view(trace: Trace) -> View | None:
    """Return the view recorded in a run, with its photo and grid; None if it had no photo."""
    picture, sizes = trace.picture, {size.name: size.value for size in trace.symbols}
    if picture is None or not {"H", "W"} <= sizes.keys():
        return None
    photo = Image.fromarray(np.asarray(trace.values[picture.value]))
    (left, top, right, bottom), (width, height) = picture.crop, photo.size
    crop = images.Crop(left, top, right, bottom, width, height, sizes["W"], sizes["H"])
    image = photo.resize((crop.width, crop.height), Image.Resampling.BICUBIC, box=crop.box)
    return View(photo, crop, _match_channels(image, sizes), picture.rows, picture.columns)


def _match_channels(image: Image.Image, sizes: dict[str, int]) -> Image.Image:
    """Return the picture in grey where the model has one channel."""
    return image.convert("L").convert("RGB") if sizes.get("C") == 1 else image


def trace(beside_plain: bool = False) -> Trace:
    """Return the run of the pages, computed on first use, with the checks on other runs as soon as they are known. A
    refusal stops the page with one sentence. With `beside_plain`, the page shows the run without its changes, too."""
    slots = render_gate.reserve()
    if (run := current_run()) is None:
        chosen, name = user_input(), model_name()
        key = (name, options())
        if wrong := problem(*key):
            st.error(f"{name} does not run here at the sizes that you chose. {wrong}")
            st.page_link("pages/sizes.py", label="Choose other sizes", icon=":material/straighten:")
            page_frame.leave()
        try:
            beside = _run_plain_beside(*key, chosen) if beside_plain else nullcontext()
            with render_gate.show_bars(slots), render_gate.keep_page(was_run()), beside:
                run = _find_run(*key, chosen)
        except render_gate.ServerFull:
            raise
        except Exception as error:  # code of a library may raise anything; ours refuses with a ValueError
            if changes():
                _drop_changes(error)
            if not (isinstance(error, ValueError) or zoo.is_foreign(name)):
                raise
            what = {"text": "your text"}.get(
                chosen.kind, "its own sample" if chosen.name == run_cache.OWN_SAMPLE else chosen.name
            )
            message = " ".join(str(error).split())[:500]
            st.error(texts.escape(f"{name} could not be run on {what}: {message}"))
            page_frame.leave()
        visitor().hold(chosen, key, run)
        run = background_checks.apply(key, run)
    return run


def _run_plain_beside(name: str, known: run_cache.Options, chosen: UserInput) -> AbstractContextManager[None]:
    """Return the context in which the run without changes waits beside the changed one; that of a sample is there."""
    if chosen.kind == "sample" or not run_cache.changes(known):
        return nullcontext()
    plain = run_cache.without_changes(known)
    model = run_cache.load(name, plain)
    return run_cache.given_beside(name, plain, chosen.content, inputs(model, chosen, plain))


def _find_run(name: str, known: run_cache.Options, chosen: UserInput) -> Trace:
    """Return the run of a model on an input, from a cache or computed now."""
    return run_cache.of_sample(name, known, chosen.name) if chosen.kind == "sample" else run_input(name, known, chosen)


def _drop_changes(error: Exception) -> None:
    """Replace a changed run that failed by the plain run, with the reason."""
    message = " ".join(str(error).split())[:500] or type(error).__name__
    known = isinstance(error, ValueError)
    message = texts.sentence(message) if known else f"{model_name()} could not be run with these changes: {message}"
    visitor().refusal = f"{message}. {UNCHANGED_NOTE}"
    change(())
    st.rerun()


def changes() -> tuple[str, ...]:
    """Return the changes of the run on screen, as texts; those of a saved run are in it."""
    chosen = user_input()
    return chosen.trace.changes if chosen.trace is not None else run_cache.changes(options())


def change(texts: Sequence[str]) -> None:
    """Set the changes of the model's runs, for all pages; none for the plain run."""
    visitor().change(model_name(), texts)


def plain_trace() -> Trace:
    """Return the run on screen without its changes."""
    name, known = model_name(), run_cache.without_changes(options())
    with render_gate.keep_page():
        run = _find_run(name, known, user_input())
    return background_checks.apply((name, known), run)


def reference_trace() -> Trace:
    """Return a run without changes that has the lines of the run on screen: that of the first sample, which is for all
    visitors, where it is at hand."""
    name, known = model_name(), run_cache.without_changes(options())
    if not run_cache.has_own_sizes(name, known):
        return plain_trace()
    with render_gate.keep_page():
        return run_cache.of_sample(name, known, run_cache.first_sample(name))


def changed_trace(texts: Sequence[str]) -> Trace:
    """Return the run on screen with these changes in place of its own."""
    return _find_run(model_name(), run_cache.with_changes(options(), texts), user_input())


def go_back() -> None:
    """Go back to the model and the input before a cancelled run, at first to the first ones; to a sample of the model
    where a photo was not kept, with the former text."""
    now, state = visitor(), st.session_state
    model, known, name, text, chosen = now.back or (FIRST_MODEL, (), "", None, lambda: None)
    now.ask(None)
    now.show(model)
    now.options[model] = known
    now.user_input, now.url_input = chosen(), None
    if now.user_input is None:
        if now.own and now.own.name == name:
            now.choose(replace(now.own, kind="photo", text=None, model=""))
        elif name in sample_names():
            take_sample(name)
        if text:
            take_text(text, text_key())
    state.pop(Key.MASK.format(model), None)
    state[text_key()] = user_input().text or ""


def current_run() -> Trace | None:
    """Return the run on screen, or None where there is none (yet)."""
    chosen, current = user_input(), visitor().current
    if chosen.trace is not None:
        return chosen.trace
    if current is None or current.user_input() is not chosen or current.key != (model_name(), options()):
        return None
    run = current.run()
    return run and background_checks.apply(current.key, run)


def run_name(trace: Trace) -> str:
    """Return the random name of the run on screen, which stays the same once its lines are checked."""
    ran = None if user_input().kind == "trace" else visitor().run()
    return single_flight.name(ran or trace)


def wanted(key: str, run: str) -> Mapping[str, Any]:
    """Return what the component of a key requests for the run of this name; empty where it requests nothing."""
    request = (st.session_state.get(key) or {}).get("wanted")
    return request if isinstance(request, Mapping) and request.get("run") == run else {}


def was_run() -> bool:
    """Return whether a run of this model on this input is on screen, perhaps with other changes."""
    current = visitor().current
    if current is None or current.user_input() is not user_input():
        return False
    (model, known), plain = current.key, run_cache.without_changes(options())
    return model == model_name() and run_cache.without_changes(known) == plain


def is_check_pending() -> bool:
    """Return whether the check of the lines on screen is pending; the browser polls for it."""
    now = visitor()
    key, run = (model_name(), options()), current_run()
    waits = run is not None and user_input().trace is None and background_checks.is_pending(key, run)
    now.checking = key if waits else None
    return waits


def options() -> run_cache.Options:
    """Return the visitor's choice of the model's options, such as its mask; empty for the default model."""
    return visitor().options.get(model_name(), ())


def default_option(model: str, option: str) -> object:
    """Return the default of an option or a size of one of our models: the value that its weights were trained with. One
    input is run at once; None for the other sizes of an input."""
    try:
        trained = models.shipped_config(model)
    except ValueError:  # a damaged card, of which the page says so
        trained = {name: choices[0] for name, choices in models.spec_of(model).options.items()}
    return trained.get(option, 1 if option == "B" else None)


def choose_model(name: str) -> None:
    """Set the model, for all pages, and leave a saved run."""
    st.session_state[Key.MODEL] = name
    if user_input().kind == "trace":
        take_sample(run_cache.OWN_SAMPLE)


def choose(option: str, value: object) -> None:
    """Set an option of the model, for all pages."""
    visitor().option(model_name(), option, value)


def model() -> Any:
    """Return the model of the pages, ready to run."""
    return run_cache.load(model_name(), options())


def plain_model() -> Any:
    """Return the model without the changes of its runs."""
    return run_cache.load(model_name(), run_cache.without_changes(options()))


def inputs(model, chosen: UserInput, known: run_cache.Options) -> dict:
    """Return the arguments for the model: the photo and the text, where it takes them, and the sizes of its input that
    are `known`. A text has a length of its own."""
    options = {kind: value for kind, value in (("image", chosen.photo), ("text", chosen.text)) if kind in model.takes}
    sizes = run_cache.split_options(model.name, known)[1]
    return options | {name: value for name, value in sizes.items() if name == "B" or not chosen.text}


def run_input(name: str, known: run_cache.Options, chosen: UserInput) -> Trace:
    """Return the run of a model on an input of a visitor's."""
    plain = run_cache.load(name, run_cache.without_changes(known))  # changes are resolved in the queue
    return run_cache.of_given(name, known, chosen.content, inputs(plain, chosen, known))


def primitives(op: int) -> tuple[Decomposition, ...]:
    """Return the primitives of one op of the run on screen, by running it once more."""
    chosen, key = user_input(), (model_name(), options())
    if chosen.kind == "sample":
        return run_cache.decompose_sample(*key, chosen.name, op)
    model = run_cache.load(*key)
    return run_cache.decompose(model, op, **inputs(model, chosen, key[1]))


# Run for the pages on the next token: that on screen where its model predicts one, else a sample's.

PREDICTS = ("next", "caption")
"""The results of models that predict the next token."""
FALLBACK = "nanogpt"


class NextTokenRun(NamedTuple):
    """A model by its name and options, its input, and the run."""

    name: str
    options: run_cache.Options
    chosen: UserInput
    trace: Trace


def next_token_run(lacks: str, suits: Callable[[str], bool] | None = None) -> NextTokenRun:
    """Return the run on screen if its model predicts the next token, else that of `FALLBACK` on its sample, with a
    notice: `lacks` is the start of the sentence, such as "Your model does not write". `suits` returns whether a model
    of that name can be shown before it is run."""
    visitor().instead = ""
    if user_input().kind != "trace" and (suits is None or suits(model_name())):
        run = trace()
        if run.result.get("kind") in PREDICTS:
            return NextTokenRun(model_name(), options(), user_input(), run)
    st.info(plain(f"{lacks}, so this page shows {FALLBACK} on its sample."))
    choose = partial(choose_model, FALLBACK)
    st.button(f"Choose {FALLBACK}", icon=":material/swap_horiz:", on_click=choose, help="Shows it on all pages.")
    visitor().instead = f"{FALLBACK} on its sample"
    try:
        sample = run_cache.of_sample(FALLBACK, (), run_cache.OWN_SAMPLE)
    except ValueError as error:  # its weights are damaged
        st.error(escape(f"{FALLBACK} could not be run: {error}"))
        page_frame.leave()
    return NextTokenRun(FALLBACK, (), UserInput("sample", run_cache.OWN_SAMPLE), sample)


# One of our models at other sizes and options than its defaults: its cost, and whether it runs here.

FLOPS = 20e9
"""Of a run at sizes that a visitor chose, at most: about a second on two cores."""
NUMBERS = 60e6
"""Of all tensors of its textbook together, and of its parameters, at most: 240 MB each."""
DOING = "Deriving formulas from a run of the model"
MAX_SIZE = 10**9
"""Of a size that is put into a formula."""


def chosen_sizes(model: str, options: run_cache.Options) -> dict[str, int]:
    """Return the sizes among the choices for a model."""
    known = sizes(model)
    return {name: value for name, value in options if name in known and isinstance(value, int)}


def sizes(model: str) -> tuple[str, ...]:
    """Return the selectable sizes of a model: those of its weights, then those of its input."""
    if model not in models.names():
        return ()
    spec = models.spec_of(model)
    return (*spec.sizes, *spec.runs)


def options_only(model: str, options: run_cache.Options) -> run_cache.Options:
    """Return the options alone, without sizes and changes: the formulas of a run with them hold for all its sizes."""
    known = sizes(model)
    return tuple((name, value) for name, value in run_cache.without_changes(options) if name not in known)


def scaling(model: str, options: run_cache.Options) -> Scaling:
    """Return the formulas of a model with these options, from a run at its default sizes, computed once for all
    visitors; those of the cache from the run that reads the last token after it, of a model that writes."""
    plain = options_only(model, options)
    return run_cache.shared_result("costs", (model, plain), lambda: _scaling(model, plain), DOING)


def _scaling(model: str, options: run_cache.Options) -> Scaling:
    from tracer.record.costs import scaling as formulas  # loads sympy

    loaded, run = run_cache.in_line(model, options)
    costs = formulas(run)
    if models.spec_of(model).decoder is None:
        return costs
    try:
        cached = loaded.trace(cache=True, prove=False)
    except ValueError:  # with a mask that looks ahead, keys of earlier tokens change with each new one
        return costs
    return replace(costs, cache=record_costs.elements_of_whole(run, cached))


def impossible(model: str, options: run_cache.Options, formulas: Scaling) -> str:
    """Return the reason why no such model can be built, however large, in a sentence; empty where one can."""
    try:
        models.check(model, run_cache.split_options(model, options)[0])
        full = formulas.complete(chosen_sizes(model, options))
    except ValueError as error:
        return f"{error}."
    if full.get("T", 0) > full.get("T_max", full.get("T", 0)):
        return f"T={full['T']:,} tokens are too many: the position table has T_max={full['T_max']:,} rows."
    return ""


def problem(model: str, options: run_cache.Options) -> str:
    """Return the reason why a model does not run here at these sizes, in a sentence; empty where it does."""
    if not (wanted := chosen_sizes(model, options)):
        return ""
    formulas = scaling(model, options)
    if wrong := impossible(model, options, formulas):
        return wrong
    numbers = formulas.numbers(wanted)
    for name, most, what in (
        ("params", NUMBERS, "parameters"),
        ("flops", FLOPS, "FLOPs"),
        ("tensors", NUMBERS, "numbers in its tensors"),
    ):
        count = numbers[name]
        if count is None or count > most:
            count_text = "more" if count is None else amount(count)
            limit = f"this server runs up to {amount(most)}"
            return f"This size would take {count_text} {what}; {limit}. The formulas still hold."
    return ""


# Models of libraries in the app: the cost of loading one is shown first, and an unavailable one is refused.
#
# Any visitor may name any model, so the server protects itself: nothing is loaded before the visitor agreed to its
# cost, no more than two such models are in memory at once, the operator limits their size (`TRACER_MODEL_GB`), and with
# `HF_HUB_OFFLINE=1` nothing is downloaded at all. Checkpoints in the server's folders are opened only where the
# operator allows it (`TRACER_FOLDERS=1`). Code out of a checkpoint never runs.

MAX_NAME_LETTERS = 120
"""Characters of a name; the longest on the hub are shorter."""


def suggestions() -> list[str]:
    """Return our own models and examples of the installed libraries; where this server offers a list, that list."""
    offered = limits().models(models.names())
    return [*models.names(), *zoo.examples()] if offered is None else list(offered)


def settle() -> None:
    """Switch to the model that the visitor chose. A library's model waits for the visitor's consent, and an unavailable
    one is refused with a message; what is on screen stays until then. Runs before the widget of models."""
    state, now = st.session_state, visitor()
    if state.pop(single_flight.CANCELLATION_KEY, False):
        go_back()
    wanted = str(state.get(Key.MODEL) or "").strip() or now.model
    if wanted == now.model:
        if state.get(Key.MODEL) != wanted:
            state[Key.MODEL] = wanted
        return
    now.ask(None)
    problem = ""
    try:
        limits().check_model(wanted, models.names())
        if not zoo.is_foreign(wanted):
            models.takes(wanted)
        elif wanted in now.consents:
            _load(wanted, now.consents[wanted])
        else:
            now.ask(_cost(wanted))
    except Exception as error:  # whatever a library makes of a name or a checkpoint that it was not written for
        problem = " ".join(str(error).split()) or type(error).__name__
        if not isinstance(error, ValueError):
            problem = f"{quote(wanted)} could not be loaded: {shorten(problem, 300)}"
    if problem or now.pending_cost:
        now.stay(problem)
    else:
        now.show(wanted)


def _cost(name: str):
    if len(name) > MAX_NAME_LETTERS:
        raise ValueError(f"{quote(name)} is not a model: expected a name of at most {MAX_NAME_LETTERS} characters")
    with st.spinner("Looking up how large the model is"):
        if not folders_allowed():
            zoo.check_no_folder(name)
        return downloads.cost(name)


def take(offer) -> None:
    """Accept an offered model as the visitor's choice: its cost was displayed beside the button."""
    now = visitor()
    here = recommendations.is_downloaded(offer)
    if not here and (problem := recommendations.problem(offer)):
        now.refusal = problem
        return
    now.agree(
        offer.name,
        downloads.Download(0) if here else downloads.Download(offer.size, folder=str(recommendations.folder(offer))),
    )


def _load(name: str, download) -> None:
    """Load the model; where that downloads weights, show the progress."""
    if download.size != 0:
        run_cache.fetch(name, download)
    run_cache.load(name)


def folders_allowed() -> bool:
    """Return whether visitors may open checkpoints in the server's folders: where the operator sets `TRACER_FOLDERS=1`.

    Nothing that a visitor's browser states, such as the address of its request, is trusted.
    """
    return os.environ.get("TRACER_FOLDERS") == "1"


def ask_consent() -> None:
    """Show the cost of loading the model, and ask the visitor for consent."""
    if (cost := visitor().pending_cost) is None:
        return
    with st.container(border=True, key="asking"):
        st.markdown(plain(f"**{cost.name}** — {cost.summary}" if cost.summary else f"**{cost.name}**"))
        st.markdown(f"{_count(cost.parameters)} parameters, {amount(cost.memory, 'B')} of memory. {_downloads(cost)}")
        with st.container(horizontal=True):
            st.button("Load it", type="primary", on_click=visitor().agree, args=(cost.name, cost.download))
            st.button("Not now", on_click=visitor().ask, args=(None,))


def awaits_consent() -> bool:
    """Return whether the URL names a model that waits for consent. The page is not drawn meanwhile: it would show the
    run of another model, and replace the position in that URL."""
    now = visitor()
    return now.pending_cost is not None and now.url_input is not None


def _count(number: int) -> str:
    return amount(number).replace(" G", " billion").replace(" M", " million")


def _downloads(cost) -> str:
    size, note, _ = cost.download
    if size:
        return f"Loading it downloads {amount(size, 'B')}; that may take a while."
    if size == 0:
        return f"Nothing is downloaded: {note}."
    return "The size of the download is unknown; it is about as large as the memory that the model takes."


def show_origin(trace) -> None:
    """Show where the weights of a library's or visitor's model come from, and how much of its run the equations
    cover."""
    if trace.weights and (zoo.is_foreign(trace.model) or user_input().kind == "trace"):
        st.caption(plain(f"Weights: {trace.weights}."))
    if not trace.steps:
        st.caption("This run was saved without steps: its operations, shapes and attention are shown.")
    elif trace.coverage < 1:
        share = f"{100 * trace.coverage:.0f} %" if trace.coverage < 0.995 else "more than 99 %"
        st.caption(
            f"The steps cover {share} of the operations that compute. Only the page Operations shows the others."
        )
