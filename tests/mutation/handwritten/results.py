"""Mutations on the way from a photo or a text to the answer of a model."""

from __future__ import annotations

from tests.mutation.rules import code, raw

RULES = (
    code("the crop one pixel off", {"($photo.width - $x) / 2": "($photo.width - $x) / 2 + 1"}, within="centre_crop"),
    code(
        "a crop that is not the one that is shown",
        {"$photo.resize(*$size, box=$box)": "$photo.resize(*$size)"},
        within="centre_crop",
    ),
    code(
        "patches in columns",
        {"[$x for $i in range($a) for $j in range($b)]": "[$x for $j in range($b) for $i in range($a)]"},
        within="patch_boxes",
    ),
    code("256 levels for 255", {"np.float32(255)": "np.float32(256)"}, within="to_array"),
    code(
        "mean and deviation exchanged",
        {"to_array($x, $mean, $std)": "to_array($x, $std, $mean)"},
        within="photo_input",
    ),
    code(
        "rows and columns of patches exchanged",
        {'$x["H"] // $x["P"], $x["W"] // $x["P"]': '$x["W"] // $x["P"], $x["H"] // $x["P"]'},
        within="Model.trace_inputs",
    ),
    code("a softmax of half the logits", {"$x.softmax(-1)": "($x / 2).softmax(-1)"}, within="class_probabilities"),
    code("the first token's answer for the last one's", {"$logits[0, -1]": "$logits[0, 0]"}, within="next_tokens"),
    code("the least likely label", {"$x.argmax(-1)": "$x.argmin(-1)"}, within="pixel_classes"),
    code(
        "sentences in another order",
        {"list($inputs.sentences)": "list($inputs.sentences)[::-1]"},
        within="sentence_probabilities",
    ),
    code(
        "the likeliest tokens by their number",
        {"$best.indices.tolist()": "sorted($best.indices.tolist())"},
        within="next_tokens.names",
    ),
    raw("two names of classes exchanged", "vit.json", {'"frog", "horse", "ship"': '"horse", "frog", "ship"'}),
    raw("two names without a photo exchanged", "vit.json", {'"ship", "truck"': '"truck", "ship"'}),
    raw("two shapes exchanged", "segmenter.json", {'"cross", "star"': '"star", "cross"'}),
    raw("two colours exchanged", "clip.json", {'"red", "orange"': '"orange", "red"'}),
    raw("two characters exchanged", "nanogpt.json", {"ABCDEFGHIJ": "ABCDFEGHIJ"}),
    code(
        "a caption that is written backwards",
        {"torch.cat([$tokens, $best], dim=1)": "torch.cat([$best, $tokens], dim=1)"},
        within="preparation.greedy",
    ),
    code(
        "the anomaly without its root",
        {"$x.square().mean(dim=-1).sqrt()": "$x.square().mean(dim=-1)"},
        within="anomaly_map",
    ),
    code("the anomaly in shares, called levels", {"$x * 255": "$x"}, within="results.reconstruction"),
    code("the anomaly of one round", {"ROUNDS, $x = 3, $y": "ROUNDS, $x = 1, $y"}),
    code(
        "rows and columns of the painted picture exchanged",
        {"$x.permute(0, 5, 1, 3, 2, 4)": "$x.permute(0, 5, 1, 4, 2, 3)"},
        within="image_of",
    ),
)
