"""Repeated blocks and towers in the module tree."""

from __future__ import annotations

import re
from collections import Counter

from tracer.graph.dataflow import Graph

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
        parents = {
            ".".join(parts[:n])
            for module_call in graph.modules
            for parts in (module_call.path.split("."),)
            for n in range(len(parts))
        }
        parents -= find_experts(graph) | find_block_parts(graph) | {path for path in parents if is_norm(path)}
        names = {module.path for module in graph.modules}
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
        parts = path.split(".")
        return [before for n in range(1, len(parts)) if (before := ".".join(parts[:n])) in self._number]

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
