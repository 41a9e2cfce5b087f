"""A trace written by hand: every kind of field, awkward values, no model behind it."""

from dataclasses import replace

import torch

from tracer.record import (
    Argument,
    AttentionRecord,
    CallRecord,
    Decomposition,
    ModuleRecord,
    Name,
    Op,
    Operand,
    Picture,
    Primitive,
    Segment,
    Source,
    Step,
    Symbol,
    TensorRecord,
    Trace,
)

CHAIN = (("div", ("scores", 3**0.5)), ("add", ("scores", "mask")), ("causal", (float("-inf"),)))


def sample(**changes) -> Trace:
    """Return scores and logits of a one-block model with two heads, five tokens of width six; `changes` replace
    fields."""
    torch.manual_seed(0)
    q, k = torch.randn(1, 2, 5, 3), torch.randn(1, 2, 5, 3)
    scores = q @ k.transpose(-2, -1) / 3**0.5
    logits = torch.randn(1, 4)
    source = Source("tracer/spec/blocks.py", 38, "scores = q @ k.transpose(-2, -1) / sqrt(d_k)  # [B, h, S, S]")
    tokens = TensorRecord((1, 2, 5, 3), "float32", "image", ("B", "h", "N + 1", "d_k"))
    ops = (
        Op(0, "block1.attention", 1, "aten.bmm", "matmul", source, (tokens, tokens),
           (TensorRecord((1, 2, 5, 5), "float32", 0, ("B", "h", "N + 1", "N + 1")),),
           flops=300, flops_symbolic="2*B*D*(N + 1)**2", step="block1.attention.scores"),
        Op(1, "head", 1, "aten.addmm", "", None,
           (TensorRecord((1, 6), "float32", 0, ("B", "?")), TensorRecord((6, 4), "float32", "head.weight", None)),
           (TensorRecord((1, 4), "float32", 1, ("B", "K")),),
           ("head.weight", "head.bias"), 28, "D*K + K", 48, "2*B*D*K", "head.logits",
           "op <script>alert(1)</script> & co"),
    )  # fmt: skip
    steps = (
        Step("block1.attention.scores", "attention", 0, "Scores", r"\mathbf{S}",
             r"\mathbf{S} = \frac{\mathbf{Q} \mathbf{K}^{\top}}{\sqrt{d_k}}", ("B", "h", "N + 1", "N + 1"),
             (1, 2, 5, 5), 1.5e-7, False, source, (0,), "How much each query asks of each key.", "", "scores",
             (Operand(r"\mathbf{Q}", ("N + 1", "d_k"), (5, 3)), Operand(r"\mathbf{K}^{\top}", ("d_k", "N + 1"), (3, 5)),
              Operand(r"\mathbf{S}", ("N + 1", "N + 1"), (5, 5))), margin=0.125,
             reads=("input image",), role="scores"),
        Step("head.logits", "head", None, "Logits", r"\mathbf{Z}", r"\mathbf{Z} = \mathbf{X}_f \mathbf{W} + \mathbf{b}",
             ("B", "?"), (1, 4), None, True, None, (1,), "One number per class.",
             "Too large | not executed: 100 %_# & $x$ ~ ^",
             names=(Name(r"\mathbf{W}", "parameter head.weight", True),),
             reads=("block1.attention.scores", "parameter head.weight", "parameter head.bias")),
    )  # fmt: skip
    decompositions = (
        Decomposition(0, (Primitive("bmm", "", (replace(tokens, maker="input 0"), replace(tokens, maker="input 1")),
                          (TensorRecord((1, 2, 5, 5), "float32", 0, ("B", "h", "N + 1", "N + 1")),)),),
                      None, "elementary"),
        Decomposition(1, (
            Primitive("mm", "", (TensorRecord((1, 6), "float32", "input 0", ("B", "?")),
                                 TensorRecord((6, 4), "float32", "input 1")),
                      (TensorRecord((1, 4), "float32", 0, ("B", "K")),)),
            Primitive("add", "_inner/_<b>", (TensorRecord((1, 4), "float32", 0, ("B", "K")),),
                      (TensorRecord((1, 4), "float32", 1, ("B", "K")),)),
        ), 2.5e-7),
    )  # fmt: skip
    modules = (
        ModuleRecord("", "Hand <b>", 0, None, 0, 2, (replace(tokens, maker="image"),), (ops[1].outputs[0],), 28, 348),
        ModuleRecord("block1", "Block", 0, 0, 0, 1, (tokens, tokens), ops[0].outputs, 0, 300, "it <i>fails</i> | $x$"),
        ModuleRecord("block1.drop", "Dropout", 1, 1, 1, 1, ops[0].outputs, ops[0].outputs),
        ModuleRecord("head", "Linear", 0, 0, 1, 2, (ops[1].inputs[0],), ops[1].outputs, 28, 48),
    )
    calls = (
        CallRecord("matmul", (Argument("self", "", (tokens,)), Argument("other", "", (tokens,))), ops[0].outputs,
                   "block1.attention", 1, 0, 1),
        CallRecord("linear", (Argument("input", "", ops[1].inputs[:1]), Argument("weight", "", ops[1].inputs[1:]),
                              Argument("<b>", "[1, 2]"), Argument("dim", "-1", (), True)),
                   ops[1].outputs, "head", 1, 1, 2),
    )  # fmt: skip
    fields = {
        "model": "hand <script>alert('model')</script>",
        "ops": ops,
        "steps": steps,
        "symbols": (
            Symbol("B", "batch", 1),
            Symbol("H", "image height", 4),
            Symbol("W", "image width", 4),
            Symbol("P", "patch side", 2),
            Symbol("N", "number of patches", 4, "H*W/P**2"),
            Symbol("D", "model width", 6, "d_k*h"),
            Symbol("h", "attention heads", 2),
            Symbol("d_k", "width of one head", 3),
            Symbol("K", "classes", 4),
        ),
        "attentions": (
            AttentionRecord(0, "", "block1.attention", 0, 2, 5, 5, "q", "k", CHAIN, "tensor"),
            AttentionRecord(1, "", "block2.attention", 0, 2, 5, 5, "", "", (), problem="the scores were not kept"),
        ),
        "values": {
            "q": q,
            "k": k,
            "mask": torch.zeros(5, 5),
            "scores": scores,
            "photo": torch.arange(48, dtype=torch.uint8).view(4, 4, 3),
            "half": torch.randn(3, 4).to(torch.bfloat16),
            "tokens": torch.tensor([[1, -2, 1 << 62]]),
            "flags": torch.tensor([True, False]),
            "empty": torch.empty(0, 7),
            "scalar": torch.tensor(float("nan")),
            "turned": torch.arange(6.0).view(2, 3).T,
            "expanded": torch.ones(1, 3).expand(4, 3),
            "alias": scores,
            "part of scores": scores[0, 0],
        },
        "output": {"logits": logits, "hidden": (logits, [scores, None]), "loss": 0.25, "name": "x"},
        "picture": Picture("photo", (0.0, 0.5, 4.0, 3.5), 2, 2, 1),
        "words": ("a", "ﬁsh", "\n", "<b>"),
        "segments": (Segment("CLS", 0, 1), Segment("image", 1, 5)),
        "result": {"kind": "classes", "top": (("cat", 0.75), ("dog", float("nan"))), "list": [1, 2.5, None, True]},
        "params": 28,
        "params_symbolic": "D*K + K",
        "flops": 348,
        "flops_symbolic": "2*B*D*K + 2*B*D*(N + 1)**2",
        "weights": "seeded random weights",
        "notes": ("solved with B held at 1",),
        "decompositions": decompositions,
        "modules": modules,
        "calls": calls,
    }
    return Trace(**{**fields, **changes})
