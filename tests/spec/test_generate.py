"""Text written token by token: greedy or drawn, with the run of each token."""

import pytest
import torch

import tracer
from tracer.models import nanogpt
from tracer.spec.decoding import choose, generate, join_tokens, room, words_of, write


@pytest.fixture(scope="module")
def model():
    return tracer.load("nanogpt", T_max=11, D=12, h=3, d_ff=20, L=2)


def test_greedy_text_takes_the_largest_logit_and_traces_each_token(model):
    text, found = "To be", list(generate(model, "To be", 9))
    for token, trace in found:
        assert trace.coverage == 1 and "".join(trace.words) == text[-11:]
        assert token == nanogpt.SHAKESPEARE[int(trace.output[0, -1].argmax())] == trace.result["tokens"][0]
        text += token
    assert len(found) == 9 and len(text) == 14
    assert [token for token, _ in generate(model, "To be", 9, temperature=3, top_k=1)] == [token for token, _ in found]


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.5, "top_k": 5, "seed": 3}], ids=str)
def test_writing_without_traces_gives_the_same_tokens(model, settings):
    found = [token for token, _ in generate(model, "To be", 9, prove=False, **settings)]
    assert list(write(model, "To be", 9, **settings)) == found
    with pytest.raises(ValueError, match="count=-1 is not possible"):
        write(model, "To be", -1)


def test_sampled_text_is_seeded_and_keeps_to_the_top_k(model):
    def generate_text(**settings):
        return "".join(token for token, _ in generate(model, "To be", 6, prove=False, **settings))

    assert (
        generate_text(temperature=1, seed=1)
        == generate_text(temperature=1, seed=1)
        != generate_text(temperature=1, seed=2)
    )
    for token, trace in generate(model, "To be", 6, temperature=5.0, top_k=3, prove=False):
        assert token in trace.result["tokens"][:3]


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
        generate(model, "To be", **{"count": 1} | settings)


def test_writing_ends_with_the_sentence():
    model = tracer.load("vit-text")
    tokens = [token for token, _ in generate(model, "a large red", 30, prove=False)]
    assert tokens[0] == "circle" and tokens[-1] == "<end>" and tokens.count("<end>") == 1
    assert list(write(model, "a large red", 30)) == tokens


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
