"""Tokens page without a browser: its drawings of a sentence, its texts, and its refusals."""

import html
import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from streamlit.testing.v1 import AppTest

from pages.sections import tokenization
from pages.sections.tokenization.text import SENTENCE
from pages.state.view import PLACES
from tests.app.test_app import ROOT, SECONDS, text
from tests.app.test_models_in_app import open_model
from tests.support.sweeping import cases
from tracer import models, serialization
from tracer.figures import predictions
from tracer.lessons.notes.statements import rows
from tracer.lessons.tokenization import text as texts


def visit(**address: str) -> AppTest:
    at = AppTest.from_file(str(ROOT / "app.py"), default_timeout=SECONDS).switch_page("pages/tokens.py")
    for name, value in address.items():
        at.query_params[name] = value
    at.run()
    assert not at.exception
    return at


def cuts(at: AppTest) -> dict[str, list[int]]:
    """Return the ids of each way, as drawn."""
    rows = [element.proto.body for element in at.get("html") if 'class="cut' in element.proto.body]
    named = {html.unescape(re.search("<strong>(.*?)</strong>", row)[1]): row for row in rows}
    return {name: [int(id) for id in re.findall(r"<i>(?:\[UNK\] )?(\d+)</i>", row)] for name, row in named.items()}


def test_a_sentence_is_cut_in_every_way():
    at = visit()
    drawn = cuts(at)
    for name, title in tokenization.kinds()["text"].ways.items():
        speller = texts.shipped_tokenizers()[name]
        assert drawn[title] == [piece.id for piece in speller.encode(SENTENCE)]
    assert "Here 49 bytes are 28 tokens after 744 merges, and V = 256 + 744 = 1,000." in text(at)
    assert "n = 28 tokens of D = 32 numbers" in text(at) and "refuted" not in text(at)
    assert "Byte-level BPE begins with 49 tokens at 256 entries and ends with 28 at 1,000." in text(at)
    at.slider[0].set_value(0).run()
    assert not at.exception and cuts(at)["Byte-level BPE"] != drawn["Byte-level BPE"]
    assert len(cuts(at)["Byte-level BPE"]) == len(drawn["Bytes"])


@pytest.mark.parametrize("sentence", [" ", "<b>&\u202e</b> 你好 🍕 שלום", "e\u0301 " * 40])
def test_any_sentence_is_shown(sentence):
    at = visit(sentence=sentence, way="words")
    assert not at.error
    if not sentence.strip():
        assert "This tokenizer finds no token" in at.info[0].value
    else:
        assert cuts(at)["Bytes"] == list(sentence.encode())


def test_an_empty_sentence_has_no_tokens():
    at = visit()
    at.text_input[0].set_value("").run()
    assert not at.exception and not cuts(at)
    assert at.info[0].value == "An empty text has no tokens, so n = 0 and there is nothing to look up."


def test_what_an_address_has_wrong_is_quoted():
    assert "'codex', expected one from text" in visit(kind="codex").warning[0].value
    assert "expected one from 0 to 744" in visit(merges="-1").warning[0].value


def test_vocabularies_are_learned_on_a_text_of_the_visitors():
    at = visit(sentence="aa ab")
    at.text_area(key="tokens corpus").set_value("too short").run()
    at.button[0].click().run()
    assert "has 9 characters, expected 100 to 20,000" in at.error[0].value
    at.text_area(key="tokens corpus").set_value("ab " * 50).run()
    next(button for button in at.button if button.label == "Learn").click().run()
    assert not at.exception and not at.error
    assert cuts(at)["Words"] == [0, 1] and "were learned on your text." in text(at)
    next(button for button in at.button if button.label == "Back to Shakespeare").click().run()
    assert not at.exception and "tiny Shakespeare" in text(at)


def test_a_photo_is_spelled_in_codes():
    at = visit(kind="pictures", way="codes", codes="16", sample="cat")
    assert "256 ids of 4 bits: 128 bytes." in text(at) and "another draws the picture" in text(at)
    assert "n = 256 tokens" in text(at) and "refuted" not in text(at)
    at = visit(kind="pictures", patch="32", model="nanogpt")
    assert "4 × 4 = 16 patches of 32 × 32 pixels" in text(at) and not at.error


@pytest.mark.parametrize("model", cases(("nanogpt", "transformer", "vit-text"), ("transformer",)))
def test_the_way_of_a_text_begins_with_its_ids(model):
    at = open_model(model, "pages/trace.py")
    trace = at.session_state["visitor"].run()
    vocabulary = models.spec_of(model).vocabulary
    assert cuts(at) == {"From text to ids t": [vocabulary.index(word) for word in trace.words]}
    assert [shown.id for shown in predictions.of_run(trace)] == trace.values["input tokens"][0].tolist()
    opened = serialization.open(serialization.to_bytes(trace))
    assert predictions.of_run(opened) == predictions.of_run(trace)


def test_statements_of_the_notes_lead_to_kinds_and_ways_that_are_there():
    places = [place.split()[2:] for row in rows("004") for place in row.where if place.startswith("page tokens")]
    asked = [dict(one.split("=") for one in place) for place in places]
    assert len(asked) == 5
    for one in asked:
        assert one["way"] in tokenization.kinds()[one["kind"]].ways and one.keys() <= set(PLACES["tokens"])


def test_signs_that_one_does_not_see_are_shown():
    assert (
        predictions.visible_piece("a b\n\u200d\u0301") == "a␣b⏎U+200D\u0301"
        and predictions.visible_piece("\u0301") == "◌\u0301"
    )
    assert predictions.of_bytes("é".encode()) == "é" and predictions.of_bytes(b"\xf0\x9f") == "F0 9F"


def test_rows_that_ids_pick_count_from_1():
    heat = predictions.rows([7, 5], ["a", "<b>"], np.zeros((2, 3)))
    assert list(heat.data[0].y) == [1, 2] and heat.data[0].x0 == 1
    assert list(heat.layout.yaxis.ticktext) == ["1: a  <b>7</b>", "2: &lt;b&gt;  <b>5</b>"]


def test_gpt2_has_byte_level_bpe():
    """Its entries, as the code that runs it has them; read, since importing it takes seconds."""
    spec = find_spec("transformers") or pytest.skip("there is no transformers")
    file = Path(spec.origin).parent / "models" / "gpt2" / "configuration_gpt2.py"
    assert "vocab_size: int = 50257" in file.read_text(encoding="utf-8")
    assert "V = 50,257" in texts.SLIPS[0] and 256 + 50_000 + 1 == 50_257


def test_ids_count_from_0():
    table = texts.table(7)
    assert table(torch.tensor([0, 6])).shape == (2, 32)
    with pytest.raises(IndexError):
        table(torch.tensor([7]))


def test_an_entry_is_a_row():
    table, ids = texts.table(7), torch.tensor([3, 0])
    assert table.rows.weight.shape == (7, 32)
    one_hot = torch.nn.functional.one_hot(ids, 7).float()
    assert torch.equal(table(ids), table.rows.weight[ids]) and torch.equal(table(ids), one_hot @ table.rows.weight)


def test_the_library_learns_wordpiece_as_it_learns_bpe():
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    corpus = texts.shipped_text()
    inner = sorted({f"##{character}" for character in corpus if not character.isspace()})
    joined = Tokenizer(models.BPE(continuing_subword_prefix="##"))
    joined.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    joined.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=1000, continuing_subword_prefix="##", special_tokens=["[UNK]", *inner], show_progress=False
    )
    joined.train_from_iterator(texts.lines(corpus), trainer)
    assert joined.get_vocab().keys() == set(texts.shipped_tokenizers()["wordpiece"].vocabulary)
