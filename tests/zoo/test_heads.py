"""A checkpoint of transformers is opened as its own class, and answers with its own head or reports that it has
none."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import tracer
from tests.support.sweeping import cases
from tracer import zoo
from tracer.verify import failures, report

transformers = zoo.source_of("hf:bert")[0].import_transformers()
SMALL = {"hidden_size": 24, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 28}
NAMES = {"id2label": {0: "cat", 1: "dog", 2: "owl"}, "label2id": {"cat": 0, "dog": 1, "owl": 2}}
PHOTO = {"image_size": 24, "patch_size": 8}
TEXT = {"vocab_size": 61, "max_position_embeddings": 50}
GPT = {"n_embd": 24, "n_head": 2, "n_layer": 2, "n_positions": 60, "n_inner": 28, "vocab_size": 61}
WIDE = {**SMALL, "num_key_value_heads": 1, "head_dim": 20, "vocab_size": 61}
CLASSES = {
    "ViTForImageClassification": ("ViTConfig", {**SMALL, **PHOTO, **NAMES}, "classes"),
    "ViTModel": ("ViTConfig", {**SMALL, **PHOTO}, "embedding"),
    "Dinov2ForImageClassification": ("Dinov2Config", {**SMALL, **PHOTO, **NAMES}, "classes"),
    "Dinov2Model": ("Dinov2Config", {**SMALL, **PHOTO}, "embedding"),
    "BertModel": ("BertConfig", {**SMALL, **TEXT}, "embedding"),
    "BertForMaskedLM": ("BertConfig", {**SMALL, **TEXT}, "tokens"),
    "BertForSequenceClassification": ("BertConfig", {**SMALL, **TEXT, **NAMES}, "classes"),
    "BertForTokenClassification": ("BertConfig", {**SMALL, **TEXT, **NAMES}, "tokens"),
    "GPT2LMHeadModel": ("GPT2Config", GPT, "next"),
    "GPT2Model": ("GPT2Config", GPT, "embedding"),
    "GPT2ForSequenceClassification": ("GPT2Config", {**GPT, **NAMES, "pad_token_id": 0}, "classes"),
    "LlamaForCausalLM": ("LlamaConfig", WIDE, "next"),
    "LlamaModel": ("LlamaConfig", WIDE, "embedding"),
    "LlamaForSequenceClassification": ("LlamaConfig", {**WIDE, **NAMES, "pad_token_id": 0}, "classes"),
}


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def save_checkpoint(name, folder):
    """Save a tiny checkpoint of a class, in the hub's own format, and return the net."""
    config, sizes, _ = CLASSES[name]
    torch.manual_seed(0)
    net = getattr(transformers, name)(getattr(transformers, config)(**sizes)).eval()
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    net.tie_weights()
    net.save_pretrained(folder)
    return net


@pytest.mark.parametrize("name", cases(CLASSES, ("BertForMaskedLM",)))
def test_each_class_is_run_and_answers_with_its_own_head(name, tmp_path):
    net = save_checkpoint(name, tmp_path)
    model = tracer.load(f"hf:{tmp_path}")
    inputs = model.inputs()
    trace = model.trace()
    with torch.no_grad():
        theirs = net(*inputs, **inputs.named)
    assert type(model.net).__name__ == name and model.weights == f"weights of {tmp_path}"
    said = trace.result
    assert said["kind"] == CLASSES[name][2]
    if said["kind"] == "classes":
        assert said["classes"] == ["cat", "dog", "owl"]
        assert said["probabilities"] == pytest.approx(theirs.logits[0].softmax(-1).tolist(), abs=1e-5)
    elif said["kind"] == "tokens":
        best = theirs.logits[0].softmax(-1).max(-1)
        assert said["probabilities"] == pytest.approx(best.values.tolist(), abs=1e-5)
        assert "id2label" not in CLASSES[name][1] or said["tokens"] == [["cat", "dog", "owl"][i] for i in best.indices]
    elif said["kind"] == "embedding":
        assert said["norm"] == pytest.approx(float(theirs.last_hidden_state[0].norm(dim=-1).mean()), rel=1e-4)
    assert not failures(report(model)) and not trace.notes


@pytest.mark.parametrize(
    ("name", "head"), [("ViTForImageClassification", "classifier"), ("BertForSequenceClassification", "classifier")]
)
def test_a_head_that_the_file_lacks_is_named_and_gives_no_answer(name, head, tmp_path):
    save_checkpoint(name, tmp_path)
    file = tmp_path / "model.safetensors"
    save_file(
        {key: value for key, value in load_file(file).items() if not key.startswith(head)}, file, {"format": "pt"}
    )
    model, again = tracer.load(f"hf:{tmp_path}"), tracer.load(f"hf:{tmp_path}")
    lacks = f"{head}.bias", f"{head}.weight"
    assert model.weights == (
        f"weights of {tmp_path}, whose files lack {' , '.join(lacks).replace(' ,', ',')}: there the numbers are seeded "
        "random ones"
    )
    assert model.trace(prove=False).result == {"kind": "none", "lacks": list(lacks)}
    one, other = (loaded.net.get_parameter(lacks[1]) for loaded in (model, again))
    assert torch.equal(one, other)


def test_a_pooler_that_the_file_lacks_is_named_and_changes_no_vector_of_a_token(tmp_path):
    save_checkpoint("ViTModel", tmp_path)
    file = tmp_path / "model.safetensors"
    save_file({key: value for key, value in load_file(file).items() if "pooler" not in key}, file, {"format": "pt"})
    model = tracer.load(f"hf:{tmp_path}")
    assert "lack pooler.dense.bias, pooler.dense.weight" in model.weights
    assert model.trace(prove=False).result["kind"] == "embedding"


def test_a_class_whose_answer_has_no_form_of_its_own_gives_its_tensors_by_name(tmp_path):
    torch.manual_seed(0)
    transformers.BertForQuestionAnswering(transformers.BertConfig(**SMALL, **TEXT)).save_pretrained(tmp_path)
    model = tracer.load(f"hf:{tmp_path}")
    said = model.trace().result
    assert type(model.net).__name__ == "BertForQuestionAnswering" and said["kind"] == "tensors"
    assert {name.partition(".")[2] for name in said["shapes"]} == {"start_logits", "end_logits"}


def test_a_checkpoint_that_names_no_class_is_the_familys_first(tmp_path):
    save_checkpoint("ViTForImageClassification", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["architectures"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert tracer.load(f"hf:{tmp_path}").trace(prove=False).result["kind"] == "classes"


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_head_that_is_wider_than_its_share_has_a_size_of_its_own(attention, tmp_path):
    save_checkpoint("LlamaForCausalLM", tmp_path)
    model = tracer.load(f"hf:{tmp_path}", attention=attention)
    trace = model.trace()
    assert model.sizes["d_k"] == 20 and {size.name: size.value for size in trace.symbols}["d_k"] == 20
    scores = next(step for step in trace.steps if step.id.endswith("layers.0.attention.scores"))
    assert trace.step("model.layers.0.attention.context").verdict == "verified" and "d_k" in scores.latex
    with torch.no_grad():
        model.net.set_attn_implementation("eager")
        theirs = model.net(*model.inputs(), output_attentions=True).attentions
    for layer, weights in enumerate(theirs):
        assert torch.allclose(trace.attention(layer), weights, atol=1e-6)


def llava():
    vision = transformers.CLIPVisionConfig(**SMALL, image_size=28, patch_size=14)
    text = transformers.LlamaConfig(**{**WIDE, "vocab_size": 64})
    config = transformers.LlavaConfig(vision_config=vision, text_config=text, image_token_id=63)
    return transformers.LlavaForConditionalGeneration(config)


def paligemma():
    vision = transformers.SiglipVisionConfig(**SMALL, image_size=28, patch_size=14, vision_use_head=False)
    text = transformers.GemmaConfig(**{**WIDE, "vocab_size": 64})
    config = transformers.PaliGemmaConfig(vision_config=vision, text_config=text, image_token_id=63, projection_dim=24)
    return transformers.PaliGemmaForConditionalGeneration(config)


@pytest.mark.sweep
@pytest.mark.parametrize("made", (llava, paligemma), ids=["llava", "paligemma"])
def test_a_language_model_inside_another_keeps_its_own_width_of_heads_and_no_cache(made, tmp_path):
    made().save_pretrained(tmp_path)
    model = tracer.load(f"hf:{tmp_path}")
    trace = model.trace()
    assert {size.name: size.value for size in trace.symbols}["d_k"] == 20
    assert trace.values[trace.attentions[-1].q].shape[-1] == 20
    assert not failures(report(model))
    assert all("at this batch size alone" in note or "d_k with 256" in note for note in trace.notes)
