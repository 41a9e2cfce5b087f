"""vit-note: note 001 number for number, each row of its Complete Shape Trace against the run."""

from math import sqrt

import pytest
import torch
import torch.nn.functional as F

import tracer
from tests.support.verified import assert_comments, assert_verified
from tracer import models
from tracer.models import vit_note
from tracer.record import Step

SMALL = {"H": 12, "W": 20, "C": 2, "P": 4, "D": 18, "d_k": 7, "d_ff": 22, "L": 2, "K": 5}


@pytest.fixture(scope="module")
def model():
    return tracer.load("vit-note")


@pytest.fixture(scope="module")
def trace(model):
    return assert_verified(model)


@pytest.mark.parametrize("given", [{}, {"B": 3}], ids=str)
def test_all_is_verified_at_other_sizes(given):
    trace = assert_verified(tracer.load("vit-note", **SMALL), **given)
    assert trace.attention(0).shape == (given.get("B", 1), 1, 16, 16) and len(trace.attentions) == 2


B = "block1."
SHAPE_TRACE = [
    ("Input", "Raw image", "input", (224, 224, 3)),
    ("1", "Patch extraction + flatten", "patches", (196, 768)),
    ("2", "Linear embedding W_E", "embedding", (196, 768)),
    ("3", "Prepend CLS token", "sequence", (197, 768)),
    ("4", "Add positional encoding", "position", (197, 768)),
    ("5", "Layer Norm", B + "norm1", (197, 768)),
    ("6a", "Project to Q", B + "attention.query", (197, 64)),
    ("6a", "Project to K", B + "attention.key", (197, 64)),
    ("6a", "Project to V", B + "attention.value", (197, 64)),
    ("6b", "QKᵀ / √d_k", B + "attention.scores", (197, 197)),
    ("6c", "Softmax (row-wise)", B + "attention.weights", (197, 197)),
    ("6d", "Â V", B + "attention.context", (197, 64)),
    ("6e", "Output projection W_O", B + "attention.output", (197, 768)),
    ("7", "Residual add", B + "attention.residual", (197, 768)),
    ("8", "LN", B + "norm2", (197, 768)),
    ("8", "MLP", B + "mlp.output", (197, 768)),
    ("8", "residual", B + "mlp.residual", (197, 768)),
    ("9", "CLS token", "cls", (768,)),
    ("9", "linear", "logits", (10,)),
    ("10", "Patch tokens, reshape, upsample", "segmenter", (224, 224, "K")),
]


@pytest.mark.parametrize(("number", "operation", "step", "shape"), SHAPE_TRACE, ids=lambda value: str(value)[:20])
def test_complete_shape_trace(trace, model, number, operation, step, shape):
    """The note has no batch and writes images channels-last; step 10 is a system of its own, the segmenter."""
    if step == "input":
        batch, channels, height, width = model.inputs()[0].shape
        assert (height, width, channels) == shape and batch == 1
    elif step == "segmenter":
        assert "segmenter" in models.names()
    else:
        found = trace.step(step)
        assert isinstance(found, Step) and found.shape == (1, *shape)


def test_setup_and_notation(model):
    """The note's first table, and the shapes of the weights that its steps name."""
    sizes = {"H": 224, "W": 224, "C": 3, "P": 16, "D": 768, "d_k": 64, "d_ff": 3072, "L": 1, "K": 10}
    assert model.sizes == sizes and model.vocabulary.complete(sizes)["N"] == 196 == 14 * 14
    shapes = {name: tuple(parameter.shape) for name, parameter in model.net.named_parameters()}
    turned = {  # PyTorch keeps [out, in]
        "embedding.weight": (768, 768),
        "block1.attention.query.weight": (64, 768),
        "block1.attention.key.weight": (64, 768),
        "block1.attention.value.weight": (64, 768),
        "block1.attention.output.weight": (768, 64),
        "block1.mlp.expand.weight": (3072, 768),
        "block1.mlp.contract.weight": (768, 3072),
        "head.weight": (10, 768),
    }
    vectors = {"embedding.bias": (768,), "cls": (768,), "block1.mlp.expand.bias": (3072,)}
    vectors |= {"block1.mlp.contract.bias": (768,), "position": (197, 768)}
    norms = {f"block1.norm{i}.{name}": (768,) for i in (1, 2) for name in ("weight", "bias")}
    assert shapes == turned | vectors | norms


def test_values_equal_a_plain_recomputation(model, trace):
    """By hand, in the note's own letters."""
    p, (image,) = dict(model.net.named_parameters()), model.inputs()
    patches = F.unfold(image, 16, stride=16).transpose(1, 2).unflatten(2, (3, 256)).transpose(2, 3).flatten(2)
    z = patches @ p["embedding.weight"].T + p["embedding.bias"]
    z = torch.cat([p["cls"].expand(1, 1, -1), z], 1) + p["position"]

    def norm(x, name):
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
        return p[f"block1.{name}.weight"] * (x - mean) / (variance + 1e-6).sqrt() + p[f"block1.{name}.bias"]

    q, k, v = (norm(z, "norm1") @ p[f"block1.attention.{name}.weight"].T for name in ("query", "key", "value"))
    weights = (q @ k.transpose(1, 2) / 8).softmax(-1)
    assert torch.allclose(trace.value(B + "attention.weights"), weights, atol=1e-6)
    assert torch.allclose(trace.attention(0, head=0), weights, atol=1e-6)
    z = z + weights @ v @ p["block1.attention.output.weight"].T
    hidden = F.gelu(norm(z, "norm2") @ p["block1.mlp.expand.weight"].T + p["block1.mlp.expand.bias"])
    z = z + hidden @ p["block1.mlp.contract.weight"].T + p["block1.mlp.contract.bias"]
    assert torch.allclose(trace.value(B + "mlp.residual"), z, atol=1e-4)
    assert torch.allclose(trace.output, z[:, 0] @ p["head.weight"].T, atol=1e-4)


def test_slips_of_the_note_are_noted_and_true(trace):
    """Each note beside a step, and the run that shows it."""
    assert trace.step(B + "norm1").note.startswith("Note 001 divides by σ + ε")
    for key, note in vit_note.NOTES.items():
        text = note if isinstance(note, str) else note[0].text
        assert any(step.id.endswith(key) and step.note == text for step in trace.steps)
    net = tracer.load("vit-note", **SMALL).net.block1.attention
    x, order = torch.randn(1, 6, 18, generator=torch.Generator().manual_seed(0)), torch.tensor([3, 0, 5, 1, 4, 2])
    with torch.no_grad():
        assert torch.allclose(net(x[:, order]), net(x)[:, order], atol=1e-6)  # equivariant …
        assert not torch.allclose(net(x[:, order]), net(x), atol=1e-2)  # … and not invariant
        shared = net.query(x) @ net.query(x).transpose(1, 2) / sqrt(7)
    assert torch.allclose(shared, shared.mT) and not torch.allclose(
        shared.softmax(-1), shared.softmax(-1).mT, atol=1e-4
    )
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    biased = F.layer_norm(x, (4,), eps=0.1)
    assert torch.allclose(biased, (x - 2.5) / (1.25 + 0.1) ** 0.5)
    assert not torch.allclose(biased, (x - 2.5) / (1.25**0.5 + 0.1), atol=1e-3)


def test_a_strided_convolution_needs_reordered_weights(model, trace):
    weight = model.net.embedding.weight.unflatten(1, (16, 16, 3))
    for reordered, same in ((weight.permute(0, 3, 1, 2), True), (weight.reshape(768, 3, 16, 16), False)):
        made = F.conv2d(model.inputs()[0], reordered, model.net.embedding.bias, stride=16).flatten(2).transpose(1, 2)
        assert torch.allclose(trace.value("embedding"), made, atol=1e-4) is same


REFUSED_SIZES = [
    ({"h": 2}, "'vit-note' has no size 'h'"),
    ({"N": 5}, "N=5 can't be set, since N is derived"),
    ({"H": 230}, "H=230, W=224 don't fit P=16"),
    ({"T": 4}, "'vit-note' has no size 'T'"),
]


@pytest.mark.parametrize(("sizes", "message"), REFUSED_SIZES, ids=str)
def test_sizes_that_do_not_fit_are_refused_in_one_sentence(sizes, message):
    with pytest.raises(ValueError, match=message) as caught:
        tracer.load("vit-note", **sizes)
    assert "\n" not in str(caught.value)


def test_shape_comments_are_what_the_trace_solved(trace):
    assert assert_comments(vit_note, trace, {"N": "H*W/P**2"}, S="N + 1") >= 15
