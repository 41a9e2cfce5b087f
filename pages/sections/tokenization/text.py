"""Text: one sentence cut by six tokenizers side by side; the ids of one of them index an embedding table."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import streamlit as st

from pages import components, ui
from pages.jobs import run_cache, single_flight
from pages.jobs.single_flight import chart, of
from pages.sections import tokenization
from pages.state import url_state
from pages.ui import widgets
from pages.ui.texts import escape
from tracer.figures import predictions
from tracer.record import Trace
from tracer.utils.errors import limits
from tracer.utils.lazy_import import lazy_import

if TYPE_CHECKING:
    from tracer.lessons import tokenization as lessons
    from tracer.lessons.tokenization import text as text_tokenizers
else:  # imported when first used
    lessons = lazy_import("tracer.lessons.tokenization")
    text_tokenizers = lazy_import("tracer.lessons.tokenization.text")


TITLE = "Text"
ICON = ":material/notes:"
ORDER = 1
WAYS = {
    "characters": "Characters",
    "words": "Words",
    "bytes": "Bytes",
    "bpe": "Byte-level BPE",
    "wordpiece": "WordPiece",
    "unigram": "Unigram",
}
FIRST = "bpe"
SENTENCE = "My lord, the naïve tokenizer unhappily ate 🍕."
"""What is cut at first: a word that stands in the text that was learned on, and some that don't."""
MAX_LETTERS = 160
"""Characters of a sentence that is cut."""
SENTENCE_KEY = "tokenized"
"""Where a visitor's session keeps its sentence and the text that it learned on."""
ENTRY_BYTES = 200
"""Bytes that an entry of a vocabulary takes, about."""


class LearnedVocabularies:
    """Vocabularies learned on a visitor's text, for as long as the text is kept."""

    def __init__(self, spellers: dict):
        self.spellers = spellers

    def weight(self) -> int:
        """Return the approximate size of the vocabularies in bytes."""
        return ENTRY_BYTES * sum(len(speller.vocabulary) for speller in self.spellers.values())


def show() -> None:
    """Draw the sentence, its pieces by every tokenizer, and the rows that the ids of one of them select."""
    components.style(ui.STYLES / "pieces.css")
    state = st.session_state.setdefault(SENTENCE_KEY, {})
    sentence = text_tokenizers.clean(_sentence())[:MAX_LETTERS]
    if not sentence:
        st.info("An empty text has no tokens, so n = 0 and there is nothing to look up.")
        return
    spellers = _spellers(state)
    owner = state["sentence"] = run_cache.content(("sentence", sentence, state.get("digest")))
    chosen = st.query_params.get("way")
    chosen = chosen if chosen in WAYS else FIRST
    cut = spellers["bpe"]
    for name in WAYS:
        if name == "bpe":
            cut = _choose_merges(spellers["bpe"])
        _row(owner, name, cut if name == "bpe" else spellers[name], sentence, chosen)
    text = (
        "your text"
        if "corpus" in state
        else f"the beginning of tiny Shakespeare, {len(text_tokenizers.shipped_text()):,} characters"
    )
    st.caption(
        "n tokens of a vocabulary of V entries, with the id under each piece. ␣ is a space. Two hexadecimal digits "
        "are a byte that is not a character by itself. ## continues a word, ▁ is a space before a piece, and a dashed "
        f"frame marks an unknown piece, [UNK]. All vocabularies except that of bytes were learned on {text}."
    )
    _learn(state)
    st.header("Number of tokens and size of the vocabulary")
    _lengths(owner, spellers, sentence)
    st.header("The row that an id selects")
    name = tokenization.way("text", "Tokenizer for the steps below")
    _go_on(owner, name, cut if name == "bpe" else spellers[name], sentence)
    tokenization.slips(_slips(sentence, spellers["bytes"], cut))


def _sentence() -> str:
    """Return the sentence of the URL, typed on the page; an empty one is not written to the URL."""
    key, named = "place sentence", st.query_params.get("sentence")
    if named or st.session_state.get(key) != "":
        st.session_state[key] = (named or SENTENCE)[:MAX_LETTERS]
    return st.text_input(
        "Your sentence",
        key=key,
        max_chars=MAX_LETTERS,
        on_change=lambda: url_state.keep(sentence=st.session_state[key]),
    )


def _spellers(state: dict) -> dict:
    """Return the six tokenizers, trained on the visitor's text where there is one."""
    if "corpus" not in state:
        return tokenization.once(text_tokenizers.shipped_tokenizers)
    learn = partial(text_tokenizers.learn, state["text"])
    return of(
        state["corpus"],
        "spellers",
        lambda: LearnedVocabularies(single_flight.in_turn(learn, "Learning the vocabularies")),
    ).spellers


def _learn(state: dict) -> None:
    """Draw a box for a training text of the visitor's."""
    most = min(text_tokenizers.MAX_LETTERS, limits().text)
    with st.expander("Learn the vocabularies from your own text", icon=":material/school:"):
        text = st.text_area(
            f"Text, {text_tokenizers.MIN_LETTERS} to {most:,} characters, in any language",
            max_chars=most,
            key="tokens corpus",
        )
        with st.container(horizontal=True):
            learn = st.button("Learn", icon=":material/school:", disabled=not text)
            back = "corpus" in state and st.button("Back to Shakespeare", icon=":material/undo:")
    if back:
        for name in ("corpus", "text", "digest"):
            state.pop(name, None)
        st.rerun()
    if learn:
        try:
            text = text_tokenizers.check_corpus(text)
        except ValueError as error:
            st.error(escape(f"{error}. The vocabularies learned before stay."), icon=":material/block:")
            return
        state |= {"text": text, "digest": hash(text), "corpus": run_cache.content(("corpus", text))}
        st.rerun()


def _choose_merges(whole):
    """Return byte-level BPE after as many merges as are chosen."""
    most = len(whole.merges)
    if not most:
        return whole
    count = st.slider("Merges of byte-level BPE", 0, most, **widgets.widget("merges", range(most + 1), most))
    if count == 0:
        st.caption(
            "Without merges, the tokens are bytes. Move the slider: each merge joins the pair that is then most "
            "frequent."
        )
    else:
        left, right = (predictions.of_bytes(whole.raw(part)) for part in whole.merges[count - 1])
        entry = whole.vocabulary.index("".join(whole.merges[count - 1]))
        st.caption(escape(f"Merge {count} joins {left} + {right} into a new token, id {entry}."))
    return whole.first(count)


def _piece_chip(piece, text: str) -> predictions.TokenPiece:
    said = text[piece.start : piece.end]
    shown, about = predictions.visible_piece(piece.entry), f"stands for {said!r}"
    unknown = piece.entry == text_tokenizers.UNKNOWN
    if unknown:
        shown, about = predictions.visible_piece(said), f"{text_tokenizers.UNKNOWN}, {about}"
    elif piece.raw is not None:
        shown, about = predictions.of_bytes(piece.raw), f"bytes {piece.raw.hex(' ').upper()}"
    return predictions.TokenPiece(shown, piece.id, unknown, about)


def _row(owner, name: str, speller, sentence: str, chosen: str) -> None:
    """Draw one tokenizer's row, with its facts."""
    entries = len(speller.vocabulary)

    def draw() -> str:
        pieces = speller.encode(sentence)
        each = f"{len(sentence) / len(pieces):.1f} characters per token" if pieces else "no token"
        facts = [f"n = {len(pieces)}", f"V = {entries:,}", each]
        spelled = _back(sentence, speller.decode([piece.id for piece in pieces]))
        return predictions.row(
            WAYS[name], facts, [_piece_chip(piece, sentence) for piece in pieces], spelled, name == chosen
        )

    st.html(of(owner, ("pieces", name, entries, name == chosen), draw))


def _lengths(owner, spellers: dict, sentence: str) -> None:
    """Draw the length of the sentence by each tokenizer against the size of its vocabulary, and for BPE from its first
    merge on."""
    whole = spellers["bpe"]
    counts = sorted({0, len(whole.merges)} | {2**power for power in range(11) if 2**power < len(whole.merges)})

    curve = of(owner, "curve", lambda: [_length(whole.first(count), sentence) for count in counts])

    def draw():
        points = {WAYS[name]: _length(speller, sentence) for name, speller in spellers.items() if name != "bpe"}
        return predictions.lengths(points, curve, WAYS["bpe"])

    (least, first), (most, last) = curve[0], curve[-1]
    alt = f"Number of tokens and size of the vocabulary: byte-level BPE goes from {first} tokens to {last}"
    chart(owner, "lengths", draw, alt=alt)
    st.caption(
        f"Byte-level BPE begins with {first} tokens at {least} entries and ends with {last} at {most:,}. The "
        "attention scores grow with n², and the table E grows with V."
    )


def _length(speller, sentence: str) -> tuple[int, int]:
    """Return the size of a vocabulary, and the number of tokens of a sentence."""
    return len(speller.vocabulary), len(speller.encode(sentence))


def _back(sentence: str, spelled: str) -> str:
    """Return a sentence on whether decoding restores the sentence, and what is lost where it does not."""
    if spelled == sentence:
        return "✓ decode(encode(x)) = x"
    changes = dict.fromkeys(text_tokenizers.differences(sentence, spelled))
    pairs = [
        f"{predictions.visible_piece(was)} → {predictions.visible_piece(now)}" if was and now
        else f"{predictions.visible_piece(was)} was lost" if was else f"{predictions.visible_piece(now)} was added"
        for was, now in list(changes)[:4]
    ]  # fmt: skip
    more = f", and {len(changes) - 4} more" if len(changes) > 4 else ""
    return f"✗ decode(encode(x)) ≠ x: {', '.join(pairs)}{more}"


def _go_on(owner, name: str, speller, sentence: str) -> None:
    """Draw the rows that the ids of one tokenizer select, and the steps from there on."""
    pieces = speller.encode(sentence)
    says = dict(text_tokenizers.SAYS)[name][1]
    st.markdown(f"**{WAYS[name]}.** {says}")
    if not pieces:
        st.info("This tokenizer finds no token in the text, so there is nothing to look up.")
        return
    ids, entries = [piece.id for piece in pieces], len(speller.vocabulary)

    def trace_ids() -> Trace:
        if name == "characters":
            return text_tokenizers.trace_characters(sentence, speller.vocabulary)
        return text_tokenizers.looked_up(name, ids, entries)

    run = tokenization.trace_once(owner, (name, entries), trace_ids)
    if (value := run.value(lessons.before(run)[-1])) is not None:
        vectors, texts = value[0].numpy(), [_piece_chip(piece, sentence).text for piece in pieces]
        first = f"The first {min(len(ids), predictions.MAX_ROWS)} of {len(ids)} tokens"
        alt = f"{first}, each a row of {len(vectors[0])} numbers"
        chart(owner, ("rows", name, entries), partial(predictions.rows, ids, texts, vectors), alt=alt)
    again = next((id for id in ids if ids.count(id) > 1), None)
    if again is not None:
        places = [place for place, id in enumerate(ids, 1) if id == again]
        st.caption(
            escape(
                f"Id {again} appears at positions {', '.join(map(str, places[:6]))}{' …' if len(places) > 6 else ''} "
                "and picks the same row each time. Only position encodings will tell them apart."
            )
        )
    tokenization.steps(run)


def _slips(sentence: str, plain_bytes, cut) -> list[str]:
    """Return where texts differ from what runs here, with the numbers of this sentence."""
    count, joined = len(plain_bytes.encode(sentence)), len(cut.encode(sentence))
    facts = {"bytes": count, "joined": joined, "merges": len(cut.merges), "V": len(cut.vocabulary)}
    return [slip.format(**facts) for slip in text_tokenizers.SLIPS]
