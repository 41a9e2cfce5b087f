"""Models that are offered beside ours: their descriptions are true, they load from the hub's own cache, and without a
network the button says so."""

import json
import time

import huggingface_hub.constants as constants
import pytest
import torch
from huggingface_hub.file_download import repo_folder_name
from safetensors.torch import save_file

import tracer
from pages.jobs import run_cache
from pages.state import library_models
from tests.app.test_app import open_page
from tests.cli.test_cli import refusal
from tests.faults.hub import Hub
from tracer import zoo
from tracer.cli import main
from tracer.utils.job_queue import Progress, listen
from tracer.zoo import downloads, recommendations
from tracer.zoo.downloads import Download


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Empty cache of the hub and of PyTorch, without a network."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    return tmp_path


def cached_snapshot(cache, repository: str):
    """Return the folder of a repository's one snapshot, in the layout of the hub's client."""
    folder = cache / repo_folder_name(repo_id=repository, repo_type="model")
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    (snapshot := folder / "snapshots" / ("0" * 40)).mkdir(parents=True)
    return snapshot


@pytest.mark.parametrize("offer", recommendations.OFFERS[::2], ids=lambda offer: offer.title)
def test_what_is_offered_is_what_the_library_loads(offer):
    source, id = zoo.source_of(offer.name)
    spec = source.spec(id)
    with torch.device("meta"):
        parameters = sum(one.numel() for one in spec.net(**spec.sizes).parameters())
    assert offer.size == pytest.approx(4 * parameters, rel=0.001)
    if offer.place == recommendations.PYTORCH:
        found, _ = source._weights(id)
        assert found.url == f"{recommendations.PYTORCH}/models/{offer.file}"
        assert offer.size == pytest.approx(found.meta["_file_size"] * 2**20, rel=0.001)
    else:
        assert (source.import_timm().get_pretrained_cfg(id).hf_hub_id, source.FILE) == (offer.place, offer.file)
        assert source.import_timm().get_pretrained_cfg(id).license.replace("-", " ") == offer.licence.lower()


def test_deit_tiny_out_of_the_cache_names_its_classes(cache):
    offer = recommendations.OFFERS[0]
    assert not recommendations.is_downloaded(offer) and "no network (HF_HUB_OFFLINE)" in recommendations.problem(offer)
    source, id = zoo.source_of(offer.name)
    net = source._create(id)
    save_file(net.state_dict(), cached_snapshot(cache, offer.place) / offer.file)
    assert (
        recommendations.is_downloaded(offer)
        and source.here(id)
        and downloads.fetch(offer.name) == "its weights are on this machine"
    )
    model = tracer.load(offer.name)
    assert model.weights == f"timm's weights {offer.place}"
    assert model.net.head.weight.equal(net.head.weight)
    names = model.card["classes"]
    assert len(set(names)) == 1000 and names[281] == "tabby" and names[134] != names[517]


def test_dinov2_out_of_the_cache_takes_photos_as_its_preprocessor_cuts_them(cache):
    transformers = zoo.source_of("hf:bert")[0].import_transformers()
    config = transformers.Dinov2Config(hidden_size=12, num_hidden_layers=2, num_attention_heads=2, image_size=70)
    net, folder = transformers.Dinov2Model(config).eval(), cached_snapshot(cache, recommendations.OFFERS[1].place)
    net.save_pretrained(folder)
    cut = {"do_center_crop": True, "crop_size": {"height": 42, "width": 42}, "size": {"shortest_edge": 48}}
    (folder / "preprocessor_config.json").write_text(json.dumps(cut))
    assert recommendations.is_downloaded(recommendations.OFFERS[1])
    model = tracer.load(recommendations.OFFERS[1].name)
    assert model.sizes["H"] == 42 and model.card["crop"] == 42 / 48
    assert model.weights.endswith(", its position embeddings resized to 3 × 3 patches")
    trace, (pixels,) = model.trace(), model.inputs()
    with torch.no_grad():
        theirs = net(pixels).last_hidden_state
    assert torch.allclose(trace.output["last_hidden_state"], theirs, atol=1e-5)
    assert all(step.error is None or step.error < 1e-5 for step in trace.steps)


def test_the_front_page_offers_them_and_says_at_once_that_there_is_no_network(cache):
    at = open_page()
    button = next(one for one in at.button if one.label.startswith("DeiT-tiny"))
    assert button.label == "DeiT-tiny · download 22.9 MB" and "Apache 2.0" in button.help
    began = time.monotonic()
    button.click().run()
    assert time.monotonic() - began < 5 and not at.exception
    (said,) = [one.value for one in at.error]
    assert said.startswith("DeiT-tiny can’t be downloaded, since this machine has no network (HF")
    assert at.sidebar.selectbox[0].value == "vit"


def test_a_hosted_server_offers_none(monkeypatch):
    monkeypatch.setenv("TRACER_HOSTED", "1")
    assert recommendations.offers() == () and not any("DeiT" in one.label for one in open_page().button)


def test_fetch_without_names_says_what_is_here(cache, capsys):
    (cache / "checkpoints").mkdir()
    (cache / "checkpoints" / recommendations.OFFERS[2].file).touch()
    assert main(["fetch"]) == 0
    lines = capsys.readouterr().out.splitlines()
    here = {line.split()[0]: line.split()[1] for line in lines[1:] if ":" in line}
    assert here == {"timm:deit_tiny_patch16_224": "no", "hf:facebook/dinov2-small": "no", "torchvision:vit_b_16": "yes"}
    assert "offline" in refusal(capsys, "fetch", "timm:deit_tiny_patch16_224")
    assert "no library" in refusal(capsys, "fetch", "nolib:x")


@pytest.mark.sweep
def test_weights_are_downloaded_in_a_process_of_their_own_and_told_as_they_land(tmp_path, monkeypatch):
    """From a hub on this machine; one that cuts its files short is said, and the next try gets them."""
    with Hub(tmp_path / "hub") as hub:
        for name, value in (hub.environment | {"HF_HOME": str(tmp_path / "home")}).items():
            monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
        size = (tmp_path / "hub" / "model.safetensors").stat().st_size
        asked = Download(size, folder=str(tmp_path / "home"))
        hub.cut = True
        with pytest.raises(ValueError, match=hub.model):
            downloads.fetch_in_subprocess(f"hf:{hub.model}", asked)
        hub.cut = False
        told: list[Progress] = []
        with listen(told.append):
            downloads.fetch_in_subprocess(f"hf:{hub.model}", asked)
        assert told[1] == (f"Downloading hf:{hub.model}", told[1].done, size, "B")
        assert any((tmp_path / "home").rglob("model.safetensors"))


def test_a_download_that_is_not_wanted_any_more_ends(monkeypatch, tmp_path):
    import subprocess
    import sys

    from tracer.utils.job_queue import JobEnd, Task

    begun: list[subprocess.Popen] = []
    plainly = subprocess.Popen

    def child(command, **more):
        begun.append(plainly([sys.executable, "-c", "import time; time.sleep(600)"], **more))
        return begun[-1]

    monkeypatch.setattr(subprocess, "Popen", child)
    task = Task(lambda: None, 0)

    def hear(told):
        task.ended = bool(begun)
        task.hear(told)

    with pytest.raises(JobEnd), listen(hear):
        downloads.fetch_in_subprocess("hf:somebody/model", Download(100, folder=str(tmp_path)))
    assert begun[0].wait(10) != 0


def test_the_app_downloads_before_it_loads(monkeypatch):
    done = []
    monkeypatch.setattr(run_cache, "fetch", lambda name, download: done.append("fetch"))
    monkeypatch.setattr(run_cache, "load", lambda name: done.append("load"))
    library_models._load("hf:a/b", Download(10))
    library_models._load("hf:a/b", Download(0))
    library_models._load("hf:a/b", Download(None))
    assert done == ["fetch", "load", "load", "fetch", "load"]


def test_a_host_that_does_not_answer_is_cut_off(monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    for proxy in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(proxy, raising=False)
    assert recommendations.cut_off("http://127.0.0.1:9")
