"""Training and measurement of the shipped weights: `train(name)` and `score(name)`.

A recipe is one file here, named like its model ("-" as "_"), with a frozen dataclass `Recipe`; `vit.py` shows its
interface: settings (`sizes`, `epochs`, `batch`, `warmup`, `bf16` among them), `read`, `initialise`, `batch_of`, `loss`,
`score`, `rank` and `card`; `train_loop.BaseRecipe` has what all share. `teach`, where a recipe has it, adds the answers
of a teacher to the examples. Settings named like options of the model are those. A recipe with `synthetic = True` draws
its examples: it reads no data. A file with `convert`, `score`, `SPEC` and `ANSWERS` in place of a recipe converts the
weights of others; `saliency.py` shows it.

Weights are chosen by their score on the part "validation"; the card has their score on the part "test".
"""

import copy
import dataclasses
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from tracer.models.training import train_loop
from tracer.spec.checkpoints import card_beside
from tracer.utils import files
from tracer.utils.errors import quote
from tracer.utils.lazy_import import import_folder

ROOT = Path(__file__).resolve().parents[3]
WEIGHTS_FOLDER = ROOT / "tracer" / "models" / "weights"
REPORT_EPOCHS = 3
PARTS = ("train", "validation", "test")
COUNTS = ("epochs", "steps", "seconds")
"""What cards count, over all trainings of the weights together."""
CHOICE = "moving average of the weights; of every third epoch and the last, the best on validation data"


def names() -> list[str]:
    """Return the names of the models that have a recipe."""
    return sorted(_recipes())


def recipe(name: str, **settings: Any) -> Any:
    """Return the recipe of a model with some of its settings changed.

    Raise ValueError for an unknown recipe or setting.
    """
    by_name = _recipes()
    if name not in by_name:
        raise ValueError(f"no recipe for {quote(name)}: expected {' or '.join(sorted(by_name))}")
    known = [field.name for field in dataclasses.fields(by_name[name])]
    for setting in settings:
        if setting not in known:
            raise ValueError(
                f"no setting {quote(setting)} in the recipe for {quote(name)}: expected one of {', '.join(known)}"
            )
    return by_name[name](**settings)


def train(
    name: str,
    *,
    data: str | Path | None = None,
    out: str | Path | None = None,
    epochs: int | None = None,
    seed: int = 0,
    **settings: Any,
) -> Path:
    """Train a model and return the file of its weights, with a card (`.json`) beside it.

    A stopped run continues from its checkpoint, up to `epochs` if set; else the weights in `out` (default: the shipped
    file) are trained on for `epochs`, and the card names the settings of both trainings; else training starts from
    nothing. `data` is the folder or zip file with the data (default: `../shared/data` beside the repository). Weights
    are written if they score better on validation data than those in `out`, every third epoch and at the end; the
    checkpoint, after each epoch, in the folder `out/` of the repository, or beside `out` if that is set. `settings` are
    fields of the recipe.

    Raise ValueError for an unknown name or setting and for data, weights or a checkpoint that don't fit;
    FileNotFoundError if the data is missing.
    """
    if epochs is not None and epochs < 1:
        raise ValueError(f"epochs={epochs}: expected a whole number from 1")
    if not 0 <= seed < 2**31:
        raise ValueError(f"seed={seed}: expected a whole number from 0 to {2**31 - 1}")
    changed = _changed_options(recipe(name, **settings))
    file = Path(out) if out else _shipped_file(name, changed)
    if file.suffix != ".safetensors":
        raise ValueError(f"can't write weights to {quote(file)}: expected a name that ends in .safetensors")
    before = _read_card(file) if file.exists() else {}
    trainer = recipe(name, **({"sizes": before["sizes"]} if before else {}) | settings)
    command = " ".join([f"python -m tracer train {name}", *_arguments(trainer, changed, epochs, settings)])
    trainer_settings = {
        key: value for key, value in dataclasses.asdict(trainer).items() if key not in ("sizes", "epochs")
    }
    run = {"seed": seed, "epochs": epochs or trainer.epochs, "sizes": trainer.sizes, "settings": trainer_settings}
    run["origin"] = {key: before.get(key, 0) for key in COUNTS}
    run["origin"]["continues"] = _history(before)
    checkpoint = (file if out else ROOT / "out" / file.name).with_suffix(".checkpoint")
    state = train_loop.read_checkpoint(checkpoint, run, ("seed", "sizes", "settings"))
    if state:
        run |= {"origin": state["origin"], "epochs": epochs or state["epochs"]}
    source = _source(data, trainer)
    examples, held_out, tests = (trainer.read(source, part) for part in PARTS)
    if hasattr(trainer, "teach"):
        examples = trainer.teach(examples, held_out, seed=seed, file=checkpoint.with_suffix(".teacher.safetensors"))
    net = trainer.build(seed)
    best = None
    if before:
        _load(net, file)
        best = trainer.rank(trainer.score(net, held_out))

    def report(average: nn.Module, step: int, seconds: float) -> None:
        nonlocal best
        epoch = step // (len(examples) // trainer.batch)
        if epoch % REPORT_EPOCHS and epoch < run["epochs"]:
            return
        average = copy.deepcopy(average).cpu()
        figures = trainer.score(average, held_out)
        train_loop.log(f"epoch {epoch}: " + ", ".join(f"{key} {value}" for key, value in figures.items()))
        if best is not None and trainer.rank(figures) <= best:
            return
        best = trainer.rank(figures)
        counts = dict(zip(COUNTS, (epoch, step, round(seconds)), strict=True))
        card = {"model": name, "sizes": trainer.sizes} | trainer.card(examples) | {"choice": CHOICE}
        card |= trainer.score(average, tests)
        card |= {key: value + run["origin"][key] for key, value in counts.items()}
        card |= {"seed": seed, "settings": trainer_settings}
        card |= {"continues": run["origin"]["continues"]} if run["origin"]["continues"] else {}
        card |= {"date": f"{datetime.now(UTC):%Y-%m-%d}", "command": command}
        _write(file, average.state_dict(), card)

    train_loop.fit(trainer, net, examples, run=run, state=state, checkpoint=checkpoint, report=report)
    return file


def convert(name: str, source: str | Path, out: str | Path | None = None) -> Path:
    """Convert weights that others trained, and return the file, with a card (`.json`) beside it.

    Raise ValueError for a model that has no such weights and for a file that has others.
    """
    conversions = _conversions()
    if name not in conversions:
        raise ValueError(f"no conversion for {quote(name)}: expected {' or '.join(sorted(conversions))}")
    file, conversion = Path(out) if out else _shipped_file(name), conversions[name]
    tensors, card, answers = conversion.convert(source)
    if out is None:
        files.write(Path(str(conversion.ANSWERS)), save(answers))
    net = conversion.SPEC.net(**card["sizes"])
    net.load_state_dict(tensors)
    _write(file, tensors, card | conversion.score(net.eval()) | {"date": f"{datetime.now(UTC):%Y-%m-%d}"})
    return file


def score(name: str, *, data: str | Path | None = None, weights: str | Path | None = None) -> dict:
    """Measure weights (default: the shipped ones) in float32 on the CPU, on all of the test data.

    Return the model's name and its figures, e.g. `{"model": "vit", "accuracy": 0.75, "images": 10000}`. Raise
    ValueError for an unknown name or weights that don't fit, FileNotFoundError if weights, card or data are missing.
    """
    conversion = _conversions().get(name)
    if conversion is None:
        recipe(name)
    file = Path(weights) if weights else _shipped_file(name)
    if not file.exists():
        raise FileNotFoundError(
            f"no weights in {quote(file)}: make them with python -m tracer train {name} --out {file}"
        )
    card = _read_card(file)
    if conversion is not None:
        net = conversion.SPEC.net(**card["sizes"])
        _load(net, file)
        return {"model": name} | conversion.score(net.eval())
    known = {field.name for field in dataclasses.fields(recipe(name))}
    options = {option: value for option, value in card.get("options", {}).items() if option in known}
    trainer = recipe(name, sizes=card["sizes"], **options)
    net = trainer.build(0)
    _load(net, file)
    return {"model": name} | trainer.score(net, trainer.read(_source(data, trainer), "test"))


def _recipes() -> dict[str, type]:
    modules = import_folder("tracer.models.training.recipes")
    return {name.replace("_", "-"): file.Recipe for name, file in modules.items() if hasattr(file, "Recipe")}


def _conversions() -> dict[str, Any]:
    modules = import_folder("tracer.models.training.recipes")
    return {name.replace("_", "-"): file for name, file in modules.items() if hasattr(file, "convert")}


def _shipped_file(name: str, changed: Sequence[str] = ()) -> Path:
    return WEIGHTS_FOLDER / f"{'.'.join([name, ','.join(changed)]) if changed else name}.safetensors"


def _changed_options(trainer: Any) -> list[str]:
    """Return the sizes and options of a model that a recipe changes, such as `["positions=relative"]`."""
    first = type(trainer)()
    pairs = [(name, size, first.sizes[name]) for name, size in trainer.sizes.items()]
    pairs += [(name, getattr(trainer, name), getattr(first, name)) for name in trainer.options]
    return [f"{name}={value}" for name, value, usual in pairs if value != usual]


def _arguments(trainer: Any, changed: Sequence[str], epochs: int | None, settings: dict[str, Any]) -> list[str]:
    """Return the arguments of a command line that trains like this: `changed` and all other `settings`."""
    others = {key: value for key, value in settings.items() if key not in ("sizes", *trainer.options)}
    pairs = [*changed, *(f"{key}={value}" for key, value in others.items())]
    return [*([f"--epochs {epochs}"] if epochs else []), *([f"--set {' '.join(pairs)}"] if pairs else [])]


def _source(data: str | Path | None, trainer: Any) -> Path | None:
    if trainer.synthetic:
        return None
    source = Path(data) if data else ROOT.parent / "shared" / "data"
    if not source.exists():
        raise FileNotFoundError(f"no data in {quote(source)}: pass the folder or zip file that holds it (--data)")
    return source


def _read_card(file: Path) -> dict:
    card = card_beside(file)
    if card is None:
        name = file.with_suffix(".json")
        raise FileNotFoundError(
            f"no card {quote(name)} beside the weights {quote(file)}: expected one with their sizes"
        )
    return card


def _history(card: dict) -> list[dict]:
    """Return the former trainings of weights by their card: the epochs of each, and its settings."""
    former = list(card.get("continues", ()))
    if "settings" in card:
        epochs = card["epochs"] - sum(training["epochs"] for training in former)
        former.append({"epochs": epochs, "settings": card["settings"]})
    return former


def _write(file: Path, tensors: dict[str, Tensor], card: dict) -> None:
    text = json.dumps(card, ensure_ascii=False, indent=2) + "\n"
    file.parent.mkdir(parents=True, exist_ok=True)
    files.write(file, save(tensors))
    files.write(file.with_suffix(".json"), text.encode())


def _load(net: nn.Module, file: Path) -> None:
    try:
        net.load_state_dict(load_file(file))
    except (RuntimeError, SafetensorError) as error:
        raise ValueError(f"the weights in {quote(file)} don't fit the sizes on their card") from error
