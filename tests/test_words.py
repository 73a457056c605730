"""The rules of the house's language, and that their check can see what they forbid."""

from __future__ import annotations

from pathlib import Path

import words


def test_no_docstring_begins_with_a_question_or_a_pronoun() -> None:
    assert words.dialect() == []


def test_no_two_classes_share_a_name() -> None:
    assert words.shared_names() == {}


def test_a_function_imported_by_name_shares_it_with_no_other() -> None:
    assert words.doubled_names() == {}


def test_no_function_is_named_by_a_bare_participle() -> None:
    assert words.participles() == []


def test_the_check_sees_a_participle_and_takes_verbs_and_properties(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "def told(): ...\ndef _merged(): ...\ndef read(): ...\ndef seed(): ...\n"
        "def merged_rows(): ...\nclass A:\n    @property\n    def used(self): ...\n"
    )

    assert words.participles(tmp_path) == ["a.py:1: told", "a.py:2: _merged"]


def test_the_check_sees_two_functions_imported_under_one_name(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def read(): ...\ndef show(): ...\n")
    (tmp_path / "b.py").write_text("def read(): ...\ndef show(): ...\n")
    (tmp_path / "c.py").write_text(
        "from assay import b\nfrom assay.a import read, show\n"
        "def f():\n    from assay.b import read as other\n    b.show()\n"
    )

    assert words.doubled_names(tmp_path) == {"read": ["assay.a", "assay.b"]}


def test_the_check_sees_a_docstring_and_a_class_that_break_the_rules(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text('"""Whether it is so."""\n\n\nclass Twice:\n    """It is."""\n')
    (tmp_path / "b.py").write_text('"""Module b."""\n\n\nclass Twice:\n    pass\n')

    assert words.dialect(tmp_path) == ["a.py:1: Whether it is so.", "a.py:4: It is."]
    assert words.shared_names(tmp_path) == {"Twice": ["a.py", "b.py"]}
