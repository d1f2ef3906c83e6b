"""NSCC, compared with a model that was written only from the specification (`tests.support.nscc_model`)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrclab.hosts.mrc.config import NsccConfig
from mrclab.hosts.mrc.nscc import Nscc
from tests.support.nscc_model import NsccModel

MTU = 4096
BASE_NS = 12_000


class Model(NsccModel):
    """The model with two changes. At these two places, `NsccModel` differs from the text of UEC."""

    FAST_REPLACES = True
    """If fast_increase acts, proportional_increase does nothing [UEC §3.6.13.6]."""
    started = False

    def _derive(self) -> None:
        """Derive all values once. If the base RTT changes later, derive only the largest window again."""
        if self.started:
            if self.given_max is None:
                self.max_wnd = max(8.0 * self.mtu, 1.5 * self.link_bps * self.base_rtt / 8e9)
            self._set(self.cwnd)
            return
        super()._derive()
        self.started = True


RTTS = st.one_of(
    st.none(),
    st.integers(BASE_NS, BASE_NS + 900),
    st.integers(BASE_NS // 2, 3 * BASE_NS),
    st.integers(BASE_NS, 10 * BASE_NS),
    st.sampled_from([21_000, 24_000, 60_000, 60_001, 1_000_000]),
)
ACK = st.tuples(
    st.just("ack"),
    st.sampled_from([0, 100, 4180, 4180, 2 * 4180, 8 * 4180, 50_000]),
    RTTS,
    st.sampled_from([False, False, True]),
    st.sampled_from([0, 0, 0, 0, 1, 64, 127]),
    st.booleans(),
)
OTHER = st.tuples(
    st.sampled_from(["loss", "trim", "trim", "refused"]),
    st.sampled_from([84, 1084, 4180]),
    st.none(),
    st.just(False),
    st.just(0),
    st.just(False),
)
EVENTS = st.lists(
    st.tuples(
        st.sampled_from([0, 100, 1_000, 9_000, BASE_NS, 21_000, 24_000]),  # the time since the last step, ns
        st.sampled_from([-200, 0, 4180, 20_000, 100_000, 300_000]),  # bytes in flight
        st.one_of(ACK, ACK, ACK, OTHER),
    ),
    max_size=80,
)
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "qa_gate": st.integers(0, 5),
        "gamma": st.sampled_from([0.5, 0.8, 1.0]),
        "max_md_jump": st.sampled_from([0.25, 0.5, 0.9]),
        "delay_weight": st.sampled_from([0.0125, 0.25, 1.0]),
        "fast_delay_ns": st.sampled_from([500, 1_000]),
        "target_delay_ns": st.sampled_from([5_000, 20_000]),
        "max_cwnd_bytes": st.sampled_from([50_000, 400_000]),
        "qa_threshold_ns": st.sampled_from([30_000]),
        "disable_qa": st.booleans(),
    },
)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(SETTINGS, st.booleans(), st.sampled_from([16_000_000_000, 160_000_000_000]), EVENTS)
def test_the_window_is_that_of_the_model(options, trim, link_bps, history):
    control = Nscc(NsccConfig(base_rtt_ns=BASE_NS, link_bps=link_bps, **options), MTU, trim=trim)
    model = Model(BASE_NS, link_bps, MTU, trim, **options)
    now = 1_000_000
    for passed, inflight, (what, size, rtt, ecn, penalty, restore) in history:
        now += passed
        if what == "ack":
            control.on_ack(now, size, rtt, ecn, inflight, penalty, restore)
            model.on_ack(now, size, rtt, ecn, inflight, penalty, restore)
        elif what == "loss":
            control.on_inferred_loss(size)
            model.on_inferred_loss(size)
        elif what == "trim":
            control.on_trim(now, size, inflight)
            model.on_trim_nack(now, size, inflight)
        else:
            model.on_other_nack(size)
        assert control._cwnd == pytest.approx(model.cwnd, rel=1e-9)
        assert control.average_delay_ns == pytest.approx(model.avg_delay, rel=1e-9)
        assert (control.base_rtt_ns, control.max_cwnd_bytes) == (model.base_rtt, model.max_wnd)
