"""Runs with changes, computed again by hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from tracer.capture.tensors import output_tensors
from tracer.record import AttentionRecord, Step
from tracer.utils.torch_internals import DispatchMode
from tracer.verify.checks import check, reference_run
from tracer.verify.checks.reference_run import PlainRun, Transparent, array, attached, parameters_of, seeded_run

# Changes of values, compared with plain PyTorch: forward hooks, and weights of a copy that are edited by hand.

TOLERANCE = 1e-5
"""Largest difference of an output, as a share of its largest number."""


@check
def check_changed_values(run: PlainRun) -> Iterator[str]:
    """Yield a sentence for each change whose output differs from that of the same change by hand."""
    outputs = module_outputs(run)
    lines = [step for step in run.trace.steps if step.id.endswith(("mlp.output", "attention.output")) and step.shape]
    if (line := module_output(run, outputs, lines[len(lines) // 2 :])) is not None:
        id, path, value = line
        for change, by_hand in _kinds(value).items():
            change = value.clone() + 1 if change == "replace" else change
            expected = run_with_hook(run, path, lambda args, output, by_hand=by_hand: by_hand(output))
            yield from compare(run, {id: change}, expected)
        if (earlier := _earlier(run, id, value)) is not None:
            kept = run.trace.value(earlier)
            yield from compare(run, {id: f"take({earlier.id})"}, run_with_hook(run, path, lambda args, output: kept))
    norms = [step for step in run.trace.steps if step.stage == "norm"]
    if (norm := module_output(run, outputs, norms)) is not None:
        yield from compare(run, {norm[0]: "off"}, run_with_hook(run, norm[1], lambda args, output: args[0]))
    if (pair := heads_of(run)) is not None:
        id, heads, parameter = pair
        for head in {0, heads - 1}:
            yield from compare(run, {id: f"drop_heads({head})"}, without_heads(run, parameter, heads, {head}))
        others = set(range(heads)) - {0}
        yield from compare(run, {id: "keep_heads(0)"}, without_heads(run, parameter, heads, others))
        yield from _refuted_lines(run, id, heads)
        expected = _outputs_with_parameter(run, parameter, -run.model.net.get_parameter(parameter) / 2)
        yield from compare(run, {f"parameter {parameter}": "scale(-0.5)"}, expected)
    if (table := _positions(run)) is not None:
        id, parameter, tokens = table
        values = run.model.net.get_parameter(parameter).detach().clone()
        order = torch.from_numpy(np.random.default_rng(2).permutation(tokens))
        values[..., :tokens, :] = values[..., order, :]
        yield from compare(run, {id: "shuffle_positions(2)"}, _outputs_with_parameter(run, parameter, values))
    yield from _inputs(run)


def _refuted_lines(run: PlainRun, id: str, heads: int) -> Iterator[str]:
    """Yield a sentence for each line of a run with a head off that other runs contradict, after a run with another head
    off: both have the same ops, so the second is solved like the first."""
    run.model.with_changes({id: "drop_heads(0)"}).trace(prove=False)
    change = f"drop_heads({heads - 1})"
    for step in run.model.with_changes({id: change}).trace().check().steps:
        if step.refuted:
            yield f"{change} of {id!r}: other runs contradict {step.id!r}. {step.replayed}"


def _kinds(value: Tensor) -> dict[str, Callable[[Tensor], Tensor]]:
    """Return one change of each kind that any line allows, and its effect, written out by hand."""
    axes = (2, 3) if value.dim() == 4 else (max(value.dim() - 2, 0),)
    order = np.random.default_rng(1).permutation(value.shape[axes[-1]])
    noise = torch.from_numpy(np.random.default_rng(3).standard_normal(tuple(value.shape))).to(value.dtype)
    return {
        "zero": lambda x: x - x,
        "scale(-0.5)": lambda x: -x / 2,
        "mean": lambda x: x.sum(axes, keepdim=True) / np.prod([x.shape[axis] for axis in axes]) + (x - x),
        "noise(0.1,3)": lambda x: x + noise / 10,
        "shuffle(1)": lambda x: x.transpose(0, axes[-1])[order].transpose(0, axes[-1]),
        "replace": lambda x: value + 1,
    }


def module_outputs(run: PlainRun) -> dict[str, Tensor]:
    """Return the output of the first call of each module, by the module's path, in a plain run."""
    outputs: dict[str, Tensor] = {}
    hooks = [
        module.register_forward_hook(lambda module, args, output, path=path: outputs.setdefault(path, output))
        for path, module in run.model.net.named_modules()
        if path
    ]
    with attached(hooks):
        forward(run.model.net, *run.inputs, **run.inputs.named)
    return outputs


def module_output(run: PlainRun, outputs: dict[str, Tensor], lines: Iterable[Step]) -> tuple[str, str, Tensor] | None:
    """Return the first of these lines that a module returned: its id, the module's path, its value."""
    for step in lines:
        value = run.trace.value(step)
        for path, output in outputs.items():
            if value is not None and isinstance(output, Tensor) and torch.equal(output, value):
                return step.id, path, value
    return None


def _earlier(run: PlainRun, id: str, value: Tensor) -> Step | None:
    """Return a line before this one, of the same shape and other values."""
    for step in run.trace.steps:
        kept = run.trace.value(step)
        if step.id == id:
            return None
        if kept is not None and not step.recomputed and kept.shape == value.shape and not torch.equal(kept, value):
            return step
    return None


def heads_of(run: PlainRun) -> tuple[str, int, str] | None:
    """Return the attention weights of a block with an output projection: the line's id, the heads, the parameter."""
    steps = {step.id: step for step in run.trace.steps}
    for id, step in steps.items():
        projection = steps.get(id.removesuffix("weights") + "output") if id.endswith("attention.weights") else None
        if projection is None or len(step.shape) != 4 or (parameter := _matrix(run, projection)) is None:
            continue
        heads, width = step.shape[1], run.model.net.get_parameter(parameter).shape
        if heads > 1 and width[0] % heads == width[1] % heads == 0 and width[0] == width[1]:
            return id, heads, parameter
    return None


def _positions(run: PlainRun) -> tuple[str, str, int] | None:
    """Return the line that adds a learned table of positions to the tokens of one sequence: its id, the path of the
    table, and the number of tokens."""
    for step in run.trace.steps:
        paths = parameters_of(step)
        if step.id == "position" and len(step.shape) == 3 and len(paths) == 1 and len(step.names) == 1:
            table = dict(run.model.net.named_parameters()).get(paths[0])
            if table is not None and table.dim() > 1 and table.shape[-1] == step.shape[-1]:
                return step.id, paths[0], step.shape[1]
    return None


def _matrix(run: PlainRun, step: Step) -> str | None:
    """Return the path of the only matrix in a line."""
    known = dict(run.model.net.named_parameters())
    matrices = [path for path in parameters_of(step) if path in known and known[path].dim() == 2]
    return matrices[0] if len(matrices) == 1 else None


def run_with_hook(run: PlainRun, path: str, by_hand: Callable[[tuple, Tensor], Tensor]) -> list[Tensor]:
    """Return the outputs of a run in which a forward hook changes a module's output."""
    module = run.model.net.get_submodule(path)
    with module.register_forward_hook(lambda module, args, output: by_hand(args, output)):
        return forward(run.model.net, *run.inputs, **run.inputs.named)


def without_heads(run: PlainRun, parameter: str, heads: int, off: set[int]) -> list[Tensor]:
    """Return the outputs of a run in which the rows of heads are 0 in the output projection, `[h·d_k, D]`."""
    matrix = run.model.net.get_parameter(parameter).detach().clone()
    owner = run.model.net.get_submodule(parameter.rpartition(".")[0])
    rows = matrix if type(owner).__name__ == "Conv1D" else matrix.T  # transformers' own keeps the transpose
    width = rows.shape[0] // heads
    for head in off:
        rows[head * width : (head + 1) * width] = 0
    return _outputs_with_parameter(run, parameter, matrix)


def _outputs_with_parameter(run: PlainRun, parameter: str, value: Tensor) -> list[Tensor]:
    """Return the outputs of a run with another value of a parameter."""
    net = partial(functional_call, run.model.net, {parameter: value})
    return forward(net, tuple(run.inputs), run.inputs.named)


def _inputs(run: PlainRun) -> Iterator[str]:
    """Compare changes of inputs: a patch of the photo, a token of the text, the weights."""
    sizes, named = {size.name: size.value for size in run.trace.symbols}, run.inputs.named
    if run.inputs.crop is not None and {"H", "W", "P"} <= sizes.keys() and "image" in run.model.takes:
        photos = [tensor.clone() if _is_photo(tensor, sizes) else tensor for tensor in run.inputs]
        grey = [(0.5 - mean) / std for mean, std in zip(*_pixels(run), strict=True)]
        for photo in filter(lambda tensor: _is_photo(tensor, sizes), photos):
            photo[:, :, : sizes["P"], sizes["P"] : 2 * sizes["P"]] = torch.tensor(grey)[: photo.shape[1], None, None]
        if not named:
            yield from compare(run, {"image": "hide(1,grey)"}, forward(run.model.net, *photos))
    tokens = [tensor for tensor in run.inputs if isinstance(tensor, Tensor) and _is_text(run, tensor)]
    if tokens and not named:
        masked = [
            torch.cat([torch.zeros_like(tensor[:, :1]), tensor[:, 1:]], 1) if _is_text(run, tensor) else tensor
            for tensor in run.inputs
        ]
        yield from compare(run, {"text": "mask_words(0;0)"}, forward(run.model.net, *masked))
    net = run.model.net
    permuted = dict(run.model.with_changes({"weights": "permute(1)"}, run.inputs).net.named_parameters())
    for name, parameter in net.named_parameters():
        before, after = (np.sort(array(tensor), axis=None) for tensor in (parameter, permuted[name]))
        if not np.array_equal(before, after):
            yield f"permute(1) gives {name!r} other numbers, not another order of its own"
    large = max(net.named_parameters(), key=lambda entry: entry[1].numel(), default=None)
    if large is not None and torch.equal(permuted[large[0]], large[1]):
        yield f"permute(1) leaves {large[0]!r} as it is"


def _is_photo(tensor: Any, sizes: dict[str, int]) -> bool:
    return isinstance(tensor, Tensor) and tensor.dim() == 4 and tuple(tensor.shape[2:]) == (sizes["H"], sizes["W"])


def _is_text(run: PlainRun, tensor: Any) -> bool:
    length = run.inputs.sizes.get("T", 0)
    is_ids = isinstance(tensor, Tensor) and not tensor.is_floating_point() and tensor.dim() == 2
    return bool(length) and is_ids and tensor.shape[1] == length


def _pixels(run: PlainRun) -> tuple[Sequence[float], Sequence[float]]:
    """Return the mean and the standard deviation of pixels, by colour."""
    card = run.model.card or {}
    return card.get("mean", (0.5, 0.5, 0.5)), card.get("std", (0.5, 0.5, 0.5))


def forward(net: Callable, *args: Any, **named: Any) -> list[Tensor]:
    """Return the outputs of a net, with the random numbers of seed 0."""
    with torch.no_grad():
        return [tensor for _, tensor in output_tensors(seeded_run(net, *args, **named))]


def compare(run: PlainRun, change: dict[str, Any], expected: list[Tensor]) -> Iterator[str]:
    """Yield a sentence if the outputs of a changed run are not the expected ones."""
    line, kind = next(iter(change.items()))
    kind = "replace" if isinstance(kind, Tensor) else kind
    model, inputs = run.model.with_changes(change, run.inputs), run.inputs
    if line in ("image", "text"):
        if not _same_inputs(run.model.inputs(), run.inputs):  # the run is of another input than the model's own sample
            return
        inputs = model.inputs()
    outputs = forward(model.net, *inputs, **inputs.named)
    for output, wanted in zip(outputs, expected, strict=True):
        if not wanted.is_floating_point():
            continue
        finite = wanted[torch.isfinite(wanted)]
        allowed = TOLERANCE * float(finite.abs().max()) if finite.numel() else 0.0
        if not torch.allclose(output, wanted, rtol=0, atol=allowed, equal_nan=True):
            error = float((output - wanted).abs().max())
            yield f"{kind} of {line!r} gives another output than plain PyTorch, by {error}"


def _same_inputs(a: Any, b: Any) -> bool:
    pairs = zip(a, b, strict=True)
    return all(torch.equal(first, second) for first, second in pairs if isinstance(first, Tensor))


# Changes of scores and masks, compared with plain PyTorch: the softmax of one attention receives other scores.

SCALINGS = {"div": -1, "mul": 1}
"""Calls by which scores are multiplied by one number, with the power of that."""

Edit = Callable[[Tensor], Tensor]


@check
def check_changed_scores(run: PlainRun) -> Iterator[str]:
    """Yield a sentence for each change of scores whose output differs from that of scores edited by hand."""
    for record in run.trace.attentions:
        number, lines = _softmax(run, record), _lines(run, record)
        if number is None or "scores" not in lines:
            continue
        try:
            run.model.with_changes({lines["scores"]: "zero"}, run.inputs)
        except ValueError:  # its scores are not computed by themselves
            continue
        for change, edit in _score_kinds(run, record).items():
            expected = _with_scores(run, number, edit)
            try:
                yield from compare(run, {lines["scores"]: change}, expected)
            except ValueError as error:
                yield f"{change} of {lines['scores']!r} is refused: {error}"
        return


def _lines(run: PlainRun, record: AttentionRecord) -> dict[str, str]:
    """Return the ids of the scores and weights of an attention."""
    inside = [step.id for step in run.trace.steps if record.op in step.ops or step.inside == record.op]
    around = next((id.removesuffix("weights") for id in inside if id.endswith(".weights")), None)
    known = {step.id for step in run.trace.steps}
    return {name: f"{around}{name}" for name in ("scores", "weights") if around and f"{around}{name}" in known}


def _softmax(run: PlainRun, record: AttentionRecord) -> int | None:
    """Return the number of the softmax of an attention among all of the run; None if it is not found."""
    if record.problem or record.over != "tokens":
        return None
    weights = run.trace.attention(record.layer, part=record.part or None).double().numpy()
    alike = ((ran.shape == weights.shape and np.allclose(ran, weights, rtol=0, atol=1e-4)) for ran in run.softmaxes)
    return next((number for number, same in enumerate(alike) if same), None)


def _score_kinds(run: PlainRun, record: AttentionRecord) -> dict[str, Edit]:
    """Return the changes that fit the scores of an attention, and the effect of each, written out by hand."""
    queries, keys = torch.arange(record.queries)[:, None], torch.arange(record.keys)
    kinds: dict[str, Edit] = {
        "zero": lambda scores: torch.zeros_like(scores),
        "causal": lambda scores: scores.masked_fill(keys > queries, -torch.inf),
        "window(2)": lambda scores: scores.masked_fill((keys - queries).abs() > 1, -torch.inf),
    }
    if min(record.queries, record.keys) > 2:
        kinds["close(0;2)"] = lambda scores: scores.masked_fill((keys == 0) & (queries == 2), -torch.inf)
    named = [name for name, _ in record.chain]
    if not set(named) <= SCALINGS.keys() | {"causal"}:
        return kinds
    factor = prod(float(value[1]) ** SCALINGS[name] for name, value in record.chain if name in SCALINGS)
    if factor != 1:
        kinds["unscale"] = lambda scores: scores / factor
    query, key = run.trace.values.get(record.q), run.trace.values.get(record.k)
    if record.mask == "causal" and query is not None and key is not None and record.queries == record.keys > 2:
        heads = query.shape[-3] // key.shape[-3]
        bare = query @ key.repeat_interleave(heads, -3).mT * factor
        visible = (keys <= queries) | (keys < 2)
        kinds["bidirectional"] = lambda scores: bare
        kinds["prefix(2)"] = lambda scores: bare.masked_fill(~visible, -torch.inf)
        kinds["open(2;0)"] = lambda scores: torch.where((keys == 2) & (queries == 0), bare, scores)
    return kinds


def _with_scores(run: PlainRun, number: int, edit: Edit) -> list[Tensor]:
    """Return the outputs of a plain run in which one softmax takes other scores."""
    with Transparent(), _EditedScores(number, edit):
        return forward(run.model.net, *run.inputs, **run.inputs.named)


class _EditedScores(DispatchMode):
    """A mode that edits the scores of one softmax, counted as `OpObserver` counts them; fused attention is computed by
    its formula there."""

    def __init__(self, number: int, edit: Edit):
        super().__init__()
        self.left, self.edit = number, edit

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        fused = name.startswith("_scaled_dot_product") and not name.endswith("backward")
        if not fused and name not in ("_softmax", "_safe_softmax"):
            return func(*args, **kwargs)
        self.left -= 1
        if self.left != -1:
            return func(*args, **kwargs)
        if not fused:
            return func(self.edit(args[0]), *args[1:], **kwargs)
        mask, causal, scale = reference_run._options(func, args, kwargs)
        query, key, value = args[:3]
        key, value = (each.repeat_interleave(query.shape[1] // each.shape[1], 1) for each in (key, value))
        scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
        if causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
        result = torch.softmax(self.edit(scores), -1) @ value
        return result, result.new_empty(0)
