"""Finding the elements of a JSON array in bytes."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from stagescope.ingest.trace_json.structure import find_elements

VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.dictionaries(st.text(max_size=6), VALUES, max_size=4), max_size=6), st.sampled_from([None, 1])
)
def test_finds_every_object_regardless_of_its_strings(objects, indent):
    text = json.dumps(objects, indent=indent).encode()[1:]
    found = find_elements(text)
    assert [json.loads(text[a:b]) for a, b in zip(found.starts, found.stops, strict=True)] == objects
    assert found.end == len(text)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.dictionaries(st.text(max_size=6), VALUES, max_size=3), min_size=1, max_size=5), st.data())
def test_text_truncated_anywhere_keeps_the_objects_before_the_cut(objects, data):
    text = json.dumps(objects).encode()[1:]
    cut = data.draw(st.integers(0, len(text) - 1))
    found = find_elements(text[:cut])
    whole = [json.loads(text[a:b]) for a, b in zip(found.starts, found.stops, strict=True)]
    assert whole == objects[: len(whole)]
    assert found.end is None


def test_objects_with_invalid_json_have_bounds():
    text = b'{"a": NaN}, {"b": 1e400}, {"c": "\\\\"}] , "x": [{}]}'
    found = find_elements(text)
    assert [text[a:b] for a, b in zip(found.starts, found.stops, strict=True)] == [
        b'{"a": NaN}', b'{"b": 1e400}', b'{"c": "\\\\"}',
    ]  # fmt: skip
    assert text[found.end :] == b' , "x": [{}]}'
