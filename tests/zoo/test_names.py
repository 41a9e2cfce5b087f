"""Any name of a library opens: a few of each kind here, all of them by `python -m tracer verify --names`."""

import json

import pytest
import torch

import tracer
from tests.cli.test_cli import refusal, run
from tests.support.sweeping import cases
from tracer.shapes import UNKNOWN
from tracer.shapes.variation import on_meta
from tracer.symbols import notation
from tracer.verify import surveys
from tracer.zoo import torchvision_models, user_factory
from tracer.zoo.hf import tiny_config


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def shape_of_the_answer(trace) -> tuple[str, ...]:
    return trace.ops[-1].outputs[0].symbolic


NAMES = (
    ("torchvision:squeezenet1_1", {"H": 96, "W": 64}, ("B", "K")),
    ("timm:test_vit3", {}, ("B", "K")),
    ("hf:mistral", {}, ("B", "T", "V")),
    ("hf:t5", {}, ("B", "T_d", "V")),
    ("hf:roberta", {}, ("B", "T", "V")),
    ("hf:beit", {}, ("B", "K")),
    ("hf:segformer", {}, ("B", "K")),
    ("hf:wav2vec2", {}, None),
    ("hf:patchtst", {}, None),
)
SWEPT = ("hf:wav2vec2", "hf:mistral", "hf:roberta", "hf:beit", "hf:segformer", "hf:patchtst")


@pytest.mark.parametrize(("name", "given", "shape"), cases(NAMES, [one for one in NAMES if one[0] not in SWEPT]))
def test_a_name_opens_and_its_answer_has_symbols(name, given, shape):
    model = tracer.load(name)
    trace = model.trace(prove=False, **given)
    assert "seeded random weights" in model.weights
    assert trace.ops and trace.result["kind"] and not any("stay numbers" in note for note in trace.notes)
    if shape is not None:
        assert shape_of_the_answer(trace) == shape


LETTERS = {
    "hf:speech_to_text": ("n_mel", "F_a", "ceiling(F_a/4)"),
    "hf:whisper": ("n_mel", "S_a", "2*S_a"),
    "hf:patchtst": ("T_c", "m", "N", "P_t"),
    "hf:time_series_transformer": ("T_c", "T_c + 7"),
    "hf:yolos": ("N_q", "K + 1"),
}


@pytest.mark.parametrize("name", cases(LETTERS, ("hf:patchtst",)))
def test_sizes_of_sounds_series_and_detectors_have_letters_that_are_told(name):
    trace = tracer.load(name).trace(prove=False)
    found = {size for op in trace.ops for one in (*op.inputs, *op.outputs) for size in one.symbolic}
    assert found >= set(LETTERS[name])
    assert not [symbol.name for symbol in trace.symbols if symbol.meaning == notation.NAMED_MEANING]


@pytest.mark.sweep
def test_what_is_solved_of_a_net_that_nobody_described_holds_at_sizes_that_no_probe_had():
    model = tracer.load("torchvision:squeezenet1_1")
    first, other = (model.trace(prove=False, B=2, H=H, W=W) for H, W in ((96, 64), (105, 73)))
    sizes = {symbol.name: symbol.value for symbol in other.symbols}
    assert [op.op for op in first.ops] == [op.op for op in other.ops]
    for one, two in zip(first.ops, other.ops, strict=True):
        for solved, ran in zip(one.outputs, two.outputs, strict=True):
            for size, number in zip(solved.symbolic, ran.shape, strict=True):
                assert size != UNKNOWN and tracer.shapes.value_of(size, sizes) == number


def test_a_family_by_its_name_alone_is_small_and_says_so():
    model = tracer.load("hf:mistral")
    assert model.weights.startswith("a small configuration of the family")
    assert sum(parameter.numel() for parameter in model.net.parameters()) < 5_000_000
    assert model.sizes["L"] == tiny_config.BLOCKS


def test_a_checkpoint_of_a_family_without_a_file_has_its_own_weights_head_and_labels(tmp_path):
    import transformers

    config = transformers.RobertaConfig(
        hidden_size=24,
        num_attention_heads=3,
        num_hidden_layers=2,
        intermediate_size=40,
        vocab_size=300,
        max_position_embeddings=60,
        id2label={0: "no", 1: "yes", 2: "perhaps"},
    )
    torch.manual_seed(1)
    theirs = transformers.RobertaForSequenceClassification(config).eval()
    theirs.save_pretrained(tmp_path)
    model = tracer.load(f"hf:{tmp_path}")
    trace = model.trace(text="To be or not")
    assert type(model.net).__name__ == "RobertaForSequenceClassification" and model.weights == f"weights of {tmp_path}"
    assert model.sizes == {"D": 24, "h": 3, "L": 2, "d_ff": 40, "V": 300, "T_max": 60, "K": 3}
    with torch.no_grad():
        expected = theirs(torch.tensor([list(b"To be or not")])).logits.softmax(-1)[0]
    assert trace.result["classes"] == ["no", "yes", "perhaps"]
    assert trace.result["probabilities"] == pytest.approx(expected.tolist())
    assert shape_of_the_answer(trace) == ("B", "K")
    assert len(trace.attentions) == 2


def test_a_text_goes_into_a_family_as_its_bytes():
    model = tracer.load("hf:mistral")
    assert model.inputs(text="abc")[0].tolist() == [list(b"abc")]
    assert model.inputs(text="abc", T=5)[0].tolist() == [list(b"abcab")]


def test_a_video_is_the_photo_moved():
    model = tracer.load("torchvision:r3d_18")
    (video,) = model.inputs(T_f=3, H=32, W=48)
    assert video.shape == (1, 3, 3, 32, 48)
    assert torch.equal(video[:, :, 1], video[:, :, 0].roll(3, dims=-1))


@pytest.mark.parametrize(
    ("name", "given", "parts"),
    [
        ("timm:resnet50000", {}, ["'timm:resnet50000'", "'timm:resnet50"]),
        ("torchvision:resnet19", {}, ["'torchvision:resnet19'", "'torchvision:resnet1"]),
        ("hf:mistrall", {}, ["'hf:mistrall'", "offline"]),
        ("hf:sam_mask_decoder", {}, ["'hf:sam_mask_decoder'", "only its configuration"]),
        ("hf:roberta", {"D": 97}, ["'hf:roberta'", "D=97"]),
    ],
)
def test_what_does_not_open_is_refused_in_one_line(capsys, name, given, parts):
    sizes = [word for symbol, value in given.items() for word in ("--set", f"{symbol}={value}")]
    line = refusal(capsys, "trace", name, *sizes)
    assert all(part in line for part in parts), line


def test_a_photo_that_is_too_small_is_refused_in_a_sentence():
    with pytest.raises(ValueError, match=r"'torchvision:squeezenet1_1' does not run at B=1, H=7, W=224: .*too small"):
        tracer.load("torchvision:squeezenet1_1").trace(H=7)


def test_a_net_that_reads_its_widths_off_a_sequence_opens():
    model = tracer.load("torchvision:regnet_y_400mf")
    assert sum(parameter.numel() for parameter in model.net.parameters()) == 4_344_144


def test_a_net_that_reads_numbers_as_it_is_built_has_its_shapes_on_meta():
    def build_linear():
        widths = torch.linspace(4, 8, 2).int().tolist()
        return torch.nn.Linear(*widths)

    net = on_meta(build_linear)
    assert net.weight.is_meta and net.weight.shape == (8, 4)
    with pytest.raises(RuntimeError, match="meta"):
        on_meta(lambda: torch.nn.Linear(int(torch.empty(()).item()), 2))


@pytest.mark.sweep
def test_names_are_surveyed_in_a_process_of_their_own(capsys):
    found = list(surveys.survey(["torchvision:squeezenet1_1", "timm:no_such_net"]))
    assert [bool(one.ops) for one in found] == [True, False] and "no_such_net" in found[1].reason
    part = surveys.NameOutcome("hf:part", reason="only its configuration", model=False)
    assert surveys.names_summary("hf", [surveys.NameOutcome("hf:a", ops=1), part])[:2] == [
        "hf: 1 of 1 opened (100.0 %)",
        "  1 more are not models by themselves",
    ]
    lines = surveys.names_summary("timm", found)
    assert lines[0] == "timm: 1 of 2 opened (50.0 %)" and "no_such_net" in lines[1]


def test_a_name_that_takes_too_long_is_given_up():
    (found,) = surveys.survey(["torchvision:squeezenet1_1"], seconds=0.05)
    assert found.reason == "it took more than 0.05 s of processor time"


def test_every_library_lists_its_names():
    assert len(surveys.list_names("torchvision")) > 100 and "torchvision:resnet50" in surveys.list_names("torchvision")
    assert len(surveys.list_names("timm")) > 1000 and len(surveys.list_names("hf")) > 500
    assert surveys.sample(["a", "b", "c"], 2, seed=1) == surveys.sample(["a", "b", "c"], 2, seed=1)
    with pytest.raises(ValueError, match="no library 'tim'"):
        surveys.list_names("tim")


def slow_nms(boxes, scores, most):
    """Return the kept boxes by definition, box by box: the best remaining one stays, and all that overlap it too much
    go."""
    left, kept = sorted(range(len(scores)), key=lambda number: -scores[number]), []
    while left:
        best = left.pop(0)
        kept.append(best)
        left = [other for other in left if overlap(boxes[best], boxes[other]) <= most]
    return kept


def overlap(one, other) -> float:
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    shared = max(wide, 0) * max(high, 0)
    area = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other))
    return shared / (area - shared)


@pytest.mark.parametrize("most", [0.1, 0.5, 0.9])
def test_boxes_that_overlap_go_as_the_definition_says(most):
    generator = torch.Generator().manual_seed(3)
    corner = torch.rand(60, 2, generator=generator) * 20
    boxes = torch.cat([corner, corner + 1 + torch.rand(60, 2, generator=generator) * 12], dim=1)
    scores = torch.rand(60, generator=generator)
    kept = torchvision_models.nms(boxes, scores, most)
    assert kept.tolist() == slow_nms(boxes.tolist(), scores.tolist(), most) and 1 < len(kept) <= 60
    assert torchvision_models.nms(boxes[:0], scores[:0], most).shape == (0,)


def test_a_region_is_cut_out_as_the_mean_of_its_points():
    torchvision_models.import_torchvision()
    picture = torch.arange(64.0).reshape(1, 1, 8, 8)  # a plane: bilinear points of it are exact
    region = torch.tensor([[0.0, 1.0, 2.0, 5.0, 6.0]])
    found = torchvision_models.roi_align(picture, region, 1.0, 2, 2, 2, False)
    middles = [[(2 + (row + 0.5) * 2) * 8 + 1 + (column + 0.5) * 2 for column in range(2)] for row in range(2)]
    assert found[0, 0].tolist() == middles
    assert torchvision_models.roi_align(picture, region[:0], 1.0, 2, 2, 2, False).shape == (0, 1, 2, 2)


@pytest.mark.sweep
def test_a_detector_finds_boxes_in_a_photo():
    model = tracer.load("torchvision:ssdlite320_mobilenet_v3_large", H=64, W=64)
    inputs = model.inputs()
    with torch.no_grad():
        trace = tracer.trace(model.net, *inputs, prove=False)
        (found,) = model.net(*inputs)
    assert len(found["boxes"]) > 1 and torch.equal(trace.output[0]["boxes"], found["boxes"])
    assert any("nms" in op.op for op in trace.ops)


def test_a_size_at_which_a_model_does_not_run_has_no_symbol_and_is_named():
    class Fixed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(6, 4)

        def forward(self, x):
            return self.linear(x.flatten(1))

    def build(sizes):
        return Fixed(), (torch.randn(sizes["B"], sizes["H"], 3),)

    with torch.no_grad():
        recording = tracer.tracing.record_or_explain(*build({"B": 1, "H": 2}), {}, None, False)
    vocabulary = tracer.shapes.Vocabulary(("B", "H"), {}, build)
    groups = [user_factory.group("B", (3, 5, 2, 7, 4)), user_factory.group("H", (3, 4, 5, 6, 7))]
    solution, notes = tracer.tracing.solve_first(
        recording, {"B": 1, "H": 2}, user_factory.find_probe_sizes(recording, vocabulary, {"B": 1, "H": 2}, groups)
    )
    assert solution.outputs[-1] == (("B", "4"),)
    assert len(notes) == 1 and notes[0].startswith("no symbols for H: the model did not run at the other sizes tried")


def test_the_figures_are_printed_by_the_command(capsys, monkeypatch):
    monkeypatch.setattr(surveys, "list_names", lambda library: [f"{library}:a", f"{library}:b"])
    monkeypatch.setattr(surveys, "survey", lambda given: iter([surveys.NameOutcome(name, ops=3) for name in given]))
    status, out, _ = run(capsys, "verify", "--names", "timm")
    assert status == 0 and out.strip() == "timm: 2 of 2 opened (100.0 %)"
    monkeypatch.setattr(
        surveys, "survey", lambda given: iter([surveys.NameOutcome(name, reason="no") for name in given])
    )
    status, out, _ = run(capsys, "verify", "--names", "timm", "--json")
    assert status == 1 and json.loads(out)["timm"][0]["reason"] == "no"
    monkeypatch.setattr(
        surveys,
        "survey",
        lambda given: iter([surveys.NameOutcome(name, ops=3, findings=("axes mixed: so",)) for name in given]),
    )
    status, out, _ = run(capsys, "verify", "--names", "timm")
    assert status == 1 and "timm: 2 of 2 opened (100.0 %)\n  timm:a: axes mixed: so" in out
