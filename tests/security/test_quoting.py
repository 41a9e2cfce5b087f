"""Quotes of user input in the sentence that refuses it, at most a line of it; a damaged card is named."""

import json
import re

import pytest

import tracer
from tracer import cli, export, models, serialization, zoo
from tracer.inputs.images import open_photo
from tracer.symbols.notation import parse
from tracer.utils.errors import MAX_LETTERS, quote, shorten
from tracer.zoo import user_factory

LONG = "x" * 5000


def test_what_is_short_is_quoted_whole():
    assert quote("abc") == "'abc'" and quote(3) == "3" and quote("a\nb") == r"'a\nb'"
    assert quote("y" * (MAX_LETTERS - 2)) == repr("y" * (MAX_LETTERS - 2))


@pytest.mark.parametrize("given", [LONG, LONG.encode(), [LONG], {"a": LONG}, 10**200, "\0" * 5000, "𝐗" * 5000])
def test_what_is_long_is_cut_in_the_middle(given):
    said = quote(given)
    assert (
        len(said) == MAX_LETTERS and " … " in said and said[:10] == repr(given)[:10] and said[-20:] == repr(given)[-20:]
    )


def test_a_sentence_stays_one_line():
    assert shorten("a\nb  c") == "a b c" and len(shorten("a b\n" * 1000, 240)) == 240


REFUSALS = {
    "a model": lambda: tracer.load(LONG),
    "a library": lambda: tracer.load(f"{LONG}:a"),
    "a checkpoint": lambda: zoo.spec_of(f"hf:{LONG}"),
    "a folder": lambda: zoo.check_no_folder(f"hf:/{LONG}"),
    "a size": lambda: tracer.load("vit", **{LONG: 3}),
    "a value": lambda: tracer.load("vit", D=LONG),
    "a large value": lambda: tracer.load("vit", L=10**4000),
    "a derived size": lambda: tracer.load("vit", N=10**4000),
    "an option": lambda: tracer.load("nanogpt", gelu=LONG),
    "weights": lambda: tracer.load("vit", weights=LONG),
    "a size of the input": lambda: tracer.load("vit").inputs(**{LONG: 1}),
    "a text": lambda: tracer.load("nanogpt").inputs(text="é" + LONG),
    "a word": lambda: tracer.load("vit-text").inputs(text=LONG),
    "sentences": lambda: tracer.load("clip").inputs(text=LONG),
    "a formula": lambda: parse(LONG + "!"),
    "a level": lambda: export.check_level(LONG),
    "a format": lambda: export.render(tracer.record.Trace("a", ()), "ops", LONG),
    "a trace file": lambda: serialization.open(b"", name=LONG),
    "a path of a trace": lambda: serialization.open(LONG),
    "a function": lambda: user_factory.trace(LONG),
    "a photo": lambda: open_photo(LONG),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_no_refusal_quotes_more_than_a_line(name):
    with pytest.raises((ValueError, OSError)) as caught:
        REFUSALS[name]()
    said = str(caught.value)
    assert not re.search(r"(.)\1{80}", said) and "\n" not in said, said[:500]


@pytest.mark.parametrize(
    "line",
    [
        ["trace", LONG],
        ["trace", "vit", "--image", LONG],
        ["trace", "vit", "--set", LONG],
        ["trace", "vit", "--set", f"D={'9' * 4000}"],
        ["trace", "vit", "--set", f"{LONG}=1", "--set", f"{LONG}=1"],
        ["trace", "vit", "--out", LONG],
        ["trace", "vit", "--format", LONG],
        ["trace", "--module", LONG],
        ["open", LONG],
        ["verify", LONG],
        ["train", LONG],
        ["score", LONG],
        ["compare", LONG, LONG],
        [LONG],
    ],
    ids=lambda line: " ".join(line)[:24],
)
def test_the_command_line_quotes_no_more_than_a_line(line, capsys):
    assert cli.main(line) == 2
    said = capsys.readouterr().err
    assert not re.search(r"(.)\1{80}", said) and said.count("\n") == 1, said[:500]


DAMAGED_CARDS = [
    "",
    "{",
    "[]",
    "null",
    '{"sizes": 3}',
    '{"sizes": {"D": "x"}}',
    '{"sizes": {}, "options": 3}',
    "\xff",
    "[" * 9999,
]


@pytest.mark.parametrize("text", DAMAGED_CARDS, ids=range(len(DAMAGED_CARDS)))
def test_a_damaged_card_is_named(text, tmp_path, monkeypatch):
    monkeypatch.setattr(models, "WEIGHTS", tmp_path)
    (tmp_path / "vit.json").write_bytes(text.encode("latin-1"))
    for ask in (models.card, models.origin, tracer.load):
        with pytest.raises(ValueError, match=r"card .*vit\.json") as caught:
            ask("vit")
        assert "\n" not in str(caught.value)
    (tmp_path / "own.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"card .*own\.json"):
        tracer.load("nanogpt", weights=tmp_path / "own.safetensors")


def test_a_whole_card_is_read(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(models.card("vit")))
    assert models.card_of((tmp_path / "a.json").read_bytes(), "a.json") == models.card("vit")
