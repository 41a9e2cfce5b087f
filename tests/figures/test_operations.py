"""Operations page: categories, the table's rows, the pictures, and the page itself without a browser."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import re

import pytest
import torch

import tracer
from pages.sections import trace
from tests.app.test_app import open_page, text, upload, visit
from tests.support import handmade
from tests.support.sweeping import cases
from tracer import models, ops
from tracer.figures import op_tables
from tracer.figures.drawing import round_ticks
from tracer.ops import OPS, OTHER_OP


@pytest.fixture(scope="module")
def run():
    return tracer.load("vit", D=16, h=2, d_ff=24, L=2).trace(primitives=True)


@pytest.mark.parametrize(
    ("op", "category"),
    [
        ("addmm", "Matrix Multiply"),
        ("aten.bmm", "Matrix Multiply"),
        ("add_", "Elementwise Binary"),
        ("gelu", "Elementwise Unary"),
        ("_softmax", "Fused"),
        ("var_mean", "Reduction"),
        ("view", "Reshape"),
        ("t", "Transpose"),
        ("clone", "Memory"),
        ("select", "Indexing"),
        ("native_layer_norm", "Fused"),
        ("_scaled_dot_product_flash_attention_for_cpu", "Fused"),
        ("nobody.knows", "Other"),
    ],
)
def test_an_operation_has_the_category_of_the_texts(op, category):
    assert ops.category(op) == category


def test_layout_computes_nothing():
    every = [op.name for op in OPS]
    assert [op for op in every if ops.is_layout(op) and ops.category(op) in ops.COMPUTING] == []
    assert not any(map(ops.is_layout, [*ops.ops_with("line"), "fill_", "add_", "nobody.knows"]))
    assert all(map(ops.is_layout, ["view", "clone", "copy_", "squeeze_", "zeros_like"]))
    assert {op.category for op in OPS} == set(ops.ORDER)


@pytest.mark.parametrize("name", cases(models.names(), ("llama", "segmenter")))
def test_no_operation_of_ours_is_of_no_category(name):
    run = tracer.load(name).trace(prove=False, primitives=True)
    names = {op.op for op in run.ops} | {part.name for one in run.decompositions for part in one.primitives}
    assert {one for one in names if ops.category(one) == OTHER_OP} == set()


def test_the_table_has_a_row_for_each_op_and_its_sums_are_the_totals(run):
    table = op_tables.table(run, "ops")
    assert len(table["rows"]) == len(run.ops)
    names = [column["name"] for column in table["columns"]]
    for name, total in (("parameters", run.params), ("FLOP", run.flops)):
        assert sum(row["cells"][names.index(name)] for row in table["rows"]) == total
    assert [".".join(row["path"]) for row in table["rows"]] == [op.module for op in run.ops]


def test_the_steps_of_a_block_fold_into_it(run):
    rows = op_tables.table(run, "steps")["rows"]
    assert len(rows) == len(run.steps)
    assert {tuple(row["path"]) for row in rows} == {(), ("Block 1",), ("Block 2",)}


def test_primitives_stand_under_their_op_with_its_error(run):
    table = op_tables.table(run, "primitives", run.decompositions)
    norm = next(op for op in run.ops if op.op == "native_layer_norm")
    rows = [row for row in table["rows"] if row["id"] == f"op {norm.index}"]
    assert [row["cells"][0] for row in rows] == [part.name for part in run.decompositions[norm.index].primitives]
    assert len(rows) > 4 and rows[0]["path"][-1] == f"{norm.index} native_layer_norm"
    assert [row["mark"] for row in rows] == [f"{norm.index}.{number}" for number in range(len(rows))]
    assert rows[0]["cells"][5][0] == run.decompositions[norm.index].error
    assert [row["cells"][5] for row in rows[1:]] == [["", ""]] * (len(rows) - 1)
    assert rows[0]["cells"][6] == "Returns the variance and the mean of the numbers along an axis."


def test_an_op_that_was_not_opened_stands_among_those_that_were(run):
    (one,) = [one for one in run.decompositions if one.op == 11]
    table = op_tables.table(run, "primitives", [one])
    assert [row["id"] for row in table["rows"] if "mark" not in row] == [
        f"op {i}" for i in range(len(run.ops)) if i != 11
    ]
    assert table["noun"] == "ops and primitives"
    assert "noun" not in op_tables.table(run, "primitives", run.decompositions)


def test_modules_fold_into_the_modules_that_they_ran_in(run):
    table = op_tables.table(run, "modules")
    rows = {run.modules[row["number"]].path: row for row in table["rows"]}
    assert len(rows) == len(run.modules) and rows[""]["cells"][0] == "ViT" and table["open"] == ["/ViT"]
    query = rows["block1.attention.query"]
    assert query["path"] == ["ViT", "block1", "attention"] and query["cells"][0] == "query" and not query["holds"]
    assert rows["block1"]["holds"] and rows["block1"]["cells"][2] == ["[B, N+1, D]", "[1, 65, 16]"]
    assert all(cell != "" for row in table["rows"] for cell in row["cells"])


def test_one_module_within_another_unfolds_until_there_are_some_to_see():
    net = torch.nn.Sequential(torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(5))))
    twice = torch.nn.Linear(4, 4)
    found = op_tables.table(tracer.trace(net, torch.ones(1, 3)), "modules")
    assert found["open"] == ["/Sequential", "/Sequential/0"]
    again = tracer.trace(torch.nn.Sequential(twice, twice), torch.ones(1, 4))
    assert [row["cells"][0] for row in op_tables.table(again, "modules")["rows"]][1:] == ["0", "0 (call 2)"]


def test_calls_say_their_arguments_and_the_ops_beneath(run):
    rows = op_tables.table(run, "calls")["rows"]
    assert rows[3]["cells"][:2] == ["linear", "input, weight, bias"] and rows[3]["path"] == ["embedding"]
    assert rows[3]["cells"][4] == "view t addmm view" and rows[3]["cells"][5] == "embedding"
    assert sum(row["cells"][3] for row in rows) == run.flops


def test_arithmetic_by_module_and_stage_adds_up(run):
    table = op_tables.arithmetic(run)
    assert sum(sum(row.values()) for row in table.values()) == run.flops
    assert {"block1", "block2"} <= set(table) and set(table["block1"]) == {"attention", "mlp"}
    assert table["block1"] == table["block2"]


def test_many_modules_are_shortened_and_nothing_is_lost(run, monkeypatch):
    monkeypatch.setattr(op_tables, "MAX_BARS", 2)
    table = op_tables.arithmetic(run)
    assert len(table) == 3 and sum(sum(row.values()) for row in table.values()) == run.flops
    assert list(table)[-1].endswith("others")


def test_long_module_names_lose_what_they_share():
    paths = ["encoder.layers.layer_0", "encoder.layers.layer_1", "a.0", "b.0"]
    assert list(op_tables._short(paths).values()) == ["layer_0", "layer_1", "a.0", "b.0"]


def test_the_pictures_say_what_their_axes_are(run):
    kinds = op_tables.counts([op.op for op in run.ops])
    drawn = op_tables.categories(kinds)
    assert "<small>category</small><small>operations</small>" in drawn
    assert [int(count.replace(",", "")) for count in re.findall(r"<em>([\d,]+)</em>", drawn)] == list(kinds.values())
    assert sum(kinds.values()) == len(run.ops)
    table = op_tables.arithmetic(run)
    cost = op_tables.flops(table)
    assert "<small>module</small><small>FLOP</small>" in cost
    assert sum(sum(row.values()) for row in table.values()) == run.flops
    ends = [sum(map(float, re.findall(r"width:([\d.]+)%", row))) for row in cost.split("<b>")[1:]]
    sums = [sum(row.values()) for row in table.values()]
    assert ends == pytest.approx([max(ends) * value / max(sums) for value in sums], abs=0.05)
    assert {stage for row in table.values() for stage in row} == set(re.findall(r"</i>([^<]+)</li>", cost))


@pytest.mark.parametrize(
    "largest, ticks", [(136, [0, 50, 100, 150]), (1, [0, 0.5, 1]), (27_722_240, [0, 1e7, 2e7, 3e7]), (0, [0, 0.2])]
)
def test_the_ticks_of_bars_are_round_numbers_that_reach_the_longest(largest, ticks):
    assert list(round_ticks(largest)) == pytest.approx(ticks)


def zoom(at, level: str):
    next(group for group in at.main.button_group if "primitives" in group.options).set_value(level).run()
    assert not at.exception and not at.error
    return at


def strip(at) -> list[str]:
    """Return the steps whose equations are above the chosen row."""
    told = "".join(str(one.proto) for one in at.get("bidi_component") if one.proto.component_name == "equations")
    return re.findall(r"data-step=\W+([\w.]+)", told)


def press(at, label: str):
    next(button for button in at.main.button if button.label.startswith(label)).click().run()
    assert not at.exception and not at.error
    return at


def test_an_operation_leads_to_its_makers_its_step_and_its_primitives():
    at = zoom(open_page("pages/operations.py"), "ops")
    first = at.main.selectbox[0].value
    trace = at.session_state["visitor"].run()
    assert trace.ops[first].flops
    made = trace.ops[first].inputs[1].maker
    press(at, f"{made}: ")
    assert at.main.selectbox[0].value == made and at.query_params["op"] in (str(made), [str(made)])
    at.main.selectbox[0].set_value(first).run()
    assert at.main.header[0].value == f"{first}: addmm"
    press(at, "Open it into its primitives")
    assert any("run on the arguments of this operation, gives" in box.value for box in at.success)
    press(at, "Open this step")
    assert at.title[0].value == "Step by step" and at.session_state["visitor"].step == trace.ops[first].step


def test_all_zoom_levels_open_and_counts_follow():
    at = open_page("pages/operations.py")
    assert "The forward hooks and the recorded operations agree" in text(at) and "Kinds of operations" in text(at)
    assert strip(at) == ["logits"]
    at.query_params["module"] = next(str(i) for i, one in enumerate(at.session_state["visitor"].run().modules)
                                     if one.path == "block1.attention.query")  # fmt: skip
    at.run()
    assert strip(at) == ["block1.attention.query"]
    at.query_params["module"] = "0"
    at.run()
    press(at, "See its calls")
    assert "It ran 1 operation: 0 view." in text(at) and strip(at) == ["patches"]
    press(at, "See its operations")
    assert strip(at) == ["patches"]
    assert "Kinds of primitives" in text(zoom(at, "primitives"))
    zoom(at, "steps")
    press(at, "See its operations")
    trace = at.session_state["visitor"].run()
    assert at.main.selectbox[0].value == trace.steps[0].ops[0]


def test_an_address_that_names_no_operation_is_passed_over():
    at = open_page("pages/operations.py")
    at.query_params["op"] = "99999"
    at.run()
    assert not at.exception


def test_our_own_models_write_attention_out():
    assert "Fused and standard attention" not in text(open_page("pages/operations.py"))


@pytest.mark.parametrize("primitives", [False, True])
def test_a_saved_run_of_anybodys_module_shows_what_it_holds(tmp_path, primitives):
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    run = tracer.trace(layer, torch.randn(1, 5, 8), primitives=primitives)
    run.save(path := tmp_path / "run.safetensors")
    at = upload(open_page("pages/operations.py"), path.read_bytes(), "run.safetensors")
    assert "needs the model, which a saved run does not contain" in text(at)
    zoom(at, "ops")
    assert ("was recorded without the primitives" in text(at)) is not primitives
    zoom(at, "primitives")
    assert ("Kinds of primitives" in text(at)) is primitives


def test_an_awkward_saved_run_opens_at_every_level(tmp_path):
    handmade.sample().save(path := tmp_path / "run.safetensors")
    at = upload(open_page("pages/operations.py"), path.read_bytes(), "run.safetensors")
    for level in op_tables.LEVELS:
        zoom(at, level)


def test_a_step_shows_every_line_of_code_that_it_ran():
    run = tracer.load("nanogpt", D=12, h=3, d_ff=20, L=1).trace()
    step = run.step("block1.attention.scores")
    ((file, lines),) = trace.source_lines(run, step).items()
    assert file == "tracer/spec/blocks.py" == step.source.file and step.source.line in lines
    assert [line.split("#")[0].strip() for line in lines.values()] == [
        "scores = q @ k.transpose(-2, -1) / sqrt(d_k)",
        "scores = scores + mask",
    ]


def test_steps_are_numbered_as_on_the_page_trace(run):
    rows = op_tables.table(run, "steps")["rows"]
    assert [row["number"] for row in rows] == list(range(1, len(run.steps) + 1))


def test_an_address_of_a_step_opens_the_op_that_computes_it_into_its_primitives():
    at = visit("operations", zoom="primitives", step="block2.mlp.activation")
    trace = tracer.load("vit").trace(prove=False)
    (gelu,) = [op for op in trace.ops if op.step == "block2.mlp.activation" and op.op == "gelu"]
    headers = [header.value for header in at.header]
    assert headers[:2] == [f"{gelu.index}: gelu", "Its primitives"]
    assert at.query_params["op"] in (str(gelu.index), [str(gelu.index)])
    at = visit("operations", zoom="primitives", step="block9.mlp.activation")
    assert at.header[0].value != headers[0]
