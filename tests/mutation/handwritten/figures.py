"""Mutations of the drawing of a figure, and of its labels and text alternatives."""

from __future__ import annotations

from tests.mutation.rules import code

RULES = (
    code(
        "a heatmap of twice the values",
        {"np.ldexp($cells, $power)": "np.ldexp($cells * 2, $power)"},
        within="envelope",
    ),
    code(
        "the sum of a box for its mean",
        {"$sums / np.outer($heights, $widths)": "$sums"},
        within="tensors",
    ),
    code(
        "the axes of rows and columns exchanged",
        {"[_axis(*$a) for $x in zip(*$b, **$c)]": "[_axis(*$a) for $x in zip(*$b, **$c)][::-1]"},
        within="tensors.build_heatmap",
    ),
    code("queries drawn as keys", {'"query", "key"': '"key", "query"'}, within="tensors.build_heatmap"),
    code(
        "the smallest value called the largest",
        {"$x.min()": "$x.max()", "$x.max()": "$x.min()"},
        within="tensors._description",
    ),
    code("the colours of a heatmap inverted", {"$i / ($steps - 1)": "1 - $i / ($steps - 1)"}, within="drawing._sample"),
    code(
        "the head before",
        {"$heads[int($view)]": "$heads[int($view) - 1]"},
        within="attention_maps._views",
    ),
    code(
        "maps of keys for queries",
        {"_views($x[0], $views)": "_views($x[0].swapaxes(-1, -2), $views)"},
        within="attention_maps.build",
    ),
    code(
        "the mask of a map transposed",
        {"[visible($t, $x, **$o) for $x in $chosen]": "[visible($t, $x, **$o).mT for $x in $chosen]"},
        within="attention_maps.masks",
    ),
    code(
        "a patch named by its column and row",
        {"$row, $column = divmod($x, $y)": "$column, $row = divmod($x, $y)"},
        within="attention_maps.names",
    ),
    code(
        "tokens of patches one on",
        {"$tokens.get($patch)": "$tokens.get($patch + 1)"},
        within="attention_maps._photo",
    ),
    code(
        "a photo mirrored under its map",
        {"rescale($photo)": "rescale($photo.transpose(0))"},
        within="attention_maps._photo",
    ),
    code(
        "the names of a mask one on",
        {"labels($t, $p, queries, True, $s)": "labels($t, $p, queries + 1, True, $s)[1:]"},
        within="mask_payload.build",
    ),
    code(
        "what the first head keeps to for every head",
        {"masks.rows($t, $l, head=$h, **$o)": "masks.rows($t, $l, head=0, **$o)"},
        within="mask_payload.build",
    ),
    code(
        "the factors of a product drawn in each other's place",
        {"[(0, $a, $deep, $tall), $right, $result]": "[$right, (0, $a, $deep, $tall), $result]"},
        within="tensors.rectangles",
    ),
    code(
        "the columns of a head one band on",
        {"HeadBand($x, $width, $head, $part)": "HeadBand(($x + $width) % rows.shape[-1], $width, $head, $part)"},
        within="attention_maps._find_bands",
    ),
    code("the colours of a loss inverted", {"_shade($a / $b)": "_shade(1 - $a / $b)"}, within="predictions"),
    code(
        "the probability of the next token in a tooltip",
        {"zip($asked, $losses, $shares, **$s)": "zip($asked, $losses, [*$shares[1:], $shares[0]], **$s)"},
        within="predictions",
    ),
    code(
        "the FLOPs of another part in a tooltip",
        {"go.Scatter(name=$part, **$rest)": "go.Scatter(name=list(flops)[::-1][list(flops).index($part)], **$rest)"},
        within="cost_curves",
    ),
)
