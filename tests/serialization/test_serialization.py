"""Saving and opening traces: exact round trips, and one sentence for anything that can't be saved or opened."""

import dataclasses
import json
import os
import re
import threading

import pytest
import safetensors.torch
import torch

import tracer
from tests.support.handmade import sample
from tracer import serialization
from tracer.attention import places, unseen
from tracer.figures.film.storyboard import storyboard
from tracer.figures.pipeline import pipeline
from tracer.record import Segment, Step, Symbol, Trace
from tracer.record.steps import mathematics
from tracer.serialization import validation
from tracer.symbols import notation


def same(a, b) -> bool:
    """Return whether two values are equal in type and value, bit for bit in tensors."""
    if isinstance(a, torch.Tensor):
        bits = (
            (a.contiguous().flatten().view(torch.uint8), b.contiguous().flatten().view(torch.uint8))
            if a.numel()
            else (a, b)
        )
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*bits)
    if type(a) is not type(b):
        return False
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b or (a != a and b != b)


PROOFS = ("error", "margin", "wrong", "checked", "refuted", "replayed", "unseen", "recorded", "pending", "dtype")
"""What of a step is not taken from a file: the reader proves it again."""


def strip_proofs(trace: Trace) -> Trace:
    """Return the trace as stored in its file: without proofs, and without references to the model."""
    plain = {name: field.default for field in dataclasses.fields(Step) if (name := field.name) in PROOFS}
    plain |= {"error": None}
    steps = tuple(dataclasses.replace(step, **plain) for step in trace.steps)
    return dataclasses.replace(trace, steps=steps, later=None, replay=None, reread=None)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("saved") / "sample.safetensors"
    serialization.save(sample(), path)
    return path.read_bytes()


def rewritten(data: bytes, change) -> bytes:
    """Return a file with its JSON changed by `change(fields)`."""
    length = int.from_bytes(data[:8], "little")
    fields = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["trace"])
    change(fields)
    return safetensors.torch.save(safetensors.torch.load(data), {"trace": json.dumps(fields)})


def refusal(data: bytes) -> str:
    with pytest.raises(ValueError) as caught:
        serialization.open(data, name="upload.safetensors")
    sentence = str(caught.value)
    assert sentence.startswith("'upload.safetensors' is not a trace") and "\n" not in sentence and len(sentence) < 400
    return sentence


def test_round_trip_is_exact(tmp_path):
    trace = sample()
    trace.save(tmp_path / "a.safetensors")
    opened = serialization.open(tmp_path / "a.safetensors")
    for field in dataclasses.fields(Trace):
        assert same(getattr(strip_proofs(trace), field.name), getattr(strip_proofs(opened), field.name)), field.name


def test_round_trip_of_the_smallest_trace(tmp_path):
    serialization.save(Trace("empty", ()), tmp_path / "a.safetensors")
    assert serialization.open(tmp_path / "a.safetensors") == Trace("empty", ())


def test_a_second_save_gives_the_same_file(tmp_path, data):
    once = serialization.to_bytes(serialization.open(data))  # its proofs are those of the reader
    serialization.save(serialization.open(once), tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == once


def test_files_of_before_there_were_primitives_open(data):
    opened = serialization.open(rewritten(data, lambda fields: fields.pop("decompositions")))
    assert opened.decompositions == () and opened.ops == sample().ops


def test_files_that_call_equations_proven_open_and_call_them_verified(data):
    """Older files have the word in the notes that the program wrote; a verdict is never read from a file."""
    own = "The theorem is proven in the paper."

    def age(fields):
        fields["version"] = 1
        fields["notes"] = ["shapes at this size; equations proven on 2 blocks of width 10: 60 of 61 lines", own]
        fields["steps"][0]["note"] = "Its mean is 0. Not executed at this size; proven on 2 blocks of width 10."
        fields["steps"][1]["note"] = own

    opened = serialization.open(rewritten(data, age))
    assert opened.notes == ("shapes at this size; equations verified on 2 blocks of width 10: 60 of 61 lines", own)
    first, second = opened.steps[0].note, opened.steps[1].note
    assert first.startswith("Its mean is 0. Not executed at this size; verified on 2 blocks of width 10.")
    assert second.startswith(own) and {step.verdict for step in opened.steps} <= {"verified", "recorded", "recomputed"}


def test_a_run_that_was_saved_without_modules_and_calls_opens(data):
    def older(fields):
        for name in ("modules", "calls"):
            del fields[name]
        for step in fields["steps"]:
            del step["inside"]

    opened = serialization.open(rewritten(data, older))
    assert opened.modules == opened.calls == () and strip_proofs(opened).steps == strip_proofs(sample()).steps


def test_files_of_before_segments_had_places_open(data):
    def older(fields):
        for segment in fields["segments"]:
            del segment["places"]

    opened = serialization.open(rewritten(data, older))
    assert opened.segments == sample().segments and opened.segments[1].places == ()


def older_version(data: bytes) -> bytes:
    """Return a file as version 1 wrote it, whose steps did not state what they read, nor their roles."""

    def older(fields):
        fields["version"] = 1
        for step in fields["steps"]:
            del step["reads"], step["role"]

    return rewritten(data, older)


@pytest.mark.parametrize("name", ["vit", "nanogpt", "llama", "mae", "clip"])
def test_films_and_pictures_of_files_of_before_steps_said_what_they_read_are_as_those_of_today(name):
    changed = {"block1.attention.weights": "zero"} if name == "nanogpt" else None
    data = serialization.to_bytes(tracer.load(name).trace(change=changed))
    today, older = (serialization.open(file, prove="later") for file in (data, older_version(data)))
    assert {step.id: set(step.reads) for step in older.steps} == {step.id: set(step.reads) for step in today.steps}
    pairs = {(old.role, new.role) for old, new in zip(older.steps, today.steps, strict=True) if old.role}
    assert pairs >= {("scores", "scores"), ("attention weights", "attention weights")}
    assert all(old == new for old, new in pairs)

    def shown(trace):
        return [(beat.kind, beat.caption, beat.symbol, beat.steps) for beat in storyboard(trace, prove=False).beats]

    assert shown(older) == shown(today)
    assert re.findall('data-node="[^"]*"', pipeline(older)) == re.findall('data-node="[^"]*"', pipeline(today))


def test_a_step_reads_no_later_one_and_nothing_that_is_not_there(data):
    for wrong in ("head.logits", "block9.attention.scores", "input <b>", "file x"):

        def change(fields, wrong=wrong):
            fields["steps"][0]["reads"] = [wrong]

        assert f"expected to read no later line, got {wrong!r}" in refusal(rewritten(data, change))


def test_a_file_of_a_later_version_is_refused(data):
    for version in (3, 0, "1", True, None, 2.5):
        assert "its format is version" in refusal(rewritten(data, lambda fields, v=version: fields.update(version=v)))


def test_parameters_of_experts_are_saved_as_the_stack_that_the_equation_reads(tmp_path):
    class Mixture(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.router = torch.nn.Linear(4, 3)
            self.experts = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

        def forward(self, x):
            gates, out = self.router(x).softmax(-1), torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                out = out + gates[..., number : number + 1] * expert(x)
            return out

    trace = tracer.trace(Mixture(), torch.randn(2, 5, 4))
    assert "parameter experts.*.weight" in trace.steps[-1].reads
    trace.save(tmp_path / "a.safetensors")
    opened = tracer.open(tmp_path / "a.safetensors")
    assert opened.steps[-1].reads == trace.steps[-1].reads and opened.steps[-1].verdict == trace.steps[-1].verdict


def test_places_of_some_patches_are_saved_and_checked(tmp_path):
    trace = sample(segments=(Segment("CLS", 0, 1, "encoder"), Segment("visible", 1, 4, "encoder", (3, 0, 2))))
    trace.save(path := tmp_path / "a.safetensors")
    opened = serialization.open(path)
    assert opened.segments == trace.segments and places(opened, "encoder") == {1: 3, 2: 0, 3: 2}
    assert unseen(opened) == ("encoder", (1,))
    for wrong in ([3, 0], [3, 0, 4], [3, 0, -1], [3, 0, 0], [3, 0, "2"]):

        def change(fields, wrong=wrong):
            fields["segments"][1]["places"] = wrong

        assert "place" in refusal(rewritten(path.read_bytes(), change))
    assert "places among 0 patches" in refusal(rewritten(path.read_bytes(), lambda fields: fields.update(picture=None)))


def test_shared_tensors_are_stored_once(tmp_path):
    big = torch.randn(100, 100)
    serialization.save(Trace("shared", (), values={"a": big, "b": big}, output=big), tmp_path / "a.safetensors")
    assert os.path.getsize(tmp_path / "a.safetensors") < 2 * big.nbytes
    opened = serialization.open(tmp_path / "a.safetensors")
    assert torch.equal(opened.values["b"], big) and torch.equal(opened.output, big)


def test_outputs_that_are_no_tensors_are_named(tmp_path):
    serialization.save(
        Trace("cache", (), output={"logits": torch.ones(2), "cache": object()}), tmp_path / "a.safetensors"
    )
    opened = serialization.open(tmp_path / "a.safetensors")
    assert opened.output["cache"] is None and torch.equal(opened.output["logits"], torch.ones(2))
    assert opened.notes == ("output/cache (object) was not saved",)


def test_gradients_are_not_saved(tmp_path):
    weight = torch.ones(3, requires_grad=True)
    serialization.save(Trace("grad", (), output=weight * 2), tmp_path / "a.safetensors")
    assert not serialization.open(tmp_path / "a.safetensors").output.requires_grad


def test_saving_to_an_impossible_path_is_one_sentence(tmp_path):
    for path in (tmp_path / "no" / "such" / "folder.safetensors", tmp_path):
        with pytest.raises(OSError) as caught:
            serialization.save(sample(), path)
        assert (
            repr(path.name)[1:] in str(caught.value)
            and "\n" not in str(caught.value)
            and "[Errno" not in str(caught.value)
        )


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    serialization.save(sample(), path)
    before = path.read_bytes()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    with pytest.raises(PermissionError, match="Permission denied"):
        serialization.save(Trace("other", ()), path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["a.safetensors"]


def test_concurrent_saves_to_one_path_leave_a_whole_file(tmp_path):
    path = tmp_path / "a.safetensors"
    threads = [threading.Thread(target=serialization.save, args=(sample(), path)) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert serialization.open(path).model == sample().model and os.listdir(tmp_path) == ["a.safetensors"]


def test_a_missing_file_is_one_sentence(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"can't read '.*none.safetensors': No such file"):
        serialization.open(tmp_path / "none.safetensors")
    with pytest.raises(OSError, match="can't read"):
        serialization.open(tmp_path)


def test_formulas_of_real_traces_are_accepted():
    sizes = tuple(Symbol(name, "", value) for name, value in zip("BCDHLNPWh", (1, 2, 6, 4, 2, 4, 2, 4, 3), strict=True))
    for text in (
        "1",
        "B",
        "N + 1",
        "C*P**2",
        "H*W/P**2 + 1",
        "B*L*(24*D**2*(N + 1) + 4*D*(N + 1)**2)",
        "D/h",
        "8*P**(-2)",
        "sqrt(N)*sqrt(4)",
    ):
        assert validation.Formulas(sizes).value(text) > 0
        assert notation.parse(text)


def test_latex_of_equations_is_accepted():
    for text in (
        r"\mathbf{S} = \frac{\mathbf{Q} \mathbf{K}^{\top}}{\sqrt{d_k}} + \mathbf{M}",
        r"\left\{ a \right\}",
        r"\lfloor x_{i}^{2} \rfloor",
        r"\operatorname{reshape}\left(x\right)",
        r"\text{GELU}",
        r"\begin{pmatrix} a & b \\ c & d \end{pmatrix}",
        r"\begin{cases} 0 & j \le i \\ -\infty & j > i \end{cases}",
    ):
        mathematics(text, "here")


@pytest.mark.parametrize(
    ("output", "lost"),
    [
        ({0: torch.ones(2), "a": 1}, ()),
        ((torch.ones(2), 1 << 70), ("output/1 (int) was not saved",)),
        (torch.ones(2, device="meta"), ("output (torch.float32) was not saved",)),
        ([torch.ones(2, dtype=torch.complex128)], ("output/0 (torch.complex128) was not saved",)),
    ],
)
def test_what_a_file_cannot_hold_is_left_out_and_named(output, lost):
    opened = serialization.open(serialization.to_bytes(Trace("odd", (), output=output)))
    assert opened.notes == lost
    assert lost or same(opened.output, output)


def test_values_that_a_file_cannot_hold_are_left_out_and_named():
    values = {"wide": torch.ones(2, dtype=torch.complex128), "plain": torch.ones(2)}
    opened = serialization.open(serialization.to_bytes(Trace("odd", (), values=values)))
    assert list(opened.values) == ["plain"] and opened.notes == ("values/wide (torch.complex128) was not saved",)


def refused_to_save(trace: Trace) -> str:
    with pytest.raises(ValueError) as caught:
        serialization.to_bytes(trace)
    sentence = str(caught.value)
    assert sentence.startswith(f"this run of '{trace.model}' can't be saved: ") and "\n" not in sentence
    return sentence


def test_a_run_beyond_the_bounds_of_open_is_not_written(tmp_path):
    path, op = tmp_path / "a.safetensors", sample().ops[0]
    many = Trace("many", tuple(dataclasses.replace(op, index=i, step=None) for i in range(16_385)))
    with pytest.raises(ValueError, match="ops: expected at most 16,384, got 16,385"):
        many.save(path)
    assert not path.exists()
    assert "header has" in refused_to_save(
        Trace("wide", (), notes=("a" * 4000,) * 1000, result={"a": ["b" * 90_000] * 60})
    )
    assert "at most 12 axes" in refused_to_save(Trace("deep", (), values={"a": torch.ones((1,) * 13)}))
    assert "expected text" in refused_to_save(Trace("half", (), output="\ud800"))
    assert "index 0, got 5" in refused_to_save(Trace("odd", (dataclasses.replace(op, index=5),)))
