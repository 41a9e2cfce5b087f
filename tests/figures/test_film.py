"""Run as a film: every step in a beat, every number in a sentence that of the run, a player for every screen."""

import re
from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest
import torch
from torch import nn

import tracer
from tests.support.handmade import sample
from tests.support.messages import unpack
from tracer.cli import main
from tracer.export import verdicts
from tracer.figures import envelope
from tracer.figures.film import block_film, film, message, sentences
from tracer.figures.film.chapters import Chapter, Lane, Snapshot, Stream, between, chapters
from tracer.figures.film.sentences import Scene
from tracer.figures.film.storyboard import Beat, Storyboard, heads_weights, storyboard
from tracer.tracing import provenance
from tracer.verify import small

MODELS = ("vit", "nanogpt", "llama", "vit-text", "segmenter", "mae", "clip", "transformer")


@pytest.fixture(scope="module")
def boards() -> dict[str, Storyboard]:
    """Return storyboards of our own models, each on its own sample."""
    return {name: storyboard(tracer.load(name).trace()) for name in MODELS}


def beat(board: Storyboard, kind: str, number: int = 0) -> Beat:
    return next(each for each in board.beats if each.kind == kind and each.number == number)


def sent(board: Storyboard, *room: int) -> dict:
    """Return what a browser gets of a film."""
    return unpack(envelope.pack(message.build(board, *room)))


def percents(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"([\d.]+)\N{NO-BREAK SPACE}%", text)]


@pytest.mark.parametrize("name", MODELS)
def test_each_step_is_in_one_beat_and_each_beat_has_its_words_its_equation_and_its_shape(boards, name):
    board = boards[name]
    steps = {step.id: step for step in board.trace.steps}
    assert sorted(id for each in board.beats for id in each.steps) == sorted(steps)
    assert [each.kind for each in board.beats].count("modules") == 0
    assert board.beats[-1].kind == "answer"
    for each in board.beats:
        assert each.caption.title and each.caption.sentence.endswith(".") and len(each.caption.sentence) < 250
        assert each.shape and len(each.symbolic) == len(each.shape)
        if each.kind not in ("photo", "text"):
            assert each.shown is not None and each.latex == steps[each.shown.id].latex
    blocks = [each for each in board.beats if each.kind == "block"]
    assert len(blocks) == len(board.trace.attentions) and all(each.snapshot and each.record for each in blocks)


def test_the_sentences_of_vit_are_computed_from_its_tensors(boards):
    board = boards["vit"]
    trace = board.trace
    pixels = trace.value("patches")[0].std(-1, unbiased=False)
    row, column = divmod(int(pixels.argmax()), 8)
    assert f"row {row + 1}, column {column + 1} differ most" in beat(board, "patches").caption.sentence
    moved = (trace.value("position") - trace.value("sequence"))[0].norm(dim=-1) / trace.value("sequence")[0].norm(
        dim=-1
    )
    assert percents(beat(board, "position").caption.sentence) == pytest.approx(
        [100 * np.median(moved.numpy()), 100 * moved.max().item()][: 1 + (moved.max().item() < 2)], abs=0.06
    )
    assert "changes half of the tokens by more than " in beat(board, "position").caption.sentence
    assert beat(board, "sequence").caption.sentence.endswith("CLS is a learned vector, the same for every photo.")
    before = trace.value("position")[0]
    for number in range(1, 7):
        caption = beat(board, "block", number).caption
        weights = trace.value(f"block{number}.attention.weights")[0].mean(0)[0]
        after = trace.value(f"block{number}.mlp.residual")[0]
        inside = trace.value(f"block{number}.attention.residual")[0]
        share, even, attended, added = percents(caption.sentence)
        assert "to 5 of 64 patches. Equal weights would give them " in caption.sentence
        assert share == pytest.approx(100 * weights[1:].topk(5).values.sum().item(), abs=0.06)
        assert even == pytest.approx(500 / 65, abs=0.06)
        assert "Attention changes all 65 tokens, on average by" in caption.sentence
        assert "of their length; the MLP then by" in caption.sentence
        for said, (start, end) in ((attended, (before, inside)), (added, (inside, after))):
            moved = (end - start).norm(dim=-1) / start.norm(dim=-1)
            assert said == pytest.approx(100 * moved.mean().item(), abs=0.06)
        assert ("a few patches" in caption.title) == (share >= 50)
        before = after
    assert "token 1 of 65" in beat(board, "read").caption.sentence
    odds = trace.value("logits")[0].softmax(-1).sort(descending=True).values
    assert percents(beat(board, "answer").caption.sentence) == pytest.approx((100 * odds[:2]).tolist(), abs=0.06)


@pytest.mark.parametrize(
    ("name", "kind", "step"),
    [
        ("vit", "patches", "patches"),
        ("vit", "tokens", "embedding"),
        ("vit", "position", "position"),
        ("vit", "block", "block3.mlp.residual"),
        ("vit", "block", "block3.attention.residual"),
        ("vit", "read", "norm"),
        ("clip", "project", "image.unit"),
        ("nanogpt", "tokens", "embedding"),
    ],
)
def test_a_sentence_follows_the_tensor_that_it_is_of(boards, name, kind, step):
    trace = boards[name].trace
    torch.manual_seed(0)
    key = trace.step(step).value
    changed = replace(trace, values={**trace.values, key: torch.randn_like(trace.values[key])})
    number = 3 if kind == "block" else 0
    assert beat(storyboard(changed), kind, number).caption != beat(boards[name], kind, number).caption


def test_attention_and_mlp_are_told_apart_only_where_they_follow_one_another(boards, libraries):
    block = next(chapter for chapter in chapters(boards["vit"].trace) if chapter.number == 2)
    names = [step.id.removeprefix("block2.") for step in block.steps]
    middle = names.index("attention.residual")
    assert between(block) is block.steps[middle]
    first, rest = block.steps[: middle + 1], block.steps[middle + 1 :]
    for steps in (first, rest, (*rest[:-1], *first, rest[-1]), (*first[:-1], *rest)):
        assert between(replace(block, steps=steps)) is None
    for each in (each for board in libraries.values() for each in board.beats if each.kind == "block"):
        before, after = each.snapshot.attention, each.snapshot.mlp
        assert (before > 0).any() and (after > 0).any() and "; the MLP then by" in each.caption.sentence


def test_the_sentence_of_a_block_follows_its_queries(boards):
    trace = boards["vit"].trace
    key = trace.attentions[5].q
    for factor, says in ((0.05, "looks around"), (0.0, "attends to all equally")):
        changed = replace(trace, values={**trace.values, key: factor * trace.values[key]})
        assert beat(storyboard(changed), "block", 6).caption.title == f"Block 6 of 6: CLS {says}"


ALL_OFF = "block5.attention.weights", "drop_heads(0,1,2,3)"


@pytest.mark.parametrize(
    ("line", "change", "title", "sentence", "kind"),
    [
        (
            "block5.attention.scores",
            "causal()",
            "attends only to itself",
            "In every head, CLS attends only to itself: the mask closes the other 64 tokens.",
            sentences.ALONE,
        ),
        (
            *ALL_OFF,
            "attends to nothing",
            "In every head, CLS attends to nothing: every weight of its row is 0.",
            sentences.NOTHING,
        ),
        (
            "block5.attention.scores",
            "zero",
            "attends to all equally",
            "On average over the heads, CLS attends equally to all 65 tokens that it may attend to.",
            sentences.EVEN,
        ),
    ],
)
def test_a_row_without_a_preference_is_said_to_have_none(vit, line, change, title, sentence, kind):
    board = storyboard(vit.trace(change={line: change}))
    block = beat(board, "block", 5)
    assert block.caption.title == f"Block 5 of 6: CLS {title}"
    assert block.caption.sentence.startswith(f"{sentence} Attention changes all 65 tokens")
    header = sent(board)
    look = header["looks"][4]
    assert [int(view[0]) for view in look["kinds"]] == [kind] * 5  # four heads and their mean
    assert header["looks"][0]["kinds"] == [""] * 5


def test_the_words_of_a_head_are_computed_from_its_own_weights(vit, boards):
    board = storyboard(vit.trace(change={"block5.attention.weights": "drop_heads(2)"}))
    caption = beat(board, "block", 5).caption
    weights = heads_weights(board.trace, beat(board, "block", 5).record)[:, 0]
    share = 100 * np.sort(weights.mean(0)[1:])[-5:].sum()
    assert "CLS gives " in caption.sentence and "and 75.0\N{NO-BREAK SPACE}% to all tokens together" in caption.sentence
    assert percents(caption.sentence)[:3] == pytest.approx([share, 75, 75 * 5 / 65], abs=0.06)
    assert caption.heads[2] == "In head 3, CLS attends to nothing: every weight of its row is 0."
    for head in (0, 1, 3):
        own = 100 * np.sort(weights[head, 1:])[-5:].sum()
        assert caption.heads[head].startswith(f"In head {head + 1}, CLS gives ")
        assert percents(caption.heads[head]) == pytest.approx([own, 500 / 65], abs=0.06)
    entry = sent(board)["beats"][message.ids(board).index("block5")]
    assert (entry["heads"], entry["rest"]) == ([*caption.heads], caption.rest)
    assert caption.sentence.endswith(caption.rest) and caption.rest.startswith("Attention changes")


def test_what_is_read_says_how_little_it_attended_to(vit):
    for change, says in (
        ("drop_heads(0,1,2,3)", "In the last block, it attended to nothing: every weight of its row is 0."),
        ("drop_heads(0)", "In the last block, its weights for the 64 others add up to "),
    ):
        board = storyboard(vit.trace(change={"block6.attention.weights": change}))
        assert says in beat(board, "read").caption.sentence
    own = heads_weights(board.trace, beat(board, "block", 6).record).mean(0)[0]
    assert percents(beat(board, "read").caption.sentence)[-1] == pytest.approx(100 * own[1:].sum(), abs=0.06)


def test_weights_are_the_same_where_they_are_so_on_all_keys_that_are_open(vit):
    weights = np.tril(np.ones((4, 4), np.float32)) / np.arange(1, 5, dtype=np.float32)[:, None]
    closed = ~np.tril(np.ones((4, 4), bool))
    alone, even, nothing, other = (
        sentences.ALONE,
        sentences.EVEN,
        sentences.NOTHING,
        sentences.OTHER,
    )
    assert sentences.kinds(weights, lambda: closed).tolist() == [alone, even, even, even]
    assert sentences.kinds(weights).tolist() == [alone, other, other, even]  # without a mask, they leave keys out
    assert sentences.kinds(0 * weights).tolist() == [nothing] * 4
    almost = weights * (1 + 1e-5 * np.arange(4, dtype=np.float32))
    assert sentences.kinds(almost, lambda: closed).tolist() == [alone, other, other, other]
    trace = vit.trace(change={"block2.attention.scores": "causal()"})
    np.testing.assert_array_equal(
        sentences.closed_keys(trace, trace.attentions[1], 9),
        sentences.closed_keys(trace, trace.attentions[1])[9],
    )


def test_weights_that_are_nearly_even_are_not_called_a_look_and_random_weights_answer_nothing():
    trace = tracer.load("nanogpt", D=12, h=3, d_ff=8, L=1).trace(text="abcde")
    board = storyboard(trace)
    caption, row = beat(board, "block", 1).caption, trace.attention(0)[0].mean(0)[-1].numpy()
    assert row.max() < 2 / 5 and caption.title.endswith(" looks around")
    assert caption.sentence.count("Equal weights would give it 20.0\N{NO-BREAK SPACE}%.") == 1
    assert all(
        "Equal weights would" in head
        for head, own in zip(caption.heads, trace.attention(0)[0, :, -1], strict=True)
        if own.max() < 2 / 5
    )
    assert board.beats[-1].caption.title.startswith("What random weights say: ")


def test_one_token_of_a_tiny_length_does_not_decide_what_a_position_changes():
    steps = tracer.load("vit", D=8, h=2, d_ff=8, L=1).trace()
    chapter = Chapter("position", (steps.step("position"),))
    change = np.full(65, 0.05, np.float32)
    change[0] = 18809.996
    after = Snapshot(0, np.ones((65, 8), np.float32), change)
    lanes = [Lane("CLS", "CLS"), *(Lane(f"token {token}", str(token)) for token in range(1, 65))]
    caption = sentences.caption(Scene(steps, chapter, Stream(lanes), None, after), steps.step("position"))
    assert "half of the tokens by more than 5.0\N{NO-BREAK SPACE}% of their length" in caption.sentence
    assert "It changes CLS most, by 18,810 times." in caption.sentence


def test_the_second_most_probable_token_is_not_said_to_come_next(boards):
    sentence = beat(boards["nanogpt"], "answer").caption.sentence
    assert "next" not in sentence and "” is second, with " in sentence


def test_lanes_are_missing_where_the_encoder_sees_no_patch_and_come_back(boards):
    board = boards["mae"]
    hidden = set(range(64)) - set(board.trace.result["visible"])
    assert len(board.streams) == 1
    for each in board.beats:
        if each.snapshot is None:
            continue
        missing = {board.streams[0].lanes[lane].patch for lane in np.flatnonzero(~each.snapshot.present)}
        encoder = each.kind == "visible" or (each.record is not None and each.record.part == "encoder")
        assert missing == (hidden if encoder else set()), each.label
    assert "32 mask tokens" in beat(board, "return").caption.sentence


def test_what_is_read_is_found_in_the_tensors(boards):
    assert [stream.read for stream in boards["clip"].streams] == [0, 4]
    assert beat(boards["clip"], "read").caption.title == "Only CLS is read"  # one row goes on, those of a text all do
    assert "computed from token 28 of 28." in beat(boards["nanogpt"], "read").caption.sentence
    assert {name: boards[name].streams[0].read for name in ("vit", "nanogpt", "vit-text", "mae", "transformer")} == {
        "vit": 0, "nanogpt": 27, "vit-text": 74, "mae": None, "transformer": None
    }  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_no_tick_stands_beside_an_answer(boards, name):
    """An equation is verified; whether the answer is right, nobody knows. That it was refuted is said there, too."""
    *before, answer = boards[name].beats
    assert answer.kind == "answer" and answer.shown.verdict == "verified"
    told = message.line_facts(answer)
    assert (told["proof"], told["verdict"]) == ("", "") and told["equation"]
    assert any(message.line_facts(each)["proof"].startswith("✓ verified on this run") for each in before)
    told = message.line_facts(replace(answer, shown=replace(answer.shown, margin=9.0)))
    assert told["proof"].startswith("✕ refuted on this run") and told["verdict"] == "refuted"


def test_the_player_says_what_verified_means_where_it_stands(boards):
    page = film(boards["vit"].trace).html
    assert f'<span class="proof" title="{verdicts.MEANING}">' in page and page.count(verdicts.MEANING) == 1


def test_the_proof_of_two_equations_is_that_of_the_weaker(boards):
    block = beat(boards["vit"], "block", 1)
    scores, weights = replace(block.also, checked=2, error=3e-7), replace(block.shown, checked=3, error=1e-7)
    assert message.proof(weights, scores) == "✓ both verified on this run and 2 others, error 3.0 × 10⁻⁷"
    assert message.proof(weights, replace(scores, margin=9.0)) == "✕ refuted on this run, error 3.0 × 10⁻⁷"
    assert message.proof(weights) == "✓ verified on this run and 3 others, error 1.0 × 10⁻⁷"


def test_the_message_has_the_numbers_of_the_run_in_three_digits_and_little_room(boards, monkeypatch):
    board = boards["vit"]
    data = envelope.pack(message.build(board))
    assert len(data) <= 400_000
    header = unpack(data)
    look = header["looks"][5]
    weights = board.trace.attention(5)[0].numpy()
    np.testing.assert_allclose(look["weights"], weights, rtol=5e-4, atol=1e-7)
    assert (look["keys"], look["queries"], len(look["slots"])) == (None, None, 65)  # of all tokens, to all
    snapshot = header["snapshots"][-2]
    last = board.trace.value("block6.mlp.residual")[0]
    likeness = torch.cosine_similarity(last, last[:1]).numpy()
    np.testing.assert_allclose(snapshot["like"], likeness, rtol=5e-4, atol=1e-4)
    before = board.trace.value("block5.mlp.residual")[0]
    change = ((last - before).norm(dim=-1) / before.norm(dim=-1)).numpy()
    np.testing.assert_allclose(snapshot["change"], change, rtol=1e-3)
    middle = board.trace.value("block6.attention.residual")[0]
    for name, start, end in (("attention", before, middle), ("mlp", middle, last)):
        moved = ((end - start).norm(dim=-1) / start.norm(dim=-1)).numpy()
        np.testing.assert_allclose(snapshot[name], moved, rtol=1e-3)
    first = header["snapshots"][0]  # CLS has not joined, so no lane is like it
    assert first["like"] is None and np.isnan(first["change"]).all()
    lengths = board.trace.value("embedding")[0].norm(dim=-1).numpy()
    np.testing.assert_allclose(first["length"][1:], lengths, rtol=1e-3)
    with monkeypatch.context() as patched:
        patched.delattr(message, "heads_weights")  # the means are those that the sentences were computed from
        few = sent(board, 60_000)
    np.testing.assert_allclose(few["looks"][5]["weights"][0], weights.mean(0), rtol=5e-4, atol=1e-7)
    assert [look["weights"].shape for look in few["looks"]] == [(1, 65, 65)] * 6
    fewest = sent(board, 5_000)
    assert [(look["weights"].shape, look["queries"]) for look in fewest["looks"]] == [((4, 1, 65), [0])] * 6


@pytest.mark.parametrize("name", MODELS)
def test_the_equation_of_a_block_gives_the_weights_on_its_stage(boards, name):
    """The tensor of the step whose equation is printed is what the photo, the threads and the matrix are drawn of."""
    board = boards[name]
    header = sent(board, 650_000)
    for beat, entry in zip(board.beats, header["beats"], strict=True):
        if beat.record is None:
            continue
        drawn = header["looks"][entry["look"]]["weights"]
        weights = board.trace.value(beat.shown)[0].numpy()
        assert entry["shown"] == beat.shown.id and drawn.size == weights.size
        np.testing.assert_allclose(drawn.ravel(), weights.ravel(), rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize(
    ("line", "change", "shown"),
    [
        ("weights", "drop_heads(2)", ["weights", "weights.changed"]),
        ("weights", "zero", ["weights.changed"]),
        ("scores", "causal()", ["scores.changed", "weights"]),
    ],
)
def test_the_equation_of_a_changed_block_is_that_of_the_weights_after_the_change(vit, line, change, shown):
    block = beat(storyboard(trace := vit.trace(change={f"block5.attention.{line}": change})), "block", 5)
    steps = [step for step in (block.also, block.shown) if step is not None]
    assert [step.id for step in steps] == [f"block5.attention.{name}" for name in shown]
    assert block.record is not None  # also of weights that are replaced as a whole
    np.testing.assert_array_equal(trace.value(block.shown)[0], heads_weights(trace, block.record))
    assert (block.caption.title.endswith("attends to nothing")) == (change == "zero")


def test_the_rollout_on_the_photo_is_that_of_the_library(boards):
    for name in ("vit", "mae", "segmenter"):
        board = boards[name]
        rollout = sent(board, 650_000)["streams"][0]["rollout"]
        part = board.beats[-3].part or None
        expected = tracer.attention.rollout(board.trace, part=part)[0].numpy()
        np.testing.assert_allclose(rollout["weights"][0], expected, rtol=1e-3, atol=1e-6)


def test_beats_have_names_for_addresses_one_each(boards):
    for board in boards.values():
        names = message.ids(board)
        assert len(set(names)) == len(names) and all(re.fullmatch(r"[a-z0-9.]+", each) for each in names)
    assert message.ids(boards["vit"])[5:] == [*(f"block{number}" for number in range(1, 7)), "read", "answer"]
    assert "image.block1" in message.ids(boards["clip"]) and "decoder.block2" in message.ids(boards["mae"])


class Folded(nn.Module):
    """Stages that no film knows: convolutions and a recurrence."""

    def __init__(self):
        super().__init__()
        self.front = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))
        self.rest = nn.GRU(4, 6, batch_first=True)

    def forward(self, x):
        return self.rest(self.front(x).flatten(2).transpose(1, 2))[0]


def test_a_module_with_unknown_stages_is_shown_folded_and_never_left_out():
    trace = tracer.trace(Folded(), torch.randn(1, 3, 8, 8))
    board = storyboard(trace)
    assert sorted(id for each in board.beats for id in each.steps) == sorted(step.id for step in trace.steps)
    assert [each.kind for each in board.beats].count("modules") >= 1
    assert "front" in " ".join(each.caption.sentence for each in board.beats)
    assert "<canvas" in trace.film().html


def test_a_decoder_has_lanes_of_its_own_and_looks_across_at_those_of_the_encoder():
    torch.manual_seed(0)
    net = nn.Transformer(8, 2, 2, 2, 16, batch_first=True, norm_first=True).eval()
    trace = tracer.trace(net, torch.randn(1, 5, 8), torch.randn(1, 3, 8))
    board = storyboard(trace)
    assert [len(stream.lanes) for stream in board.streams] == [5, 3]
    assert [each.label for each in board.beats if each.number] == ["1", "2", "1", "1×", "2", "2×"]
    across = [each for each in board.beats if each.kind == "cross"]
    header = sent(board)
    for each, record in zip(
        across, (record for record in trace.attentions if record.keys != record.queries), strict=True
    ):
        look = header["looks"][[beat.record for beat in board.beats if beat.record].index(record)]
        assert (look["from"], look["keys"], look["queries"]) == (0, [0, 1, 2, 3, 4], None)
        weights = trace.attention(trace.attentions.index(record))[0]
        np.testing.assert_allclose(look["weights"], weights.numpy(), rtol=1e-3)
        most = weights.mean(0)[0]
        assert f"to token {int(most.argmax()) + 1}." in each.caption.sentence
        assert percents(each.caption.sentence)[0] == pytest.approx(100 * most.max().item(), abs=0.06)


@pytest.fixture(scope="module")
def libraries() -> dict[str, Storyboard]:
    """Return storyboards of small models of libraries."""
    return {name: storyboard(small(name).trace()) for name in ("hf:gemma2", "hf:albert", "hf:vit_mae", "hf:beit")}


@pytest.mark.parametrize("name", ["hf:gemma2", "hf:albert", "hf:vit_mae", "hf:beit"])
def test_a_library_model_has_a_block_for_each_attention_and_every_step_in_a_beat(libraries, name):
    board = libraries[name]
    steps = [step.id for step in board.trace.steps]
    assert sorted(id for each in board.beats for id in each.steps) == sorted(steps)
    blocks = [each for each in board.beats if each.kind == "block"]
    assert [each.record for each in blocks] == list(board.trace.attentions)
    assert all(each.snapshot is not None for each in blocks) and board.beats[-1].kind == "answer"
    assert len(set(message.ids(board))) == len(board.beats)
    envelope.pack(message.build(board))


def test_a_mask_with_axes_for_batch_and_heads_belongs_to_the_block_that_reads_it(libraries):
    trace = libraries["hf:gemma2"].trace
    assert len(trace.step("mask").shape) == 4 and trace.step("mask").layer is None
    assert "mask2" in beat(libraries["hf:gemma2"], "block", 1).steps  # of a window, in every second block
    assert "mask" in beat(libraries["hf:gemma2"], "block", 2).steps


def test_weights_that_blocks_share_run_in_a_beat_of_each_block(libraries):
    board = libraries["hf:albert"]
    first, second = (beat(board, "block", number) for number in (1, 2))
    assert first.steps[-1].endswith("norm2") or "layer_norm" in first.steps[-1]
    assert [step for step in second.steps if step.endswith("weights2")] and len(first.steps) == len(second.steps)
    np.testing.assert_allclose(second.snapshot.vectors, board.trace.value(second.steps[-1])[0].numpy(), rtol=1e-5)


def test_the_norm_of_an_embedding_says_how_long_the_vectors_are_now(libraries):
    board = libraries["hf:albert"]
    caption, step = beat(board, "norm").caption, board.trace.step(beat(board, "norm").steps[-1])
    lengths = board.trace.value(step)[0].norm(dim=-1)
    assert f"from {lengths.min():.3g} to {lengths.max():.3g}" in caption.sentence
    titles = [each.caption.title for each in board.beats if each.kind == "tokens"]
    assert titles[0] == "Each token becomes a vector" != titles[1]  # which are projected


def test_an_answer_of_many_tokens_is_as_long_as_there_is_room_beside_the_lanes(libraries, boards):
    board = libraries["hf:albert"]
    header = sent(board)
    *shown, end = header["answer"]["tokens"]
    assert shown == board.trace.result["tokens"][: len(shown)] and end == "…" and 40 < len("".join(shown)) <= 64
    header = sent(boards["transformer"])
    assert len(header["answer"]["tokens"]) == len(boards["transformer"].trace.result["tokens"])


def test_the_mean_of_the_patches_is_told_from_that_of_all_tokens(libraries):
    board = libraries["hf:beit"]
    assert beat(board, "read").caption.sentence == "The mean of 16 tokens goes on."
    trace = board.trace
    rows, mean = trace.value(beat(board, "block", 2).steps[-1])[0], trace.value(beat(board, "read").steps[0])[0]
    assert len(rows) == 17 and torch.allclose(rows[1:].mean(0), mean, atol=1e-5)
    assert not torch.allclose(rows.mean(0), mean, atol=1e-5)


def test_lanes_of_tensors_that_were_not_kept_are_those_of_the_kept_run(boards, vit):
    trace = vit.trace(keep=2_000_000)
    board = storyboard(trace)
    lost = [each for each in board.beats if each.number and trace.value(each.steps[-1]) is None]
    assert lost
    for each in lost:
        kept = beat(boards["vit"], "block", each.number)
        np.testing.assert_allclose(each.snapshot.vectors, kept.snapshot.vectors, rtol=1e-3, atol=1e-4)
        assert each.caption.title == kept.caption.title


class Listener(nn.Module):
    """Frames of a sound as tokens, in one block."""

    def __init__(self, D: int):
        super().__init__()
        self.frames, self.narrow = nn.Conv1d(1, D, 8, 8), nn.Conv1d(D, D, 3, padding=1)
        self.block = nn.TransformerEncoderLayer(D, 2, 4 * D, 0.0, batch_first=True, norm_first=True)

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        return self.block(self.narrow(self.frames(sound[:, None])).transpose(1, 2))


def test_a_sound_is_on_the_stage_before_its_tokens_are():
    sound = torch.linspace(-0.5, 1, 4000)[None].repeat(2, 1)
    board = storyboard(tracer.trace(Listener(8).eval(), sound, symbols={"B": 0}))
    first, second = board.beats[:2]
    assert (first.kind, first.shape, second.kind) == ("input", (2, 4000), "modules")
    assert first.caption.sentence == "4,000 numbers go in, one after the other. They lie between −0.5 and 1."
    drawn = sent(board)["input"]
    low, high = drawn["cells"]
    assert drawn["wave"] and drawn["full"] == [4000] and (low[0], high[-1]) == (-0.5, 1) and (low <= high).all()
    matrix = torch.arange(24.0).reshape(4, 6) - 4
    drawn = unpack(envelope.pack(sentences.build_input(matrix.numpy())))
    assert not drawn["wave"] and drawn["colours"].size == 3 * sentences.STEPS
    np.testing.assert_allclose(drawn["cells"], (matrix + 19) / 38, atol=1e-3)


def test_what_was_not_kept_is_recomputed_in_one_pass(vit, monkeypatch):
    trace, ran, execute = vit.trace(keep=2_000_000), [], provenance.execute
    monkeypatch.setattr(
        provenance, "execute", lambda equation, *rest: ran.append(id(equation)) or execute(equation, *rest)
    )
    board = storyboard(trace)
    assert len(ran) == len(set(ran)) > 10  # of each line once
    assert board.trace.values.keys() == trace.values.keys()  # what was recomputed is not held
    ran.clear()
    block_film.build(board, "block6", message.ids(board))
    assert len(ran) == len(set(ran)) > 10


def test_a_model_without_attention_has_lanes_where_its_blocks_leave_a_vector_for_each_word():
    board = storyboard(small("hf:mamba").trace())
    (stream,) = board.streams
    assert [lane.mark for lane in stream.lanes[:3]] == ["T", "h", "e"] and len(stream.lanes) == len(board.trace.words)
    blocks = [each for each in board.beats if each.number]
    assert len(blocks) == 2 and all(each.snapshot is not None and each.record is None for each in blocks)
    assert all("The block changes the token by" in each.caption.sentence for each in blocks)
    assert "attention" not in " ".join(each.caption.sentence for each in board.beats)


def test_what_is_read_took_its_attention_from_tokens_of_its_own_tower():
    board = storyboard(small("hf:blip").trace())
    text = [each for each in board.beats if each.stream == 1]
    read = next(each for each in text if each.kind == "read")
    last = [each for each in text if each.kind == "block"][-1]
    assert any(each.kind == "cross" for each in text)
    place = board.streams[1].slots[read.part].index(board.streams[1].read)
    own = heads_weights(board.trace, last.record).mean(0)
    assert read.caption.facts["to others"] == pytest.approx(1 - own[place, place], abs=1e-5)


def test_a_tower_projects_before_both_are_compared_and_there_is_one_answer():
    kinds = [each.kind for each in storyboard(small("hf:clip").trace()).beats]
    assert kinds.count("answer") == 1 and kinds[-1] == "answer" and kinds.count("project") == 2


def test_windows_are_no_lanes_of_a_stream_that_has_other_tokens():
    board = storyboard(small("hf:swin").trace())
    assert not board.streams and all(each.record is None and each.snapshot is None for each in board.beats)


def test_a_strangers_run_is_text_and_an_empty_one_is_refused():
    bad = "<script>x</script>"
    page = film(sample(model=bad, weights=bad, words=(bad,), result={"kind": "classes", "classes": 3})).html
    assert bad not in page
    with pytest.raises(ValueError, match="a film needs a run with operations"):
        film(sample(ops=()))


def test_the_command_writes_a_film_of_a_model_and_of_a_saved_run(tmp_path, capsys):
    page, saved, again = tmp_path / "a.html", tmp_path / "a.safetensors", tmp_path / "b.html"
    assert main(["film", "nanogpt", "--out", str(page)]) == 0
    assert main(["trace", "nanogpt", "--out", str(saved)]) == 0
    assert main(["film", str(saved), "--out", str(again)]) == 0
    assert "A run of nanogpt" in page.read_text() and "A run of nanogpt" in again.read_text()
    capsys.readouterr()
    for arguments, sentence in (
        (["film", "vit", "--text", "To be"], "'vit' takes no text"),
        (["film", "vit", "--out", "film.mp4"], "expected a name that ends in .html"),
    ):
        assert main(arguments) == 2
        assert sentence in capsys.readouterr().err


LINES = """async (at) => {
  const { film } = document.querySelector(".film"), { prototype } = CanvasRenderingContext2D;
  const [curve, drawn] = [prototype.bezierCurveTo, new Set()];
  prototype.bezierCurveTo = function (...places) {
    drawn.add(places.join());
    return curve.apply(this, places);
  };
  film.go(0, true);
  film.go(at, true);
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  prototype.bezierCurveTo = curve;
  const others = film.eye.strongest(film.film.looks[film.film.beats[at].look], 0).filter((lane) => lane !== null);
  return [drawn.size, others.length];
}"""
"""How many lines lead from patches to their lanes, and into how many lanes a faint thread may lead."""


@pytest.mark.parametrize(
    ("line", "change", "head", "says", "lines"),
    [
        ("scores", "causal()", "-1", "CLS attends only to itself: every other weight of this row is 0.", [0, 65]),
        ("weights", "drop_heads(2)", "2", "CLS, head 3 attends to nothing: every weight of this row is 0.", [0, 0]),
        ("weights", "drop_heads(2)", "1", "CLS, head 2 looks most at row ", [5, 65]),
        ("scores", "zero", "-1", "CLS attends equally to all 65 tokens that it may attend to.", [0, 0]),
    ],
)
def test_no_line_leads_from_a_weight_of_0_nor_from_some_of_those_that_are_the_same(
    vit, browser, tmp_path, line, change, head, says, lines
):
    path = tmp_path / "film.html"
    film(vit.trace(change={f"block5.attention.{line}": change})).save(path)
    context = browser.new_context(viewport={"width": 1400, "height": 900}, reduced_motion="reduce")
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(path.as_uri())
    page.wait_for_function("document.querySelector('.film').film.photo.ready")
    page.select_option(".head", head)
    assert page.evaluate(LINES, 9) == lines
    point = page.inner_text(".point")
    assert says in point and ("faint" in point) == (lines[1] > 0)
    if head == "2":
        assert page.inner_text(".title") == "Block 5 of 6, head 3"
        assert page.inner_text(".sentence").startswith(
            "In head 3, CLS attends to nothing: every weight of its row is 0. "
        )
    assert not errors
    context.close()


READ_FILM = """() => {
  const film = document.querySelector(".film");
  const outside = [...film.querySelectorAll("*")].filter((node) => {
    const box = node.getBoundingClientRect();
    return box.width && !node.closest(".scrubber span") && (box.right > innerWidth + 1 || box.bottom > innerHeight + 1);
  });
  const root = document.documentElement;
  return {
    beat: Number(film.dataset.beat),
    scrolls: root.scrollHeight > innerHeight || root.scrollWidth > innerWidth,
    outside: outside.map((node) => node.className || node.tagName),
    cut: [...film.querySelectorAll(".looks, .point .text, .legend .what, .updates")]
      .filter((node) => node.scrollWidth > node.clientWidth + 1)
      .map((node) => node.className),
    small: [...film.querySelectorAll("button, select")].filter((node) => {
      const box = node.getBoundingClientRect();
      return box.width && (box.width < 24 || box.height < 24);
    }).length,
  };
}"""


THREAD = """() => {
  const [canvas, { answer }] = [document.querySelector("canvas"), document.querySelector(".film").film.place()];
  const bar = document.querySelector(".bar.first"), ratio = canvas.width / canvas.clientWidth;
  const corner = [answer.x - 12, answer.y + bar.offsetTop + bar.offsetHeight / 2 - 8];
  const place = corner.map((side) => Math.round(side * ratio));
  const { data } = canvas.getContext("2d").getImageData(...place, 10 * ratio, 16 * ratio);
  return data.filter((value, at) => at % 4 === 3 && value).length;
}"""
"""How many pixels are drawn where the thread from the token that is read should arrive."""


CUT_NAMES = """() => [...document.querySelectorAll(".scrubber button")]
  .filter((one) => one.firstChild.scrollWidth > one.firstChild.clientWidth || one.scrollWidth > one.clientWidth)
  .map((one) => one.textContent)"""
LONGER = """() => {
  const { beats } = document.querySelector(".film").film.film;
  for (const beat of beats.slice(2)) beat.equation = beat.equation.repeat(beat.number ? 2 : 3);
}"""
EQUATION = """() => {
  const box = document.querySelector(".equation"), edge = box.getBoundingClientRect().right + 1;
  const all = [...document.querySelectorAll(".equation math, .shape math")];
  const outside = all.filter((one) => one.getBoundingClientRect().right > edge).map((one) => one.textContent);
  const { fontSize, overflowY } = getComputedStyle(box);
  return { outside, clipped: overflowY === "hidden", small: parseFloat(fontSize) < 8 };
}"""
"""What of an equation is cut, or too small to be read."""


BARS = r"""async () => {
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))); // the beat is drawn
  const [canvas, { state, place }] = [document.querySelector("canvas"), document.querySelector(".film").film];
  const [flow] = place().streams, segment = flow.segments.find((one) => one.at === state.at);
  const ratio = canvas.width / canvas.clientWidth, wide = Math.min(46, 0.6 * (segment.to - segment.from));
  const colours = ["--thread", "--mlp"].map((name) => {
    const probe = Object.assign(document.createElement("i"), { style: `color: var(${name})` });
    document.querySelector(".film").append(probe);
    const colour = getComputedStyle(probe).color.match(/\d+/g).map(Number);
    probe.remove();
    return colour;
  });
  return colours.map((colour, part) =>
    flow.stream.lanes.slice(1).filter((_, place) => {
      const lane = place + 1; // that of CLS has the end of its threads on it
      const at = [segment.from + (part * wide) / 2, flow.top + (lane + 0.45) * flow.lane];
      const pixels = canvas.getContext("2d").getImageData(...at.map((side) => Math.round(side * ratio)), 3, 1).data;
      const same = (from) => colour.every((value, channel) => Math.abs(value - pixels[from + channel]) < 60);
      return [0, 4, 8].some(same);
    }).length);
}"""
"""Of how many lanes below the first the block that runs draws what attention, and what the MLP added."""


PATCHES = """() => {
  const canvas = document.querySelector("canvas");
  const { photo } = document.querySelector(".film").film.place();
  const ratio = canvas.width / canvas.clientWidth;
  const context = canvas.getContext("2d");
  return [...Array(64).keys()].map((patch) => {
    const [x, y] = [photo.x + ((patch % 8) * photo.w) / 8, photo.y + (Math.floor(patch / 8) * photo.h) / 8];
    const box = [x, y, photo.w / 8, photo.h / 8].map((side) => Math.round(side * ratio));
    const pixels = context.getImageData(...box).data;
    const sums = [0, 0, 0, 0];
    pixels.forEach((value, at) => (sums[at % 4] += value));
    return (4 * (0.2126 * sums[0] + 0.7152 * sums[1] + 0.0722 * sums[2])) / pixels.length;
  });
}"""


def assert_lightness_follows(page, weights: np.ndarray) -> None:
    """Assert that patches on screen are the brighter the more attention they get, whatever the photo."""
    shares, light = weights / weights.max(), np.array(page.evaluate(PATCHES))
    pairs = np.argwhere((shares[:, None] - shares > 1 / 16) & (light[:, None] <= light))
    assert not pairs.size, [(a, b, shares[a], shares[b], light[a], light[b]) for a, b in pairs[:5]]


@pytest.mark.parametrize("size", [(1024, 768), (1400, 900), pytest.param((390, 844), marks=pytest.mark.sweep)])
def test_the_player_fits_and_follows_keys_pointer_and_buttons(boards, browser, tmp_path, size):
    board = boards["vit"]
    path = tmp_path / "film.html"
    film(board.trace).save(path)
    assert path.stat().st_size <= 1_000_000
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, reduced_motion="reduce")
    page = context.new_page()
    errors: list[str] = []
    page.on("console", lambda line: line.type == "error" and errors.append(line.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(path.as_uri())
    for index, each in enumerate(board.beats):
        shown = page.evaluate(READ_FILM)
        assert (shown["beat"], shown["scrolls"], shown["small"]) == (index, False, 0), each.label
        assert (shown["outside"], shown["cut"]) == ([], []), each.label
        assert page.inner_text(".title") == each.caption.title
        assert page.inner_text(".sentence") == each.caption.sentence
        assert page.is_visible(".updates") == (each.kind == "block")
        if each.snapshot is not None:
            lanes = "length of each vector" if each.kind == "tokens" else "cosine of others with CLS"
            assert page.inner_text(".legend .what") == f"Lanes: {lanes}"
        if each.kind == "block":  # bars of all lanes: first by attention, then by the MLP
            assert page.evaluate(BARS) == [64, 64]
        page.keyboard.press("PageDown" if index % 2 else "ArrowRight")
    assert f"{max(board.trace.result['probabilities']):.1%}"[:-1] in page.inner_text(".bar.first")
    for scheme in ("light", "dark") if size[0] == 1024 else ():
        page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")  # drawn in it
        assert page.evaluate("axe.run().then(({ violations }) => violations.map(({ id }) => id))") == []
    page.keyboard.press("PageUp")
    page.keyboard.press("ArrowLeft")
    last = len(board.beats) - 3
    assert page.evaluate(READ_FILM)["beat"] == last
    row = board.trace.attention(5)[0]
    assert f"{100 * row.mean(0)[0].max().item():.1f}" in page.inner_text(".point")
    if size[0] == 1400:
        assert_lightness_follows(page, row.mean(0)[0, 1:].numpy())
    resting, photo = page.inner_text(".point"), page.evaluate("document.querySelector('.film').film.place().photo")
    corner = page.locator("canvas").bounding_box()
    page.mouse.move(corner["x"] + photo["x"] + photo["w"] * 4.5 / 8, corner["y"] + photo["y"] + photo["h"] * 3.5 / 8)
    assert "Row 4, column 5 looks most at " in page.inner_text(".point")
    assert f"{100 * row.mean(0)[29].max().item():.1f}" in page.inner_text(".point")
    page.mouse.move(size[0] / 2, size[1] - 2)
    assert page.inner_text(".point") == resting
    page.select_option(".head", "2")
    page.select_option(".token", "9")
    assert f"{100 * row[2, 9].max().item():.1f}" in page.inner_text(".point")
    few = 100 * row[2, 0, 1:].sort().values[-5:].sum().item()
    assert page.inner_text(".sentence").startswith(f"In head 3, CLS gives {few:.1f}")
    assert page.inner_text(".title").endswith(", head 3")
    if size[0] == 1400:
        widths = page.eval_on_selector_all(".scrubber button", "(all) => all.map((one) => Math.round(one.offsetWidth))")
        assert max(widths) - min(widths) <= 1
    page.evaluate("document.querySelector('.film').film.hide(true)")
    assert not page.is_visible(".point") and not page.is_visible(".legend")
    page.evaluate("document.querySelector('.film').film.hide(false)")
    page.click(".scrubber button >> nth=0")
    assert page.evaluate(READ_FILM)["beat"] == 0
    stops = []
    for _ in range(9):
        page.keyboard.press("Tab")
        stops.append(
            page.evaluate("document.activeElement.className || document.activeElement.getAttribute('aria-label')")
        )
    assert len(set(stops)) <= 8 and "play" in stops
    page.set_viewport_size({"width": 1080, "height": 1920})  # a projector that stands upright
    box = page.locator(".film").bounding_box()
    assert box["width"] == 1080 and 1 < box["height"] / box["width"] < 1.4
    page.click(".scrubber button >> nth=-1")
    page.set_viewport_size({"width": 1080, "height": 1000})
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert page.evaluate(THREAD)  # it leads to the likeliest answer, at this size too
    page.set_viewport_size({"width": 720, "height": 768})
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert page.locator(".scrubber.tight").count() and page.evaluate(CUT_NAMES) == []
    page.set_viewport_size({"width": 360, "height": 740})
    page.evaluate(LONGER)
    for index in range(len(board.beats)):  # the equation of each, and the same several times as long
        page.evaluate("at => document.querySelector('.film').film.go(at, true)", index)
        assert page.evaluate(EQUATION) == {"outside": [], "clipped": False, "small": False}, index
    assert not errors
    context.close()


PAPER = """() => [...document.querySelectorAll(".sheet")].map((sheet) => ({
  head: sheet.querySelector(".head").innerText,
  photo: Boolean(sheet.querySelector(".head canvas")),
  frames: [...sheet.querySelectorAll(".frame")].map((frame) => {
    const canvas = frame.querySelector("canvas");
    const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    return {
      title: frame.querySelector(".title").textContent,
      texts: ["sentence", "proof"].map((name) => frame.querySelector(`.${name}`).textContent),
      equations: frame.querySelectorAll(".equation math").length,
      shape: frame.querySelector(".shape").textContent,
      painted: pixels.filter((value, at) => at % 4 === 3 && value).length,
      wide: [...frame.querySelectorAll(".equation, .shape")].every((line) => line.scrollWidth <= line.clientWidth + 1),
    };
  }),
}))"""


def test_twelve_frames_print_with_model_photo_and_address_on_each_sheet(boards, browser, tmp_path):
    board = boards["vit"]
    path = tmp_path / "film.html"
    film(board.trace).save(path)
    context = browser.new_context(viewport={"width": 390, "height": 844}, color_scheme="dark")
    page = context.new_page()
    page.goto(path.as_uri())
    page.wait_for_function("document.querySelector('.film').film.photo.ready")
    page.keyboard.press("ArrowRight")
    printed = page.pdf(path=tmp_path / "film.pdf", prefer_css_page_size=True)
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) == 2
    shown = page.evaluate(READ_FILM)
    assert (shown["beat"], shown["scrolls"], shown["outside"]) == (1, False, [])  # as it was
    assert not page.query_selector(".sheets") and not page.evaluate("document.querySelector('.film').style.width")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    sheets = page.evaluate(PAPER)
    context.close()
    frames = [each for sheet in sheets for each in sheet["frames"]]
    numbers = [int(each["title"].split(".")[0]) for each in frames]
    assert len(frames) == 12 and numbers[0] == 1 and numbers[-1] == len(board.beats) == 13
    assert numbers == sorted(set(numbers)) and max(np.diff(numbers)) <= 2
    for each, number in zip(frames, numbers, strict=True):
        own = board.beats[number - 1]
        assert each["title"] == f"{number}. {own.caption.title}"
        assert each["texts"] == [own.caption.sentence, message.verdict_text(own)]
        assert each["shape"].endswith(str(list(own.shape))) and each["equations"] >= 1
        assert each["painted"] > 5_000 and each["wide"]
    for sheet in sheets:
        assert sheet["photo"] and sheet["head"].startswith("vit") and path.as_uri() in sheet["head"]


def test_ops_of_a_module_that_runs_twice_are_all_told_without_lines():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.first(self.second(self.first(x)))

    trace = tracer.trace(Twice(), torch.randn(2, 4))
    bare = replace(trace, steps=(), ops=tuple(replace(op, step=None) for op in trace.ops))
    told = [chapter for chapter in chapters(bare) if chapter.kind == "modules"]
    assert [chapter.ops[0].module for chapter in told] == ["first", "second", "first"]
    assert [op.index for chapter in told for op in chapter.ops] == [op.index for op in trace.ops if op.op == "addmm"]
