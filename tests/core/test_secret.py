from __future__ import annotations

import pytest

from assay.core.secret import REDACTED, is_secret_name, is_secret_text, redacted


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "API_KEY", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "db-password", "token", "GITHUB_PAT", "auth"],
)
def test_names_of_secrets_are_known(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["DATA", "monkey", "KEYBOARD", "tokenizer", "author", "path", "n_keys_per_head"])
def test_other_names_are_not(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    "text",
    [
        "hf_" + "a" * 30,
        "ghp_" + "b" * 30,
        "AKIA" + "C" * 16,
        "postgres://me:secret@host/db",
        "-----BEGIN RSA PRIVATE KEY-----",
        "q8Zr3LmX0tYvB5nKc7WsPd2F",
    ],
)
def test_texts_that_hold_a_secret_are_known(text: str) -> None:
    assert is_secret_text(text)


@pytest.mark.parametrize(
    "text",
    ["/data/imagenet/train/n01440764", "https://host/path", "a_long_name_of_an_experiment_2024", "f" * 64, "8"],
)
def test_other_texts_are_not(text: str) -> None:
    assert not is_secret_text(text)


def test_what_is_written_down_has_no_secrets_in_it() -> None:
    assert redacted("ROOT", "/data") == "/data"
    assert redacted("TOKEN", 3) == REDACTED
    assert redacted("x", {"a": ["ghp_" + "b" * 30, 1], "token": "y"}) == {"a": [REDACTED, 1], "token": REDACTED}
