"""Checks of lab 4: two measures, three path policies, and a run on the simulated fabric."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from math import isclose
from typing import Any

from mrclab.hosts.mrc.evs.ev import PathPolicy
from mrclab.labs.checks import Checks, Student, require
from mrclab.labs.remote_classes import policy_class
from mrclab.labs.spraying import Fault, fabric, some_evs, spray

CHECKS = Checks()
LINK = "p0-t0-0:p0-t1-0"
DRAWS = 1500


def policy_of(student: Student, name: str) -> type[PathPolicy]:
    return policy_class(student.load("spray.py"), name)


def broken_ev() -> int:
    return min(path.ev for path in fabric().paths("h0", "h3") if LINK in path.links)


@CHECKS.add("evenness")
def evenness(student: Student) -> None:
    measure = student.load("measures.py").evenness
    for packets, expected in (([5, 5, 5, 5], 1.0), ([8, 0, 0, 0], 4.0), ([3, 1], 1.5)):
        found = measure(packets)
        require(
            isinstance(found, float | int) and isclose(found, expected),
            f"evenness({packets}) is {found}, but the busiest path carries {expected:g} times the mean. "
            "Paths without packets count in the mean, too.",
        )


@CHECKS.add("reordering")
def reordering(student: Student) -> None:
    measure = student.load("measures.py").reordering
    examples: list[tuple[list[int], float]] = [
        ([0, 1, 2, 3], 0.0),
        ([0, 2, 1], 1 / 3),
        ([3, 0, 1, 2], 3 / 4),
        ([1, 0, 3, 2], 1 / 2),
        ([0, 1, 5, 6], 0.0),
    ]
    for psns, expected in examples:
        found = measure(psns)
        require(
            isinstance(found, float | int) and isclose(found, expected, abs_tol=1e-9),
            f"reordering({psns}) is {found}, but {expected:.3g} of these packets arrive after one with a higher "
            "number. Compare each packet with the highest number seen so far; a gap alone is no reordering.",
        )


@CHECKS.add("RoundRobin takes each EV once before any of them again")
def in_turn(student: Student) -> None:
    evs = some_evs()
    policy = policy_of(student, "RoundRobin")(random.Random(1))
    for _ in range(3):
        used = [policy.choose(0, evs).value for _ in evs]
        require(
            len(set(used)) == len(evs),
            f"Of {len(evs)} EVs, {len(set(used))} were used in a round. A policy must remember, from one call to "
            "the next, who has had a turn.",
        )
    mine, other = (policy_of(student, "RoundRobin")(random.Random(n)) for n in (1, 2))
    used = []
    for _ in evs:
        used.append(mine.choose(0, evs).value)
        other.choose(0, evs)
    require(
        len(set(used)) == len(evs),
        f"Where two queue pairs send by turns, one of them used {len(set(used))} of {len(evs)} EVs. Each has a policy of its own: "
        "what belongs to one of them must not be kept in the class.",
    )


@CHECKS.add("RoundRobin gives an EV that was away one turn, not all that it missed")
def one_turn(student: Student) -> None:
    evs = some_evs()
    policy = policy_of(student, "RoundRobin")(random.Random(1))
    for _ in range(10 * len(evs)):
        policy.choose(0, evs[: len(evs) // 2])
    used = Counter(policy.choose(0, evs).value for _ in range(3 * len(evs)))
    require(
        max(used.values()) <= 4,
        f"EVs that were not offered for a while came back, and one of them was used {max(used.values())} times in the next {3 * len(evs)} "
        "packets. In turn means: who has had its turn waits for the others, however little it has sent in all.",
    )


@CHECKS.add("RoundRobin is even when the list changes")
def changing_list(student: Student) -> None:
    evs = some_evs()
    policy = policy_of(student, "RoundRobin")(random.Random(1))
    rng = random.Random(7)
    used: Counter[int] = Counter()
    for _ in range(DRAWS):
        free = rng.sample(range(4), rng.randint(1, 4))
        used[policy.choose(0, [ev for ev in evs if ev.port in free]).value] += 1
    per_port = [[used[ev.value] for ev in evs if ev.port == port] for port in range(4)]
    uneven = max(max(counts) - min(counts) for counts in per_port)
    require(
        uneven <= 2,
        f"Where ports are busy at times, EVs of one plane differ by {uneven} packets in {DRAWS}. The list differs "
        "from call to call, so a place in it means another EV each time: remember EVs (ev.value), not places.",
    )
    seen = spray(policy_of(student, "RoundRobin"))
    most, mean = max(seen.sent.values()), sum(seen.sent.values()) / len(seen.sent)
    require(
        most <= 1.05 * mean,
        f"On the fabric your busiest EV carries {most / mean:.2f} times its share. The list differs from call to "
        "call: who among those that are offered has waited longest?",
    )


def load(evs: Sequence[Any], waiting: Sequence[int]) -> None:
    """Set each EV's counters so that ``waiting`` packets are in flight. Give other counters different values."""
    for number, (ev, count) in enumerate(zip(evs, waiting, strict=True)):
        ev.acked, ev.lost, ev.trimmed = 100 * number, 40 * (number % 3), 30 * (number % 2)
        ev.sent = ev.acked + ev.lost + ev.trimmed + count


@CHECKS.add("TwoChoices takes the less loaded of two")
def less_loaded(student: Student) -> None:
    pair = some_evs()[:2]
    policy = policy_of(student, "TwoChoices")(random.Random(1))
    for waiting in ((9, 1), (1, 9)):
        load(pair, waiting)
        used = Counter(policy.choose(0, pair).value for _ in range(DRAWS))
        light = pair[waiting.index(1)].value
        share = used[light] / DRAWS
        require(
            share > 0.6,
            f"Of two EVs with 1 and 9 packets on their way, you took the first in {share:.0%} of all cases. What has "
            "been acknowledged, lost or trimmed is not on its way any more, however much was sent in all.",
        )


@CHECKS.add("TwoChoices looks at two EVs, not at all")
def only_two(student: Student) -> None:
    evs = some_evs()
    load(evs, [0] + [9] * 15)
    policy = policy_of(student, "TwoChoices")(random.Random(1))
    used = Counter(policy.choose(0, evs).value for _ in range(DRAWS))
    share = used[evs[0].value] / DRAWS
    require(
        share < 0.3,
        f"The one EV without packets got {share:.0%}. Whoever always takes the emptiest of all is followed by "
        "every other sender: draw two at random, and compare those.",
    )
    require(len(used) == len(evs), "Some EVs are never drawn. Draw from the whole list.")
    require(
        share > 0.06, f"The one EV without packets got {share:.0%}, no more than by chance: compare the two."
    )


@CHECKS.add("Healthy keeps off a path that lost a packet")
def keeps_off(student: Student) -> None:
    evs = some_evs()
    policy = policy_of(student, "Healthy")(random.Random(1))
    policy.on_loss(1_000_000, evs[3])
    used = {policy.choose(1_000_000 + 100 * n, evs).value for n in range(64)}
    require(
        evs[3].value not in used, "An EV that has just lost a packet is used again at once. Remember losses."
    )
    require(
        len(used) == len(evs) - 1, f"{len(used)} EVs were used, and 15 are healthy: use all of these in turn."
    )
    turn = [policy.choose(1_010_000 + n, evs).value for n in range(len(evs) - 1)]
    require(
        len(set(turn)) == len(evs) - 1,
        f"Of 15 healthy EVs, {len(set(turn))} were used in 15 packets. Take them in turn, as RoundRobin does.",
    )
    policy.on_loss(1_020_000, evs[5])
    used = {policy.choose(1_030_000 + n, evs).value for n in range(64)}
    require(
        not used & {evs[3].value, evs[5].value},
        "Two EVs have lost packets, one after the other, and the first is used again at once. More than one path may be broken.",
    )
    for ev in evs:
        policy.on_loss(1_100_000, ev)
    require(
        policy.choose(1_100_100, evs) in evs,
        "When all EVs have lost packets, a packet still has to go somewhere: return one of them.",
    )


@CHECKS.add("Healthy comes back to a path that was mended")
def comes_back(student: Student) -> None:
    evs = some_evs()
    policy = policy_of(student, "Healthy")(random.Random(1))
    avoid_ns = student.load("spray.py").value("AVOID_NS")
    policy.on_loss(1_000_000, evs[3])
    require(
        isinstance(avoid_ns, int) and 1_000 <= avoid_ns <= 200_000,
        "AVOID_NS should be a time in ns of up to 200 us: the paths of this fabric answer within a few us.",
    )
    later_ns = 1_000_001 + 2 * avoid_ns
    used = {policy.choose(later_ns + 100 * n, evs).value for n in range(64)}
    require(
        evs[3].value in used,
        f"{2 * avoid_ns // 1000} us after its loss the EV is still not used. Nobody tells a sender that a link was "
        "mended: it has to try again after some time.",
    )


@CHECKS.add("on the fabric, few packets are lost on a dead link, and it is used again once mended")
def on_the_fabric(student: Student) -> None:
    policy = policy_of(student, "Healthy")
    dead = Fault(LINK, at_us=50, until_us=400)
    seen = spray(policy, packets=12_800, fault=dead, ev_health=False)
    require(seen.finished, "The stream did not end: not everything could be delivered.")
    lost = sum(seen.lost_after.values())
    require(
        lost <= 60,
        f"{lost} packets were sent onto the link long after it had died. After a loss, stay away for AVOID_NS.",
    )
    share = seen.sent[broken_ev()] / (sum(seen.sent.values()) / len(seen.sent))
    require(
        share > 0.4,
        f"The path was dead for a third of the time, yet it carried {share:.0%} of a path's share. Does your policy "
        "notice that it was mended?",
    )


@CHECKS.add("the questions are answered")
def answers(student: Student) -> None:
    student.answered(4)
    for name, policy in (("random", PathPolicy), ("RoundRobin", policy_of(student, "RoundRobin"))):
        late = 100 * late_share(spray(policy, packets=6400).arrived)
        student.told(1, f"late packets of {name} where all links are alike, in percent", late, 0.15)


def late_share(psns: Sequence[int]) -> float:
    """Return the share of packets that arrive after a packet with a higher number."""
    highest, late = -1, 0
    for psn in psns:
        late += psn < highest
        highest = max(highest, psn)
    return late / len(psns)
