"""Models and runs that all visitors share: each model loaded once, each sample run once, a crowd of runs in turns.

Only what is nobody's is kept here: models and the runs of samples; of models of libraries, which are large and which
any visitor may name, two at most. Nothing here imports torch before a model is asked for.
"""

from threading import BoundedSemaphore, Lock

import streamlit as st

from pages.shared import crowd
from tracer import models, sources
from tracer.inputs.samples import samples
from tracer.record import Decomposition, Trace

LIBRARY_MODELS = 2
"""How many models of libraries are in memory at once, for all visitors together."""
_one_at_a_time = crowd.Bounded(Lock())
turns = crowd.Bounded(BoundedSemaphore(2))
"""Runs of our models that go on at once, for all visitors together. Threads that run models hand Python's lock to and
fro at every op: when a class uploads its photos at once, the runs are done sooner, and most of them much sooner, in
turns (`python -m tracer bench`). A turn holds no other turn."""

Options = tuple[tuple[str, object], ...]
"""Options of a model by name, sorted, as a key of caches."""


def load(name: str, options: Options = ()):
    """A model, loaded once for all visitors."""
    return (_library_model if sources.is_foreign(name) else _our_model)(name, options)


@st.cache_resource(max_entries=12, show_spinner="Loading the model")
def _our_model(name: str, options: Options):
    import tracer

    return tracer.load(name, **dict(options))


@st.cache_resource(max_entries=LIBRARY_MODELS, show_spinner="Loading the model")
def _library_model(name: str, options: Options):
    """Few are kept and one is loaded at a time, so that visitors together can't fill the server's memory."""
    import tracer

    with _one_at_a_time:
        return tracer.load(name, **dict(options))


def of_sample(name: str, options: Options, sample: str) -> Trace:
    """The run of a model on one of its samples, made once for all visitors."""
    return (_library_sample if sources.is_foreign(name) else _our_sample)(name, options, sample)


@st.cache_resource(max_entries=32, show_spinner="Running the model on the sample and proving every step")
def _our_sample(name: str, options: Options, sample: str) -> Trace:
    return proven(*_with_sample(name, options, sample))


@st.cache_resource(max_entries=LIBRARY_MODELS, show_spinner="Running the model on the sample and proving every step")
def _library_sample(name: str, options: Options, sample: str) -> Trace:
    return proven(*_with_sample(name, options, sample))


def _with_sample(name: str, options: Options, sample: str) -> tuple:
    """The model and the photo of the sample, None for a sample that is the model's own."""
    found = samples(models.samples(name)).get(sample)
    return load(name, options), found and found()


def proven(made, image=None, **given) -> Trace:
    """A run of a model that is loaded, with every step proven. Models of libraries are too large for the tensors of all
    their steps to stay: they are there while the steps are proven, one model at a time, and then the first are kept."""
    given |= {} if image is None else {"image": image}
    if not sources.is_foreign(made.name):
        with turns:
            return made.trace(**given)
    from tracer.lightened import lightened
    from tracer.tracing import AT_HAND, KEEP

    with _one_at_a_time:
        return lightened(made.trace(**given, keep=AT_HAND), KEEP)


def opened(made, **given) -> tuple[Decomposition, ...]:
    """Every op of a run of a model that is loaded, opened into its primitives."""
    with turns:
        return made.trace(**given, prove=False, primitives=True).decompositions


@st.cache_resource(max_entries=4, show_spinner="Opening every operation and running its primitives")
def opened_sample(name: str, options: Options, sample: str) -> tuple[Decomposition, ...]:
    """The same on a sample, made once for all visitors."""
    made, image = _with_sample(name, options, sample)
    return opened(made, image=image)
