"""Derived textbooks of libraries against those that people once wrote by hand: `books.json` has their ids, letters and
shapes at tiny sizes, of lines outside blocks and of the first block."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import tracer
from tests.support.sweeping import cases
from tracer import zoo
from tracer.spec.spec import Model, build_seeded
from tracer.zoo.hf import generic_model, hub

FILE = Path(__file__).resolve().parents[1] / "books.json"
BOOKS = json.loads(FILE.read_text())
PATHS = "what stands outside all blocks has its id without the path of a module"
TYPES = "the code adds the kind and the place in one expression, so they are one line"
LAYOUT_REASON = "nn.MultiheadAttention lays tokens out before and after its maps: the line is the map itself"
BERT = {
    "bert.embeddings.tokens": ("embedding", r"\mathbf{X}_E", "B, T, D", PATHS),
    "bert.embeddings.position": ("position", r"\mathbf{X}_P", "B, T, D", PATHS),
    "bert.embeddings.norm": ("embedding.norm", r"\mathbf{X}^{(0)}", "B, T, D", PATHS),
    "bert.embeddings.types": ("types", r"\mathbf{n}", "1, T", TYPES),
}
OTHERS = {
    "hf:bert": BERT,
    "hf:bert BertModel": {id.removeprefix("bert."): other for id, other in BERT.items()},
    "torchvision:vit_b_16": {
        f"encoder.layers.encoder_layer_0.attention.{step}": (f"encoder.layers.encoder_layer_0.attention.{step}", *made)
        for step, made in {
            "packed": (r"\mathbf{QKV}^{(1)}", "N + 1, B, 3*D", LAYOUT_REASON),
            "context": (r"\mathbf{H}^{(1)}", "B, h, N + 1, d_k", LAYOUT_REASON),
        }.items()
    },
}
"""What is another line than it was by hand: its id, letter and shape now, and why."""


def model(case: str) -> Model:
    """Return a model by name: `"hf:gpt2 eager"` computes its attention explicitly; `"hf:vit ViTModel"` is of that
    class."""
    name, _, more = case.partition(" ")
    options = {"attention": more} if more == "eager" else {}
    if not more or options:
        return tracer.load(name, **zoo.tiny(name), **options)
    config = hub.import_transformers().AutoConfig.for_model(name[3:])
    config.architectures = [more]
    spec = generic_model.spec(generic_model.family(config), SimpleNamespace(exist=False, tokenizer=None, side=None))
    full = {**spec.sizes, **{name: choices[0] for name, choices in spec.options.items()}}
    return Model.of(case, spec, build_seeded(spec.net, full), full, weights="seeded")


def write(case: str, derived: dict[str, tuple[str, str]]) -> None:
    """Write a book anew, new lines at its end; those that OTHERS explains stay as they were by hand."""
    explained = {id: new[0] for id, new in OTHERS.get(case, {}).items()}
    lines = {id: [id, *row] for id, row in derived.items() if id not in explained.values()}
    kept = [[id, *row] if id in explained else lines.pop(id) for id, *row in BOOKS[case] if id in {*explained, *lines}]
    BOOKS[case] = [*kept, *lines.values()]
    FILE.write_text(_text(BOOKS), encoding="utf-8")


def _text(books: dict[str, list[list[str]]]) -> str:
    """Return the file's text: one line for each line of a book."""
    said = [
        f" {json.dumps(case)}: [\n" + ",\n".join(f"  {json.dumps(line)}" for line in lines) + "\n ]"
        for case, lines in books.items()
    ]
    return "{\n" + ",\n".join(said) + "\n}\n"


@pytest.mark.parametrize("case", cases(BOOKS, ("hf:bert", "hf:gpt2 eager", "torchvision:vit_b_16")))
def test_a_derived_book_says_what_the_one_by_hand_said(case, overwrite):
    run = model(case).trace(prove=False)
    found = {step.id: (step.symbol, ", ".join(step.symbolic)) for step in run.steps if step.layer in (None, 0)}
    if overwrite:
        write(case, found)
    others = dict(OTHERS.get(case, {}))
    for id, letter, shape in BOOKS[case]:
        id, letter, shape = others.pop(id, (id, letter, shape))[:3]
        assert found.pop(id, None) == (letter, shape), id
    assert not found and not others
    assert run.coverage == 1
