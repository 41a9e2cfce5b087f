"""Recommended pretrained models: the purpose, size and licence of each, and whether it is downloaded already."""

import streamlit as st

from pages.state import library_models
from pages.state.visitor import model_name
from pages.ui.texts import plain
from tracer.export.math_labels import amount


def show() -> None:
    """Draw a button for each recommended model; nothing on a server that offers none."""
    from tracer.zoo import recommendations

    offers = recommendations.offers()
    if not offers:
        return
    with st.container(key="sharper", horizontal=True, vertical_alignment="center", gap="small"):
        st.markdown("Stronger models:")
        for offer in offers:
            _offer(offer, recommendations.is_downloaded(offer))


def _offer(offer, here: bool) -> None:
    size = "on this machine" if here else f"download {amount(offer.size, 'B')}"
    about = plain(f"{offer.what[0].upper()}{offer.what[1:]}. {offer.licence}.")
    st.button(
        f"{offer.title} · {size}",
        key=f"take {offer.name}",
        icon=":material/visibility:" if here else ":material/download:",
        on_click=library_models.take,
        args=(offer,),
        disabled=offer.name == model_name(),
        help=f"{about} {offer.name}: downloaded once, then kept on this machine.",
        type="tertiary",
    )
