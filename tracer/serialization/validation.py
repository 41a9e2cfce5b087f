"""Consistency checks between the fields of a trace, so that no view of a stranger's file fails later.

Each check is one function of the trace, and raises ValueError with what was expected and where.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from fractions import Fraction
from functools import cached_property
from math import isfinite

import torch

from tracer.attention import weights
from tracer.record import AttentionRecord, CallRecord, ModuleRecord, Symbol, TensorRecord, Trace
from tracer.record.steps import mathematics
from tracer.symbols import formula_parser
from tracer.utils.errors import quote
from tracer.utils.torch_internals import tree_leaves

# Absolute bounds of the size of a saved run, far above what ours need, so that no small file fills the memory.
#
# What is written down once and shown many times, or multiplied with another size, is bounded here; all else costs no
# more than the bytes that the file has. A file beyond them is refused before anything is computed.

HEADER = 8 << 20
"""Bytes of a header; a run of 300 operations with primitives and symbols has half a million."""
ITEMS = 1_000_000
"""Values in a header: an empty list takes two bytes there and 64 in memory."""
MAX_ENTRIES = {
    "ops": 16_384,
    "steps": 4096,
    "symbols": 64,
    "attentions": 1024,
    "segments": 64,
    "notes": 1024,
    "changes": 256,
    "returned": 16_384,
    "words": 65_536,
    "values": 16_384,
    "decompositions": 16_384,
    "modules": 16_384,
    "calls": 16_384,
}
"""Entries of a trace's fields; the deepest models that are built have 256 blocks."""
TEXT = 4000
"""Letters of any text of a record."""
FREE_TEXT = 100_000
"""Letters of a text of the result, such as what was written."""
MAX_LETTERS = {
    **dict.fromkeys(
        "module id step maker within symbol value title model q k weights path changes reads of".split(), 400
    ),
    **dict.fromkeys("op function name part stage dtype mask over after words kind role".split(), 100),
    "symbolic": 200,
}
"""Letters of what is a name, by its field: a page may show it beside every token, or every pixel."""
ITEMS_OF_A_RECORD = 8192
"""Inputs, outputs, parameters, primitives or steps of one record."""
MAX_DEPTH = 48
"""Modules within each other."""
IN_A_PART = 512
"""Steps of one block, or outside all blocks: they stand in one list."""
AXES = 12
"""Axes of a tensor."""
LINKS = 32
"""What a model does to its scores before the softmax; ours do two things."""
CELLS = 1 << 24
"""Attention weights of one query, over all heads and inputs of the batch."""
PATCHES = 10_000
"""Patches of a picture."""
MODEL_PIXELS = 1 << 22
"""Pixels of a picture as the model sees it."""


# Formulas of a stranger's file: read only if reading or showing them can do no harm.

UNKNOWN = "?"
IN_ALL = 8000
"""Letters of all different formulas of a file together; ours have fewer than a thousand."""


class Formulas:
    """Formulas of one file: each is read and computed once, and all together are no longer than `IN_ALL`.

    Nothing here asks sympy: a formula is a value to compare first, which `formula` bounds before it computes it.
    What passed is then shown, and sympy brings no form of it to numbers of more than `formula_parser.BITS` bits.
    """

    def __init__(self, symbols: tuple[Symbol, ...]):
        self.symbols = symbols
        self.sizes = {symbol.name: symbol.value for symbol in symbols}
        self.known: dict[str, int] = {}
        self._there: dict[tuple[str, int], Fraction | None] = {}
        self.letters = 0

    def value(self, text: str) -> int:
        """Return the value of a formula at the sizes of the run. Raise ValueError if it has none, or the file has too
        many."""
        if text not in self.known:
            self.letters += len(text)
            if self.letters > IN_ALL:
                raise ValueError(f"its formulas have more than {IN_ALL:,} letters, {quote(text)} among them")
            result = formula_parser.value(text, self.sizes)
            if result.denominator != 1:
                raise ValueError(f"{quote(text)} is not a whole number at these sizes")
            self.known[text] = int(result)
        return self.known[text]

    @cached_property
    def others(self) -> tuple[dict[str, Fraction], ...]:
        """Other sizes: all different, and the same with those of 1 kept; none where a derived size has no value."""
        primes = {symbol.name: Fraction(PRIMES[n % len(PRIMES)]) for n, symbol in enumerate(self.symbols)}
        ones = {name: Fraction(1) for name, size in self.sizes.items() if size == 1}
        chosen = []
        for sizes in (primes, primes | ones):
            with suppress(ValueError):
                for symbol in self.symbols:
                    if symbol.equals:
                        sizes[symbol.name] = formula_parser.value(symbol.equals, sizes)
                chosen.append(sizes)
        return tuple(chosen)

    def same(self, a: str, b: str, place: int) -> bool:
        """Return whether two formulas have one value at other sizes; True where one of them has none there."""
        if a == b or UNKNOWN in (a, b):
            return True
        first, second = self._elsewhere(a, place), self._elsewhere(b, place)
        return None in (first, second) or first == second

    def _elsewhere(self, text: str, place: int) -> Fraction | None:
        if (text, place) not in self._there:
            self._there[text, place] = None  # a root that is none at these sizes
            with suppress(ValueError):
                self._there[text, place] = formula_parser.value(text, self.others[place])
        return self._there[text, place]

    def alike(self, first: Sequence[str], second: Sequence[str], ones: bool = False) -> bool:
        """Return whether two shapes are the same at other sizes, too; with `ones`, where sizes of 1 stay 1."""
        if len(first) != len(second) or not self.others:
            return len(first) == len(second)
        places = range(len(self.others) if ones else 1)
        return any(all(self.same(*pair, place) for pair in zip(first, second, strict=True)) for place in places)


PRIMES = 101, 103, 107, 109, 113, 127, 131, 137, 139, 149, 151, 157, 163, 167, 173, 179, 181, 191, 193, 197, 199, 211
"""Sizes at which formulas that have one value in a run are told apart."""


NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
OUTPUT_KEY = re.compile(r"[0-9]{1,9}\.[0-9]{1,9}")
"""Key of a tensor that an op made: the index of the op, and its position among the outputs."""
SOURCE_KEY = re.compile(r"(input|parameter|constant) [\w.*-]+")
"""What a letter may be that no step makes; `*` stands for each module of a list, such as experts."""


def check(trace: Trace) -> None:
    """Run every check of this file; raise ValueError at the first that fails."""
    check_counts(trace)
    formulas = Formulas(trace.symbols)
    for rule in (_symbols, _ops, _decompositions, _modules, _calls, _steps, _outputs):
        rule(trace, formulas)
    for rule in (_values, _result, _attentions, _picture, _segments, _findings):
        rule(trace)
    for name in ("params", "flops"):
        _count(getattr(trace, name), name)
        _agrees(getattr(trace, f"{name}_symbolic"), getattr(trace, name), formulas, name)


def disputed_shapes(trace: Trace) -> dict[str, str]:
    """Return the lines, by their ids, whose shape is not that of the op that made their tensor, or of the ops that
    read it, each with what differs. Sizes that are one number in this run are told apart."""
    formulas, readers = Formulas(trace.symbols), defaultdict(list)
    for op in trace.ops:
        for tensor in op.inputs:
            readers[tensor.maker].append(tensor)
    disputed = {}
    for step in trace.steps:
        if not OUTPUT_KEY.fullmatch(step.value):
            continue
        op, output = map(int, step.value.split("."))
        made = trace.ops[op].outputs[output : output + 1] if op < len(trace.ops) else ()
        read = [tensor for tensor in readers[op] if tensor.shape == step.shape]
        for tensors, what, ones in ((made, "made", False), (read, "reads", True)):
            shapes = [tensor.symbolic for tensor in tensors if tensor.symbolic is not None]
            if tensors and tensors[0].shape != step.shape:
                disputed[step.id] = f"the op that {what} it has the shape {list(tensors[0].shape)}"
            elif shapes and not any(formulas.alike(step.symbolic, shape, ones) for shape in shapes):
                disputed[step.id] = f"the op that {what} it has the shape [{', '.join(shapes[0])}]"
    return disputed


def check_counts(trace: Trace) -> None:
    """Raise ValueError for a trace of more entries than a file may have."""
    for name, most in MAX_ENTRIES.items():
        count = len(getattr(trace, name))
        _expect(count <= most, name, f"at most {most:,}, got {count:,}")


def _values(trace: Trace) -> None:
    for name, tensor in trace.values.items():
        _expect(tensor.ndim <= AXES, f"value {quote(name)}", f"at most {AXES} axes, got {tensor.ndim:,}")


def _findings(trace: Trace) -> None:
    for position, finding in enumerate(trace.diagnosis or ()):
        where = f"finding {position}"
        for op in finding.ops:
            _expect(0 <= op < len(trace.ops), where, f"ops among {len(trace.ops)}, got {op}")


def _result(trace: Trace) -> None:
    plain = not any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(trace.result))
    _expect(plain, "result", "numbers and texts, got a tensor among them")


def _symbols(trace: Trace, formulas: Formulas) -> None:
    names = [symbol.name for symbol in trace.symbols]
    _expect(len(set(names)) == len(names), "symbols", "each name once")
    for symbol in trace.symbols:
        _expect(NAME.fullmatch(symbol.name), f"symbol {quote(symbol.name)}", "letters, digits and _")
        _count(symbol.value, f"symbol {quote(symbol.name)}")
        if symbol.equals:
            _agrees(symbol.equals, symbol.value, formulas, f"symbol {quote(symbol.name)}")


def _ops(trace: Trace, formulas: Formulas) -> None:
    steps = {step.id for step in trace.steps}
    for position, op in enumerate(trace.ops):
        where = f"op {position}"
        _expect(op.index == position, where, f"index {position}, got {op.index}")
        _expect(op.module.count(".") < MAX_DEPTH, where, f"a module at most {MAX_DEPTH} deep")
        _tensors((*op.inputs, *op.outputs), len(trace.ops), "ops", formulas, where)
        if op.step is not None and op.step not in steps:
            _expect(False, where, f"a step of this trace, got {quote(op.step)}")
        for name in ("call", "params"):
            _count(getattr(op, name), f"{where}.{name}")
        _count(op.flops or 0, f"{where}.flops")
        _agrees(op.params_symbolic, op.params, formulas, f"{where}.params")
        _agrees(op.flops_symbolic, op.flops, formulas, f"{where}.flops")
        _source(op.source, where)


def _decompositions(trace: Trace, formulas: Formulas) -> None:
    opened = [decomposition.op for decomposition in trace.decompositions]
    _expect(opened == sorted(set(opened)), "decompositions", "each op at most once, in order")
    for opened in trace.decompositions:
        where = f"decomposition of op {opened.op}"
        _expect(0 <= opened.op < len(trace.ops), where, f"an op among {len(trace.ops)}")
        _expect(opened.error is None or not opened.error < 0, where, "an error that is not negative")
        for primitive in opened.primitives:
            tensors = (*primitive.inputs, *primitive.outputs)
            _tensors(tensors, len(opened.primitives), "primitives", formulas, where)


def _modules(trace: Trace, formulas: Formulas) -> None:
    for position, module in enumerate(trace.modules):
        where = f"module {position}"
        _expect(module.path.count(".") < MAX_DEPTH, where, f"a path at most {MAX_DEPTH} deep")
        _expect(module.around is None or 0 <= module.around < position, where, "a module call around it before it")
        _beneath(trace, module, (*module.inputs, *module.outputs), formulas, where)
        if module.around is not None:
            around = trace.modules[module.around]
            _expect(around.first <= module.first and module.last <= around.last, where, "ops of the module around it")
        for name in ("params", "flops"):
            _count(getattr(module, name), f"{where}.{name}")


def _calls(trace: Trace, formulas: Formulas) -> None:
    for position, call in enumerate(trace.calls):
        where = f"call {position}"
        tensors = [tensor for argument in call.arguments for tensor in argument.tensors]
        _beneath(trace, call, (*tensors, *call.outputs), formulas, where)


def _beneath(trace: Trace, record: ModuleRecord | CallRecord, tensors, formulas: Formulas, where: str) -> None:
    """Check a call of either kind: its ops exist, and so do the producers of its tensors."""
    _count(record.call, f"{where}.call")
    _expect(0 <= record.first <= record.last <= len(trace.ops), where, f"ops among {len(trace.ops)}, in order")
    _tensors(tensors, len(trace.ops), "ops", formulas, where)


def _tensors(tensors: Iterable[TensorRecord], count: int, kind: str, formulas: Formulas, where: str) -> None:
    """Check the shapes of tensors, and that their makers are among that many ops of a kind."""
    for tensor in tensors:
        _shape(tensor.shape, tensor.symbolic, formulas, where)
        if isinstance(tensor.maker, int):
            _expect(0 <= tensor.maker < count, where, f"a maker among {count} {kind}")


def _steps(trace: Trace, formulas: Formulas) -> None:
    ids = [step.id for step in trace.steps]
    _expect(len(set(ids)) == len(ids), "steps", "each id once")
    most = max(Counter(step.layer for step in trace.steps).values(), default=0)
    _expect(most <= IN_A_PART, "steps", f"at most {IN_A_PART} of one block or outside all, got {most:,}")
    earlier: set[str] = set()
    for step in trace.steps:
        where = f"step {quote(step.id)}"
        earlier.add(step.id)
        for key in step.reads:
            known = key in earlier or SOURCE_KEY.fullmatch(key)
            _expect(known, where, f"to read no later line, got {quote(key)}")
        _shape(step.shape, step.symbolic, formulas, where)
        _expect(all(0 <= op < len(trace.ops) for op in step.ops), where, f"indices of {len(trace.ops)} ops")
        _expect(len(set(step.ops)) == len(step.ops), where, "each op once")
        tensor = trace.values.get(step.value)
        _expect(tensor is None or tuple(tensor.shape) == step.shape, where, "a kept tensor of its shape")
        _expect(step.layer is None or step.layer >= 0, where, "a layer that counts from 0")
        _expect(not step.pending, where, "a proof that is not still to come")
        _expect(step.inside is None or 0 <= step.inside < len(trace.ops), where, f"an op among {len(trace.ops)}")
        _expect(step.error is None or not step.error < 0, where, "an error that is not negative")
        _expect(step.margin is None or not step.margin < 0, where, "a margin that is not negative")
        mathematics(step.symbol, where)
        mathematics(step.latex, where)
        for name in step.names:
            mathematics(name.symbol, where)
            _expect(SOURCE_KEY.fullmatch(name.of), where, "names of inputs, parameters and constants")
        _source(step.source, where)
        for operand in step.product or ():
            _expect(min(operand.shape) > 0, where, "factors of at least 1 × 1")
            _shape(operand.shape, operand.symbolic, formulas, where)
            mathematics(operand.symbol, where)


def _outputs(trace: Trace, formulas: Formulas) -> None:
    shapes = {step.id: step.shape for step in trace.steps}
    for number, tensor in enumerate(trace.returned):
        where = f"returned tensor {number}"
        _shape(tensor.shape, None, formulas, where)
        _expect(not tensor.step or tensor.step in shapes, where, f"a step of this trace, got {quote(tensor.step)}")
        _expect(not tensor.step or shapes[tensor.step] == tensor.shape, where, "the shape of its step")
        _expect(not tensor.of or SOURCE_KEY.fullmatch(tensor.of), where, "the name of an input, parameter or constant")


def _attentions(trace: Trace) -> None:
    before = Counter()
    for number, record in enumerate(trace.attentions):
        where = f"attention {number}"
        _expect(0 <= record.op < len(trace.ops), where, f"an op among {len(trace.ops)}")
        for name in ("layer", "heads", "queries", "keys"):
            _count(getattr(record, name), f"{where}.{name}")
        if not record.problem:
            _recoverable(trace, record, before[record.part], where)
        before[record.part] += 1


def _require_value(trace: Trace, key: str, where: str, expected: str) -> torch.Tensor:
    """Return a kept tensor; raise ValueError if it is missing."""
    _expect(key in trace.values, where, expected)
    return trace.values[key]


def _recoverable(trace: Trace, record: AttentionRecord, layer: int, where: str) -> None:
    """Check that the kept tensors give weights of the recorded sizes, on one query."""
    if record.scores:
        _changed_scores(trace, record, where)
    else:
        _queries_and_keys(trace, record, where)
    try:
        row = weights(trace, layer, query=0, part=record.part)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise ValueError(f"{where}: its weights can't be recomputed ({error})") from error
    fits = row.ndim == 3 and row.shape[-2:] == (record.heads, record.keys)
    _expect(fits, where, f"weights of {record.heads} heads over {record.keys} keys")


def _changed_scores(trace: Trace, record: AttentionRecord, where: str) -> None:
    """Check the scores and the weights of a changed attention, which do not follow from queries and keys."""
    for key, name in ((record.scores, "scores"), (record.weights, "weights")):
        value = _require_value(trace, key, where, f"kept {name}")
        fits = value.ndim == 4 and value.shape[1:] == (record.heads, record.queries, record.keys)
        fits = fits and value.numel() > 0 and value.is_floating_point()
        _expect(fits, where, f"{name} of {record.heads} heads, {record.queries} queries and {record.keys} keys")
    _expect(not record.chain, where, "no chain beside changed scores")


def _queries_and_keys(trace: Trace, record: AttentionRecord, where: str) -> None:
    """Check the queries, the keys and the chain of an attention, and its changed weights."""
    q, k = (_require_value(trace, key, where, "kept queries and keys") for key in (record.q, record.k))
    fits = q.ndim == k.ndim and q.ndim >= 3 and q.is_floating_point() and k.is_floating_point()
    fits = fits and q.shape[-2:] == (record.queries, k.shape[-1]) and k.shape[-2] == record.keys
    fits = fits and q.numel() > 0 and k.numel() > 0
    _expect(fits, where, f"queries and keys of {record.queries} and {record.keys} vectors of one width")
    heads = q.ndim == 3 or q.shape[-3] % k.shape[-3] == 0
    _expect(heads and q.shape[:-3] == k.shape[:-3], where, "as many keys as queries, but for heads that share theirs")
    _expect(q.ndim > 3 or q.shape[0] % max(record.heads, 1) == 0, where, f"a multiple of {record.heads} heads")
    row = max(q.shape[:-2].numel(), k.shape[:-2].numel()) * record.keys
    _expect(row <= CELLS, where, f"at most {CELLS:,} weights of one query, got {row:,}")
    _expect(len(record.chain) <= LINKS, where, f"a chain of at most {LINKS} links, got {len(record.chain):,}")
    scores = q.shape[:-2].numel() * record.queries * record.keys
    if record.weights:
        changed = _require_value(trace, record.weights, where, "kept weights")
        _expect(changed.shape == (*q.shape[:-1], record.keys), where, "weights of these queries and keys")
    for _, arguments in record.chain:
        others = [trace.values[item] for item in arguments if isinstance(item, str) and item in trace.values]
        _expect(all(tensor.numel() <= scores for tensor in others), where, "a mask no larger than the scores")


def _picture(trace: Trace) -> None:
    picture = trace.picture
    if picture is None:
        return
    pixels = _require_value(trace, picture.value, "picture", "kept pixels of 8 bits")
    _expect(pixels.dtype == torch.uint8, "picture", "kept pixels of 8 bits")
    _expect(pixels.ndim == 3 and pixels.shape[-1] == 3 and pixels.numel() > 0, "picture", "pixels [H, W, 3]")
    left, top, right, bottom = picture.crop
    high, wide = pixels.shape[:2]
    inside = all(map(isfinite, picture.crop)) and 0 <= left < right <= wide and 0 <= top < bottom <= high
    _expect(inside, "picture", f"a crop (left, top, right, bottom) of {wide} × {high} pixels")
    rows, columns = picture.rows, picture.columns
    _expect(rows > 0 and columns > 0 and picture.first >= 0, "picture", "a grid of patches")
    _expect(rows * columns <= PATCHES, "picture", f"at most {PATCHES:,} patches, got {rows:,} × {columns:,}")
    sizes = {symbol.name: symbol.value for symbol in trace.symbols}
    H, W = sizes.get("H", rows), sizes.get("W", columns)
    _expect(rows <= H and columns <= W, "picture", f"patches of at least one of {H:,} × {W:,} pixels")
    _expect(H * W <= MODEL_PIXELS, "picture", f"at most {MODEL_PIXELS:,} pixels of the input, got {H:,} × {W:,}")
    longest = max((record.keys for record in trace.attentions), default=None)
    some_alone = trace.segments and all(segment.name != "image" for segment in trace.segments)
    if longest is not None and not some_alone:
        _expect(picture.first + picture.rows * picture.columns <= longest, "picture", f"patches among {longest} tokens")


def _segments(trace: Trace) -> None:
    patches = trace.picture.rows * trace.picture.columns if trace.picture else 0
    longest = max((max(record.queries, record.keys) for record in trace.attentions), default=None)
    for segment in trace.segments:
        where, places = f"segment {quote(segment.name)}", segment.places
        _expect(0 <= segment.start <= segment.stop, where, "0 ≤ start ≤ stop")
        _expect(longest is None or segment.stop <= longest, where, f"tokens among {longest}")
        if places:
            _expect(len(places) == segment.stop - segment.start, where, "a place for each token")
            _expect(all(0 <= place < patches for place in places), where, f"places among {patches} patches")
            _expect(len(set(places)) == len(places), where, "each place once")


def _shape(shape: tuple[int, ...], symbolic: tuple[str, ...] | None, formulas: Formulas, where: str) -> None:
    _expect(len(shape) <= AXES, where, f"at most {AXES} axes, got {len(shape):,}")
    _expect(all(size >= 0 for size in shape), where, "sizes that are not negative")
    if symbolic is not None:
        _expect(len(symbolic) == len(shape), where, f"{len(shape)} symbolic sizes, got {len(symbolic)}")
        for text, size in zip(symbolic, shape, strict=True):
            _agrees(text, size, formulas, where)


def _agrees(text: str, number: int | None, formulas: Formulas, where: str) -> None:
    """Check that a formula is over the trace's own symbols, and has the number beside it as its value."""
    if text != UNKNOWN:
        size = formulas.value(text)
        if size != number:
            _expect(False, where, f"{quote(text)} to be {number}, got {quote(size)}")


def _source(source, where: str) -> None:
    if source is not None:
        _count(source.line, f"{where}.source")


def _count(value: int, where: str) -> None:
    _expect(value >= 0, where, "a number that is not negative")


def _expect(holds, where: str, what: str) -> None:
    if not holds:
        raise ValueError(f"{where}: expected {what}")
