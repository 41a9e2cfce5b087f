"""Tokenizations: each is verified step by step, on more than one input, and ends in the common shape."""

import pytest
import torch

from tracer.inputs.model_inputs import samples
from tracer.lessons import tokenization
from tracer.lessons.tokenization import pictures, text

SENTENCES = ("My lord, the naïve tokenizer unhappily ate 🍕.", "שלום 你好 e\u0301")
NASTY = (
    "", " ", "a\n\tb  c", *SENTENCES, "مرحبا بالعالم", "👨‍👩‍👧", "\x00\x07", "[UNK] ##a ▁x Ġ", "ﬁ\ufeff\u200b",
    "x" * 160,
)  # fmt: skip


def verified(run, *shape) -> None:
    """Return whether all of a run is verified, and whether it ends in tokens of this shape."""
    assert {step.verdict for step in run.steps} == {"verified"} and not run.notes
    made = tokenization.before(run)[-1]
    assert (made.symbolic, made.shape) == (("B", "n", "D"), shape)
    assert all("?" not in step.symbolic for step in run.steps) and tuple(run.output.shape) == shape


@pytest.mark.parametrize("name", text.SAYS)
def test_a_text_is_verified_however_it_is_cut(name):
    speller = text.shipped_tokenizers()[name]
    for sentence in SENTENCES:
        ids = [piece.id for piece in speller.encode(sentence)]
        if name == "characters":
            run = text.trace_characters(sentence, speller.vocabulary)
            assert run.value("tokens.argmax")[0].tolist() == ids
        else:
            run = text.looked_up(name, ids, len(speller.vocabulary))
        verified(run, 1, len(ids), 32)
        rows = run.value(tokenization.before(run)[-1])[0]
        assert torch.equal(rows, text.table(len(speller.vocabulary)).rows.weight[ids])


def test_patches_are_verified():
    for photo in ("horse", "cat"):
        verified(pictures.patches(samples("photos")[photo](), 16), 1, 64, 32)


@pytest.mark.parametrize("entries", pictures.CODES)
def test_codes_are_verified_and_spell_the_picture(entries):
    for name in ("horse", "cat"):
        photo = samples("photos")[name]()
        run, made = pictures.codes(photo, entries), pictures.rebuilt(photo, entries)
        verified(run, 1, 256, 32)
        (ids,) = (run.value(step) for step in run.steps if step.symbol == r"\mathbf{t}")
        assert torch.equal(ids.view(16, 16), torch.from_numpy(made.ids))
        vectors, codes = pictures.Cut(8)(pictures.pixels(photo))[0], pictures.codebook(entries)
        away = torch.cdist(vectors.double(), codes.double())
        assert (away[range(256), ids[0]] <= away.min(dim=1).values + 1e-5).all()
        nearest = away[range(256), ids[0]]
        assert made.error == pytest.approx(127.5 * float(nearest.square().mean() / 192) ** 0.5, rel=1e-4)
        patch = made.picture[16:24, 40:48]
        assert (patch == made.codes[made.ids[2, 5]]).all()


def test_more_codes_spell_a_photo_better():
    errors = [pictures.rebuilt(samples("photos")["dog"](), entries).error for entries in pictures.CODES]
    assert errors == sorted(errors, reverse=True) and errors[-1] < 0.8 * errors[0]


def test_codes_are_means_of_patches_of_the_photos():
    """As far as k-means has settled: nothing but pixels made them."""
    photos = [opened() for opened in samples("photos").values()]
    assert len(photos) == 7 and "seven photos" in pictures.SLIPS["codes"][0]
    vectors = torch.cat([pictures.Cut(8)(pictures.pixels(photo))[0] for photo in photos])
    codes = pictures.codebook(16)
    ids = torch.cdist(vectors, codes).argmin(dim=1)
    means = torch.stack([vectors[ids == id].mean(dim=0) for id in range(16)])
    assert (means - codes).abs().max() < 0.05


def test_a_convolution_is_the_same_product_with_its_weights_reordered():
    net, image = pictures.Patches(C=3, P=16, D=8), torch.randn(1, 3, 32, 48)
    weights = net.embedding.weight.view(8, 16, 16, 3).permute(0, 3, 1, 2)
    made = torch.conv2d(image, weights, net.embedding.bias, stride=16).flatten(2).transpose(1, 2)
    assert torch.allclose(made, net(image), atol=1e-5)
    plainly = torch.conv2d(image, net.embedding.weight.view(8, 3, 16, 16), net.embedding.bias, stride=16)
    assert not torch.allclose(plainly.flatten(2).transpose(1, 2), net(image), atol=1e-2)


def test_all_ways_are_fed_to_one_block():
    ids, photo = [1, 2, 3], samples("photos")["horse"]()
    last = [text.looked_up("bytes", ids, 256), pictures.patches(photo, 32)]
    for run in last:
        given = run.value(tokenization.before(run)[-1])
        with torch.no_grad():
            assert torch.equal(tokenization.block()(given), run.output)


def test_no_input_has_a_name_of_code():
    run = text.trace_characters("hello", text.shipped_tokenizers()["characters"].vocabulary)
    assert (
        tokenization.before(run)[0].latex.count(r"\mathbf{x}") == 1 and "text" not in tokenization.before(run)[0].latex
    )


def test_a_text_without_tokens_is_refused():
    with pytest.raises(ValueError, match="expected at least one"):
        text.looked_up("words", [], 1000)


@pytest.mark.parametrize("name", text.TOKENIZERS)
def test_every_text_can_be_cut(name):
    speller = text.shipped_tokenizers()[name]
    for sentence in NASTY:
        pieces = speller.encode(sentence)
        assert all(0 <= piece.id < len(speller.vocabulary) for piece in pieces)
        assert all(speller.vocabulary[piece.id] == piece.entry for piece in pieces)
        assert all(0 <= piece.start <= piece.end <= len(sentence) for piece in pieces)
        spelled = speller.decode([piece.id for piece in pieces])
        assert (spelled == sentence) or name not in ("bytes", "bpe")
        assert (text.differences(sentence, spelled) == []) == (spelled == sentence)


def test_what_is_lost_is_said():
    speller = text.shipped_tokenizers()
    sentence = SENTENCES[0]
    back = {name: way.decode([piece.id for piece in way.encode(sentence)]) for name, way in speller.items()}
    assert back["characters"] == "My lord, the na[UNK]ve tokenizer unhappily ate [UNK]."
    assert back["words"] == "My lord , the [UNK] [UNK] [UNK] [UNK] [UNK]"
    assert text.differences(sentence, back["unigram"]) == [("ï", "[UNK]"), ("🍕", "[UNK]")]


def test_learning_twice_gives_the_same():
    again = text.learn(text.shipped_text())
    for name, speller in text.shipped_tokenizers().items():
        assert again[name].vocabulary == speller.vocabulary
        for sentence in NASTY:
            assert again[name].encode(sentence) == speller.encode(sentence)


@pytest.mark.parametrize("count", [0, 1, 60, 500])
def test_the_first_merges_are_those_of_a_smaller_vocabulary(count):
    whole = text.shipped_tokenizers()["bpe"]
    first, smaller = whole.first(count), text.BytePairs(text.shipped_text(), count)
    assert smaller.merges == whole.merges[:count] == first.merges
    assert first.vocabulary == smaller.vocabulary and len(first.vocabulary) == 256 + count
    for sentence in NASTY:
        assert first.encode(sentence) == smaller.encode(sentence)


def test_without_merges_bpe_is_bytes():
    first = text.shipped_tokenizers()["bpe"].first(0)
    for sentence in NASTY:
        assert [piece.raw for piece in first.encode(sentence)] == [bytes([byte]) for byte in sentence.encode()]


@pytest.mark.parametrize(
    ("corpus", "said"),
    [("short", "has 5 characters, expected 100 to 20,000"), ("a b " * 6000, "characters, expected 100 to 20,000"),
     ("".join(map(chr, range(0x4E00, 0x4E00 + 4000))), "4,000 different characters, expected at most 3,000")],
)  # fmt: skip
def test_a_text_that_nothing_can_be_learned_from_is_refused(corpus, said):
    with pytest.raises(ValueError, match=said):
        text.check_corpus(corpus)


@pytest.mark.parametrize("corpus", ["a" * 20_000, "\x00\x07 " * 50, "你好世界，" * 400, "🍕\u200d" * 100 + "\ud800"])
def test_strange_texts_can_be_learned_from(corpus):
    for speller in text.learn(text.check_corpus(corpus)).values():
        assert speller.encode("hello 🍕 你好")
