"""Sidebar of every page: the model, the photo, and the legend of symbols."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from pages import components, ui
from pages.jobs import run_cache, single_flight
from pages.sections import search
from pages.state import library_models, page_registry, session, url_state
from pages.state.visitor import Key, UserInput, model_name, visitor
from pages.ui import screen, widgets
from pages.ui.texts import escape, plain
from tracer import models
from tracer.figures import equations, handout, predictions
from tracer.inputs.images import KINDS
from tracer.record import Trace
from tracer.symbols import notation
from tracer.utils.errors import limits
from tracer.utils.lazy_import import lazy_import
from tracer.utils.text import amount
from tracer.zoo import recommendations

if TYPE_CHECKING:
    from tracer import serialization
else:  # imported when first used
    serialization = lazy_import("tracer.serialization")


SURVEYS = (".parquet", ".arrow")
"""Ends of the names of survey files."""
STYLES = [ui.STYLES / f"{name}.css" for name in ("style", "present", "print")]


class SidebarSlots(NamedTuple):
    """Containers that `run` fills with the model card, and with the samples where they come after the page."""

    origin: DeltaGenerator
    samples: DeltaGenerator


def choices(pages: list, page: str) -> SidebarSlots:
    """Draw the links to all pages, and the choice of model and input. Messages and questions stand above the page of
    this address. Return the containers that `run` fills."""
    visitor().instead = ""  # of the page before
    for style in STYLES:
        components.style(style)
    _forget(page)
    with (above := st.container(key="above")):
        url_state.read(page)
        library_models.settle()
        url_state.follow()
        _readable()
    with st.sidebar:
        st.html('<p class="brand">Tensor tracer</p>')
        _links(pages)
        chosen_input = session.user_input()
        opened = chosen_input.trace is not None
        if chosen_input.trace is not None:
            st.selectbox("Model", [chosen_input.trace.model], disabled=True, help="The model of the saved run.")
        else:
            _model()
        slots = SidebarSlots(st.container(), st.container())
        if page not in url_state.LESSONS:
            with slots.samples:
                _samples(chosen_input)
        takes = models.takes(model_name())
        if "text" in takes and not opened:
            _text(chosen_input)
        _upload(takes)
        if "image" in takes and page:  # the first page has it, large
            components.give(takes, small=True)
    with st.bottom:
        shown = [page_name for page_name, its in zip(pages, page_registry.find_pages(), strict=True) if not its.heading]
        components.bar([_item(page_name, page) for page_name in shown], takes)
    with above:
        if refusal := visitor().refusal:
            st.error(escape(refusal), icon=":material/block:")
        ask_consent()
    url_state.write(page)
    search.show()
    return slots


def _links(pages: list) -> None:
    """Draw a link to each page with its full URL, so that a click adds one entry to the browser's history."""
    headings = [page.heading for page in page_registry.find_pages()]
    addresses = url_state.views_of(page.url_path for page in pages)
    for heading in dict.fromkeys(headings):
        with st.container(key=f"pages-{heading}" if heading else "pages", gap=None):
            if heading:
                st.caption(heading)
            for page in (page for page, its in zip(pages, headings, strict=True) if its == heading):
                st.page_link(page, query_params=addresses[page.url_path].to_url(), width="stretch")


def _item(page, here: str) -> dict:
    """Return a page's entry in the bar of a phone."""
    icon = page.icon.removeprefix(":material/").removesuffix(":")
    return {"title": page.title, "icon": icon, "address": page.url_path or ".", "here": page.url_path == here}


def _forget(page: str) -> None:
    """Drop a message that was read on another page, and the text that it refused."""
    now, state = visitor(), st.session_state
    if now.refused_on not in (None, page):
        now.refusal = ""
        if session.text_key() in state:
            state[session.text_key()] = session.user_input().text or ""


def _readable() -> None:
    """Refuse a text that the model can't read: the previous screen stays, and the text stays in its box."""
    now, chosen = visitor(), session.user_input()
    if chosen.kind == "text" and now.readable is not chosen:
        try:
            model = session.plain_model()
        except ValueError:  # its weights are missing or damaged: the page says so in the place of the run
            return
        try:
            model.inputs(**session.inputs(model, chosen, session.options()))
        except ValueError as error:
            now.user_input = now.readable
            session.user_input()
            st.session_state[session.text_key()] = chosen.text
            message = f"{model_name()} could not be run on your text: {' '.join(str(error).split())}."
            now.refusal = f"{message} Your text stays in its box. The page shows the last input that could be read."
    now.readable = session.user_input()


def _model() -> None:
    st.selectbox(
        "Model",
        library_models.suggestions(),
        key=Key.MODEL,
        persist_state="session",
        accept_new_options=True,
        help="One of ours, or any model of a library by its name: torchvision:vit_b_16, timm:…, hf:… "
        "Before the app loads one of those, it says how much memory it takes.",
    )
    with st.expander("What these models are"):
        st.caption("  \n".join(plain(f"**{name}**: {models.in_and_out(name)}") for name in models.names()))


def _samples(user_input: UserInput) -> None:
    """Draw the current input and the samples; or a note where the page shows something else."""
    if instead := visitor().instead:
        st.caption(plain(f"This page shows {instead}. Your input is kept for the other pages."))
        return
    samples = session.sample_names()
    if user_input.kind == "sample":
        if len(samples) > 1:
            key = Key.SAMPLE.format(model_name())
            st.session_state[key] = user_input.name
            st.pills("Sample", samples, key=key, required=True, on_change=lambda: _take_sample(st.session_state[key]))
        return
    kinds = {"trace": "Saved run", "text": "Your text, with"}
    own = user_input.name == run_cache.OWN_SAMPLE
    st.text("Your text" if own else f"{kinds.get(user_input.kind, 'Your photo')}: {user_input.name}")
    if st.button("Back to the sample", icon=":material/undo:", width="stretch"):
        session.take_sample(samples[0])
        st.rerun()


def _take_sample(name: str) -> None:
    if name in session.sample_names():  # it may come late, from a model that was left meanwhile
        session.take_sample(name)


def _text(user_input: UserInput) -> None:
    key = session.text_key()
    st.session_state.setdefault(key, user_input.text or "")  # set once: what is typed while a run goes on must stay
    st.text_area(
        "Your text",
        key=key,
        placeholder="Empty: the model’s own text",
        on_change=lambda: session.take_text(st.session_state[key], key),
        help="It stays in this session. If the model does not know a character or a word, a message says so.",
    )


def _upload(takes: tuple[str, ...]) -> None:
    now, most = visitor(), limits()
    photo = f"{KINDS} up to {most.photo_mb:g} MB, a"
    file = st.file_uploader(
        "Your photo, or a saved run" if "image" in takes else "A saved run",
        key=Key.UPLOAD.format(now.uploads),
        max_upload_size=most.upload_mb,
        help=f"{photo if 'image' in takes else 'A'} .safetensors file of a saved run, or a survey (.parquet, .arrow). "
        "It stays in this session and is deleted when you close the page.",
    )
    if file is not None:
        with st.spinner("Opening the file"):
            opened = take_upload(widgets.read_upload(file), file.name)
        now.uploads += 1
        if opened:
            st.switch_page("pages/attention.py", query_params=url_state.of("attention") | {"over": "survey"})
        st.rerun()


def take_upload(data: bytes, name: str) -> bool:
    """Open a photo, a saved run or a survey; return whether it is a survey, which has a page of its own."""
    if name.lower().endswith(SURVEYS):
        return session.take_survey(data, name)
    session.take_file(data, name)
    return False


def run(slots: SidebarSlots, page: str) -> None:
    """Draw the model card, the buttons to save the run, and the legend of its symbols. Nothing where there is no run,
    or another one is displayed. Messages have been displayed by now."""
    visitor().refused_on = page if visitor().refusal else None
    if page in url_state.LESSONS:  # it may show something else, which is known once it is drawn
        with slots.samples:
            _samples(session.user_input())
    if (trace := session.current_run()) is None or visitor().instead:
        return
    with slots.origin:
        screen.show_origin(trace)
    help_text = (
        "All steps, all shapes and the kept tensors, in one file. You can open it here again, even on a machine "
        "without the model."
    )
    key = None if session.user_input().kind == "trace" else (model_name(), session.options())
    _file_button("Save this run", "download", trace, lambda: _file(key, trace), "safetensors", help_text)
    text = url_state.letters()
    help_text = (
        "One HTML file to print, with the photo, the answer, the attention maps, the equations, the shapes and the "
        "verdicts."
    )
    _file_button("Download a handout", "print", trace, lambda: handout.render(trace, text).encode(), "html", help_text)
    help_text = "One HTML file that plays the run step by step in any browser, without this app."
    _file_button("Download the film", "movie", trace, lambda: trace.film(text).html.encode(), "film.html", help_text)
    _legend(trace)
    _glossary(trace)
    with st.sidebar:
        if session.is_check_pending():
            components.poll_check()
        source = _file_stem(session.user_input())
        components.announce(f"{trace.model} has run on {source}. {predictions.answer_sentence(trace)}".strip())


def _file_button(label: str, icon: str, trace: Trace, make: Callable[[], bytes], ending: str, help_text: str) -> None:
    """Draw a button that builds a file of the run when it is pressed."""
    name = f"{trace.model}-{_file_stem(session.user_input())}.{ending}"
    more = {"icon": f":material/{icon}:", "on_click": "ignore", "width": "stretch", "help": help_text}
    st.sidebar.download_button(label, data=make, file_name=name, **more)


def _file_stem(user_input: UserInput) -> str:
    """Return a word for a run's input, for its file name."""
    return "text" if user_input.name == run_cache.OWN_SAMPLE else Path(user_input.name).stem


def _file(key: tuple[str, run_cache.Options] | None, trace: Trace) -> bytes:
    """Return the run as a file, with the parameters of the model of that key, where it is in memory."""
    model = key and run_cache.loaded_model(*key)
    return serialization.to_bytes(trace, model and model.net)


def _glossary(trace: Trace) -> None:
    """Draw the symbols of this run's equations and a glossary."""
    with st.sidebar.expander("Signs and words"), st.container(key="glossary"):
        st.markdown(single_flight.of(trace, "glossary", lambda: _glossary_text(trace)))


def _glossary_text(trace: Trace) -> str:
    signs = [f"${sign}$ — {meaning}" for sign, meaning in equations.signs(step.latex for step in trace.steps)]
    words = [f"**{word}** — {meaning}" for word, meaning in equations.words(step.stage for step in trace.steps)]
    return "\n\n".join(signs + words)


def _legend(trace: Trace) -> None:
    if not trace.symbols:
        st.sidebar.caption("This run has no symbols. Its shapes are numbers.")
        return
    with st.sidebar.expander("Symbols of this run", expanded=True), st.container(key="legend"):
        st.markdown(single_flight.of(trace, "legend", lambda: _legend_text(trace)))


def _legend_text(trace: Trace) -> str:
    entries = []
    for size in trace.symbols:
        formula = f"= {notation.latex(size.equals)} " if size.equals not in ("", str(size.value)) else ""
        entries.append(f"${notation.latex(size.name)} {formula}= {size.value}$ — {plain(size.meaning)}")
    bold = notation.namesakes((size.name for size in trace.symbols), (step.latex for step in trace.steps))
    if bold:
        entries.append(f"Bold letters are tensors, not sizes: {', '.join(f'**{letter}**' for letter in bold)}.")
    return "\n\n".join(entries)


# Recommended pretrained models: the purpose, size and licence of each, and whether it is downloaded already.


def show_recommended() -> None:
    """Draw a button for each recommended model; nothing on a server that offers none."""
    offers = recommendations.offers()
    if not offers:
        return
    with st.container(key="sharper", horizontal=True, vertical_alignment="center", gap="small"):
        st.markdown("Stronger models:")
        for offer in offers:
            _offer(offer, recommendations.is_downloaded(offer))


def _offer(offer, here: bool) -> None:
    size = "on this machine" if here else f"download {amount(offer.size, 'B')}"
    about = plain(f"{offer.what[0].upper()}{offer.what[1:]}. {offer.licence}.")
    st.button(
        f"{offer.title} · {size}",
        key=f"take {offer.name}",
        icon=":material/visibility:" if here else ":material/download:",
        on_click=library_models.take,
        args=(offer,),
        disabled=offer.name == model_name(),
        help=f"{about} {offer.name}: downloaded once, then kept on this machine.",
        type="tertiary",
    )


# Consent to the cost of a library's model.


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


def _count(number: int) -> str:
    return amount(number).replace(" G", " billion").replace(" M", " million")


def _downloads(cost) -> str:
    size, note, _ = cost.download
    if size:
        return f"Loading it downloads {amount(size, 'B')}; that may take a while."
    if size == 0:
        return f"Nothing is downloaded: {note}."
    return "The size of the download is unknown; it is about as large as the memory that the model takes."
