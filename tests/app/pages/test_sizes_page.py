"""Sizes page with a published model: its address, its shapes and its costs at a batch, a length and a dtype."""

import pytest

from pages.jobs import model_costs, run_cache
from tests.app.test_app import text, visit
from tracer.zoo.hf import hub
from tracer.zoo.recommendations import published_models


def metrics(at) -> dict[str, str]:
    """Return the numbers of the page by their labels."""
    return {metric.label: metric.value for metric in at.main.metric}


def test_a_published_model_is_chosen_and_the_address_names_it():
    at = visit("sizes", model="nanogpt")
    at.selectbox(key="place published").set_value("llama-3.1-8b").run()
    assert not at.exception and at.query_params["published"] == "llama-3.1-8b"
    page, values = text(at), metrics(at)
    assert "The net, built without memory, has 8,030,261,248 parameters, which is the published number" in page
    assert values["Parameters"] == "8.03 G" and values["Memory of the weights"] == "16.1 GB"
    assert values["Memory of the cache"] == "268 MB"  # 2 · 32 blocks · 2,048 tokens · 8 heads · 128, at 2 bytes
    assert r"[B,\ h_{\mathrm{kv}},\ T,\ d_k]\\ {[1,\ 8,\ 2{,}048,\ 128]}" in page
    assert r"$\ell = 1, 2, \ldots, 32$" in page
    assert "This page shows Llama 3.1 8B." in page
    assert "no equation was executed at this size" in page and ":green[" not in page
    at.number_input(key="place length").set_value(8192).run()
    at.button_group(key="place dtype").set_value("float8").run()
    assert (at.query_params["length"], at.query_params["dtype"]) == ("8192", "float8")
    assert metrics(at)["Memory of the cache"] == "537 MB"
    at.selectbox(key="place published").set_value(None).run()
    assert "published" not in at.query_params and metrics(at)["Parameters"] == "818 k"


@pytest.mark.parametrize(
    ("length", "expected"), [("5000", "from 1 to 1,024"), ("x", "from 1 to 1,024"), ("0", "from 1 to 1,024")]
)
def test_a_length_that_the_model_has_no_position_for_is_refused(length, expected):
    at = visit("sizes", published="gpt2", length=length)
    assert f"This page has no length '{length}', expected one {expected}." in text(at)
    assert at.number_input(key="place length").value == 1024


def test_an_unknown_published_model_is_refused():
    page = text(visit("sizes", published="gpt-9"))
    assert "This page has no published 'gpt-9', expected one from gpt2 to vit-gigantic-14." in page


def test_a_server_of_listed_models_offers_no_published_one(monkeypatch):
    monkeypatch.setenv("TRACER_HOSTED", "1")
    at = visit("sizes", model="nanogpt", published="gpt2")
    assert metrics(at)["Parameters"] == "818 k" and "A published model" not in [box.label for box in at.selectbox]


def test_the_formulas_of_a_published_run_count_what_the_run_counts():
    run = hub.run("gpt3-small")
    numbers = run.scaling.numbers({"B": 3, "T": 100})
    assert run.params == numbers["params"] == hub.count("gpt3-small") == 125_226_240
    assert numbers["cache"] == 2 * 12 * 3 * 100 * 768
    lines = {line.title: line for line in run.lines}
    assert lines["Scores"].symbolic == ("B", "h", "T", "T") and lines["Score every token"].blocks == ""
    assert lines["Scores"].blocks == r"\ell = 1, 2, \ldots, 12" and r"(\ell)" in lines["Scores"].symbol
    assert run.verified == "Equations verified on 2 blocks of width 96: 186 of 186 lines."


@pytest.mark.sweep
def test_a_model_that_ran_with_its_first_blocks_alone_has_no_formula_for_the_rest():
    run = hub.run("deepseek-v3")
    assert published_models()["deepseek-v3"].blocks == run.blocks == 4 and run.sizes["L"] == 61
    numbers = run.scaling.numbers(run.sizes)
    assert (numbers["flops"], numbers["tensors"]) == (None, None)
    assert numbers["params"] == 671_026_404_352
    assert numbers["cache"] == 61 * run.sizes["T"] * (512 + 64)  # the compressed keys and values, and rotary keys
    experts = next(line for line in run.lines if line.title == "Scores of the experts")
    assert (experts.symbolic, experts.blocks) == (("B*T", "256"), "")


def test_formulas_stay_for_all_visitors_when_their_run_has_left_the_cache(monkeypatch):
    options = (("tied", False),)
    first = model_costs.scaling("nanogpt", options)
    run_cache._user_runs.forget(lambda key: True)
    monkeypatch.setattr(model_costs, "_scaling", lambda *_: pytest.fail("derived again"))
    assert model_costs.scaling("nanogpt", options) is first
    assert model_costs.scaling("nanogpt", (*options, ("L", 2))) is first


def test_a_widget_is_another_one_after_something_else_moved_its_position():
    """The browser may still send the value that the widget had; nobody must take it for a choice."""
    at = visit("sizes", published="gpt2")
    at.selectbox(key="place published").set_value("llama-3.1-8b").run()
    assert at.selectbox(key="place published").value == "llama-3.1-8b"  # its own choice leaves it as it is
    at.query_params["published"] = "gpt2"
    at.run()
    assert at.selectbox(key="place published 1").value == "gpt2"
    at.selectbox(key="place published 1").set_value("llama-3.1-8b").run()
    assert at.query_params["published"] == "llama-3.1-8b"
