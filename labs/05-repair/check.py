"""Checks of lab 5. In some checks, the library hypothesis searches for a schedule with which the check fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mrclab.labs.checks import Checks, Hint, Student, require
from mrclab.labs.remote_classes import RemoteDetector
from mrclab.labs.repairing import GAP_NS, LOST, ONE_WAY_NS, TIMEOUT_NS, WINDOW_NS, Schedule, Story, tell

CHECKS = Checks()
ROUND_TRIP_NS = 2 * ONE_WAY_NS


def story_of(student: Student, schedule: Schedule) -> Story:
    detector = RemoteDetector(student.load("repair.py"), WINDOW_NS, TIMEOUT_NS)
    return tell(detector, schedule)


def told(schedule: Schedule, story: Story, about: int | None = None) -> str:
    return f"\nThe schedule: {schedule.words()}.\n{story.text(12, about)}"


@CHECKS.add("where nothing is lost, nothing is repeated")
def nothing_lost(student: Student) -> None:
    schedule = Schedule(20)
    story = story_of(student, schedule)
    require(
        not story.repeats,
        f"Packet {story.repeats[0][1] if story.repeats else 0} was repeated, though all arrived in order. What has "
        "been acknowledged is not lost, and what is still on its way need not be." + told(schedule, story),
    )


@CHECKS.add("a packet lost in the middle is repeated, and soon")
def lost_in_the_middle(student: Student) -> None:
    schedule = Schedule(30, (0, 0, 0, LOST))
    story = story_of(student, schedule)
    repeats = [t_ns for t_ns, psn in story.repeats if psn == 3]
    require(
        repeats,
        "Packet 3 was lost and never sent again, although a SACK came for packets that were sent long after it. "
        "Compare when they were sent." + told(schedule, story, 3),
    )
    due_ns = 3 * GAP_NS + WINDOW_NS + GAP_NS + ROUND_TRIP_NS
    require(
        repeats[0] <= due_ns + GAP_NS,
        f"Packet 3 was repeated at {repeats[0] / 1000:g} us. At {due_ns / 1000:g} us a SACK showed that a packet "
        "which was sent more than the window later had arrived: no timer is needed here."
        + told(schedule, story, 3),
    )
    require(not story.needless, needless(schedule, story))


@CHECKS.add("the last packet is repeated, though nothing was sent after it")
def lost_at_the_end(student: Student) -> None:
    schedule = Schedule(5, (0, 0, 0, 0, LOST))
    story = story_of(student, schedule)
    require(
        story.delivered,
        "The last packet was lost and never sent again. Nothing was sent later that could arrive before it, so no "
        "SACK can show its loss: only a timer can. Who sets it, and until when?" + told(schedule, story),
    )


@CHECKS.add("a repeat that is lost is repeated again")
def repeat_is_lost(student: Student) -> None:
    schedule = Schedule(60, (0, 0, 0, LOST, *([0] * 19), LOST))
    story = story_of(student, schedule)
    require(
        story.delivered,
        "Packet 3 was lost twice and never arrived. A repeat is a new transmission with a time of sending of its "
        "own, and may be lost as well." + told(schedule, story, 3),
    )


@CHECKS.add("property: whatever is lost, everything arrives in the end")
def everything_arrives(student: Student) -> None:
    late = st.one_of(st.just(LOST), st.integers(0, 3 * WINDOW_NS))

    def holds(schedule: Schedule) -> None:
        story = story_of(student, schedule)
        require(
            not story.endless,
            f"{story.sent} transmissions for {schedule.packets} packets, and no end to it: what was repeated just "
            "now need not be repeated at once. A repeat has a time of sending of its own."
            + told(schedule, story),
        )
        if not story.delivered:
            raise Hint(
                f"Packets {list(story.missing)} never arrived. Hypothesis found a schedule on which your detector "
                "stops too early: is a timer set as long as anything is unacknowledged?"
                + told(schedule, story, story.missing[0])
            )
        require(
            story.known,
            "Everything arrived, but the sender never learned of it, as the last SACKs were lost. It has to ask "
            "again: a repeat makes the receiver answer." + told(schedule, story),
        )

    search(holds, late, late)


@CHECKS.add("property: nothing is repeated that was only late")
def only_late(student: Student) -> None:
    search(lambda schedule: no_needless(student, schedule), st.integers(0, WINDOW_NS), None)


@CHECKS.add("property: what was lost is repeated once, unless the repeat is lost too")
def once(student: Student) -> None:
    late = st.one_of(st.integers(0, WINDOW_NS), st.just(LOST))
    search(lambda schedule: no_needless(student, schedule), late, None)


def no_needless(student: Student, schedule: Schedule) -> None:
    story = story_of(student, schedule)
    require(not story.needless, needless(schedule, story))


def needless(schedule: Schedule, story: Story) -> str:
    """Return the reason why a repeat was needless. The reason depends on the packet's history."""
    if not story.needless:
        return ""
    first = story.needless[0]
    where = (
        f"Packet {first.psn} was sent again at {first.t_ns / 1000:g} us, although the copy that was sent at "
        f"{first.sent_ns / 1000:g} us arrives at {first.arrives_ns / 1000:g} us. "
    )
    if first.nth > 1:
        idea = (
            "It had been repeated before, and a repeat has a time of sending of its own: whatever was sent before "
            "the repeat says nothing about it."
        )
    else:
        idea = (
            "It was only late. How many others have overtaken it does not matter here, nor do their numbers: "
            "compare the times at which they were sent with the window, and mind which copy of a packet was acknowledged."
        )
    return where + idea + told(schedule, story, first.psn)


def search(holds: Callable[[Schedule], None], data: Any, sacks: Any) -> None:
    """Let hypothesis search for a schedule that makes ``holds`` fail. Each call tries the same schedules."""
    schedules = st.builds(
        Schedule,
        packets=st.integers(1, 30),
        data=st.lists(data, max_size=40).map(tuple),
        sacks=st.just(()) if sacks is None else st.lists(sacks, max_size=20).map(tuple),
    )
    run = settings(
        max_examples=300,
        derandomize=True,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )(given(schedules)(holds))
    run()


@CHECKS.add("the questions are answered")
def answers(student: Student) -> None:
    student.answered(4)
    repeats = story_of(student, Schedule(3, (0, 0, LOST))).repeats
    require(repeats, "Question 4: in the fourth story of story.py your timer repeats nothing yet.")
    student.told(
        4, "when your timer repeats the packet of the fourth story, in us", repeats[0][0] / 1000, 0.1
    )
