import asyncio
import subprocess
import sys
import threading

import pytest

from stagescope.viewer.server.threads import in_thread

ENDS = """
import asyncio, threading, time
from stagescope.viewer.server.threads import in_thread

async def give_up():
    try:
        await asyncio.wait_for(in_thread(lambda: time.sleep(600)), 0.1)
    except asyncio.TimeoutError:
        print("gave up")

asyncio.run(give_up())
"""


def test_work_is_done_in_another_thread_and_its_result_comes_back():
    assert asyncio.run(in_thread(threading.get_ident)) != threading.get_ident()
    assert asyncio.run(in_thread(lambda: None)) is None


def test_what_work_raises_is_raised_where_it_was_asked_for():
    with pytest.raises(ZeroDivisionError):
        asyncio.run(in_thread(lambda: 1 // 0))


def test_a_process_ends_though_its_work_goes_on():
    done = subprocess.run(
        [sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("gave up\n", "")
