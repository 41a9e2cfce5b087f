"""Text written token by token: greedy or drawn, each token from the run of the text before it."""

import pytest
import torch

import tracer
from tracer.models import nanogpt
from tracer.spec.decoding import choose, join_tokens, read_of, room, words_of, write


@pytest.fixture(scope="module")
def model():
    return tracer.load("nanogpt", T_max=11, D=12, h=3, d_ff=20, L=2)


def test_greedy_text_takes_the_largest_logit_of_each_run(model):
    text, found = "To be", list(write(model, "To be", 9))
    for token in found:
        trace = model.trace(text=read_of(model, text))
        assert trace.coverage == 1 and "".join(trace.words) == text[-11:]
        assert token == nanogpt.SHAKESPEARE[int(trace.output[0, -1].argmax())] == trace.result["tokens"][0]
        text += token
    assert len(found) == 9 and len(text) == 14
    assert list(write(model, "To be", 9, temperature=3, top_k=1)) == found


def test_sampled_text_is_seeded_and_keeps_to_the_top_k(model):
    first, again, other = ("".join(write(model, "To be", 6, temperature=1, seed=seed)) for seed in (1, 1, 2))
    assert first == again != other
    text = "To be"
    for token in write(model, text, 6, temperature=5.0, top_k=3):
        assert token in model.trace(text=read_of(model, text), prove=False).result["tokens"][:3]
        text += token


def test_tokens_are_drawn_as_often_as_their_probability_says():
    logits, random = torch.tensor([2.0, 1.0, 0.0, -1.0]), torch.Generator().manual_seed(0)
    for temperature, top_k in ((1.0, None), (0.5, None), (2.0, 2)):
        drawn = torch.tensor([choose(logits, temperature, top_k, random) for _ in range(4000)])
        shares = (logits / temperature).softmax(-1)
        if top_k:
            shares = shares * (torch.arange(4) < top_k)
        assert torch.allclose(drawn.bincount(minlength=4) / 4000, shares / shares.sum(), atol=0.03)


@pytest.mark.parametrize("settings", [{"count": -1}, {"count": 2.5}, {"temperature": -1}, {"top_k": 0}], ids=str)
def test_settings_that_can_not_be_are_refused(model, settings):
    (name, value), *_ = settings.items()
    with pytest.raises(ValueError, match=f"{name}={value} is not possible"):
        write(model, "To be", **{"count": 1} | settings)


def test_writing_ends_with_the_sentence():
    model = tracer.load("vit-text")
    tokens = list(write(model, "a large red", 30))
    assert tokens[0] == "circle" and tokens[-1] == "<end>" and tokens.count("<end>") == 1


def test_there_is_room_for_as_many_words_as_the_model_reads():
    model = tracer.load("vit-text", T_max=5, L=1)
    assert (room(model, ""), room(model, "a large red circle"), room(model, "a " * 5)) == (5, 1, 0)
    assert len(list(write(model, "a large", 3))) <= 3 == room(model, "a large")
    with pytest.raises(ValueError, match="too many"):
        model.inputs(text="a large red circle a")
    assert room(tracer.load("nanogpt", L=1), "To be") is None


def test_characters_and_words_are_joined_in_their_own_way():
    assert join_tokens("abc", "a b", ["c", " "]) == "a bc "
    assert join_tokens(("a", "b"), "", ["a", "b"]) == "a b" and join_tokens(("a", "b"), "b", []) == "b"
    assert words_of(tracer.load("nanogpt", L=1))[0] == "\n"
