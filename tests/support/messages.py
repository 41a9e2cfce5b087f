"""A reader of messages to the browser, which shares no code with what packs them."""

import json
from typing import Any

import numpy as np

BYTES = {"f4": 4, "f2": 2, "u1": 1}


def unpack(data: bytes) -> Any:
    """Return the header of a message with its arrays in their places, those in half precision as float32."""
    at = 4 + int.from_bytes(data[:4], "little")
    assert at % 4 == 0
    message = json.loads(data[4:at], parse_constant=_refuse)
    for (*path, name), dtype, shape, *power in message["arrays"]:
        count = int(np.prod(shape))
        cells = np.frombuffer(data, f"<{dtype}", count, at).reshape(shape)
        at += -(-count * BYTES[dtype] // 4) * 4
        parent = message["header"]
        for key in path:
            parent = parent[key if isinstance(parent, list) else str(key)]
        cells = np.ldexp(cells.astype(np.float32), -sum(power)) if dtype == "f2" else cells
        if isinstance(parent, dict):
            assert str(name) not in parent
            parent[str(name)] = cells
        else:
            assert parent[name] is None
            parent[name] = cells
    assert at == len(data)
    return message["header"]


def of_page(data: bytes) -> tuple[dict, Any]:
    """Return what a component of a page gets: the facts of the visitor, and the body for all visitors."""
    message = unpack(data)
    return message["facts"], unpack(message["body"].tobytes())


def component_bytes(at: Any, *names: str) -> bytes:
    """Return the message that a page sent to its one component of these names."""
    (data,) = [part.proto.bytes for part in at.get("bidi_component") if part.proto.component_name in names]
    return data


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
