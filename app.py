"""App: page configuration, navigation over the files in `pages/`, and the choices that all pages share."""

import streamlit as st

from pages import components
from pages.jobs import model_process, render_gate, single_flight
from pages.sections import mask_controls, model_sizes, sidebar, what_if
from pages.server import app_factory, websockets
from pages.state import library_models, page_registry
from pages.ui import page_frame

ICON = page_registry.PAGES / "components" / "icon.svg"


def main() -> None:
    """Draw the page that the visitor is on, in its turn."""
    with render_gate.turn(single_flight.stop_if_unwanted):
        draw()


def draw() -> None:
    """Draw the page that the visitor is on."""
    websockets.register()
    if websockets.count_connected() >= model_process.CLASS:
        model_process.start()
    render_gate.begin()
    st.set_page_config(page_title="Tensor tracer", page_icon=str(ICON), layout="wide")
    pages = [
        st.Page(page.path, title=page.title, icon=page.icon, default=not place)
        for place, page in enumerate(page_registry.find_pages())
    ]
    page = st.navigation(pages, position="hidden")
    if page.url_path:
        st.set_page_config(page_title=f"{page.title} · Tensor tracer")
    slots = sidebar.choices(pages, page.url_path)
    with st.sidebar:
        components.phone()
    if library_models.awaits_consent():
        render_gate.over()
        return
    with st.container(key="top"):  # always there: the page below stays where it is when a run is changed
        render_gate.lay_overlay()
        changes = st.container()
    with page_frame.around():
        mask_controls.notice()
        model_sizes.notice(page.url_path)
        page.run()
    what_if.show_active_changes(changes)
    sidebar.run(slots, page.url_path)


if __name__ == "__main__":
    main()
else:  # what `streamlit run` serves; it runs this file as `__main__` for every visitor
    app = st.App(__file__, **app_factory.around([page.path.stem for page in page_registry.find_pages()]))
