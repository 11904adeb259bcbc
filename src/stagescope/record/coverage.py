"""What is recorded of each framework in this process, as a fact in the header of the recording.

The header's ``frameworks`` maps the name of a framework to

* ``version``: its version, null if unknown;
* ``recorded``: whether its hooks are installed;
* ``missing``: with ``recorded`` false the reasons, such as functions that this version lacks; otherwise what is not
  recorded because optional functions are missing;
* ``supported``: with ``recorded`` false, the range of versions that fit;
* ``errors``, ``error``, ``disabled``: the number of errors in its hooks, the first of them, and whether its hooks were
  turned off because of them;
* ``unrecorded_schedules``: schedules that ran and are known, but not recorded;
* ``empty_steps``: other steps that ended without a recorded action.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagescope.record.hooks import MAX_ERRORS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagescope.record.recorder import Recorder

MAX_LISTED = 20
"""Missing functions listed in the header; a framework may be laid out differently as a whole."""

MAX_NAMED = 3
"""Those of them that are named on stderr."""


class Coverage:
    """The coverage of all frameworks that this process has imported."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.frameworks: dict[str, dict[str, Any]] = {}
        self._explained_step: int | None = None

    def installed(self, name: str, version: str | None, missing: Sequence[str] = ()) -> None:
        """Note that the hooks of a framework are installed, but for `missing` optional functions."""
        known = self.frameworks.setdefault(name, {"version": version, "recorded": True, "missing": []})
        known["missing"] = sorted({*known["missing"], *missing})[:MAX_LISTED]
        self._describe()

    def refused(
        self, name: str, version: str | None, missing: Sequence[str], supported: str | None = None
    ) -> None:
        """Report that a framework does not fit and that nothing of it is recorded.

        The recording is created in any case, so that a report on it can state the reason.
        """
        listed = list(missing)[:MAX_LISTED]
        self.frameworks[name] = {
            "version": version,
            "recorded": False,
            "missing": listed,
            "supported": supported,
        }
        reasons = ", ".join(listed[:MAX_NAMED]) + (" and more" if len(listed) > MAX_NAMED else "")
        range_ = f"supported {supported}: " if supported else ""
        self._recorder.warn(
            f"{name} {version or '(unknown version)'}: {reasons}; {range_}nothing of it is recorded"
        )
        self._describe()
        self._recorder.keep_without_spans()

    def failed(self, name: str, error: Exception, errors: int, *, is_off: bool) -> None:
        """Report the first error in the hooks of a framework, and that they are turned off."""
        known = self.frameworks.setdefault(name, {"version": None, "recorded": True, "missing": []})
        known.setdefault("error", repr(error)[:200])
        known["errors"], known["disabled"] = errors, is_off
        if errors == 1:
            self._recorder.warn(f"{name}: an action may be missing: {error!r}")
        if is_off:
            self._recorder.warn(f"{name}: not recorded from here on, after {MAX_ERRORS} errors: {error!r}")
        self._describe()

    def schedule_is_unrecorded(self, name: str, schedule: str) -> None:
        """Report that a schedule runs that is known, but not recorded. The current step has no actions for it."""
        self._explained_step = self._recorder.step
        known = self.frameworks.setdefault(name, {"version": None, "recorded": True, "missing": []})
        schedules = known.setdefault("unrecorded_schedules", [])
        if schedule in schedules:
            return
        schedules.append(schedule)
        self._recorder.warn(f"{name}: the schedule {schedule} is not recorded")
        self._describe()
        self._recorder.keep_without_spans()

    def step_was_empty(self, name: str, step: int) -> None:
        """Report a step that ended without a recorded action, unless its schedule has been named."""
        if step == self._explained_step:
            return
        known = self.frameworks.setdefault(name, {"version": None, "recorded": True, "missing": []})
        if not known.get("empty_steps"):
            self._recorder.warn(
                f"{name}: step {step} ended without a recorded action: its schedule is not recorded"
            )
        known["empty_steps"] = known.get("empty_steps", 0) + 1
        self._describe()

    def _describe(self) -> None:
        self._recorder.describe(frameworks={name: dict(facts) for name, facts in self.frameworks.items()})
