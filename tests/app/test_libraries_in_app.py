"""Models of libraries in the app: requested by name, described by their inputs, refused in a sentence, on every
page."""

import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from streamlit.testing.v1 import AppTest

import tracer
from pages.jobs import run_cache
from pages.state import library_models, session, url_state, view
from pages.state.visitor import UserInput
from tests.app.test_app import PAGES, open_page, text, upload, visit
from tests.support.sweeping import cases
from tracer import zoo
from tracer.tracing.transfer import lighten
from tracer.zoo import downloads, torchvision_models
from tracer.zoo.hf import hub


def type_name(at: AppTest, name: str) -> AppTest:
    """Type a name into the box; AppTest knows only names that are in the list."""
    box = at.sidebar.selectbox[0]
    if name not in box.options:
        box.options.append(name)
    box.set_value(name).run()
    assert not at.exception
    return at


def press(at: AppTest, label: str) -> AppTest:
    next(button for button in at.button if button.label == label).click().run()
    assert not at.exception
    return at


def labels(at: AppTest) -> list[str]:
    return [button.label for button in at.button]


def test_examples_of_the_libraries_stand_beside_our_own():
    options = open_page().sidebar.selectbox[0].options
    assert {"vit", "nanogpt", "torchvision:vit_b_16", "hf:bert"} <= set(options)
    assert options.index("vit") < options.index("hf:bert")


def test_nothing_is_loaded_before_the_visitor_agrees(monkeypatch):
    at, asked = open_page(), []
    monkeypatch.setattr(tracer, "load", lambda name, **config: asked.append(name), raising=False)
    type_name(at, "torchvision:vit_b_16")
    assert asked == [] and at.sidebar.selectbox[0].value == "vit" and at.session_state["model"] == "vit"
    assert "86.6 million parameters, 346 MB of memory." in text(at)
    assert "Nothing is downloaded" in text(at)
    press(at, "Not now")
    assert "Load it" not in labels(at) and asked == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("hf:brt", "did you mean 'hf:bert'?"),
        ("vitt", "did you mean 'vit'?"),
        ("torchvision:vit_b_61", "did you mean 'torchvision:vit_b_16'?"),
        ("nolib:model", "there is no library 'nolib'"),
        ("hf:" + "x" * 500, "at most 120 characters"),
        ("hf:a/b/c/d", "hf:a/b/c/d"),
        ("hf:", "hf:"),
        ("[x](y)![z](w):q", "there is no library"),
    ],
)
def test_an_unknown_name_is_refused_in_a_sentence_and_nothing_is_lost(name, said):
    at = open_page()
    before = [head.value for head in at.main.header]
    type_name(at, name)
    assert len(at.error) == 1 and said in at.error[0].value and "![" not in at.error[0].value
    assert at.sidebar.selectbox[0].value == "vit" and [head.value for head in at.main.header] == before


def test_what_is_too_large_for_memory_is_refused_before_it_is_loaded(monkeypatch):
    monkeypatch.setenv("TRACER_MODEL_GB", "0.1")
    at = type_name(open_page(), "torchvision:vit_b_16")
    assert "TRACER_MODEL_GB" in at.error[0].value and "Load it" not in labels(at)


def test_a_model_that_fails_to_load_leaves_the_one_before(monkeypatch):
    at = type_name(open_page(), "torchvision:vit_b_32")

    def broken(*given, **named):
        raise RuntimeError("the file ends\nearly")

    monkeypatch.setattr(run_cache, "load", broken)
    press(at, "Load it")
    assert "'torchvision:vit_b_32' could not be loaded: the file ends early" in at.error[0].value
    assert at.sidebar.selectbox[0].value == "vit"


FOLDERS = "hf:/etc", "hf:./here", "hf:~/models", "hf:..", "hf:tests", r"hf:C:\models"


@pytest.mark.parametrize("name", cases(FOLDERS, FOLDERS[:2]))
def test_folders_of_the_server_stay_closed_whatever_the_visitor_states(name, monkeypatch):
    """Neither the address that the server listens on nor the one that the browser says it asked for opens them."""
    monkeypatch.setattr(
        library_models.st,
        "context",
        type("Context", (), {"url": "http://localhost:8501", "ip_address": None, "cookies": {}}),
    )
    at = type_name(open_page(), name)
    said = at.error[0].value
    assert ("model hub" in said or "is not on this machine" in said) and "Load it" not in labels(at)


def test_a_refusal_does_not_tell_which_folders_exist(monkeypatch):
    monkeypatch.chdir(Path(__file__).resolve().parents[2])
    said = {}
    for there, missing in (
        ("/etc", "/nowhere"),
        ("./tests", "./tsets"),
        ("tests", "tsets"),
        ("tracer/models", "tracer/slemod"),
    ):
        for name in (there, missing):
            with pytest.raises(ValueError) as caught:
                zoo.check_no_folder(f"hf:{name}")
                zoo.spec_of(f"hf:{name}")
            said[name] = str(caught.value).replace(name, "NAME")
        assert said[there] == said[missing], name


def test_a_family_is_one_whatever_folder_is_named_like_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bert").mkdir()
    zoo.check_no_folder("hf:bert")
    assert zoo.spec_of("hf:bert").takes == ("text",)


def test_the_operator_may_open_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACER_FOLDERS", "1")
    at = type_name(open_page(), f"hf:{tmp_path}")
    assert "is not a folder with a config.json" in at.error[0].value
    monkeypatch.setenv("TRACER_FOLDERS", "0")
    assert not library_models.folders_allowed()


def test_two_models_of_libraries_at_most_are_kept():
    for store in (run_cache._foreign, run_cache._foreign_runs):
        assert store.most == 2


@pytest.mark.sweep
def test_bert_opens_on_every_page_and_its_weights_are_named():
    at = press(type_name(open_page(), "hf:bert"), "Load it")
    assert at.sidebar.selectbox[0].value == "hf:bert" and not at.error
    for page in PAGES:
        at.switch_page(page).run()
        assert not at.exception and not at.error, page
        assert "Weights: seeded random weights" in text(at), page
    at.switch_page("pages/overview.py").run()
    run = at.session_state["visitor"].run()
    assert all(step.error is not None or step.recomputed for step in run.steps)
    assert "has no head, so it gives no answer by itself" in text(at)
    press(at.switch_page("pages/operations.py").run(), "Run both paths")
    said = next(box.value for box in at.success if "The outputs differ by at most" in box.value)
    assert "the attention weights by" in said
    type_name(at, "vit")
    assert "Weights:" not in text(at) and at.sidebar.selectbox[0].value == "vit"
    type_name(at, "hf:bert")
    assert "Load it" not in labels(at) and at.sidebar.selectbox[0].value == "hf:bert"


def test_a_family_without_a_tokenizer_says_what_its_tokens_are(tmp_path):
    run = tracer.load("hf:gpt2", **zoo.tiny("hf:gpt2")).trace()
    run.save(tmp_path / "run.safetensors")
    at = upload(open_page(), (tmp_path / "run.safetensors").read_bytes(), "run.safetensors")
    assert not at.exception and "This model has no tokenizer here, because the name of a family has none" in text(at)
    assert f"The {len(run.words)} bytes of the text are used as token ids" in text(at)
    (film,) = [part.proto for part in at.get("bidi_component") if part.proto.component_name == "film"]
    assert f"What random weights say: {run.result['tokens'][0]}, " in film.bytes.decode(errors="replace")
    steps, inside = len(run.steps), sum(step.recomputed for step in run.steps)
    assert f"The run has {steps} steps. The other {inside} lie inside fused operations" in text(at)
    assert not any(label.startswith("Write") for label in labels(at))


@pytest.mark.sweep
def test_vit_b_16_opens_on_every_page_and_both_paths_run():
    at = press(type_name(open_page(), "torchvision:vit_b_16"), "Load it")
    for page in PAGES:
        at.switch_page(page).run()
        assert not at.exception and not at.error, page
    at.switch_page("pages/operations.py").run()
    press(at, "Run both paths")
    assert any("The outputs differ by at most" in box.value for box in at.success)
    at.switch_page("pages/mask.py").run()
    assert any("every output may move, and every one did" in box.value for box in at.success)


def test_a_lightened_run_keeps_its_proofs_and_its_attention():
    run = tracer.load("vit", D=16, h=2, d_ff=24, L=3).trace()
    light = lighten(run, 20_000)
    kept = [step for step in light.steps if light.value(step) is not None]
    asked = {key for record in run.attentions for key in (record.q, record.k)}
    assert 0 < sum(light.value(step).nbytes for step in kept if step.value not in asked) <= 20_000
    assert len(kept) < len(run.steps) and light.steps == run.steps and kept[0] == run.steps[0]
    assert light.attention(2).equal(run.attention(2)) and light.values[light.picture.value] is not None


def test_a_partial_textbook_says_its_share(tmp_path):
    from tests.support import handmade

    run = handmade.sample()
    step = run.steps[:1]
    loose = tuple(op if op.step == step[0].id else type(op)(**{**_fields(op), "step": None}) for op in run.ops)
    handmade.sample(steps=step, ops=loose).save(path := tmp_path / "run.safetensors")
    at = upload(open_page(), path.read_bytes(), "run.safetensors")
    assert "The steps cover 50 % of the operations that compute" in text(at)


def _fields(op) -> dict:
    return {name: getattr(op, name) for name in op.__dataclass_fields__}


def test_a_saved_run_of_anybodys_module_is_sensible_on_every_page(tmp_path):
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    tracer.trace(net, torch.randn(3, 4)).save(path := tmp_path / "run.safetensors")
    at = upload(open_page(), path.read_bytes(), "run.safetensors")
    assert at.title[0].value == "A run of Sequential"
    for page in PAGES:
        at.switch_page(page).run()
        assert not at.exception and not at.error, page
        assert at.title, page
    at.switch_page("pages/overview.py").run()
    assert [one.value for one in at.metric if one.label == "equations verified"] == ["3 of 3"]


def test_the_size_of_a_download_is_known_before(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    assert (
        torchvision_models.download("vit_b_16").size == 0 and "offline" in torchvision_models.download("vit_b_16").note
    )
    monkeypatch.setattr(torchvision_models, "is_forbidden", lambda: False)
    folder = tmp_path / "checkpoints"
    assert torchvision_models.download("vit_b_16") == downloads.Download(round(330.285 * 2**20), folder=str(folder))
    assert downloads.bytes_on_disk(str(folder)) == 0
    folder.mkdir()
    (folder / "vit_b_16-c867db91.pth.7f.partial").write_bytes(bytes(700))
    assert downloads.bytes_on_disk(str(folder)) == 700
    (folder / "vit_b_16-c867db91.pth").touch()
    assert torchvision_models.download("vit_b_16") == downloads.Download(0, "its weights are on this machine")


def test_the_hub_is_asked_for_the_weights_alone(monkeypatch):
    import huggingface_hub

    class Hub:
        def model_info(self, id, **asked):
            files = {"model.safetensors": 500, "onnx/model.safetensors": 70, "pytorch_model.bin": 900}
            return type(
                "Info", (), {"siblings": [type("F", (), {"rfilename": f, "size": s}) for f, s in files.items()]}
            )

    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    monkeypatch.setattr(hub, "offline", lambda: False)
    monkeypatch.setattr(hub.CheckpointFiles, "exist", True)
    monkeypatch.setattr(hub.CheckpointFiles, "path", lambda self, name, local=False: None)
    assert hub.download("someone/model").size == 500
    assert hub.download("someone/model").folder.endswith("models--someone--model")
    monkeypatch.setattr(Hub, "model_info", lambda *given, **asked: 1 / 0)
    assert hub.download("someone/model") == downloads.Download(None)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.sweep) for name in ("torchvision:squeezenet1_1", "hf:beit", "hf:wav2vec2")],
)
def test_a_model_that_nobody_described_opens_on_every_page(name, monkeypatch):
    """A net without attention, one of sound, which no visitor gives, and one whose patches lie nowhere on the photo."""
    monkeypatch.setattr(library_models, "suggestions", lambda: ["vit", name])  # AppTest knows only names in the list
    at = press(type_name(open_page(), name), "Load it")
    assert at.sidebar.selectbox[0].value == name and not at.error, [one.value for one in at.error]
    for page in PAGES:
        at.switch_page(page).run()
        assert not at.exception and not at.error, (page, [one.value for one in at.error])
        assert "seeded random weights" in text(at), page


@pytest.mark.sweep
def test_an_address_keeps_its_place_while_its_model_waits_for_a_yes():
    """No run of another model is shown below the question, which would take the place for one of its own."""
    place = {"model": "torchvision:squeezenet1_1", "zoom": "ops", "op": "7"}
    at = visit("operations", **place)
    assert "Load it" in labels(at) and not at.title and not at.warning and at.query_params == place
    press(at, "Load it")
    assert not at.warning and [title.value for title in at.title] == ["Every operation that ran"]
    assert at.query_params == place and any(header.value.startswith("7: ") for header in at.header)


def test_a_no_to_the_model_of_an_address_shows_what_there_was():
    at = press(visit("trace", model="torchvision:squeezenet1_1", step="nothing"), "Not now")
    assert [title.value for title in at.title] == ["Step by step"] and not at.warning
    assert at.query_params == {"model": "vit"}


def test_an_address_sets_the_batch_of_a_librarys_model(monkeypatch):
    """The batch is of the input: the model is the same, and its two paths show two photos."""
    name, tiny = "torchvision:vit_b_16", tracer.load("torchvision:vit_b_16", **zoo.tiny("torchvision:vit_b_16"))
    monkeypatch.setattr(run_cache, "_library_model", lambda asked, options: tiny if options == () else None)
    assert run_cache.split_options(name, (("B", 2),)) == ({}, {"B": 2})
    assert run_cache.load(name, (("B", 2),)) is tiny
    assert view.option_names(name) == ("B",)
    assert session.inputs(tiny, UserInput("sample", "own"), (("B", 2),))["B"] == 2
    assert tiny.trace(B=2, prove=False).steps[0].shape[0] == 2


def test_a_library_that_could_not_be_loaded_leaves_its_batch_to_no_other_model(monkeypatch):
    def refuse(name, download):
        raise ValueError("it is gone")

    monkeypatch.setattr(library_models, "_load", refuse)
    at = press(visit("trace", model="torchvision:vit_b_16", B="2"), "Load it")
    assert at.query_params["model"] == "vit" and "B" not in at.query_params
    assert at.session_state["visitor"].options == {} and "it is gone" in text(at)


def test_a_batch_that_takes_too_much_is_refused(monkeypatch):
    monkeypatch.setattr(url_state, "model_name", lambda: "torchvision:vit_b_16")
    for batch in ("5", "0", "x", "99999999999"):
        assert url_state._take_sizes({"B": batch}) == f"'{batch}' is not a size B, expected a whole number from 1 to 4."


def test_both_paths_of_an_attention_stand_in_symbols_and_in_numbers():
    def page():
        import tracer
        from pages.sections import attention_heads
        from tracer import zoo
        from tracer.tracing import attention_backends

        tiny = tracer.load("torchvision:vit_b_16", **zoo.tiny("torchvision:vit_b_16"))
        attention_heads._beside(attention_backends.compare(tiny.net, *tiny.inputs(B=2)))

    standard, fused, *_ = (table.value for table in AppTest.from_function(page, default_timeout=60).run().table)
    sizes = tracer.load("torchvision:vit_b_16", **zoo.tiny("torchvision:vit_b_16")).trace(B=2, prove=False).symbols
    values = {size.name: size.value for size in sizes}
    B, h, S, d_k = 2, values["h"], values["N"] + 1, values["d_k"]
    products = standard[standard["operation"] == "bmm"]
    assert list(products["outputs, in numbers"]) == [f"[{B * h}, {S}, {S}]", f"[{B * h}, {S}, {d_k}]"]
    assert list(products["outputs"]) == ["[B·h, S, S]", "[B·h, S, d_k]"] and "bmm" not in set(fused["operation"])
    assert any(f"[{B}, {h}, {S}, {d_k}]" in numbers for numbers in fused["outputs, in numbers"])
