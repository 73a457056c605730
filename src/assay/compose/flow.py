"""One step of what a config trains, only to see what goes through it; nothing is kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from assay.compose.assembly import assemble
from assay.compose.checks import passed
from assay.compose.house import open_house
from assay.compose.launch import Launch

if TYPE_CHECKING:
    from assay.config.loading import Config
    from assay.engine.flow import Flow


def flow(config: Config) -> Flow:
    """Types and shapes of one batch on its way through the first step, on the CPU. InputError as for a run."""
    from assay.engine.flow import flow_of

    config, _ = passed(config, "data", "train")
    launch = Launch(device="cpu", max_steps=1, no_file=True)
    with open_house(config, launch) as house:
        return flow_of(assemble(house, launch, saver_folder=Path("checkpoints")).engine)
