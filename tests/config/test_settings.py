from __future__ import annotations

from pathlib import Path

import pytest

from assay.config import check_shape, globs, open_config
from assay.config.settings import (
    Globals,
    Settings,
    distrust,
    file_of,
    global_file,
    path_of,
    remove_setting,
    trust,
    variable_path,
    write,
)
from assay.core.errors import ConfigError, InputError


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / ".assay").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def local(project: Path, text: str) -> Settings:
    (project / ".assay" / "settings.toml").write_text(text)
    return Settings(project)


def test_the_project_wins_over_the_user_and_unset_falls_back(project: Path) -> None:
    settings = Settings(project)
    write(file_of(settings, "global"), variable_path("datasets"), "/data")
    write(file_of(settings, "local"), variable_path("datasets"), "/here")
    assert Settings(project / "deep" / "down").variables == {"datasets": "/here"}

    remove_setting(file_of(settings, "local"), variable_path("datasets"))
    assert Settings(project).variables == {"datasets": "/data"}
    assert Settings(Path("/")).variables == {"datasets": "/data"}


@pytest.mark.row("C52")
def test_variables_are_read_set_and_listed_from_code(project: Path) -> None:
    with pytest.raises(KeyError, match="assay config set --global datasets VALUE"):
        globs["datasets"]

    globs.update("global", "datasets", "/path/to/all/datasets")
    globs.update("local", "a", 1)

    assert globs["datasets"] == "/path/to/all/datasets"
    assert dict(globs) == {"datasets": "/path/to/all/datasets", "a": 1}
    assert len(globs) == 2 and "a" in globs and "b" not in globs
    assert globs.list_config(globa=True, local=True) == dict(globs)
    assert globs.list_config(globa=False) == {"a": 1}
    assert globs.glob_fn == global_file() and globs.glob_fn.read_text().startswith("[globals]\n")
    with pytest.raises(InputError, match="did you mean `datasets`"):
        globs["dataset"]


def test_outside_a_project_nothing_local_can_be_set(tmp_path: Path) -> None:
    assert Settings(tmp_path).local_file is None
    with pytest.raises(InputError, match="There is no project"):
        Globals(tmp_path).update("local", "a", 1)


def test_a_file_of_settings_keeps_its_comments(project: Path) -> None:
    settings = local(project, "# ours\nruns_dir = 'x' # on the big disk\n")
    write(file_of(settings, "local"), path_of("runs_dir"), "y")
    trust(settings, "timm")

    text = (project / ".assay" / "settings.toml").read_text()
    assert text == '# ours\nruns_dir = "y" # on the big disk\ntrusted = ["timm"]\n'


def test_packages_are_trusted_by_a_project_and_never_python_itself(project: Path) -> None:
    assert trust(Settings(project), "timm") is True
    assert trust(Settings(project), "timm") is False
    trust(Settings(project), "a.b")
    assert Settings(project).trusted == {"timm", "a.b"}

    distrust(Settings(project), "timm")
    assert Settings(project).trusted == {"a.b"}
    with pytest.raises(InputError, match="`timm` is not trusted here"):
        distrust(Settings(project), "timm")
    for package in ("os", "builtins", "torch", "assay", "os.path", "a b", ""):
        with pytest.raises(InputError, match=r"cannot be trusted|no name of a package"):
            trust(Settings(project), package)


def test_a_config_sees_the_settings_of_its_own_project(
    project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = '[model]\ntype = "timm.create_model"\nroot = "${global:datasets}"\n'
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for folder in (project, elsewhere):
        (folder / "a.toml").write_text(text)
    trust(Settings(project), "timm")
    write(file_of(Settings(project), "local"), variable_path("datasets"), "/here")

    assert check_shape(open_config(project / "a.toml")) == []
    assert [
        (problem.kind, problem.fix) for problem in check_shape(open_config(elsewhere / "a.toml"))
    ] == [
        ("target-not-allowed", "assay config trust timm"),
        ("unknown-reference", "assay config set --global datasets VALUE"),
    ]


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("runs_dri = 'x'", ["there is no setting `runs_dri`"]),
        (
            "runs_dir = 3\ntrusted = 'timm'",
            [
                "`runs_dir` must be a path in quotes",
                '`trusted` must be a list of packages, as in ["timm"]',
            ],
        ),
        (
            "trusted = ['os', 3]",
            ["`os` cannot be trusted: it is Python itself", "a package is named by a string"],
        ),
        ("globals = 3", ["`globals` must be a table of variables"]),
        ("[globals]\n'a b' = 1", ["`a b` cannot be the name of a variable"]),
        (
            "[kubernetes]\nimage = 'x'",
            ["`kubernetes` must be a table with the texts image, claim, mount"],
        ),
        ("a = ", ["a value is missing"]),
    ],
)
def test_settings_that_mean_nothing_are_told_with_their_place(
    project: Path, text: str, messages: list[str]
) -> None:
    settings = local(project, text)

    with pytest.raises(ConfigError) as caught:
        assert settings.local

    assert [problem.message for problem in caught.value.problems] == messages
    assert all(problem.origin.source.endswith("settings.toml") for problem in caught.value.problems)


def test_a_setting_of_a_project_does_nothing_in_the_file_of_the_user() -> None:
    global_file().parent.mkdir(parents=True)
    global_file().write_text("runs_dir = 'x'\n")

    with pytest.raises(ConfigError, match="`runs_dir` is a setting of one project"):
        assert Settings(Path("/")).variables


def test_names_that_no_config_could_use_are_refused(project: Path) -> None:
    for name in ("a.b", "1a", "", "a b", "é"):
        with pytest.raises(InputError, match="cannot be the name of a variable"):
            variable_path(name)
    with pytest.raises(InputError, match="is a setting, not a variable"):
        globs.update("local", "runs_dir", "x")


def test_a_link_stays_a_link_and_a_hostile_file_is_refused(project: Path) -> None:
    real = project / "real.toml"
    real.write_text("# real\n")
    (project / ".assay" / "settings.toml").symlink_to(real)
    write(file_of(Settings(project), "local"), variable_path("a"), 1)
    assert (project / ".assay" / "settings.toml").is_symlink()
    assert real.read_text() == "# real\n\n[globals]\na = 1\n"

    real.write_bytes(b"\xff")
    with pytest.raises(InputError, match="cannot be read"):
        assert Settings(project).local
    real.write_text("#" * 2_000_000)
    with pytest.raises(InputError, match="too large"):
        assert Settings(project).local
