"""The translations that come with the data of a page."""

from stagescope.reports.translations import texts_of_objects, translations_of, with_translations


def test_texts_without_a_translation_are_left_out():
    found = translations_of(["jitter", "node-7", "1F1B · 4 ranks · 3 steps"])
    assert found == {"zh": {"jitter": "抖动", "1F1B · 4 ranks · 3 steps": "1F1B · 4 个 rank · 3 步"}}
    assert translations_of(["node-7"]) == {}


def test_objects_of_a_page_get_the_translations_of_all_their_sentences():
    objects = {
        "verdict": {
            "why": "The bubble is unknown: no actions.",
            "improvement": "",
            "tested": "No change was tested.",
            "findings": [{"text": "Step 3 took 7.000 ms longer than usual."}],
        },
        "understood": [("ranks", "4 (0-3)")],
        "ledger": {
            "denominator": "own clock",
            "parts": [
                {"name": "stage_imbalance", "label": "stage imbalance", "meaning": "Stages differ in cost."}
            ],
        },
        "comparison": {"sentences": ["No change was tested."], "diagnostics": [{"message": "no actions"}]},
    }
    found = with_translations(objects)
    assert {name: found[name] for name in objects} == objects
    known = found["translations"]["zh"]
    assert set(texts_of_objects(objects)) - set(known) == {"own clock"}
    assert known["Step 3 took 7.000 ms longer than usual."] == "第 3 步比通常长 7.000 ms。"


def test_objects_without_texts_have_no_translations():
    assert with_translations({}) == {}
