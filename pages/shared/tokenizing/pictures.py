"""Pictures: the patches that a photo is cut to, over the photo on hand."""

import streamlit as st

from pages.shared import address, components, session, tokenizing
from pages.shared.pictures import of
from tracer.figures import photos
from tracer.inputs.images import centre_crop
from tracer.inputs.samples import samples

TITLE = "Pictures"
ICON = ":material/image:"
ORDER = 2
WAYS = {"patches": "Patches"}


def show() -> None:
    """The photo with its grid, and the steps."""
    from tracer.tokens import pictures  # loads torch, which a page is on screen before

    with st.container(horizontal=True):
        tokenizing.way("pictures")
        at = address.widget("patch", pictures.PATCHES, 16)
        side = st.segmented_control("Side of a patch in pixels", pictures.PATCHES, required=True, **at)
    given = session.given()
    photo, owner = (given.photo, given.content) if given.photo else (next(iter(samples("photos").values()))(), samples)
    _, crop = centre_crop(photo, pictures.SIDE, pictures.SIDE)
    count = pictures.SIDE // side
    components.drawing(of(photo, ("grid", crop, count, count), lambda: photos.grid(photo, crop, count, count)), "grid")
    tokenizing.steps(tokenizing.traced(owner, ("patches", side), lambda: pictures.patches(photo, side)))
