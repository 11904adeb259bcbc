import pytest

from stagescope.exporters.save import save
from stagescope.exporters.writer import Writer, Written
from stagescope.vocabulary.errors import OutputError
from synthetic import Shape, pipeline_timeline

TIMELINE = pipeline_timeline(Shape(ranks=2, microbatches=1, steps=1))


def write_word(_, path):
    path.write_text("new", encoding="utf-8")
    return Written(path, 3, 0, 0, (), ())


def full_disk(_, path):
    path.write_text("half", encoding="utf-8")
    raise OSError(28, "No space left on device")


def saved(path, write, *, force=False):
    return save(TIMELINE, path, Writer("word", ".txt", "", write), force=force)


def test_file_appears_under_its_own_name_only(tmp_path):
    written = saved(tmp_path / "out.txt", write_word)
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]
    assert written.path == tmp_path / "out.txt"


def test_existing_file_is_kept_without_force_and_replaced_with_it(tmp_path):
    path = tmp_path / "out.txt"
    path.write_text("old", encoding="utf-8")
    with pytest.raises(OutputError, match="already exists"):
        saved(path, write_word)
    assert path.read_text(encoding="utf-8") == "old"
    saved(path, write_word, force=True)
    assert path.read_text(encoding="utf-8") == "new"


def test_full_disk_leaves_the_old_file_and_no_half_one(tmp_path):
    path = tmp_path / "out.txt"
    path.write_text("old", encoding="utf-8")
    with pytest.raises(OutputError, match=r"cannot write .*out.txt: No space left on device"):
        saved(path, full_disk, force=True)
    assert [found.read_text(encoding="utf-8") for found in tmp_path.iterdir()] == ["old"]


def test_an_interruption_leaves_no_file(tmp_path):
    def interrupted(timeline, path):
        write_word(timeline, path)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        saved(tmp_path / "out.txt", interrupted)
    assert list(tmp_path.iterdir()) == []


def test_missing_folder_is_named(tmp_path):
    with pytest.raises(OutputError, match="No such file or directory"):
        saved(tmp_path / "nowhere" / "out.txt", write_word)


def test_folder_is_not_replaced_by_a_file(tmp_path):
    with pytest.raises(OutputError, match="cannot write"):
        saved(tmp_path, write_word, force=True)
    assert tmp_path.is_dir()
