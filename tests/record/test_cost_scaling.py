"""Costs of a model at sizes that were not run, and the page for them."""

import re
from functools import cache

import pytest
import torch

import tracer
from pages.jobs import model_costs
from tests.app.test_app import open_page, text, visit
from tests.support.sweeping import cases
from tracer import models
from tracer.figures import cost_curves
from tracer.record import costs
from tracer.utils.text import amount

PUBLISHED_COUNTS = {
    ("vit", "ViT-B/16 (Dosovitskiy et al. 2021)"): 86_567_656,  # torchvision.models.vit_b_16
    ("vit", "ViT-H/14 (Dosovitskiy et al. 2021)"): 632_045_800,  # torchvision.models.vit_h_14
    ("nanogpt", "GPT-2 small (Radford et al. 2019)"): 124_439_808,  # transformers' gpt2
    ("llama", "Llama 2 7B (Touvron et al. 2023)"): 6_738_415_616,  # the checkpoint's own count
    ("llama", "Llama 3 8B (Grattafiori et al. 2024)"): 8_030_261_248,
}
OTHER = {
    "vit": {"H": 16, "P": 4, "D": 24, "h": 3, "d_ff": 40, "L": 2, "K": 7, "B": 2},
    "nanogpt": {"D": 24, "h": 3, "d_ff": 40, "L": 2, "T": 11, "B": 2, "tied": False, "bias": False},
    "mae": {"D": 24, "h": 3, "d_ff": 40, "L": 3, "L_dec": 1},
    "vit-text": {"D": 24, "h": 3, "d_ff": 40, "L": 2, "T": 5},
    "llama": {"D": 24, "h": 3, "h_kv": 1, "d_ff": 40, "L": 2, "T": 9},
    "transformer": {"D": 24, "h": 4, "d_ff": 40, "L": 2, "T": 9, "positions": "relative"},
    "clip": {"D": 24, "h": 3, "d_ff": 40, "L": 2, "K": 3},
}


@cache
def formulas(model: str, **options) -> costs.Scaling:
    return costs.scaling(tracer.load(model, **options).trace(prove=False))


@pytest.mark.parametrize("model", cases(OTHER, ("vit", "transformer")))
def test_formulas_predict_what_a_run_at_other_sizes_counts(model):
    chosen = OTHER[model]
    spec = models.spec_of(model)
    options = {name: value for name, value in chosen.items() if name in spec.options}
    found = formulas(model, **options)
    sizes = {name: value for name, value in chosen.items() if name not in options}
    run = {name: value for name, value in sizes.items() if name in spec.runs}
    made = tracer.load(model, **options, **{name: value for name, value in sizes.items() if name not in run})
    trace = made.trace(**run, prove=False)
    at = {size.name: size.value for size in trace.symbols}
    numbers = found.numbers({**sizes, **at})
    assert numbers["params"] == trace.params == sum(one.numel() for one in made.net.parameters())
    assert numbers["flops"] == trace.flops
    assert numbers["tensors"] == costs.count_elements(trace)
    weights = [trace.attention(record.layer, part=record.part) for record in trace.attentions]
    assert numbers["weights"] == sum(one.numel() for one in weights)
    parts = [costs.evaluate(one, found.complete({**sizes, **at})) for one in found.parts.values()]
    assert sum(parts) == trace.flops


@pytest.mark.parametrize(("model", "preset"), cases(PUBLISHED_COUNTS, list(PUBLISHED_COUNTS)[:3]))
def test_parameters_of_published_models(model, preset):
    chosen = models.spec_of(model).presets[preset]
    options = {name: value for name, value in chosen.items() if name in models.spec_of(model).options}
    sizes = {name: value for name, value in chosen.items() if name not in options}
    assert formulas(model, **options).numbers(sizes)["params"] == PUBLISHED_COUNTS[model, preset]


@pytest.mark.parametrize("model", cases(models.names(), ("vit", "nanogpt")))
def test_every_preset_can_be_built(model):
    found = formulas(model)
    for chosen in models.spec_of(model).presets.values():
        assert model_costs.impossible(model, tuple(chosen.items()), found) == ""


@pytest.mark.parametrize("model", cases(("vit", "nanogpt", "mae"), ("vit", "nanogpt")))
def test_attention_costs_what_the_mlp_does_where_they_cross(model):
    found = formulas(model)
    at = round(found.crossover_length({}))
    flops = found.along(found.length, [at - 64, at, at + 64], {})
    core = [first + second for first, second in zip(flops[costs.SCORES], flops[costs.WEIGHTED_SUM], strict=True)]
    below, same, above = (one - other for one, other in zip(core, flops[costs.MLP], strict=True))
    assert below < 0 < above and abs(same) < 0.01 * core[1]


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({"h": 3}, "D=128 is not divisible by h=3"),
        ({"P": 5}, "H=32, W=32 don't fit P=5"),
        ({"L": 300}, "L=300 blocks are too many"),
        ({"D": 10**9, "d_ff": 10**9}, ""),
    ],
)
def test_sizes_of_which_no_model_can_be_built_say_why(chosen, said):
    assert re.match(re.escape(said) or "$", model_costs.impossible("vit", tuple(chosen.items()), formulas("vit")))


def controls(at) -> dict:
    return {one.label.split("$")[1]: one for one in at.main.number_input if "$" in one.label}


def test_a_size_follows_at_once_and_a_run_confirms_it():
    at = open_page("pages/sizes.py")
    assert at.main.metric[0].label == "Parameters"
    controls(at)["h"].set_value(3).run()
    assert "D=128 is not divisible by h=3" in at.main.error[0].value and at.main.metric[0].value == "1.21 M"
    controls(at)["D"].set_value(96).run()
    assert not at.main.error and at.main.metric[0].value == "831 k"
    assert (at.query_params["D"], at.query_params["h"]) == ("96", "3")
    next(button for button in at.main.button if button.label == "Run it").click().run()
    (table,) = [one.value for one in at.main.markdown if "counted on this run" in one.value]
    assert (
        table.count(":green[") == 3
        and ":red[" not in table
        and re.search(r"\| Parameters \| (831,\d+) \| \1 \|", table)
    )
    at.switch_page("pages/trace.py").run()
    assert "**Random weights:** no trained weights exist for the sizes" in at.main.info[0].value
    next(button for button in at.main.button if button.label == "Back to the trained model").click().run()
    assert not at.main.info and "D" not in at.query_params


def test_two_sizes_that_are_refused_stay_in_their_controls_and_each_says_why():
    at = open_page("pages/sizes.py")
    controls(at)["D"].set_value(96).run()
    controls(at)["P"].set_value(5).run()
    controls(at)["h"].set_value(5).run()
    assert (controls(at)["P"].value, controls(at)["h"].value) == (5, 5)
    assert [("P=5" in one.value, "h=5" in one.value) for one in at.main.error] == [(True, False), (False, True)]
    assert "still belong to $P = 4$, $h = 4$" in at.main.warning[0].value
    assert next(button for button in at.main.button if button.label == "Run it").disabled
    controls(at)["P"].set_value(8).run()
    assert len(at.main.error) == 1 and controls(at)["P"].value == 8 and "P" not in at.query_params
    controls(at)["h"].set_value(2).run()
    assert not at.main.error and (at.query_params["P"], at.query_params["h"]) == ("8", "2")


def test_what_is_too_large_to_run_is_counted_all_the_same():
    at = open_page("pages/sizes.py")
    at.main.button_group(key="preset vit").set_value("ViT-H/14 (Dosovitskiy et al. 2021)").run()
    assert not at.exception and at.main.metric[0].value == "632 M"
    assert "This size would take 632 M parameters" in text(at)
    at.switch_page("pages/trace.py").run()
    assert not at.exception and "vit does not run here at the sizes that you chose" in at.main.error[0].value


class Mixing(torch.nn.Module):
    """Attention whose values are five times as wide as its queries."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = torch.nn.Linear(8, 3), torch.nn.Linear(8, 3), torch.nn.Linear(8, 15)
        self.out = torch.nn.Linear(15, 8)

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        return x + self.out((q @ k.mT / 3**0.5).softmax(-1) @ v)


def test_products_of_queries_and_keys_are_told_from_those_of_weights_and_values():
    net = torch.nn.Sequential(Mixing(), Mixing())
    parts = costs.scaling(tracer.trace(net, torch.randn(1, 7, 8), symbols={"B": 0, "T": 1})).parts
    assert (parts[costs.SCORES], parts[costs.WEIGHTED_SUM]) == ("12*B*T**2", "60*B*T**2")


def test_a_curve_has_the_name_and_the_numbers_of_its_part():
    flops = {costs.SCORES: [1_000, 4_000], costs.MLP: [9_000, 6_000]}
    drawn = {curve.name: curve for curve in cost_curves.draw_shares("T", [10, 20], flops, 10, None).data}
    assert list(drawn[costs.SCORES].y) == [10, 40] and list(drawn[costs.MLP].y) == [90, 60]
    assert [list(drawn[part].customdata)[1] for part in flops] == [amount(4_000, "FLOP"), amount(6_000, "FLOP")]


def test_a_model_of_a_library_has_its_costs_at_any_size():
    from pages.sections import model_sizes

    found, note = model_sizes.formulas("hf:llama")
    published = {"D": 16384, "h": 128, "h_kv": 8, "d_k": 128, "d_ff": 53248, "V": 128256, "L": 126, "T": 8192, "B": 1}
    numbers = found.numbers(published)
    assert numbers["params"] == 405_853_388_800 and numbers["cache"] == 2 * 126 * 8192 * 8 * 128
    assert note.startswith("shapes at this size; equations verified on 2 blocks")
    at = round(found.cache_overtakes_weights(published))
    over, under = (found.numbers(published | {"T": length})["cache"] for length in (at + 1, at - 1))
    assert under < numbers["params"] < over
    assert found.crossover_length(published) == pytest.approx(6 * 16384 * 53248 / (4 * 128 * 128))


DECODERS = ("nanogpt", "h"), ("llama", "h_kv"), ("vit-text", "h")


@pytest.mark.parametrize(("model", "heads"), cases(DECODERS, DECODERS[:2]))
def test_the_cache_of_a_decoder_counts_the_tensors_that_it_returns(model, heads):
    found = model_costs.scaling(model, ())
    decoder = tracer.load(model).decoder
    inputs = decoder.inputs()
    _, cache = decoder.net(*inputs, **inputs.named)
    assert found.numbers({})["cache"] == sum(tensor.numel() for pair in cache for tensor in pair) > 0
    assert heads in found.cache.split("*")


def test_the_cache_of_a_decoder_is_on_its_page():
    at = visit("sizes", model="nanogpt")
    metrics = {one.label: one.value for one in at.main.metric}
    assert metrics["Memory of the cache"] == "57.3 kB"
    assert "Weights and cache take" in at.main.info[0].value
    at.main.button_group(key="place dtype").set_value("float32").run()
    assert {one.label: one.value for one in at.main.metric}["Memory of the cache"] == "115 kB"


def test_a_model_without_a_cache_has_no_length_at_which_it_overtakes():
    assert formulas("vit").cache_overtakes_weights({}) is None


class Padded(torch.nn.Module):
    """Fused attention over one packed projection, with a padding mask that is merged with the causal one, or none."""

    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(8, 24)

    def forward(self, x, seen=None):
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        mask = None
        if seen is not None:
            T = x.shape[1]
            mask = seen[:, None, None, :].expand(-1, 2, T, -1) & torch.ones(T, T, dtype=torch.bool).tril()
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)


def test_masks_are_counted_and_what_a_fused_op_never_holds_is_not():
    x, net = torch.randn(2, 16, 8), Padded().eval()
    with torch.no_grad():
        plain, masked = (
            tracer.trace(net, x, *seen, symbols={"B": 0, "T": 1}) for seen in ((), (torch.ones(2, 16).bool(),))
        )
    (without,), (merged,) = costs.parts(plain), costs.parts(masked)
    assert (without.numbers, without.numbers_symbolic) == (7 * 2 * 16 * 8, "56*B*T")
    bools, floats, triangle = 2 * 2 * 16 * 16, 2 * 2 * 16 * 16, 16 * 16
    assert merged.numbers == without.numbers + bools + floats + triangle
    assert costs.evaluate(merged.numbers_symbolic, {"B": 2, "T": 16}) == merged.numbers
    assert "T**2" in merged.numbers_symbolic
