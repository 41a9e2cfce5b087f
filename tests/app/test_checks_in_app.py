"""Checks on other runs in the app: computed in the background, shown to all who look, and never in a visitor's way."""

import copy
import gc
import json
import threading
import time
import weakref
from collections import Counter
from dataclasses import replace

import pytest
import torch
from starlette.requests import Request

import tracer
from pages.components import CHECK_PATH
from pages.jobs import background_checks, model_process, run_cache, single_flight
from pages.server import browser_requests
from tests.app.test_app import open_page, upload, visit
from tests.app.test_server import picture
from tests.app.test_stepping import page_payload
from tests.support.serving import run_in_thread
from tracer import cli, serialization, verify
from tracer.export import render
from tracer.figures import handout
from tracer.lessons.notes import evaluate, statements
from tracer.tracing import counterfactual as bounded
from tracer.tracing.transfer import lighten
from tracer.utils.cache import Cache
from tracer.utils.job_queue import JobEnd, JobQueue, listen, tell

SIZES = {"H": 12, "W": 8, "P": 4, "D": 6, "h": 2, "d_ff": 10, "L": 1, "K": 3}
SCORES = "block1.attention.scores"


def proof_text(at, step: str = SCORES) -> str:
    return "".join(text for _, text in page_payload(at)[1]["details"][step]["proof"])


def component(at, name: str) -> str:
    """Return the data sent to the component of that name; empty where it is not on the page."""
    found = (part.proto for part in at.get("bidi_component") if part.proto.component_name == name)
    return next((proto.json or proto.bytes.decode(errors="replace") for proto in found), "")


def response_status(word: str) -> int:
    """Return the status that a browser gets when it asks for the check."""

    async def receive() -> dict:
        return {"type": "http.request", "body": word.encode(), "more_body": False}

    return run_in_thread(
        browser_requests.give_check(Request({"type": "http", "method": "POST", "headers": []}, receive))
    ).status_code


@pytest.fixture(autouse=True)
def nothing_shown():
    """Forget displayed runs, and servers that ended before and would hold checks back."""
    background_checks.stop_event.clear()
    background_checks._displayed_runs.clear()
    yield
    background_checks._displayed_runs.clear()


@pytest.fixture
def nothing_known(monkeypatch):
    """Forget all checks; new ones wait until `go` is set."""
    for task in list(background_checks._tasks.values()):  # that of another test would end in the midst of this one
        assert task.wait(60)
    go, made = threading.Event(), background_checks._run_check
    monkeypatch.setattr(background_checks, "_run_check", lambda *key: (go.wait(60), made(*key))[1])
    monkeypatch.setattr(background_checks, "line", JobQueue(1))
    for kept in (background_checks._results, background_checks._tasks, background_checks._displayed_runs):
        kept.clear()
    yield go
    go.set()
    for task in list(background_checks._tasks.values()):
        assert task.wait(60)
    for kept in (background_checks._results, background_checks._tasks, background_checks._displayed_runs):
        kept.clear()


def test_an_open_page_learns_of_the_check_and_shows_it(nothing_known):
    at = open_page("pages/trace.py")
    facts = page_payload(at)[0]
    assert facts["checking"] and json.loads(component(at, "checked")) == {
        "path": CHECK_PATH,
        "token": facts["token"],
    }
    assert proof_text(at).startswith("Verified on this run. ")
    assert (response_status(facts["token"]), response_status("guessed"), response_status("x" * 200)) == (202, 404, 413)
    nothing_known.set()
    background_checks.wait(("vit", ()))
    assert response_status(facts["token"]) == 204
    at.run()
    facts, header = page_payload(at)
    assert not facts["checking"] and not component(at, "checked") and response_status(facts["token"]) == 204
    proofs = ["".join(text for _, text in detail["proof"]) for detail in header["details"].values()]
    assert len(proofs) == 91 and all(proof.startswith("Verified on this run and 3 others. ") for proof in proofs)


def test_one_check_is_for_all_visitors_and_holds_none_of_their_runs(nothing_known):
    nothing_known.set()
    pages = [open_page("pages/trace.py") for _ in range(2)]
    background_checks.wait(("vit", ()))
    for number, at in enumerate(pages):
        upload(at, picture("PNG", (40, 30), number), f"{number}.png")
        at.run()
    assert all("on this run and 3 others" in proof_text(at) for at in pages)
    assert len(background_checks._results) == 1 and len(background_checks._displayed_runs) == 3, (
        "the sample's and two photos'"
    )
    held = [weakref.ref(at.session_state["visitor"].run()) for at in pages]
    at = None
    pages.clear()
    run_cache._user_runs.clear()
    gc.collect()
    assert [run() for run in held] == [None, None] and len(background_checks._displayed_runs) == 1


def test_changed_lines_that_nobody_looks_at_any_more_are_not_checked(nothing_known):
    at = visit("trace", change="block1.norm1=zero")
    visitor, keys = at.session_state["visitor"], []
    for change in ("block2.norm1=zero", "block3.norm1=zero"):  # they wait for the first check, which waits for `go`
        visitor.change("vit", (change,))
        at.run()
        keys.append(("vit", visitor.options["vit"]))
    nothing_known.set()
    for key in keys:
        background_checks.wait(key)
    assert [background_checks._results.get(key) is not None for key in keys] == [False, True]
    visitor.change("vit", ("block2.norm1=zero",))
    at.run()
    background_checks.wait(keys[0])
    assert background_checks._results.get(keys[0]) is not None


def test_a_line_that_other_runs_contradict_turns_red(monkeypatch):
    run = tracer.load("vit").trace()
    found = bounded.results(run)
    found[SCORES] = found[SCORES]._replace(refuted=True, replayed="It does not hold on another run, with other inputs.")
    found["cls"] = found["cls"]._replace(checked=3, unseen=(r"\mathbf{X}",))
    found["logits"] = found["logits"]._replace(latex="another line")
    monkeypatch.setattr(background_checks, "find", lambda key: found)
    at = open_page("pages/trace.py")
    details = page_payload(at)[1]["details"]
    assert Counter(detail["verdict"] for detail in details.values()) == {"verified": 90, "refuted": 1}
    assert proof_text(at).startswith("Refuted. It does not hold on another run")
    assert "This check does not test" in proof_text(at, "cls")
    assert proof_text(at, "logits").endswith(bounded.ELSEWHERE)


@pytest.fixture
def contradict_models(monkeypatch):
    """Have other runs contradict the scores, the weights and the answer of every model."""
    found = tracer.load("vit").trace()
    found = replace(found, steps=tuple(replace(step, checked=3) for step in found.steps))
    wrong = {"block1.attention.scores", "block1.attention.weights", "block4.attention.weights", "logits"}
    results = bounded.results(found)
    for id in wrong & results.keys():
        results[id] = results[id]._replace(checked=2, refuted=True, replayed="It does not hold on another run.")
    monkeypatch.setattr(background_checks, "find", lambda key: results)
    monkeypatch.setattr(background_checks._results, "get", lambda key: results)
    return found, len(wrong & results.keys())


def test_every_page_counts_a_line_that_other_runs_contradict_as_refuted(contradict_models):
    found, count = contradict_models
    at = open_page("pages/overview.py")
    (label,) = [part.label for part in at.expander if part.label.startswith("The run in numbers")]
    assert label.endswith(f"{len(found.steps) - count} of {len(found.steps)} equations verified")
    assert f"{count} of the equations do not give what the model computed" in at.error[0].value
    assert "✕ refuted on another run" in component(at, "film")
    for page in ("attention", "mask"):
        name = {"attention": "attention_map", "mask": "mask"}[page]
        assert "✕ refuted" in component(open_page(f"pages/{page}.py"), name), page
    at = open_page("pages/operations.py")
    at.segmented_control[0].set_value("steps").run()
    assert component(at, "operations").count("refuted on another run") == count
    run = background_checks.apply(("vit", ()), at.session_state["visitor"].run())
    assert handout.render(run).count('class="refuted"') == handout.render(run).count("hold on another run.") > 0
    assert render(run, format="table").count("REFUTED on another run") > 0


def test_a_note_does_not_hold_where_other_runs_contradict_its_line():
    row, *_ = (row for row in statements.rows("001") if "step block1.attention.scores" in row.where)
    run = tracer.load("vit-note").trace()
    assert evaluate.result(row, lambda name: (None, run)).verdict == "holds"
    wrong = {"refuted": True, "replayed": "It does not hold on another run."}
    steps = (replace(step, **wrong) if step.id == SCORES else step for step in run.steps)
    changed = replace(run, steps=tuple(steps))
    found = evaluate.result(row, lambda name: (None, changed))
    assert found.verdict == "not" and "refuted: It does not hold" in found.findings[0].measured


def test_a_model_that_cannot_be_checked_says_why_and_its_page_stays(monkeypatch, nothing_known):
    def fails(*key, **how):
        raise RuntimeError("no such sample")

    monkeypatch.setattr(run_cache, "of_first_sample", fails)
    nothing_known.set()
    at = open_page("pages/trace.py")
    background_checks.wait(("vit", ()))
    at.run()
    assert proof_text(at).endswith("It was not checked on other runs (no such sample).")
    assert {detail["verdict"] for detail in page_payload(at)[1]["details"].values()} == {"verified"}


def test_what_is_too_large_is_not_run_again_and_says_so(monkeypatch):
    run = tracer.load("vit", **SIZES).trace()
    assert bounded.check(run).step("logits").checked == 3
    for bound in ("MOST_BYTES", "MOST_FLOPS"):
        with monkeypatch.context() as small:
            small.setattr(bounded, bound, 1000)
            assert "more than is done unasked" in bounded.check(run).step("logits").replayed
            small.setattr(background_checks, "find", lambda key: pytest.fail("it is too large"))
            small.setattr(single_flight, "_store", Cache(1000))  # which knows that it is not
            at = open_page("pages/trace.py")
            assert not page_payload(at)[0]["checking"] and "In Python, trace.check() does it." in proof_text(at)


def test_a_check_lets_every_visitor_go_first_and_ends_with_the_server(monkeypatch):
    monkeypatch.setattr(single_flight, "line", JobQueue(2))
    go, begun, done = threading.Event(), threading.Event(), []
    visitor = single_flight.line.join(lambda: (begun.set(), go.wait(60)))
    assert begun.wait(10) and not single_flight.line.wait_for_visitors(0.01)
    run = tracer.load("vit", **SIZES).trace()

    def works():
        with listen(background_checks._give_way):
            done.append(run.check())

    working = threading.Thread(target=works)
    working.start()
    working.join(0.5)
    assert working.is_alive() and not done
    go.set()
    assert visitor.wait(10) and single_flight.line.wait_for_visitors(10)
    working.join(60)
    assert {step.checked for step in done[0].steps} == {3}
    monkeypatch.setattr(background_checks, "stop_event", threading.Event())
    background_checks.stop_event.set()
    with pytest.raises(JobEnd), listen(background_checks._give_way):
        run.check()


def test_a_check_that_waits_for_visitors_moves_to_the_process_once_that_serves(nothing_known, monkeypatch):
    nothing_known.set()
    go, serving, made = threading.Event(), threading.Event(), []
    monkeypatch.setattr(single_flight, "line", JobQueue(1))
    monkeypatch.setattr(model_process, "is_ready", serving.is_set)

    def check(*key):
        made.append(serving.is_set())
        tell()
        return {}

    monkeypatch.setattr(background_checks, "_run_check", check)
    visitor = single_flight.line.join(lambda: go.wait(60))
    checking = threading.Thread(target=background_checks._check, args=(("vit", ()),))
    checking.start()
    checking.join(0.3)
    assert made == [False] and not background_checks._results.get(("vit", ()))
    serving.set()
    while len(made) < 2 and checking.is_alive():
        time.sleep(0.01)
    go.set()
    checking.join(60)
    assert made == [False, True] and background_checks._results.get(("vit", ())) == {} and visitor.wait(10)


def test_other_work_beside_visitors_gives_way_and_ends_like_a_check(monkeypatch):
    monkeypatch.setattr(single_flight, "line", JobQueue(2))
    monkeypatch.setattr(background_checks, "stop_event", threading.Event())
    go, begun, told = threading.Event(), threading.Event(), []
    visitor = single_flight.line.join(lambda: (begun.set(), go.wait(60)))
    assert begun.wait(10)
    working = threading.Thread(target=background_checks.beside, args=(lambda: (tell(1, 2, "step"), told.append(1)),))
    working.start()
    working.join(0.5)
    assert working.is_alive() and not told
    go.set()
    working.join(60)
    assert told == [1] and visitor.over
    background_checks.stop_event.set()
    background_checks.beside(lambda: told.append(2))
    assert told == [1]


def test_a_lightened_run_holds_no_model():
    run = lighten(tracer.load("vit", **SIZES).trace(), 0)
    assert run.later is None and run.replay is None and "input image" in run.values


def test_a_saved_run_of_a_library_is_verified_again_from_its_own_parameters():
    model = tracer.load("vit", **SIZES)
    run = lighten(model.trace(), 2**20)
    without, opened = (tracer.open(serialization.to_bytes(run, net)) for net in (None, model.net))
    assert without.step("logits").verdict == "recorded"
    assert {step.verdict for step in opened.steps} == {"verified"}
    wrong = copy.deepcopy(model.net)
    with torch.no_grad():
        wrong.head.weight.mul_(2)
    assert tracer.open(serialization.to_bytes(run, wrong)).step("logits").verdict == "refuted"


def test_the_command_line_says_on_how_many_other_runs_lines_hold(capsys, monkeypatch):
    small = ("trace", "transformer", "--format")
    assert cli.main([*small, "json"]) == 0
    assert {step["checked"] for step in json.loads(capsys.readouterr().out)["steps"]} == {3}
    monkeypatch.setattr(bounded, "MOST_FLOPS", 1000)
    assert cli.main([*small, "table"]) == 0
    out, err = capsys.readouterr()
    assert "other run" not in out and err.count("\n") == 1 and "more than is done unasked" in err


@pytest.mark.sweep
def test_verify_counts_what_no_check_sees(monkeypatch):
    model = tracer.load("transformer")
    assert "unseen" not in verify.report(model)
    check = tracer.Trace.check

    def blind(trace):
        first, *others = check(trace).steps
        return replace(trace, steps=(replace(first, unseen=("a", "b")), *others))

    monkeypatch.setattr(tracer.Trace, "check", blind)
    report = verify.report(model)
    assert report["unseen"] == 2 and "transformer: no check sees 2 operands." in verify.text([report])
