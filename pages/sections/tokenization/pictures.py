"""Pictures: the current photo cut into patches, or encoded by a codebook."""

from typing import TYPE_CHECKING

import numpy as np
import streamlit as st
from PIL import Image

from pages import components
from pages.jobs.single_flight import of
from pages.sections import tokenization
from pages.state import session
from pages.state.visitor import visitor
from pages.ui import widgets
from tracer.figures import tensors
from tracer.inputs.images import centre_crop
from tracer.inputs.model_inputs import samples
from tracer.utils.lazy_import import lazy_import

if TYPE_CHECKING:
    from tracer.lessons.tokenization import pictures
else:  # imported when first used
    pictures = lazy_import("tracer.lessons.tokenization.pictures")


TITLE = "Pictures"
ICON = ":material/image:"
ORDER = 2
WAYS = {"patches": "Patches", "codes": "Codes"}


def show() -> None:
    """Draw the current photo, or a sample where there is none."""
    chosen_input = session.user_input()
    photo = chosen_input.photo or next(iter(samples("photos").values()))()
    owner = chosen_input.content if chosen_input.photo else samples
    if chosen_input.photo:
        visitor().instead = ""
    with st.container(horizontal=True):
        coded = tokenization.way("pictures") == "codes"
        if coded:
            size = widgets.segments("Codes in the codebook, V", "codes", pictures.CODES, 64)
        else:
            size = widgets.segments("Side of a patch in pixels", "patch", pictures.PATCHES, 16)
    (_codes if coded else _patches)(photo, owner, size)


def _patches(photo: Image.Image, owner: object, side: int) -> None:
    """Draw the grid of patches over the photo."""
    _, crop = centre_crop(photo, pictures.SIDE, pictures.SIDE)
    count = pictures.SIDE // side
    components.drawing(of(photo, ("grid", crop, count, count), lambda: tensors.grid(photo, crop, count, count)), "grid")
    st.caption(
        f"{count} × {count} = {count * count} patches of {side} × {side} pixels with 3 colours each: a token begins "
        f"as {3 * side * side} numbers. The dimmed part is cut off."
    )
    tokenization.show_run(owner, ("patches", side), lambda: pictures.patches(photo, side), pictures.SLIPS["patches"])


def _codes(photo: Image.Image, owner: object, entries: int) -> None:
    """Draw the photo, its ids, and their reconstruction."""
    drawing = of(owner, ("codes", entries), lambda: _draw_codes(photo, entries))
    with st.container(key="coded"):
        for name, caption in (("photo", drawing["seen"]), ("ids", drawing["counted"]), ("spelled", drawing["off"])):
            with st.container():
                components.drawing(drawing[name], name)
                st.caption(caption)
    with st.expander("All codes", icon=":material/apps:"):
        components.drawing(drawing["sheet"], "sheet")
        st.caption(drawing["used"])
    tokenization.show_run(owner, ("codes", entries), lambda: pictures.codes(photo, entries), pictures.SLIPS["codes"])


def _draw_codes(photo: Image.Image, entries: int) -> dict[str, str]:
    """Return drawings and captions of a photo in that many codes."""
    tokenization.once(pictures.codebook, entries)
    rebuilt, side = pictures.rebuilt(photo, entries), pictures.SIDE
    image, _ = centre_crop(photo, side, side)
    counts = np.bincount(rebuilt.ids.ravel(), minlength=entries)
    used, bits = int((counts > 0).sum()), (entries - 1).bit_length()
    bytes_before, bytes_now = 3 * side * side, -(-rebuilt.ids.size * bits // 8)
    colours = rebuilt.codes.reshape(entries, -1, 3).mean(axis=1).astype(np.uint8)
    rows, columns = rebuilt.ids.shape
    return {
        "photo": tensors.picture(image, f"The middle of the photo at {side} × {side} pixels"),
        "ids": tensors.code_grid(rebuilt.ids, colours, f"The ids of {rows} × {columns} codes"),
        "spelled": tensors.picture(Image.fromarray(rebuilt.picture), "The picture that the codes spell"),
        "sheet": tensors.sheet(rebuilt.codes, counts, f"All {entries} codes; those that are not used are crossed out"),
        "seen": f"The photo at {side} × {side} pixels: {bytes_before:,} bytes.",
        "counted": f"{rebuilt.ids.size} ids of {bits} bits: {bytes_now:,} bytes. {used} of {entries} codes are used.",
        "off": f"The picture that they spell is off by {rebuilt.error:.0f} of 255 levels (root mean square).",
        "used": f"{entries - used} codes that this photo does not use are crossed out.",
    }
