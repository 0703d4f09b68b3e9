"""Work on files is done in order, and nobody waits for it longer than wanted."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from pytest_elastic.file_thread import FileThread

LIMIT_S = 60.0


@pytest.fixture
def no_more_threads() -> Iterator[None]:
    """Let no thread be started, as where a control group allows for no more of them."""
    before = threading.stack_size(1 << 46)
    yield
    threading.stack_size(before)


def test_work_is_done_in_order_and_its_thread_ends() -> None:
    """A process that forks then has no thread of ours."""
    thread, done, threads = FileThread(), [], set[threading.Thread]()
    for number in range(200):
        thread.do(lambda number=number: done.append(number))  # type: ignore[misc]
        thread.do(lambda: threads.add(threading.current_thread()))
    assert thread.wait(LIMIT_S)
    assert done == list(range(200))
    for each in threads:
        assert each is not threading.main_thread()
        each.join(LIMIT_S)
        assert not each.is_alive()


def test_work_that_hangs_holds_up_what_follows_and_nobody_else() -> None:
    """How much is still to be done can be asked."""
    thread, goes_on, done = FileThread(), threading.Event(), []
    thread.do(lambda: done.append(goes_on.wait(LIMIT_S)))
    thread.do(lambda: done.append(True))
    assert not thread.wait(0.01)
    assert (thread.waiting, done) == (2, [])
    goes_on.set()
    assert thread.wait(LIMIT_S)
    assert (thread.waiting, done) == (0, [True, True])


@pytest.mark.usefixtures("no_more_threads")
def test_work_is_done_where_no_thread_can_be_had() -> None:
    """By the caller, who has to wait."""
    thread, done = FileThread(), []
    thread.do(lambda: done.append(threading.current_thread()))
    assert done == [threading.main_thread()]
    assert thread.waiting == 0
