"""Every page, run without a browser, and the data that a visitor's session keeps and releases."""

from dataclasses import replace
from io import BytesIO
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from streamlit.runtime.memory_uploaded_file_manager import MemoryUploadedFileManager
from streamlit.runtime.uploaded_file_manager import UploadedFile, UploadedFileRec
from streamlit.testing.v1 import AppTest

from pages.jobs import single_flight
from pages.state import page_registry, session
from pages.ui import texts, widgets
from tests.support import handmade
from tests.support.messages import component_bytes, of_page
from tests.support.sweeping import cases

ROOT = page_registry.PAGES.parent
PAGES = [page.path.relative_to(ROOT).as_posix() for page in page_registry.find_pages() if not page.heading]
"""Those of the run: the others have tests of their own."""
SECONDS = 120


def picture(kind: str = "JPEG", size: tuple[int, int] = (60, 40), seed: int = 0) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def open_page(page: str = "") -> AppTest:
    at = AppTest.from_file(str(ROOT / "app.py"), default_timeout=SECONDS).run()
    if page:
        at.switch_page(page).run()
    assert not at.exception
    return at


def visit(page: str, **places: str) -> AppTest:
    """Open a page at an address with these parameters."""
    at = AppTest.from_file(str(ROOT / "app.py"), default_timeout=SECONDS).switch_page(f"pages/{page}.py")
    for name, place in places.items():
        at.query_params[name] = place
    at.run()
    assert not at.exception and not at.error
    return at


def text(at: AppTest) -> str:
    """Return all texts of the page and its sidebar."""
    kinds = ("title", "header", "markdown", "caption", "text", "info", "error", "success", "warning", "latex")
    return "\n".join(element.value for kind in kinds for element in getattr(at, kind))


def film_of(at: AppTest) -> dict:
    """Return the header of the film that the page plays."""
    return of_page(component_bytes(at, "film"))[1]


def upload(at: AppTest, data: bytes, name: str) -> AppTest:
    at.file_uploader[0].set_value((name, data, "application/octet-stream")).run()
    assert not at.exception
    return at


def test_pages_are_found_in_order():
    assert PAGES[:3] == ["pages/overview.py", "pages/trace.py", "pages/attention.py"]
    assert [page.title for page in page_registry.find_pages()][:3] == ["Overview", "Trace", "Attention"]


@pytest.mark.parametrize("page", PAGES)
def test_every_page_opens_on_the_sample(page):
    at = open_page(page)
    assert at.title
    assert not at.error
    legend = next(each.value for each in at.sidebar.markdown if each.value.startswith("$B = 1$ — batch")).split("\n\n")
    assert any(line.endswith("= 64$ — number of patches") for line in legend)


def test_a_new_page_is_one_file(tmp_path):
    path = tmp_path / "masks.py"
    path.write_text('TITLE = "Masks"\nORDER = 1\nHEADING = "Lessons"\nPLACES = ("row",)\n')
    (tmp_path / "plain.py").write_text("import streamlit as st")
    masks, plain = page_registry.find_pages(tmp_path)
    assert masks == (path, "Masks", None, "Lessons", ("row",), False)
    assert plain == (tmp_path / "plain.py", "Plain", None, "", (), False)


def test_overview_says_what_the_model_knows():
    at = open_page()
    assert "only 10 classes: airplane" in text(at)
    assert "32 × 32 pixels" in text(at)


def test_a_photo_replaces_the_sample_and_holds_on_all_pages():
    at = upload(open_page(), picture(), "mine.jpg")
    assert "Your photo: mine.jpg" in text(at)
    for page in PAGES:
        at.switch_page(page).run()
        assert "Your photo: mine.jpg" in text(at)
        assert not at.exception
    assert at.session_state["visitor"].user_input.photo.size == (60, 40)


def test_one_click_leads_back_to_the_sample():
    at = upload(open_page(), picture(), "mine.jpg")
    next(button for button in at.button if button.label == "Back to the sample").click().run()
    assert "mine.jpg" not in text(at)
    assert at.session_state["visitor"].user_input.kind == "sample"


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (picture()[:300], "cut.jpg"),
        (b"", "empty.png"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "drawing.svg"),
        (b"hello", "words.txt"),
        (b"\x10\0\0\0\0\0\0\0{not json at all", "broken.safetensors"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_refused_file_leaves_what_was_there(data, name):
    at = upload(open_page(), picture(), "mine.jpg")
    upload(at, data, name)
    assert len(at.error) == 1
    assert name in at.error[0].value
    assert "Your photo: mine.jpg" in text(at)
    upload(at, picture(seed=1), "next.jpg")
    assert not at.error


def test_a_refusal_does_not_follow_the_visitor():
    at = upload(open_page(), b"hello", "words.txt")
    assert "words.txt" in at.error[0].value
    assert at.run().error
    at.switch_page("pages/trace.py").run()
    assert at.title and not at.error


@pytest.mark.parametrize("page", cases(PAGES, (PAGES[0], "pages/mask.py")))
def test_a_text_that_can_not_be_read_is_refused_and_the_last_one_stays(page):
    at = open_page(page)
    at.sidebar.selectbox[0].set_value("nanogpt").run()
    at.text_area[0].set_value("To be").run()
    at.text_area[0].set_value("^^").run()
    assert not at.exception and at.title and "'^^' contains '^'" in at.error[0].value
    assert at.session_state["visitor"].user_input.text == "To be" and at.text_area[0].value == "^^"
    at.switch_page(PAGES[PAGES.index(page) - 1]).run()
    assert at.title and not at.error and at.text_area[0].value == "To be"


@pytest.mark.parametrize("own", [False, True])
def test_who_cancels_a_new_text_goes_back_to_the_text_that_was_there(own):
    at = open_page()
    if own:
        upload(at, picture(), "mine.jpg")
    at.selectbox[0].set_value("vit-text" if own else "nanogpt").run()
    at.text_area[0].set_value("a red circle" if own else "To be").run()
    now, name = at.session_state["visitor"], at.session_state["visitor"].user_input.name
    now.choose(replace(now.user_input, text="a blue square" if own else "Not to be"))
    now.readable = now.user_input  # what was there is let go of as the new run begins
    at.session_state[single_flight.CANCELLATION_KEY] = True
    at.run()
    assert not at.exception and at.text_area[0].value == now.user_input.text == ("a red circle" if own else "To be")
    assert (now.user_input.name, now.user_input.own) == (name, own) and now.run().words[-1] == (
        "circle" if own else "e"
    )


def test_an_unreadable_text_in_the_address_leaves_the_sample():
    at = AppTest.from_file(str(ROOT / "app.py"), default_timeout=SECONDS)
    at.query_params["model"], at.query_params["text"] = "nanogpt", "^^"
    at.run()
    assert not at.exception and at.title and "'^^' contains '^'" in at.error[0].value
    assert at.session_state["visitor"].user_input.kind == "sample" and at.text_area[0].value == "^^"


def test_the_answer_says_how_many_classes_its_bars_leave_out():
    at = open_page()
    assert "The bars are the softmax of the logits over 10 classes." in text(at)  # the film draws those that fit
    at.selectbox[0].set_value("nanogpt").run()
    assert "The bars are the softmax of the logits over 65 characters." in text(at)
    at.selectbox[0].set_value("clip").run()
    assert "The bars are the softmax of the logits over " in text(at)


def test_a_saved_run_opens_on_all_pages(tmp_path):
    at = upload(open_page(), picture(size=(40, 60)), "mine.jpg")
    at.session_state["visitor"].run().save(path := tmp_path / "run.safetensors")
    other = upload(open_page(), path.read_bytes(), "run.safetensors")
    for page in PAGES:
        other.switch_page(page).run()
        assert not other.exception
        assert "Saved run: run.safetensors" in text(other)
    assert session_photo(other).size == (40, 60)


LOOSE_OPS = tuple(replace(op, step=None) for op in handmade.sample().ops)
BARE_RUN = {"ops": LOOSE_OPS, "steps": (), "attentions": (), "picture": None, "result": {}}


@pytest.mark.parametrize(
    "changes",
    [{}, {"steps": (), "ops": LOOSE_OPS}, {"picture": None}, BARE_RUN],
    ids=["awkward", "no steps", "no photo", "operations only"],
)
def test_any_run_opens_on_all_pages(tmp_path, changes):
    """A stranger's file: awkward strings, lost attention, missing parts."""
    handmade.sample(**changes).save(path := tmp_path / "run.safetensors")
    at = upload(open_page(), path.read_bytes(), "run.safetensors")
    for page in PAGES:
        at.switch_page(page).run()
        assert not at.exception, page
        assert [error.value for error in at.error] == []


def session_photo(at: AppTest) -> Image.Image:
    return session.traced_view(at.session_state["visitor"].user_input.trace).photo


def test_a_picture_in_a_strangers_text_is_not_fetched():
    assert "![" not in texts.plain("![x](http://elsewhere.example/x.png)")


def test_sizes_in_sentences_are_set_as_mathematics():
    assert texts.prose("grows as √d_k, not d_ff") == r"grows as $\sqrt{d_k}$, not $d_{\mathrm{ff}}$"


def test_a_photo_stays_with_its_visitor():
    upload(open_page(), picture(), "mine.jpg")
    other = open_page()
    assert "mine.jpg" not in text(other)
    assert other.session_state["visitor"].user_input.kind == "sample"


def test_the_server_forgets_what_was_uploaded(monkeypatch):
    files = MemoryUploadedFileManager("/upload")
    record = UploadedFileRec("1", "mine.jpg", "image/jpeg", b"data")
    files.add_file("me", record)
    context = SimpleNamespace(uploaded_file_mgr=files, session_id="me")
    monkeypatch.setattr(widgets, "get_script_run_ctx", lambda: context)
    assert widgets.read_upload(UploadedFile(record, None)) == b"data"
    assert files.get_files("me", ["1"]) == []
