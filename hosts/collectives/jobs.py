"""The jobs that a rank can run, by kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mrclab.hosts.collectives.collective_jobs import CollectiveJob, TrainingJob
from mrclab.hosts.collectives.flows import FlowsJob
from mrclab.hosts.collectives.job import Job
from mrclab.hosts.collectives.requests import RequestsJob
from mrclab.hosts.schemes.registry import find_object

JOBS: dict[str, Callable[[Mapping[str, Any], int, int, int], Job]] = {
    "flows": lambda params, rank, size, seed: FlowsJob(params, rank),
    "request-response": lambda params, rank, size, seed: RequestsJob(params, rank),
    "training": TrainingJob,
    "transformer": lambda *args: find_object("mrclab.hosts.training.job:TransformerJob", "")(*args),
    "graph": lambda *args: find_object("mrclab.hosts.workloads.player:GraphJob", "")(*args),
    "all-reduce": lambda *args: CollectiveJob("all-reduce", *args),
    "all-gather": lambda *args: CollectiveJob("all-gather", *args),
    "all-to-all": lambda *args: CollectiveJob("all-to-all", *args),
}


def make_job(kind: str, params: Mapping[str, Any], rank: int, size: int, seed: int) -> Job:
    """Return the job of a rank among ``size`` ranks. Parameters are in base units.

    Raise KeyError for a kind that does not exist or a parameter that is missing.
    """
    return JOBS[kind](params, rank, size, seed)
