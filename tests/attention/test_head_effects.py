"""Effects of heads: equal to edited weights of plain PyTorch, and to recomputed distances and entropies."""

import copy
from math import hypot, log

import numpy as np
import pytest
import torch

import tracer
from tracer import zoo
from tracer.attention.head_effects import HeadSwitchboard, effects, head_effects, head_sites


@pytest.fixture(scope="module")
def vit_effects(vit, plain):
    return head_effects(vit, vit.inputs(), plain)


def without(model, layer, head):
    """Return the output of a copy of the net in which the output projection ignores a head."""
    net, width = copy.deepcopy(model.net), model.sizes["D"] // model.sizes["h"]
    with torch.no_grad():
        net.get_submodule(f"block{layer + 1}.attention").output.weight[:, head * width : (head + 1) * width] = 0
        return net(*model.inputs())


@pytest.mark.parametrize(("name", "last"), [("vit", ...), ("nanogpt", -1)])
def test_each_head_off_is_the_same_as_zeroed_columns_of_the_output_projection(name, last):
    model = tracer.load(name)
    probe = HeadSwitchboard(model, model.inputs(), head_sites(model.trace(prove=False))).probe(model.inputs())
    assert [tuple(head) for head in probe.heads] == list(np.ndindex(model.sizes["L"], model.sizes["h"]))
    found = effects(probe)
    before = model.net(*model.inputs())[0, last].detach().softmax(-1)
    for row, (layer, head) in enumerate(probe.heads, start=1):
        output = without(model, layer, head)
        torch.testing.assert_close(probe.outputs[row : row + 1], output, rtol=1e-4, atol=1e-4)
        after = output[0, last].softmax(-1)
        points = 100 * float(after[before.argmax()] - before.max())
        assert found.change[layer, head] == pytest.approx(points, abs=1e-3)
        assert found.flips[layer, head] == bool(after.argmax() != before.argmax())
    assert found.probability == pytest.approx(float(before.max()))


def test_a_batch_gives_what_single_runs_give(vit, plain, vit_effects):
    board = HeadSwitchboard(vit, vit.inputs(), head_sites(plain))
    board._rows = 2
    np.testing.assert_allclose(effects(board.probe(vit.inputs())).change, vit_effects.change, atol=1e-3)


def test_every_run_of_a_batch_has_the_same_noise(vit):
    noisy = vit.with_changes({"block1.mlp.output": "noise(0.5,1)"})
    trace = noisy.trace(prove=False)
    whole = head_effects(noisy, noisy.inputs(), trace)
    alone = HeadSwitchboard(noisy, noisy.inputs(), head_sites(trace))
    alone._rows = 2
    assert np.allclose(effects(alone.probe(noisy.inputs())).change, whole.change, atol=1e-3)


def test_entropy_and_distance_are_those_of_the_weights(plain, vit_effects):
    weights, side = plain.attention(1, 2)[0].double().tolist(), plain.picture.columns
    rows, distances = weights[1:], []
    for query, row in enumerate(rows):
        far = [hypot(query // side - key // side, query % side - key % side) for key in range(side * side)]
        distances.append(sum(w * d for w, d in zip(row[1:], far, strict=True)) / sum(row[1:]))
    entropy = [-sum(w * log(w) for w in row if w) for row in weights]
    assert vit_effects.distance[1, 2] == pytest.approx(np.mean(distances), rel=1e-6)
    assert vit_effects.entropy[1, 2] == pytest.approx(np.mean(entropy), rel=1e-6)
    assert vit_effects.special[1, 2] == pytest.approx(np.mean([row[0] for row in rows]), rel=1e-6)


def test_a_changed_model_keeps_its_changes(vit, vit_effects):
    line = "block3.attention.weights"
    changed = vit.with_changes({line: "drop_heads(1)"})
    now = head_effects(changed, changed.inputs(), changed.trace(prove=False))
    assert now.change[2, 1] == pytest.approx(0, abs=1e-4)
    assert now.probability == pytest.approx(vit_effects.probability + vit_effects.change[2, 1] / 100, abs=1e-5)


def test_a_head_that_a_change_switched_off_has_no_entropy(vit):
    model = vit.with_changes({"block2.attention.weights": "drop_heads(1)"})
    effects = head_effects(model, model.inputs(), model.trace(prove=False))
    assert np.isnan(effects.entropy[1, 1]) and np.isnan(effects.distance[1, 1])
    assert np.isfinite(effects.entropy).sum() == effects.entropy.size - 1


def test_a_model_without_probabilities_has_the_size_of_the_change():
    model = tracer.load("mae")
    found = head_effects(model, model.inputs(), model.trace(prove=False))
    assert not found.points and found.probability is None and not found.flips.any()
    assert (found.change[: len(found.layers)] > 0).all() and np.isnan(found.special).all()


@pytest.mark.sweep
def test_fused_attention_of_a_library_is_opened():
    model = tracer.load("hf:gpt2")
    trace = model.trace(prove=False)
    found = head_effects(model, model.inputs(), trace)
    line = trace.ops[trace.attentions[1].op].step.replace(".context", ".weights")
    off = model.trace(change={line: "drop_heads(3)"}, prove=False)
    best = int(trace.output["logits"][0, -1].argmax())
    after = float(off.output["logits"][0, -1].softmax(-1)[best])
    assert found.change[1, 3] == pytest.approx(100 * (after - found.probability), abs=1e-4)


def test_a_run_without_attention_is_refused_in_a_sentence(vit):
    trace = tracer.trace(torch.nn.Linear(2, 2), torch.ones(1, 2), prove=False)
    with pytest.raises(ValueError, match="ran no attention"):
        head_sites(trace)


def test_a_loss_beside_the_output_is_left_out():
    """ViTMAE returns its loss first: one number for the whole batch."""
    model = tracer.load("hf:vit_mae", **zoo.tiny("hf:vit_mae"))
    inputs = model.inputs()
    off = head_effects(model, inputs, model.trace(prove=False))
    assert not off.points and (off.change[np.isfinite(off.change)] > 0).all()
