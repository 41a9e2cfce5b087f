"""Saving and opening traces: exact round trips, and one sentence for every damaged, foreign or hostile file."""

import dataclasses
import io
import json
import os
import pickle
import random
import threading
import zipfile

import pytest
import safetensors.torch
import torch
from handmade import sample

from tracer import storage, views
from tracer.record import Trace
from tracer.storage import formulas


def same(a, b) -> bool:
    """Equal in type and value, bit for bit in tensors."""
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


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("saved") / "sample.safetensors"
    storage.save(sample(), path)
    return path.read_bytes()


def rewritten(data: bytes, change) -> bytes:
    """The file with its JSON changed by `change(fields)`."""
    length = int.from_bytes(data[:8], "little")
    fields = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["trace"])
    change(fields)
    return safetensors.torch.save(safetensors.torch.load(data), {"trace": json.dumps(fields)})


def refused(data: bytes) -> str:
    with pytest.raises(ValueError) as caught:
        storage.open(data, name="upload.safetensors")
    sentence = str(caught.value)
    assert sentence.startswith("'upload.safetensors' is not a trace") and "\n" not in sentence and len(sentence) < 400
    return sentence


def test_round_trip_is_exact(tmp_path):
    trace = sample()
    trace.save(tmp_path / "a.safetensors")
    opened = storage.open(tmp_path / "a.safetensors")
    for field in dataclasses.fields(Trace):
        assert same(getattr(trace, field.name), getattr(opened, field.name)), field.name


def test_round_trip_of_the_smallest_trace(tmp_path):
    storage.save(Trace("empty", ()), tmp_path / "a.safetensors")
    assert storage.open(tmp_path / "a.safetensors") == Trace("empty", ())


def test_a_second_save_gives_the_same_file(tmp_path, data):
    storage.save(storage.open(data), tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == data


def test_files_of_before_there_were_primitives_open(data):
    opened = storage.open(rewritten(data, lambda fields: fields.pop("decompositions")))
    assert opened.decompositions == () and opened.ops == sample().ops


def test_shared_tensors_are_stored_once(tmp_path):
    big = torch.randn(100, 100)
    storage.save(Trace("shared", (), values={"a": big, "b": big}, output=big), tmp_path / "a.safetensors")
    assert os.path.getsize(tmp_path / "a.safetensors") < 2 * big.nbytes
    opened = storage.open(tmp_path / "a.safetensors")
    assert torch.equal(opened.values["b"], big) and torch.equal(opened.output, big)


def test_outputs_that_are_no_tensors_are_named(tmp_path):
    storage.save(Trace("cache", (), output={"logits": torch.ones(2), "cache": object()}), tmp_path / "a.safetensors")
    opened = storage.open(tmp_path / "a.safetensors")
    assert opened.output["cache"] is None and torch.equal(opened.output["logits"], torch.ones(2))
    assert opened.notes == ("output/cache (object) was not saved",)


def test_gradients_are_not_saved(tmp_path):
    weight = torch.ones(3, requires_grad=True)
    storage.save(Trace("grad", (), output=weight * 2), tmp_path / "a.safetensors")
    assert not storage.open(tmp_path / "a.safetensors").output.requires_grad


def test_saving_to_an_impossible_path_is_one_sentence(tmp_path):
    for path in (tmp_path / "no" / "such" / "folder.safetensors", tmp_path):
        with pytest.raises(OSError) as caught:
            storage.save(sample(), path)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value) and "[Errno" not in str(caught.value)


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    storage.save(sample(), path)
    before = path.read_bytes()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    with pytest.raises(PermissionError, match="Permission denied"):
        storage.save(Trace("other", ()), path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["a.safetensors"]


def test_concurrent_saves_to_one_path_leave_a_whole_file(tmp_path):
    path = tmp_path / "a.safetensors"
    threads = [threading.Thread(target=storage.save, args=(sample(), path)) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert storage.open(path).model == sample().model and os.listdir(tmp_path) == ["a.safetensors"]


def test_a_missing_file_is_one_sentence(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"can't read '.*none.safetensors': No such file"):
        storage.open(tmp_path / "none.safetensors")
    with pytest.raises(OSError, match="can't read"):
        storage.open(tmp_path)


@pytest.mark.parametrize("share", [0, 0.0001, 0.001, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.9999])
def test_truncated_files(data, share):
    refused(data[: int(len(data) * share)])
    refused(data[:-1])


def test_appended_bytes(data):
    refused(data + b"\0")


def test_flipped_bytes_never_crash(data):
    """A flipped bit in a tensor is another number; one in the header is refused, or read as another valid trace."""
    length = int.from_bytes(data[:8], "little")
    for position in [*range(8), *range(8, 8 + length, 61)]:
        broken = bytearray(data)
        broken[position] ^= 0x15
        try:
            storage.open(bytes(broken), name="upload.safetensors")
        except ValueError as error:
            assert "\n" not in str(error) and "'upload.safetensors'" in str(error)


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("data.pkl", "x" * 100)
    return file.getvalue()


def saved_by_torch() -> bytes:
    file = io.BytesIO()
    torch.save({"a": torch.ones(3)}, file)
    return file.getvalue()


class Touch:
    """A pickle that would run code."""

    def __reduce__(self):
        return os.system, ("touch /tmp/executed-by-a-pickle",)


@pytest.mark.parametrize(
    "foreign",
    [
        b"",
        b"\0" * 8,
        b"hello, this is a text file\n",
        b"\x89PNG\r\n\x1a\n" + b"\0" * 64,
        (1 << 63).to_bytes(8, "little") + b"{}",
        (1 << 40).to_bytes(8, "little") + b"{}" * 20,
        (2).to_bytes(8, "little") + b"[]",
        (4).to_bytes(8, "little") + b"null",
        (3).to_bytes(8, "little") + b"\xff\xfe\xfd",
        (100_000).to_bytes(8, "little") + b"[" * 100_000,
        zipped(),
        saved_by_torch(),
        pickle.dumps(Touch()),
        safetensors.torch.save({"weight": torch.ones(3)}),
        safetensors.torch.save({"weight": torch.ones(3)}, {"format": "pt"}),
        *(
            safetensors.torch.save({}, {"trace": text})
            for text in ("{}", "null", "[]", "3", "[" * 50_000, "not json", "")
        ),
        safetensors.torch.save({}, {"trace": '{"version": 99, "model": "x", "ops": []}'}),
        safetensors.torch.save({}, {"trace": '{"version": 1}'}),
    ],
)
def test_foreign_files(foreign):
    refused(foreign)
    assert not os.path.exists("/tmp/executed-by-a-pickle")


def test_a_declared_tensor_larger_than_the_file():
    header = json.dumps({"a": {"dtype": "F32", "shape": [1 << 40, 1 << 20], "data_offsets": [0, 1 << 62]}}).encode()
    refused(len(header).to_bytes(8, "little") + header)
    metadata = {"trace": json.dumps({"version": 1, "model": "x", "ops": [], "values": {"a": "a"}})}
    for shape, end in (([1 << 40, 1 << 20], 1 << 62), ([1 << 62, 4], 16), ([2], 16), ([-1], 4)):
        header = json.dumps(
            {"__metadata__": metadata, "a": {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}}
        ).encode()
        refused(len(header).to_bytes(8, "little") + header + b"\0" * 16)


def put(value, *path):
    """A change that puts a value at a path of the JSON."""

    def change(fields):
        for key in path[:-1]:
            fields = fields[key]
        fields[path[-1]] = value

    return change


HOSTILE = {
    "unknown field": put(1, "secret"),
    "unknown field inside": put("x", "ops", 0, "run"),
    "missing field": lambda fields: fields.pop("model"),
    "missing field inside": lambda fields: fields["steps"][0].pop("latex"),
    "a number for text": put(3, "model"),
    "text for a number": put("28", "params"),
    "true for a number": put(True, "flops"),
    "a fraction for a number": put(1.5, "params"),
    "a number of more than 64 bits": put(1 << 64, "params"),
    "negative parameters": put(-1, "params"),
    "half a letter": put("\ud800", "model"),
    "a list for an object": put([], "ops", 0),
    "an object for a list": put({}, "ops"),
    "null for a list": put(None, "ops"),
    "negative size": put([-1, 4], "ops", 1, "outputs", 0, "shape"),
    "text as a size": put(["1", 4], "ops", 1, "outputs", 0, "shape"),
    "symbols of another rank": put(["B"], "ops", 1, "outputs", 0, "symbolic"),
    "symbolic code": put(["B", "__import__('os').system('true')"], "ops", 1, "outputs", 0, "symbolic"),
    "a symbol that the trace doesn't have": put(["B", "T"], "ops", 1, "outputs", 0, "symbolic"),
    "a symbolic size of another value": put(["B", "D"], "ops", 1, "outputs", 0, "symbolic"),
    "a formula of another value": put("D*K", "params_symbolic"),
    "a derived size of another value": put("D + h", "symbols", 4, "equals"),
    "a root of a negative number": put("sqrt(0 - 4)", "flops_symbolic"),
    "a root that is not real here": put("sqrt(B - D)", "flops_symbolic"),
    "a division by zero at this run": put("D/(B - 1)", "params_symbolic"),
    "a tower of powers": put("9**9**9**9", "flops_symbolic"),
    "nested powers": put("((((D**9)**9)**9)**9)**9", "params_symbolic"),
    "a division by zero": put("D/0", "params_symbolic"),
    "deep brackets": put("(" * 900 + "D" + ")" * 900, "params_symbolic"),
    "a long formula": put("D+" * 5000 + "D", "params_symbolic"),
    "an op index out of order": put(7, "ops", 0, "index"),
    "a maker beyond the ops": put(99, "ops", 0, "inputs", 0, "maker"),
    "a step of an unknown op": put([0, 99], "steps", 0, "ops"),
    "a negative op": put([-1], "steps", 0, "ops"),
    "an op of an unknown step": put("nowhere", "ops", 0, "step"),
    "two steps of one id": put("head.logits", "steps", 0, "id"),
    "a negative layer": put(-2, "steps", 0, "layer"),
    "a negative error": put(-1.0, "steps", 0, "error"),
    "unbalanced LaTeX": put(r"\frac{a}{b", "steps", 0, "latex"),
    "LaTeX that reads files": put(r"\input{/etc/passwd}", "steps", 0, "latex"),
    "LaTeX that runs programs": put(r"\immediate\write18{true}", "steps", 1, "symbol"),
    "LaTeX that leaves the equation": put(r"x$ \textbf{y} $z", "steps", 1, "latex"),
    "LaTeX that ends the document": put(r"\end{document}", "steps", 1, "latex"),
    "LaTeX that comments out": put("x % y", "steps", 1, "latex"),
    "an operand of three": put([], "steps", 0, "product"),
    "a symbol that is code": put("B; import os", "symbols", 0, "name"),
    "one symbol twice": put("B", "symbols", 2, "name"),
    "an attention of an unknown op": put(5, "attentions", 0, "op"),
    "an attention without queries": put("gone", "attentions", 0, "q"),
    "an attention of other sizes": put(6, "attentions", 0, "keys"),
    "an attention of flags": put("flags", "attentions", 0, "q"),
    "an attention of other heads": put(3, "attentions", 0, "heads"),
    "an unknown link": put([["from_file", ["/etc/passwd"]]], "attentions", 0, "chain"),
    "a link without its tensor": put([["add", ["scores", "gone"]]], "attentions", 0, "chain"),
    "a link with too few arguments": put([["add", []]], "attentions", 0, "chain"),
    "a link to a tensor of another shape": put([["add", ["scores", "half"]]], "attentions", 0, "chain"),
    "a link to itself": put([["add", ["scores", {"list": []}]]], "attentions", 0, "chain"),
    "primitives of one op only": lambda fields: fields["decompositions"].pop(),
    "primitives of another op": put(1, "decompositions", 0, "op"),
    "a primitive by one that is not there": put(2, "decompositions", 1, "primitives", 1, "inputs", 0, "maker"),
    "a primitive of another size": put([1, 5], "decompositions", 1, "primitives", 0, "outputs", 0, "shape"),
    "a primitive that comes closer than exactly": put(-1.0, "decompositions", 1, "error"),
    "a primitive without a name": lambda fields: fields["decompositions"][0]["primitives"][0].pop("name"),
    "a picture without pixels": put("gone", "picture", "value"),
    "a picture of floats": put("q", "picture", "value"),
    "a picture turned over": put([4.0, 0.0, 0.0, 4.0], "picture", "crop"),
    "an endless picture": put([0.0, 0.0, "inf", 4.0], "picture", "crop"),
    "a picture of a million rows": put(1_000_000, "picture", "rows"),
    "a segment turned over": put(9, "segments", 0, "start"),
    "a tensor that isn't there": put("gone", "values", "q"),
    "a tensor by number": put(3, "values", "q"),
    "an untagged output": put({"__class__": "os.system"}, "output"),
    "an output of unknown tensors": put({"tensor": "gone"}, "output"),
    "a list as a key": put({"dict": [[[], 1]]}, "output"),
    "not a number": put(float("nan"), "steps", 0, "error"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_fields(data, name):
    refused(rewritten(data, HOSTILE[name]))


JUNK = (
    None,
    -1,
    0,
    3,
    1 << 62,
    0.5,
    "",
    "x",
    "?",
    "D",
    r"\frac",
    "\x1b[2J\n",
    [],
    {},
    [1],
    ["x"],
    True,
    "inf",
    [[1, 2]],
    {"a": 1},
)


def places(data, path=()):
    """The paths of all values inside JSON."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def test_whatever_is_opened_can_be_shown(data):
    """One value of the JSON replaced by junk, many times: refused in words, or shown in every view."""
    length = int.from_bytes(data[:8], "little")
    everywhere = list(places(json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["trace"])))
    chance = random.Random(0)
    shown = 0
    for _ in range(250):
        change = put(chance.choice(JUNK), *chance.choice(everywhere))
        try:
            trace = storage.open(rewritten(data, change), name="upload.safetensors")
        except ValueError as error:
            assert "\n" not in str(error)
            continue
        shown += 1
        for level in views.LEVELS:
            if level == "primitives" and not trace.decompositions:
                continue
            views.table(trace, level)
            for format in views.FORMATS:
                views.render(trace, level, format).encode()
        for layer, record in enumerate(trace.attentions):
            if not record.problem and trace.attentions[0].part == record.part:
                trace.attention(layer)
    assert shown > 10


def test_rewriting_alone_is_accepted(data):
    assert storage.open(rewritten(data, lambda fields: None)).model == sample().model


def test_formulas_of_real_traces_are_accepted():
    for text in (
        "?",
        "1",
        "B",
        "N + 1",
        "C*P**2",
        "H*W/P**2 + 1",
        "B*L*(24*D**2*(N + 1) + 4*D*(N + 1)**2)",
        "D/h",
        "P**(-2)",
    ):
        formulas.formula(text)


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
        formulas.mathematics(text, "here")
