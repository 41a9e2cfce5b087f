"""Mutations of the browser's drawings and texts, each seen by the tests that read pages back."""

from __future__ import annotations

from tests.mutation.rules import raw

FILE = "app/browser/test_browser_oracle.py"
STEPS = [f"{FILE}::test_trace_says_and_draws_each_step_of_a_block"]
TERMS = [f"{FILE}::test_terms_of_scores_add_up_on_the_scale_that_is_said"]
PHOTO = [f"{FILE}::test_attention_over_the_photo_is_that_of_the_query_that_is_pointed_at"]
MATRIX = [f"{FILE}::test_the_matrix_from_token_to_token_is_that_of_the_head"]
MASK = [f"{FILE}::test_the_mask_and_the_row_of_each_head_are_those_that_ran"]
ALIKE = ["app/browser/test_browser_oracle_lessons.py::test_learned_positions_are_as_alike_as_is_said"]

RULES = (
    raw(
        "a tooltip of the transposed cell",
        "stepper/heat.js",
        {"cells[row * columns + column]": "cells[Math.min(cells.length - 1, column * columns + row)]"},
        STEPS,
    ),
    raw(
        "the colours of a drawn heatmap inverted",
        "scripts/heatmap.js",
        {"cells[cell] - low": "high - cells[cell]"},
        STEPS,
    ),
    raw(
        "the verdict of the step before",
        "stepper/shown.js",
        {"say(verdict, detail.proof)": "say(verdict, (me.details.get(me.heads[me.at - 1]?.id) ?? detail).proof)"},
        STEPS,
    ),
    raw(
        "the reason of the step before",
        "stepper/shown.js",
        {
            "say(find(`.${part}`), detail[part] || [])": (
                "say(find(`.${part}`), (me.details.get(me.heads[me.at - 1]?.id) ?? detail)[part] || [])"
            )
        },
        STEPS,
    ),
    raw(
        "a scale of terms that is said to be twice as large",
        "stepper/shown.js",
        {"numeral(-terms.edges[came], 3)": "numeral(-2 * terms.edges[came], 3)"},
        TERMS,
    ),
    raw(
        "key and query exchanged in a tooltip",
        "attention_map/matrix.js",
        {"cells[query * map.keys + key]": "cells[key * map.keys + query]"},
        MATRIX,
    ),
    raw(
        "a photo that is mirrored under the pointer",
        "attention_map/photo.js",
        {"const query = tokenAt(map, r, c);": "const query = tokenAt(map, r, map.columns - 1 - c);"},
        PHOTO,
    ),
    raw(
        "light where the weight is small",
        "scripts/photo.js",
        {"Math.round(255 * Math.min(1, share))": "Math.round(255 * (1 - Math.min(1, share)))"},
        PHOTO,
    ),
    raw(
        "the number of the next head below a map",
        "attention_map/main.js",
        {"each ? `head ${head + 1}, to": "each ? `head ${head + 2}, to"},
        PHOTO,
    ),
    raw(
        "the weight of the next token in the table",
        "attention_map/main.js",
        {"keyNames[token], percent(weights[token])]": "keyNames[token], percent(weights[open[rank + 1] ?? token])]"},
        PHOTO,
    ),
    raw(
        "row and column exchanged in a tooltip of the mask",
        "mask.js",
        {"map.open[row * keys + key] ?": "map.open[key * keys + row] ?"},
        MASK,
    ),
    raw(
        "the weights of the next head",
        "mask.js",
        {
            "cells?.subarray(from, from + keys)": (
                "cells?.subarray((from + (cells === map.weights) * count * keys) % cells.length).subarray(0, keys)"
            )
        },
        MASK,
    ),
    raw(
        "the least alike called the most alike",
        "likeness.js",
        {"cells[b] > cells[a] ? b : a": "cells[b] < cells[a] ? b : a"},
        ALIKE,
    ),
)
"""Each in one script of `pages/components/` or `tracer/figures/scripts/`."""
