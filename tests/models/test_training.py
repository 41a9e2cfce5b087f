"""Training on a tiny data set: it learns, it goes on where it stopped, and the shipped card tells the truth."""

import io
import itertools
import json
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import tracer
from tracer.models import training
from tracer.models.training import data as cifar10
from tracer.models.training import train_loop
from tracer.models.training.recipes import vit
from tracer.models.vit import ViT

TINY = {
    "sizes": {"H": 8, "W": 8, "C": 3, "P": 4, "D": 12, "h": 2, "d_ff": 20, "L": 2, "K": 10},
    "batch": 16,
    "warmup": 2,
    "pad": 1,
    "hole": 2,
    "teacher_epochs": 0,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Two zip files in CIFAR-10's layout: 54 and 20 images of 8×8 of two classes, dark and bright."""
    folder = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(0)
    for part, count in (("train", 27), ("test", 10)):
        with zipfile.ZipFile(folder / f"cifar10-{part}.zip", "w") as archive:
            for label, low in (("cat", 0), ("ship", 150)):
                for number in range(count):
                    file = io.BytesIO()
                    pixels = random.integers(low, low + 100, (8, 8, 3), dtype=np.uint8)
                    Image.fromarray(pixels).save(file, "JPEG")
                    archive.writestr(f"{part}/{label}/{number:04}.jpg", file.getvalue())
    return folder


def card(file):
    return json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))


def same(first, second):
    first, second = load_file(first), load_file(second)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_loss_falls_and_weights_come_with_a_card(data, tmp_path):
    recipe = training.recipe("vit", **TINY)
    images = recipe.read(data, "train")
    batch = recipe.batch_of(images, torch.arange(len(images)), torch.Generator().manual_seed(0))
    before, _ = recipe.loss(recipe.build(0), batch)
    file = training.train("vit", data=data, out=tmp_path / "tiny.safetensors", epochs=6, **TINY)
    net = ViT(**TINY["sizes"])
    net.load_state_dict(load_file(file))
    after, accuracy = recipe.loss(net, batch)
    assert after < before - 0.5
    assert accuracy > 0.9
    assert card(file)["sizes"] == TINY["sizes"]
    assert card(file)["settings"]["batch"] == 16
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny.json", "tiny.safetensors"]


def test_weights_open_with_the_sizes_and_classes_of_the_card_beside_them(data, tmp_path):
    file = training.train("vit", data=data, out=tmp_path / "tiny.safetensors", epochs=1, **TINY)
    model = tracer.load("vit", weights=file)
    assert model.sizes == TINY["sizes"] and model.card == card(file)
    assert model.trace().result["classes"] == list(cifar10.CLASSES)


def test_score_is_the_figure_on_the_card(data, tmp_path):
    file = training.train("vit", data=data, out=tmp_path / "tiny.safetensors", epochs=1, **TINY)
    figures = training.score("vit", data=data, weights=file)
    told = {name: figure for name, figure in card(file).items() if name.startswith("accuracy")}
    assert len(told) == 7
    assert figures == {"model": "vit", "images": 20, "hiding_seed": 0, **told}


@pytest.mark.parametrize("bf16", [True, False])
def test_a_run_that_stopped_goes_on_as_if_it_had_not(data, tmp_path, monkeypatch, bf16):
    whole = training.train("vit", data=data, out=tmp_path / "whole.safetensors", epochs=3, bf16=bf16, **TINY)
    right, calls = vit.Recipe.loss, 0

    def stops(*args):
        nonlocal calls
        calls += 1
        if calls == 8:
            raise KeyboardInterrupt
        return right(*args)

    part = tmp_path / "part.safetensors"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(vit.Recipe, "loss", stops)
        training.train("vit", data=data, out=part, epochs=3, bf16=bf16, **TINY)
    assert torch.load(part.with_suffix(".checkpoint"), weights_only=True)["step"] == 6
    training.train("vit", data=data, out=part, bf16=bf16, **TINY)
    assert same(whole, part)
    assert card(part)["steps"] == card(whole)["steps"] == 9


def test_a_teacher_is_trained_once_and_goes_on_where_it_stopped(data, tmp_path, monkeypatch):
    settings = TINY | {"teacher_epochs": 2}
    recipe = training.recipe("vit", **settings)
    images, held_out = (recipe.read(data, part) for part in ("train", "validation"))

    def teach(name):
        return recipe.teach(images, held_out, seed=0, file=tmp_path / f"{name}.safetensors")

    whole, loss, calls = teach("whole"), train_loop.Teacher.loss, []

    def stops(*args):
        calls.append(args)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return loss(*args)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(train_loop.Teacher, "loss", stops)
        teach("part")
    monkeypatch.setattr(train_loop, "_logits", None)  # it stops again, when its last step is done
    with pytest.raises(TypeError):
        teach("part")
    monkeypatch.undo()
    part, pixels = teach("part"), cifar10.normalise(images.pixels)
    assert torch.equal(part.answers(pixels), whole.answers(pixels))
    monkeypatch.setattr(train_loop, "fit", None)  # nothing is trained anew
    again = teach("whole").answers(pixels)
    assert torch.equal(again, whole.answers(pixels)) and again.shape == (51, 10)
    assert (again.argmax(dim=-1) == images.labels).float().mean() > 0.9


@pytest.mark.parametrize("mixup", [0.0, 1.0])
def test_targets_are_a_teachers_answers_to_the_same_images_beside_the_labels(data, tmp_path, mixup):
    recipe = training.recipe("vit", **TINY | {"teacher_epochs": 1, "mixup": mixup})
    images, held_out = (recipe.read(data, part) for part in ("train", "validation"))
    images = recipe.teach(images, held_out, seed=0, file=tmp_path / "tiny.safetensors")
    dark_then_bright = torch.cat([torch.arange(20), torch.arange(31, 51)])
    batch = recipe.batch_of(images, dark_then_bright, torch.Generator().manual_seed(1))
    pixels, labels, targets, _, mines = batch
    labelled = torch.nn.functional.one_hot(labels, 10) * 0.9 + 0.01
    answers = (images.answers(pixels) / recipe.temperature).softmax(dim=-1)
    beside = (targets - recipe.trust * answers) / (1 - recipe.trust)
    if mixup:
        share = (labelled - beside).norm(dim=1) / (labelled - labelled.flip(0)).norm(dim=1)
        assert share.max() <= 0.5 + 1e-5 and share.std() > 0.1 and not mines
        labelled = labelled.lerp(labelled.flip(0), share[:, None])
    assert torch.allclose(beside, labelled, atol=1e-5)
    assert torch.allclose(targets.sum(dim=1), torch.ones(40))


def test_batch_norms_of_a_teacher_get_the_statistics_of_its_images(data):
    images = training.recipe("vit", **TINY).read(data, "train")
    norm = torch.nn.BatchNorm2d(3)
    norm.running_mean.fill_(7.0)
    train_loop._fit_statistics(norm, images, 0)
    pixels = cifar10.normalise(images.pixels)
    assert torch.allclose(norm.running_mean, pixels.mean(dim=(0, 2, 3)), atol=1e-5) and not norm.training


def test_a_checkpoint_of_another_teacher_is_refused(data, tmp_path):
    recipe = training.recipe("vit", **TINY | {"teacher_epochs": 1})
    images, file = recipe.read(data, "train"), tmp_path / "tiny.safetensors"
    checkpoint = file.with_suffix(".checkpoint")
    checkpoint.write_bytes(b"none")
    with pytest.raises(ValueError, match="can't read the checkpoint"):
        recipe.teach(images, images, seed=0, file=file)
    torch.save({"facts": "others"}, checkpoint)
    with pytest.raises(ValueError, match="is of a run with facts others"):
        recipe.teach(images, images, seed=0, file=file)


def test_a_teacher_is_on_the_card_of_its_student(data, tmp_path):
    file = training.train("vit", data=data, out=tmp_path / "tiny.safetensors", epochs=1, **TINY | {"teacher_epochs": 1})
    assert "answers of a convolutional network" in card(file)["data"]
    assert card(file)["settings"]["teacher_epochs"] == 1
    assert file.with_suffix(".teacher.safetensors").exists()


def test_a_card_names_how_it_was_trained_and_the_trainings_before(data, tmp_path, monkeypatch):
    ranks = itertools.count()
    monkeypatch.setattr(vit.Recipe, "rank", lambda *figures: next(ranks))  # each scores better than the one before
    file = tmp_path / "tiny.safetensors"
    training.train("vit", data=data, out=file, epochs=2, **TINY | {"whole": 0.5})
    first = card(file)
    assert "continues" not in first and "half of the patches left out of 50% of the batches" in first["data"]
    for _ in range(2):
        training.train("vit", data=data, out=file, epochs=4, **TINY | {"whole": 1.0, "mining": 0.0})
    last = card(file)
    assert [part["epochs"] for part in last["continues"]] == [2, 4]
    assert [part["settings"] for part in last["continues"]] == [first["settings"], last["settings"]]
    assert last["settings"]["whole"] == 1.0 and "left out" not in last["data"] and "mining" not in last["data"]
    assert last["epochs"] == 10
    assert (
        last["command"].startswith("python -m tracer train vit --epochs 4 --set H=8 ")
        and " batch=16 " in last["command"]
    )
    assert last["command"].endswith(" whole=1.0 mining=0.0")


def test_the_seed_decides_the_weights(data, tmp_path):
    def train(name, seed):
        return training.train("vit", data=data, out=tmp_path / f"{name}.safetensors", epochs=1, seed=seed, **TINY)

    first, second, other = train("first", 1), train("second", 1), train("other", 2)
    assert same(first, second)
    assert not same(first, other)


def test_training_goes_on_from_weights_and_never_for_the_worse(data, tmp_path):
    file = training.train("vit", data=data, out=tmp_path / "tiny.safetensors", epochs=1, **TINY)
    settings = {name: value for name, value in TINY.items() if name != "sizes"}
    training.train("vit", data=data, out=file, epochs=2, **settings)
    assert card(file)["sizes"] == TINY["sizes"]
    assert card(file)["epochs"] == 3
    best = file.read_bytes()
    training.train("vit", data=data, out=file, epochs=1, matrix_rate=10.0, **settings)
    assert file.read_bytes() == best


def test_weights_are_chosen_on_validation_images_and_measured_on_test_images(data, tmp_path, monkeypatch):
    falling, right, counts = iter((0.9, 0.8)), vit.Recipe.score, []

    def score(self, net, images):
        counts.append(len(images))
        return {"accuracy": next(falling)} if len(images) == 3 else right(self, net, images)

    monkeypatch.setattr(vit.Recipe, "score", score)
    file = training.train("vit", data=data, out=tmp_path / "tiny.safetensors", epochs=6, **TINY)
    assert counts == [3, 20, 3]
    assert card(file)["epochs"] == 3 and card(file)["images"] == 20


def test_validation_images_are_never_trained_on(data):
    made, every = training.recipe("vit", **TINY), cifar10.read(data, "train").pixels
    seen, held_out = (made.read(data, part).pixels for part in ("train", "validation"))
    assert (len(seen), len(held_out)) == (51, 3)
    assert {image.numpy().tobytes() for image in (*seen, *held_out)} == {image.numpy().tobytes() for image in every}


@pytest.mark.parametrize(
    ("error", "settings", "words"),
    [
        (ValueError, {"name": "vit-b"}, "no recipe for 'vit-b'"),
        (ValueError, {"depth": 3}, "no setting 'depth'"),
        (ValueError, {"epochs": 0}, "epochs=0"),
        (ValueError, {"seed": -1}, "seed=-1"),
        (ValueError, {"batch": 64}, "51 examples"),
        (ValueError, {"out": "weights.txt"}, "'weights.txt'"),
        (ValueError, {"sizes": {"D": 12}}, "sizes D"),
        (FileNotFoundError, {"data": "nowhere.zip"}, "'nowhere.zip'"),
    ],
)
def test_errors_are_one_sentence_that_quotes_what_was_given(data, tmp_path, error, settings, words):
    given = {"name": "vit", "data": data, "out": tmp_path / "w.safetensors"} | TINY | settings
    with pytest.raises(error) as raised:
        training.train(given.pop("name"), **given)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_weights_and_cards_that_do_not_fit_are_refused_in_words(data, tmp_path):
    file = training.train("vit", data=data, out=tmp_path / "tiny.safetensors", epochs=1, **TINY)
    text = file.with_suffix(".json").read_text(encoding="utf-8")
    for given, words in (
        (text.replace('"D": 12', '"D": 16'), "don't fit the sizes"),
        (text.replace('"sizes"', '"size"'), "no sizes on the card"),
        (text[:50], "expected JSON"),
    ):
        file.with_suffix(".json").write_text(given, encoding="utf-8")
        with pytest.raises(ValueError, match=words):
            training.score("vit", data=data, weights=file)
    file.with_suffix(".json").unlink()
    with pytest.raises(FileNotFoundError, match="no card"):
        training.score("vit", data=data, weights=file)
    with pytest.raises(FileNotFoundError, match="no weights"):
        training.score("vit", data=data, weights=tmp_path / "none.safetensors")


def test_a_checkpoint_of_another_run_is_refused(data, tmp_path):
    file = tmp_path / "tiny.safetensors"
    checkpoint = file.with_suffix(".checkpoint")
    torch.save({"seed": 7}, checkpoint)
    with pytest.raises(ValueError, match="seed 7, not 0"):
        training.train("vit", data=data, out=file, **TINY)
    checkpoint.write_bytes(b"no checkpoint")
    with pytest.raises(ValueError, match="remove it to start anew"):
        training.train("vit", data=data, out=file, **TINY)


def test_data_that_is_no_cifar_is_refused_in_words(data, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"cifar10-test\.zip"):
        cifar10.read(tmp_path, "test")
    (tmp_path / "cifar10-test.zip").write_bytes(b"no zip")
    with pytest.raises(ValueError, match="expected a zip file"):
        cifar10.read(tmp_path, "test")
    with pytest.raises(ValueError, match=r"\[C, H, W\] = \[3, 32, 32\]"):
        vit.Recipe().read(data, "test")
    (tmp_path / "train" / "walrus").mkdir(parents=True)
    (tmp_path / "train" / "walrus" / "0000.jpg").write_bytes(b"no image")
    with pytest.raises(ValueError, match="unknown class 'walrus'"):
        cifar10.read(tmp_path, "train")


def test_folders_and_either_zip_file_read_the_same(data, tmp_path):
    for part in ("train", "test"):
        with zipfile.ZipFile(data / f"cifar10-{part}.zip") as archive:
            archive.extractall(tmp_path)
    expected = cifar10.read(data, "train")
    for source in (tmp_path, data / "cifar10-train.zip", data / "cifar10-test.zip"):
        assert torch.equal(cifar10.read(source, "train").pixels, expected.pixels)
    assert expected.labels.bincount().tolist() == [0, 0, 0, 27, 0, 0, 0, 0, 27]


def test_shipped_card_is_of_the_shipped_weights():
    file = training.WEIGHTS_FOLDER / "vit.safetensors"
    shipped = card(file)
    net = ViT(**shipped["sizes"])
    net.load_state_dict(load_file(file))
    assert file.stat().st_size <= 8_000_000
    assert shipped["accuracy"] >= 0.7
    assert shipped["images"] == 10_000
    assert len(shipped["classes"]) == shipped["sizes"]["K"]
