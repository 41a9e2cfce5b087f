"""A note on screen: each of its statements with what ran, the measured number, and a verdict.

Each section is read once for all visitors. Until it is, its statements are on screen without verdicts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from html import escape
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlencode

import streamlit as st

from pages import components
from pages.jobs import background_checks, run_cache
from pages.state import page_registry, url_state
from pages.state.visitor import visitor
from pages.ui import texts
from tracer import models
from tracer.lessons.notes.finding import Finding
from tracer.lessons.notes.statements import StatementRow, rows, sections
from tracer.utils import note_titles
from tracer.utils.job_queue import BACKGROUND
from tracer.utils.limits import limits

if TYPE_CHECKING:
    from streamlit.delta_generator import DeltaGenerator

    from tracer.lessons.notes.evaluate import StatementResult
    from tracer.lessons.notes.reference_runs import Provider
    from tracer.record import Symbol

READING = "Checking the note against its runs"
INSTEAD = "its own runs"
LIBRARY = "torchvision"
"""Beginning of the names of runs of a library's model."""
ALL_STATEMENTS, DIFFERING_STATEMENTS = "all", "differing"
SIGNS = {
    "holds": ":green-badge[:material/check: holds]",
    "sense": ":orange-badge[:material/info: holds with a caveat]",
    "not": ":red-badge[:material/close: does not hold]",
    "elsewhere": ":gray-badge[:material/arrow_forward: on another page]",
}
MARK = ":blue-badge[:material/arrow_downward: the statement that you chose]"
PENDING = "pending"
PENDING_SIGN = ":gray-badge[:material/hourglass_empty: not checked yet]"
PLURAL_VERDICTS = {
    "holds": "hold",
    "sense": "hold with a caveat",
    "not": "do not hold",
    "elsewhere": "on another page",
    PENDING: "not checked yet",
}
LABELS = {"": "Overview"} | {page.path.stem: page.title for page in page_registry.find_pages()}


class StatementCard(NamedTuple):
    """One statement, in markdown."""

    section: str
    verdict: str
    text: str
    number: int = 0


class NoteResults(NamedTuple):
    """Results of a part of a note: its statements; the run in which all were looked up, where it is not a sample's; and
    the kinds of operations of a block beside the note's counts, where it has some."""

    cards: tuple[StatementCard, ...]
    about: str
    kinds: Mapping[str, Counter[str]]


def show(note: str) -> Mapping[str, Counter[str]]:
    """Show the note: the number of statements that hold as a picture, then each statement. Return the operations that
    it counts, by kind, where it counts some."""
    visitor().instead = INSTEAD
    names, summary = sections(note), st.empty()
    known = (ALL_STATEMENTS, DIFFERING_STATEMENTS, *range(1, len(names) + 1))
    labels = {ALL_STATEMENTS: "All sections", DIFFERING_STATEMENTS: "Only where the note and the run differ"}

    def label(choice: str | int) -> str:
        return labels[choice] if choice in labels else names[int(choice) - 1]

    chosen = st.selectbox(
        "Section", known, format_func=label, **url_state.widget("section", known, ALL_STATEMENTS, statement=None)
    )
    above = st.empty()
    with st.container(key="statements"):
        on_screen = [at for at in range(len(names)) if not isinstance(chosen, int) or at == chosen - 1]
        places = {names[at]: (at, st.empty()) for at in on_screen}
    parts = _parts(note)
    results = {part: read for part in parts if (read := run_cache.known_too("noted", (note, part))) is not None}

    sizes: dict[str, int] = {}

    def draw(part: str | None) -> None:
        """Draw the picture of all statements, and the sections of a part."""
        cards = [card for name in parts for card in (results[name].cards if name in results else _pending(note, name))]
        with summary:
            _summary(cards)
        for name, (at, place) in places.items():
            if part in (None, name):
                kinds = ("sense", "not") if chosen == DIFFERING_STATEMENTS else PLURAL_VERDICTS
                own = [card for card in cards if card.section == name and card.verdict in kinds]
                sizes[name] = len(own)
                _section(place, note, at, own, results[name].about if name in results else "")

    draw(None)
    if len(results) < len(parts):
        progress = above.container(key="checking")
    for part in sorted(parts, key=lambda part: part not in places):  # first what is on screen
        if part not in results:
            try:
                with progress:
                    read = partial(_read, note, part)  # its text is on screen: the runs of others go first
                    results[part] = run_cache.of_sample_too("noted", (note, part), read, READING, rank=BACKGROUND)
            except ValueError as error:  # a library that it is about is not installed
                for place in (summary, *(place for _, place in places.values())):
                    place.empty()
                above.info(texts.escape(f"This note can’t be checked here: {error}."))
                return {}
            draw(part)
    components.fold_on_phones(f"{note} {chosen}", sum(map(bool, sizes.values())))
    above.empty()
    if None not in results:
        return {}
    if results[None].about:
        above.caption(results[None].about)
    return results[None].kinds


def _parts(note: str) -> tuple[str | None, ...]:
    """Return the parts of a note that are read one at a time: its sections, or all at once, None, where it is about a
    library's model, whose run is not kept."""
    return (None,) if any(row.run.startswith(LIBRARY) for row in rows(note)) else sections(note)


def _rows(note: str, part: str | None) -> tuple[StatementRow, ...]:
    return tuple(row for row in rows(note) if part in (None, row.section))


def _pending(note: str, part: str | None) -> list[StatementCard]:
    """Return the statements of a part without verdicts."""
    return [
        StatementCard(row.section, PENDING, f"> {PENDING_SIGN} **{row.number}** {row.text}", row.number)
        for row in _rows(note, part)
    ]


def _section(place: DeltaGenerator, note: str, at: int, cards: list[StatementCard], about: str) -> None:
    """Draw a section in its place with these statements, and nothing where there are none."""
    if not cards:
        place.empty()
        return
    marked = marked_statement()
    with place.container():
        st.header(cards[0].section, anchor=f"section-{at + 1}")
        if about:
            st.caption(about)
        with st.expander(f"{len(cards)} statement{'s' * (len(cards) > 1)}", expanded=True):
            st.markdown("\n\n".join(mark(card.text, (note, card.number) == marked) for card in cards))


def ahead(note: str) -> None:
    """Read a note in the background, before any visitor asks for it. One that needs a library's model is skipped: its
    run takes 12 s of processor time and 300 MB."""
    for part in filter(None, _parts(note)):
        background_checks.beside(partial(_read_ahead, note, part))


def _read_ahead(note: str, part: str) -> None:
    read = partial(_read, note, part)
    run_cache.of_sample_too("noted", (note, part), read, READING, known=read())


def provider() -> Provider:
    """Return the provider of the notes' runs; those of samples are shared by all visitors."""
    from tracer.lessons.notes import reference_runs as made  # loads torch

    def make(name: str) -> made.ModelRun:
        run = made.RUNS[name]
        if not run.shipped:
            return made.small(name)
        model, trace = run_cache.in_line(run.model, run.options)
        return model, background_checks.check_now((run.model, run.options), trace)

    return made.provider(make)


def _read(note: str, part: str | None) -> NoteResults:
    """Read a part of a note, in the queue for the cores."""
    from tracer.lessons.notes import evaluate, torchvision_block_counts  # loads torch

    run, wanted = provider(), _rows(note, part)
    results = evaluate.results(wanted, run)
    about = {name: _about(name, run) for name in dict.fromkeys(row.run for row in wanted)}
    beside = about if len(set(about.values())) > 1 else {}
    cards = tuple(
        StatementCard(
            result.row.section, result.verdict, _text(result, beside.get(result.row.run, "")), result.row.number
        )
        for result in results
    )
    kinds = torchvision_block_counts.kinds(run) if part is None else {}
    return NoteResults(cards, "" if beside else next(iter(about.values())), kinds)


def place(row: StatementRow) -> dict[str, str]:
    """Return the position on the page that shows a statement: its claim on the run of the statement, else its
    section."""
    claim = next((where.removeprefix("claim ") for where in row.where if where.startswith("claim ")), "")
    if claim:
        shown = {"note": "claims", "claim": claim, "of": row.run}
    else:
        shown = {"note": row.note, "section": str(sections(row.note).index(row.section) + 1)}
    return shown | {"statement": f"{row.note}.{row.number}"}


def marked_statement() -> tuple[str, int] | None:
    """Return the note and the number of the statement that the address names, or None."""
    if "statement" not in st.query_params:
        return None
    known = {f"{note}.{row.number}": (note, row.number) for note in note_titles.TITLES for row in rows(note)}
    return known.get(url_state.choice("statement", list(known), ""))


def mark(quote: str, is_marked: bool) -> str:
    """Return a statement in markdown, with a mark above it where it is the one that the address names."""
    return f"> {MARK}\n>\n{quote}" if is_marked else quote


def _text(result: StatementResult, beside: str) -> str:
    """Return a statement in markdown, as a block of its own; `beside` is the run in which it was looked up."""
    lines = [f"{SIGNS[result.verdict]} **{result.row.number}** {result.row.text}"]
    lines += [f"**{texts.prose(_here(slip))}**" for slip in result.slips]
    once: dict[tuple[str, str], Finding] = {}
    for finding in result.findings:
        once.setdefault((finding.what, finding.measured), finding)
    for finding_link in once.values():
        if finding_link.latex:
            lines.append(f"$$\n{finding_link.latex}\n$$")
        start = "" if finding_link.what == "measured" else f"{finding_link.what}: "
        lines.append(f"{start}{texts.prose(finding_link.measured)}{link(finding_link, result.row.note)}")
    if beside:
        lines.append(f":small[:gray[{beside}]]")
    return "\n>\n".join("\n".join(f"> {part}" for part in line.split("\n")) for line in lines)


def _about(name: str, provider: Provider) -> str:
    """Return a sentence on the run in which statements were looked up, where no trained weights have its sizes and
    options."""
    from tracer.lessons.notes.reference_runs import RUNS, STANDARD  # loads torch

    name = "torchvision" if name == STANDARD else name
    run = RUNS[name]
    chosen = run.options if run.shipped else tuple(run.sizes.items())
    if not chosen or not texts.has_random_weights(provider(name)[1]):
        return ""
    sizes_text = ", ".join(f"{size} = {value}" for size, value in chosen)
    return f"A run of {run.model} with {sizes_text}, whose weights are random.{_lengths(name, provider)}"


def _lengths(name: str, provider: Provider) -> str:
    """Explain why a run's length differs from that of the same model with trained weights: each reads the caption that
    it wrote itself. Empty where the lengths agree, or are chosen."""
    from tracer.lessons.notes.reference_runs import RUNS  # loads torch

    model = RUNS[name].model
    if model not in RUNS:
        return ""
    own, trained = ({size.name: size for size in provider(which)[1].symbols} for which in (name, model))
    if "T" not in own or own["T"].value == trained["T"].value:
        return ""
    lengths = [f"T = {sizes['T'].value}{_sequence(sizes)}" for sizes in (own, trained)]
    return (
        f" Its text is the caption that it wrote for the sample, with {lengths[0]}. With the trained weights, the "
        f"caption has {lengths[1]}."
    )


def _sequence(sizes: Mapping[str, Symbol]) -> str:
    """Return the length of the sequence of patches and text, with a word in front; empty without patches."""
    return f" and S = N + T = {sizes['N'].value + sizes['T'].value}" if "N" in sizes else ""


def _here(slip: str) -> str:
    """Return an erratum of a note in the wording for that note's own page."""
    return re.sub(r"\b([Nn])ote \d{3}\b", lambda match: f"{'The' if match[1] == 'N' else 'the'} note", slip)


def link(finding: Finding, note: str = "") -> str:
    """Return a link to the place that shows it, if that page and model are available; empty for the note's own page."""
    page = "" if finding.page == "overview" else finding.page
    place = dict(finding.place)
    if (not finding.page or page not in LABELS) or not _is_offered(place.get("model", "")):
        return ""
    if page == "notes" and place.get("note") == note:
        return ""
    query, of = urlencode(place), f" of {place['model']}" if place.get("model") else ""
    if "claim" in place:
        return f" [→\u00a0This claim, measured on {place['of']}](notes?{query})"
    control = f", “{finding.control}”" if finding.control else ""
    return f" [→\u00a0{LABELS[page]}{of}{control}]({page or './'}{'?' if query else ''}{query})"


def _is_offered(model: str) -> bool:
    offered = limits().models(models.names())
    return not model or offered is None or model in offered


def _summary(cards: Iterable[StatementCard]) -> None:
    """Draw a square for each statement, coloured by its verdict, section by section."""
    cards = list(cards)
    counts = Counter(card.verdict for card in cards)
    legend = "".join(
        f'<li class="{verdict}"><b>{counts[verdict]}</b> {label}</li>'
        for verdict, label in PLURAL_VERDICTS.items()
        if counts[verdict]
    )
    grouped: dict[str, str] = {}
    for card in cards:
        grouped[card.section] = grouped.get(card.section, "") + f"<i class={card.verdict}></i>"
    squares = "".join(
        f'<a href="#section-{at}" title="{escape(section)}">{group}</a>'
        for at, (section, group) in enumerate(grouped.items(), 1)
    )
    st.html(
        f'<div class="verdicts"><p><b>{len(cards)}</b> statements</p><ul>{legend}</ul><div role="group" '
        f'aria-label="A mark for each statement, in order, by its verdict">{squares}</div></div>'
    )


def claims() -> tuple[str, ...]:
    """Return the names of the claims that statements of the notes make."""
    places = (place for note in note_titles.TITLES for row in rows(note) for place in row.where)
    return tuple(dict.fromkeys(place.removeprefix("claim ") for place in places if place.startswith("claim ")))


def titles() -> dict[str, str]:
    """Return the titles of the notes by number."""
    return {note: f"{title} ({len(rows(note))} statements)" for note, title in note_titles.TITLES.items()}
