"""Inference of the bad link or switch from the probes that came back and the lost probes.

This module does no I/O, and time is an argument (ns).

A probe counts as lost if its timeout has passed and most probes of its round came back. If most probes did
not come back, the sending process probably stalled, and the round is ignored. The timeout is a multiple of
the longest recent round trip, so that a slow machine does not look like a broken network. If a CPU was
stalled, the timeouts restart.

* **Dead**: the last few probes over a link were all lost while neighbouring links work. A link that returns
  no probes is silent. If all links of a switch are silent, the switch is dead. If all T0s of a plane are
  silent, the plane is dead.
* **Lossy**: a link lost far more probes than the other links (by a Poisson test), and no other link explains
  these losses.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Literal

from mrclab.hosts.clustermapper.probes import ProbePlan, Route

Cause = Literal["dead", "loss"]


@dataclass(frozen=True, slots=True)
class MapperConfig:
    """The thresholds for verdicts. Times are in nanoseconds."""

    min_timeout_ns: int = 5_000_000
    """The timeout is ``rtt_factor`` times the longest recent round trip, but at least this time."""
    rtt_factor: int = 4
    peak_half_life_ns: int = 1_000_000_000
    """The stored longest round trip halves in this time, so that an old slow round trip is forgotten."""
    dead_losses: int = 4
    """A link is dead after this many consecutive losses."""
    max_lost: float = 0.5
    """Ignore a round that loses more than this share of its probes, because the sender probably stalled."""
    deaf_ns: int = 500_000_000
    """After this time without a usable round, the mapper reports that it is deaf: it cannot judge."""
    lossy_losses: int = 5
    """A link is lossy only if it has at least this many losses."""
    lossy_alone: int = 3
    """For every other link X: a lossy link needs this many losses on routes that do not contain X."""
    lossy_odds: float = 1e-9
    """A link is lossy if a link like the others would lose so many probes with at most this probability."""
    background_loss: float = 1e-5
    """The test of a link assumes at least this loss ratio for all other links."""
    bucket_ns: int = 100_000_000
    windows: tuple[int, ...] = (10, 100)
    """The time spans over which the loss is computed, in buckets of ``bucket_ns``."""
    well_probes: int = 50
    """A dead link counts as good after this many returned probes in a row. A lossy link may need more."""
    focus_ns: int = 100_000_000
    """The time for which links near a loss are tested more closely."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The conclusion that a place is bad. It lost ``losses`` probes, the share ``ratio`` of its probes."""

    place: str
    cause: Cause
    t_ns: int
    first_loss_ns: int
    losses: int
    ratio: float = 1.0


@dataclass(frozen=True, slots=True)
class Cleared:
    """The conclusion that a bad place works again."""

    place: str
    t_ns: int


@dataclass(frozen=True, slots=True)
class Deaf:
    """The report that the mapper can no longer judge (``deaf`` is True), or can judge again (False)."""

    t_ns: int
    deaf: bool


MapperEvent = Verdict | Cleared | Deaf


@dataclass(slots=True)
class Tally:
    """Numbers of probes, for instance of sent probes and of lost probes."""

    sent: int = 0
    back: int = 0
    lost: int = 0
    late: int = 0
    """Probes that came back after they were counted as lost."""
    unjudged: int = 0
    """Probes that were lost in ignored rounds, or while a CPU was stalled."""
    stalls: int = 0


@dataclass(eq=False, slots=True)
class _Round:
    sent: int
    open: int


@dataclass(eq=False, slots=True)
class _Probe:
    number: int
    route: Route
    sent_ns: int
    round: _Round


@dataclass(slots=True)
class _Silence:
    """The losses over a link since the last probe that came back over this link."""

    losses: int = 0
    first_ns: int = 0


class Mapper:
    """The inference engine: ``send`` and ``received`` record probes, ``judge`` returns the conclusions."""

    def __init__(
        self, plan: ProbePlan, config: MapperConfig | None = None, draw_id: Callable[[], int] | None = None
    ) -> None:
        """Prepare for a plan's probes. ``draw_id`` returns the 64-bit ID of a new probe; default 0, 1, 2...

        The IDs of real probes should be random: a host that can guess an ID could answer for a lost probe.
        """
        self._plan = plan
        self._draw_id = draw_id or count().__next__
        self._config = config or MapperConfig()
        self.tally = Tally()
        self.verdicts: dict[str, Verdict] = {}
        self._out: dict[int, _Probe] = {}
        self._lost: deque[_Probe] = deque()
        self._written_off: dict[int, _Probe] = {}
        self._last_back = [-1] * len(plan.routes)  # per route: send time of the newest probe that came back
        self._backs = [0] * len(plan.routes)
        self._buckets: deque[list[int]] = deque([[0] * len(plan.routes)], max(self._config.windows) + 1)
        self._bucket_end_ns = 0
        self._silences = {link: _Silence() for link in plan.links}
        self._settled: dict[str, int] = {}  # per link: the time at which its verdict ended
        self._well: dict[str, int] = {}  # per bad place: its number of returned probes at its last loss
        self._peak_ns, self._peak_at_ns = 0.0, 0
        self._resumed_ns = 0
        self._useful_ns: int | None = None  # time of the last round that could be judged
        self._deaf = False
        self._focus: dict[str, int] = {}
        self._switch_links = self._links_of_switches()

    def suspects(self, now_ns: int) -> frozenset[str]:
        """Return the T0s whose links the next round should test closely."""
        for t0 in [t0 for t0, until in self._focus.items() if until <= now_ns]:
            del self._focus[t0]
        bad = {t0 for verdict in self.verdicts.values() for t0 in self._t0s_of(verdict.place)}
        return frozenset(self._focus) | bad

    def send(self, routes: Iterable[Route], now_ns: int) -> Iterator[tuple[Route, bytes]]:
        """Yield the frames of a round that begins at ``now_ns``. A frame counts as sent when yielded."""
        batch = list(routes)
        group = _Round(len(batch), len(batch))
        if self._useful_ns is None:
            self._useful_ns = now_ns
        for route in batch:
            number = self._draw_id()
            self._out[number] = _Probe(number, route, now_ns, group)
            yield route, route.probe(number)
        self.tally.sent += len(batch)

    def received(self, number: int, now_ns: int) -> None:
        """Record that a probe came back at ``now_ns``."""
        probe = self._out.pop(number, None)
        if probe is None:
            probe = self._written_off.pop(number, None)
            if probe is None:
                return
            self.tally.late += 1
            if probe in self._lost:
                self._lost.remove(probe)
        else:
            probe.round.open -= 1
            if not probe.round.open:
                self._useful_ns = now_ns
        index = probe.route.index
        self.tally.back += 1
        self._backs[index] += 1
        if probe.sent_ns > self._last_back[index]:
            self._last_back[index] = probe.sent_ns
        rtt = now_ns - probe.sent_ns
        if rtt * self._config.rtt_factor > self._config.min_timeout_ns:
            self._peak_ns, self._peak_at_ns = max(rtt, self._peak(now_ns)), now_ns

    def stalled(self, now_ns: int) -> None:
        """Record that a CPU was stalled until now. The timeouts of all probes in flight restart."""
        if now_ns > self._resumed_ns:
            self.tally.stalls += 1
            self._resumed_ns = now_ns

    @property
    def denied(self) -> frozenset[str]:
        """The links over which hosts must not send."""
        return frozenset(link for place in self.verdicts for link in self._links_of(place))

    def timeout_ns(self, now_ns: int) -> int:
        """Return the present timeout of a probe."""
        return max(self._config.min_timeout_ns, int(self._config.rtt_factor * self._peak(now_ns)))

    def judge(self, now_ns: int) -> list[MapperEvent]:
        """Return new conclusions. All probes that came back by ``now_ns`` must already be recorded."""
        events: list[MapperEvent] = []
        self._turn_buckets(now_ns)
        losses = self._expire(now_ns)
        if losses:
            for probe in losses:
                self._lose(probe, now_ns)
            self._keep_unwell(losses)
            events += self._name_dead(now_ns)
            events += self._name_lossy(now_ns)
        if self.verdicts:
            events += self._clear(now_ns)
        events += self._deafness(now_ns)
        return events

    def _peak(self, now_ns: int) -> float:
        age = max(0, now_ns - self._peak_at_ns)
        return self._peak_ns * math.exp2(-age / self._config.peak_half_life_ns)

    def _turn_buckets(self, now_ns: int) -> None:
        if now_ns < self._bucket_end_ns:
            return
        self._bucket_end_ns = now_ns + self._config.bucket_ns
        self._buckets.append(list(self._backs))
        horizon = now_ns - self._config.bucket_ns * (max(self._config.windows) + 1)
        while self._lost and self._lost[0].sent_ns < horizon:
            self._written_off.pop(self._lost.popleft().number, None)
        for number in [n for n, p in self._written_off.items() if p.sent_ns < horizon]:
            del self._written_off[number]

    def _expire(self, now_ns: int) -> list[_Probe]:
        """Return the lost probes of rounds that can be judged. All probes of a round time out together."""
        timeout = self.timeout_ns(now_ns)
        over: dict[_Round, list[_Probe]] = {}
        for probe in self._out.values():
            if now_ns - max(probe.sent_ns, self._resumed_ns) < timeout:
                break  # later probes were sent later, so their timeouts have not passed either
            over.setdefault(probe.round, []).append(probe)
        lost: list[_Probe] = []
        for group, probes in over.items():
            for probe in probes:
                self._written_off[probe.number] = self._out.pop(probe.number)
            if len(probes) > self._config.max_lost * group.sent:
                self.tally.unjudged += len(probes)
            else:
                self._useful_ns = now_ns
                lost += probes
        self.tally.lost += len(lost)
        return lost

    def _lose(self, probe: _Probe, now_ns: int) -> None:
        if any(probe.sent_ns < self._settled.get(link, 0) for link in probe.route.links):
            return  # the link was already known to be bad when the probe was sent
        self._lost.append(probe)
        for link in probe.route.links:
            silence = self._silences[link]
            back = self._back_over(link)
            if back >= probe.sent_ns:
                silence.losses = 0
                continue
            if silence.losses == 0 or back > silence.first_ns:
                silence.losses, silence.first_ns = 0, probe.sent_ns
            silence.losses += 1
            for t0 in self._t0s_of(link):
                self._focus[t0] = now_ns + self._config.focus_ns

    def _back_over(self, link: str) -> int:
        return max(self._last_back[route.index] for route in self._plan.through[link])

    def _silent(self, link: str) -> bool:
        silence = self._silences[link]
        return silence.losses >= self._config.dead_losses and self._back_over(link) < silence.first_ns

    def _name_dead(self, now_ns: int) -> list[MapperEvent]:
        silent = [link for link in self._plan.links if self._silent(link)]
        known = self.denied
        fresh = {link for link in silent if link not in known or self._only_lossy(link)}
        if not fresh:
            return []
        return [
            self._condemn(Verdict(place, "dead", now_ns, *self._evidence(links)))
            for place, links in self._dead_places(set(silent), fresh)
            if not (place in self.verdicts and self.verdicts[place].cause == "dead")
        ]

    def _only_lossy(self, link: str) -> bool:
        found = self.verdicts.get(link)
        return found is not None and found.cause == "loss"

    def _dead_places(self, silent: set[str], fresh: set[str]) -> Iterator[tuple[str, set[str]]]:
        """Yield the fewest places that explain the silent links, each place with its silent links.

        A place is left out if no neighbouring link works: then the fault may be elsewhere.
        """
        fabric = self._plan.fabric
        dead_t0s = [s.name for s in fabric.switches if s.tier == "t0" and self._all_silent(s.name, silent)]
        for plane in range(fabric.planes):
            t0s = [s.name for s in fabric.switches if s.plane == plane and s.tier == "t0"]
            dead = [name for name in t0s if name in dead_t0s]
            links = {link for name in dead for link in self._switch_links[name]}
            if len(t0s) > 1 and len(dead) == len(t0s):
                if links & fresh:
                    yield f"p{plane}", links
            else:
                for name in dead:
                    others = {x for t in t0s if t != name for x in self._switch_links[t]}
                    if set(self._switch_links[name]) & fresh and (not others or self._works(others, links)):
                        yield name, set(self._switch_links[name])
            fresh = fresh - links
            for switch in fabric.t1s(plane):
                mine = set(self._switch_links.get(switch.name, ())) - links
                if len(mine) > 1 and mine <= silent and mine & fresh:
                    if self._works({x for t in t0s for x in self._switch_links[t]} - mine, mine):
                        yield switch.name, mine
                    fresh = fresh - mine
        for link in fresh:
            if all(self._works(set(around) - {link}, {link}) for around in self._around(link)):
                yield link, {link}

    def _all_silent(self, switch: str, silent: set[str]) -> bool:
        links = self._switch_links.get(switch, ())
        return bool(links) and silent.issuperset(links)

    def _around(self, link: str) -> Iterator[tuple[str, ...]]:
        """Yield the links of each switch at an end of the link. Skip a switch with only one link."""
        for node in link.split(":"):
            links = self._switch_links.get(node, ())
            if len(links) > 1:
                yield links

    def _works(self, links: Iterable[str], while_silent: Iterable[str]) -> bool:
        """Return True if ``links`` returned a probe sent after the first loss on links ``while_silent``."""
        since = min(self._silences[link].first_ns for link in while_silent)
        return any(self._back_over(link) > since for link in links)

    def _evidence(self, links: Iterable[str]) -> tuple[int, int]:
        silences = [self._silences[link] for link in links]
        return min(s.first_ns for s in silences), sum(s.losses for s in silences)

    def _name_lossy(self, now_ns: int) -> list[MapperEvent]:
        events: list[MapperEvent] = []
        for window in self._config.windows:
            since = now_ns - window * self._config.bucket_ns
            known = self.denied
            # Leave out losses on a silent link, because they are no evidence against other links.
            apart = known | {
                link for link, s in self._silences.items() if s.losses > 1 and self._quiet(link, s)
            }
            lost = [p for p in self._lost if p.sent_ns >= since and apart.isdisjoint(p.route.links)]
            if len(lost) >= self._config.lossy_losses:
                events += self._lossy(lost, window, now_ns)
        return events

    def _quiet(self, link: str, silence: _Silence) -> bool:
        return self._back_over(link) < silence.first_ns

    def _lossy(self, lost: list[_Probe], window: int, now_ns: int) -> Iterator[MapperEvent]:
        per_link: dict[str, list[_Probe]] = {}
        for probe in lost:
            for link in probe.route.links:
                per_link.setdefault(link, []).append(probe)
        before = self._buckets[max(0, len(self._buckets) - 1 - window)]
        backs = [now - then for now, then in zip(self._backs, before, strict=True)]
        total = sum(backs)
        for link, mine in sorted(per_link.items(), key=lambda item: -len(item[1])):
            count = len(mine)
            if count < self._config.lossy_losses:
                return
            probes = count + sum(backs[route.index] for route in self._plan.through[link])
            elsewhere = max(1, total + len(lost) - probes)
            rate = max((len(lost) - count) / elsewhere, self._config.background_loss)
            if poisson_tail(count, rate * probes) > self._config.lossy_odds:
                continue
            together: dict[str, int] = {}
            for probe in mine:
                for other in probe.route.links:
                    if other != link:
                        together[other] = together.get(other, 0) + 1
            if all(count - shared >= self._config.lossy_alone for shared in together.values()):
                verdict = Verdict(link, "loss", now_ns, mine[0].sent_ns, count, count / probes)
                yield self._condemn(verdict)
                return  # judge other links later, when the losses of this link no longer count

    def _condemn(self, verdict: Verdict) -> Verdict:
        for link in self._links_of(verdict.place):
            self.verdicts.pop(link, None)  # the new verdict is on a larger place, which includes this link
        self.verdicts[verdict.place] = verdict
        self._well[verdict.place] = self._backs_over(verdict.place)
        return verdict

    def _backs_over(self, place: str) -> int:
        """Return the largest number of probes that came back over one link of a place."""
        return max(
            sum(self._backs[route.index] for route in self._plan.through[link])
            for link in self._links_of(place)
        )

    def _keep_unwell(self, losses: Iterable[_Probe]) -> None:
        """Restart a bad place's count of good probes if this place alone explains one of the losses."""
        for place in self.verdicts:
            links = set(self._links_of(place))
            others = {link for other in self.verdicts if other != place for link in self._links_of(other)}
            for probe in losses:
                if links.intersection(probe.route.links) and others.isdisjoint(probe.route.links):
                    self._well[place] = self._backs_over(place)
                    break

    def _clear(self, now_ns: int) -> list[MapperEvent]:
        events: list[MapperEvent] = []
        for place, verdict in list(self.verdicts.items()):
            needed = self._config.well_probes
            if verdict.cause == "loss":
                needed = max(needed, round(20 / verdict.ratio))
            if self._backs_over(place) - self._well[place] >= needed:
                del self.verdicts[place], self._well[place]
                links = set(self._links_of(place))
                self._settled.update(dict.fromkeys(links, now_ns))
                self._lost = deque(p for p in self._lost if links.isdisjoint(p.route.links))
                events.append(Cleared(place, now_ns))
        return events

    def _deafness(self, now_ns: int) -> list[MapperEvent]:
        if self._useful_ns is None:
            return []
        deaf = now_ns - self._useful_ns > self._config.deaf_ns
        if deaf == self._deaf:
            return []
        self._deaf = deaf
        return [Deaf(now_ns, deaf)]

    def _links_of_switches(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, list[str]] = {}
        names = {switch.name for switch in self._plan.fabric.switches}
        for link in self._plan.links:
            for node in link.split(":"):
                if node in names:
                    found.setdefault(node, []).append(link)
        return {switch: tuple(links) for switch, links in found.items()}

    def _links_of(self, place: str) -> tuple[str, ...]:
        """Return the links of a place, which is a switch, a plane or a link."""
        if ":" in place:
            return (place,)
        if place in self._switch_links:
            return self._switch_links[place]
        return tuple(link for link in self._plan.links if f"{place}-t" in link)

    def _t0s_of(self, place: str) -> tuple[str, ...]:
        tier = self._plan.fabric.tier
        return tuple({n for link in self._links_of(place) for n in link.split(":") if tier(n) == "t0"})


def poisson_tail(count: int, mean: float) -> float:
    """Return the probability of at least ``count`` events if ``mean`` events are expected (Poisson)."""
    if count <= 0:
        return 1.0
    if count > mean * 2 + 10:  # bound the tail by its first term and a geometric series
        first = math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))
        return min(1.0, first / (1 - mean / (count + 1)))
    term, below = math.exp(-mean), 0.0
    for k in range(count):
        below += term
        term *= mean / (k + 1)
    return max(0.0, 1.0 - below)
