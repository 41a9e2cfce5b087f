"""Saved runs: small ones damaged in every field, and generated ones whose sizes agree and are too large."""

import json
from copy import deepcopy
from functools import lru_cache
from math import isfinite
from pathlib import Path
from random import Random

import safetensors.torch
import torch

import tracer
from tests.fuzz import mutate
from tests.fuzz.pages import draw_page
from tests.support import handmade
from tracer import export, serialization
from tracer.record import AttentionRecord, Op, Picture, Segment, Symbol, TensorRecord, Trace
from tracer.serialization.format import encode

TEXT_FIELDS = (
    "model",
    "title",
    "why",
    "note",
    "weights",
    "meaning",
    "module",
    "function",
    "op",
    "stage",
    "part",
    "text",
    "file",
)
"""Fields of texts that may say anything."""
RESULTS = (
    {"kind": "classes", "classes": ["cat", "dog"], "probabilities": [0.25, 0.75]},
    {"kind": "next", "unit": "token", "text": ["a", "b"], "tokens": ["c", "d"], "probabilities": [0.5, 0.25]},
    {"kind": "tokens", "text": ["a", "b"], "tokens": ["c", "d"], "probabilities": [0.5, 0.25], "pad": "a"},
    {
        "kind": "caption",
        "caption": "a cat",
        "words": ["a", "cat"],
        "text": ["a"],
        "tokens": ["cat", "dog"],
        "probabilities": [0.5, 0.25],
        "pointing": [{"layer": 0, "head": 1, "share": 0.5}, {"layer": 0, "share": 0.25}],
    },
    {"kind": "sentences", "sentences": ["a cat", "a dog"], "probabilities": [0.5, 0.5]},
    {"kind": "labels", "classes": ["sky", "sea"], "labels": [[0, 1, 0, 1]] * 4, "shares": [0.5, 0.5]},
    {
        "kind": "reconstruction",
        "pixels": [[[1.0], [2.0]]] * 2,
        "anomaly": [[0.0, 1.0], [0.5, 0.25]],
        "visible": [0, 3],
    },
    {"kind": "embedding", "shape": [1, 5, 6], "norm": 2.0},
    {"kind": "nothing known"},
)


def make_input(chance: Random, folder: Path) -> bytes:
    """Return the bytes of a file."""
    data = generate(chance) if chance.random() < 0.06 else chance.choice((*originals()[:1] * 120, *originals()[1:]))
    if chance.random() < 0.04:
        return mutate.damage(data, chance)
    tensors, text = _parts(data)
    tensors, fields = dict(tensors), json.loads(text)
    if chance.random() < 0.3:
        fields["result"] = {key: _tag(value) for key, value in chance.choice(RESULTS).items()}
    if chance.random() < 0.15:
        _alter_tensors(tensors, chance)
    match chance.choices(range(4), (40, 25, 20, 15))[0]:
        case 0:
            mutate.alter(fields, chance)
        case 1:
            mutate.alter(result := deepcopy(chance.choice(RESULTS)), chance)
            fields["result"] = {key: _tag(value) for key, value in result.items()}
        case 2:
            for path in chance.choices([path for path in mutate.places(fields) if path[-1] in TEXT_FIELDS], k=3):
                mutate.value_at(fields, path[:-1])[path[-1]] = chance.choice(mutate.TEXT)
        case 3:
            mutate.alter({name: fields[name] for name in ("attentions", "picture", "segments", "symbols")}, chance)
    data = safetensors.torch.save(tensors, {"trace": mutate.dump_json(fields)})
    return _with_another_header(data, chance) if chance.random() < 0.1 else data


def open_input(data: bytes, chance: Random) -> Trace:
    """Return the run in the file. Raise ValueError for one that is refused."""
    return tracer.open(data, name="upload.safetensors", prove="later")


def show_input(trace: Trace, chance: Random) -> None:
    """Render two views of each level of the run, and sometimes a page of the app on it."""
    held = {"primitives": trace.decompositions, "modules": trace.modules, "calls": trace.calls}
    for level in export.LEVELS:
        if trace.ops and not held.get(level, True):
            continue
        for name in chance.sample(export.FORMATS, 2):
            text = export.render(trace, level, name)
            text.encode()
            assert name != "html" or "<script" not in text.lower(), "the HTML of a run holds a script"
        if chance.random() < 0.2:
            export.table(trace, level)
    if chance.random() < 0.04:
        draw_page(chance, trace)


@lru_cache(maxsize=1)
def originals() -> tuple[bytes, ...]:
    """Return runs that open: one written by hand with every kind of field, and two of models of ours at tiny sizes."""
    small = {"L": 1, "H": 4, "W": 6, "P": 2, "D": 6, "h": 2, "d_ff": 5, "K": 3}
    text = {"L": 1, "T_max": 5, "D": 6, "h": 2, "d_ff": 5, "V": 7}
    runs = tracer.load("vit", **small).trace(), tracer.load("nanogpt", **text).trace(primitives=True)
    return tuple(_bytes(run) for run in (handmade.sample(), *runs))


@lru_cache(maxsize=4)
def _parts(data: bytes) -> tuple[dict[str, torch.Tensor], str]:
    """Return the tensors of a file and the JSON of its trace."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return safetensors.torch.load(data), header["__metadata__"]["trace"]


def generate(chance: Random) -> bytes:
    """Return a run almost without ops, of one attention or several, in which all sizes agree."""

    def size(*most: int) -> int:
        return max(1, int(chance.choice(most) ** chance.random()))

    keys, heads, width = size(30, 30, 300, 30_000), size(3, 64), size(3, 8)
    rows, columns = size(8, 8, 100, 1_000_000), size(8, 8, 100, 1_000_000)
    if chance.random() < 0.5:  # as many tokens as patches
        rows = min(rows, 200)
        columns = max(1, min(columns, keys // rows))
    height, tall = size(16, 16, 40_000), size(16, 300)
    kept = keys if keys * heads * width < 400_000 else 5
    q = torch.zeros(1, heads, kept, width)
    links = size(2, 2, 2, 2, 20_000)
    chain = tuple([("add", ("scores", 0.5)), ("mul", ("scores", 2.0))][i % 2] for i in range(links))
    chain += (("causal", (float("-inf"),)),) * chance.randrange(2)
    attention = AttentionRecord(0, "", "block", 0, heads, kept, kept, "q", "q", chain)
    tensor = TensorRecord((1, kept), "float32", "input", ("B", "S"))
    tokens = range(size(3, 3, 3_000))
    return _bytes(
        Trace(
            model=chance.choice(("hand", "vit", "nanogpt", "vit-text", "mae")),
            ops=(Op(0, "block", 0, "aten.bmm", "matmul", None, (tensor,), (tensor,)),),
            symbols=(
                Symbol("B", "batch", 1),
                Symbol("S", "length", kept),
                Symbol("H", "height", height),
                Symbol("W", "width", height),
            ),
            attentions=(attention,) * min(size(2, 2, 2, 5_000), 1 + 20_000 // links) if chance.random() < 0.9 else (),
            values={"q": q, "photo": torch.zeros(tall, size(16, 300), 3, dtype=torch.uint8)},
            picture=Picture("photo", (0.0, 0.0, float(tall), 1.0), rows, columns, chance.randrange(2)),
            words=tuple(chance.choice(mutate.TEXT[:20]) for _ in tokens),
            segments=(
                Segment("image", 0, rows * columns),
                Segment("text", rows * columns, rows * columns + len(tokens)),
            ),
            result={**chance.choice(RESULTS)},
        )
    )


def _bytes(trace: Trace) -> bytes:
    """Return the file of a trace that `save` may refuse."""
    fields, tensors = encode(trace)
    return safetensors.torch.save(tensors, {"trace": json.dumps({"version": serialization.VERSION, **fields})})


def _tag(value):
    """Return a value of a result in the encoding of saved runs."""
    if isinstance(value, list):
        return {"list": [_tag(item) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[key, _tag(item)] for key, item in value.items()]}
    return {"float": str(value)} if isinstance(value, float) and not isfinite(value) else value


def _alter_tensors(tensors: dict, chance: Random) -> None:
    """Replace one tensor by another kind, shape or content under the same name, or remove it."""
    name = chance.choice(sorted(tensors))
    tensor = tensors[name]
    kinds = (torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool, torch.float8_e4m3fn)
    match chance.randrange(6):
        case 0:
            del tensors[name]
        case 1:
            tensors[name] = tensor.to(chance.choice(kinds)).contiguous()
        case 2:
            tensors[name] = tensor.reshape(chance.choice(((-1,), (1, -1), (1, 1, 1, -1), (-1, 1)))).contiguous()
        case 3:
            tensors[name] = tensor.flatten()[:0].reshape(chance.choice(((0,), (0, 3), (1, 0, 4, 3), (2**40, 0))))
        case 4:
            tensors[name] = torch.full_like(tensor, chance.choice((0, 1, -1, 255)))
            if tensor.is_floating_point():
                tensors[name].fill_(chance.choice((float("nan"), float("inf"), -float("inf"), 3e38, 1e-45)))
        case 5:
            tensors[name] = torch.zeros(
                chance.choice(((), (1,), (300, 300), (1, 1, 1, 1), (1,) * 20)), dtype=tensor.dtype
            )


def _with_another_header(data: bytes, chance: Random) -> bytes:
    """Return the same tensors, described differently: offsets, shapes and kinds of the file format itself."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    mutate.alter(header, chance)
    text = mutate.dump_json(header).encode()
    length = chance.choice((len(text),) * 8 + (0, len(text) - 1, 2**63 - 1, 2**64 - 1))
    return length.to_bytes(8, "little") + text + data[8 + int.from_bytes(data[:8], "little") :]
