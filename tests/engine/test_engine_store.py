"""What is kept is there as a whole, whatever happens to the process, the disk or the file."""

import errno
import multiprocessing
import os
import signal
import stat
import time

import pytest

from flower_fedclust.engine import store as module
from flower_fedclust.engine.store import BusyError, Store
from flower_fedclust.numerics.checks import DataError

FORK = multiprocessing.get_context("fork")
BOTH = pytest.mark.parametrize("alone", [False, True])

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def store(folder, **options):
    return Store(folder / "x.sqlite", "numbers", "choose another folder", **options)


@BOTH
def test_contents_come_back_in_the_order_in_which_they_were_first_put(tmp_path, alone, monkeypatch):
    monkeypatch.setattr(module, "PIECE", 4)
    with store(tmp_path, alone=alone) as one:
        for name, content in (("b", b"0123456789"), ("a", b""), ("b", b"0123456"), ("c", b"abcd")):
            with one.changing():
                one.put("here", name, content)
    assert list(store(tmp_path, alone=alone).items("here")) == [
        ("b", b"0123456"),
        ("a", b""),
        ("c", b"abcd"),
    ]
    assert store(tmp_path, alone=alone).get("there", "b") is None


def test_reading_creates_nothing_and_what_is_created_is_for_its_owner(tmp_path):
    assert store(tmp_path).get("here", "a") is None
    assert store(tmp_path).names() == []
    assert list(tmp_path.iterdir()) == []
    one = store(tmp_path / "new")
    with one.changing():
        one.put("here", "a", b"1")
    for path in [tmp_path / "new", *(tmp_path / "new").iterdir()]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


def test_a_change_that_fails_leaves_everything_as_it_was(tmp_path):
    one = store(tmp_path)
    with one.changing():
        one.put("here", "a", b"1")

    def failing():
        with one.changing():
            one.put("here", "a", b"2")
            one.put("here", "b", b"2")
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert list(one.items("here")) == [("a", b"1")]


def _count(folder, *, alone, until):
    """Write two contents that are always equal, again and again."""
    with store(folder, alone=alone) as one:
        for number in range(until):
            with one.changing(at_once=not alone):
                found = [int(one.get("here", name) or 0) for name in ("first", "second")]
                assert found[0] == found[1]
                for name in ("first", "second"):
                    one.put("here", name, str(found[0] + 1).encode() * 2000)
                    one.put("here", name, str(found[0] + 1).encode())
            if number == 0:
                (folder / "begun").touch()


@BOTH
def test_a_process_that_is_killed_anywhere_leaves_a_whole_change(tmp_path, alone):
    before = 0
    for attempt in range(6):
        (tmp_path / "begun").unlink(missing_ok=True)
        process = FORK.Process(
            target=_count, args=(tmp_path,), kwargs={"alone": alone, "until": 10**6}
        )
        process.start()
        while not (tmp_path / "begun").exists():
            assert process.is_alive()
            time.sleep(0.005)
        time.sleep(0.0017 * attempt)
        process.kill()
        process.join()
        found = {name: int(content) for name, content in store(tmp_path, alone=alone).items("here")}
        assert found["first"] == found["second"] > before
        before = found["first"]


def test_processes_wait_for_each_other_and_none_loses_a_change(tmp_path):
    processes = [
        FORK.Process(target=_count, args=(tmp_path,), kwargs={"alone": False, "until": 8})
        for _ in range(4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == 4 * [0]
    assert dict(store(tmp_path).items("here")) == {"first": b"32", "second": b"32"}


def test_a_file_of_one_process_is_refused_to_others_until_it_ends(tmp_path):
    def other():
        try:
            store(tmp_path, alone=True).get("here", "a")
        except BusyError:
            os._exit(3)

    with store(tmp_path, alone=True):
        process = FORK.Process(target=other)
        process.start()
        process.join()
        assert process.exitcode == 3
        with pytest.raises(BusyError, match=r"another process is writing .*x\.sqlite"):
            store(tmp_path, alone=True).get("here", "a")
    killed = FORK.Process(
        target=lambda: (
            store(tmp_path, alone=True).__enter__(),
            os.kill(os.getpid(), signal.SIGKILL),
        )
    )
    killed.start()
    killed.join()
    assert store(tmp_path, alone=True).get("here", "a") is None


@BOTH
def test_a_full_disk_is_named_and_loses_nothing(tmp_path, alone):
    with store(tmp_path, alone=alone) as one:
        with one.changing():
            one.put("here", "a", b"1")
        one._open.execute("PRAGMA max_page_count = 8")
        with pytest.raises(OSError, match=r"x\.sqlite") as caught, one.changing():
            one.put("here", "a", bytes(10**5))
        assert caught.value.errno == errno.ENOSPC
        assert one.get("here", "a") == b"1"
    assert store(tmp_path, alone=alone).get("here", "a") == b"1"


def test_what_is_no_file_is_named(tmp_path):
    (tmp_path / "x.sqlite").mkdir()
    with pytest.raises(DataError, match=r"x\.sqlite is no file; choose another folder\."):
        store(tmp_path).get("here", "a")


def test_a_damaged_file_is_named(tmp_path):
    one = store(tmp_path)
    with one.changing():
        one.put("here", "a", bytes(10**5))
    content = bytearray((tmp_path / "x.sqlite").read_bytes())
    content[4096:] = bytes(len(content) - 4096)
    (tmp_path / "x.sqlite").write_bytes(content)
    with pytest.raises(
        DataError, match=r"x\.sqlite is damaged, or does not hold numbers; choose another folder\."
    ):
        one.get("here", "a")


@pytest.mark.parametrize("text", [b"CREATE TABLE kept", b"herea"])
def test_a_damaged_text_is_named(tmp_path, text):
    one = store(tmp_path)
    with one.changing():
        one.put("here", "a", b"1")
    content = (tmp_path / "x.sqlite").read_bytes()
    assert text in content
    (tmp_path / "x.sqlite").write_bytes(content.replace(text, b"\x8a" + text[1:]))
    with pytest.raises(DataError, match=r"x\.sqlite is damaged"):
        one.names()


def test_what_is_forgotten_takes_no_room(tmp_path):
    one = store(tmp_path)
    with one.changing():
        one.put("here", "a", bytes(10**6))
        one.put("there", "b", b"1")
    with one.changing():
        one.forget("here")
    assert (tmp_path / "x.sqlite").stat().st_size < 10**5
    assert [name for _, name, _ in one.names()] == ["b"]
