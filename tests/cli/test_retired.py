"""What has left assay is answered by name: one error, with what to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.core.retired import RETIRED
from assay.store.layout import Project

from .conftest import Assay


@pytest.mark.parametrize("name", RETIRED)
def test_a_name_that_has_left_is_answered_with_what_to_write(
    assay: Assay, project: Project, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    words = name.split()
    arguments = [*words[1:], "x.toml"] if words[0] == "assay" else ["check", "x.toml"]
    Path("x.toml").write_text(f'partial = true\n[model]\ntype = "{words[-1]}"\n')

    said = assay(*arguments)

    assert said.code == 2
    answer = " ".join((said.out + said.err).split())
    assert RETIRED[name] in answer
    assert "did you mean" not in answer and answer.count("error:") == 1


def test_the_translation_of_an_older_config_is_printed_and_reads_back(
    assay: Assay, project: Project
) -> None:
    Path("old.toml").write_text(
        'plugins = [{ type = "alchemy.plugins.Seeding", seed = 3 }]\n'
        '[model]\n_target_ = "torch.nn.Linear"\n[optim]\ntype = "torch.optim.SGD"\nlr = 0.1\n'
    )

    shown = assay("config", "show", "old.toml", "optim.lr=0.2")
    Path("new.toml").write_text(shown.out)
    again = assay("config", "show", "new.toml")

    assert shown.code == 0 and "`optim` is `optimizer` here" in shown.err
    assert '[optimizer]\ntype = "torch.optim.SGD"\nlr = 0.2\n' in shown.out
    assert (again.out, again.err) == (shown.out, "")
