"""Published numbers of parameters are met by the code of transformers at the published sizes."""

import pytest

import tracer
from tests.support.sweeping import cases
from tracer.zoo.hf import hub
from tracer.zoo.recommendations import published_models

ALWAYS = (
    "gpt2", "gpt3-175b", "llama-2-7b", "llama-3.1-405b", "mixtral-8x7b", "deepseek-v3", "vit-b-16", "vit-gigantic-14",
)  # fmt: skip


@pytest.mark.parametrize("name", cases(published_models(), ALWAYS))
def test_the_published_number_of_parameters_is_met(name):
    entry = published_models()[name]
    assert entry.agrees(hub.count(name)), f"{hub.count(name):,} are not {entry.parameters}"
    assert entry.source and entry.title


def test_a_count_that_differs_by_one_is_not_the_published_one():
    entry = published_models()["llama-3.1-405b"]
    assert entry.agrees(405_853_388_800) and not entry.agrees(405_853_388_801)
    rounded = published_models()["gpt3-175b"]
    assert rounded.agrees(174_600_000_000) and not rounded.agrees(174_400_000_000)


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="'gpt-9' is not a published model, expected one of gpt2"):
        hub.configuration("gpt-9")


def test_deepseek_has_the_parameters_of_its_checkpoint():
    assert hub.count("deepseek-v3") == 671_026_404_352  # besides 58 · 256 biases of routers, which are buffers


@pytest.mark.parametrize("name", cases(("gpt2", "llama-2-7b"), ("gpt2",)))
def test_the_formula_of_a_run_counts_the_same(name, tmp_path):
    hub.configuration(name).save_pretrained(tmp_path)
    model = tracer.load(f"hf:{tmp_path}", values=False)
    assert model.trace(values=False, T=4).params == hub.count(name)
