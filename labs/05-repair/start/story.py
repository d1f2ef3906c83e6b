"""Print what your detector does, packet by packet. You need not change this file.

`python story.py` runs four schedules. You can change them, or paste a schedule that the check has found.
"""

from repair import LossDetector

from mrclab.labs.repairing import TIMEOUT_NS, WINDOW_NS, Schedule, tell

LATE = 3_000
LOST = None
STORIES = {
    "nothing is lost": Schedule(4),
    "packet 1 is late, and no more than that": Schedule(5, (0, LATE)),
    "packet 1 is lost": Schedule(14, (0, LOST)),
    "the last packet is lost": Schedule(3, (0, 0, LOST)),
}


def main():
    """Run all schedules and print what happens."""
    for title, schedule in STORIES.items():
        story = tell(LossDetector(WINDOW_NS, TIMEOUT_NS), schedule)
        print(f"--- {title}")
        print(story.text(60))
        end = "everything arrived" if story.delivered else f"never delivered: {list(story.missing)}"
        print(f"--> {end}; {story.sent} transmissions, {len(story.needless)} of them needless\n")


if __name__ == "__main__":
    main()
