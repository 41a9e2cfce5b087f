"""Terms of a sum of matrices, as small maps on one scale, with their sum and the matrix of the run."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tracer.export.math_labels import scientific
from tracer.figures.tensors.heatmap import ALL_BYTES, HeatmapData, as_array, pack_cells, reduce

SUM, RAN = "their sum", "the scores that ran"


def difference(terms: Mapping[str, Any], scores) -> float:
    """Return max|sum of the terms - scores| / max|scores|, over the scores that a mask left finite.

    Terms of a run whose queries or keys are changed do not add up to its scores.
    """
    ran, total = as_array(scores), sum(map(as_array, terms.values()))
    finite = np.isfinite(ran)
    return float(np.abs(total - ran)[finite].max() / (np.abs(ran[finite]).max() or 1.0))


def pack(terms: Mapping[str, Any], scores, head: int = 0) -> HeatmapData:
    """Return terms and scores `[h, S_q, S_k]` for drawing in the browser.

    Each head has the maps of the terms, of their sum and of the scores, on one scale centred on 0. All heads are packed
    if they are small, else `head` alone. The facts: `names` of the maps, `heads`, `which` of them are packed, `shape`
    of a map as drawn and `full` before reduction, `edges` of the scales, the `largest` term of each head by root mean
    square, and the `error` of the sum; `bits` and `power` as in `tensors.pack`. Hidden scores are not finite.
    """
    panels: dict[str, Any] = {name: as_array(term) for name, term in terms.items()}
    panels |= {SUM: sum(panels.values()), RAN: as_array(scores)}
    maps = np.stack(list(panels.values()), axis=1)  # [h, 6, S_q, S_k]
    which = list(range(len(maps))) if 2 * maps.size <= ALL_BYTES else [min(max(head, 0), len(maps) - 1)]
    maps, full = maps[which], maps.shape[-2:]
    cells, box = reduce(maps)
    shares = [{name: float(np.square(panels[name][at]).mean()) for name in terms} for at in which]
    facts = {
        "names": list(panels),
        "heads": len(panels[RAN]),
        "which": which,
        "shape": list(cells.shape[-2:]),
        "full": list(full),
        "box": list(box),
        "edges": [float(np.abs(cell[np.isfinite(cell)]).max()) for cell in cells],
        "largest": [max(share, key=share.__getitem__) for share in shares],
        "error": scientific(difference(terms, scores)),
    }
    return HeatmapData(*pack_cells(facts, np.asarray(cells, dtype=np.float32)))
