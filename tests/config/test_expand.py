from __future__ import annotations

from typing import Any

import pytest

from assay.config import (
    changed_keys,
    check_shape,
    config_hash,
    dump,
    expand,
    load,
    loads,
    open_text,
    plain,
)
from assay.config.expansion import problems_of_sections, unique_problems, variations
from assay.config.loading import Config
from assay.core.diagnostics import Problem
from assay.core.errors import ConfigError, InputError

BASE = """\
tag = "base"
seed = 1
[model]
type = "torch.nn.Linear"
width = 32
layers = [{ size = 1 }, { size = 2 }]
[data.train]
source = { type = "torch.utils.data.TensorDataset" }
batch_size = 64
[optimizer]
type = "torch.optim.AdamW"
lr = 1e-3
[train]
epochs = 5
"""


def changed(config: Config, base: Config) -> dict[str, Any]:
    changes = changed_keys(base.root, config.root)
    return {one.key: "removed" if one.after is None else plain(one.after) for one in changes}


def variant(body: str, *overrides: str) -> dict[str, Any]:
    base = loads(f"{BASE}{body}", overrides)
    (made,) = expand(base, ["v"])
    assert made.problems == ()
    return changed(made, base)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('[variants.v]\n"model.width" = 64', {"model.width": 64}),
        ("[variants.v]\nmodel.width = 64\nseed = 2", {"seed": 2, "model.width": 64}),
        ("[variants.v.model]\nwidth = 64\ndepth = 3", {"model.width": 64, "model.depth": 3}),
        ('[variants.v]\n"model.layers[1].size" = 5', {"model.layers.1.size": 5}),
        ('[variants.v]\n"+model.layers" = { size = 3 }', {"model.layers.2": {"size": 3}}),
        ('[variants.v]\n"model.width" = "@delete"', {"model.width": "removed"}),
        ("[variants.v.data.train]\nbatch_size = 8", {"data.train.batch_size": 8}),
        (
            '[variants.v]\noptimizer = { type = "torch.optim.SGD" }',
            {"optimizer.type": "torch.optim.SGD", "optimizer.lr": "removed"},
        ),
        ('[variants.v.evaluate]\nevery = "2 epochs"', {"evaluate": {"every": "2 epochs"}}),
        ('[variants.v]\n"+model.head.width" = 3', {"model.head": {"width": 3}}),
        (
            '[variants.v.ema]\ntype = "a.B"\n[variants.v.model]\nx = "@ema"',
            {"model.x": "@ema", "ema": {"type": "a.B"}},
        ),
        ('[variants.v]\nseed = "${train.epochs}"', {"seed": 5}),
    ],
)
def test_a_variant_changes_what_it_names_and_nothing_else(
    body: str, expected: dict[str, Any]
) -> None:
    assert variant(body) == expected


def test_the_command_line_wins_over_a_variant() -> None:
    base = loads(f"{BASE}[variants.v]\nseed = 2\n", ["seed=3"])
    (made,) = expand(base, ["v"])

    assert plain(made.root)["seed"] == 3
    assert [str(link) for link in made.root.items["seed"].origin.chain()] == [
        "<cli>:1:6",
        "<string>:16:8 (variant v)",
        "<string>:2:8",
    ]


def test_the_base_has_neither_variants_nor_a_sweep() -> None:
    config = loads(f"{BASE}[variants.v]\nseed = 2\n[sweep]\nseed = [1, 2]\n")

    assert config.root.items.keys() == loads(BASE).root.items.keys()
    assert config_hash(config.root) == config_hash(loads(BASE).root)
    assert load_again(config).root.items.keys() == config.root.items.keys()


def load_again(config: Config) -> Config:
    return loads(dump(config.root))


def test_variants_come_in_the_order_they_are_asked_for_and_each_once() -> None:
    base = loads(f"{BASE}[variants.a]\nseed = 2\n[variants.b]\nseed = 3\n")

    assert [made.name for made in expand(base)] == [""]
    assert [made.name for made in expand(base, ["b", "a", "b"])] == ["b", "a"]
    assert [made.name for made in expand(base, ["all"])] == ["a", "b"]


def test_a_variant_that_is_not_there_is_refused_with_the_nearest_name() -> None:
    base = loads(f"{BASE}[variants.big]\nseed = 2\n")

    with pytest.raises(InputError, match="did you mean `big`"):
        expand(base, ["bgi"])
    with pytest.raises(InputError, match="It has: big"):
        expand(base, ["zzz"])
    with pytest.raises(InputError, match="has no variants"):
        expand(loads(BASE), ["all"])


def points(body: str, *overrides: str) -> list[dict[str, Any]]:
    base = loads(f"{BASE}[sweep]\n{body}", overrides)
    return [{key: plain(node) for key, node in made.assigned} for made in expand(base)]


def test_a_grid_has_every_combination_with_the_last_axis_fastest() -> None:
    assert points('"optimizer.lr" = [0.1, 0.2]\nseed = [1, 2]') == [
        {"optimizer.lr": 0.1, "seed": 1},
        {"optimizer.lr": 0.1, "seed": 2},
        {"optimizer.lr": 0.2, "seed": 1},
        {"optimizer.lr": 0.2, "seed": 2},
    ]


def test_a_point_sets_what_it_says() -> None:
    base = loads(f'{BASE}[sweep]\n"optimizer.lr" = [0.1, 0.2]\nmodel.width = [1, 2]\n')
    made = expand(base)

    assert [each.name for each in made] == ["point 1/4", "point 2/4", "point 3/4", "point 4/4"]
    assert changed(made[3], base) == {"optimizer.lr": 0.2, "model.width": 2}
    assert made[3].root.items["optimizer"].items["lr"].origin.note == "sweep"  # type: ignore[union-attr, index]
    assert len({config_hash(each.root) for each in made}) == 4


def test_a_zip_goes_in_step() -> None:
    assert points('mode = "zip"\nseed = [1, 2]\nmodel.width = [8, 16]') == [
        {"seed": 1, "model.width": 8},
        {"seed": 2, "model.width": 16},
    ]


def test_a_range_is_spaced_evenly_or_by_ratio() -> None:
    by_ratio = points('optimizer.lr = { low = 1e-4, high = 1e-1, scale = "log", count = 4 }')
    assert by_ratio == [{"optimizer.lr": lr} for lr in (1e-4, 1e-3, 1e-2, 1e-1)]
    assert points("seed = { low = 1, high = 3, count = 9 }") == [
        {"seed": seed} for seed in (1, 2, 3)
    ]
    assert points("optimizer.lr = { low = 0.0, high = 1.0, count = 3 }") == [
        {"optimizer.lr": x} for x in (0, 0.5, 1)
    ]


def test_a_random_sweep_is_the_same_each_time_and_stays_in_its_ranges() -> None:
    body = (
        'mode = "random"\npoints = 30\noptimizer.lr = { low = 1e-5, high = 1e-1, scale = "log" }\n'
    )
    body += "seed = { low = 1, high = 4 }\nmodel.width = [8, 16]\n"
    first = points(body)

    assert points(body) == first
    assert points(f"draw = 1\n{body}") != first
    assert len(first) == 30
    assert all(1e-5 <= each["optimizer.lr"] <= 1e-1 for each in first)
    assert {each["seed"] for each in first} == {1, 2, 3, 4}
    assert {each["model.width"] for each in first} == {8, 16}
    assert sum(each["optimizer.lr"] < 1e-3 for each in first) in range(8, 23)
    with_more = points(body + "train.epochs = [1, 2]\n")
    assert [each["optimizer.lr"] for each in with_more] == [each["optimizer.lr"] for each in first]


@pytest.mark.parametrize(
    ("scale", "shares"),
    [
        ("linear", [0.25, 0.25, 0.25, 0.25]),
        ("log", [0.5, 0.2325, 0.1531, 0.1144]),  # log(1.5 / 0.5) / log(4.5 / 0.5), ...
    ],
)
def test_the_ends_of_a_range_are_drawn_as_often_as_what_lies_between(
    scale: str, shares: list[float]
) -> None:
    body = 'mode = "random"\npoints = 4000\noptimizer.lr = { low = 0.0, high = 1.0 }\n'
    drawn = points(f'{body}seed = {{ low = 1, high = 4, scale = "{scale}" }}\n')

    seeds = [each["seed"] for each in drawn]
    assert [seeds.count(seed) / 4000 for seed in (1, 2, 3, 4)] == pytest.approx(shares, abs=0.03)


def test_a_random_sweep_of_lists_takes_no_combination_twice() -> None:
    drawn = points('mode = "random"\npoints = 100\nseed = [1, 2, 3]\nmodel.width = [1, 2]')

    assert len(drawn) == len({tuple(each.items()) for each in drawn}) == 6


def test_a_key_of_the_command_line_no_longer_varies() -> None:
    body = '"optimizer.lr" = [0.1, 0.2]\nseed = [1, 2]'

    assert points(body, "seed=5") == [{"optimizer.lr": 0.1}, {"optimizer.lr": 0.2}]
    assert points(body, "seed=5", "optimizer.lr=1") == [{}]
    assert points(body, "sweep.seed=[7]", "optimizer.lr=1") == [{"seed": 7}]
    assert points(body, "sweep.optimizer.lr=[3]", "seed=1") == [{"optimizer.lr": 3}]


def test_every_variant_is_taken_to_every_point_unless_the_sweep_is_left_aside() -> None:
    base = loads(
        f"{BASE}[variants.a]\nmodel.width = 1\n[variants.b]\nmodel.width = 2\n[sweep]\nseed = [8, 9]\n"
    )

    assert [made.name for made in expand(base, ["all"])] == [
        "a point 1/2",
        "a point 2/2",
        "b point 1/2",
        "b point 2/2",
    ]
    assert [made.name for made in expand(base, ["all"], sweep=False)] == ["a", "b"]
    assert [made.name for made in expand(base, sweep=False)] == [""]


def test_a_random_value_is_the_same_in_every_config_of_a_file_and_another_at_the_next_start() -> (
    None
):
    text = (
        BASE.replace("seed = 1", 'seed = "${random:int:0:1000000000}"')
        + "[variants.v]\nmodel.width = 1\n"
    )
    base = loads(text)
    (made,) = expand(base, ["v"])

    assert changed(made, base) == {"model.width": 1}
    assert plain(loads(text).root)["seed"] != plain(base.root)["seed"]
    assert plain(load_again(base).root)["seed"] == plain(base.root)["seed"]


@pytest.mark.parametrize("changes", ["'a.b' = 2\na.b = 3", "a = { b = 2 }\n'a.b' = 3"])
def test_a_variant_that_sets_a_key_twice_is_refused(changes: str) -> None:
    text = f"[a]\nb = 1\n[variants.v]\n{changes}"

    (made,) = expand(open_text(text, source="a.toml"), ["v"])

    assert [problem.message for problem in made.problems] == ["`a.b` is given twice"]


@pytest.mark.parametrize(
    ("body", "message", "place", "fix"),
    [
        (
            "variants = 3",
            "`variants` must be a table of variants",
            "1:12",
            'write [variants.big] and under it "model.hidden" = 512',
        ),
        (
            "[variants]\nall = { seed = 1 }",
            "no variant can be called `all`: `--variant all` means every one",
            "2:1",
            "give it another name",
        ),
        (
            "[variants]\nseed = 1",
            "the variant `seed` must be a table",
            "2:8",
            'write [variants.big] and under it "model.hidden" = 512',
        ),
        ("sweep = 3", "`sweep` must be a table", "1:9", None),
        ("[sweep]", "`sweep` varies nothing", "1:2", None),
        (
            "[sweep]\nmode = 'gird'\nseed = [1]",
            "a sweep has no mode `gird`",
            "2:8",
            "did you mean `grid`?",
        ),
        ("[sweep]\nseed = 1", "`sweep.seed` must be a list of values or a range", "2:8", None),
        ("[sweep]\nseed = []", "`sweep.seed` has no values", "2:8", None),
        (
            "[sweep]\nmdoe = 'zip'\nseed = [1]",
            "`sweep.mdoe` must be a list of values or a range",
            "2:8",
            "did you mean `mode`?",
        ),
        (
            "[sweep]\nmode = 'random'\nseed = [1]",
            "a random sweep needs `points`",
            "1:2",
            "write points = 20 under [sweep]",
        ),
        (
            "[sweep]\nmode = 'random'\npoints = 0\nseed = [1]",
            "`sweep.points` must be a whole number from 1 to 10,000",
            "3:10",
            "",
        ),
        (
            "[sweep]\npoints = 3\nseed = [1]",
            "`points` is for a random sweep; this one is grid",
            "2:1",
            'write mode = "random", or remove it',
        ),
        (
            "[sweep]\nmode = 'zip'\nseed = [1]\ntrain.epochs = [1, 2]",
            "`train.epochs` has 2 values and `seed` 1: in a zip they go together",
            "4:1",
            "",
        ),
        (
            "[sweep]\nseed = { low = 1, high = 2 }",
            "`sweep.seed` needs a `count`: how many values from low to high",
            "2:8",
            'write count = 5, or mode = "random"',
        ),
        (
            "[sweep]\nseed = { low = 3, high = 2, count = 1 }",
            "`sweep.seed` is no range: its `low` is above its `high`",
            "2:8",
            "",
        ),
        (
            "[sweep]\nlr = { low = 0, high = 2, count = 1, scale = 'log' }",
            "`sweep.lr` is no range: a log scale begins above 0",
            "2:6",
            "",
        ),
        (
            "[sweep]\nseed = { low = 1, hihg = 2 }",
            "unknown key `hihg` of a range",
            "2:19",
            "did you mean `high`?",
        ),
        (
            "[sweep]\nseed = { low = 1, high = true }",
            "`sweep.seed.high` must be a number",
            "2:26",
            "",
        ),
        (
            "[sweep]\n'+seed' = [1]",
            "`+seed` in a sweep makes nothing new",
            "2:1",
            "put the key into the file, then vary it",
        ),
        ("[sweep]\n'a..b' = [1]", "`a..b` is no path of keys", "2:1", None),
        (
            "[sweep]\n'a.b' = [1, 2]\na.b = [3]",
            "`a.b` is given twice",
            "3:3",
            "keep one of the two",
        ),
        (
            "[sweep]\na = { low = 0, high = 99, count = 200 }\nb = { low = 0.0, high = 1.0, count = 200 }",
            "the sweep has 20,000 points; at most 10,000 are run",
            "1:2",
            'write mode = "random" and points = 100',
        ),
    ],
)
def test_what_is_wrong_with_the_sections_is_told_at_its_place(
    body: str, message: str, place: str, fix: str | None
) -> None:
    config = open_text(body, source="a.toml")

    first = problems_of_sections(config)[0]

    assert (first.message, str(first.origin)) == (message, f"a.toml:{place}")
    assert fix is None or first.fix == fix
    with pytest.raises(ConfigError):
        expand(config)


def test_every_mistake_of_every_variation_is_told_once_and_says_where_it_shows() -> None:
    config = open_text(
        f"{BASE}[variants.a]\n'model.widht.x' = 1\ntrain.epochs = 0\n"
        "[variants.b]\n'data.train.source' = '@delete'\ntrian = 3\n"
        "[sweep]\ntrain.epochs = [1, 'two', 3]\n'data.train.batch_size' = [0]\n",
        source="a.toml",
    )

    problems = unique_problems(variations(config), check_shape)

    assert [(problem.message, str(problem.origin)) for problem in problems] == [
        ("unknown key `model.widht`", "a.toml:16:1 (variant a)"),
        ("`train.epochs` must be at least 1, not 0", "a.toml:17:16 (variant a)"),
        ("`data.train` has no `source`, in the variant b", "a.toml:7:7"),
        ("unknown key `trian`", "a.toml:20:1 (variant b)"),
        ("`data.train.batch_size` must be at least 1, not 0", "a.toml:23:28 (sweep)"),
        ('`train.epochs` must be a whole number, not "two"', "a.toml:22:20 (sweep)"),
    ]


def found_wrong(sweep: str) -> list[str]:
    """Return what a check of a file finds where `momentum` is right for sgd alone."""
    config = open_text(f"kind = 'adam'\nmomentum = 0\n[sweep]\n{sweep}")

    def stage(config: Config) -> list[Problem]:
        kind, momentum = (config.root.items[key] for key in ("kind", "momentum"))
        is_wrong = kind.value == "adam" and momentum.value != 0  # type: ignore[union-attr]
        message = "adam has no momentum"
        return [Problem(kind="x", message=message, origin=config.root.origin)] * is_wrong

    refused = [each for each in expand(config) if stage(each)]
    found = unique_problems(variations(config), stage)
    assert bool(found) == bool(refused), "what is run is what is checked"
    return [problem.message for problem in found]


@pytest.mark.parametrize(
    ("sweep", "is_refused"),
    [
        ("kind = ['sgd', 'adam']\nmomentum = [0, 0.9]", True),
        ("kind = ['sgd']\nmomentum = [0, 0.9]", False),
        ("mode = 'zip'\nkind = ['sgd', 'adam']\nmomentum = [0.9, 0]", False),
        ("mode = 'zip'\nkind = ['adam', 'sgd']\nmomentum = [0.9, 0]", True),
        ("mode = 'random'\npoints = 4\nkind = ['sgd', 'adam']\nmomentum = [0, 0.9]", True),
        ("mode = 'random'\npoints = 4\nkind = ['sgd']\nmomentum = {low = 0.1, high = 0.9}", False),
        ("mode = 'random'\npoints = 4\nkind = ['adam']\nmomentum = {low = 0.1, high = 0.9}", True),
        ("kind = ['sgd', 'adam']\nmomentum = {low = 0.0, high = 0.9, count = 300}", True),
        ("kind = ['sgd']\nmomentum = {low = 0.0, high = 0.9, count = 300}", False),
    ],
)
def test_a_check_finds_what_a_run_refuses_in_combinations_of_keys_and_nothing_else(
    sweep: str, is_refused: bool
) -> None:
    found = found_wrong(sweep)

    assert bool(found) == is_refused
    assert all("when the sweep sets" in message for message in found)


def test_a_variant_is_checked_at_every_point_of_the_sweep() -> None:
    config = open_text("kind = 'sgd'\n[variants.a]\nkind = 'adam'\n[sweep]\nmomentum = [0, 0.9]\n")

    pairs = [(each.variant, len(each.assigned)) for each in variations(config)]

    assert pairs == [("", 0), ("a", 0), ("", 1), ("", 1), ("a", 1), ("a", 1)]


@pytest.mark.parametrize(
    ("sweep", "expected"),
    [
        ("x = [1, 2, 1]\ny = ['a', 'a']", [(1, "a"), (2, "a")]),
        ("x = [1, 1.0, true]\ny = [0]", [(1, 0), (1.0, 0), (True, 0)]),
        ("mode = 'zip'\nx = [1, 2, 1, 1]\ny = [3, 3, 3, 4]", [(1, 3), (2, 3), (1, 4)]),
        ("mode = 'random'\npoints = 9\nx = [1, 1, 1]\ny = [2]", [(1, 2)]),
        ("x = { low = 1, high = 2, count = 9 }\ny = [nan, nan]", [(1, "nan"), (2, "nan")]),
    ],
)
def test_a_point_that_is_given_twice_is_run_once(
    sweep: str, expected: list[tuple[object, object]]
) -> None:
    made = expand(open_text(f"x = 0\ny = 0\n[sweep]\n{sweep}"))

    points = [tuple(node.value for _, node in each.assigned) for each in made]  # type: ignore[union-attr]
    assert [str(each).replace("nan", "'nan'") for each in points] == list(map(str, expected))
    assert [each.point for each in made] == [f"{i}/{len(made)}" for i in range(1, len(made) + 1)]


def test_whole_numbers_are_drawn_until_there_are_as_many_points_as_asked_for() -> None:
    drawn = points("mode = 'random'\npoints = 8\nseed = { low = 1, high = 9 }")

    assert len({each["seed"] for each in drawn}) == len(drawn) == 8
    every = points("mode = 'random'\npoints = 50\nseed = { low = 1, high = 3 }")
    assert sorted(each["seed"] for each in every) == [1, 2, 3]


def test_a_base_that_cannot_be_read_is_told_without_its_variations() -> None:
    config = open_text(f"{BASE}x = = 3\n[variants.a]\ntrain.epochs = 0\n")

    assert len(list(variations(config))) == 1


def test_a_template_that_only_a_variant_copies_from_is_used() -> None:
    config = loads(f'{BASE}[wide]\nwidth = 99\n[variants.v]\nmodel.width = "${{wide.width}}"\n')

    assert check_shape(config) == []
    assert changed(expand(config, ["v"])[0], config) == {"model.width": 99}


def test_a_file_on_disk_expands_the_same(tmp_path: Any) -> None:
    (tmp_path / "a.toml").write_text(f"{BASE}[variants.v]\nseed = 7\n")

    assert plain(expand(load(tmp_path / "a.toml"), ["v"])[0].root)["seed"] == 7
