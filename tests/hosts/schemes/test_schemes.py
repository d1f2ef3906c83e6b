"""A user's own path policies and congestion controls: even if their choices are bad, all data arrives."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrclab.hosts.mrc import Endpoint, MrcConfig
from mrclab.hosts.mrc.congestion import CongestionControl
from mrclab.hosts.mrc.evs.ev import Ev, PathPolicy
from mrclab.hosts.options import mrc_config
from mrclab.hosts.rdma.events import EvState, ReceiveCompleted
from mrclab.hosts.schemes.aimd import Aimd
from mrclab.hosts.schemes.registry import CONGESTION_CONTROLS, PATH_POLICIES, control_of, policy_of
from mrclab.hosts.schemes.reps import Reps
from mrclab.hosts.schemes.two_choices import TwoChoices
from mrclab.topologies import load_fabric
from tests.support.mrc_sim import Network, Sim, finish, frame_ev, stream

TINY = load_fabric("tiny")
POLICIES = [PathPolicy, TwoChoices, Reps]


class Pinned(PathPolicy):
    """Always takes the lowest EV. Records the EVs that it is offered, and its calls."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.offered: list[list[int]] = []
        self.lost: list[int] = []
        self.named = 0

    def choose(self, now_ns: int, evs: Sequence[Ev]) -> Ev:
        self.offered.append([ev.value for ev in evs])
        return min(evs, key=lambda ev: ev.value)

    def on_loss(self, now_ns: int, ev: Ev) -> None:
        self.lost.append(ev.value)

    def on_sack(self, now_ns: int, ev: Ev, marked: bool) -> None:
        self.named += 1


def sim_of(policy: type[PathPolicy], seed: int = 1, network: Network | None = None, **options: Any) -> Sim:
    # with_policy is a function, because no class can be derived from a compiled class.
    def with_policy(ports: Any, config: MrcConfig, rng: random.Random) -> Endpoint:
        return Endpoint(ports, config, rng, None, policy)

    return Sim(seed=seed, config=MrcConfig(**options), network=network, endpoint_class=with_policy)


def deliver(sim: Sim, messages: int = 40, size: int = 20_000) -> None:
    data, region = stream(sim, [size] * messages)
    finish(sim, messages)
    assert bytes(region.view) == data
    assert len(sim.of(1, ReceiveCompleted)) == messages


def test_a_policy_decides_the_path_of_every_packet() -> None:
    sim = sim_of(Pinned)
    deliver(sim)
    used = [ev.ev for ev in sim.ends[0].ev_counters(sim.qpns[0]) if ev.sent]
    assert len(used) == 1


def test_a_policy_is_offered_active_evs_only_and_hears_of_losses() -> None:
    sim = sim_of(Pinned)
    evs = sim.ends[0].qps[sim.qpns[0]].evs
    policy = evs.policy
    assert isinstance(policy, Pinned)
    doomed = min(ev.value for ev in evs.by_value.values() if ev.active)
    sim.unpredictable = lambda _source, _port, frame: frame_ev(frame) == doomed
    deliver(sim)
    assert policy.lost[0] == doomed
    assert policy.named > 0
    assert all(doomed not in offer for offer in policy.offered[-5:])
    assert evs.by_value[doomed].state is EvState.ASSUMED_BAD


@settings(max_examples=20)
@given(st.sampled_from(POLICIES), st.integers(0, 1 << 32), st.floats(0, 0.05))
def test_whatever_the_policy_every_byte_arrives_once(
    policy: type[PathPolicy], seed: int, loss: float
) -> None:
    deliver(sim_of(policy, seed, Network(loss=loss)), messages=10)


def test_two_choices_prefers_the_path_with_fewer_packets_on_their_way() -> None:
    class Fixed(random.Random):
        draws = iter([0.0, 0.9])

        def random(self) -> float:
            return next(self.draws)

    sim = sim_of(TwoChoices)
    a, b = list(sim.ends[0].qps[sim.qpns[0]].evs.by_value.values())[:2]
    a.sent, b.sent = 9, 3
    assert TwoChoices(Fixed()).choose(0, [a, b]) is b


def test_reps_uses_again_what_just_proved_good() -> None:
    sim = sim_of(Reps)
    usable = [ev for ev in sim.ends[0].qps[sim.qpns[0]].evs.by_value.values() if ev.ready]
    policy = Reps(random.Random(1))
    policy.on_sack(0, usable[3], False)
    policy.on_sack(0, usable[2], True)
    assert policy.choose(0, usable) is usable[3]
    usable[3].ready = False
    policy.on_sack(0, usable[3], False)
    assert policy.choose(0, usable[:3]) in usable[:3]


def test_aimd_grows_a_packet_a_round_trip_and_halves_once_a_round_trip() -> None:
    control = Aimd(MrcConfig(mtu_bytes=1000))
    window = control.cwnd_bytes
    control.on_sent(0, window)
    control.on_ack(0, window, 50_000, False)
    assert control.cwnd_bytes == window + 1000
    control.on_ack(10, 0, 50_000, True)
    assert control.cwnd_bytes == (window + 1000) // 2
    control.on_loss(20, 0)
    assert control.cwnd_bytes == (window + 1000) // 2
    control.on_trim(60_000, 0, False)
    assert control.cwnd_bytes == (window + 1000) // 4
    for now in range(100):
        control.on_loss(now * 1_000_000, 0)
    assert control.cwnd_bytes == 1000


def test_names_are_found_in_the_core_in_the_examples_and_by_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert policy_of(MrcConfig()) is None
    assert control_of(MrcConfig(congestion="nscc")) is None
    assert policy_of(MrcConfig(path_policy="two-choices")) is TwoChoices
    assert control_of(MrcConfig(congestion="mrclab.hosts.schemes.aimd:Aimd")) is Aimd
    (tmp_path / "my_scheme_here.py").write_text(
        "from mrclab.hosts.mrc.congestion import CongestionControl\n"
        "class Mine(CongestionControl):\n    def __init__(self, config): super().__init__(4096)\n"
    )
    monkeypatch.chdir(tmp_path)
    config = mrc_config(TINY, "h0", {"congestion": "my_scheme_here:Mine"})
    made = control_of(config)
    assert made is not None
    assert isinstance(made(config), CongestionControl)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"path_policy": "fastest"}, "two-choices"),
        ({"congestion": "bbr"}, "nscc"),
        ({"path_policy": "no_such_module_here:X"}, "no_such_module_here"),
        ({"path_policy": "mrclab.hosts.schemes.reps:Nothing"}, "has no Nothing"),
        ({"path_policy": "mrclab.hosts.schemes.aimd:Aimd"}, "PathPolicy"),
        ({"congestion": ":"}, "module:Class"),
        ({"congestion": ""}, "names of schemes"),
    ],
)
def test_a_name_that_nothing_has_is_refused_in_one_line(options: dict[str, str], word: str) -> None:
    with pytest.raises(ValueError, match=word) as raised:
        mrc_config(TINY, "h0", options)
    assert "\n" not in str(raised.value)


def test_every_shipped_scheme_can_be_found() -> None:
    for registry in (PATH_POLICIES, CONGESTION_CONTROLS):
        for name in registry.names():
            registry.find(name)
