"""Where in a model a line stands: in which of its repeated blocks, and in which tower of several."""

from __future__ import annotations

import re

from tracer.derive.graph import Graph

TOWERS = {"encoder": "enc", "decoder": "dec", "vision": "vis", "visual": "vis", "image": "img", "text": "txt"}


class Places:
    """Blocks are modules with modules of their own, whose names end in numbers; they are counted from 1, in the order
    in which they run."""

    def __init__(self, graph: Graph):
        parents = {path.rpartition(".")[0] for module in graph.modules if (path := module.path)}
        self._number: dict[str, int] = {}
        count: dict[tuple[str, str], int] = {}
        for module in graph.modules:
            around, _, own = module.path.rpartition(".")
            stem = re.sub(r"\d+$", "", own)
            if stem != own and module.path in parents and module.path not in self._number:
                self._number[module.path] = count[around, stem] = count.get((around, stem), 0) + 1
        self._outermost = tuple(path for path in self._number if not self._around(path))
        self._layers = {path: number for number, path in enumerate(self._outermost)}
        self._towers = self._find_towers()

    def _around(self, path: str) -> list[str]:
        """The blocks around a module, the outermost first."""
        parts = path.split(".")
        return [before for n in range(1, len(parts)) if (before := ".".join(parts[:n])) in self._number]

    def blocks(self, path: str) -> list[str]:
        """The blocks that a module is in or is, the outermost first."""
        return [*self._around(path), *([path] if path in self._number else [])]

    def numbers(self, path: str) -> str:
        """The numbers of these: `"1"`, `"2.1"`, or "" outside of all."""
        return ".".join(str(self._number[block]) for block in self.blocks(path))

    def layer(self, path: str) -> int | None:
        """The number of the outermost block among all of them, from 0; None outside."""
        blocks = self.blocks(path)
        return self._layers[blocks[0]] if blocks else None

    def prefix(self, path: str) -> str:
        """The path of the innermost block, "" outside."""
        blocks = self.blocks(path)
        return blocks[-1] if blocks else ""

    def _find_towers(self) -> dict[str, str]:
        """What stands around the outermost blocks, and its mark, where there are several of it."""
        around = list(dict.fromkeys(path.rpartition(".")[0] for path in self._outermost))
        if len(around) < 2:
            return {}
        found: dict[str, str] = {}
        for path in around:
            others = [set(other.split(".")) for other in around if other != path]
            own = [part for part in path.split(".") if part and not all(part in other for other in others)]
            word = own[0] if own else path.rpartition(".")[2]
            mark = next((short for known, short in TOWERS.items() if known in word.lower()), word.replace("_", " "))
            if mark and mark not in found.values():
                found[path] = mark
        return found

    def tower(self, path: str) -> str:
        """The mark of the tower that a module is in; "" in models of one."""
        return next((mark for around, mark in self._towers.items() if f"{path}.".startswith(f"{around}.")), "")
