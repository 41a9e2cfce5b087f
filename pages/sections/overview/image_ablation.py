"""Image ablation by the visitor: attention to the picture is masked in some blocks, and the words are predicted
again."""

from collections.abc import Sequence

import streamlit as st

from pages.sections.attention import mask_controls
from pages.ui import texts
from tracer.figures.predictions.class_bars import percent
from tracer.figures.predictions.model_output import label_token


@st.fragment
def show(place: int, names: Sequence[str], layer: int, blocks: int) -> None:
    """Show how the word at `place`, counted from 1, and the others change without the picture; of `blocks` blocks the
    one on screen, `layer`, is masked at first."""
    st.header("Does the word come from the picture? Test it")
    layers = st.segmented_control(
        "Close the picture to the words in these blocks",
        range(blocks),
        selection_mode="multi",
        default=[layer],
        format_func=lambda layer: f"block {layer + 1}",
    )
    request = mask_controls.MaskRequest.now()

    def run():
        from tracer.attention.masks import close_picture

        return request.measure(close_picture, tuple(sorted(layers)))

    doing = "Running the model with the picture closed"
    closed = mask_controls.once("closed", request, tuple(sorted(layers)), run, doing, where=request.queue())
    word, before, after = names[place - 1], closed.open[place - 1], closed.closed[place - 1]
    sentence = f"“{word}” has a probability of **{percent(before)}** with the picture open"
    if layers:
        sentence += f" and of **{percent(after)}** with it closed in {_blocks(sorted(layers))}"
        if closed.instead[place - 1] != closed.words[place - 1]:
            sentence += f", where “{closed.instead[place - 1]}” is the most probable"
    count = len(closed.words)
    stay = f"{_right(closed.words, closed.best)} of the {count} words are the most probable ones at their places"
    if layers:
        stay += f" with the picture open, {_right(closed.words, closed.instead)} with it closed"
    st.markdown(texts.plain(f"{sentence}. {stay}."))
    st.caption(
        "Closed means that −∞ is added to the scores of words for patches in these blocks: their weights are 0. The "
        "words keep what they read from the picture in other blocks."
    )
    with st.expander("Every word"):
        st.table(
            {
                "word": [label_token(name, number) for number, name in enumerate(names, 1)],
                "picture open": list(map(percent, closed.open)),
                "picture closed": list(map(percent, closed.closed)),
                "most probable when closed": list(closed.instead),
            },
            hide_index=True,
        )


def _right(words: Sequence[str], predicted: Sequence[str]) -> int:
    return sum(word == prediction for word, prediction in zip(words, predicted, strict=True))


def _blocks(layers: Sequence[int]) -> str:
    """Return the blocks by their numbers: "block 2", "blocks 1, 2 and 3"."""
    *first, last = (str(layer + 1) for layer in layers)
    return f"blocks {', '.join(first)} and {last}" if first else f"block {last}"
