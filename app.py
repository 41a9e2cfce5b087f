"""The app: page configuration, navigation over the files in `pages/`, and the choices that all pages share."""

import streamlit as st

from pages.shared import components, contents, frame, influence, libraries, server, sessions, sidebar, waiting
from pages.shared.lessons import sizing

ICON = contents.PAGES / "shared" / "components" / "icon.svg"


def main() -> None:
    """Draw the page that the visitor is on."""
    sessions.register()
    waiting.begin()
    st.set_page_config(page_title="Tensor tracer", page_icon=str(ICON), layout="wide")
    pages = [
        st.Page(page.path, title=page.title, icon=page.icon, default=not place)
        for place, page in enumerate(contents.found())
    ]
    page = st.navigation(pages, position="hidden")
    if page.url_path:
        st.set_page_config(page_title=f"{page.title} · Tensor tracer")
    slots = sidebar.choices(pages, page.url_path)
    with st.sidebar:
        components.phone()
    if libraries.pending():
        waiting.over()
        return
    with frame.around():
        influence.notice()
        sizing.notice(page.url_path)
        page.run()
    sidebar.run(slots, page.url_path)


if __name__ == "__main__":
    main()
else:  # what `streamlit run` serves; it runs this file as `__main__` for every visitor
    app = st.App(__file__, **server.around([page.path.stem for page in contents.found()]))
