"""Vit-text: part II of note 000, verified under all masks, and the captions of its shipped weights."""

import pytest
import torch
import torch.nn.functional as F

import tracer
from tests.support.plain_block import plain_block
from tests.support.verified import assert_comments, assert_verified
from tracer import models
from tracer.inputs import synthetic
from tracer.models import vit_text
from tracer.spec import blocks
from tracer.spec.preparation import LAST, generate_caption, greedy

SMALL = {"P": 16, "D": 12, "h": 2, "d_ff": 20, "L": 1}


@pytest.fixture(scope="module")
def model():
    return tracer.load("vit-text")


@pytest.fixture(scope="module")
def trace(model):
    return assert_verified(model)


def test_shape_comments_are_what_the_trace_solved(trace):
    derived = {"N": "H*W/P**2", "d_k": "D/h"}
    assert assert_comments(vit_text, trace, derived) >= 10
    other = tracer.load("vit-text", **SMALL, types=True, tied=False).trace(T=6)
    assert assert_comments(vit_text, other, derived) >= 12
    assert assert_comments(blocks, trace, derived, part="block1", S="N + T") >= 8


@pytest.mark.parametrize(
    ("mask", "tied", "types", "bias"),
    [
        ("causal", False, True, True),
        ("causal", True, True, False),
        ("prefix", True, False, True),
        ("prefix", False, True, False),
        ("bidirectional", True, True, True),
        ("bidirectional", False, False, False),
    ],
)
def test_all_is_verified_under_every_option(mask, tied, types, bias):
    sizes = {"H": 24, "W": 40, "P": 8, "C": 1, "V": 23, "T_max": 12, "D": 20, "h": 5, "d_ff": 31, "L": 1}
    model = tracer.load("vit-text", **sizes, mask=mask, tied=tied, types=types, bias=bias)
    trace = assert_verified(model, batch=3, T=7)
    assert trace.output.shape == (3, 7, 23) and not any(op.note for op in trace.ops)
    assert trace.step("sequence").shape == (3, 15 + 7, 20)
    assert ("image_type" in {step.id for step in trace.steps}) == types
    if mask == "bidirectional":
        assert "mask" not in {step.id for step in trace.steps} and trace.attention(0).min() > 0
        assert "none runs" in trace.step("block1.attention.scores").note
        return
    hidden = trace.value("mask") == float("-inf")
    expected = torch.ones(22, 22).triu(1).bool()
    if mask == "prefix":
        expected[:15, :15] = False
    assert torch.equal(hidden, expected)


def test_numbers_of_the_note():
    """Part II with a single head: every row of its summary, at ViT-B/16's sizes and a text of 5 tokens."""
    sizes = {"H": 224, "W": 224, "P": 16, "D": 768, "h": 1, "d_ff": 3072, "L": 1, "T_max": 5}
    trace = tracer.load("vit-text", **sizes).trace(T=5, prove=False)
    B, C, P, N, T, S, D, V = 1, 3, 16, 196, 5, 201, 768, 19
    expected = {
        "patches": (B, N, C * P**2),
        "embedding": (B, N, D),
        "position": (B, N, D),
        "text_position": (B, T, D),
        "sequence": (B, S, D),
        "mask": (S, S),
        "block1.norm1": (B, S, D),
        "block1.attention.query": (B, 1, S, D),
        "block1.attention.scores": (B, 1, S, S),
        "block1.attention.weights": (B, 1, S, S),
        "block1.attention.context": (B, S, D),
        "block1.attention.output": (B, S, D),
        "block1.attention.residual": (B, S, D),
        "block1.norm2": (B, S, D),
        "block1.mlp.hidden": (B, S, 4 * D),
        "block1.mlp.activation": (B, S, 4 * D),
        "block1.mlp.output": (B, S, D),
        "block1.mlp.residual": (B, S, D),
        "norm": (B, S, D),
        "text": (B, T, D),
        "logits": (B, T, V),
    }
    assert {step.id: step.shape for step in trace.steps if step.id in expected} == expected


def test_values_equal_a_plain_recomputation(model, trace):
    p, (image, tokens) = dict(model.net.named_parameters()), model.inputs()
    L, h = model.sizes["L"], model.sizes["h"]
    patches = F.unfold(image, 8, stride=8).transpose(1, 2)
    assert torch.equal(trace.value("patches"), patches)
    x = F.linear(patches, p["patches.weight"], p["patches.bias"]) + p["image_positions"]
    words = p["tokens.weight"][tokens] + p["text_positions"][: tokens.shape[1]]
    x = torch.cat([x, words], 1)
    assert torch.allclose(trace.value("sequence"), x, atol=1e-5)
    for layer in range(1, L + 1):
        x = plain_block(x, p, f"block{layer}", h, causal=True, eps=1e-5)
    x = F.layer_norm(x, x.shape[-1:], p["norm.weight"], p["norm.bias"])[:, 64:]
    assert torch.allclose(trace.output, x @ p["tokens.weight"].T, atol=1e-3)


def test_a_strided_convolution_embeds_the_same_without_reordering(model, trace):
    """Note 000, 0.1: Conv2d with kernel and stride P; weights [D, CP²] are its [D, C, P, P], as they are."""
    weight = model.net.patches.weight.unflatten(1, (3, 8, 8))
    grid = F.conv2d(model.inputs()[0], weight, model.net.patches.bias, stride=8)  # [B, D, H/P, W/P]
    assert grid.shape[2:] == (8, 8)
    assert torch.allclose(trace.value("embedding"), grid.flatten(2).transpose(1, 2), atol=1e-5)
    assert "no reordering" in trace.step("embedding").note


def changed_positions(model, change) -> list[int]:
    """Return the positions of X_f that differ after `change(image, tokens)`."""
    image, tokens = (tensor.clone() for tensor in model.inputs())
    ends = []
    hook = model.net.norm.register_forward_hook(lambda module, given, made: ends.append(made))
    with torch.no_grad():
        model.net(image, tokens)
        change(image, tokens)
        model.net(image, tokens)
    hook.remove()
    return (ends[0] != ends[1]).any(-1)[0].nonzero().flatten().tolist()


@pytest.mark.parametrize("mask", ["causal", "prefix"])
def test_what_the_notes_beside_the_mask_say_is_so(mask):
    """Patch 40 of 64 changes, then word 3 of 11: under the causal mask no earlier patch moves."""
    model = tracer.load("vit-text", mask=mask, D=20, h=2, d_ff=31, L=1)
    trace = model.trace(prove=False)

    def patch(image, tokens):
        image[:, :, 40:48, 0:8] += 1

    def word(image, tokens):
        tokens[:, 3] = (tokens[:, 3] + 1) % 19

    first = 40 if mask == "causal" else 0
    assert changed_positions(model, patch) == list(range(first, 75))
    assert changed_positions(model, word) == list(range(64 + 3, 75))
    assert ("first sees only itself" in trace.step("mask").note) == (mask == "causal")
    assert torch.equal(trace.attention(0, 0, 0)[0].nonzero().flatten(), torch.arange(1 if mask == "causal" else 64))


def test_only_words_are_read_so_the_begin_token_predicts_the_first(trace):
    assert trace.step("text").stage == "head" and "begin token" in trace.step("text").note
    assert trace.words[0] == "<begin>" and trace.words[1:5] == ("a", "large", "red", "circle")
    assert [(s.name, s.start, s.stop) for s in trace.segments] == [("image", 0, 64), ("text", 64, 75)]
    assert trace.picture.first == 0 and len(trace.words) == trace.output.shape[1] == 11


def test_notes_stand_where_note_and_run_differ(trace):
    notes = {step.id: step.note for step in trace.steps if step.note}
    outside = {"embedding", "position", "words", "text_position", "mask", "text"}
    names = ("attention.query", "attention.scores", "attention.context", "attention.residual", "mlp.output")
    inside = {f"block1.{name}" for name in names}
    assert outside | inside <= notes.keys()
    assert all(note.count(". ") == 0 and note.endswith(".") for note in notes.values())


def test_the_result_is_the_caption_and_the_next_word(model, trace, tmp_path):
    result = trace.result
    assert result["kind"] == "caption" and result["caption"] == " ".join(result["words"])
    assert result["text"] == list(trace.words)
    shares = trace.output[0, -1].softmax(-1)
    assert result["probabilities"][0] == pytest.approx(shares.max().item())
    assert result["tokens"][0] == synthetic.VOCABULARY[shares.argmax()]
    trace.save(tmp_path / "run.safetensors")
    again = tracer.open(tmp_path / "run.safetensors")
    assert again.result == result and again.words == trace.words and again.segments == trace.segments


@pytest.mark.sweep
def test_only_a_model_that_stays_as_it_is_remembers_what_it_wrote(monkeypatch):
    model, wrote = tracer.load("vit-text", **SMALL), []
    monkeypatch.setattr("tracer.spec.preparation.greedy", lambda *given: wrote.append(1) or greedy(*given))
    pictures = torch.rand(LAST + 5, 1, 3, 64, 64)
    model.trace(image=synthetic.sample_scene().image(), prove=False)
    assert len(wrote) == 2, "once for the words that go in, once for what it says"
    model.fixed = True
    model.trace(image=synthetic.sample_scene().image(), prove=False)
    assert len(wrote) == 3
    for picture in pictures:
        assert generate_caption(model, picture) == greedy(model.net, picture, model.sizes["T_max"])[0]
    assert len(wrote) == 3 + len(pictures) and len(model.captions) == LAST
    assert generate_caption(model, pictures[-1]) is model.captions[list(model.captions)[-1]] and len(wrote) == 3 + len(
        pictures
    )


def test_the_caption_is_the_most_probable_word_each_time(model):
    image, numbers = model.inputs()[0], [0]
    with torch.no_grad():
        while len(numbers) < 17 and (best := model.net(image, torch.tensor([numbers]))[0, -1].argmax().item()) != 1:
            numbers.append(best)
    assert greedy(model.net, image.expand(2, -1, -1, -1), 17) == [numbers[1:]] * 2


def test_a_picture_alone_is_given_the_words_that_the_model_writes(model):
    picture = synthetic.scene(9).image()
    inputs = model.inputs(image=picture)
    said = greedy(model.net, inputs[0], 17)[0]
    assert inputs[1].tolist() == [[0, *said]]
    both = model.inputs(image=picture, text="A small red star.", B=2)
    assert both.words == ("<begin>", "a", "small", "red", "star") and both[1].shape == (2, 5)
    assert torch.equal(both[0][0], inputs[0][0])
    assert model.inputs(text="")[1].tolist() == [[0]]
    long = tracer.load("vit-text", T_max=500, **SMALL).trace(prove=False)
    assert len(long.result["words"]) < 32


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (lambda: tracer.load("vit-text", W=30), "H=64, W=30 don't fit P=8"),
        (lambda: tracer.load("vit-text", D=30, h=4), "D=30 is not divisible by h=4"),
        (lambda: tracer.load("vit-text", T=4), "T is not a size of the weights but of the input"),
        (
            lambda: tracer.load("vit-text", mask="none"),
            "mask='none' is not a choice of 'vit-text', expected 'causal' or 'prefix' or 'bid",
        ),
        (
            lambda: tracer.load("vit-text").inputs(text="a pink star"),
            "'a pink star' contains 'pink', which is not one of",
        ),
        (lambda: tracer.load("vit-text").inputs(text="a red " * 9), "T=19 tokens, with the one that begins, are too"),
        (lambda: tracer.load("vit-text").inputs(T=18), "T=18 tokens, with the one that begins, are too many"),
        (lambda: tracer.load("vit-text").inputs(N=5), "N=5 is not a size of this input"),
        (
            lambda: tracer.load("vit-text", T_max=2).net(torch.zeros(1, 3, 64, 64), torch.zeros(1, 3).long()),
            "T=3 tokens are too many: the position table has T_max=2 rows",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(run, words):
    with pytest.raises(ValueError, match=words) as raised:
        run()
    assert "\n" not in str(raised.value)


def test_other_vocabularies_run():
    for size in (5, 40):
        trace = tracer.load("vit-text", V=size, **SMALL).trace(prove=False)
        assert trace.output.shape[-1] == size and len(trace.words) == 11


def test_shipped_weights_say_what_the_scene_shows(model, trace):
    card = models.card("vit-text")
    assert (models.WEIGHTS / "vit-text.safetensors").stat().st_size <= 3 * 2**20
    assert {"sizes", "options", "vocabulary", "data", "steps", "three objects", "date", "command"} <= card.keys()
    assert card["one or two objects"] >= 0.95
    assert card["pointing, mean over heads"]["share"] > 2 * card["pointing by chance"]
    sample = synthetic.sample_scene()
    assert trace.result["caption"] == sample.caption
    for colour in ("green", "purple"):
        changed = sample.but(0, colour=colour)
        assert model.trace(image=changed.image(), prove=False).result["caption"] == changed.caption
