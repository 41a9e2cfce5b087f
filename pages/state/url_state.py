"""State of a page in its URL: model, options, the sample or the text, and the position on the page, such as a step,
a head or a query. A page can so be reloaded and shared.

The state of a fresh session, the first model on its first sample, needs no parameters. Streamlit adds an entry to the
browser's history at every change of the URL, so a URL is written once and never when it is unchanged, and links to
pages carry the whole URL. Back and forward then lead to what was on screen.
"""

import weakref
from collections.abc import Iterable, Mapping

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from pages.jobs import model_costs, run_cache
from pages.state import page_registry, session
from pages.state.view import FIRST_MODEL, PLACES, View, place_on
from pages.state.visitor import OF_INPUT, Key, UserInput, model_name, new, visitor
from tracer import models
from tracer.record import Trace
from tracer.symbols.letters import TEXTS
from tracer.utils.errors import capitalize, quote, shorten

LONGEST_CHANGES = 1000
"""Characters of all changes that an address carries."""
MOST_INPUTS = 4
"""Inputs that a library's model runs on at once: each takes the memory of a run."""
MAX_TEXT_LETTERS = 500
"""Characters of a text that an address carries; browsers and mail programs cut longer ones."""
EVERYWHERE = ("zoom", "scale", "letters")
"""Places that another model has too."""
OF_ALL_PAGES = ("letters",)
"""Those that the pages share: a choice on one holds on the others."""
LESSONS = {page.path.stem for page in page_registry.find_pages() if page.heading}
"""Pages that need not show the run."""


def read(page: str) -> None:
    """Set the model from the URL, at the start of a session and when the visitor goes back or forward in the browser's
    history to the page `page`. Runs before the model is settled."""
    now, moved = visitor(), get_script_run_ctx().is_history_navigation
    now.page = page
    _catch_up(st.query_params.to_dict())
    view = _view_in_url(page)
    if new() or moved:
        now.panel = view.panel
        if page == "operations" and "step" in view.place:
            now.step = view.place["step"]
    if moved:
        now.places[page, view.model or now.model] = dict(view.place)
        for name in PLACES.get(page, ()):
            if name not in view.place:
                now.leave(name)
    if new():
        st.session_state[Key.MODEL] = FIRST_MODEL
        session.user_input()  # what is on screen if the model in the address is refused
    elif not moved or view.is_same_run(now.written or view):
        return
    st.session_state[Key.MODEL], now.wanted = view.model or FIRST_MODEL, view
    now.ask(None)


def _view_in_url(page: str) -> View:
    return View.from_url(page, {name: st.query_params.get_all(name) for name in st.query_params})


def _catch_up(parameters: dict[str, str]) -> None:
    """Set the position that the browser moved to by itself since the last run of the script. The URL holds it already,
    but Streamlit's copy of the URL does not, unless the visitor chose another position of that name meanwhile. A link
    that was drawn before the browser reported it lacks it, too."""
    now = visitor()
    position, now.reported_place = now.reported_place, None
    if position is None:
        return
    page, query = position
    place, written = place_on(page, query), now.written.place if now.written else {}
    if place.get("step"):
        now.step = now.at = place["step"]
    before = now.places.get((page, now.model), {})
    others = {name: value for name, value in before.items() if name not in place}
    now.places[page, now.model] = {name: value for name, value in place.items() if value} | others
    if page == now.page and not get_script_run_ctx().is_history_navigation:
        stayed = [name for name in place if parameters.get(name) in (written.get(name), before.get(name))]
        changed_parameters = {name: parameters[name] for name in parameters if name not in stayed}
        st.query_params.from_dict(changed_parameters | {name: place[name] for name in stayed if place[name]})


def follow() -> None:
    """Set the sample or the text that the URL names, once its model is loaded. Only the last photo of a visitor is
    kept; a message says so if the URL names another one."""
    now = visitor()
    if now.pending_cost is not None or (wanted := now.wanted) is None:
        return
    now.wanted = None
    # a model that could not be loaded leaves a message, and its options to no other
    refusal = _take_options(wanted) if (wanted.model or FIRST_MODEL) == model_name() else now.refusal
    known, own = session.sample_names(), now.own
    session.user_input()  # settled before anything is refused: what is chosen takes a refusal back
    if own and wanted.file == own.name:
        session.take_photo(own)
    elif wanted.sample in known or now.written is not None:
        session.take_sample(wanted.sample if wanted.sample in known else known[0])
    if "text" in models.takes(model_name()) and (text := wanted.text):
        if len(text) > MAX_TEXT_LETTERS:
            refusal = refusal or (
                f"The text {quote(shorten(text, 60))} of the address has {len(text):,} characters, expected at most "
                f"{MAX_TEXT_LETTERS}."
            )
        else:
            session.take_text(text, session.text_key())
            st.session_state[session.text_key()] = text
    now.refusal = refusal or now.refusal
    if wanted.sample is not None and wanted.sample not in known:
        expected = f"one of {', '.join(map(quote, known))}" if len(known) > 1 else "none: it has a text of its own"
        now.refusal = f"{quote(wanted.sample)} is not a sample of {model_name()}, expected {expected}."
    if wanted.file is not None and session.user_input().name != wanted.file:
        what = "saved run" if wanted.file.endswith(".safetensors") else "photo"
        now.refusal = (
            f"This link is about the {what} {quote(wanted.file[:100])}, which a link cannot contain and this "
            "session no longer has. Upload it to see the same page."
        )


def _take_options(wanted: View) -> str:
    """Set the options that the URL names, and the defaults for the others. Return an error message, or ""."""
    model, wrong = model_name(), ""
    visitor().options.pop(model, None)
    for name, choices in models.spec_of(model).options.items() if model in models.names() else ():
        known = {str(choice): choice for choice in choices}
        if (text := wanted.options.get(name)) in known:
            session.choose(name, known[text])
        elif text is not None:
            expected = ", ".join(map(quote, known))
            wrong = f"{quote(text)} is not a {name} of {model}, expected one of {expected}."
    return _take_sizes(wanted.options) or _take_changes(wanted.changes) or wrong


def _take_changes(wanted: tuple[str, ...]) -> str:
    """Set the changes that the URL names, all or none. Return an error message, or "". Whether the run has their lines
    is known once it is there."""
    if not wanted:
        return ""
    if len(text := ";".join(wanted)) > LONGEST_CHANGES:
        most = f"expected at most {LONGEST_CHANGES} characters"
        return f"The changes {quote(shorten(text, 60))} are too long, {most}. {session.UNCHANGED_NOTE}"
    from tracer.changes import divide, parse_all  # torch, which pages start without

    try:
        divide(parse_all(wanted))
    except ValueError as error:
        return f"{capitalize(str(error))}. {session.UNCHANGED_NOTE}"
    session.change(wanted)
    return ""


def _take_sizes(wanted: Mapping[str, str]) -> str:
    """Set the sizes that the URL names, all or none. Return an error message, or ""."""
    model, taken = model_name(), {}
    own = model in models.names()
    most = model_costs.MAX_SIZE - 1 if own else MOST_INPUTS
    for name in model_costs.sizes(model) if own else ("B",):
        if name in wanted:
            text = wanted[name]
            if not (text.isascii() and text.isdecimal() and 0 < len(text) < 10 and 0 < int(text) <= most):
                return f"{quote(text)} is not a size {name}, expected a whole number from 1 to {most:,}."
            taken[name] = int(text)
    try:
        if own:
            models.check(model, run_cache.split_options(model, tuple(taken.items()))[0])
    except ValueError as error:
        return f"{error}."
    for name, value in taken.items():
        session.choose(name, value)
    return ""


def write(page: str) -> None:
    """Write the state of the page `page` into the URL."""
    visitor().written = view = view_of(page)
    visitor().written_for = weakref.ref(session.user_input())
    if st.query_params.to_dict() != (named := view.to_url()):
        st.query_params.from_dict(named)


def _view_of_run() -> View:
    """Return the model and the input chosen now, as far as a URL can hold them: what all pages share."""
    chosen, model = session.user_input(), _model_of_links()
    options, changes = {}, ()
    if chosen.kind != "trace":
        options, own = dict(visitor().options.get(model, ())), model in models.names()
        changes = options.pop(run_cache.CHANGE, ())
        options = {
            name: str(value)
            for name, value in options.items()
            if not own or value != model_costs.default_option(model, name)
        }
    photo = chosen.own or chosen.kind == "trace"
    return View(
        model=None if chosen.kind == "trace" or (model == FIRST_MODEL and "model" not in st.query_params) else model,
        options=options,
        changes=changes,
        file=chosen.name if photo else None,
        sample=None if photo or chosen.name == session.sample_names()[0] else chosen.name,
        text=chosen.text if chosen.text and len(chosen.text) <= MAX_TEXT_LETTERS else None,
    )


def _model_of_links() -> str:
    cost = visitor().pending_cost
    return cost.name if cost else model_name()


def of(page: str) -> dict[str, str]:
    """Return the URL parameters of the page `page` for the model and the input chosen now."""
    return view_of(page).to_url()


def view_of(page: str) -> View:
    """Return the view of the page `page` for the model and the input chosen now."""
    return views_of((page,))[page]


def views_of(pages: Iterable[str]) -> dict[str, View]:
    """Return the view of each of these pages for the model and the input chosen now."""
    chosen, model, there, run = session.user_input(), _model_of_links(), st.query_params.to_dict(), _view_of_run()
    now, same = visitor(), there.get("model", FIRST_MODEL) == model  # else it is a place in another model
    left = () if _is_of(chosen) else OF_INPUT
    views = {}
    for page in pages:
        place = {}
        for name in PLACES.get(page, ()):
            stays = page == now.page and (same or _anywhere(page, name)) and name not in left
            if value := (stays and there.get(name)) or _place(page, model, name):
                place[name] = value
        views[page] = run.at(page, place)
    return views


def _is_of(chosen: UserInput) -> bool:
    """Return whether the current URL belongs to the input chosen now, and not to the one before."""
    before = visitor().written_for
    return before is None or before() is chosen or get_script_run_ctx().is_history_navigation


def lacks() -> str:
    """Return a sentence on the parts of the screen that are missing from any link; empty where the link is complete."""
    chosen = session.user_input()
    if chosen.kind == "trace":
        return "The link does not contain the saved run. Whoever opens it is asked for the file."
    sentences = []
    if chosen.own:
        sentences.append("The link does not contain your photo. Whoever opens it is asked for a photo of that name.")
    if chosen.text and len(chosen.text) > MAX_TEXT_LETTERS:
        sentences.append(f"The link does not contain your text, which is longer than {MAX_TEXT_LETTERS} characters.")
    return " ".join(sentences)


def _anywhere(page: str, name: str) -> bool:
    """Return whether a position on a page exists in any model, as all positions on the lesson pages do."""
    return name in EVERYWHERE or page in LESSONS


def _place(page: str, model: str, name: str) -> str | None:
    """Return the position on a page that was chosen last, where the run on screen is known to have it."""
    now = visitor()
    if name not in ("step", "op"):
        own = [((page, model), now.places.get((page, model), {}))]
        visits = reversed(now.places.items()) if _anywhere(page, name) else own
        shared = name in OF_ALL_PAGES
        return next(
            (places[name] for (where, _), places in visits if (shared or where == page) and name in places), None
        )
    last = now.place(name)
    if name == "step" and (page != "trace" or (trace := session.current_run()) is None or last != last_step(trace)):
        return None
    return last


def letters() -> str:
    """Return the text in whose letters the pages write, as it was chosen last."""
    now = visitor()
    text = _place(now.page, now.model, "letters")
    return text if text in TEXTS else TEXTS[0]


def keep(**places: object) -> None:
    """Update positions of the current page in its URL, as one entry in the history. None removes one."""
    now, params = visitor(), {name: str(place) for name, place in places.items() if place is not None}
    if "op" in params:
        now.op = int(params["op"])
    now.step = params.get("step", now.step)
    before = now.places.pop((now.page, now.model), {})
    now.places[now.page, now.model] = {name: before[name] for name in before if name not in places} | params
    query = st.query_params.to_dict()
    st.query_params.from_dict({name: query[name] for name in query if places.get(name, "") is not None} | params)


def last_step(trace: Trace) -> str | None:
    """Return the step that was chosen last on any page, or the first step where this run has no such step."""
    known, last = [step.id for step in trace.steps], visitor().step
    return last if last in known else next(iter(known), None)


def open_step(step: str | None) -> None:
    """Open the page of steps on one of them, if any was chosen; the URL of this page keeps its position."""
    if step:
        visitor().step = step
        st.switch_page("pages/trace.py", query_params=of("trace") | {"step": step})


def names_another(name: str, known) -> bool:
    """Return whether the URL names a step or an operation that is not among `known` and was not left there by another
    model."""
    text = st.query_params.get(name)
    return text is not None and text not in known and text != visitor().place(name)
