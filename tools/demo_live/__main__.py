"""Follow, disturb and control a real training: python -m tools.demo_live [DIRECTORY].

A training of torch with four ranks on CPUs is recorded, watched in the terminal and followed on the page. One rank is
slowed, until the alarm names it; recording is paused and resumed; one rank hangs, until it is named. DIRECTORY
(demo-live) gets session.txt, and pictures of the page if Playwright and Chromium are installed. Everything that was
started has ended at the end, also after Ctrl-C. The exit code is 0 if both ranks were named.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from tools.demo_live.pictures import Pictures
from tools.demo_live.session import Background, DemoError, Session

from stagescope import api

TRAINING = Path("tools", "demo_live", "train.py")
"""Relative: the demo runs in the root of the repository."""
RANKS = 4
SLOW, HUNG = 2, 1
ENOUGH_STEPS = 60
"""Steps before a rank is slowed: an alarm needs 30 steps for what is usual."""

AFTER_PAUSE = 5

START_S, STEPS_S, ALARM_S, HANG_S, END_S = 120.0, 120.0, 120.0, 90.0, 60.0
"""Limits for a machine that does much else; on one that does not, the demo takes a minute in all."""


def main(directory: Path) -> int:
    """Run the demo and return its exit code."""
    if directory.exists() and not (directory / "session.txt").exists():
        sys.stderr.write(f"demo-live: {directory} exists, and is not of this demo\n")
        return 1
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    session = Session(directory / "session.txt")
    control = directory / "control"
    try:
        with Pictures(directory) as pictures:
            play(session, pictures, directory / "recordings", control)
    except DemoError as problem:
        sys.stderr.write(f"demo-live: {problem}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("demo-live: ended\n")
        return 1
    finally:
        control.write_text("stop", encoding="utf-8")
        session.close()
    return 0


def play(session: Session, pictures: Pictures, recordings: Path, control: Path) -> None:
    """Play all scenes."""
    watch = begin(session, pictures, recordings, control)
    slow_down(session, pictures, control, watch)
    resumed_step = pause(session, recordings)
    session.wait(
        "recording after the pause", lambda: (steps_of(recordings) or 0) > resumed_step + AFTER_PAUSE, STEPS_S
    )
    hang(session, pictures, recordings, control)
    session.set(control, "")
    session.wait("the end of the hang", lambda: watch.find("continues"), HANG_S)
    session.step("end the training")
    session.set(control, "stop")
    session.wait("the end of the watch", lambda: watch.process.poll() is not None, END_S)
    session.step("done: the alarm named the slow rank, and the hang the one that held up the others")


def begin(session: Session, pictures: Pictures, recordings: Path, control: Path) -> Background:
    """Start the training, the page and the watch; return the watch."""
    session.step("start a training with four ranks under the recorder")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    words = ["run", "-o", str(recordings), "--", *torchrun, str(TRAINING), str(control)]
    session.start(*words, is_shown=False)
    session.wait("recording", lambda: steps_of(recordings) is not None, START_S)
    session.step("follow it on the page, and watch it in the terminal")
    page = session.start("open", str(recordings), "--no-browser", is_shown=False)
    watch = session.start("watch", str(recordings))
    session.wait("the page", lambda: page.find(r"^open http"), START_S)
    pictures.open((page.find(r"^open http") or "").split()[1])
    session.wait("training", lambda: (steps_of(recordings) or 0) >= ENOUGH_STEPS, STEPS_S)
    pictures.take("live")
    return watch


def slow_down(session: Session, pictures: Pictures, control: Path, watch: Background) -> None:
    """Slow a rank until an alarm names it."""
    session.step(f"slow rank {SLOW} by hand: each of its forwards takes twice as long")
    session.set(control, f"slow {SLOW}")
    session.wait("the alarm", lambda: watch.find(rf"alarm \d+: Rank {SLOW} is \d+ % slower"), ALARM_S)
    pictures.take("alarm", f".alarms :text('Rank {SLOW} is')")
    session.set(control, "")


def pause(session: Session, recordings: Path) -> int:
    """Pause recording, resume it, and return the step from which on it is recorded again."""
    session.step("pause recording, and resume it")
    step = None
    for option in ("--pause", "--resume"):
        code, printed = session.run("control", str(recordings), option)
        step = re.search(r"takes effect at step (\d+)", printed)
        if code or step is None:
            raise DemoError(f"stagescope control {option} has failed")
    return int(step[1]) if step else 0


def hang(session: Session, pictures: Pictures, recordings: Path, control: Path) -> None:
    """Let a rank hang until it is named."""
    session.step(f"let rank {HUNG} hang")
    session.set(control, f"hang {HUNG}")
    named = re.compile(rf"Rank {HUNG} holds up the training")
    session.wait(
        "the hang", lambda: named.search(" ".join(api.hang_sentences(api.find_hang(recordings)))), HANG_S
    )
    code, printed = session.run("hang", str(recordings))
    session.note(f"(exit code {code})")
    if not named.search(printed):
        raise DemoError(f"rank {HUNG} was not named")
    pictures.take("hang", f".live-ranks [role=alert]:has-text('Rank {HUNG} holds up')")


def steps_of(recordings: Path) -> int | None:
    """Return the last step that all ranks have recorded, None before their first."""
    if len(list(recordings.glob("*.sscope"))) < RANKS:
        return None
    steps = [state.step for state in api.find_hang(recordings).states]
    return None if None in steps else min(step for step in steps if step is not None)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo-live")))
