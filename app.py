"""The app: page configuration, navigation over the files in `pages/`, and the choices all pages share."""

import ast
from pathlib import Path

import streamlit as st

from pages.shared import components, frame, influence, server, sidebar

PAGES = Path(__file__).parent / "pages"
ICON = PAGES / "shared" / "components" / "icon.svg"


def found() -> list[list]:
    """(file, title, icon) of every page in order: each file in `pages/` says its `TITLE`, `ICON` and `ORDER`."""
    pages = []
    for path in PAGES.glob("*.py"):
        lines = ast.parse(path.read_text(encoding="utf-8")).body
        named = [line for line in lines if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant)]
        facts = {line.targets[0].id: line.value.value for line in named}
        pages.append((facts.get("ORDER", 99), path, facts.get("TITLE", path.stem.title()), facts.get("ICON")))
    return [page for _, *page in sorted(pages)]


def main() -> None:
    """Draws the page that the visitor is on."""
    st.set_page_config(page_title="Transformer tracer", page_icon=str(ICON), layout="wide")
    pages = [
        st.Page(path, title=title, icon=icon, default=not place) for place, (path, title, icon) in enumerate(found())
    ]
    page = st.navigation(pages, position="hidden")
    origin = sidebar.choices(pages, page.url_path)
    with st.sidebar:
        components.phone()
    with frame.around():
        influence.notice()
        page.run()
    sidebar.run(origin, page.url_path)


if __name__ == "__main__":
    main()
else:  # what `streamlit run` serves; it runs this file as `__main__` for every visitor
    app = st.App(__file__, **server.around([path.stem for path, *_ in found()]))
