"""The statements of the notes, each with its evidence."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

import streamlit as st

from pages import components
from pages.jobs import background_checks, run_cache, single_flight
from pages.jobs.single_flight import PLAIN_CONFIG, chart
from pages.state import page_registry, session
from pages.state.view import PLACES
from pages.state.visitor import model_name, visitor
from pages.ui import screen, texts, widgets
from tracer import models
from tracer.export.letters import letters_of, names_of
from tracer.export.rows import NOTE_TITLES, with_titles
from tracer.figures import attention_charts
from tracer.inputs.model_inputs import samples
from tracer.lessons.notes.statements import Finding, StatementRow, rows, sections
from tracer.record import Trace
from tracer.symbols.letters import OURS, PrintedNames
from tracer.utils.errors import limits
from tracer.utils.job_queue import BACKGROUND
from tracer.utils.lazy_import import lazy_import
from tracer.utils.text import percent

if TYPE_CHECKING:
    from streamlit.delta_generator import DeltaGenerator

    from tracer.attention import textbook_claims
    from tracer.lessons.notes import claims as note_claims
    from tracer.lessons.notes import evaluate, lookup, measurement, torchvision_block_counts
    from tracer.lessons.notes.claims import Measurement, attention
    from tracer.lessons.notes.evaluate import ClaimCard, Lines, StatementResult
    from tracer.lessons.notes.measurement import Provider
    from tracer.record import Symbol
else:  # imported when first used
    textbook_claims = lazy_import("tracer.attention.textbook_claims")
    note_claims = lazy_import("tracer.lessons.notes.claims")
    attention = lazy_import("tracer.lessons.notes.claims.attention")
    evaluate = lazy_import("tracer.lessons.notes.evaluate")
    lookup = lazy_import("tracer.lessons.notes.lookup")
    measurement = lazy_import("tracer.lessons.notes.measurement")
    torchvision_block_counts = lazy_import("tracer.lessons.notes.torchvision_block_counts")


# A note on screen: each of its statements with what ran, the measured number, and a verdict.
#
# Each section is read once for all visitors. Until it is, its statements are on screen without verdicts.

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
    """One statement, with its results where they are known, and the run in which it was looked up, where others of its
    section were looked up in another one."""

    row: StatementRow
    result: StatementResult | None = None
    beside: str = ""

    @property
    def verdict(self) -> str:
        return PENDING if self.result is None else self.result.verdict


class NoteResults(NamedTuple):
    """Results of a part of a note: its statements; the run in which all were looked up, where it is not a sample's; the
    kinds of operations of a block beside the note's counts, where it has some; and what each run's lines name."""

    cards: tuple[StatementCard, ...]
    about: str
    kinds: Mapping[str, Counter[str]]
    names: Mapping[str, PrintedNames]


def show_statements(note: str) -> Mapping[str, Counter[str]]:
    """Show the note: the number of statements that hold as a picture, then each statement. Return the operations that
    it counts, by kind, where it counts some."""
    visitor().instead = INSTEAD
    titles, summary = sections(note), st.empty()
    known = (ALL_STATEMENTS, DIFFERING_STATEMENTS, *range(1, len(titles) + 1))
    labels = {ALL_STATEMENTS: "All sections", DIFFERING_STATEMENTS: "Only where the note and the run differ"}

    def label(choice: str | int) -> str:
        return labels[choice] if choice in labels else titles[int(choice) - 1]

    chosen = widgets.choose(st.selectbox, "Section", "section", known, drop=["statement"], format_func=label)
    letters = widgets.choose_letters()
    if letters != OURS:
        st.caption(
            "What the runs say is in these letters, where they have such a tensor or size. The statements keep the "
            "words of the note."
        )
    above = st.empty()
    with st.container(key="statements"):
        on_screen = [at for at in range(len(titles)) if not isinstance(chosen, int) or at == chosen - 1]
        places = {titles[at]: (at, st.empty()) for at in on_screen}
    parts = _parts(note)
    results = {part: read for part in parts if (read := run_cache.known_result("noted", (note, part))) is not None}

    sizes: dict[str, int] = {}

    def draw(part: str | None) -> None:
        """Draw the picture of all statements, and the sections of a part."""
        cards = [card for name in parts for card in (results[name].cards if name in results else _pending(note, name))]
        names = {run: known for part in results.values() for run, known in part.names.items()}
        with summary:
            _summary(cards)
        for name, (at, place) in places.items():
            if part in (None, name):
                kinds = ("sense", "not") if chosen == DIFFERING_STATEMENTS else PLURAL_VERDICTS
                own = [card for card in cards if card.row.section == name and card.verdict in kinds]
                sizes[name] = len(own)
                quotes = [(card.row.number, _text(card, letters, names)) for card in own]
                _section(place, note, at, quotes, results[name].about if name in results else "")

    draw(None)
    if len(results) < len(parts):
        progress = above.container(key="checking")
    for part in sorted(parts, key=lambda part: part not in places):  # first what is on screen
        if part not in results:
            try:
                with progress:
                    read = partial(_read, note, part)  # its text is on screen: the runs of others go first
                    results[part] = run_cache.shared_result("noted", (note, part), read, READING, rank=BACKGROUND)
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
    return [StatementCard(row) for row in _rows(note, part)]


def _section(place: DeltaGenerator, note: str, at: int, quotes: list[tuple[int, str]], about: str) -> None:
    """Draw a section in its place with these statements, in markdown by their numbers, and nothing where there are
    none."""
    if not quotes:
        place.empty()
        return
    marked = marked_statement()
    with place.container():
        st.header(sections(note)[at], anchor=f"section-{at + 1}")
        if about:
            st.caption(about)
        with st.expander(f"{len(quotes)} statement{'s' * (len(quotes) > 1)}", expanded=True):
            st.markdown("\n\n".join(mark(text, (note, number) == marked) for number, text in quotes))


def ahead(note: str) -> None:
    """Read a note in the background, before any visitor asks for it. One that needs a library's model is skipped: its
    run takes 12 s of processor time and 300 MB."""
    for part in filter(None, _parts(note)):
        background_checks.beside(partial(_read_ahead, note, part))


def _read_ahead(note: str, part: str) -> None:
    read = partial(_read, note, part)
    run_cache.shared_result("noted", (note, part), read, READING, known=read())


def provider() -> Provider:
    """Return the provider of the notes' runs; those of samples are shared by all visitors."""

    def make(name: str) -> measurement.ModelRun:
        run = measurement.RUNS[name]
        if not run.shipped:
            return measurement.small(name)
        model, trace = run_cache.in_line(run.model, run.options)
        return model, background_checks.check_now((run.model, run.options), trace)

    return measurement.provider(make)


def _read(note: str, part: str | None) -> NoteResults:
    """Read a part of a note, in the queue for the cores."""
    run, wanted = provider(), _rows(note, part)
    results = evaluate.results(wanted, run)
    about = {name: _about(name, run) for name in dict.fromkeys(row.run for row in wanted)}
    beside = about if len(set(about.values())) > 1 else {}
    cards = tuple(StatementCard(result.row, result, beside.get(result.row.run, "")) for result in results)
    names = {name: names_of(run(name)[1]) for name in about}
    kinds = torchvision_block_counts.kinds(run) if part is None else {}
    return NoteResults(cards, "" if beside else next(iter(about.values())), kinds, names)


def place(row: StatementRow) -> dict[str, str]:
    """Return the position on the page that shows a statement: its claim on the run of the statement, else its
    section."""
    if claims_made := _claims_of(row):
        shown = {"note": "claims", "claim": claims_made[0], "of": row.run}
    else:
        shown = {"note": row.note, "section": str(sections(row.note).index(row.section) + 1)}
    return shown | {"statement": f"{row.note}.{row.number}"}


def marked_statement() -> tuple[str, int] | None:
    """Return the note and the number of the statement that the address names, or None."""
    if "statement" not in st.query_params:
        return None
    known = {f"{note}.{row.number}": (note, row.number) for note in NOTE_TITLES for row in rows(note)}
    return known.get(widgets.choice("statement", list(known), ""))


def mark(quote: str, is_marked: bool) -> str:
    """Return a statement in markdown, with a mark above it where it is the one that the address names."""
    return f"> {MARK}\n>\n{quote}" if is_marked else quote


def _text(card: StatementCard, text: str, names: Mapping[str, PrintedNames]) -> str:
    """Return a statement in markdown, as a block of its own, with what its run says in the letters of `text`."""
    result = card.result
    if result is None:
        return f"> {PENDING_SIGN} **{card.row.number}** {card.row.text}"
    letters = letters_of(names[card.row.run], text)
    lines = [f"{SIGNS[result.verdict]} **{result.row.number}** {result.row.text}"]
    lines += [f"**{texts.prose(_here(slip))}**" for slip in result.slips]
    once: dict[tuple[str, str], Finding] = {}
    for finding in result.findings:
        once.setdefault((finding.what, finding.measured), finding)
    for finding_link in once.values():
        if finding_link.latex:
            lines.append(f"$$\n{letters.line(finding_link.latex)}\n$$")
        start = "" if finding_link.what == "measured" else f"{finding_link.what}: "
        measured = letters.markdown(texts.prose(finding_link.measured))
        lines.append(f"{start}{measured}{statement_link(finding_link, result.row.note, text)}")
    if card.beside:
        lines.append(f":small[:gray[{card.beside}]]")
    return "\n>\n".join("\n".join(f"> {part}" for part in line.split("\n")) for line in lines)


def _about(name: str, provider: Provider) -> str:
    """Return a sentence on the run in which statements were looked up, where no trained weights have its sizes and
    options."""
    name = "torchvision" if name == measurement.STANDARD else name
    run = measurement.RUNS[name]
    chosen = run.options if run.shipped else (*run.sizes.items(), ("B", run.arguments["B"]))
    if not chosen or not texts.has_random_weights(provider(name)[1]):
        return ""
    sizes_text = ", ".join(f"{size} = {value}" for size, value in chosen)
    return f"A run of {run.model} with {sizes_text}, whose weights are random.{_lengths(name, provider)}"


def _lengths(name: str, provider: Provider) -> str:
    """Explain why a run's length differs from that of the same model with trained weights: each reads the caption that
    it wrote itself. Empty where the lengths agree, or are chosen."""
    model = measurement.RUNS[name].model
    if model not in measurement.RUNS:
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


def statement_link(finding: Finding, note: str = "", text: str = OURS) -> str:
    """Return a link to the place that shows it, in the letters of `text`, if that page and model are available; empty
    for the note's own page."""
    page = "" if finding.page == "overview" else finding.page
    place = dict(finding.place)
    if (not finding.page or page not in LABELS) or not _is_offered(place.get("model", "")):
        return ""
    if page == "notes" and place.get("note") == note:
        return ""
    place |= {"letters": text} if text != OURS and "letters" in PLACES[page] else {}
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
        section = card.row.section
        grouped[section] = grouped.get(section, "") + f"<i class={card.verdict}></i>"
    squares = "".join(
        f'<a href="#section-{at}" title="{escape(section)}">{group}</a>'
        for at, (section, group) in enumerate(grouped.items(), 1)
    )
    st.html(
        f'<div class="verdicts"><p><b>{len(cards)}</b> statements</p><ul>{legend}</ul><div role="group" '
        f'aria-label="A mark for each statement, in order, by its verdict">{squares}</div></div>'
    )


def _claims_of(row: StatementRow) -> list[str]:
    """Return the names of the claims that a statement makes."""
    return [where.removeprefix("claim ") for where in row.where if where.startswith("claim ")]


def claims() -> tuple[str, ...]:
    """Return the names of the claims that statements of the notes make."""
    return tuple(dict.fromkeys(claim for note in NOTE_TITLES for row in rows(note) for claim in _claims_of(row)))


def titles() -> dict[str, str]:
    """Return the titles of the notes by number."""
    return {note: f"{title} ({len(rows(note))} statements)" for note, title in NOTE_TITLES.items()}


# Claims of the notes as cards, measured on any model: numbers, verdicts, and things to try.

MEASURE_MESSAGE = "Measuring the claims"
MAX_WORD_LETTERS = 40
"""Letters of a word that is looked up."""
WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
COUNT = 1024
"""Pairs of random vectors whose products are spread."""
SLIDER = "d_k of the spread"
INAPPLICABLE_BADGE = ":gray-badge[:material/remove: does not apply to this model]"


def show_card(claims: Sequence[str]) -> None:
    """Show the one of `claims` that the URL names, on the note's own run; else a choice of model and the cards."""
    if "claim" in st.query_params and (name := widgets.choice("claim", claims, "")):
        show_claim(name)
        return
    trace, model, _ = run()
    cards = single_flight.of_queued(trace, "cards", partial(evaluate.measure_cards, model, trace), MEASURE_MESSAGE)
    with st.container(key="cards"):
        for card in evaluate.CARDS:
            st.header(card.title)
            st.markdown(_card_text(card, cards.claims, trace.model))
            for name, lines in cards.curves.items():
                if name in card.claims:
                    chart(trace, ("claim", name), partial(_picture, name, lines), alt=_alt(name, lines))
            if "soft_lookup" in card.claims:
                _lookup()
            if "spread" in card.claims:
                _spread()


def run() -> tuple[Trace, Any, dict[str, Any]]:
    """Return the measured run, its model and its inputs: the run on screen where it is of the chosen model, else that
    of its sample."""
    known = list(models.names())
    own = session.user_input().kind != "trace" and model_name() not in known
    known += [model_name()] if own else []
    chosen = widgets.choose(st.selectbox, "Model", "of", known, model_name() if model_name() in known else None)
    if chosen == model_name() and session.user_input().kind != "trace":
        model = session.model()
        return screen.trace(), model, session.inputs(model, session.user_input(), session.options())
    visitor().instead = INSTEAD
    pictures = samples(models.samples(chosen))
    name = next(iter(pictures), run_cache.OWN_SAMPLE)
    options = {"image": pictures[name]()} if pictures else {}
    return run_cache.of_sample(chosen, (), name), run_cache.load(chosen), options


def show_claim(name: str) -> None:
    """Show one claim on the runs of the notes that make it: its statements, the numbers, and links to the places that
    show it."""
    visitor().instead = INSTEAD
    known = list(dict.fromkeys(row.run for row in note_claims.statements(name)))
    chosen = widgets.choose(st.selectbox, "Run", "of", known, drop=["statement"])
    run_of_claim = run_cache.shared_result(
        "noted",
        ("claim", name, chosen),
        lambda: evaluate.measure_cards(*provider()(chosen), [name]),
        MEASURE_MESSAGE,
    )
    with st.container(key="cards"):
        st.header("One claim, measured")
        quotes = quote_statements(name, chosen, marked_statement())
        run = measurement.RUNS[chosen]
        st.markdown("\n>\n".join([*quotes, _line(run_of_claim.claims[name], run.model, run.options)]))
        for lines in run_of_claim.curves.values():
            picture = _picture(name, lines)
            st.plotly_chart(picture, config=PLAIN_CONFIG, alt=_alt(name, lines))
    address_of_all = urlencode({"note": "claims", "of": run.model})
    st.markdown(f"[→\u00a0All claims on {run.model}](notes?{address_of_all})")


def quote_statements(name: str, run: str, target: tuple[str, int] | None) -> list[str]:
    """Return the statements that make a claim on a run, in markdown, with a mark on the one that the address names."""
    return [
        mark(f"> *Note {row.note}, statement {row.number}.* {row.text}", (row.note, row.number) == target)
        for row in note_claims.statements(name)
        if row.run == run
    ]


def _line(measured: Measurement | str, model: str, options: run_cache.Options = ()) -> str:
    """Return the measurement of a claim with a link to where it happens, or why it does not apply to the model."""
    if isinstance(measured, str):
        return f"> {INAPPLICABLE_BADGE} {texts.escape(measured)}"
    link = statement_link(lookup.scene(model, options, measured))
    return f"> {SIGNS[measured.verdict]} {texts.prose(measured.text)}{link}"


def _card_text(card: ClaimCard, cards: Mapping[str, Measurement | str], model: str) -> str:
    lines = (_line(cards[name], model) for name in card.claims)
    return "\n>\n".join([f"> *Claim.* {texts.plain(with_titles(card.says))}", *lines])


AXES = {"far": "mean distance", "correction": "added over stream", "highway": "gradient that arrives"}
"""What is drawn of a claim."""


def _picture(name: str, lines: Lines):
    """Draw a claim block by block."""
    return attention_charts.by_block(lines, AXES[name], name == "correction")


def _alt(name: str, lines: Lines) -> str:
    numbers = "; ".join(f"{line} {', '.join(f'{value:.2g}' for value in values)}" for line, values in lines.items())
    return f"{AXES[name].capitalize()}, by block: {numbers}"


def _lookup() -> None:
    """Show a dictionary in which a misspelt word still retrieves the right entry (soft lookup)."""
    word = st.text_input(
        f"Look up a word, misspelt if you like, in `{attention.BOOK}`", "sqare", max_chars=MAX_WORD_LETTERS
    )
    shares, value = textbook_claims.lookup(attention.BOOK, word)
    best = max(shares, key=lambda key: shares[key])
    shares_text = ", ".join(f"{key} {percent(share)}" for key, share in shares.items())
    st.plotly_chart(attention_charts.shares(shares), key="shares", config=PLAIN_CONFIG, alt=f"Weights: {shares_text}")
    st.caption(f"{percent(shares[best])} of the weight goes to “{best}”; the mixture of the values is {value:.3f}.")


def _spread() -> None:
    """Draw the standard deviation of dot products over the dimension, with a slider."""
    st.session_state.setdefault(SLIDER, 64)
    width = st.select_slider("$d_k$", WIDTHS, key=SLIDER)
    plain, scaled = run_cache.shared_result("noted", "spread", _spreads, MEASURE_MESSAGE)
    at = WIDTHS.index(width)
    alt = (
        f"Standard deviation of products over d_k, from {WIDTHS[0]} to {WIDTHS[-1]}: plain {plain[0]:.2f} to "
        f"{plain[-1]:.2f}, divided by the root {scaled[0]:.2f} to {scaled[-1]:.2f}"
    )
    st.plotly_chart(attention_charts.spreads(WIDTHS, plain, scaled, width), key="spreads", config=PLAIN_CONFIG, alt=alt)
    st.caption(
        f"At $d_k$ = {width}: products of {COUNT:,} pairs of random vectors have a standard deviation "
        f"of {plain[at]:.2f}, "
        f"and $\\sqrt{{d_k}}$ = {width**0.5:.2f}; divided by it {scaled[at]:.2f}."
    )


def _spreads() -> tuple[list[float], list[float]]:
    spreads = [
        [textbook_claims.spread(width, scaled=scaled, count=COUNT) for width in WIDTHS] for scaled in (False, True)
    ]
    return spreads[0], spreads[1]


# Contrasts of the notes, run side by side: attention and convolution, layer norm and batch norm.

CONV_MESSAGE = "Running convolutions and norms beside the model"
COLUMNS = 5


def show_conv() -> None:
    """Draw a convolution's field beside a row of attention, and batch norm beside layer norm."""
    visitor().instead = INSTEAD
    known = [name for name in models.names() if models.samples(name)]
    name = widgets.choose(st.selectbox, "Model", "of", known)
    trace = run_cache.of_sample(name, (), run_cache.first_sample(name))
    try:
        contrasts = single_flight.of_queued(trace, "contrasts", partial(_measure_conv, name, trace), CONV_MESSAGE)
    except ValueError as error:
        st.info(texts.escape(f"{error}."))
        return
    with st.container(key="cards"):
        st.header("What a convolution sees, layer by layer, and what attention sees")
        maps = {f"{at} layer{'s' * (at > 1)}": cells for at, cells in enumerate(contrasts["convolution"], 1)}
        maps |= {"attention": contrasts["attention"]}
        draw = partial(attention_charts.grids, maps, min(COLUMNS, len(maps)), ("row of patches", "column"))
        chart(trace, "fields", draw)
        st.markdown(contrasts["receptive"])
        st.header("What a second picture in the batch changes")
        chart(trace, "norms", lambda: attention_charts.grids(contrasts["norms"], 2, ("token", "feature")))
        st.markdown(contrasts["batch_norm"])


def _measure_conv(name: str, trace: Trace) -> dict:
    model = run_cache.load(name)
    fields, beside = note_claims.vision.fields(trace), note_claims.vision.beside(model, trace)
    layer, batch = ((b - a).abs() for a, b in zip(beside.alone, beside.together, strict=True))
    shown = {"layer norm": layer, "batch norm": batch}
    claims = {name: note_claims.CLAIMS[name](model, trace) for name in ("receptive", "batch_norm")}
    return {
        "convolution": fields.convolution.tolist(),
        "attention": fields.attention.tolist(),
        "norms": {name: claim[:64, :64].tolist() for name, claim in shown.items()},
        **{name: f"> {SIGNS[claim.verdict]} {claim.text}" for name, claim in claims.items()},
    }
