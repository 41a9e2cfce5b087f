"""Sentences that several pages show, or that need some counting."""

import re
from collections.abc import Mapping, Sequence
from functools import partial

import streamlit as st

from pages.state.visitor import PhotoView, UserInput
from tracer import models
from tracer.attention import block_names, windows
from tracer.export import rows, verdicts
from tracer.export.rows import with_titles
from tracer.inputs.images import is_one_colour
from tracer.record import MOVED_TOKENS, AttentionRecord, Name, Step, Trace
from tracer.record.steps import mathematics
from tracer.symbols import notation
from tracer.utils.text import percent, scientific

# Markdown sentences as plain pieces for components; the browser shows each as text.

_PIECE = re.compile(
    r"\\(?P<escaped>[!-/:-@\[-`{-~])|\$(?P<maths>[^$]+)\$|`(?P<code>[^`]+)`|\*\*(?P<bold>.+?)\*\*|(?P<text>[^\\$`*]+|.)",
    re.DOTALL,
)

Piece = tuple[str, str]
"""(kind, text): "text", "bold", "code" or "maths", which is LaTeX."""


def pieces(markdown: str) -> list[Piece]:
    r"""Split a sentence into pieces: `**bold**`, code in backticks, `$maths$` and escaped signs; all else is plain
    text.

    `"grows as $d_k$"` gives `[("text", "grows as "), ("maths", "d_k")]`.
    """
    out: list[Piece] = []
    for match in _PIECE.finditer(markdown):
        kind = match.lastgroup or "text"
        text = match[kind]
        kind = "text" if kind == "escaped" else kind
        if kind == "text" and out and out[-1][0] == "text":
            text = out.pop()[1] + text
        out.append((kind, text))
    return out


WHAT = (
    "**Tensor tracer** runs a real model on your photo or text. It shows the shape and the equation of every tensor "
    "on the way, and checks each equation against this run."
)
"""What this app is, in one sentence."""
AFTER = 4
"""Ops between softmax and values that a page names, and layers that differ in them."""
FLOPS_NOTE = (
    "Matrix products, convolutions and fused attention, at 2 FLOP per multiply-add. "
    "Norms, softmax and sums are not counted."
)


def uncounted_text(trace: Trace) -> str:
    """Return a sentence on the operations that the FLOPs of a run lack."""
    ops_text = rows.uncounted_ops(trace)
    return (
        f"{ops_text[0].upper()}{ops_text[1:]}. They may multiply matrices, but there is no formula for how many FLOPs "
        "that takes."
    )


_LIVE = re.compile(
    r"""(?P<link>\](?=[(\[:])) | (?P<picture>(?<=!)\[) | (?P<mail>@)
    | (?P<directive>:(?=//|[\w/+-]+[:\[])) | (?P<site>(?<=www)\.) | (?P<heading>^\#)""",
    re.VERBOSE | re.MULTILINE,
)
"""What would be a link, a picture, a colour, an icon or a heading in markdown; not bold, code and mathematics."""


def plain(text: str) -> str:
    """Return a text out of a file for markdown: without links and images, and with its mathematics inline."""
    parts = re.split(r"(\$[^$]+\$|`[^`]+`)", text)
    return "".join(_maths(part) if at % 2 else _LIVE.sub(r"\\\g<0>", part) for at, part in enumerate(parts))


def _maths(part: str) -> str:
    """Return mathematics or code unchanged; mathematics that can't be displayed with its signs escaped."""
    if part.startswith("$"):
        try:
            mathematics(part[1:-1], "a text")
        except ValueError:
            return escape(part)
    return part


def escape(sentence: str) -> str:
    """Return a sentence with a visitor's text for markdown: no sign in it is markup. `literal` escapes more."""
    sentence = re.sub(r"([\\`*$~\[\]<#|]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))", r"\\\1", sentence)
    return re.sub(r":(?=[\w/+-]+:)", r"\:", sentence)


def literal(label: str) -> str:
    """Return a label of a widget unchanged: none of its signs is markdown."""
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", label)


def prose(text: str) -> str:
    """Return the sentences of a step for markdown: sizes with a subscript are set as mathematics, where they are not
    already, and notes have their titles."""

    def size(match: re.Match) -> str:
        name = notation.latex(match[2])
        return rf"$\sqrt{{{name}}}$" if match[1] else f"${name}$"

    parts = re.split(r"(\$[^$]+\$|`[^`]+`)", plain(with_titles(text)))
    return "".join(part if at % 2 else re.sub(r"(√?)\b(d_k|d_ff)\b", size, part) for at, part in enumerate(parts))


OUTSIDE_NOTE = "computed outside PyTorch, where the tracer sees nothing"


def in_the_code(names: Sequence[Name]) -> str:
    """Return the names in the code for the letters of an equation that no step computes; `.T` is a transposed
    matrix."""
    known = [name for name in names if not name.of.startswith("constant ")]
    code_names = [f"${name.symbol}$ is `{name.of.partition(' ')[2]}{'.T' * name.transposed}`" for name in known]
    code_names += [
        f"${name.symbol}$ is {OUTSIDE_NOTE if name.outside else 'a constant'}" for name in names if name not in known
    ]
    return f"In the code, {', '.join(code_names)}."


def title(model: str) -> str:
    """Return the model's inputs and outputs as a headline."""
    takes = models.takes(model) or ("input",)
    return f"Every step from {' and '.join({'image': 'photo'}.get(kind, kind) for kind in takes)} to answer"


def strange(user_input: UserInput, model: str) -> str:
    """Return a warning for the answer where a model that learned from drawings sees a visitor's photo; else an empty
    text."""
    synthetic = models.samples(model) in ("scenes", "surfaces")
    if not (synthetic and user_input.own and user_input.trace is None and models.card(model)):
        return ""
    return plain(
        f"{model} was {models.origin(model)}. Don’t rely on its answer for a photo that looks like none of these."
    )


def one_colour(view: PhotoView | None) -> str:
    """Return a warning for the answer where the pixels that the model gets are all alike; else an empty text."""
    if view is None or not is_one_colour(view.image):
        return ""
    red, green, blue = (int(level) for level in view.image.convert("RGB").resize((1, 1)).getpixel((0, 0)))
    name = "black" if max(red, green, blue) < 64 else "white" if min(red, green, blue) > 191 else "alike"
    why = " A file that uses few of its 16 bits looks like that." if name == "black" else ""
    return (
        f"The model gets a picture of one colour: all its pixels are nearly {name} (red {red}, green {green}, blue "
        f"{blue} of 255).{why} Its answer is about that, and says nothing of what the photo shows."
    )


def crop_text(view: PhotoView) -> str:
    """Return a sentence on the part of the photo that the model sees."""
    photo = f"{view.photo.width} × {view.photo.height} pixels"
    left, top, right, bottom = view.crop.box
    if (right - left, bottom - top) == view.photo.size:
        return f"All of the photo, {photo}, in {view.rows} × {view.columns} patches."
    part = f"{right - left:.0f} × {bottom - top:.0f}"
    return f"The photo has {photo}. The model gets the {part} pixels in the middle; the dimmed part is cut off."


def size_text(view: PhotoView) -> str:
    """Return a sentence on the size at which the model sees the photo."""
    side = f"{view.image.height // view.rows} × {view.image.width // view.columns}"
    return (
        f"{view.image.height} × {view.image.width} pixels, that is {view.rows} × {view.columns} patches of {side}. "
        "They are counted in reading order."
    )


def too_large(record: AttentionRecord) -> str:
    """Return the reason why the attention of a run is not drawn."""
    return (
        f"This attention has {record.queries:,} queries × {record.keys:,} keys, too many to draw. In Python, "
        f"`trace.attention(layer={record.layer}, query=0)` gives one row of it."
    )


def one_query(record: AttentionRecord) -> str:
    """Return the reason why one row of an attention is drawn at a time."""
    return (
        f"This attention has {record.queries:,} queries × {record.keys:,} keys, too many to send at once. So the map "
        "shows one query at a time, which is one row."
    )


def attention_problems(trace: Trace) -> list[str]:
    """Return the reasons why attention of the run can't be shown."""
    problems = {}
    for record in trace.attentions:
        if record.problem:
            problems.setdefault((record.part, record.problem), []).append(record.layer)
    return [
        plain(
            f"The attention of {_blocks(trace, part, layers)}{f' of {part!r}' if part else ''} can’t be shown: "
            f"{problem}."
        )
        for (part, problem), layers in list(problems.items())[:AFTER]
    ]


def beside(trace: Trace, records: Sequence[AttentionRecord]) -> list[str]:
    """Return notes on attention besides its weights: later changes of them, and the tower that they belong to."""
    sentences, named = off_photo(trace), partial(_blocks, trace, records[0].part if records else "")
    if parted := [layer for layer, record in enumerate(records) if windows(trace, record) > 1]:
        counts = sorted({windows(trace, records[layer]) for layer in parted})
        many = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
        sentences.append(
            f"In {named(parted)}, tokens attend inside windows, {many} in all. The map shows the first window."
        )
    for after in list(dict.fromkeys(record.after for record in records if record.after))[:AFTER]:
        which = named([layer for layer, record in enumerate(records) if record.after == after])
        sentences.append(
            f"In {which}, the model changed the weights between the softmax and the product with the values "
            f"({', '.join(after[:AFTER])}). The map shows the output of the softmax."
        )
    if channels := [layer for layer, record in enumerate(records) if record.over == "channels"]:
        sentences.append(f"In {named(channels)}, queries and keys are channels and not tokens.")
    if sinks := [layer for layer, record in enumerate(records) if any(name == "cat" for name, _ in record.chain)]:
        sentences.append(f"In {named(sinks)}, a part of each row goes to no key (a sink) and is not shown.")
    return [plain(sentence) for sentence in sentences]


def off_photo(trace: Trace) -> list[str]:
    """Return the note of a run whose tokens can't be laid over its photo; none for all others."""
    return [note for note in trace.notes if note == MOVED_TOKENS]


def _blocks(trace: Trace, part: str, layers: Sequence[int]) -> str:
    """Return blocks by their numbers, counted from 1, or by their names where those say more."""
    names = block_names(trace, part)
    if len(layers) == 1 or names[-1] != f"block {len(names)}":
        return "; ".join(names[layer] for layer in layers)
    if list(layers) == list(range(layers[0], layers[-1] + 1)):
        return f"blocks {layers[0] + 1} to {layers[-1] + 1}"
    return "blocks " + ", ".join(str(layer + 1) for layer in layers)


def has_random_weights(trace: Trace) -> bool:
    """Return whether a run's weights are random: its answers then mean nothing."""
    return "random weights" in trace.weights


def about(trace: Trace) -> str:
    """Return the model of a run and its training data in words; empty for a run without that record."""
    sentences = [with_titles(models.summary(trace.model))] if trace.model in models.names() else []
    if has_random_weights(trace):
        sentences.append(
            f"**It has learned nothing.** Its weights are {trace.weights}, so its answer means nothing. Its shapes "
            "and equations come from its code, and are checked on these weights."
        )
    elif trace.weights:
        sentences.append(f"Its weights: {trace.weights}.")
    return plain(" ".join(sentences))


def card(facts: Mapping | None) -> str:
    """Return the model's classes and scores, from the card of its weights; empty without one."""
    facts, sentences = facts or {}, []
    if classes := facts.get("classes"):
        sizes = facts.get("sizes", {})
        sentences.append(
            f"This model knows only {len(classes)} classes: {', '.join(classes)}. "
            f"It sees {sizes.get('H')} × {sizes.get('W')} pixels, so fine detail is lost before it starts. Whatever "
            "you show it, it answers with one of these classes."
        )
    if says := facts.get("says"):
        figures = {name: fact for name, fact in facts.items() if isinstance(fact, (int, float))}
        sentences.append(says.format_map({name: _figure(figure) for name, figure in figures.items()}))
    return " ".join(sentences)


def _figure(value: float) -> str:
    """Return a count, or a share in percent, or another figure unchanged."""
    if isinstance(value, int):
        return f"{value:,}"
    return percent(value) if value <= 1 else f"{value:g}"


def unseen(step: Step) -> str:
    """Return the operands that the check can't test, with a space in front; empty where it tests all of them."""
    if step.verdict != "verified" or not step.unseen:
        return ""
    names = " or ".join(f"${name}$" for name in step.unseen)
    return (
        f" This check does not test {names}: without it, or with its numbers in another order, the result would be "
        "the same."
    )


def proof(step: Step) -> str:
    """Describe the comparison for a step, its agreement, and the tolerance."""
    if step.verdict == "pending":
        return "Not verified yet: the equation of this step has not been executed on the traced tensors."
    if step.recorded:
        return f"{prose(step.replayed)}"
    if step.refuted:
        return f"**Refuted.** {prose(step.replayed)}"
    if step.error is None:
        reason = f" {prose(step.note)}" if step.note else ""
        return f"Not executed for this step.{reason}"
    if step.verdict == "refuted":
        where = f" The first wrong cell is {list(step.wrong)}." if step.wrong is not None else ""
        return (
            "**Refuted.** The equation, executed on the traced tensors, does not give what the model computed: the "
            f"largest difference is {scientific(step.error)} of the largest value, more than rounding in "
            f"{step.dtype} explains.{where}"
        )
    words = f"**{verdicts.words(step).capitalize()}.**"
    further = f" {prose(step.replayed)}" if step.replayed else ""
    if step.error == 0:
        return f"{words} The equation, executed on the traced tensors, gives exactly the model’s values.{further}"
    return (
        f"{words} The equation, executed on the traced tensors, differs from the model’s values by at most "
        f"{scientific(step.error)} of the largest value, and in each cell by no more than rounding in {step.dtype} "
        f"explains.{further}"
    )


def elsewhere(steps: Sequence[Step]) -> str:
    """Return how many of the printed equations are verified on other runs, too, with a space in front; empty where none
    was tried."""
    known = sum(step.verdict == "verified" and step.checked > 0 for step in steps)
    return f" As printed, {known} of them are verified on other runs, too." if known else ""


# Tables of a page: a short one prints and is read out row by row.

MAX_FULL_ROWS = 60
"""Rows of a table that stands there whole; a longer one scrolls in a box of its own, which prints nothing."""


def show(columns: Mapping[str, Sequence], alt: str | None = None) -> None:
    """Draw a table of columns by name; texts are displayed unchanged."""
    if any(len(values) > MAX_FULL_ROWS for values in columns.values()):
        st.dataframe(columns, hide_index=True, alt=alt)
        on_paper(columns, alt)
    else:
        _whole(columns, alt)


def on_paper(columns: Mapping[str, Sequence], alt: str | None = None) -> None:
    """Draw the printed form of a table that scrolls: its first rows, and their number."""
    count = max(map(len, columns.values()))
    with st.container(key=_key("paper", columns, alt)):
        _whole({name: values[:MAX_FULL_ROWS] for name, values in columns.items()}, alt)
        if count > MAX_FULL_ROWS:
            st.caption(f"These are the first {MAX_FULL_ROWS} of {count:,} rows.")


def _whole(columns: Mapping[str, Sequence], alt: str | None) -> None:
    shown = {
        name: [_text(value) if isinstance(value, str) else value for value in values]
        for name, values in columns.items()
    }
    with st.container(key=_key("table", columns, alt)):
        st.table(shown, hide_index=True, alt=alt)


def _text(cell: str) -> str:
    """Return a cell unchanged: none of its signs is markup."""
    return re.sub(r"([\\`*$~<#])", r"\\\1", plain(cell))


def _key(kind: str, columns: Mapping[str, Sequence], alt: str | None) -> str:
    return f"{kind} {alt or ' '.join(columns)}".replace(" ", "-")
