"""Log the values of each step of a training to MLflow, Weights & Biases or TensorBoard, through their own clients.

Names and values are those of METRICS (api/metrics.py), one scalar per series: ``stagescope_lost_time_ratio/jitter``.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from stagescope.api.metrics import METRICS, Snapshot
from stagescope.vocabulary.errors import CommandError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stagescope.api.watching import Update

OPTION = "--log-to"
NAME = "stagescope"
DEFAULT_DIRECTORY = "runs/stagescope"
"""Of TensorBoard, which shows what is below `runs`."""
STEP = "stagescope_step"


class RunLogger(Protocol):
    """Where scalars are logged."""

    def log(self, step: int, scalars: dict[str, float]) -> None:
        """Log the values of one step."""

    def close(self) -> None:
        """Store everything."""


class Mlflow:
    """A run of MLflow: that of MLFLOW_RUN_ID, otherwise a new one, at MLFLOW_TRACKING_URI or in a directory."""

    def __init__(self, directory: str | None) -> None:
        """Begin a run. Raises ImportError without the library."""
        import mlflow  # noqa: PLC0415 - an optional library

        self._mlflow = mlflow
        if directory is not None:
            Path(directory).mkdir(parents=True, exist_ok=True)
            mlflow.set_tracking_uri(_store_in(Path(directory).absolute()))
        mlflow.start_run(run_name=None if os.environ.get("MLFLOW_RUN_ID") else NAME)

    def log(self, step: int, scalars: dict[str, float]) -> None:
        """Log the values of one step."""
        self._mlflow.log_metrics(scalars, step=step)

    def close(self) -> None:
        """End the run."""
        self._mlflow.end_run()


def _store_in(directory: Path) -> str:
    """Return the address of a store in a directory: a database, or files where mlflow-skinny has no database.

    MLflow 3 writes files only with MLFLOW_ALLOW_FILE_STORE=true, and states that otherwise. It creates the experiment
    of runs without one only where it creates the directory as well.
    """
    if find_spec("sqlalchemy") is None:
        return (directory / "mlruns").as_uri()
    return f"sqlite:///{directory / 'mlflow.db'}"


class Wandb:
    """A run of Weights & Biases; its environment variables apply, such as WANDB_MODE=offline and WANDB_PROJECT."""

    def __init__(self, directory: str | None) -> None:
        """Begin a run. Raises ImportError without the library."""
        import wandb  # noqa: PLC0415 - an optional library

        if directory is not None:
            Path(directory).mkdir(parents=True, exist_ok=True)
        project = os.environ.get("WANDB_PROJECT") or NAME
        self._run: Any = wandb.init(project=project, dir=directory)
        # Their own step may not go back, as it does when a training is started again.
        self._run.define_metric("*", step_metric=STEP)

    def log(self, step: int, scalars: dict[str, float]) -> None:
        """Log the values of one step."""
        self._run.log({**scalars, STEP: step})

    def close(self) -> None:
        """End the run."""
        self._run.finish()


class TensorBoard:
    """An event file of TensorBoard."""

    def __init__(self, directory: str | None) -> None:
        """Begin a file. Raises ImportError without the library."""
        from tensorboard.summary import Writer  # noqa: PLC0415 - an optional library

        self._writer: Any = Writer(directory or DEFAULT_DIRECTORY)

    def log(self, step: int, scalars: dict[str, float]) -> None:
        """Log the values of one step."""
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


LOGGERS: dict[str, tuple[Callable[[str | None], RunLogger], str]] = {
    "mlflow": (Mlflow, "pip install mlflow"),
    "wandb": (Wandb, "pip install wandb"),
    "tensorboard": (TensorBoard, "pip install tensorboard"),
}
"""Each logger, and how its library is installed."""


def parse_logger(text: str) -> tuple[str, str | None]:
    """Return the name and the directory of ``NAME`` or ``NAME:DIR``. Raises UsageError for an unknown name.

    >>> parse_logger("tensorboard:runs/a")
    ('tensorboard', 'runs/a')
    """
    name, _, directory = text.partition(":")
    if name not in LOGGERS:
        raise UsageError.unusable_value(
            OPTION, text, f"expected NAME or NAME:DIR with one of {', '.join(LOGGERS)}"
        )
    return name, directory or None


@contextmanager
def log_run(text: str, *, per_rank: bool = False) -> Iterator[Callable[[Update], None]]:
    """Log each step to ``NAME`` or ``NAME:DIR`` until the block ends, and yield what takes updates.

    Raises UsageError for an unknown name, and CommandError if its library is missing or refuses to begin.
    """
    name, directory = parse_logger(text)
    make, install = LOGGERS[name]
    try:
        logger = make(directory)
    except ImportError:
        raise CommandError.missing_library(name, f"{OPTION} {name}", install) from None
    except Exception as reason:  # each library has errors of its own
        raise UsageError.unusable_value(OPTION, text, f"{type(reason).__name__}: {reason}") from reason
    snapshot = Snapshot(per_rank=per_rank)

    def take(update: Update) -> None:
        for one in _each_step(update):
            snapshot.add(one)
            if one.steps:
                logger.log(one.steps[-1].step, scalars_of(snapshot))

    try:
        yield take
    finally:
        logger.close()


def scalars_of(snapshot: Snapshot) -> dict[str, float]:
    """Return the present values by name, with the labels behind it."""
    return {
        "/".join((metric.name, *labels)): float(value)
        for metric in METRICS
        for labels, value in metric.samples(snapshot)
    }


def _each_step(update: Update) -> Iterator[Update]:
    """Yield an update per step; what is not about a step belongs to the last one."""
    before = replace(update, alarms=(), skipped=0, stopped=False, continues=False)
    for values in update.steps[:-1]:
        yield replace(before, steps=(values,))
    yield replace(update, steps=update.steps[-1:])
