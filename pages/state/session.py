"""Visitor's model, input and trace: chosen once, kept across pages, and shared with no other visitor.

The state of a visitor is in `visitor.py`; `pages/jobs/run_cache.py` has what visitors share. Nothing here imports torch
before a trace is asked for."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import streamlit as st
from PIL import Image

import tracer
from pages.jobs import background_checks, render_gate, run_cache, single_flight
from pages.state.view import FIRST_MODEL
from pages.state.visitor import Key, OpenSurvey, PhotoView, UserInput, model_name, visitor
from tracer import models
from tracer.inputs import images
from tracer.inputs.model_inputs import samples
from tracer.record import Decomposition, Trace
from tracer.utils.errors import limits, quote
from tracer.utils.lazy_import import lazy_import

if TYPE_CHECKING:
    from tracer.record import costs as record_costs
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


def traced_view(trace: Trace) -> PhotoView | None:
    """Return the view recorded in a run, with its photo and grid; None if it had no photo."""
    return single_flight.of(trace, "view", lambda: _traced_view(trace))


def _traced_view(trace: Trace) -> PhotoView | None:
    picture, sizes = trace.picture, {size.name: size.value for size in trace.symbols}
    if picture is None or not {"H", "W"} <= sizes.keys():
        return None
    photo = Image.fromarray(np.asarray(trace.values[picture.value]))
    (left, top, right, bottom), (width, height) = picture.crop, photo.size
    crop = images.Crop(left, top, right, bottom, width, height, sizes["W"], sizes["H"])
    image = photo.resize((crop.width, crop.height), Image.Resampling.BICUBIC, box=crop.box)
    return PhotoView(photo, crop, match_channels(image, sizes), picture.rows, picture.columns)


def match_channels(image: Image.Image, sizes: dict[str, int]) -> Image.Image:
    """Return the picture in grey where the model has one channel."""
    return image.convert("L").convert("RGB") if sizes.get("C") == 1 else image


def find_run(name: str, known: run_cache.Options, chosen: UserInput) -> Trace:
    """Return the run of a model on an input, from a cache or computed now."""
    return run_cache.of_sample(name, known, chosen.name) if chosen.kind == "sample" else run_input(name, known, chosen)


def plain_trace() -> Trace:
    """Return the run on screen without its changes."""
    name, known = model_name(), run_cache.without_changes(options())
    with render_gate.keep_page():
        run = find_run(name, known, user_input())
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
    return find_run(model_name(), run_cache.with_changes(options(), texts), user_input())


def run_plain_beside(name: str, known: run_cache.Options, chosen: UserInput) -> AbstractContextManager[None]:
    """Return the context in which the run without changes waits beside the changed one; that of a sample is there."""
    if chosen.kind == "sample" or not run_cache.changes(known):
        return nullcontext()
    plain = run_cache.without_changes(known)
    model = run_cache.load(name, plain)
    return run_cache.given_beside(name, plain, chosen.content, inputs(model, chosen, plain))


def changes() -> tuple[str, ...]:
    """Return the changes of the run on screen, as texts; those of a saved run are in it."""
    chosen = user_input()
    return chosen.trace.changes if chosen.trace is not None else run_cache.changes(options())


def change(texts: Sequence[str]) -> None:
    """Set the changes of the model's runs, for all pages; none for the plain run."""
    visitor().change(model_name(), texts)


def go_back() -> None:
    """Go back to the model and the input before a cancelled run, at first to the first ones; to a sample of the model
    where a photo was not kept, with the former text."""
    now, state = visitor(), st.session_state
    model, known, name, text, chosen = now.back or (FIRST_MODEL, (), "", None, lambda: None)
    now.ask(None)
    now.show(model)
    now.options[model] = known
    now.user_input, now.wanted = chosen(), None
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
