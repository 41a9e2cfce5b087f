"""Time series: generated here, as patches of consecutive values and as the bins of the values."""

from functools import partial
from typing import TYPE_CHECKING

import streamlit as st

from pages.jobs.single_flight import chart
from pages.sections import tokenization
from pages.ui import widgets
from tracer.figures import media
from tracer.inputs import synthetic
from tracer.utils.lazy_import import lazy_import

if TYPE_CHECKING:
    from tracer.lessons.tokenization import series
else:  # imported when first used
    series = lazy_import("tracer.lessons.tokenization.series")


TITLE = "Time series"
ICON = ":material/show_chart:"
ORDER = 5
WAYS = {"patches": "Patches of values", "bins": "Bins"}


def show() -> None:
    """Draw the series cut into patches, beside its reconstruction from bins, and the steps of the chosen
    tokenization."""
    with st.container(horizontal=True):
        name = widgets.segments("Series", "series", synthetic.SERIES, format_func=str.capitalize)
        way = tokenization.way("series")
        side = widgets.segments("Values of a patch", "patch", series.LENGTHS, 8)
        count = widgets.segments("Bins, V", "V", series.BINS, 32, format_func="{:,}".format)
    values = synthetic.SERIES[name]()
    chosen = tokenization.place("Value that is marked", len(values), 27)
    cut, cuts = series.cut(len(values), side, chosen)
    ids, decoded = series.to_bins(values, count)
    left, right = st.columns(2, gap="medium")
    with left:
        caption = f"value {chosen + 1} is in token {cut + 1} of n = {cuts}, with {side - 1} others."
        st.markdown(f"**Patches**: {caption}")
        alt = f"The series, cut to {cuts} patches of {side} values"
        chart(synthetic, (name, "patches", side, cut), lambda: media.draw_patches(values, side, cut), alt=alt)
    with right:
        st.markdown(
            f"**Bins**: value {chosen + 1} is token {chosen + 1} of n = {len(values)}, the id **{ids[chosen]}**."
        )
        alt = f"The series beside what {count} bins leave of it"
        middles = series.middles(values, count)
        draw = partial(media.draw_bins, values, decoded, middles, chosen)
        chart(synthetic, (name, "bins", count, chosen), draw, alt=alt)
    st.markdown(_loss_text(series.loss(values, count), count))
    makes = {"patches": lambda: series.trace_patches(values, side), "bins": lambda: series.trace_bins(values, count)}
    size = {"patches": side, "bins": count}[way]
    tokenization.show_run(synthetic, ("series", name, way, size), makes[way], series.SLIPS)


def _loss_text(loss, count: int) -> str:
    """Return a sentence on the measured loss of rounding to bins."""
    sentence = (
        f"With {count:,} bins, the values read back from the ids are off by up to {loss.within:.2g}; half a bin is "
        f"{loss.half:.2g}."
    )
    if loss.clipped:
        lie = "value lies" if loss.clipped == 1 else "values lie"
        sentence += f" {loss.clipped} {lie} beyond the last bin, off by up to {loss.largest:.2g}."
    return f"{sentence} {loss.used:,} of the bins are used."
