"""Driver of a class: it plays a lesson without an error, and counts errors."""

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from streamlit.proto.Alert_pb2 import Alert
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from tests.load import server
from tests.load.__main__ import quantile, report, thin_out
from tests.load.lesson import SHARES, Act, Student
from tests.load.visitor import Answer, Visitor


async def lesson(address: str, students: int, acts: int) -> list[Act]:
    """Return the acts of a small class without pauses."""

    async def attends(number: int) -> list[Act]:
        student = Student(number, address)
        done = [await student.open()] + [await student.act() for _ in range(acts)]
        await student.visitor.close()
        return done

    each = await asyncio.gather(*(attends(number) for number in range(students)))
    return [act for done in each for act in done]


def run_coroutine(work):
    """Return the result of a coroutine, run in a thread of its own: a browser that other tests opened uses the loop of
    this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


@pytest.mark.sweep
def test_three_students_meet_no_error(app_server):
    acts = run_coroutine(lesson(app_server, 3, 12))
    assert [problem for act in acts for problem in act.answer.problems] == []
    assert {act.kind for act in acts} == {"open", *SHARES}
    assert all(act.answer.bytes > 1000 and act.answer.seconds > 0 for act in acts)
    assert "errors: 0" in report(acts, 1.0, [(0.0, 1.0)])


@pytest.mark.sweep
def test_what_a_page_refuses_is_counted(app_server):
    async def refused_answer() -> Answer:
        visitor = Visitor(app_server)
        await visitor.open("?model=nanogpt")
        answer = await visitor.set(visitor.find("text_area", "Your text"), string_value="^^")
        await visitor.close()
        return answer

    answer = run_coroutine(refused_answer())
    assert len(answer.problems) == 1 and "'^^' contains '^'" in answer.problems[0]
    lines = report([Act("text", True, answer)], 1.0, [])
    assert "errors: 1" in lines and lines[-1].endswith(answer.problems[0])


def test_a_lesson_begins_once_the_server_is_idle(monkeypatch):
    spent = iter([0.0, 5.0, 9.0, 9.1, 20.0])
    waited = []
    monkeypatch.setattr(server.time, "sleep", waited.append)
    server.wait_until_idle(SimpleNamespace(cpu=lambda: next(spent)))
    assert len(waited) == 3 and next(spent) == 20.0


def test_the_report_has_the_time_of_all_acts():
    acts = [Act("open", False, Answer(seconds=1.0)), Act("photo", True, Answer(seconds=3.0))]
    (line,) = (line.split() for line in report(acts, 1.0, []) if line.startswith("all "))
    assert line[1] == "2" and line[4] == "3.00"


class Told:
    """A socket with scripted messages."""

    def __init__(self, *messages: ForwardMsg):
        self.messages = [message.SerializeToString() for message in messages]

    async def send(self, data: bytes) -> None:
        pass

    async def recv(self) -> bytes:
        return self.messages.pop(0)


def exception() -> ForwardMsg:
    message = ForwardMsg()
    message.delta.new_element.exception.type, message.delta.new_element.exception.message = "SystemError", "too deep"
    return message


def alert(kind: int) -> ForwardMsg:
    message = ForwardMsg()
    message.delta.new_element.alert.format, message.delta.new_element.alert.body = kind, "so it is"
    return message


@pytest.mark.parametrize(
    ("message", "problems"),
    [
        (exception(), ["SystemError: too deep"]),
        (alert(Alert.ERROR), ["the page says: so it is"]),
        (alert(Alert.WARNING), []),
        (ForwardMsg(page_not_found={"page_name": "nowhere"}), ["there is no page 'nowhere'"]),
    ],
)
def test_every_error_on_a_page_is_counted(message, problems):
    visitor = Visitor("http://127.0.0.1:1")
    visitor._socket = Told(message, ForwardMsg(script_finished=ForwardMsg.FINISHED_SUCCESSFULLY))
    assert run_coroutine(visitor.rerun()).problems == problems


def test_a_large_message_that_is_only_named_is_the_one_of_before():
    first = ForwardMsg(hash="abc", metadata={"cacheable": True, "delta_path": [0, 0]})
    first.delta.new_element.markdown.body = "long"
    again = ForwardMsg(ref_hash="abc", metadata={"delta_path": [0, 3]})
    over = ForwardMsg(script_finished=ForwardMsg.FINISHED_SUCCESSFULLY)
    visitor = Visitor("http://127.0.0.1:1")
    visitor._socket = Told(first, over, again, over)
    run_coroutine(visitor.rerun())
    run_coroutine(visitor.rerun())
    assert visitor.elements[0, 3].markdown.body == "long"


def test_twenty_acts_have_the_shares_of_a_lesson():
    twenty = Counter(Student(0, "http://127.0.0.1:1")._shuffle_deck())
    assert {kind: 5 * count for kind, count in twenty.items()} == SHARES


def test_figures_over_acts():
    assert quantile([1, 2, 3, 4], 0.5) == 3 and quantile([1], 0.95) == 1
    assert thin_out(list(range(100)), 4)[-1] == 99 and len(thin_out(list(range(100)), 4)) == 4
