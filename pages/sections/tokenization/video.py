"""Video: a drawn scene that moves, cut frame by frame and in blocks that span several frames."""

from typing import TYPE_CHECKING

import streamlit as st

from pages import components
from pages.jobs.single_flight import of
from pages.sections import tokenization
from pages.ui import widgets
from tracer.figures import media
from tracer.inputs import synthetic
from tracer.utils.lazy_import import lazy_import

if TYPE_CHECKING:
    from tracer.lessons.tokenization import video
else:  # imported when first used
    video = lazy_import("tracer.lessons.tokenization.video")


TITLE = "Video"
ICON = ":material/movie:"
ORDER = 3
WAYS = {"frames": "Patches of each frame", "tubelets": "Tubelets"}


def show() -> None:
    """Draw the video, playing; both ways to cut it, with one token framed; and the steps of the chosen one."""
    frames = synthetic.clip()
    grid = (frames.shape[1] // video.SIDE) * (frames.shape[2] // video.SIDE)
    count = len(frames) * grid
    left, right = st.columns([1, 2], gap="medium")
    with right:
        with st.container(horizontal=True):
            way = tokenization.way("video")
            tau = widgets.segments("Frames of a tubelet, τ", "tau", video.DEPTHS, 2)
        chosen = tokenization.place("Patch that is framed", count, 5 * grid + 6)
    with left:
        playing = st.toggle("Play the video", True, key="play")
        components.drawing(of(synthetic, ("player", playing), lambda: media.player(frames, playing)), "player")
    frame, place = divmod(chosen, grid)
    block, first = frame // tau * grid + place, frame // tau * tau
    left, right = st.columns(2, gap="medium")
    with left:
        st.markdown(f"**Patches of each frame**: token {chosen + 1} of n = {count} is one place of frame {frame + 1}.")
        cut = of(synthetic, ("frames", chosen), lambda: media.sheet(frames, video.SIDE, 1, chosen, "patch"))
        components.drawing(cut, "frames")
    with right:
        held = f"token {block + 1} of n = {count // tau} is that place in frames {first + 1} to {first + tau}."
        st.markdown(f"**Tubelets**: {held}")
        cut = of(synthetic, ("tubelets", tau, block), lambda: media.sheet(frames, video.SIDE, tau, block, "tubelet"))
        components.drawing(cut, "tubelets")
    makes = {"frames": video.frames, "tubelets": lambda: video.tubelets(tau)}
    tokenization.show_run(synthetic, ("video", way, tau * (way == "tubelets")), makes[way], video.SLIPS)
