import codecs

import pytest

from stagescope import api
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.text_beginnings import text_encoding, text_hint

TABLE = "rank,lane,kind,start_ns,end_ns,name\n0,compute,forward,0,5,\n0,compute,backward,5,15,\n"


@pytest.mark.parametrize("codec", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_a_table_in_another_encoding_is_refused_with_the_program_that_converts_it(tmp_path, codec):
    path = tmp_path / "spans.csv"
    path.write_bytes(TABLE.encode(codec))
    with pytest.raises(InputError, match=r"it is text in UTF-(16|32)") as refused:
        api.read(path)
    name = {"utf-16": "UTF-16", "utf-16-le": "UTF-16LE", "utf-16-be": "UTF-16BE", "utf-32": "UTF-32"}[codec]
    assert f"iconv -f {name} -t UTF-8" in refused.value.hint
    assert TABLE.encode(codec).decode(name).lstrip("\ufeff") == TABLE


@pytest.mark.parametrize(
    ("separator", "name"), [(";", "semicolons"), ("\t", "tabs"), ("|", "vertical bars"), (" ", "spaces")]
)
def test_a_table_with_another_separator_is_refused_with_its_name(tmp_path, separator, name):
    path = tmp_path / "spans.csv"
    path.write_text(TABLE.replace(",", separator), encoding="utf-8-sig")
    with pytest.raises(InputError, match="not a recording or trace") as refused:
        api.read(path)
    assert f"separated by {name}" in refused.value.hint


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"PK\x03\x04",
        b"\0" * 64,
        bytes(range(256)),
        "日本語の文章です。これは表ではない".encode("utf-16-le"),
        b"rank;kind\n",
    ],
)
def test_other_files_have_no_such_hint(head):
    assert text_encoding(head) is None
    assert text_hint(head) is None


def test_a_mark_of_another_encoding_is_recognized_whatever_follows():
    assert text_encoding(codecs.BOM_UTF32_LE + b"xyz") == "UTF-32"
    assert text_encoding(codecs.BOM_UTF16_BE) == "UTF-16"
