"""1F1B of probed_training.py in which rank 2 is killed in the middle of its third step."""

from __future__ import annotations

import os
import signal
import sys
import time

import probed_training
import probes

calls = 0
log_work = probes.log_work


def log_and_die(kind, stage, microbatch):
    global calls
    log_work(kind, stage, microbatch)
    calls += kind == "forward" and stage == 2 and microbatch == 4
    if calls == 3:
        time.sleep(1)  # longer than the recorder's flush interval, so that earlier spans are stored
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    probes.log_work = log_and_die
    sys.argv = [sys.argv[0], "1F1B", sys.argv[1], "4"]
    probed_training.main()
