from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import types
import uuid

import pytest

from stagescope.record.imports import ImportWatch


@pytest.fixture
def module_name(tmp_path, monkeypatch):
    """An importable module that has not been imported; ``executed`` shows whether its body has run."""
    name = f"watched_{uuid.uuid4().hex}"
    (tmp_path / f"{name}.py").write_text("executed = False\nexecuted = True\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    sys.modules.pop(name, None)


@pytest.fixture
def watch_for():
    """Watch modules; the returned list contains (name, whether it was executed) per call."""
    watches = []

    def begin(*names, fails=False):
        acted = []

        def act(module):
            acted.append((module.__name__, getattr(module, "executed", None)))
            if fails:
                raise RuntimeError("unknown version")

        watches.append(ImportWatch(dict.fromkeys(names, act)))
        watches[-1].install()
        return acted

    yield begin
    for watch in watches:
        watch.remove()


def watching():
    return [finder for finder in sys.meta_path if isinstance(finder, ImportWatch)]


def test_function_runs_after_the_module_was_executed(module_name, watch_for):
    acted = watch_for(module_name)
    assert acted == []
    importlib.import_module(module_name)
    assert acted == [(module_name, True)]


def test_function_runs_once(module_name, watch_for):
    acted = watch_for(module_name)
    module = importlib.import_module(module_name)
    importlib.reload(module)
    sys.modules.pop(module_name)
    importlib.import_module(module_name)
    assert len(acted) == 1


def test_function_runs_immediately_for_an_imported_module(module_name, watch_for):
    importlib.import_module(module_name)
    assert watch_for(module_name) == [(module_name, True)]
    assert watching() == []


def test_watches_until_the_last_module_is_imported(module_name, watch_for):
    acted = watch_for(module_name, "never.to.come")
    importlib.import_module(module_name)
    assert len(acted) == 1
    assert len(watching()) == 1


def test_stops_watching_after_the_last_module(module_name, watch_for):
    watch_for(module_name)
    importlib.import_module(module_name)
    assert watching() == []


def test_original_loader_is_restored(module_name, watch_for):
    plain = importlib.util.find_spec(module_name).loader
    watch_for(module_name)
    module = importlib.import_module(module_name)
    assert type(module.__spec__.loader) is type(module.__loader__) is type(plain)
    assert module.__spec__.loader is module.__loader__
    assert inspect.getsource(module) == "executed = False\nexecuted = True\n"


def test_module_sees_the_original_loader_during_execution(tmp_path, module_name, watch_for):
    (tmp_path / f"{module_name}.py").write_text(
        "seen = type(__spec__.loader), type(__loader__)", encoding="utf-8"
    )
    watch_for(module_name)
    module = importlib.import_module(module_name)
    assert set(module.seen) == {type(module.__loader__)}


def test_find_spec_alone_changes_nothing(module_name, watch_for):
    acted = watch_for(module_name)
    spec = importlib.util.find_spec(module_name)
    assert spec.loader.get_source(module_name).startswith("executed")
    assert spec.loader.is_package(module_name) is False
    assert acted == []
    importlib.import_module(module_name)
    assert len(acted) == 1


def test_missing_module_is_not_found(watch_for):
    acted = watch_for("no_such_module_anywhere")
    with pytest.raises(ModuleNotFoundError, match="no_such_module_anywhere"):
        importlib.import_module("no_such_module_anywhere")
    assert acted == []
    assert len(watching()) == 1


def test_function_runs_when_a_failed_import_later_succeeds(tmp_path, module_name, watch_for):
    source = tmp_path / f"{module_name}.py"
    good = source.read_text(encoding="utf-8")
    source.write_text("raise ImportError('first try')", encoding="utf-8")
    acted = watch_for(module_name)
    with pytest.raises(ImportError, match="first try"):
        importlib.import_module(module_name)
    assert acted == []
    source.write_text(good + "# another size than the cached one\n", encoding="utf-8")
    importlib.invalidate_caches()
    importlib.import_module(module_name)
    assert acted == [(module_name, True)]


def test_failing_function_does_not_break_the_import(module_name, watch_for, capsys):
    acted = watch_for(module_name, fails=True)
    assert importlib.import_module(module_name).executed
    assert len(acted) == 1
    assert capsys.readouterr().err == (
        f"stagescope: cannot record {module_name}: RuntimeError('unknown version')\n"
    )


def test_function_failing_at_install_breaks_nothing(module_name, watch_for, capsys):
    importlib.import_module(module_name)
    watch_for(module_name, fails=True)
    assert "unknown version" in capsys.readouterr().err


def test_module_blocked_in_sys_modules_is_left_alone(module_name, watch_for, monkeypatch):
    monkeypatch.setitem(sys.modules, module_name, None)
    assert watch_for(module_name) == []


def test_submodules_are_watched(tmp_path, module_name, watch_for):
    package = tmp_path / f"{module_name}_package"
    package.mkdir()
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "inner.py").write_text("executed = True", encoding="utf-8")
    acted = watch_for(f"{package.name}.inner")
    importlib.import_module(f"{package.name}.inner")
    assert acted == [(f"{package.name}.inner", True)]


def test_finders_of_the_training_are_used(watch_for, monkeypatch):
    class Finder:
        @staticmethod
        def find_spec(name, path, target=None):
            del path, target
            return importlib.util.spec_from_loader(name, Loader()) if name == "from_nowhere" else None

    class Loader:
        @staticmethod
        def create_module(spec):
            return types.ModuleType(spec.name)

        @staticmethod
        def exec_module(module):
            module.executed = True

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    acted = watch_for("from_nowhere")
    importlib.import_module("from_nowhere")
    assert acted == [("from_nowhere", True)]
    del sys.modules["from_nowhere"]


def test_unwatched_modules_are_ignored(module_name, watch_for):
    acted = watch_for("never.to.come")
    module = importlib.import_module(module_name)
    assert acted == []
    assert module.__spec__.loader.__class__.__name__ == "SourceFileLoader"


def test_removed_watch_does_nothing(module_name):
    acted = []
    watch = ImportWatch({module_name: acted.append})
    watch.install()
    spec = importlib.util.find_spec(module_name)
    watch.remove()
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.executed
    assert acted == []
