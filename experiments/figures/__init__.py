"""The judges of the paper's figures and of the other shipped claims, by theme.

A judge computes a verdict from a result: ``judge_<figure>``; ``PAPER_<FIGURE>`` has what the paper published.
"""

from collections.abc import Mapping

MODULES: Mapping[str, str] = {
    **dict.fromkeys(("fig09a", "fig09b", "fig09c", "fig09d", "fig19a", "fig19b", "fig19c"), "link_failures"),
    **dict.fromkeys(("fig08", "fig10", "fig11", "drain"), "switch_failures"),
    **dict.fromkeys(("fig05", "fig06", "t1_reboot", "training", "training_124m"), "training_jobs"),
    **dict.fromkeys(("fig04", "fig12", "fig14", "ev_modes", "entropy_values"), "entropy_values"),
    **dict.fromkeys(("link_kill", "headline", "program_kill"), "recovery"),
    **dict.fromkeys(("fig16", "fig17", "all_reduce"), "collectives"),
    **dict.fromkeys(("fig18", "fig21", "fig22", "lossless"), "incast"),
    **dict.fromkeys(("fig20", "queue_pairs", "bandwidth", "latency"), "goodput_and_latency"),
}
"""The module of each figure. Only the module of the figure that is judged is imported."""
