"""Checkpoints of others in the GPT-2 layout: both orientations, verified, and refused in words where they don't fit."""

import json

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save, save_file

import tracer
from tests.support.verified import assert_verified
from tracer import cli

V, T, D, H, D_FF, L = 23, 9, 8, 2, 20, 2


def checkpoint(*, bias=True, tied=True, seed=0):
    """Return tensors in nanoGPT's names, matrices [out, in]."""
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
    """Compute GPT-2 as plainly as possible (Radford et al. 2019), straight from the file's tensors: logits `[B, T,
    V]`."""
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


def to_gpt2_layout(tensors):
    """Return the file as transformers writes it: `Conv1D` matrices [in, out], mask buffers, a tied head left out."""
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
    for name, made in (("linear", tensors), ("conv1d", to_gpt2_layout(tensors))):
        save_file(made, tmp_path / f"{name}.safetensors")
        loaded = tracer.load("nanogpt", weights=tmp_path / f"{name}.safetensors", h=H, gelu=gelu)
        assert loaded.sizes == {"V": V, "T_max": T, "D": D, "h": H, "d_ff": D_FF, "L": L}
        assert loaded.options == {"bias": bias, "tied": tied, "gelu": gelu, "mask": "causal", "single": False}
        assert "safetensors" in loaded.weights
        with torch.no_grad():
            assert torch.allclose(loaded.net(tokens), expected, atol=1e-4)


def test_a_loaded_checkpoint_is_verified(tmp_path):
    save_file(to_gpt2_layout(checkpoint()), tmp_path / "my.safetensors")
    assert_verified(tracer.load("nanogpt", weights=tmp_path / "my.safetensors", h=H, gelu="tanh"))


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
    with pytest.raises(ValueError, match="the file is not a safetensors file"):  # what a browser sends is not unpickled
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
        (["gelu=relu"], "'gelu=relu' is not a choice, expected gelu=exact or"),
        (["gelu=tanh", "T=99"], "T=99"),
    ):
        assert cli.main([*given, "--set", "h=2", *wrong]) == 2
        assert words in capsys.readouterr().err
