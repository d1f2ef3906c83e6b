from __future__ import annotations

from pathlib import Path

import pytest

from mrclab.topologies import Fabric, load_fabric
from tests.support.chosen_links import choose_links, fabric_links_between
from tests.support.synthetic_run import Story, tell


@pytest.fixture(scope="session")
def lab() -> Fabric:
    return load_fabric("lab")


@pytest.fixture(scope="session")
def story(lab: Fabric) -> Story:
    return tell(lab, choose_links(fabric_links_between(lab, "h0", "h6"), 12, seed=1))


@pytest.fixture(scope="session")
def told(story: Story, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("run")
    story.save(directory)
    return directory
