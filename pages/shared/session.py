"""The visitor's model, input and trace: chosen once, held on all pages, and reaching no other visitor.

A visitor's photo and its trace live in their own session state. Shared caches hold only what is nobody's: models
and the traces of the sample photos. Nothing here imports torch before a trace is asked for.
"""

from dataclasses import dataclass

import numpy as np
import streamlit as st
from PIL import Image

from tracer import models
from tracer.inputs import images
from tracer.record import Trace

FIRST_MODEL = "vit"


@dataclass(frozen=True)
class Given:
    """What the pages show: a sample photo, a photo of the visitor's, or a saved trace."""

    kind: str
    name: str
    photo: Image.Image | None = None
    trace: Trace | None = None


@dataclass(frozen=True)
class View:
    """The photo, the part of it that the model sees, that part at the model's size, and the grid of patches."""

    photo: Image.Image
    crop: images.Crop
    image: Image.Image
    rows: int
    columns: int


def given() -> Given:
    """What the visitor chose, at first the sample photo."""
    if "given" not in st.session_state:
        take_sample(next(iter(images.sample_photos())))
    return st.session_state["given"]


def take_sample(name: str) -> None:
    """Goes (back) to a sample photo."""
    st.session_state["given"] = Given("sample", name, images.sample_photo(name))
    st.session_state["refusal"] = ""


def take_file(data: bytes, name: str) -> None:
    """Takes a photo or a saved trace. What can't be read is refused in a sentence, and what was chosen stays."""
    try:
        if name.lower().endswith(".safetensors"):
            import tracer

            chosen = Given("trace", name, trace=tracer.open(data, name=name))
        else:
            chosen = Given("photo", name, images.open_photo(data))
    except ValueError as error:
        st.session_state["refusal"] = str(error) if name in str(error) else f"{name}: {error}"
    else:
        st.session_state["given"], st.session_state["refusal"] = chosen, ""


def model_name() -> str:
    """The name of the chosen model."""
    return st.session_state.setdefault("model", FIRST_MODEL)


def card() -> dict | None:
    """What is known of the model's weights: sizes, classes, accuracy; None for a saved trace or a model without."""
    return None if given().kind == "trace" else models.card(model_name())


def view() -> View | None:
    """The photo as the model meets it, before any model is loaded; None where there is no photo or no card."""
    chosen = given()
    if chosen.trace is not None:
        return traced_view(chosen.trace)
    sizes = (card() or {}).get("sizes", {})
    if not {"H", "W", "P"} <= sizes.keys():
        return None
    image, crop = images.centre_crop(chosen.photo, sizes["H"], sizes["W"])
    return View(chosen.photo, crop, image, sizes["H"] // sizes["P"], sizes["W"] // sizes["P"])


def traced_view(trace: Trace) -> View | None:
    """The same out of a run, whose photo and grid are recorded in it; None if it had no photo."""
    picture, sizes = trace.picture, {size.name: size.value for size in trace.symbols}
    if picture is None or not {"H", "W"} <= sizes.keys():
        return None
    photo = Image.fromarray(np.asarray(trace.values[picture.value]))
    crop = images.Crop(*picture.crop, *photo.size, sizes["W"], sizes["H"])
    image = photo.resize((crop.width, crop.height), Image.Resampling.BICUBIC, box=crop.box)
    return View(photo, crop, image, picture.rows, picture.columns)


def trace() -> Trace:
    """The run that the pages show, made on first use. A refusal stops the page with one sentence."""
    chosen, name = given(), model_name()
    if chosen.trace is not None:
        return chosen.trace
    held = st.session_state.get("held")
    if held is None or held[0] is not chosen or held[1] != name:
        try:
            run = _sample_trace(name, chosen.name) if chosen.kind == "sample" else _run(name, chosen.photo)
        except ValueError as error:
            st.error(f"{name} could not be run on {chosen.name}: {error}")
            st.stop()
        st.session_state["held"] = held = (chosen, name, run)
    return held[2]


@st.cache_resource(max_entries=4, show_spinner="Loading the model")
def load(name: str):
    """A model, loaded once for all visitors."""
    import tracer

    return tracer.load(name)


def _run(name: str, photo: Image.Image) -> Trace:
    model = load(name)
    with st.spinner("Running the model and proving every step"):
        return _traced(model, photo)


@st.cache_resource(max_entries=16, show_spinner="Running the model on the sample and proving every step")
def _sample_trace(name: str, sample: str) -> Trace:
    return _traced(load(name), images.sample_photo(sample))


def _traced(model, photo: Image.Image) -> Trace:
    """The run of a model on a photo, or on its own sample text where it takes no photo."""
    return model.trace(image=photo) if "image" in model.takes else model.trace()
