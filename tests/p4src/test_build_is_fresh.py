import json

from mrclab.p4src.compile import BUILD, MANIFEST, PROGRAM, source_digests

MEND = "p4src changed after it was compiled: run 'make p4' (it needs p4c-bm2-ss) and commit p4src/build"


def test_build_was_made_from_these_sources() -> None:
    assert json.loads(MANIFEST.read_text())["sha256"] == source_digests(), MEND


def test_json_names_only_sources_that_exist() -> None:
    program = json.loads((BUILD / f"{PROGRAM}.json").read_text())
    named = {
        parser_state["source_info"]["filename"]
        for pipeline in program["pipelines"]
        for parser_state in pipeline["tables"]
        if "source_info" in parser_state
    }
    assert named
    assert named <= set(source_digests()), MEND
