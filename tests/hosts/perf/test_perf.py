"""`mrclab perf`: its results for given times, its error messages, and a run on a testbed."""

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest

from mrclab import cli
from mrclab.hosts.mrc import MrcConfig
from mrclab.hosts.perf.client import bandwidth_result, latency_result, percentile
from mrclab.hosts.perf.jobs import Bandwidth, PerfError
from mrclab.hosts.rdma.events import SendCompleted, Status
from mrclab.hosts.schemes.aimd import Aimd
from mrclab.hosts.schemes.registry import control_of, policy_of
from mrclab.hosts.schemes.reps import Reps
from mrclab.hosts.transports import make_config
from mrclab.linux.errors import InputError
from mrclab.perf import ALL_SIZES, BW_HEADER, LAT_HEADER
from mrclab.testbed.names import Names
from mrclab.topologies import load_fabric
from tests.support.command import Up

MIB = 1 << 20


def test_percentiles_are_values_that_were_measured() -> None:
    times = [float(n) for n in range(1, 1001)]
    assert percentile(times, 0.5) == 500
    assert percentile(times, 0.99) == 990
    assert percentile(times, 0.999) == 999
    assert percentile([7.0], 0.999) == 7


def test_latency_columns_by_hand() -> None:
    result = latency_result(8, [4000, 2000, 6000, 12000], 2)
    assert (result.t_min_us, result.t_max_us, result.t_typical_us, result.t_avg_us) == (1, 6, 2.5, 3)
    assert result.t_stdev_us == pytest.approx((14 / 4) ** 0.5)
    assert (result.bytes, result.iterations, result.p99_us, result.p99_9_us) == (8, 4, 6, 6)


def test_bandwidth_columns_by_hand() -> None:
    # 20 messages of 1 MiB: one each ms, except two (a tenth of all) that took half as long.
    times = [n * 1_000_000 for n in range(1, 19)]
    times += [18_500_000, 19_000_000]
    result = bandwidth_result(MIB, [times])
    assert result.bw_average_mib_s == pytest.approx(20 / 0.019)
    assert result.bw_peak_mib_s == pytest.approx(2000)
    assert result.msg_rate_mpps == pytest.approx(20 / 19_000)
    both = bandwidth_result(MIB, [times, [2 * t for t in times]])
    assert both.iterations == 40
    assert both.bw_average_mib_s == pytest.approx(40 / 0.038)
    assert both.bw_peak_mib_s == pytest.approx(3000)


def test_a_single_message_has_a_bandwidth_too() -> None:
    assert bandwidth_result(MIB, [[1_000_000]]).bw_peak_mib_s == pytest.approx(1000)


def test_schemes_of_ones_own_reach_the_endpoints_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def pair(*_: object, **options: Any) -> None:
        asked.update(options)
        raise InputError("asked enough")

    fabric = load_fabric("tiny")
    network = SimpleNamespace(fabric=fabric, names=Names(), target="ebpf", spawn=None)
    monkeypatch.setattr("mrclab.perf.FabricNetwork.attached", lambda: network)
    monkeypatch.setattr("mrclab.testbed.names.is_root", lambda: True)
    monkeypatch.setattr("mrclab.perf.PerfPair", pair)
    own = [
        "--congestion",
        "mrclab.hosts.schemes.aimd:Aimd",
        "--path-policy",
        "mrclab.hosts.schemes.reps:Reps",
    ]
    assert cli.main(["perf", "write_bw", "--from", "h0", "--to", "h1", *own]) == 2
    config = make_config(asked["transport"], fabric, "h0", asked["config"])
    assert isinstance(config, MrcConfig)
    assert (control_of(config), policy_of(config)) == (Aimd, Reps)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("write_bw --from h0 --to h0", "--from and --to are both 'h0'"),
        ("write_bw --from h0 --to h1 -s -1", "--size must be"),
        ("write_bw --from h0 --to h1 -s 8 --all", "exclude each other"),
        ("write_bw --from h0 --to h1 -n 0", "--iters must be"),
        ("write_bw --from h0 --to h1 -q 0", "--qp must be"),
        ("write_bw --from h0 --to h1 -t 0", "--tx-depth must be"),
        ("write_lat --from h0 --to h1 -b", "one message at a time"),
        ("write_lat --from h0 --to h1 -q 2", "one message at a time"),
        ("write_bw --from h0 --to h1 --transport rdma", "no transport 'rdma': there are mrc"),
        ("write_lat --from h0 --to h1", "no testbed is up"),
        ("write_lat --from h0 --to h1 -D 2", "--duration is for write_bw"),
        ("write_bw --from h0 --to h1 -D 2 -n 5", "without --iters"),
        ("write_bw --from h0 --to h1 -D 0", "--duration must be"),
        ("write_bw --from h0 --to h1 -H", "is for write_lat"),
        ("write_bw --from h0 --to h1 -m 9000", "--mtu must be"),
        ("write_bw --from h0 --to h1 --window 0", "--window must be"),
        ("write_bw --from h0 --to h1 --base-rtt 1ms", "is for --congestion nscc"),
        ("write_bw --from h0 --to h1 --congestion nscc --base-rtt soon", "--base-rtt: it must be a time"),
        ("write_bw --from h0 --to h1 --rate_limit fast", "--rate_limit: it must be a rate"),
    ],
)
def test_bad_input_is_one_clear_line(
    words: str, complaint: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MRCLAB_PREFIX", "tnone")
    assert cli.main(["perf", *words.split()]) == 2
    said = capsys.readouterr()
    assert complaint in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


@pytest.mark.parametrize("words", ["write_bw --from h0", "read_bw --from h0 --to h1", "write_bw -s x"])
def test_what_argparse_refuses_is_bad_input(words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["perf", *words.split()])
    assert ended.value.code == 2


def test_a_failed_write_ends_the_measurement() -> None:
    from mrclab.hosts.rdma.events import SendCompleted, Status

    job = Bandwidth.__new__(Bandwidth)
    with pytest.raises(PerfError, match="Retry Counter Exceeded"):
        job.on_event(SendCompleted(0, 1, 0, Status.RETRY_EXCEEDED, 8))


@pytest.mark.root
def test_bandwidth_on_a_running_testbed(tiny: Up) -> None:
    text = tiny.mrclab.ok("perf", "write_bw", "--from", "h0", "--to", "h3", "-n", "100", "-q", "3")
    assert BW_HEADER in text
    assert "topology tiny, target ebpf" in text
    (row,) = (line.split() for line in text.splitlines() if re.match(r" \d", line))
    assert row[:2] == ["65536", "300"]
    peak, average, rate = map(float, row[2:])
    assert 0 < average <= peak
    assert average == pytest.approx(rate * 1e6 * 65536 / MIB, rel=0.01)


@pytest.mark.root
def test_latency_on_a_running_testbed(tiny: Up) -> None:
    words = ("perf", "write_lat", "--from", "h0", "--to", "h3", "-s", "8", "-n", "200")
    text = tiny.mrclab.ok(*words)
    assert LAT_HEADER in text
    (row,) = (line.split() for line in text.splitlines() if re.match(r" \d", line))
    assert row[:2] == ["8", "200"]
    least, most, typical, average, _, p99, p99_9 = map(float, row[2:])
    assert 0 < least <= typical <= p99 <= p99_9 <= most
    assert least <= average <= most
    document = json.loads(tiny.mrclab.ok(*words, "--json"))
    (result,) = document["results"]
    assert (document["test"], document["from"], document["to"]) == ("write_lat", "h0", "h3")
    assert (result["bytes"], result["iterations"]) == (8, 200)
    assert result["t_min_us"] <= result["t_typical_us"] <= result["p99_us"] <= result["t_max_us"]


@pytest.mark.root
def test_both_ways_and_all_sizes(tiny: Up) -> None:
    common = ("perf", "write_bw", "--from", "h0", "--to", "h3", "--json")
    document = json.loads(tiny.mrclab.ok(*common, "-b", "-n", "50", "-s", "1"))
    assert document["bidirectional"] is True
    assert document["results"][0]["iterations"] == 100
    document = json.loads(tiny.mrclab.ok(*common, "--all", "-n", "3"))
    assert [result["bytes"] for result in document["results"]] == list(ALL_SIZES)
    assert all(result["bw_average_mib_s"] > 0 for result in document["results"])


@pytest.mark.root
@pytest.mark.parametrize("transport", ["oblivious", "rocev2", "rocev2-16qp"])
def test_other_transports_over_the_same_links(tiny: Up, transport: str) -> None:
    common = ("--transport", transport, "--from", "h0", "--to", "h3", "-n", "30", "--json")
    document = json.loads(tiny.mrclab.ok("perf", "write_bw", "-q", "2", "-b", *common))
    assert document["transport"] == transport
    assert document["results"][0]["iterations"] == 120
    assert document["results"][0]["bw_average_mib_s"] > 0
    document = json.loads(tiny.mrclab.ok("perf", "write_lat", "-s", "3", *common))
    assert document["results"][0]["t_min_us"] > 0


@pytest.mark.root
def test_a_host_that_is_not_there_is_bad_input(tiny: Up) -> None:
    done = tiny.mrclab("perf", "write_bw", "--from", "h0", "--to", "h9")
    assert done.returncode == 2
    assert done.stderr.strip() == "mrclab: no host 'h9' in topology tiny: h0, h1, h2, h3"


@pytest.mark.root
def test_for_a_time_in_gigabits_over_small_packets_and_under_a_cap(tiny: Up) -> None:
    common = ("perf", "write_bw", "--from", "h0", "--to", "h3", "-D", "0.5", "-m", "1024")
    text = tiny.mrclab.ok(*common, "--rate_limit", "20 Mbit/s", "--report_gbits", "-s", "8192", "-t", "4")
    assert "BW average[ Gb/sec]" in text
    (row,) = (line.split() for line in text.splitlines() if re.match(r" \d", line))
    assert 0 < float(row[3]) <= 0.03


@pytest.mark.root
def test_nscc_measures_its_base_rtt_first_or_is_told(tiny: Up) -> None:
    common = ("perf", "write_bw", "--from", "h0", "--to", "h3", "-n", "50", "-q", "2", "--congestion", "nscc")
    text = tiny.mrclab.ok(*common)
    (rtt,) = re.findall(r"base RTT (\d+) us, measured", text)
    assert int(rtt) > 100, "four wires of 1 Gbit/s alone take a full packet 135 us"
    document = json.loads(tiny.mrclab.ok(*common, "--base-rtt", "2 ms", "--window", "32", "--json"))
    assert document["congestion"] == "nscc"
    assert document["results"][0]["iterations"] == 100


@pytest.mark.root
def test_every_latency_is_shown_when_asked_for(tiny: Up) -> None:
    words = ("perf", "write_lat", "--from", "h0", "--to", "h3", "-n", "20", "-H")
    document = json.loads(tiny.mrclab.ok(*words, "--json"))
    times = document["results"][0]["all_us"]
    assert len(times) == 20
    assert times == sorted(times)
    shown = re.findall(r"^ (\d+), \d+\.\d{3}$", tiny.mrclab.ok(*words), re.MULTILINE)
    assert shown == [str(n) for n in range(20)]


def test_a_long_measurement_tells_of_each_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0

    class Endless:
        """A NIC that completes each write 400 ms after it was posted."""

        qpns = (1,)

        def post(self, qpn: int, size: int, imm: int | None = None) -> None:
            pass

    monkeypatch.setattr("mrclab.hosts.perf.jobs.time.monotonic_ns", lambda: now)
    job = Bandwidth(Endless(), 1000, 5, 1, duration_s=3.0, report_s=1.0)  # type: ignore[arg-type]
    job.start()
    told = []
    for _ in range(8):
        assert job.progress() is None
        now += 400_000_000
        job.on_event(SendCompleted(now, 1, 0, Status.SUCCESS, 1000))
        if (found := job.progress()) is not None:
            told.append(found)
    assert told == [
        {"elapsed_ns": 1_200_000_000, "completed": 3},
        {"elapsed_ns": 2_400_000_000, "completed": 6},
    ]
    assert job.result() == {"completed_ns": [n * 400_000_000 for n in range(1, 9)]}
