"""The fix that is printed, typed: the next call gets past that error."""

from __future__ import annotations

import re
import shlex
import textwrap
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import pytest

from assay.cli.main import main
from mistakes.snapshots import Snapshots
from mistakes.test_configs import MISTAKES, PROJECT

SAID = Snapshots("configs", MISTAKES).read()
PLACE = re.compile(r"^ *--> (a\.toml|<cli>):(\d+):(\d+)$", re.MULTILINE)
CARETS = re.compile(r"^ *\| +(\^+)", re.MULTILINE)
LITERAL = re.compile(
    r"(?:write (?:it without quotes|it in quotes|a list): |strings need quotes: |write )"
    r'(\[.*\]|"[^"]*"|true|-?[\d.]+)(?: or ".*")?'
)
NAME = re.compile(r"did you mean `([^`]+)`\?$")
ARGUMENT = re.compile(r"write [`']([\w.]+=[^`']+)[`']")


@dataclass(frozen=True)
class Typed:
    """What a reader types: another config, other arguments, or a command before."""

    config: str
    arguments: tuple[str, ...]
    before: tuple[str, ...] = ()


def typed(title: str) -> Typed | None:
    """Return the mistake with its first error mended as the message says; None for no such fix."""
    mistake, said = MISTAKES[title], SAID[title]
    found = re.search(r"^ +(?:=|fix:) (.*(?:\n   .*)*)", said, re.MULTILINE)
    fix = " ".join(found[1].split()) if found else ""
    config = textwrap.dedent(mistake.config).lstrip("\n")
    if fix.startswith("assay "):
        return Typed(config, mistake.arguments, tuple(shlex.split(fix)[1:]))
    if argument := ARGUMENT.match(fix):
        key, _, value = argument[1].partition("=")
        kept = [each for each in mistake.arguments if each not in (key, "=", value)]
        kept = [each for each in kept if not each.lstrip("-").startswith(f"{key}=")]
        return Typed(config, (*kept, argument[1]))
    name = NAME.fullmatch(fix)
    place, carets = PLACE.search(said), CARETS.search(said)
    if place is None:
        wrong_word = re.search(r"(?:option|command|variant) `([^`]+)`", said)
        if name is None or wrong_word is None:
            return None
        words = (name[1] if each == wrong_word[1] else each for each in mistake.arguments)
        return Typed(config, tuple(words))
    new = name[1] if name else literal[1] if (literal := LITERAL.fullmatch(fix)) else None
    if new is None or carets is None:
        return None
    row, column = int(place[2]) - 1, int(place[3]) - 1
    where = slice(column, column + len(carets[1]))
    if place[1] == "<cli>":
        shown = re.search(r"^ *1 \| (.*)$", said, re.MULTILINE)
        assert shown is not None
        mended = replaced(shown[1], where, new)
        words = (mended if each == shown[1] else each for each in mistake.arguments)
        return Typed(config, tuple(words))
    lines = config.splitlines()
    line = lines[row]
    if (
        name and "." in new and re.match(rf"{re.escape(line[where])} *=", line)
    ):  # of another section
        moved = f"{new} ={line.partition('=')[2]}"
        return Typed("\n".join([moved, *lines[:row], *lines[row + 1 :]]), mistake.arguments)
    if name and line[where].startswith('"'):
        told = re.findall(r"`([^`]+)`", said.partition("-->")[0])
        wrong = get_close_matches(new, [each for each in told if each in line[where]], cutoff=0.0)
        new = line[where].replace(wrong[0], new) if wrong else f'"{new}"'
    lines[row] = new if new.startswith("[") and line.startswith("[") else replaced(line, where, new)
    return Typed("\n".join(lines) + "\n", mistake.arguments)


def replaced(text: str, where: slice, new: str) -> str:
    return text[: where.start] + new + text[where.stop :]


FIXES = {title: fix for title in MISTAKES if (fix := typed(title)) is not None}


@pytest.mark.parametrize("title", FIXES)
def test_a_fix_that_is_printed_works_when_it_is_typed(
    title: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    fix = FIXES[title]
    for path, text in {**PROJECT, "a.toml": fix.config}.items():
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_text(textwrap.dedent(text).lstrip("\n"))
    for path, raw in MISTAKES[title].files.items():
        Path(path).write_bytes(raw)
    if fix.before:
        assert main(list(fix.before)) == 0
        capsys.readouterr()

    main(list(fix.arguments))

    error = SAID[title].splitlines()[1].split("  ")[0]
    assert error not in "".join(capsys.readouterr())


def test_most_messages_about_one_word_can_be_typed() -> None:
    assert len(FIXES) >= 40
