"""Damage on purpose: bytes, and values inside JSON, changed at random by a given generator."""

import json
from copy import deepcopy
from random import Random

RAW = {  # what `json.dumps` would never write; each stands in for a string of its name
    "raw: 900 deep": "[" * 900 + "]" * 900,
    "raw: 100,000 deep": "[" * 100_000 + "]" * 100_000,
    "raw: objects in objects": '{"tuple":[' * 400 + "]}" * 400,
    "raw: 5,000 digits": "7" * 5_000,
    "raw: 4,000 digits": "-" + "7" * 4_000,
    "raw: one key twice": '{"tensor":"q","tensor":"gone"}',
    "raw: NaN": "NaN",
    "raw: -Infinity": "-Infinity",
    "raw: 1e999": "1e999",
    "raw: half a letter": '"\\ud800"',
    "raw: many empty lists": "[" + "[]," * 20_000 + "[]]",
}
INTEGERS = (
    0,
    1,
    -1,
    2,
    3,
    5,
    7,
    12,
    100,
    255,
    4_096,
    40_000,
    65_536,
    10**6,
    2**31 - 1,
    2**31,
    2**53,
    2**63 - 1,
    -(2**63),
)
LARGE_INTEGERS = (2**63, 2**64, 10**30, 10**400)
TEXT = (
    "",
    "?",
    " ",
    "\x00",
    "\x1b[2J\n",
    "\u202enoitcnuf\u2066",
    "e" + "\u0301" * 500,
    "𝕊ﬁ\U0001f9d1\u200d\U0001f680",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "![](http://127.0.0.1:9/x.png)",
    "[x](javascript:alert(1))",
    "$\\input{/etc/passwd}$",
    "\\frac{",
    "\\mathbf{" * 50 + "}" * 50,
    "/etc/passwd",
    "../" * 12 + "etc/passwd",
    "hf:/etc",
    "file:///etc/passwd",
    "__import__('os').system('true')",
    "{0.__class__}",
    "%s%n%s",
    "'; DROP TABLE runs; --",
    "nan",
    "-inf",
    "1e999",
    "٣",
    "x" * 300,
    "y " * 30_000,
    "scores",
    "q",
    "input 0",
)
FRACTIONS = (0.0, -0.0, 0.5, -1.5, 1e-320, 1e300, float("nan"), float("inf"), float("-inf"))


def damage(data: bytes, chance: Random) -> bytes:
    """Return bytes with a few of them changed, cut out, doubled or added."""
    data = bytearray(data)
    for _ in range(_few(chance)):
        at, length = chance.randrange(len(data) + 1), chance.choice((1, 2, 4, 8, 64, 1_000))
        match chance.randrange(8):
            case 0 | 1 | 2 if at < len(data):
                data[at] = chance.choice(
                    (0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256), data[at] ^ 1 << chance.randrange(8))
                )
            case 3:
                del data[at : at + length]
            case 4:
                data[at:at] = data[at : at + length]
            case 5:
                data[at:at] = chance.randbytes(length)
            case 6:
                there = chance.randrange(len(data) + 1)
                data[at : at + length] = data[there : there + length]
            case _:
                number = chance.choice((*INTEGERS, 2**32 - 1)) % 2**32
                data[at : at + 4] = number.to_bytes(4, chance.choice(("big", "little")))
    return bytes(data[: chance.randrange(len(data) + 1)] if chance.random() < 0.1 else data)


def junk(chance: Random):
    """Return a value of any kind."""
    kinds = (
        INTEGERS,
        INTEGERS,
        LARGE_INTEGERS,
        TEXT,
        TEXT,
        FRACTIONS,
        (None, True, False),
        ([], {}, [[]], {"a": 1}),
        tuple(RAW),
    )
    return chance.choice((lambda: chance.choice(chance.choice(kinds)), lambda: formula(chance)))()


def like(value, chance: Random):
    """Return a value of the same kind: one that is refused for its kind is not tried for anything else."""
    match value:
        case bool():
            return not value
        case int():
            return chance.choice((*INTEGERS[:9], value + 1, value - 1, value, chance.choice(INTEGERS)))
        case float():
            return chance.choice(FRACTIONS)
        case str():
            return chance.choice(
                (chance.choice(TEXT), value + chance.choice(TEXT), formula(chance), value[: len(value) // 2])
            )
        case list():
            kept = list(value)
            chance.shuffle(kept)
            return chance.choice((kept, kept[1:], kept + kept[:1], [], (kept * chance.choice((2, 50, 2_000)))[:20_000]))
        case dict():
            return dict(list(value.items())[1:])
    return junk(chance)


def formula(chance: Random, deep: int = 4) -> str:
    """Return a formula over sizes, most of them well formed, some with numbers and powers that take for ever to
    evaluate."""
    if not deep or chance.random() < 0.3:
        return chance.choice(
            ("B", "N", "D", "h", "d_k", "K", "H", "2", "3", "0", "16", "?", "9" * chance.choice((3, 40, 400, 1_900)))
        )
    left, right = formula(chance, deep - 1), formula(chance, deep - 1)
    forms = (
        "{} + {}",
        "{} - {}",
        "{}*{}",
        "({})/({})",
        "({})**2",
        "({})**16",
        "({})**({})",
        "sqrt({})",
        "floor({}/7)",
        "ceiling({})",
        "-{}",
        "({})**-3",
        "{}({})",
    )
    return chance.choice(forms).format(left, right)


def places(data, path=()) -> list[tuple]:
    """Return the paths of all values inside JSON."""
    found, waiting = [], [(data, path)]
    while waiting:
        inside, path = waiting.pop()
        items = inside.items() if isinstance(inside, dict) else enumerate(inside) if isinstance(inside, list) else ()
        for key, value in items:
            found.append((*path, key))
            waiting.append((value, (*path, key)))
    return found


def pick_path(data, chance: Random) -> tuple | None:
    """Return one path inside JSON; frequent fields are not hit more often. None in a value without paths."""
    kinds = {}
    for path in places(data):
        kinds.setdefault(tuple("*" if isinstance(key, int) else key for key in path), []).append(path)
    return chance.choice(kinds[chance.choice(list(kinds))]) if kinds else None


def alter(data, chance: Random) -> None:
    """Change a few values inside JSON, in place."""
    for _ in range(_few(chance)):
        path = pick_path(data, chance)
        if path is None:
            return
        holder = value_at(data, path[:-1])
        value, key = holder[path[-1]], path[-1]
        match chance.randrange(12):
            case 0 if isinstance(holder, dict):
                holder[chance.choice((*TEXT[:20], "extra"))] = holder.pop(key)
            case 1:
                del holder[key]
            case 2:
                holder[key] = deepcopy(value_at(data, pick_path(data, chance)))
            case 3 if type(value) is int:
                _everywhere(data, value, chance.choice(INTEGERS))
            case 4:
                holder[key] = junk(chance)
            case _:
                holder[key] = like(value, chance)


def dump_json(data) -> str:
    """Return the JSON of a value, with `RAW` texts in place of their names."""
    text = json.dumps(data)
    for name, raw in RAW.items():
        text = text.replace(json.dumps(name), raw)
    return text


def value_at(data, path: tuple):
    """Return the value at a path."""
    for key in path:
        data = data[key]
    return data


def _everywhere(data, old: int, new: int) -> None:
    """Replace one whole number by another wherever it occurs, so that equal sizes stay equal."""
    for path in places(data):
        holder = value_at(data, path[:-1])
        if type(holder[path[-1]]) is int and holder[path[-1]] == old:
            holder[path[-1]] = new


def _few(chance: Random) -> int:
    return chance.choice((1, 1, 1, 1, 2, 4))
