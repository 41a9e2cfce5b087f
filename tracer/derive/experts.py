"""Mixtures of experts in a run, however they were computed: by groups of sorted tokens, by a batch of chosen weights,
or by a loop over experts (Shazeer et al. 2017; Jiang et al. 2024).

What chooses is a top-k; all that is made of its numbers, up to the one value through which the rest of the run has any
of it, is the mixture. What one expert does is read off the products and what lies between; the proof is of the sum.
"""

from __future__ import annotations

from math import prod

from tracer.derive.composed import Flow, Made, replaced
from tracer.derive.expert import Applied, Columns, Part, Product, Token, alike
from tracer.derive.kinds import BENDS, MAPS, ONES, PRODUCTS, RESHAPES, SAME, TURNS, base, takes_shape
from tracer.derive.layouts import factor, index_map
from tracer.derive.listed import Listed, listed
from tracer.derive.words import known
from tracer.recorder.calls import Call, Calls, Ref

CHOOSES = frozenset(("topk",))
MULTIPLIES = PRODUCTS | MAPS | {"_grouped_mm"}
FLAT = RESHAPES | SAME
"""Calls after which rows are the same rows, where the last axis stays."""
MOVES = FLAT | ONES | TURNS | {"index", "select", "index_select", "repeat_interleave", "expand"}
"""Calls that choose, or lay out anew."""
FEWEST = 2
"""How many products an expert has at least."""
FUNC = Made("experts", ("x", "gates", "chosen", "weights", "body", "members"))
LARGEST = 4000
"""Calls of a mixture at most."""


class Unclear(Exception):
    """The calls are no mixture that is known."""


def mixed(made: list[Call], calls: Calls) -> list[Call]:
    """The calls of a run with each mixture of experts as one."""
    if not any(base(call.name) in CHOOSES for call in made):
        return made
    flow, groups, taken = Flow(made, calls), [], set()
    for index in range(len(made) - 1, -1, -1):
        if flow.name(index) in CHOOSES and len(made[index].outputs) == 2 and index not in taken:
            try:
                group, call = _Mixture(flow, index).call()
            except Unclear:
                continue
            if not group & taken:
                groups.append((group, call))
                taken |= group
    return replaced(made, groups) if groups else made


def _tensor(value) -> bool:
    """Whether an argument is a tensor, or has some."""
    return isinstance(value, Ref) or (isinstance(value, tuple) and any(map(_tensor, value)))


class _Mixture:
    """The mixture whose experts a top-k chose."""

    def __init__(self, flow: Flow, index: int):
        self.flow, self.topk = flow, index
        self.chosen = flow.calls[index].outputs[1]
        if len(self.chosen.shape) != 2:
            raise Unclear
        scores = next(ref for ref in flow.inputs[index])
        self.count = scores.shape[-1]
        self.weights: list[Ref] = []
        self.turned: dict[str, bool] = {}
        self.members: dict[str, str] = {}
        self.stacked: set[str] = set()

    def call(self) -> tuple[set[int], Call]:
        """The calls of the mixture, and the one in their place."""
        region, result = self._region()
        products = [index for index in sorted(region) if self.flow.name(index) in MULTIPLIES]
        whole = self.flow.only_in(region, self._helps)
        if len(products) < FEWEST:
            raise Unclear
        self.token = self._token(products[0], whole)
        lasts = self._lasts(products)
        body = self._body(lasts[0])
        if not all(alike(body, self._body(last)) for last in lasts[1:]):
            raise Unclear
        gates = self._gates(whole)
        result, whole = self._laid_back(result, whole)
        if not isinstance(body, Product) or len(self.weights) < FEWEST:
            raise Unclear
        call = self.flow.calls[max(region)]
        x = self._whole_token(result)
        arguments = {"x": x, "gates": gates, "chosen": self.chosen, "weights": tuple(self.weights), "body": body}
        arguments["members"] = tuple(self.members.get(one.key, one.key) for one in self.weights)
        ops = [self.flow.calls[index] for index in sorted(whole)]
        made = Call(FUNC, "experts", arguments, (result,), call.module, call.call, call.first, call.last, tuple(ops))
        return whole, made

    def _region(self) -> tuple[set[int], Ref]:
        """The calls that take what was made of the numbers of experts, up to the one value that leaves."""
        flow, region = self.flow, set()
        last_use = {key: takers[-1] for key, takers in flow.takers.items()}
        open_values = {self.chosen.key}
        for index in range(self.topk + 1, min(len(flow.calls), self.topk + LARGEST)):
            call = flow.calls[index]
            if not any(ref.key in open_values for ref in flow.inputs[index]):
                continue
            if self._routes(call):
                continue
            region.add(index)
            open_values |= {ref.key for ref in call.outputs}
            still = {
                key
                for key in open_values
                if key != self.chosen.key and (last_use.get(key, -1) > index or key in flow.outputs)
            }
            products = sum(flow.name(one) in MULTIPLIES for one in region)
            if products >= FEWEST and len(still) == 1 and still <= {ref.key for ref in call.outputs}:
                result = flow.ref[still.pop()]
                whole = prod(result.shape[:-1]) == self.chosen.shape[0] and result.dtype.is_floating_point
                if whole and last_use.get(self.chosen.key, -1) <= index:
                    return region, result
        raise Unclear

    def _routes(self, call: Call) -> bool:
        """Whether a call makes shares of the chosen experts, which stand before the mixture."""
        return bool(call.outputs) and all(
            ref.shape == self.chosen.shape and ref.dtype.is_floating_point for ref in call.outputs
        )

    @staticmethod
    def _helps(call: Call) -> bool:
        """Whether a call only lays out anew, or makes numbers that nothing was given for."""
        name = base(call.name)
        return name in FLAT | ONES | TURNS or takes_shape(name) or not any(map(_tensor, call.arguments.values()))

    def _lasts(self, products: list[int]) -> list[str]:
        """The values that experts give: of the last product of all, or of each where they are modules of a list."""
        last = {}
        for index in products:
            call = self.flow.calls[index]
            weight = self._weight([ref for ref in self.flow.inputs[index] if ref.dtype.is_floating_point])
            one = weight and self._of_each(self._up(weight.key)[-1])
            last[one and one.number] = call.outputs[0].key
        return list(last.values())

    def _up(self, key: str) -> list[str]:
        """The values from a chosen row or part up to what it was chosen of."""
        found = [key]
        while (call := self.flow.made(found[-1])) is not None and len(found) < 40:
            name = base(call.name)
            moves = name in MOVES and (name != "index" or self._by_numbers(call))
            if not moves:
                break
            first = next((ref for ref in self.flow.inputs[self.flow.maker[found[-1]]]), None)
            if first is None:
                break
            found.append(first.key)
        return found

    @staticmethod
    def _by_numbers(call: Call) -> bool:
        given = (one for one in call.arguments.get("indices", ()) if isinstance(one, Ref))
        return not any(one.dtype.is_floating_point for one in given)

    def _token(self, product: int, whole: set[int]) -> str:
        """The value whose rows experts are given."""
        for ref in self.flow.inputs[product]:
            self.ups = self._up(ref.key)
            top = self.ups[-1]
            maker = self.flow.maker.get(top)
            outside = maker is None or maker not in whole
            if outside and not top.startswith("parameter ") and ref.dtype.is_floating_point:
                return top
        raise Unclear

    def _whole_token(self, result: Ref) -> Ref:
        """The tokens, of the shape of what the mixture gives but for the last axis; else a row for each."""
        rows = self.chosen.shape[0]
        for key in self.ups:
            shape = self.flow.shape[key]
            if shape[:-1] == result.shape[:-1] and prod(shape[:-1]) == rows:
                return self.flow.ref[key]
        raise Unclear

    def _body(self, key: str, depth: int = 0):
        """What became of a token up to a value: a tree of what is known here."""
        if depth > 40:
            raise Unclear
        flow, call = self.flow, self.flow.made(key)
        tops = self._up(key)
        if self.token in tops:
            return Token()
        if call is None:
            raise Unclear
        name, given = base(call.name), flow.inputs[flow.maker[key]]
        if name in MULTIPLIES:
            return self._product(call, given, depth)
        if name == "select" and prod(call.outputs[0].shape) == prod(given[0].shape):
            return self._body(given[0].key, depth + 1)
        if name in ("chunk", "split", "split_with_sizes", "slice", "narrow", "unbind", "select"):
            return self._columns(call, key, depth)
        if name in FLAT | ONES:
            return self._body(given[0].key, depth + 1)
        if name == "add" and len(given) == 2 and (bias := self._bias(given[1])) is not None:
            inner = self._body(given[0].key, depth + 1)
            if isinstance(inner, Product) and inner.bias is None:
                return Product(inner.left, inner.weight, bias)
        if not known(name) or name not in BENDS:
            raise Unclear
        arguments = {
            one: self._body(value.key, depth + 1) if isinstance(value, Ref) else value
            for one, value in call.arguments.items()
        }
        return Applied(call, arguments)

    def _bias(self, ref: Ref) -> Part | None:
        top = self._up(ref.key)[-1]
        shape = self.flow.shape[top]
        if not top.startswith("parameter "):
            return None
        if len(shape) == 2 and shape[0] == self.count:
            self.stacked.add(top)
        return self._part(top) if top in self.stacked or (len(shape) == 1 and self._of_each(top)) else None

    def _of_each(self, key: str) -> Listed | None:
        """What a matrix, or a vector, is a part of where experts are modules of a list."""
        shape = self.flow.shape[key]
        return listed(self.flow, key, self.count) if len(shape) < 3 and key not in self.stacked else None

    def _weight(self, operands: list[Ref]) -> Ref | None:
        """The operand of a product that is a parameter."""
        return next((ref for ref in operands if self._up(ref.key)[-1].startswith("parameter ")), None)

    def _part(self, key: str, turned: bool = False) -> Part:
        shape, dtype = self.flow.shape[key], self.flow.ref[key].dtype
        if (one := self._of_each(key)) is not None:
            self.members.setdefault(one.key, key)
            key, shape = one.key, (self.count, *shape)
        if key not in self.turned:
            self.turned[key] = turned
            self.weights.append(Ref(key, shape, dtype))
        if self.turned[key] != turned:
            raise Unclear
        return Part([ref.key for ref in self.weights].index(key), turned)

    def _product(self, call: Call, given, depth: int) -> Product:
        operands = [ref for ref in given if ref.dtype.is_floating_point]
        weight = self._weight(operands)
        left = next((ref for ref in operands if ref is not weight), None)
        if weight is None or left is None or base(call.name) in ("einsum", "baddbmm", "addmm"):
            raise Unclear
        ups = self._up(weight.key)
        shape = self.flow.shape[ups[-1]]
        single = len(shape) == 2 and self._of_each(ups[-1])
        if not single and (len(shape) != 3 or shape[0] != self.count):
            raise Unclear
        turned = base(call.name) == "linear" or (operands[0] is weight and base(call.name) in ("bmm", "matmul"))
        turns = sum(base(one.name) in TURNS for key in ups[:-1] if (one := self.flow.made(key)) is not None)
        inner = self._body(left.key, depth + 1)  # weights are numbered in the order in which they are taken
        part = self._part(ups[-1], turned != bool(turns % 2))
        bias = None
        if base(call.name) == "linear" and isinstance(call.arguments.get("bias"), Ref):
            bias = self._bias(call.arguments["bias"])
            if bias is None:
                raise Unclear
        return Product(inner, part, bias)

    def _columns(self, call: Call, key: str, depth: int):
        """A range of the last axis."""
        position = next(i for i, ref in enumerate(call.outputs) if ref.key == key)
        given = next(iter(call.arguments.values()))
        pattern = factor(index_map(given.shape, [(call, position)]), given.shape)
        if pattern is None or any(pattern.picked[:-1]) or len(call.outputs[position].shape) != len(given.shape):
            raise Unclear
        inner = self._body(given.key, depth + 1)
        return Columns(inner, *pattern.picked[-1]) if pattern.picked[-1] else inner

    def _gates(self, whole: set[int]) -> Ref:
        """The shares of the chosen experts: what the mixture takes besides tokens, numbers and weights."""
        found = {}
        for index in sorted(whole):
            for ref in self.flow.inputs[index]:
                maker = self.flow.maker.get(ref.key)
                inside = maker is not None and maker in whole
                if ref.dtype.is_floating_point and not inside and ref.shape == self.chosen.shape:
                    found[ref.key] = ref
        if len(found) != 1:
            raise Unclear
        return next(iter(found.values()))

    def _laid_back(self, result: Ref, whole: set[int]) -> tuple[Ref, set[int]]:
        """The result with the axes that it has from then on, where it is only laid out anew."""
        while True:
            takers = self.flow.takers.get(result.key, [])
            if len(takers) != 1 or result.key in self.flow.outputs or self.flow.name(takers[0]) not in FLAT:
                return result, whole
            call = self.flow.calls[takers[0]]
            if call.outputs[0].shape[-1] != result.shape[-1]:
                return result, whole
            result, whole = call.outputs[0], whole | {takers[0]}
