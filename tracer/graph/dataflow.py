"""Dataflow graph of a run: the producer and the users of each value."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cached_property
from itertools import chain
from math import prod
from types import SimpleNamespace
from typing import NamedTuple

import torch

from tracer.capture.calls import Call, CallLog, Ref, refs
from tracer.ops import ATTENTION
from tracer.symbols.axes import parse_einsum
from tracer.utils.torch_internals import function_schema, split_arguments


def loses_precision(before: torch.dtype, after: torch.dtype) -> bool:
    """Return whether a cast to 16 bits loses precision or range.

    A cast from float64 to float32 does not count: it rounds no more than the ops around it.
    """
    if not before.is_floating_point or after not in (torch.float16, torch.bfloat16):
        return False
    source, room = torch.finfo(before), torch.finfo(after)
    return room.eps > source.eps or room.max < source.max


NARROW = frozenset((torch.int8, torch.uint8, torch.int16, torch.uint16))
"""Dtypes of whole numbers in so few bits that common counts and sums wrap."""


def holds(wide: torch.dtype, dtype: torch.dtype) -> bool:
    """Return whether a dtype of whole numbers has all those of another; any that is not narrow counts as wide enough
    for whole numbers."""
    if dtype == torch.bool:
        return True
    if dtype.is_floating_point or dtype.is_complex:
        return False
    ours, theirs = torch.iinfo(wide), torch.iinfo(dtype)
    return wide not in NARROW or (ours.min <= theirs.min and theirs.max <= ours.max)


def einsum_letters(call: Call) -> tuple[list[str], str]:
    """Return the letters of the axes of each operand and of the result of an `einsum`."""
    return parse_einsum(call.arguments["equation"], [len(ref.shape) for ref in call.arguments["tensors"]])


class Graph:
    """Dataflow graph of a run: its calls in order, and the producer and the users of each value.

    Calls are identified by their indices, values by the keys of their `Ref`s. A pass returns a rewritten copy
    (`replace`). Derived properties, such as liveness, are computed on first use.
    """

    def __init__(self, calls: Iterable[Call], run: CallLog, varying: frozenset[int] = frozenset()):
        self.calls, self.run, self.varying = tuple(calls), run, varying
        self.placeholders, self.outputs, self.modules = run.inputs, run.outputs, run.modules
        self.returned = frozenset(ref.key for ref in run.outputs)
        self.inputs = [tuple(dict.fromkeys(refs(call.arguments))) for call in self.calls]
        self.producer: dict[str, int] = {}
        self.users: dict[str, list[int]] = {}
        self.ref: dict[str, Ref] = {ref.key: ref for ref in run.inputs}
        for index, call in enumerate(self.calls):
            taken = {ref.key for ref in self.inputs[index]}
            for ref in self.inputs[index]:
                self.users.setdefault(ref.key, []).append(index)
                self.ref.setdefault(ref.key, ref)
            for ref in call.outputs:
                if ref.key not in taken:
                    self.producer.setdefault(ref.key, index)
                    self.ref[ref.key] = ref

    @classmethod
    def of(cls, run: CallLog, known: Callable[[str], bool], varying: frozenset[int] = frozenset()) -> Graph:
        """Return the graph of a run. Calls without a lowering of their own are replaced by their inner calls.

        `varying` are the ops that pad by other numbers at other sizes: none of them is an identity, even if it adds
        nothing in this run.
        """
        taken = {ref.key for call in run.entries for ref in refs(call.arguments)}
        return cls(cls._expand(run.entries, known, taken), run, varying)

    def replace(self, groups: Iterable[tuple[set[int], list[Call]]]) -> Graph:
        """Return the graph with each group of calls replaced by other calls, at the position of the group's last
        call."""
        groups = list(groups)
        if not groups:
            return self
        there: dict[int, list[Call]] = {index: [] for group, _ in groups for index in group}
        there |= {max(group): calls for group, calls in groups}
        calls = chain.from_iterable(there.get(index, [call]) for index, call in enumerate(self.calls))
        return Graph(calls, self.run, self.varying)

    @cached_property
    def names(self) -> frozenset[str]:
        """Canonical op names of all calls."""
        return frozenset(call.op.name for call in self.calls)

    def name(self, index: int) -> str:
        """Return the canonical op name of a call."""
        return self.calls[index].op.name

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all values, including parameters that the run did not use."""
        return self.run.weights | {key: ref.shape for key, ref in self.ref.items()}

    def with_exclusive_producers(self, region: set[int], may: Callable[[Call], bool]) -> set[int]:
        """Return these calls and their producers that satisfy `may` and whose values are used nowhere else."""
        region_calls, waiting = set(region), list(region)
        while waiting:
            for ref in self.inputs[waiting.pop()]:
                index = self.producer.get(ref.key)
                if index is None or index in region_calls or ref.key in self.returned or not may(self.calls[index]):
                    continue
                outputs = self.calls[index].outputs
                if all(region_calls.issuperset(self.users.get(value.key, ())) for value in outputs):
                    region_calls.add(index)
                    waiting.append(index)
        return region_calls

    @cached_property
    def kind(self) -> list[str]:
        """Kind of each call: "layout", "same" (an identity) or "compute"."""
        return [self._kind(call, inputs) for call, inputs in zip(self.calls, self.inputs, strict=True)]

    @cached_property
    def instance(self) -> dict[tuple[str, int], tuple[int, int]]:
        """For each module call, its index and the number of its child calls."""
        around = Counter(module.around for module in self.modules)
        return {(module.path, module.call): (number, around[number]) for number, module in enumerate(self.modules)}

    @staticmethod
    def _expand(call_record, known, taken: set[str]) -> Iterator[Call]:
        for call in call_record:
            returned = {ref.key for ref in call.outputs} & {ref.key for ref in refs(call.arguments)}
            if returned and (call.name.endswith("_") or not call.inner):
                continue  # it gave what it was given
            saved = [inner_call for inner_call in call.inner if Graph._escapes(inner_call, call, taken)]
            if saved:  # a gradient that is computed in forward takes what was computed inside of this call
                inside = {ref.key for inner_call in call.inner for ref in inner_call.outputs} - {
                    ref.key for ref in call.outputs
                }
                apart = not any(ref.key in inside for inner_call in saved for ref in refs(inner_call.arguments))
                yield from (call, *saved) if apart else Graph._expand(call.inner, known, taken)
            elif call.inner and not (
                known(call.op.name) or call.op.traits & {"layout", "identity"} or call.op.name == ATTENTION
            ):
                yield from Graph._expand(call.inner, known, taken)
            else:
                yield call

    @staticmethod
    def _escapes(inner: Call, call: Call, taken: set[str]) -> bool:
        """Return whether a later call uses a value that only the inside of an earlier call computed."""
        return not taken.isdisjoint(ref.key for ref in inner.outputs if ref not in call.outputs)

    def _kind(self, call: Call, inputs) -> str:
        if call.name == "overwrite" or not inputs or not call.outputs:
            return "compute"
        before, after, op = inputs[0], call.outputs[0], call.op
        if "concat" in op.traits:
            full = [ref for ref in inputs if 0 not in ref.shape]
            return "same" if len(full) == 1 and full[0].shape == after.shape else "compute"
        if op.name == "copy":
            before = call.arguments["src"]
        if "pad" in op.traits and not any(call.arguments.get("pad", (1,))):
            return "same" if self.varying.isdisjoint(range(call.first, call.last)) else "compute"
        if op.name == "unfold" and prod(before.shape) == prod(
            after.shape
        ):  # windows that neither overlap nor leave gaps
            return "layout"
        if not op.traits & {"identity", "layout"}:
            return "compute"
        kinds = [(ref.dtype.is_floating_point, ref.dtype.is_complex) for ref in (before, after)]
        if kinds[0] != kinds[1]:
            return "compute"
        if before.dtype != after.dtype and not after.dtype.is_floating_point:
            flags = after.dtype in (torch.bool, torch.uint8, torch.int8)
            return "compute" if flags or not holds(after.dtype, before.dtype) else "same"
        if "identity" in op.traits:
            drops = call.arguments.get("train") and call.arguments.get("p")
            return "compute" if drops else "same"
        return "layout" if op.name != "repeat_interleave" or len(inputs) == 1 else "compute"

    def computing_calls(self) -> list[int]:
        """Return the live calls that compute."""
        return [index for index, kind in enumerate(self.kind) if kind == "compute" and self.is_live(index)]

    def shape(self, key: str) -> tuple[int, ...]:
        return self.ref[key].shape

    def count(self, key: str) -> int:
        return prod(self.shape(key))

    def producing_call(self, key: str) -> Call | None:
        """Return the call that produced a value; None for inputs of the run."""
        return self.calls[self.producer[key]] if key in self.producer else None

    def call_of(self, key: str) -> Call:
        """Return the call that produced a value. Raise LookupError for inputs of the run."""
        call = self.producing_call(key)
        if call is None:
            raise LookupError(f"{key} was given to the run, so no call made it")
        return call

    def source(self, key: str) -> str | None:
        """Return the value that this one is a rearrangement of; None if it was computed or is an input."""
        index = self.producer.get(key)
        if index is None or self.kind[index] == "compute":
            return None
        call = self.calls[index]
        if call.op.name == "copy":
            return call.arguments["src"].key
        if "concat" in call.op.traits:  # all but one of what it joins is empty
            return next(ref.key for ref in self.inputs[index] if 0 not in ref.shape)
        return self.inputs[index][0].key

    def layout_source(self, key: str) -> str:
        """Return the value that this one is a rearrangement of. Raise LookupError if there is none."""
        before = self.source(key)
        if before is None:
            raise LookupError(f"{key} is not a rearrangement of another value")
        return before

    def rounding_dtype(self, key: str) -> torch.dtype | None:
        """Return the dtype of a cast that loses precision or range; None if the value is no such cast."""
        before = self.source(key)
        dtype = self.ref[key].dtype
        return dtype if before is not None and loses_precision(self.ref[before].dtype, dtype) else None

    def root(self, key: str) -> str:
        """Return the value at the start of the chain of layouts that ends with `key`."""
        while (before := self.source(key)) is not None:
            key = before
        return key

    def chain(self, key: str, start: str) -> list[str]:
        """Return the values after `start` up to `key`, along its chain of layouts."""
        steps = []
        while key != start:
            steps.append(key)
            key = self.layout_source(key)
        return steps[::-1]

    @cached_property
    def depends(self) -> dict[str, str]:
        """Dependence of each value: "x" on inputs, "p" on parameters alone, "c" on nothing."""
        depends: dict[str, str] = {}
        input_keys = {ref.key for ref in self.placeholders}
        for key in self.ref:
            if key not in self.producer:
                depends[key] = "x" if key in input_keys else "p" if key.startswith("parameter ") else "c"
        for index, call in enumerate(self.calls):
            of = {depends.get(ref.key, "c") for ref in self.inputs[index]}
            if call.op.takes_shape:
                of = set()
            for ref in call.outputs:
                if self.producer.get(ref.key) == index:
                    depends[ref.key] = "x" if "x" in of else "p" if "p" in of else "c"
        return depends

    @cached_property
    def live(self) -> set[str]:
        """Live values: outputs, all that leads to them, and computed values without a user."""
        live: set[str] = set()
        taken = {
            ref.key for call, inputs in zip(self.calls, self.inputs, strict=True) if call.outputs for ref in inputs
        }
        waiting = [ref.key for ref in self.outputs]
        for index in range(len(self.calls)):
            own = self._results(index)
            if self.kind[index] == "compute" and own and not any(key in taken for key in own):
                waiting.append(own[0])
        live.update(self.ancestors(waiting))
        for index in reversed(range(len(self.calls))):  # what is only laid out in the end, and then left
            own = self._results(index)
            if self.kind[index] == "compute" and own and self.inputs[index] and not live.intersection(own):
                live.update(self.ancestors(own[:1], known=live))
        return live

    def _results(self, index: int) -> list[str]:
        """Return the values that a call produced."""
        return [ref.key for ref in self.calls[index].outputs if self.producer.get(ref.key) == index]

    def ancestors(
        self, keys: Iterable[str], follows: Callable[[str], bool] = lambda key: True, known: Collection[str] = ()
    ) -> Iterator[str]:
        """Yield these values, and all that they were computed from, each once; only those values are followed to what
        they were computed from that `follows` allows. The `known` are left out, with all behind them."""
        visited, waiting = {*known}, [*keys]
        while waiting:
            key = waiting.pop()
            if key in visited:
                continue
            visited.add(key)
            yield key
            if key in self.producer and follows(key):
                waiting += [ref.key for ref in self.inputs[self.producer[key]]]

    def data(self, index: int) -> list[Ref]:
        """Return the operands of a call that depend on inputs of the run."""
        return [ref for ref in self.inputs[index] if self.depends[ref.key] == "x"]

    def descendants(self, key: str, until: int | None = None) -> set[str]:
        """Return this value, and all that were computed from it, by the calls up to one where that is given."""
        descendants, waiting = set[str](), [key]
        while waiting:
            if (key := waiting.pop()) not in descendants:
                descendants.add(key)
                users = (index for index in self.users.get(key, ()) if until is None or index <= until)
                waiting += [ref.key for index in users for ref in self.calls[index].outputs]
        return descendants

    def is_live(self, index: int) -> bool:
        return any(ref.key in self.live for ref in self.calls[index].outputs)

    @cached_property
    def live_users(self) -> dict[str, list[int]]:
        """Live calls that use each value."""
        users = {key: [index for index in indices if self.is_live(index)] for key, indices in self.users.items()}
        return defaultdict(list, {key: indices for key, indices in users.items() if indices})

    @cached_property
    def consumers(self) -> dict[str, list[int]]:
        """Live calls that compute with a value, directly or through layouts, by the root of these layouts."""
        consumers: dict[str, list[int]] = defaultdict(list)
        for index in self.computing_calls():
            for root in dict.fromkeys(self.root(ref.key) for ref in self.inputs[index]):
                consumers[root].append(index)
        return consumers

    def module_call(self, index: int) -> int:
        """Return the index of the module call that contains a call; -1 outside all modules."""
        call = self.calls[index]
        return self.instance.get((call.module, call.call), (-1, 0))[0]

    def child_count(self, index: int) -> int:
        """Return the number of child modules that the module of a call calls."""
        call = self.calls[index]
        return self.instance.get((call.module, call.call), (-1, 1))[1]


# Parameters of modules in a list, such as experts: those of one name are stacked into one tensor.
#
# The key of the stack has `*` for the module's index: `parameter experts.*.up.weight`.

PARAMETER_PREFIX = "parameter "


class ListParameter(NamedTuple):
    """A parameter of a module in a list: the key of the stack, and the index of the module."""

    key: str
    number: int


def list_parameter(graph: Graph, key: str, count: int) -> ListParameter | None:
    """Return the stack that a parameter belongs to; None unless exactly `count` modules have one of its name and
    shape."""
    parts = key.split(".")
    for place in reversed(range(len(parts) if key.startswith(PARAMETER_PREFIX) else 0)):
        if parts[place].isdecimal() and int(parts[place]) < count:
            others = [".".join([*parts[:place], str(number), *parts[place + 1 :]]) for number in range(count + 1)]
            if [graph.shapes.get(sibling) == graph.shapes[key] for sibling in others] == [True] * count + [False]:
                return ListParameter(".".join([*parts[:place], "*", *parts[place + 1 :]]), int(parts[place]))
    return None


# Repeated blocks and towers in the module tree.

TOWERS = {
    "encoder": "enc",
    "decoder": "dec",
    "vision": "vis",
    "visual": "vis",
    "image": "img",
    "text": "txt",
    "language": "lm",
}


class ModuleTree:
    """Block and the tower of each module.

    Blocks are modules with children whose names end in consecutive numbers. They count from 1, in the order in which
    they run. Numbered modules within a block that all differ in class are its parts, not blocks.
    """

    def __init__(self, graph: Graph):
        names = {module.path for module in graph.modules}
        parents = {around for path in names for around in _paths_around(path)}
        parents -= find_experts(graph) | find_block_parts(graph) | {path for path in parents if is_norm(path)}
        self._number: dict[str, int] = {}
        count: dict[tuple[str, str], int] = {}
        for module in graph.modules:
            around, _, own = module.path.rpartition(".")
            stem = re.sub(r"\d+$", "", own)
            if not own.isdecimal() and not _is_counter(names, module.path):
                continue
            if stem != own and module.path in parents and module.path not in self._number:
                self._number[module.path] = count[around, stem] = count.get((around, stem), 0) + 1
        self._outermost = tuple(path for path in self._number if not self._around(path))
        self._towers = self._find_towers()
        self._layers: dict[str, int] = {}
        blocks = Counter()
        for path in self._outermost:
            self._layers[path] = blocks[self.part(path)]
            blocks[self.part(path)] += 1

    def _around(self, path: str) -> list[str]:
        """Return the blocks around a module, outermost first."""
        return [around for around in _paths_around(path) if around in self._number]

    def blocks(self, path: str) -> list[str]:
        """Return the blocks that contain a module, itself included, outermost first."""
        return [*self._around(path), *([path] if path in self._number else [])]

    def numbers(self, path: str) -> str:
        """Return the numbers of these blocks: `"1"`, `"2.1"`, or "" outside all blocks."""
        return ".".join(str(self._number[block]) for block in self.blocks(path))

    def layer(self, path: str) -> int | None:
        """Return the index, from 0, of the outermost block in its tower; None outside all blocks."""
        blocks = self.blocks(path)
        return self._layers[blocks[0]] if blocks else None

    def prefix(self, path: str) -> str:
        """Return the path of the innermost block; "" outside all blocks."""
        blocks = self.blocks(path)
        return blocks[-1] if blocks else ""

    def _find_towers(self) -> dict[str, str]:
        """Return the paths of the towers and their labels; empty unless there are several."""
        around = list(dict.fromkeys(path.rpartition(".")[0] for path in self._outermost))
        if len(around) < 2:
            return {}
        towers: dict[str, str] = {}
        for path in around:
            others = [set(sibling.split(".")) for sibling in around if sibling != path]
            own = [part for part in path.split(".") if part and not all(part in sibling for sibling in others)]
            word = own[0] if own else path.rpartition(".")[2]
            mark = next((short for known, short in TOWERS.items() if known in word.lower()), word.replace("_", " "))
            if mark and mark not in towers.values():
                parts = path.split(".")
                towers[".".join(parts[: parts.index(own[0]) + 1]) if own else path] = mark
        return towers

    def part(self, path: str) -> str:
        """Return the path of the tower that contains a module; "" outside, and if there is only one."""
        return next((around for around in self._towers if f"{path}.".startswith(f"{around}.")), "")

    def tower(self, path: str) -> str:
        """Return the label of the tower that contains a module; "" outside, and if there is only one."""
        return self._towers.get(self.part(path), "")


def _paths_around(path: str) -> list[str]:
    """Return the paths of the modules that a module is in, outermost first."""
    parts = path.split(".")
    return [".".join(parts[:n]) for n in range(len(parts))]


def _is_counter(names: set[str], path: str) -> bool:
    """Return whether the number at the end of a name counts: it is 0 or 1, or has a neighbour. `dinov2` does not."""
    stem = path.rstrip("0123456789")
    number = int(path[len(stem) :] or 0)
    return number < 2 or f"{stem}{number - 1}" in names or f"{stem}{number + 1}" in names


def own_name(module: str) -> str:
    """Return a module's own name, with its parent's name if it is a number."""
    parts = module.split(".")
    return ".".join(parts[-2:]) if parts[-1].isdigit() and len(parts) > 1 else parts[-1]


def is_norm(path: str) -> bool:
    """Return whether a module is a norm, by its own name."""
    return "norm" in path.rpartition(".")[2].lower()


def find_block_parts(graph: Graph) -> set[str]:
    """Return the paths of modules numbered within a block, as `block.0.layer.0`, that do not repeat: attention, MLP."""
    kinds: dict[str, dict[str, str]] = {}
    for module in graph.modules:
        around, _, own = module.path.rpartition(".")
        if own.isdecimal() and any(part.isdecimal() for part in around.split(".")):
            kinds.setdefault(around, {})[module.path] = module.kind
    unlike = (of for of in kinds.values() if len(of) > 1 and len(set(of.values())) == len(of))
    return {path for of in unlike for path in of}


def find_experts(graph: Graph) -> set[str]:
    """Return the paths of modules that are experts in a list: parallel, not sequential."""
    stacks = {ref.key for call in graph.calls if call.name == "experts" for ref in call.arguments["weights"]}
    lists = {key.removeprefix("parameter ").partition("*")[0] for key in stacks if "*" in key}
    return {path for module in graph.modules if (path := module.path) and path.rstrip("0123456789") in lists}


# Synthetic ops for calls that replace a subgraph.


class SyntheticOp(NamedTuple):
    """A stand-in for an op: a name and argument names, for a call that no ATen op computes."""

    name: str
    arguments: tuple[str, ...]

    @property
    def schema(self) -> SimpleNamespace:
        arguments = [
            SimpleNamespace(name=name, has_default_value=lambda: False, kwarg_only=False) for name in self.arguments
        ]
        return SimpleNamespace(name=f"tracer::{self.name}", arguments=arguments)

    def __str__(self) -> str:
        return f"tracer.{self.name}.default"


# Replay of a run's calls in float64 on other numbers.

DIVIDES = frozenset("div true_divide exp log sqrt rsqrt reciprocal sin cos".split())
"""Ops whose results are fractions even for integer operands."""


class CannotReplay(ValueError):
    """Raised for a call that cannot be replayed."""


def replay(calls: Iterable[Call], inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Run calls on the values `inputs` and return all values by their keys."""
    values = dict(inputs)
    with torch.no_grad():
        for call in calls:
            results = _run_overwrite(call, values) if call.name == "overwrite" else _run_call(call, values)
            values.update(zip((ref.key for ref in call.outputs), results, strict=False))
    return values


def _draws(call: Call) -> bool:
    """Return whether a call draws random numbers: a dropout that is off, also that of attention, draws none."""
    if torch.Tag.nondeterministic_seeded not in call.func.tags:
        return False
    if "dropout_p" in call.arguments:
        return bool(call.arguments["dropout_p"])
    return "dropout" not in call.op.name or bool(call.arguments.get("train", True) and call.arguments.get("p", 1))


def _run_call(call: Call, values: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Run one call and return its results."""
    if call.func is None or _draws(call):
        raise CannotReplay(f"{call.name} is not run again")
    if call.op.takes_shape:
        values = {ref.key: torch.zeros(ref.shape, dtype=torch.float64) for ref in refs(call.arguments)} | values
    mutable = function_schema(call.func).is_mutable
    arguments = {name: _replay_argument(value, values) for name, value in call.arguments.items()}
    for name, value in arguments.items():
        if call.op.name in DIVIDES and _is_integer(value):  # they become numbers of the usual dtype otherwise
            arguments[name] = value.double()
        elif mutable and isinstance(value, torch.Tensor):
            arguments[name] = value.clone()
    positional, named = split_arguments(call.func, arguments)
    result = call.func(*positional, **named)
    results = result if isinstance(result, (tuple, list)) else (result,)
    return tuple(value.double() if value.is_floating_point() else value for value in results)


def _is_integer(value) -> bool:
    """Return whether a value is an integer tensor."""
    return isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex())


def _replay_argument(value, values: dict[str, torch.Tensor]):
    """Return an argument for the replay: tensors by their keys, float64 for every floating-point dtype."""
    if isinstance(value, Ref):
        if value.key not in values:
            raise CannotReplay(f"{value.key} is not there")
        return values[value.key]
    if isinstance(value, tuple):
        return [_replay_argument(item, values) for item in value]
    if isinstance(value, torch.dtype) and value.is_floating_point:
        return torch.float64
    if isinstance(value, torch.dtype) and value.is_complex:
        return torch.complex128
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _run_overwrite(call: Call, values: dict[str, torch.Tensor]) -> tuple[torch.Tensor]:
    """Return a tensor after a write into a part of its memory."""
    old, new, into, part = (call.arguments[name] for name in ("old", "new", "into", "part"))
    value = _replay_argument(old, values)
    memory = torch.zeros(max(into.last, part.last) + 1, dtype=value.dtype)
    memory.as_strided(into.shape, into.stride, into.offset).copy_(value)
    memory.as_strided(part.shape, part.stride, part.offset).copy_(_replay_argument(new, values))
    return (memory.as_strided(into.shape, into.stride, into.offset).clone(),)
