"""Plan of a search: all that decides its trials, frozen in a folder of the project when it begins.

`assay sweep --resume ID` needs nothing else. The folder also holds the journal of the study, where
one proposes the points, and the lock of the process that searches.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from assay.compose.launch import Launch
from assay.compose.run_record import project_around
from assay.config import dump
from assay.config.expansion import at_point, plan_of
from assay.config.freeze import origins_of, with_origins
from assay.config.loading import Config, open_tree
from assay.config.resolver import Draws, draw_random, with_external_values
from assay.config.sources.toml import read_toml
from assay.config.sweep import Point, Sweep
from assay.config.tree import Table
from assay.core.directory import PRIVATE, make_directory
from assay.core.errors import InputError, RecordError
from assay.core.regular_file import read_bytes
from assay.formats.json_codec import dataclass_from, parse_json, write_json
from assay.query.sweep_summary import Mode, Pick
from assay.store.layout import Project, find_project
from assay.store.queue_files import hold_lock

_FOLDER = "searches"
_PLAN = "plan.json"
_LISTED = "assay ls --columns sweep,point,tag"
_MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchMetric:
    """Metric that a search improves: its better direction, and the value of a run that counts."""

    name: str
    mode: Mode
    pick: Pick = "best"

    def __str__(self) -> str:
        return f"{self.name}:{self.mode}" + (":last" if self.pick == "last" else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPlan:
    """Settings of a search and its config as it was read, in a form that can be written down.

    `config` is that of the file, before its `variant`, the points and the `overrides`; what it took
    from the environment, and numbers that it draws, stand in it as values. `seeds` repeats of each
    point count from the seed of its config. `device`, `parallel` and `per_device` say how the runs
    were started; another start may say otherwise, for they decide no number.
    """

    sampler: str
    trials: int
    metrics: tuple[SearchMetric, ...]
    pruner: str = "none"
    search_seed: int = 0
    seeds: int = 1
    config: str = ""
    origins: Mapping[str, Any] = field(default_factory=dict)
    path: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    user_dirs: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    variant: str = ""
    device: str | None = None
    parallel: int = 1
    per_device: int = 0

    @classmethod
    def of(cls, config: Config, **settings: Any) -> SearchPlan:
        """Return the plan of a search over the sweep of a config."""
        assert config.unaliased is not None
        root, _ = draw_random(config.unaliased, Draws())
        variables = config.settings.variables
        root, _ = with_external_values(root, os.environ, variables, with_secrets=False)
        return cls(
            config=dump(root),
            origins=origins_of(root),
            path=str(config.path.resolve()) if config.path is not None else "",
            files=dict(config.files),
            user_dirs=tuple(str(each.resolve()) for each in config.user_dirs),
            overrides=config.overrides,
            **settings,
        )

    def read_config(self) -> Config:
        """Return the config as it was when the search began."""
        root = with_origins(read_toml(self.config, "<plan>"), self.origins)
        assert isinstance(root, Table)
        return open_tree(
            root,
            self.overrides,
            path=Path(self.path) if self.path else None,
            files=self.files,
            user_dirs=tuple(map(Path, self.user_dirs)),
        )

    def sweep_of(self, config: Config) -> Sweep:
        """Return the axes of the search, with as many points as it has trials if they are drawn."""
        found = plan_of(config)
        assert found is not None  # it was there when the search began
        return replace(found, count=self.trials) if found.mode == "random" else found

    def config_at(self, config: Config, point: Point, repeat: int = 0) -> Config:
        """Return the config of a trial; `repeat` counts the seeds from 0."""
        return at_point(config, point, variant=self.variant, repeat=repeat)

    def launch(self, launch: Launch, *, sweep: str, number: int) -> Launch:
        """Return the launch of a trial."""
        return replace(launch, sweep=sweep, point=f"{number + 1}/{self.trials}")

    def changes(self, other: SearchPlan) -> list[str]:
        """Return the names of what another plan has otherwise, besides how its runs start."""
        started = ("origins", "files", "device", "parallel", "per_device")
        names = [each.name for each in fields(self) if each.name not in started]
        return [name for name in names if getattr(self, name) != getattr(other, name)]


@dataclass(frozen=True, slots=True)
class SearchFolder:
    """Folder of one search, in `.assay/` of its project, for this user alone."""

    path: Path

    @classmethod
    def of(cls, project: Project, sweep: str) -> SearchFolder:
        if not sweep.isalnum():
            raise InputError(f"`{sweep}` is no id of a search.", fix=_LISTED)
        return cls(project.assay_dir / _FOLDER / sweep)

    @property
    def journal(self) -> Path:
        """File in which Optuna keeps the study."""
        return self.path / "study.jsonl"

    def write(self, plan: SearchPlan) -> None:
        """Freeze the plan; only who holds the search may."""
        write_json(self.path / _PLAN, plan)

    def read(self) -> SearchPlan:
        """Return the plan. InputError without one, RecordError for one that is damaged."""
        try:
            data = parse_json(read_bytes(self.path / _PLAN, _MAX_BYTES))
            return dataclass_from(SearchPlan, data)
        except FileNotFoundError:
            raise InputError(f"There is no search `{self.path.name}`.", fix=_LISTED) from None
        except (OSError, ValueError, RecordError) as error:
            what = f"The plan of the search cannot be read: {error}"
            raise RecordError(what, where=str(self.path / _PLAN)) from error

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Let no other process work on the search meanwhile; InputError when one does."""
        make_directory(self.path, PRIVATE)
        with hold_lock(self.path / "lock", f"The search {self.path.name} is at work already."):
            yield


def project_of_search(config: Config | None) -> Project:
    """Return the project of a config, or that of the working directory."""
    if config is not None:
        return project_around(config.path)
    found = find_project(Path.cwd())
    if found is None:
        raise InputError("There is no project here.", fix="cd into the project of the search")
    return found
