"""Checks that every model of ours has to pass, together: proofs, golden steps, and shape comments that are true."""

import ast
import json
import re
from pathlib import Path

import torch
from safetensors.torch import load_file

from tracer import verify
from tracer.capture.tensors import same_outputs
from tracer.models import training
from tracer.symbols.notation import parse
from tracer.tracing.proofs import same_size

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


def assert_verified(model, **given):
    """Trace the model and assert that all of it is verified, and the output bit-equal; return the trace."""
    trace = model.trace(**given)
    assert trace.coverage == 1 and trace.notes == ()
    for step in trace.steps:
        assert step.verdict == "verified", f"{step.id}: {step.error} {step.note}"
        assert "?" not in step.symbolic, step.id
        sentences = re.findall(r"[.?](?= |$)", step.why.partition("Source:")[0])
        assert 2 <= len(sentences) <= 5 and len(step.why) < 300, step.id
    for op in trace.ops:
        for tensor in (*op.inputs, *op.outputs):
            assert "?" not in tensor.symbolic, f"op {op.index}, {op.op}: {tensor.symbolic}"
    with torch.no_grad():
        plain = model.net(*model.inputs(**given))
    assert same_outputs(trace.output, plain)
    sizes = {symbol.name: symbol.value for symbol in trace.symbols}
    assert verify._value(trace.params_symbolic, sizes) == trace.params == sum(p.numel() for p in model.net.parameters())
    assert verify._value(trace.flops_symbolic, sizes) == trace.flops > 0
    return trace


def assert_golden(trace, name: str, overwrite: bool):
    """Compare every step's symbol, equation and shape, and every op, with the golden file."""
    rows = [
        {"id": s.id, "stage": s.stage, "latex": s.latex, "symbolic": list(s.symbolic), "shape": list(s.shape)}
        for s in trace.steps
    ]
    ops = [f"{op.module or '·'} {op.op} {list(op.outputs[0].symbolic)} {op.flops}" for op in trace.ops]
    made = {"params": trace.params_symbolic, "flops": trace.flops_symbolic, "steps": rows, "ops": ops}
    path = GOLDEN / f"{name}.json"
    if overwrite:
        path.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    assert made == json.loads(path.read_text(encoding="utf-8"))


def assert_comments(module, trace, derived: dict[str, str], part: str = "", **said: str) -> int:
    """Assert that shape comments in forwards of a model's file are what the trace solved; return how many.

    `said` says what a size of the comments is in this run (`S="N + 1"`); only ops of tower `part` are compared.
    """
    same, checked = same_size(tuple(derived.items())), 0
    for line, comment in _comments(module.__file__):
        made = [op for op in trace.ops if op.source.line == line and module.__file__.endswith(op.source.file)]
        made = [op for op in made if op.module.startswith(part)]
        if not made:
            continue
        found, solved = [_formula(size, said) for size in comment.split(", ")], made[-1].outputs[0].symbolic
        assert len(found) == len(solved), f"line {line} says [{comment}], the run {solved}"
        assert all(map(same, found, map(parse, solved))), f"line {line} says [{comment}], the run {solved}"
        checked += 1
    return checked


def assert_learns(name: str, folder: Path, settings: dict) -> tuple:
    """Assert that a tiny run of a recipe lowers the loss of a batch, and that two runs train the same weights.

    Returns the recipe, the net with those weights, and their card.
    """
    made = training.recipe(name, **settings)
    batch = made.batch_of(made.read(None, "train"), torch.arange(made.batch), torch.Generator().manual_seed(0))
    before, _ = made.loss(made.build(0), batch)
    files = [training.train(name, out=folder / f"{i}.safetensors", epochs=1, **settings) for i in range(2)]
    first, second = map(load_file, files)
    assert all(torch.equal(first[key], second[key]) for key in first)
    net = made.build(0)
    net.load_state_dict(first)
    after, _ = made.loss(net, batch)
    assert after < before - 0.2
    return made, net, json.loads(files[0].with_suffix(".json").read_text(encoding="utf-8"))


def _formula(text: str, said: dict[str, str]):
    text = text.replace("²", "**2*").replace("·", "*").strip("*")
    return parse(re.sub(r"[A-Za-z]\w*", lambda name: f"({said.get(name[0], name[0])})", text))


def _comments(path: str):
    source = Path(path).read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name == "forward":
            for number in range(node.lineno, node.end_lineno + 1):
                if found := re.search(r"#\s*\[(.+?)\]\s*$", source.splitlines()[number - 1]):
                    yield number, found.group(1)
