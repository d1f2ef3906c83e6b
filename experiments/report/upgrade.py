"""Old results in today's form: one pure function for the three forms that came before ``mrclab.result/2``.

Values that an old form did not measure stay unknown: nothing is measured again, and a note names the old
form.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any

from mrclab.experiments.measure.recovery import BY_SEGMENT_LIST
from mrclab.experiments.report.build import joined_validity, time_summary
from mrclab.experiments.report.model import SCHEMA, TIMES
from mrclab.linux.errors import InputError

OLD_RULE = "late messages of the application, or where none was late the usual latency (mrclab.comparison/1)"
_TRIAL_NAMES = {"first_hit": "first_loss", "detect": "detected", "switch": "rerouted", "whole": "recovered"}
_METRIC_NAMES = {
    "detect_us": "detected_us",
    "switch_us": "rerouted_us",
    "whole_us": "recovered_us",
    "since_hit_us": "recovered_since_loss_us",
}
_CHECK_NAMES = {
    "rtx_not_before_detect": "rtx_not_before_detected",
    "silent_after_switch": "silent_after_rerouting",
}


def upgrade(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result in form ``mrclab.result/2``, whatever its form. Raise InputError on other forms."""
    form = str(result.get("schema"))
    if form == SCHEMA:
        return dict(result)
    if form not in _UPGRADES:
        known = ", ".join([SCHEMA, *_UPGRADES])
        raise InputError(f"not a result of schema {known}")
    try:
        return _UPGRADES[form](result)
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"not a whole result of schema {form}: {error!r}") from None


def _common(old: Mapping[str, Any], scenario: str, transports: Mapping[str, Any]) -> dict[str, Any]:
    """Return the common part of all forms."""
    validity = joined_validity({name: part["validity"] for name, part in transports.items()})
    validity["notes"] = [*validity["notes"], f"this result was written in form {old['schema']}"]
    command = old.get("command") or shlex.split(old.get("reproduce", ""))
    return {
        "schema": SCHEMA,
        "scenario": scenario,
        "claim": old.get("claim", ""),
        "parameters": old["parameters"],
        "target": old["target"],
        "topology": old["topology"],
        "seed": old["seed"],
        "command": list(command),
        "finished": old["finished"],
        "system": old["system"],
        "valid": not validity["reasons"],
        "validity": validity,
        "integrity": old["integrity"],
        "bytes_delivered": old.get("bytes_delivered"),
        "trials": [],
        "set_aside": [],
        "summary": {name: time_summary((), name) for name in TIMES},
        "transports": dict(transports),
        "method": dict(old.get("method", {})),
        **({"verdict": old["verdict"]} if old.get("verdict") else {}),
    }


def _part(old: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return the one transport of a form that had no transports."""
    validity = old.get("validity", {})
    return {
        "meaning": "MRC: sprays over all planes, retires paths that lose",
        "kind": "mrc",
        "routing": "srv6",
        "options": {},
        "one_plane": False,
        "loss": 0.0,
        "detection_ns": None,
        "valid": not validity.get("reasons"),
        "validity": {key: validity.get(key, []) for key in ("reasons", "notes")}
        | {"rules": validity.get("rules", {}), "loads": validity.get("loads", [])},
        "integrity": old["integrity"],
        "bytes_delivered": old.get("bytes_delivered"),
        "counters": {},
        "summary": {},
        "samples": [],
        "set_aside": [],
        "series": [],
        "links": [],
        "faults": [],
        "pictures": [],
        "details": [],
        **more,
    }


def _of_link_kill(old: Mapping[str, Any]) -> dict[str, Any]:
    trials, aside = ([_link_kill_trial(t) for t in old.get(key, ())] for key in ("trials", "set_aside"))
    summary = {name: time_summary(trials, name) for name in TIMES}
    faults = [{"repetition": 0, **trial["fault"]} for trial in trials]
    details = [{"repetition": 0, **{key: old[key] for key in ("endpoints", "stream") if key in old}}]
    part = _part(old, summary=summary, faults=faults, details=details)
    result = _common(old, old["scenario"], {"mrc": part})
    return result | {"trials": trials, "set_aside": aside, "summary": summary}


def _link_kill_trial(old: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"transport": "mrc", "repetition": 0}
    for key, value in old.items():
        base, _, rest = key.partition("_us") if key == "first_hit_us" else key.partition("_")
        name = _TRIAL_NAMES.get(base)
        found[f"{name}_{rest or 'us'}" if name and key != "whole_since_hit_us" else key] = value
    found["recovered_since_loss_us"] = found.pop("whole_since_hit_us", None)
    felt = bool(old["lost_packets"])
    checks = [check | {"name": _CHECK_NAMES.get(check["name"], check["name"])} for check in old["checks"]]
    found |= {"felt": felt, "rule": BY_SEGMENT_LIST, "fault": _fault(old["fault"]), "checks": checks}
    if not felt:
        found |= dict.fromkeys(TIMES)
    return found


def _fault(old: Mapping[str, Any]) -> dict[str, Any]:
    return {"direction": "both", "params": {}, "at_us": None, **old}


def _of_comparison(old: Mapping[str, Any]) -> dict[str, Any]:
    trials = []
    counts: dict[tuple[str, int], int] = {}
    for trial in old["trials"]:
        place = (trial["transport"], trial["repetition"])
        number = counts[place] = counts.get(place, -1) + 1
        trials.append(_comparison_trial(trial, number))
    transports = {}
    for name, part in old["transports"].items():
        ours = [trial for trial in trials if trial["transport"] == name]
        times = {time: time_summary(ours, time) for time in TIMES} if ours else {}
        summary = {metric: row for metric, row in part["summary"].items() if metric not in _METRIC_NAMES}
        samples = [sample | {"metrics": _other_metrics(sample["metrics"])} for sample in part["samples"]]
        transports[name] = {
            **part,
            "summary": {**times, **summary},
            "samples": samples,
            "set_aside": part.get("set_aside", []),
            "links": part.get("links", []),
            "faults": [{**_fault(fault), "repetition": fault["repetition"]} for fault in part["faults"]],
            "pictures": [],
            "details": [],
        }
        transports[name]["validity"] = {"rules": {}, **part["validity"]}
    result = _common(old, old["scenario"], transports)
    first = next(iter(transports.values()))["summary"]
    return result | {"trials": trials, "summary": {t: first.get(t) or time_summary((), t) for t in TIMES}}


def _other_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values for name, values in metrics.items() if name not in _METRIC_NAMES}


def _comparison_trial(old: Mapping[str, Any], number: int) -> dict[str, Any]:
    reasons = {
        f"{_TRIAL_NAMES[base]}_reason": old[f"{base}_reason"]
        for base in ("detect", "switch")
        if f"{base}_reason" in old
    }
    return {
        "transport": old["transport"],
        "repetition": old["repetition"],
        "trial": number,
        "fault": _fault(old["fault"]),
        "felt": None,
        "rule": OLD_RULE,
        "first_loss_us": None,
        **{new: old.get(name) for name, new in _METRIC_NAMES.items()},
        **reasons,
        "gap_us": old.get("gap_us"),
        **{
            key: old.get(key)
            for key in ("rtt_us", "lost_packets", "retransmitted_packets", "bytes_delivered")
        },
        "integrity": old["integrity"],
    }


def _of_soak(old: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("duration_s", "totals", "streams", "memory", "drops", "log_events_lost")
    details = {
        "repetition": 0,
        **{key: old[key] for key in kept if key in old},
        "fault_counts": old["faults"],
    }
    part = _part(old, details=[details], bytes_delivered=old["totals"]["delivered_bytes"])
    return _common(old, old["soak"], {"mrc": part}) | {"bytes_delivered": part["bytes_delivered"]}


_UPGRADES: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "mrclab.result/1": _of_link_kill,
    "mrclab.comparison/1": _of_comparison,
    "mrclab.soak/1": _of_soak,
}
