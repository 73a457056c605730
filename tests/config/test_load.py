from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from assay.config import load, loads, open_config, open_text, plain
from assay.config.sources.positions import MAX_BYTES
from assay.core.errors import ConfigError, InputError


def test_a_file_and_its_overrides_become_one_tree(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_bytes(b'\xef\xbb\xbftag = "x"\r\nseed = 1\r\n')

    config = load(file, ["seed=2"])

    assert plain(config.root) == {"tag": "x", "seed": 2}
    assert dict(config.files) == {str(file): '\ufefftag = "x"\r\nseed = 1\r\n'}
    assert config.path == file
    assert config.user_dirs == (tmp_path, tmp_path / "src")
    assert config.user_dir == tmp_path
    assert config.overrides == ("seed=2",)


def test_the_folder_of_user_modules_can_be_given(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("")

    assert load(tmp_path / "a.toml", user_dir=tmp_path).user_dirs == (tmp_path,)
    with pytest.raises(InputError, match="does not exist"):
        load(tmp_path / "a.toml", user_dir=tmp_path / "nowhere")


def test_a_missing_file_names_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "digits.toml").write_text("")
    (tmp_path / "quite-another.toml").write_text("")

    with pytest.raises(InputError) as caught:
        load(tmp_path / "digit.toml")
    assert str(caught.value) == (
        f"There is no config file {tmp_path / 'digit.toml'}.\n  fix: Near it there is: {tmp_path / 'digits.toml'}."
    )
    with pytest.raises(InputError, match="is a folder"):
        load(tmp_path)
    with pytest.raises(InputError, match=r"The folder .* does not exist"):
        load(tmp_path / "no" / "x.toml")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="There is no config in"):
        load(tmp_path / "empty" / "x.toml")
    with pytest.raises(InputError, match="cannot be read"):
        load("a\x00b.toml")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "seed: 1"),
        ("a.YML", "seed: 1"),
        ("a.json", '{"seed": 1}'),
        ("a.py", "seed = 1"),
        ("a.ini", "seed = 1"),
        ("a", "seed = 1"),
    ],
)
def test_the_suffix_says_how_a_file_is_written(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)

    config = load(tmp_path / name)

    assert plain(config.root) == {"seed": 1}
    assert dict(config.files) == {str(tmp_path / name): text}


@pytest.mark.row("A87")
def test_a_mapping_is_copied_and_a_path_is_read(tmp_path: Path) -> None:
    given = {"model": {"type": "model.Net", "widths": [1, 2]}, "seed": 1}
    (tmp_path / "a.toml").write_text("seed = 1\n")

    copy = plain(load(given).root)
    copy["model"]["widths"].append(3)
    copy["seed"] = 2

    assert given == {"model": {"type": "model.Net", "widths": [1, 2]}, "seed": 1}
    assert plain(load(given).root) == given
    assert plain(load(tmp_path / "a.toml").root) == {"seed": 1}


def test_bytes_that_are_no_text_are_told_with_their_place(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_bytes("a = 1\nb = 'é".encode() + b"\xff'\n")

    problem = open_config(file).problems[0]

    assert (problem.message, problem.origin.line, problem.origin.column) == (
        "byte 0xff is no UTF-8",
        2,
        7,
    )


@pytest.mark.parametrize("filler", ["#", "é"])
def test_a_huge_file_is_refused(tmp_path: Path, filler: str) -> None:
    file = tmp_path / "a.toml"
    file.write_text("#" + filler * (MAX_BYTES + 2), encoding="utf-8")

    assert [problem.kind for problem in open_config(file).problems] == ["too-large"]


def test_everything_that_cannot_be_read_is_raised_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        loads("a = '${b}'\n[train]\nx = '@y'\n", ["trian.epochs=1"])

    assert [problem.kind for problem in caught.value.problems] == [
        "unknown-key",
        "unknown-reference",
        "unknown-reference",
    ]


def test_names_are_not_judged_while_a_part_of_the_file_is_missing() -> None:
    config = open_text("a = '${b}'\nb = oops\nc = '${c}'\n", ["b.x=1", "--d.e=1"])

    assert [problem.kind for problem in config.problems] == ["syntax", "syntax", "reference-cycle"]


def test_sections_that_are_only_copied_from_are_not_built_or_kept() -> None:
    config = loads(
        '[base]\nw = 3\n[both]\nx = 1\n[model]\nw = "${base.w}"\nx = "${both.x}"\ny = "@both"\n'
    )

    assert plain(config.root) == {"both": {"x": 1}, "model": {"w": 3, "x": 1, "y": "@both"}}
    assert set(plain(config.written)) == {"base", "both", "model"}


def test_this_room_is_entered_without_heavy_luggage() -> None:
    code = (
        "import sys; import assay.config as c; c.check_shape(c.open_text('[train]\\nepochs = 1'));"
        "print([m for m in ('torch', 'numpy', 'pydantic', 'rich', 'click', 'tomlkit', 'tomli_w') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ),
    )

    assert done.stdout.strip() == "[]"
