"""Small files of strangers that would fill the memory or hold the processor: refused before anything is computed."""

import json
from dataclasses import replace

import pytest
import safetensors.torch
import torch

from tests.serialization.test_serialization import refusal
from tests.support.handmade import sample
from tests.support.sweeping import cases
from tracer import serialization
from tracer.record import AttentionRecord, Segment, Symbol, Trace
from tracer.serialization.format import encode


def encode_trace(trace, change=lambda fields: None) -> bytes:
    """Return the file of a trace, its JSON changed by `change(fields)`."""
    fields, tensors = encode(trace)
    change(fields)
    return safetensors.torch.save(tensors, {"trace": json.dumps({"version": serialization.VERSION, **fields})})


def lone(q: torch.Tensor, k: torch.Tensor, heads: int, chain=(), **more):
    """Return a handmade run with one attention over these queries and keys, and with `more` tensors."""
    record = AttentionRecord(0, "", "a", 0, heads, q.shape[-2], k.shape[-2], "q", "k", chain)
    values = {"q": q, "k": k, "scores": sample().values["scores"], **more}
    return sample(attentions=(record,), values=values, segments=(), picture=None)


N = 40_000
SEVENS = f"sqrt(({'7' * 1800})**16+1)"
SMALL = {
    "a literal of 1,800 digits": (
        "has 1,814 letters",
        lambda: encode_trace(sample(), lambda f: f.update(params_symbolic=SEVENS)),
    ),
    "powers of literals": (
        "more than 1,024 bits",
        lambda: encode_trace(sample(), lambda f: f.update(params_symbolic="*".join(["99**16"] * 20))),
    ),
    "a product of many literals": (
        "more than 1,024 bits",
        lambda: encode_trace(sample(), lambda f: f.update(flops_symbolic="*".join(["9223372036854775783"] * 40))),
    ),
    "a root of a product of roots": (
        "more than 1,024 bits",
        lambda: encode_trace(
            sample(), lambda f: f.update(flops_symbolic="*".join(["sqrt(9223372036854775783*D)"] * 30))
        ),
    ),
    "many long formulas": (
        "more than 8,000 letters",
        lambda: encode_trace(
            sample(
                symbols=(*sample().symbols, *(Symbol(f"a{i}", "", 1, "*".join(["1"] * (400 - i))) for i in range(50)))
            ),
        ),
    ),
    "rows and columns of a million": (
        "10,000 patches",
        lambda: encode_trace(sample(attentions=()), lambda f: f["picture"].update(rows=10**6, columns=10**6)),
    ),
    "more patches than pixels": (
        "4 × 4 pixels",
        lambda: encode_trace(sample(attentions=()), lambda f: f["picture"].update(rows=100, columns=100)),
    ),
    "an input of 40,000 pixels a side": (
        "40,000 × 40,000",
        lambda: encode_trace(
            Trace(
                "x",
                (),
                values=sample().values,
                picture=sample().picture,
                symbols=(Symbol("H", "", N), Symbol("W", "", N)),
            )
        ),
    ),
    "20,000 links of a chain": (
        "8,192 items",
        lambda: encode_trace(
            lone(torch.randn(1, 1, 2, 1), torch.randn(1, 1, 2, 1), 1, (("mul", ("scores", 1.0)),) * 20_000)
        ),
    ),
    "a thousand links of a chain": (
        "32 links",
        lambda: encode_trace(
            lone(torch.randn(1, 1, 2, 1), torch.randn(1, 1, 2, 1), 1, (("mul", ("scores", 1.0)),) * 1000)
        ),
    ),
    "5,000 attentions of one key": (
        "1,024, got 5,000",
        lambda: encode_trace(
            sample(attentions=sample().attentions[:1]), lambda f: f.update(attentions=f["attentions"] * 5000)
        ),
    ),
    "heads that share one key, times a million keys": (
        "got 1,000,000,000,000",
        lambda: encode_trace(lone(torch.ones(1, 10**6, 1, 1), torch.ones(1, 1, 10**6, 1), 10**6)),
    ),
    "batches that are spread over each other": (
        "as many keys as queries",
        lambda: encode_trace(lone(torch.ones(10**5, 1, 1, 1, 1), torch.ones(1, 10**5, 1, 1, 1), 1)),
    ),
    "a mask that spreads the scores": (
        "one number for each score",
        lambda: encode_trace(
            lone(torch.ones(1, 1, 1000, 1), torch.ones(1, 1, 1000, 1), 1, wide=torch.ones(10**5, 1, 1, 1)),
            lambda f: f["attentions"][0].update(chain=[["add", {"tuple": ["scores", "wide"]}]]),
        ),
    ),
    "no heads of keys": (
        "queries and keys of 3",
        lambda: encode_trace(lone(torch.ones(1, 2, 3, 4), torch.ones(1, 0, 3, 4), 2)),
    ),
    "a segment of all numbers": (
        "tokens among 5",
        lambda: encode_trace(
            sample(segments=(Segment("CLS", 0, 1), Segment("image", 1, 1 << 40))),
        ),
    ),
    "a thousand segments": ("at most 64", lambda: encode_trace(sample(segments=(Segment("x", 0, 5),) * 1000))),
    "a name for every token that fills a book": (
        "at most 100 letters",
        lambda: encode_trace(sample(segments=(Segment("x" * 10**5, 0, 5),))),
    ),
    "a module a hundred thousand deep": (
        "at most 400 letters",
        lambda: encode_trace(sample(), lambda f: f["ops"][0].update(module="." * 10**5)),
    ),
    "a module of two hundred parts": (
        "48 deep",
        lambda: encode_trace(sample(), lambda f: f["ops"][0].update(module="." * 200)),
    ),
    "a step that names its op a million times": (
        "8,192 items",
        lambda: encode_trace(sample(), lambda f: f["steps"][0].update(ops=[0] * 400_000)),
    ),
    "a step that names its op 8,000 times": (
        "each op once",
        lambda: encode_trace(sample(), lambda f: f["steps"][0].update(ops=[0] * 8000)),
    ),
    "a symbol in 150 brackets": (
        "16 within each other",
        lambda: encode_trace(sample(), lambda f: f["steps"][0].update(symbol="{" * 150 + "x" + "}" * 150)),
    ),
    "factors of nothing": (
        "at least 1 × 1",
        lambda: encode_trace(
            sample(),
            lambda f: [operand.update(shape=[0, 0], symbolic=["0", "0"]) for operand in f["steps"][0]["product"]],
        ),
    ),
    "a step of another shape than its tensor": (
        "tensor of its shape",
        lambda: encode_trace(sample(), lambda f: f["steps"][0].update(value="half")),
    ),
    "a tensor of sixty axes": (
        "at most 12 axes",
        lambda: encode_trace(
            sample(values={**sample().values, "deep": torch.ones([1] * 60)}),
        ),
    ),
    "a crop outside the photo": (
        "a crop (left, top, right, bottom)",
        lambda: encode_trace(sample(), lambda f: f["picture"].update(crop=[-1e300, 0.0, 4.0, 4.0])),
    ),
    "thousands of steps in one list": (
        "at most 512",
        lambda: encode_trace(
            sample(
                ops=tuple(replace(op, step=None) for op in sample().ops),
                steps=tuple(replace(sample().steps[1], id=f"s{i}") for i in range(2000)),
            )
        ),
    ),
    "a list of empty lists": (
        "values, expected at most",
        lambda: encode_trace(sample(), lambda f: f.update(output={"list": [{"list": []}] * 500_000})),
    ),
}


@pytest.mark.parametrize("name", cases(SMALL, SMALL.keys() - {"thousands of steps in one list"}))
def test_a_small_file_that_would_fill_the_memory_is_refused_before_it_does(name):
    said, make = SMALL[name]
    data = make()
    assert len(data) < serialization.validation.HEADER and said in refusal(data)
