"""nanoGPT: proven under all its choices, its text written token by token, foreign checkpoints, its recipe."""

import json

import pytest
import torch
import torch.nn.functional as F
from proven import assert_comments, assert_golden, assert_proven
from safetensors.torch import load_file, save, save_file

import tracer
from tracer import blocks, cli, models, training
from tracer.generate import choose, generate
from tracer.models import nanogpt
from tracer.training.nanogpt import Recipe

SMALL = {"T_max": 11, "D": 12, "h": 3, "d_ff": 20, "L": 2}
CHOICES = [{}, {"bias": False}, {"tied": False}, {"tied": False, "bias": False}, {"gelu": "tanh"}, {"h": 1}]
CHOICES.append({"mask": "bidirectional"})


@pytest.fixture(scope="module")
def model():
    return tracer.load("nanogpt", **SMALL)


@pytest.fixture(scope="module")
def trace(model):
    return assert_proven(model)


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_all_is_proven(choice):
    model = tracer.load("nanogpt", **SMALL | choice)
    for given in ({}, {"B": 3, "T": 7}):
        trace = assert_proven(model, **given)
        assert len(trace.attentions) == 2
        assert trace.attentions[0].mask == ("none" if "mask" in choice else "causal")


def test_one_token_is_proven_too(model):
    assert_proven(model, T=1)


def test_shape_comments_are_what_the_trace_solved():
    trace = tracer.load("nanogpt", **SMALL, tied=False).trace()
    assert assert_comments(nanogpt, trace, {"d_k": "D/h"}) >= 4
    assert assert_comments(blocks, trace, {"d_k": "D/h"}, S="T") >= 10


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "separate"])
def test_golden_steps(tied, overwrite):
    trace = tracer.load("nanogpt", **SMALL | {"L": 1}, tied=tied).trace()
    assert_golden(trace, f"nanogpt-{'tied' if tied else 'separate'}", overwrite)


def test_no_token_sees_a_later_one(model):
    one, two = model.trace(text="To be, or"), model.trace(text="To be, to")
    assert torch.equal(one.output[:, :7], two.output[:, :7]) and not torch.equal(one.output[:, 7:], two.output[:, 7:])


def test_without_a_mask_every_token_sees_all_others_and_notes_say_so():
    model = tracer.load("nanogpt", mask="bidirectional")
    trace = model.trace(text="To be, or")
    assert "mask" not in {step.id for step in trace.steps} and trace.attention(0).min() > 0
    assert "none runs" in trace.step("block2.attention.scores").note
    assert trace.weights.endswith("but with mask=bidirectional and not causal")


# Checkpoints of others: small files in both orientations, their logits computed plainly below.

V, T, D, H, D_FF, L = 23, 9, 8, 2, 20, 2


def checkpoint(*, bias=True, tied=True, seed=0):
    """Tensors in nanoGPT's names, matrices [out, in]."""
    random = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(shape, generator=random) * 0.3

    made = {"transformer.wte.weight": draw(V, D), "transformer.wpe.weight": draw(T, D)}
    shapes = {"attn.c_attn": (3 * D, D), "attn.c_proj": (D, D), "mlp.c_fc": (D_FF, D), "mlp.c_proj": (D, D_FF)}
    names = [f"transformer.h.{layer}.{name}" for layer in range(L) for name in ("ln_1", "ln_2", *shapes)]
    for name in (*names, "transformer.ln_f"):
        shape = shapes.get(name.split(".", 3)[-1], (D,))
        made[f"{name}.weight"] = draw(*shape)
        if bias:
            made[f"{name}.bias"] = draw(shape[0])
    made["lm_head.weight"] = made["transformer.wte.weight"].clone() if tied else draw(V, D)
    return made


def reference(tensors, tokens, gelu):
    """GPT-2 as plainly as can be (Radford et al. 2019), straight from the file's tensors: logits `[B, T, V]`."""
    p = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}

    def norm(x, name):
        return F.layer_norm(x, (D,), p[f"{name}.weight"], p.get(f"{name}.bias"), 1e-5)

    def linear(x, name):
        return F.linear(x, p[f"{name}.weight"], p.get(f"{name}.bias"))

    x = p["wte.weight"][tokens] + p["wpe.weight"][: tokens.shape[1]]
    for layer in range(L):
        q, k, v = (
            part.unflatten(-1, (H, -1)).transpose(1, 2)
            for part in linear(norm(x, f"h.{layer}.ln_1"), f"h.{layer}.attn.c_attn").split(D, -1)
        )
        context = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + linear(context, f"h.{layer}.attn.c_proj")
        hidden = F.gelu(linear(norm(x, f"h.{layer}.ln_2"), f"h.{layer}.mlp.c_fc"), approximate=gelu)
        x = x + linear(hidden, f"h.{layer}.mlp.c_proj")
    return norm(x, "ln_f") @ p["lm_head.weight"].T


def turned(tensors):
    """The same file as transformers writes it: `Conv1D` matrices [in, out], mask buffers, a tied head left out."""
    matrices = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    made = {name: tensor.T.contiguous() if name.endswith(matrices) else tensor for name, tensor in tensors.items()}
    if torch.equal(made["lm_head.weight"], made["transformer.wte.weight"]):
        del made["lm_head.weight"]
    masks = {f"transformer.h.{layer}.attn.bias": torch.ones(T, T).tril()[None, None] for layer in range(L)}
    return made | masks | {"transformer.h.0.attn.masked_bias": torch.tensor(-1e4)}


@pytest.mark.parametrize("gelu", ["exact", "tanh"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "separate"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "plain"])
def test_checkpoints_of_both_orientations_give_the_reference_logits(tmp_path, bias, tied, gelu):
    tensors = checkpoint(bias=bias, tied=tied)
    tokens = torch.arange(2 * T).view(2, T) % V
    expected = reference(tensors, tokens, "tanh" if gelu == "tanh" else "none")
    for name, made in (("linear", tensors), ("conv1d", turned(tensors))):
        save_file(made, tmp_path / f"{name}.safetensors")
        loaded = tracer.load("nanogpt", weights=tmp_path / f"{name}.safetensors", h=H, gelu=gelu)
        assert loaded.sizes == {"V": V, "T_max": T, "D": D, "h": H, "d_ff": D_FF, "L": L}
        assert loaded.options == {"bias": bias, "tied": tied, "gelu": gelu, "mask": "causal"}
        assert "safetensors" in loaded.weights
        with torch.no_grad():
            assert torch.allclose(loaded.net(tokens), expected, atol=1e-4)


def test_a_loaded_checkpoint_is_proven(tmp_path):
    save_file(turned(checkpoint()), tmp_path / "my.safetensors")
    assert_proven(tracer.load("nanogpt", weights=tmp_path / "my.safetensors", h=H, gelu="tanh"))


def test_names_may_lack_the_prefix_or_wear_another(tmp_path):
    tensors, tokens = checkpoint(), torch.arange(T)[None]
    expected = reference(tensors, tokens, "none")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    compiled = {f"_orig_mod.{name}": tensor for name, tensor in tensors.items()}
    for made in (bare, compiled):
        loaded = tracer.load("nanogpt", weights=save(made), h=H, gelu="exact")
        assert loaded.weights == "uploaded weights"
        with torch.no_grad():
            assert torch.allclose(loaded.net(tokens), expected, atol=1e-4)


def test_pickled_checkpoints_are_read_by_path_and_as_tensors_alone(tmp_path):
    tensors, tokens = checkpoint(tied=False), torch.arange(T)[None]
    torch.save({"model": tensors, "iter_num": 5, "model_args": {"n_layer": L}}, tmp_path / "nano.pt")  # nanoGPT's
    torch.save(tensors, tmp_path / "min.pt")  # minGPT's
    for name in ("nano.pt", "min.pt"):
        loaded = tracer.load("nanogpt", weights=tmp_path / name, h=H, gelu="exact")
        with torch.no_grad():
            assert torch.allclose(loaded.net(tokens), reference(tensors, tokens, "none"), atol=1e-4)
    with pytest.raises(ValueError, match="the file is no safetensors file"):  # what a browser sends is not unpickled
        tracer.load("nanogpt", weights=(tmp_path / "min.pt").read_bytes(), h=H, gelu="exact")


class Harm:
    def __reduce__(self):
        return (exec, ("raise SystemExit('harm was done')",))


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    torch.save({"model": Harm()}, tmp_path / "harm.pt")
    (tmp_path / "text.pt").write_text("no checkpoint")
    torch.save({"model": {"steps": 3}}, tmp_path / "numbers.pt")
    for name, words in (("harm.pt", "tensors alone"), ("text.pt", "tensors alone"), ("numbers.pt", "no tensors by")):
        with pytest.raises(ValueError, match=words) as caught:
            tracer.load("nanogpt", weights=tmp_path / name, h=H, gelu="exact")
        assert name in str(caught.value) and "\n" not in str(caught.value)


FAULTS = [
    ({}, {"h": H}, "give gelu='exact' or gelu='tanh'"),
    ({}, {"gelu": "exact"}, "give h=… for the heads"),
    ({}, {"h": 3, "gelu": "exact"}, "D=8 is not divisible by h=3"),
    ({}, {"h": H, "gelu": "exact", "D": 16}, "D=16 was given, they have 8"),
    ({}, {"h": H, "gelu": "exact", "tied": False}, "tied=False was given, they have True"),
    ({"transformer.h.1.ln_2.weight": None}, {"h": H, "gelu": "exact"}, "they lack 'h.1.ln_2.weight'"),
    ({"transformer.extra": torch.ones(1)}, {"h": H, "gelu": "exact"}, "they also hold 'extra'"),
    ({"transformer.wte.weight": torch.ones(3)}, {"h": H, "gelu": "exact"}, r"'wte.weight' is \[3\], expected 2 axes"),
    ({"transformer.h.0.attn.c_attn.weight": torch.ones(5, 8)}, {"h": H, "gelu": "exact"}, r"is \[5, 8\], expected"),
    ({"transformer.h.1.attn.c_attn.weight": torch.ones(5, 8)}, {"h": H, "gelu": "exact"}, "block2.attention.query"),
]


@pytest.mark.parametrize(("changes", "given", "words"), FAULTS, ids=lambda value: str(value)[:30])
def test_checkpoints_that_do_not_fit_are_refused_in_one_sentence(changes, given, words):
    tensors = {name: tensor for name, tensor in (checkpoint() | changes).items() if tensor is not None}
    with pytest.raises(ValueError, match=words) as caught:
        tracer.load("nanogpt", weights=save(tensors), **given)
    assert "\n" not in str(caught.value)


def test_the_command_line_takes_checkpoints_and_choices(tmp_path, capsys):
    torch.save({"model": checkpoint()}, tmp_path / "my.pt")
    given = ["trace", "nanogpt", "--weights", str(tmp_path / "my.pt"), "--format", "json"]
    assert cli.main([*given, "--set", "h=2", "gelu=tanh", "T=5", "B=3"]) == 0
    symbols = json.loads(capsys.readouterr().out)["symbols"]
    assert (symbols["B"], symbols["T"], symbols["D"], symbols["V"]) == (3, 5, D, V)
    for wrong, words in (
        (["gelu=relu"], "'gelu=relu' is no choice, expected gelu=exact or"),
        (["gelu=tanh", "T=99"], "T=99"),
    ):
        assert cli.main([*given, "--set", "h=2", *wrong]) == 2
        assert words in capsys.readouterr().err


# Text, token by token.


def test_greedy_text_takes_the_largest_logit_and_traces_each_token(model):
    text, found = "To be", list(generate(model, "To be", 9))
    for token, trace in found:
        assert trace.coverage == 1 and "".join(trace.words) == text[-11:]
        assert token == nanogpt.SHAKESPEARE[int(trace.output[0, -1].argmax())] == trace.result["tokens"][0]
        text += token
    assert len(found) == 9 and len(text) == 14
    assert [token for token, _ in generate(model, "To be", 9, temperature=3, top_k=1)] == [token for token, _ in found]


def test_sampled_text_is_seeded_and_keeps_to_the_top_k(model):
    def written(**settings):
        return "".join(token for token, _ in generate(model, "To be", 6, prove=False, **settings))

    assert written(temperature=1, seed=1) == written(temperature=1, seed=1) != written(temperature=1, seed=2)
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
    with pytest.raises(ValueError, match=f"{name}={value} can't be"):
        generate(model, "To be", **{"count": 1} | settings)


# The recipe.

TINY = {"sizes": {"V": 65, "T_max": 8, "D": 16, "h": 2, "d_ff": 24, "L": 1}, "batch": 16, "warmup": 3}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "tinyshakespeare.txt").write_text("To be, or not to be, that is the question:\n" * 120)
    return folder


def test_the_recipe_learns_and_is_seeded(data, tmp_path):
    recipe = Recipe(**TINY)
    text = recipe.read(data, "test")
    before = recipe.score(recipe.build(0), text)["loss"]
    made = [
        training.train("nanogpt", data=data, out=tmp_path / f"{name}.safetensors", epochs=1, seed=seed, **TINY)
        for name, seed in (("one", 0), ("two", 0), ("three", 1))
    ]
    first, second, third = (load_file(file)["tokens.weight"] for file in made)
    assert torch.equal(first, second) and not torch.equal(first, third)
    card = json.loads(made[0].with_suffix(".json").read_text(encoding="utf-8"))
    assert card["loss"] < before - 0.3 and card["vocabulary"] == nanogpt.SHAKESPEARE
    figures = training.score("nanogpt", data=data, weights=made[0])
    assert figures == {"model": "nanogpt", "loss": card["loss"], "characters": len(text) * 8}


def test_the_score_is_the_mean_loss_of_every_character(data):
    recipe = Recipe(**TINY)
    net, text = recipe.build(0), recipe.read(data, "test")
    total, count = 0.0, 0
    with torch.no_grad():
        for start in range(0, len(text) * 8, 8):
            shares = net(text.numbers[None, start : start + 8]).log_softmax(-1)[0]
            total -= sum(float(shares[i, text.numbers[start + i + 1]]) for i in range(8))
            count += 8
    assert recipe.score(net, text) == {"loss": pytest.approx(total / count, abs=1e-4), "characters": count}
    assert len(text.numbers) - count <= 8 and count > 500


def test_the_parts_share_no_character_and_windows_stay_inside(data):
    recipe = Recipe(**TINY)
    train, test = recipe.read(data, "train"), recipe.read(data, "test")
    whole = (data / "tinyshakespeare.txt").read_text()
    decoded = "".join(nanogpt.SHAKESPEARE[number] for part in (train, test) for number in part.numbers)
    assert decoded == whole and len(train.numbers) == int(0.9 * len(whole))
    random = torch.Generator().manual_seed(0)
    numbers, wanted = recipe.batch_of(train, torch.arange(len(train)), random)
    assert numbers.shape == wanted.shape == (len(train), 8) and torch.equal(numbers[:, 1:], wanted[:, :-1])


def test_data_that_is_no_such_text_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"expected tinyshakespeare\.txt"):
        Recipe(**TINY).read(tmp_path, "train")
    (tmp_path / "tinyshakespeare.txt").write_text("Träume")
    with pytest.raises(ValueError, match="holds 'ä'"):
        Recipe(**TINY).read(tmp_path, "train")
    (tmp_path / "tinyshakespeare.txt").write_text("To be")
    with pytest.raises(ValueError, match="has 5 characters: expected at least 160"):
        Recipe(**TINY).read(tmp_path, "train")


def test_the_shipped_card_is_of_the_shipped_weights():
    card, file = models.card("nanogpt"), training.SHIPPED / "nanogpt.safetensors"
    model = tracer.load("nanogpt")
    assert model.sizes == card["sizes"] and file.stat().st_size < 6_000_000 and card["loss"] <= 1.65
    assert sum(len(set(token)) for token, _ in generate(model, "ROMEO:\n", 3, prove=False)) == 3
