"""Search over everything that the app can show of a run."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import streamlit as st

from pages import components
from pages.jobs import single_flight
from pages.sections import note_statements
from pages.state import page_registry, session, url_state
from pages.state.view import PLACES, split_changes
from pages.state.visitor import HIDING, Key, model_name
from tracer.attention import layers
from tracer.export.rows import NOTE_TITLES
from tracer.figures import equations
from tracer.lessons.notes import statements
from tracer.lessons.notes.statements import StatementRow
from tracer.record import CHANGED_SUFFIX, AttentionRecord, Trace
from tracer.symbols import notation
from tracer.utils import files
from tracer.utils.lazy_import import lazy_import
from tracer.utils.text import sentence_math, shape_numbers, symbol_text

if TYPE_CHECKING:
    from tracer.attention import head_effects
    from tracer.changes import of_inputs, options
    from tracer.changes.options import Option
else:  # imported when first used
    head_effects = lazy_import("tracer.attention.head_effects")
    of_inputs = lazy_import("tracer.changes.of_inputs")
    options = lazy_import("tracer.changes.options")


# Index of everything that can be found: steps, symbols, terms, operations, pages and lessons, each with the place that
# shows it.
#
# Nothing is written for the search alone but `ALIASES`: titles, reasons and meanings are those that the pages show.

ALIASES = {
    "query": "q_proj QKV in_proj c_attn",
    "key": "k_proj QKV in_proj c_attn",
    "value": "v_proj QKV in_proj c_attn",
    "packed": "QKV in_proj c_attn",
    "scores": "dot product similarity divide by root d sqrt d_k temperature scale logits of attention QK^T",
    "weights": "softmax probabilities attention map output_attentions attn_weights",
    "context": "weighted sum of values AV",
    "output": "out_proj c_proj projection",
    "residual": "skip connection shortcut add",
    "norm1": "layernorm rmsnorm normalisation pre-norm",
    "norm2": "layernorm rmsnorm normalisation pre-norm",
    "activation": "nonlinearity gelu relu",
    "hidden": "feed forward ffn fc1 linear",
    "position": "positional encoding embedding order",
    "patches": "unfold patchify conv stem",
    "embedding": "token embedding lookup wte",
    "mask": "causal triangle minus infinity -inf",
}
"""What learners and libraries call a step, by the last part of its id."""
PAGES = {
    "attention": "attention map heads rollout output_attentions is None need_weights=False returns no weights "
    "what if experiment shuffle positions patches hide patches switch off no division by root d_k "
    "is the map what it used",
    "mask": "causal mask padding triangle why can't it see the future",
    "operations": "aten ops kernels flash attention sdpa scaled_dot_product_attention fused memory FLOPs",
    "trace": "steps equations shapes walk through",
    "tokens": "tokenizer bpe pieces subwords",
    "positions": "sinusoidal rope rotary alibi relative",
    "loss": "cross entropy perplexity gradient",
    "sizes": "parameters how many cost memory quadratic",
    "compare": "difference between two models or runs",
    "": "film answer photo classification",
}
"""What learners look for on a page, beside its title."""
MACROS = {
    "sqrt": "square root √ sqrt",
    "frac": "divided by division over",
    "odot": "times elementwise",
    "infty": "infinity",
}
"""Signs of equations in words."""
PLACES_OF_NOTES = PLACES["notes"]
OPTION_WORDS = {
    "zero": "even same weight for all",
    "unscale": "without no square root sqrt scale temperature variance",
    "bidirectional": "remove open causal future",
}
"""What learners call the changes of all heads of a block, by the name of the change."""
CHANGES_THE_RUN = "A choice of “What if?”: the page opens with this change."
MOST_HEADS = 200
"""Heads that can be found."""
MAX_LETTERS = 400
"""Letters of a text that are searched."""


def search_entries(trace: Trace | None, runs_again: bool = True) -> list[dict[str, Any]]:
    """Return everything that can be found: its kind, its title, a text with details, words that it is found by, and its
    address. A run that `runs_again` can be changed, which a saved one can't."""
    results = [*_pages(), *_lessons()]
    if trace is None:
        return results
    return [*_run(trace), *(_experiments(trace) if runs_again else ()), *results]


def _entry(kind: str, title: str, text: str, words: str, address: str, latex: str = "") -> dict[str, Any]:
    shown = _plain(text)[:MAX_LETTERS]
    return {"kind": kind, "title": title, "text": shown, "words": words, "to": address, "latex": latex}


def _address(page: str, **place: object) -> str:
    query = urlencode({**url_state.of(page), **place})
    return f"{page or './'}{'?' if query else ''}{query}"


def _plain(text: str) -> str:
    """Return a text without the signs of Markdown, and LaTeX in it as plain letters."""
    text = re.sub(r"\$([^$]*)\$", lambda match: sentence_math(match[1]), text)
    text = re.sub(r"[*`]|\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"\\([^\w\s])", r"\1", text)


def _title(row: StatementRow) -> str:
    """Return a statement as plain text; one of symbols alone has the name of its section in front."""
    words = re.findall(r"[A-Za-z]{3,}", re.sub(r"\$[^$]*\$", "", row.text))
    section = re.sub(r"^(Step \w+|[IVX]+[.\d]*|[\d.]+)\s(·\s)?", "", row.section)
    return _plain(row.text) if words else f"{section}: {_plain(row.text)}"


def _run(trace: Trace) -> Iterator[dict[str, Any]]:
    known = set()
    base = url_state.of("trace")
    for step in trace.steps:
        tail = step.id.rsplit(".", 1)[-1]
        block = f" (block {step.layer + 1})" if step.layer is not None else ""
        first = f"{step.stage} {step.title}" not in known
        known.add(f"{step.stage} {step.title}")
        signs = " ".join(
            MACROS.get(name, name) for name in sorted(set(re.findall(r"\\(sqrt|frac|odot|infty)", step.latex)))
        )
        named = " ".join(sorted(set(re.findall(r"\\operatorname\{(\w+)", step.latex))))
        words = f"{step.id} {symbol_text(step.symbol)} {signs} {named} {ALIASES.get(tail, '')}" if first else step.id
        query = urlencode({**base, "step": step.id})
        why, latex = (step.why, step.latex) if first else ("", "")
        yield _entry("step", f"{step.title}{block}", why, words, f"trace?{query}", latex)
    for size in trace.symbols:
        at = next((step for step in trace.steps if size.name in " ".join(step.symbolic)), None)
        place = _address("trace", step=at.id) if at else _address("trace")
        title = f"{size.name} = {size.value}"
        yield _entry("symbol", title, size.meaning, size.name.replace("_", " "), place, notation.latex(size.name))
    for sign, meaning in equations.signs(step.latex for step in trace.steps):
        yield _entry("term", symbol_text(sign), meaning, "", _first_with(trace, sign), sign)
    for word, meaning in equations.words(step.stage for step in trace.steps):
        of = {term: stages for term, stages, _ in equations.WORDS}[word]
        at = next((step for step in trace.steps if step.stage in of), trace.steps[0])
        yield _entry("term", word, meaning, "", _address("trace", step=at.id))
    yield from _heads(trace)
    counts: dict[str, list[int]] = {}
    for op in trace.ops:
        counts.setdefault(op.op, []).append(op.index)
    for name, places in counts.items():
        times = "runs once" if len(places) == 1 else f"runs {len(places)} times"
        shape = shape_numbers(trace.ops[places[0]].outputs[0].shape) if trace.ops[places[0]].outputs else ""
        text = f"{times}; the first returns {shape}" if shape else times
        yield _entry("operation", name, text, "op aten call", _address("operations", zoom="ops", op=places[0]))


def _heads(trace: Trace) -> Iterator[dict[str, Any]]:
    """Yield each head of the first tower, with the page that shows its map."""
    records = layers(trace, trace.attentions[0].part) if trace.attentions else []
    heads = [(block, head) for block, record in enumerate(records, 1) for head in range(record.heads)]
    for block, head in heads[:MOST_HEADS]:
        place = _address("attention", block=block, head=head)
        yield _entry("head", f"Head {head + 1} of block {block}", "Its attention map.", "attention", place)


def _experiments(trace: Trace) -> Iterator[dict[str, Any]]:
    """Yield the choices of the panels "What if?", each with the page that then shows the run with that change."""

    def entry(page: str, title: str, changes: str, words: str, **place: object) -> dict[str, Any]:
        there = url_state.view_of(page).with_changes(split_changes(changes))
        query = there.to_url() | {name: str(value) for name, value in place.items()}
        return _entry("what if", title, CHANGES_THE_RUN, f"what if {words}", f"{page or './'}?{urlencode(query)}")

    for option in options.of_model(trace):
        if not option.line.endswith(CHANGED_SUFFIX) and option.change.name != "shuffle":  # which comes next
            yield entry("", option.title, option.text, "positional encoding order switch off")
    shuffled = (each for step in trace.steps if step.layer is None for each in options.of_step(trace, step))
    if option := next((each for each in shuffled if each.change.name == "shuffle"), None):
        what = "patches" if trace.picture is not None else "tokens"
        words = "what happens if patches tokens order permute reorder positions"
        yield entry("", f"Shuffle the {what}", option.text, words)
    yield from _hidden_patches(trace, entry)
    if causal := options.causal_everywhere(trace):
        words = "close triangle later tokens why experiment"
        yield entry("mask", "Try a causal mask on this run", causal, words)

    def of_attention(option: Option, record: AttentionRecord, words: str, **place: object) -> dict[str, Any]:
        block = f"{record.part} block {record.layer + 1}".strip()
        tower = {"tower": record.part} if record.part else {}
        title = f"{option.title} ({block})"
        return entry("attention", title, option.text, words, **tower, block=record.layer + 1, **place)

    for record in trace.attentions:
        for option in options.of_attention(trace, record):
            yield of_attention(option, record, OPTION_WORDS.get(option.change.name, ""))
    for block, title in options.blocks(trace).items():
        for option in options.of_block(trace, block):
            yield entry("", f"{option.title} ({title[:1].lower()}{title[1:]})", option.text, "switch off ablate remove")
    heads = [(record, head) for record in trace.attentions for head in range(record.heads)]
    for record, head in heads[:MOST_HEADS]:
        for option in options.of_attention(trace, record, head):
            if option.change.name == "drop_heads":
                yield of_attention(option, record, "switch a head off ablate remove without", head=head)


def _hidden_patches(trace: Trace, entry: Callable[..., dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the experiment that hides the patches that the model attended to most, where the run has it."""
    if trace.picture is None or trace.result.get("kind") != "classes":
        return
    try:
        attended = head_effects.rank_by_attention(trace)
    except ValueError:
        return
    hidden = f"image={of_inputs.Hide(attended[: max(1, len(attended) // of_inputs.HIDDEN_SHARE)])}"
    words = "occlude cover remove mask out photo what it looked at"
    yield entry("", "Hide the patches that it attended to most", hidden, words)
    yield _entry(
        "what if",
        "Is attention an explanation? Hide what it looked at, and other patches",
        "The answer without the patches that it looked at, without the central ones, and without random ones.",
        "attention explanation faithful map hide patches compare centre random experiment",
        _address("", panel=HIDING),
    )


def _first_with(trace: Trace, sign: str) -> str:
    form = next((form for form, shown, _ in equations.GLOSSARY_SIGNS if shown == sign), None)
    word = re.sub(r"\\operatorname\{(.*?)\}.*", r"\1", sign)
    at = next((step for step in trace.steps if (form and form in step.latex) or word in step.latex), trace.steps[0])
    return _address("trace", step=at.id)


@cache
def _docstring(path) -> str:
    return ast.get_docstring(files.parse(path.read_text(encoding="utf-8"))) or ""


def _pages() -> Iterator[dict[str, Any]]:
    for number, page in enumerate(page_registry.find_pages()):
        name = page.path.stem if number else ""
        kind = "lesson" if page.heading else "page"
        yield _entry(kind, page.title, _docstring(page.path), PAGES.get(name, ""), _address(name))


def _lessons() -> Iterator[dict[str, Any]]:
    titles_seen = set()
    without_place = {name: value for name, value in url_state.of("notes").items() if name not in PLACES_OF_NOTES}
    for note, title in NOTE_TITLES.items():
        yield _entry("lesson", title, "Its statements beside what ran", "note", _address("notes", note=note))
        for row in statements.rows(note):
            place = note_statements.place(row)
            key = note, place.get("claim"), place.get("section"), row.text
            if key not in titles_seen:
                titles_seen.add(key)
                text, claim = f"{title}: {row.section}", place.get("claim", "")
                yield _entry("statement", _title(row), text, claim, f"notes?{urlencode({**without_place, **place})}")


# Toolbar of every page, with the search, whose index comes when it is first opened.


@st.fragment
def show() -> None:
    """Draw the toolbar. The index of the current screen is sent on request, and then the browser searches."""
    run = session.current_run()
    unknown = f"no run of {model_name()}"  # as the toolbar of a page is drawn before its run is there
    name = single_flight.name(run) if run else unknown
    wanted = (st.session_state.get(Key.TOOLS) or {}).get("wanted")
    entries = search_entries(run, session.user_input().kind != "trace") if wanted in (name, unknown) else None
    components.tools(url_state.lacks(), {"name": name, "entries": entries})
