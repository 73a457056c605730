"""The page of commands says what the commands say."""

from __future__ import annotations

import re

from assay.cli.main import COMMANDS
from commands import PAGE, page


def test_the_page_of_commands_is_what_the_commands_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python tests/commands.py writes it anew"


def test_every_command_has_a_section_with_its_options_within_80_columns() -> None:
    text = page()

    assert set(COMMANDS) <= set(re.findall(r"^## `assay ([\w-]+)`$", text, re.MULTILINE))
    assert "--fast-dev-run" in text and "assay config explain" in text
    blocks = re.findall(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert all(len(line) <= 80 for block in blocks for line in block.splitlines())
