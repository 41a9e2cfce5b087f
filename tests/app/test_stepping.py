"""Data of the Trace page for the browser to step through: the record, all of it, within bounds; and the browser's
reports."""

from dataclasses import replace

import numpy as np
import pytest
from starlette.requests import Request
from streamlit.testing.v1 import AppTest

import tracer
from pages.sections import trace as step_payload
from pages.server import browser_requests
from pages.ui.texts import pieces
from tests.app.test_app import ROOT, SECONDS, open_page, text, visit
from tests.support.handmade import sample
from tests.support.messages import component_bytes, of_page, unpack
from tests.support.serving import run_in_thread
from tracer.figures import envelope
from tracer.figures.drawing import PAGE
from tracer.figures.tensors import as_array


def page_payload(at: AppTest) -> tuple[dict, dict]:
    """Return the facts of the visitor, and the steps."""
    return of_page(component_bytes(at, "stepper"))


def tell(text: str) -> int:
    """Return the status that a browser gets for its report."""

    async def receive() -> dict:
        return {"type": "http.request", "body": text.encode(), "more_body": False}

    return run_in_thread(
        browser_requests.take_position(Request({"type": "http", "method": "POST", "headers": []}, receive))
    ).status_code


@pytest.fixture(scope="module")
def page() -> AppTest:
    return open_page("pages/trace.py")


def test_every_step_is_sent_as_it_is_recorded(page):
    trace = page.session_state["visitor"].run()
    facts, header = page_payload(page)
    assert [head["id"] for head in header["steps"]] == [step.id for step in trace.steps] == list(header["details"])
    assert facts["step"] == trace.steps[0].id and header["parts"][:2] == ["Input", "Block 1"]
    for step, head in zip(trace.steps, header["steps"], strict=True):
        detail = header["details"][step.id]
        assert (head["title"], head["symbol"], head["stage"]) == (step.title, step.symbol, step.stage)
        assert (detail["latex"], detail["verdict"]) == (step.latex, step.verdict)
        assert head["shape"] == str(list(step.shape)) and str(step.shape[-1]) in detail["inside"]
        assert [row[0] for row in detail["ops"]["rows"]] == list(step.ops)
        assert ("product" in detail) == bool(step.product)
        assert step.source.text.strip() in detail["code"][-1]["text"]
        picture, value = detail["tensor"], as_array(trace.value(step))
        if picture["box"] == [1, 1]:
            assert np.allclose(picture["cells"].ravel(), value.ravel(), atol=1e-3 * np.abs(value).max()), step.id


def test_the_address_names_the_step_and_an_unknown_one_is_quoted():
    at = AppTest.from_file(str(ROOT / "app.py"), default_timeout=SECONDS)
    at.switch_page("pages/trace.py")
    at.query_params["step"] = "block2.attention.scores"
    at.run()
    assert (
        not at.exception
        and page_payload(at)[0]["step"] == at.session_state["visitor"].step == "block2.attention.scores"
    )
    turn = page_payload(at)[0]["turn"]
    at.query_params["step"] = "no such step"
    at.run()
    assert not at.exception and "no such step" in at.warning[0].value
    assert page_payload(at)[0]["step"] == "patches" and page_payload(at)[0]["turn"] == turn + 1


def test_what_the_browser_stepped_to_holds_for_links_other_pages_and_another_model():
    at = open_page("pages/trace.py")
    facts, now = page_payload(at)[0], at.session_state["visitor"]
    assert tell(f"{facts['token']} trace?step=position") == 204
    at.run()
    assert now.step == "position" and at.query_params["step"] in ("position", ["position"])
    assert (page_payload(at)[0]["step"], page_payload(at)[0]["turn"]) == ("position", facts["turn"]), (
        "the browser is there already"
    )
    assert tell(f"{facts['token']} trace?step=embedding") == 204
    at.switch_page("pages/mask.py").run()
    assert now.step == "embedding"
    at.switch_page("pages/trace.py").run()
    assert page_payload(at)[0]["step"] == "embedding"
    assert tell(f"{facts['token']} trace?step=position") == 204
    at.sidebar.selectbox[0].set_value("segmenter").run()
    assert now.run().model == "segmenter" and page_payload(at)[0]["step"] == "position"


def test_nobody_tells_for_another_visitor(page):
    assert tell("guessed trace?step=position") == tell("") == 404
    assert tell(f"{page_payload(page)[0]['token']} {'x' * 600}") == 413
    assert page.session_state["visitor"].reported_place is None


def test_what_does_not_fit_is_sent_from_the_step_that_is_asked_for_on(monkeypatch):
    trace = tracer.load("vit", H=12, W=8, P=4, D=6, h=2, d_ff=10, L=3, K=3).trace()
    monkeypatch.setattr(step_payload, "MAX_BYTES", 45_000)
    assert not step_payload.fits(trace)
    start = "block2.attention.scores"
    data = envelope.pack(step_payload.build_payload(trace, start))
    header = unpack(data)
    ids = [step.id for step in step_payload.parts(trace)["Block 2"]]
    got = list(header["details"])
    assert len(header["steps"]) == len(trace.steps) and len(data) < 50_000
    assert got[0] == start and set(got) <= set(ids) and got[1] == ids[ids.index(start) + 1]


@pytest.mark.sweep
def test_headers_of_an_enormous_run_are_cut_and_those_of_its_part_last():
    step = replace(sample().steps[0], symbol="a" * 400, symbolic=("A_" + "b" * 190, "?"), shape=(2, 3), value="")
    steps = tuple(replace(step, id=f"s{i}", title="t" * 400, layer=i // 100) for i in range(4000))
    run = sample(steps=steps, ops=())
    data = envelope.pack(step_payload.build_payload(run, "s600"))
    header = unpack(data)
    assert len(data) < 0.9 * PAGE and header["steps"][0]["symbol"] == "" and len(header["steps"]) == 4000
    assert header["steps"][600]["symbol"] == "a" * 400 and "s600" in header["details"]


@pytest.mark.parametrize(
    ("markdown", "found"),
    [
        ("grows as $d_k$, `x`", [("text", "grows as "), ("maths", "d_k"), ("text", ", "), ("code", "x")]),
        (r"**No.** \*a\* <b>", [("bold", "No."), ("text", " *a* <b>")]),
        ("a * b ` c $ d", [("text", "a * b ` c $ d")]),
        ("", []),
    ],
)
def test_sentences_come_in_pieces(markdown, found):
    assert pieces(markdown) == found


def test_a_step_changes_the_shape_where_nothing_that_it_takes_has_it():
    vit, llama = tracer.load("vit").trace(prove=False), tracer.load("llama").trace(prove=False)
    changed = step_payload.reshaping_steps(vit)
    block = {step.title for step in vit.steps if step.layer == 0 and step.id in changed}
    assert block == {"Queries", "Keys", "Values", "Scores", "Context", "Output projection", "Expand", "Contract"}
    assert {"patches", "embedding", "sequence", "cls", "logits"} == {step for step in changed if "block" not in step}
    turned = {step.id for step in llama.steps if step.title.startswith("Rotate ")}
    assert turned and not turned & step_payload.reshaping_steps(llama)


def test_the_letters_of_a_text_write_the_lines_and_stay_on_the_other_pages():
    at = visit("trace", model="nanogpt", step="block1.attention.output", letters="004")
    _, header = page_payload(at)
    detail = header["details"]["block1.attention.output"]
    assert detail["latex"].startswith(r"\mathbf{O}'^{(1)} = \mathbf{O}^{(1)}\,\mathbf{W}^{O (1)}")
    assert detail["inside"].startswith(r"\mathbf{O}'^{(1)} \in [B,\ n,\ d_{\mathrm{model}}] = [1,\ 28,")
    (head,) = [head for head in header["steps"] if head["id"] == "block1.attention.query"]
    assert head["sizes"] == r"[B,\ H,\ n,\ d_k]" and detail["ops"]["rows"][0][4].endswith("d_model]")
    assert detail["tensor"]["axes"][1] == [["text", "feature, "], ["maths", r"d_{\mathrm{model}} = 128"]]
    assert r"| $n$ | $T$ |" in text(at) and r"| $\mathbf{O}'^{(\ell)}$ | $\mathbf{O}^{(\ell)}$ |" in text(at)
    at.switch_page("pages/notes.py").run()
    assert at.query_params["letters"] == "004"
    at.switch_page("pages/overview.py").run()
    at.switch_page("pages/trace.py").run()
    assert page_payload(at)[1]["details"]["block1.attention.output"]["latex"] == detail["latex"]


def test_unknown_letters_are_quoted():
    at = visit("trace", model="nanogpt", letters="<b>")
    assert "This page has no letters '\\<b>'" in at.warning[0].value
