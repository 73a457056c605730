"""Expansion of one file into configs: its variants, and the points of its sweep."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from assay.config.loading import Config
from assay.config.merge import Change, merge
from assay.config.overrides import RefusedError, setting_of
from assay.config.standard_keys import sections_of
from assay.config.sweep import SECTION, Point, Sweep, assignments, sweep_of
from assay.config.tree import KeyPath, Leaf, walk
from assay.config.variants import ALL, Variant, variants_of
from assay.core.diagnostics import Origin, Problem
from assay.core.errors import ConfigError, InputError, did_you_mean, few_suggestions

SEEDS = "--seeds"
"""Source of a seed that a repeat of a config has."""


def expand(config: Config, variants: Sequence[str] = (), *, sweep: bool = True) -> list[Config]:
    """Return the configs to run: the base or the named variants, each at every point of the sweep.

    "all" names every variant. Each config keeps its own `problems`. A key given on the command line
    is fixed: it no longer varies. Raises InputError for an unknown variant, ConfigError when
    `[variants]` or `[sweep]` cannot be understood.
    """
    known, problems = variants_of(config.written)
    plan, wrong = sweep_of(config.written) if sweep else (None, [])
    if problems or wrong:
        raise ConfigError([*problems, *wrong])
    names: list[str] = []
    for name in variants:
        names += known if name == ALL and known else [_check_variant(name, known, config)]
    plan = plan.without(_fixed_keys(config)) if plan is not None else None
    chosen = [known[name] for name in dict.fromkeys(names)] if variants else [None]
    return [made for variant in chosen for made in _at_points(config, variant, plan)]


def repeat(
    config: Config,
    variants: Sequence[str] = (),
    *,
    sweep: bool = True,
    seeds: int | Sequence[int] = 1,
) -> list[Config]:
    """Return the configs of `expand`, each under these seeds, or so many from its own one on.

    The repeats of one point follow each other. InputError when the sweep varies the seed itself.
    """
    once = expand(config, variants, sweep=sweep)
    if seeds == 1:
        return once
    refuse_swept_seed(key for each in once for key, _ in each.assigned)
    by_seed: dict[int, list[Config]] = {}
    found = []
    for i, each in enumerate(once):
        own = sections_of(each.root).seed
        for seed in range(own, own + seeds) if isinstance(seeds, int) else seeds:
            if seed not in by_seed:
                again = _make(_with_seed(config, seed), None, ())
                by_seed[seed] = expand(again, variants, sweep=sweep)
            made = by_seed[seed][i]
            mark = ("seed", Leaf(seed, Origin(source=SEEDS)))
            found.append(replace(made, assigned=(*made.assigned, mark)))
    return found


def plan_of(config: Config) -> Sweep | None:
    """Return the sweep of a file without the keys that the command line fixes, None without one.

    ConfigError when `[sweep]` cannot be understood.
    """
    plan, problems = sweep_of(config.written)
    if problems:
        raise ConfigError(problems)
    plan = plan.without(_fixed_keys(config)) if plan is not None else None
    return plan if plan is not None and plan.axes else None


def at_point(config: Config, point: Point, *, variant: str = "", repeat: int = 0) -> Config:
    """Return a config, of its variant, with the values of a point; `repeat` counts seeds from 0."""
    chosen = variants_of(config.written)[0][variant] if variant else None
    made = _make(config, chosen, point)
    if not repeat:
        return made
    seed = sections_of(made.root).seed + repeat
    return _make(_with_seed(config, seed), chosen, point)


def refuse_swept_seed(keys: Iterable[str]) -> None:
    """Raise InputError for repeats under several seeds of a sweep that varies the seed itself."""
    if "seed" in keys:
        raise InputError(
            "The sweep varies `seed` itself.", fix="take it out of [sweep], or leave --seeds out"
        )


def _with_seed(config: Config, seed: int) -> Config:
    return replace(config, overrides=(*config.overrides, f"seed={seed}"))


_MAX_VALUES_CHECKED = 200_000
"""Values, of all configs of a file together, that are checked at once: a few seconds' work."""

_MAX_CONFIGS_CHECKED = 2_000

MAX_TOLD = 400
"""Mistakes after which no further config of a file is looked at."""


def variations(config: Config) -> Iterator[Config]:
    """Yield the base, every variant, and each at every point of the sweep: all must make sense.

    Of very many, or very large ones, only some; `problems_of_sections` says so.
    """
    yield config
    if not config.read_problems:
        makers = _makers(config)
        most = _most(config)
        if len(makers) > most:
            makers = random.Random(0).sample(makers, most)
        for variant, point in makers:
            yield _make(config, variant, point)


def problems_of_sections(config: Config) -> list[Problem]:
    """Return the problems of `[variants]` and `[sweep]` themselves."""
    problems = [*variants_of(config.written)[1], *sweep_of(config.written)[1]]
    count = len(_makers(config))
    most = _most(config)
    if count > most:
        message = f"of the {count:,} configs of this file {most:,} are checked here"
        fix = "each of them is checked before it runs"
        origin = config.written.origin
        problems.append(
            Problem(kind="too-many", severity="warning", message=message, origin=origin, fix=fix)
        )
    return problems


def _makers(config: Config) -> list[tuple[Variant | None, Point]]:
    """Return each variant, and the base and each variant at each point of the sweep."""
    variants = list(variants_of(config.written)[0].values())
    found: list[tuple[Variant | None, Point]] = [(each, ()) for each in variants]
    plan, _ = sweep_of(config.written)
    plan = plan.without(_fixed_keys(config)) if plan is not None else None
    if plan is not None and plan.axes:
        points = list(plan.points_to_check())
        found += [(variant, point) for variant in (None, *variants) for point in points]
    return found


def _most(config: Config) -> int:
    """Return how many configs besides the base are checked at once."""
    values = sum(1 for _ in walk(config.root))
    return min(max(_MAX_VALUES_CHECKED // max(values, 1), 10), _MAX_CONFIGS_CHECKED)


def _at_points(config: Config, variant: Variant | None, plan: Sweep | None) -> Iterator[Config]:
    count = plan.size() if plan is not None else 0
    if plan is None or not count:
        yield _make(config, variant, ()) if variant is not None else config
        return
    for i, point in enumerate(plan.points(), 1):
        yield replace(_make(config, variant, point), point=f"{i}/{count}")


def _make(config: Config, variant: Variant | None, point: Point) -> Config:
    changes: list[Change] = [variant.settings] if variant is not None else []
    changes.append(lambda _: ([axis.with_value(value, SECTION) for axis, value in point], []))
    made = merge(
        config.given,
        config.overrides,
        config.draws,
        config.uses,
        config.settings,
        changes,
        older=config.older,
        is_whole=not config.read_problems,
    )
    return replace(
        config,
        root=made.root,
        written=made.written,
        problems=(*config.read_problems, *made.problems),
        notes=(*config.file_notes, *made.notes),
        named=None,
        filled=None,
        variant=variant.name if variant is not None else "",
        assigned=assignments(point),
    )


def _check_variant(name: str, known: Collection[str], config: Config) -> str:
    if name in known:
        return name
    where = str(config.path) if config.path else "the config"
    if not known:
        raise InputError(
            f"{where} has no variants.",
            fix='Write [variants.big] and under it "model.hidden" = 512.',
        )
    fix = did_you_mean(name, known) or f"It has: {', '.join(known)}."
    raise InputError(f"There is no variant `{name}` in {where}.", fix=fix)


def _fixed_keys(config: Config) -> list[KeyPath]:
    """Return the keys that the command line sets."""
    paths = []
    for argument in config.overrides:
        try:
            paths.append(setting_of(argument).parts)
        except RefusedError:
            continue
    return paths


def unique_problems(
    configs: Iterable[Config], stage: Callable[[Config], Iterable[Problem]]
) -> list[Problem]:
    """Return the problems that a check stage finds in several configs of one file, each once."""
    problems: dict[tuple[str, str], Problem] = {}
    with few_suggestions():  # for all of them together
        for config in configs:
            for problem in stage(config):
                # By the place alone: what a value replaces differs from variant to variant.
                place = (problem.message, str(problem.origin))
                problems.setdefault(place, _in_variation(problem, config))
            if config.name and len(problems) > MAX_TOLD:
                break
        else:
            return list(problems.values())
    message = (
        f"more than {MAX_TOLD} mistakes:"
        f" configs of this file after {config.name} were not looked at"
    )
    return [
        *problems.values(),
        Problem(kind="too-many", message=message, origin=config.root.origin),
    ]


def _in_variation(problem: Problem, config: Config) -> Problem:
    """Add the variation to a problem of a line that is right by itself."""
    if problem.origin.note:
        return problem
    where = f" in the variant {config.variant}" if config.variant else ""
    where += (
        f" when the sweep sets {' and '.join(key for key, _ in config.assigned)}"
        if config.assigned
        else ""
    )
    return replace(problem, message=f"{problem.message},{where}") if where else problem
