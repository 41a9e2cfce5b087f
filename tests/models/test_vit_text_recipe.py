"""Recipe of vit-text: its targets, that it learns them, and the sizes that it refuses."""

import pytest
import torch
import torch.nn.functional as F

from tests.models.test_vit_text import SMALL
from tests.support.verified import assert_learns
from tracer.inputs import synthetic
from tracer.models import training, vit_text
from tracer.models.training.recipes import vit_text as vit_text_recipe
from tracer.models.training.recipes.vit_text import IGNORE_INDEX, captions, exact
from tracer.spec.preparation import greedy


def test_targets_are_the_tokens_shifted_by_one():
    drawn = synthetic.gather([synthetic.sample_scene(), synthetic.scene(3, 1)])
    tokens, targets = captions(drawn)
    assert [synthetic.VOCABULARY[number] for number in tokens[0]] == ["<begin>", *drawn[0].caption.split()]
    assert torch.equal(targets[0, :-1], tokens[0, 1:]) and targets[0, -1] == 1
    assert targets[1].tolist() == [*tokens[1, 1:5].tolist(), 1, *[IGNORE_INDEX] * 6]
    logits = F.one_hot(targets.clamp(min=0), 19).float()
    assert exact(logits, targets).tolist() == [True, True]
    logits[0, 4] = 0
    assert exact(logits, targets).tolist() == [False, True]


def test_the_recipe_learns_is_seeded_and_scores_what_it_writes(tmp_path):
    sizes = vit_text.SPEC.sizes | SMALL
    settings = {"sizes": sizes, "batch": 4, "count": 40, "tests": 10, "warmup": 2, "rate": 1e-2, "bf16": False}
    made, net, card = assert_learns("vit-text", tmp_path, settings)
    assert card["options"] == {"mask": "causal", "tied": True, "types": False, "bias": True}
    assert card["vocabulary"] == list(synthetic.VOCABULARY) and card["sizes"] == sizes
    one, two, three = drawn = made.read(None, "test")
    assert not (one.pixels() == made.read(None, "validation")[0].pixels()).all()
    assert len(one) == len(two) == len(three) == 10 and set(three.count) == {3}
    written = [greedy(net, vit_text_recipe.scenes.pixels(some), 17) for some in drawn]
    right = [
        sum(" ".join(synthetic.VOCABULARY[n] for n in row) == some[i].caption for i, row in enumerate(rows)) / 10
        for rows, some in zip(written, drawn, strict=True)
    ]
    assert [card[name] for name in ("one object", "two objects", "three objects")] == right


@pytest.mark.parametrize(
    ("sizes", "words"),
    [({"V": 7}, "captions of scenes need at least"), ({"C": 1}, r"scenes are drawn with H = W = 64 and C = 3")],
)
def test_recipes_refuse_sizes_that_scenes_do_not_fit(sizes, words):
    with pytest.raises(ValueError, match=words):
        training.recipe("vit-text", sizes=vit_text.SPEC.sizes | sizes)
