"""Attention mask of this run, its effect on one row of scores, and a perturbation test that does not know the
mask."""

from functools import partial

import streamlit as st

from pages import components
from pages.sections import mask_controls, what_if
from pages.state import session, url_state
from pages.ui import page_frame, screen, texts, widgets
from tracer.attention import layers, parts, places, segments
from tracer.figures import mask_payload
from tracer.figures.drawing import can_draw
from tracer.utils.text import percent

TITLE = "Mask"
ICON = ":material/grid_on:"
ORDER = 4
PLACES = ("tower", "block", "window", "query", "head", "token")
WHY_TEXT_NEEDS_A_MASK = (
    "Generating text needs a causal mask, because a token must not see the word that it predicts. The patches of a "
    "photo have no “before”, and none of them is to be predicted from those before it."
)
"""What masks are for, where a model of photos has none."""
WHY_CAUSAL_OVER_PATCHES = (
    "A word must not see the words that it predicts, so the mask closes later tokens. Patches need no such mask: they "
    "get it too because picture and words are one sequence here. The prefix mask leaves the patches open to each other."
)
"""Why a mask over patches and words is causal."""
CAUSAL = "nanogpt"
"""One of our models whose mask is causal, and can be changed."""


def _layer(records) -> int:
    """Return the displayed layer's mask; let the visitor choose a layer where they have different kinds of mask."""
    kinds = [record.mask for record in records]
    known = range(1, len(kinds) + 1)
    if len(set(kinds)) < 2:
        widgets.check(block=known)
        return 0
    named = [f"block {layer + 1}: {'windows' if kind == 'windows' else 'no mask' if kind == 'none' else kind}"
             for layer, kind in enumerate(kinds)]  # fmt: skip
    return widgets.choose(st.selectbox, "Attention of", "block", known, format_func=lambda at: named[at - 1]) - 1


def _window(trace, layer: int, part: str) -> int:
    """Return the index of the displayed window in the batch: a choice that starts at the first window with a masked
    pair."""
    if layers(trace, part)[layer].mask != "windows":
        return 0
    count = trace.attention(layer, query=0, part=part).shape[0]
    if count < 2:
        return 0
    shut = (item for item in range(count) if not masks.visible(trace, layer, part=part, batch=item).all())
    first = next(shut, 0)
    return widgets.choose(st.selectbox, "Window", "window", range(count), first, format_func=widgets.from_one)


def _unmasked_part() -> str:
    """Return the largest part of the model that has no mask, in a word."""
    kinds = [record.mask for record in layers(trace, part)]
    if kinds[layer] == "windows":
        return "window"
    return "block" if len(set(kinds)) > 1 else "tower" if len(parts(trace)) > 1 else "model"


def describe_lonely_cls(trace, part: str) -> str:
    """Return a sentence on a mask that leaves CLS, the first token, only itself: in the block on screen, or in all, and
    then on the part of the input that reaches the answer."""
    start = "CLS is the first token, so this mask leaves it only itself"
    records = layers(trace, part)
    rows = [masks.visible(trace, at, part=part)[0] for at, record in enumerate(records) if not record.problem]
    if len(rows) < len(records) or not all(int(row.sum()) == 1 and row[0] for row in rows):
        return f"{start}: in this block, nothing of the other tokens reaches it."
    reads_cls = any(step.id == "cls" for step in trace.steps) and len(parts(trace)) == 1
    scores_alone = all(".attention.scores=" in change for change in trace.changes)
    what = "the photo" if trace.picture is not None else "the other tokens"
    if reads_cls and scores_alone:
        return f"{start} in every block: the answer does not depend on {what}."
    return f"{start} in every block: through attention, nothing of the other tokens reaches it."


def picture(cells, kind: str) -> None:
    """Draw the mask with its name, beside the row of scores of a query that is chosen in the browser."""
    unmasked = all_open and cells.numel() > 1 and not mask_controls.mask_choices()
    st.header(f"The mask of this run: {'none' if unmasked else kind}")
    if cells.numel() == 1:
        st.info("There is only one token, so a causal mask and no mask are the same: the token attends to itself.")
    if unmasked:
        what = _unmasked_part()
        st.info(f"This {what} has no mask: every token may attend to every token.", icon=":material/lock_open:")
        runs_again = session.user_input().kind != "trace"
        if what == "model" and runs_again and (text := causal_everywhere(trace, part)):
            label = "Try a causal mask on this run"
            change = partial(session.change, [*session.changes(), text])
            st.button(label, icon=":material/science:", type="primary", on_click=change)
        if what == "model":
            choose = partial(session.choose_model, CAUSAL)
            st.button(f"See a causal mask: choose {CAUSAL}", icon=":material/swap_horiz:", on_click=choose)
        if trace.picture is not None and places(trace, part):
            st.caption(WHY_TEXT_NEEDS_A_MASK)
    if kind == "causal" and {"image", "text"} <= {segment.name for segment in named}:
        st.caption(WHY_CAUSAL_OVER_PATCHES)
    if named and named[0].name == "CLS" and cells.numel() > 1 and int(cells[0].sum()) == 1 and cells[0, 0]:
        st.info(describe_lonely_cls(trace, part))
    options = {"alt": mask_payload.describe(cells, kind), "always": bool(mask_controls.mask_choices())}
    options["start"] = mask_controls.start(cells)
    url_state.open_step(components.mask_map(trace, cells, layer, part, window, **options))


def compared_layer(trace, part: str, shown: int) -> int:
    """Return the first layer of a tower in whose block a line is changed, else the one on screen."""
    steps = (step for step in what_if.changed_lines(trace) if not part or step.id.startswith(f"{part}."))
    return min((step.layer for step in steps if step.layer is not None), default=shown)


page_frame.enter()
st.title("Which token may attend to which?")
mask_controls.choice()
trace = screen.trace(beside_plain=True)
if not trace.attentions:
    st.info("This run has no attention, so there is no mask.")
    page_frame.leave()
part = widgets.tower(trace)
named = segments(trace, part)

from tracer.attention import masks  # noqa: E402  (the title is drawn before torch is imported)
from tracer.changes.options import causal_everywhere  # noqa: E402

layer = _layer(layers(trace, part))
if not can_draw(trace, layers(trace, part)[layer]):
    st.info(texts.too_large(layers(trace, part)[layer]))
    page_frame.leave()
try:
    window = _window(trace, layer, part)
    cells = masks.visible(trace, layer, part=part, batch=window)
except ValueError as error:
    st.warning(texts.plain(str(error)))
    page_frame.leave()
widgets.check(query=range(cells.shape[0]), head=range(layers(trace, part)[layer].heads))
labels = mask_payload.labels(trace, part, max(cells.shape), numbered=True)
all_open = bool(cells.all())
what_if.show_panel(lambda plain: what_if.show_attention_controls(plain, layer, part, st.query_params.get("head", "0")))
picture(cells, masks.kind(cells) if cells.numel() > 1 else "one open cell")
what_if.show_before_after(trace, (compared_layer(trace, part, layer), part), mask_controls.start(cells), "0")
if len(named) > 1 and not all_open:
    st.header("By segment")
    shares = {(block.queries, block.keys): block.share for block in masks.blocks(cells, named)}
    table = {"query in": [segment.name for segment in named]}
    for key in named:
        table[f"key in {key.name}"] = [percent(shares[query.name, key.name]) for query in named]
    st.table(table, hide_index=True)
    st.caption(
        "The share of token pairs that are open. The row is the segment of the query, the column that of the key."
    )
if mask_controls.mask_choices():
    mask_controls.changes(trace, cells)
mask_controls.proof(trace, cells, named, labels, part)
