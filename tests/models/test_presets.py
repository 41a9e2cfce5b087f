"""Sizes and options that a model offers: those of the papers and notes that their names refer to."""

import pytest

from tracer import models
from tracer.models import llama, nanogpt, segmenter, transformer, vit, vit_text

PUBLISHED_SIZES = {
    (vit, "ViT-B/16 (Dosovitskiy et al. 2021)"): {"N": 14**2, "d_k": 64, "h": 12, "d_ff": 4, "L": 12, "K": 1000},
    (vit, "One block of ViT-B/16"): {"N": 14**2, "d_k": 64, "h": 12, "d_ff": 4, "L": 1, "K": 1000},
    (vit, "ViT-H/14 (Dosovitskiy et al. 2021)"): {"N": 16**2, "d_k": 80, "h": 16, "d_ff": 4, "L": 32, "K": 1000},
    (nanogpt, "GPT-2 small (Radford et al. 2019)"): {"V": 256 + 50_000 + 1, "T": 2**10, "d_k": 64, "h": 12}
    | {"d_ff": 4, "L": 12},
    (nanogpt, "GPT-3 (Brown et al. 2020)"): {"V": 256 + 50_000 + 1, "T": 2**11, "d_k": 128, "h": 96}
    | {"d_ff": 4, "L": 96},
    (llama, "Llama 2 7B (Touvron et al. 2023)"): {"V": 32_000, "T": 2**12, "d_k": 128, "h": 32, "h_kv": 32}
    | {"d_ff": 43 / 16, "L": 32},  # 2/3 of four times the width, rounded up to a multiple of 256
    (llama, "Llama 3 8B (Grattafiori et al. 2024)"): {"V": 128_000 + 256, "T": 2**13, "d_k": 128, "h": 32, "h_kv": 8}
    | {"d_ff": 3.5, "L": 32},
    (transformer, "The encoder of 2017 (Vaswani et al.)"): {"V": 37_000, "T": 2**9, "d_k": 64, "h": 8}
    | {"d_ff": 4, "L": 6},
    (vit_text, "A photo of 224 × 224 beside 64 words"): {"N": 14**2, "T": 64, "d_k": 64, "h": 12, "d_ff": 4, "L": 12},
    (segmenter, "Note 001: 14 × 14 × 768 to 224 × 224 × K"): {"N": 14**2, "d_k": 64, "h": 12, "d_ff": 4, "L": 1}
    | {"K": 10},
    (nanogpt, "One head, as in the notes"): {"h": 1},
    (nanogpt, "One head without biases, as in note 000"): {},
    (vit_text, "One head, as in the notes"): {"h": 1},
}
"""What the papers and notes say of each, the hidden width of its MLP as a multiple of the model width."""


@pytest.mark.parametrize(("module", "name"), PUBLISHED_SIZES)
def test_a_preset_has_the_published_sizes(module, name):
    sizes = {symbol: size for symbol, size in module.SPEC.presets[name].items() if symbol not in module.SPEC.options}
    assert sizes.pop("T_max", None) == sizes.get("T")  # the whole context
    if "P" in sizes:
        sides = sizes.pop("H"), sizes.pop("W")
        assert sides == (224, 224)
        sizes["N"], rest = divmod(sides[0] * sides[1], sizes.pop("P") ** 2)
        assert rest == 0
    if "D" in sizes:
        width = sizes.pop("D")
        sizes |= {"d_k": width / sizes["h"], "d_ff": sizes["d_ff"] / width}
    assert sizes == PUBLISHED_SIZES[module, name]


@pytest.mark.parametrize("model", models.names())
def test_the_choices_of_an_option_differ(model):
    for name, choices in models.spec_of(model).options.items():
        assert len({*choices}) == len(choices) >= 2, (name, choices)


def test_every_preset_of_sizes_is_that_of_a_paper_or_a_note():
    every = {name for model in models.names() for name in models.spec_of(model).presets}
    assert every - {name for _, name in PUBLISHED_SIZES} == {
        "Relative positions, as in note 004"
    }  # which says no sizes
