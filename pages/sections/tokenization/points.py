"""Points in space: a cloud that can be rotated, its groups of neighbours and their codes."""

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
    from tracer.lessons.tokenization import points
else:  # imported when first used
    points = lazy_import("tracer.lessons.tokenization.points")


TITLE = "Points in space"
ICON = ":material/deployed_code:"
ORDER = 6
WAYS = {"groups": "Groups of neighbours", "codes": "Codes"}


def show() -> None:
    """Draw the cloud with one group marked, beside the codes of all groups, and the steps of the chosen
    tokenization."""
    with st.container(horizontal=True):
        name = widgets.segments("Cloud", "cloud", synthetic.CLOUDS, format_func=str.capitalize)
        way = tokenization.way("points")
        count = widgets.segments("Centres, n", "n", points.GROUPS, 32)
    chosen = tokenization.place("Token", count, 3)
    cloud = synthetic.CLOUDS[name]()
    centres = synthetic.farthest(cloud, count)
    group, ids = points.nearest(cloud, int(centres[chosen])), points.codes(cloud, count)
    left, right = st.columns(2, gap="medium")
    with left:
        st.markdown(
            f"**Groups**: token {chosen + 1} of n = {count} is a centre and the {len(group)} points nearest to it."
        )
        alt = f"{len(cloud)} points of a {name} with {count} centres, and the group of one of them"
        draw = partial(media.draw_group, cloud, centres, group, chosen)
        chart(synthetic, (name, "groups", count, chosen), draw, alt=alt)
    with right:
        st.markdown(
            f"**Codes**: token {chosen + 1} is the id **{ids[chosen]}** of V = {points.ROWS}, one colour for each."
        )
        alt = f"{len(cloud)} points of a {name} in the colours of the codes of {count} groups"
        draw = partial(media.draw_point_codes, cloud, centres, ids, points.ROWS, chosen)
        chart(synthetic, (name, "codes", count, chosen), draw, alt=alt)
    short = synthetic.shortfall(cloud, centres)
    verdict = "each was the farthest, to the last digit" if short == 0 else f"none falls short by more than {short:.1g}"
    st.markdown(
        "The centres are chosen before the steps below, by a loop: each next one is the point farthest from those that "
        f"are chosen. Checked here with all distances computed again: {verdict}. {len(set(ids.tolist()))} of the "
        f"{points.ROWS} codes are used."
    )
    makes = {"groups": lambda: points.trace_groups(cloud, count), "codes": lambda: points.trace_codes(cloud, count)}
    tokenization.show_run(synthetic, ("points", name, way, count), makes[way], points.SLIPS)
