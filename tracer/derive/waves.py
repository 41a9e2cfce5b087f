"""Sines and cosines of places, in turn (Vaswani et al. 2017, section 3.5), where a run makes them of nothing."""

from __future__ import annotations

from tracer.derive.composed import Flow, Made, replaced
from tracer.derive.kinds import LAYOUT, SAME, base
from tracer.recorder.calls import Call, Calls, Ref

FUNC = Made("sinusoids", ())
BASE = 10000
MADE_OF = frozenset(("arange", "div", "pow", "sin", "cos", "stack"))


def waves(made: list[Call], calls: Calls) -> list[Call]:
    """The calls of a run with each table of sines and cosines, `[T, D]`, as one."""
    if not any(base(call.name) == "stack" for call in made):
        return made
    flow, groups = Flow(made, calls), []
    for index, call in enumerate(made):
        flat = _only_taker(flow, index) if base(call.name) == "stack" and _is_table(flow, call) else None
        if flat is None or made[flat].outputs[0].shape != (call.outputs[0].shape[0], 2 * call.outputs[0].shape[1]):
            continue
        group = flow.only_in({index, flat}, lambda one: base(one.name) in MADE_OF or base(one.name) in LAYOUT | SAME)
        parts = tuple(made[number] for number in sorted(group))
        last, outputs = made[max(group)], made[flat].outputs
        groups.append((group, last._replace(func=FUNC, name="sinusoids", arguments={}, outputs=outputs, inner=parts)))
    return replaced(made, groups) if groups else made


def _only_taker(flow: Flow, index: int) -> int | None:
    """The call that alone takes what a call made."""
    takers = flow.takers.get(flow.calls[index].outputs[0].key, [])
    return takers[0] if len(takers) == 1 else None


def _is_table(flow: Flow, stack: Call) -> bool:
    """Whether a stack along a new last axis is of the sine and the cosine of one value, `i / 10000^(2k/D)`."""
    given, rank = stack.arguments["tensors"], len(stack.outputs[0].shape)
    if rank != 3 or stack.arguments.get("dim", 0) % rank != 2 or len(given) != 2:
        return False
    sine, cosine = (flow.made(ref.key) for ref in given)
    if sine is None or cosine is None or (base(sine.name), base(cosine.name)) != ("sin", "cos"):
        return False
    angle, other = sine.arguments["self"], cosine.arguments["self"]
    ratio = flow.made(angle.key)
    if angle.key != other.key or ratio is None or base(ratio.name) != "div":
        return False
    places, rates = ratio.arguments["self"], ratio.arguments["other"]
    return _column(flow, places) and isinstance(rates, Ref) and _rates(flow, rates, 2 * angle.shape[1])


def _column(flow: Flow, places: Ref) -> bool:
    """0, 1, … below each other."""
    counted = _source(flow, places)
    return places.shape[1:] == (1,) and counted is not None and _counts(counted, places.shape[0], 1)


def _rates(flow: Flow, rates: Ref, width: int) -> bool:
    """10000 to the powers 0, 2/D, 4/D …"""
    power = flow.made(rates.key)
    if power is None or base(power.name) != "pow" or power.arguments["self"] != BASE:
        return False
    share = flow.made(power.arguments["exponent"].key)
    if share is None or base(share.name) != "div" or share.arguments["other"] != width:
        return False
    counted = _source(flow, share.arguments["self"])
    return counted is not None and _counts(counted, width, 2)


def _source(flow: Flow, value: Ref) -> Call | None:
    """The call at the start of a chain of layouts."""
    call = flow.made(value.key)
    while call is not None and base(call.name) in LAYOUT | SAME:
        call = flow.made(flow.inputs[flow.maker[call.outputs[0].key]][0].key)
    return call


def _counts(call: Call, end: int, step: int) -> bool:
    given = call.arguments
    return base(call.name) == "arange" and (given.get("start", 0), given["end"], given.get("step", 1)) == (0, end, step)
