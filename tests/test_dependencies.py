"""What is bundled and what is required: licenses, lower bounds, and that the documents list them."""

from __future__ import annotations

import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ASSETS = ROOT / "src" / "stagescope" / "viewer" / "assets"


def load_tool(name):
    spec = spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    tool = module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def test_the_viewer_contains_the_license_of_every_package_that_it_bundles():
    bundled = json.loads((ROOT / "web" / "package.json").read_text(encoding="utf-8"))["dependencies"]
    notices = (ASSETS / "viewer.licenses.txt").read_text(encoding="utf-8")
    for name, version in bundled.items():
        assert f"{name} {version} (MIT)" in notices
    assert notices.count("Permission is hereby granted") > len(bundled)  # one is required by another
    assert (ASSETS / "viewer.js").read_text(encoding="utf-8").startswith(f"/*!\n{notices}*/\n")


def test_the_bill_of_materials_is_current():
    assert (ROOT / "sbom.cdx.json").read_text(encoding="utf-8") == load_tool("write_sbom").text(), (
        "run make docs"
    )


def test_the_document_lists_license_source_and_lower_bound_of_every_package():
    content = json.loads((ROOT / "sbom.cdx.json").read_text(encoding="utf-8"))
    document = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    for each in content["components"]:
        version = each["version"] if "version" in each else each["properties"][0]["value"]
        (source,) = each["externalReferences"]
        row = f"| [{each['name']}]({source['url']}) | {version} | {each['licenses'][0]['expression']} |"
        assert row in document


def test_lower_bounds_are_pinned_for_the_test_of_them():
    printed = load_tool("lowest_versions").requirements(["a>=1.2", "b-c>=3"])
    assert printed == ["a==1.2", "b-c==3"]
    with pytest.raises(SystemExit, match="no lower bound"):
        load_tool("lowest_versions").requirements(["a"])


def test_an_audit_fails_for_vulnerabilities_alone_and_lists_what_it_could_not_look_up():
    audit = load_tool("audit")
    answered = {"dependencies": [
        {"name": "a", "version": "1", "vulns": [{"id": "PYSEC-1"}]},
        {"name": "b", "version": "2", "vulns": []},
        {"name": "c", "skip_reason": "not found"},
    ]}  # fmt: skip
    assert audit.of_python(answered, ["a", "b", "c"]) == (["a 1: PYSEC-1"], ["pip-audit could not look up c"])
    assert audit.of_python(None, ["a"]) == ([], ["pip-audit could not look up a"])
    assert audit.of_npm({"vulnerabilities": {"d": {"severity": "high"}}}) == (["d: high"], [])
    assert audit.of_npm({"message": "405"})[0] == []
    assert audit.answer(["no-such-program"], ROOT) is None
