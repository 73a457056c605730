"""Secrets: by their names, by what they look like, and because they are known."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.secrets.names import REDACTED, is_opaque, is_secret, sureness
from assay.core.secrets.replacement import Secrets, secrets_under
from assay.core.secrets.texts import Kind, secrets_in
from assay.record.redaction import content_kind
from planted import PASSWORDS, WAYS, Planted, planted

PLANTED = planted()


def quoted(text: str) -> str:
    return json.dumps(text)


# How secrets come into a text that assay writes down: what goes in, and what is written.
FORMS: dict[str, Callable[[Planted], str]] = {
    "an option with a blank": lambda it: " ".join(
        Secrets().command(["t.py", f"--{dashed(it.name)}", it.text])
    ),
    "an option with =": lambda it: " ".join(
        Secrets().command(["t.py", f"--{dashed(it.name)}={it.text}"])
    ),
    "an override": lambda it: " ".join(
        Secrets().command(["assay", "run", "a.toml", f"data.{it.name}={it.text}"])
    ),
    "a nested mapping": lambda it: str(
        Secrets().tree({"service": [{it.name: it.text}], "lr": 0.1})
    ),
    "a variable, said without its name": lambda it: Secrets.among({it.name: it.text}).clean(
        f"with {it.text}, ok"
    ),
    "a sentence": lambda it: Secrets().clean(f"it logs in with {it.name}={it.text} since May"),
    "a printed dictionary": lambda it: Secrets().clean(f"config: { {'lr': 1, it.name: it.text} }"),
    "a log line": lambda it: Secrets().clean(f"INFO service.py:12 {it.name}: {it.text}"),
    "an exception": lambda it: Secrets().clean(
        f"ValueError: no access with {it.name}={it.text!r} (403)"
    ),
    "a failed command": lambda it: Secrets().clean(
        f"Command {['curl', f'--{dashed(it.name)}', it.text]} failed"
    ),
    "a line of Python": lambda it: Secrets().clean(
        f"    {it.name} = {quoted(it.text)}  # theirs\n", "code"
    ),
    "a file of YAML": lambda it: Secrets().clean(
        f"service:\n  {it.name}: {quoted(it.text)}\n", "data"
    ),
    "a file of variables": lambda it: Secrets().clean(
        f"export {it.name}={inline(it.text)}\nA=1\n", "data"
    ),
}


def dashed(name: str) -> str:
    return name.lower().replace("_", "-")


def inline(text: str) -> str:
    return text.replace("\n", "\\n")


@pytest.mark.parametrize("form", FORMS)
def test_no_planted_secret_is_left(form: str) -> None:
    left = [f"{it.kind}: {it.name}" for it in PLANTED if it.found in FORMS[form](it)]

    assert left == []
    assert (len(PLANTED), len({it.kind for it in PLANTED}), len(FORMS)) == (75, 42, 13)


@pytest.mark.parametrize(("name", "text"), [way[1:] for way in WAYS], ids=[way[0] for way in WAYS])
def test_whatever_way_a_text_says_that_something_is_a_secret_it_is_replaced(
    name: str, text: str
) -> None:
    for password in PASSWORDS:
        clean = Secrets().clean(text.format(password), content_kind(name))

        assert clean == text.format(REDACTED)


@pytest.mark.parametrize("text", [way[2] for way in WAYS], ids=[way[0] for way in WAYS])
def test_what_one_text_says_to_be_secret_is_replaced_in_every_other(text: str) -> None:
    for password in PASSWORDS:
        secrets = Secrets()
        for kind in ("text", "data", "code"):
            secrets.clean(text.format(password), kind)

        assert (
            secrets.clean(f"its name is {password}, they say")
            == f"its name is {REDACTED}, they say"
        )
        assert secrets.tree({"n": [password]}) == {"n": [REDACTED]}


@pytest.mark.parametrize(
    "text",
    [
        "The password is required, optional, base64-encoded, in config.password or at /run/x1.",
        "The API key was set to None; the secret key is 256 bits; a token is int64.",
        "the password is too short: 5 of 12 characters, state-of-the-art and case-sensitive",
        "secret sharing, password hashing with sha256, api_key lookup in utils.py2, passwd file",
        "password policy: see rfc2617 or user@example.com; encryption key rotation every 90 days",
        "table keys are x1, y2; the key to resnet50 is depth; tokens: 4096; pass 2 of 3",
    ],
)
def test_sentences_about_secrets_stay_as_they_are(text: str) -> None:
    assert Secrets().clean_and_count(text) == (text, 0)
    comment = f"# {text}\nx = 1\n"
    assert Secrets().clean_and_count(comment, "code") == (comment, 0)


@pytest.mark.parametrize(
    "code",
    [
        'log.warning("password: %s", "missing")\nraise ValueError("api_key=%s", key)\n',
        'PASSWORD_KEYS = ["password", "api_key"]\nfields = {"password": {"type": "string"}}\n',
        'url = f"https://h/?token={token}&password={password}"\nquery = "password=%(password)s"\n',
        'field(name="password", value=value, default=None)\n',
        'password: str | None = None\nsecret = {"file": path, "name": settings.name}\n',
        'assert not secrets, "the secret is in config.toml"\ntitle = "Enter your API key"\n',
    ],
)
def test_code_about_secrets_stays_as_it_is(code: str) -> None:
    assert Secrets().clean_and_count(code, "code") == (code, 0)


def test_ordinary_code_has_few_words_that_look_like_secrets() -> None:
    """Most of what is found in the standard library are passwords in its examples."""
    modules = sorted(Path(json.__file__).parents[1].glob("[a-m]*.py"))
    counts = {
        path.name: Secrets().clean_and_count(
            path.read_text(encoding="utf-8", errors="replace"), "code"
        )[1]
        for path in modules
    }

    assert len(counts) > 50
    assert sum(counts.values()) <= 2, {name: count for name, count in counts.items() if count}


def test_a_value_that_is_learnt_is_no_word_that_ordinary_texts_have() -> None:
    secrets = Secrets()

    secrets.clean("password=config.password secret=required api_key=resnet api_key=model.weights")

    assert secrets.values == ()


def test_learning_ends_before_it_makes_every_text_slow() -> None:
    secrets = Secrets()

    for first in range(0, 1200, 100):
        lines = [f"password={number:04d}-a1b2c3d4" for number in range(first, first + 100)]
        secrets.clean("\n".join(lines))

    assert len(secrets.values) == 1000


def test_everything_below_a_secret_name_is_secret() -> None:
    data = {
        "client_secret": {"v": "abc", "deep": [{"w": "xyz", "n": 1234, "is_on": True}]},
        "env": [{"name": "DB_PASSWORD", "value": "abc"}, {"name": "LR", "value": "abc"}],
        "key": {"v": "abc"},
    }

    assert Secrets().tree(data) == {
        "client_secret": {"v": REDACTED, "deep": [{"w": REDACTED, "n": REDACTED, "is_on": True}]},
        "env": [{"name": "DB_PASSWORD", "value": REDACTED}, {"name": "LR", "value": "abc"}],
        "key": {"v": "abc"},
    }


def test_a_secret_that_is_a_key_is_replaced_and_no_value_is_lost() -> None:
    token, other = (it.text for it in PLANTED if it.kind == "github")

    data = Secrets().tree({token: 1, other: 2, 3: "x"})

    assert data == {REDACTED: 1, f"{REDACTED}-2": 2, 3: "x"}


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *(
            (name, "surely")
            for name in (
                "HF_TOKEN",
                "apiKey",
                "db-password",
                "AWS_SECRET_ACCESS_KEY",
                "secret_key_base",
            )
        ),
        *(
            (name, "surely")
            for name in (
                "MY_API_KEY_2",
                "clientSecret",
                "accountKey",
                "smtp_pass",
                "credential.password",
            )
        ),
        *(
            (name, "perhaps")
            for name in ("token", "auth", "key", "pad_token", "GITHUB_PAT", "sort_key", "sig")
        ),
        *(
            (name, "")
            for name in (
                "monkey",
                "KEYBOARD",
                "tokenizer",
                "max_tokens",
                "author",
                "public_key",
            )
        ),
        *((name, "surely") for name in ("pwd", "db.pwd", "old_pwd", "PWD")),
        *(
            (name, "")
            for name in (
                "password_file",
                "api_key_env",
                "n_keys_per_head",
                "secretary",
                "passes",
                "token_id",
            )
        ),
    ],
)
def test_a_name_says_how_surely_it_holds_a_secret(name: str, how: str) -> None:
    assert sureness(name) == how


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pad_token", "<pad>"),
        ("eos_token", "</s>"),
        ("key", "valid/acc_top5"),
        ("image_key", "image_512x512"),
        ("token", "resnet50-imagenet-v2"),
        ("password", "${env:DB_PASSWORD}"),
        ("password", ""),
        ("api_key", "null"),
        ("secret", "/run/secrets/db"),
        ("PWD", "/tmp/q8Zr3LmX0tYvB5nKc7WsPd2F"),
        ("OLDPWD", "/tmp/q8Zr3LmX0tYvB5nKc7WsPd2F"),
        ("optimizer", "q8Zr3LmX0tYvB5nKc7WsPd2F"),
    ],
)
def test_what_is_no_secret_stays(name: str, value: str) -> None:
    assert not is_secret(name, value)
    assert Secrets().tree({name: value}) == {name: value}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("text", "saved /data/imagenet/train/n01440764/n01440764_10026.JPEG as f" + "0" * 63),
        (
            "text",
            "loss 0.25 lr 1e-3 token 5 of 10, key: value, password required, auth ok; see https://host/path?x=1",
        ),
        (
            "text",
            "commit 717890b1c59cfbf8c4e95452376cc9932cf24804, run kq3fz7ab, sha256:" + "ab12" * 16,
        ),
        (
            "code",
            "def keys(self, token: str = PAD, key=lambda x: x[1]) -> None:\n    self.password = config.password\n",
        ),
        ("code", 'tokenizer.add_special_tokens({"pad_token": "<pad>", "sep_token": "[SEP]"})\n'),
        (
            "code",
            'key = f"{prefix}_{name}"\nsecret = os.environ["SECRET"]\napi_key = getpass.getpass("API key: ")\n',
        ),
        ("code", 'parser.add_argument("--api-key", help="key of the service", default=None)\n'),
        (
            "code",
            'ERRORS = {"password": "is too short", "token": "was not given"}\nNAMES = ("password", "secret")\n',
        ),
        (
            "data",
            "tokenizer: bert-base-uncased\npad_token: '<pad>'\npassword: ${DB_PASSWORD}\nkey: image\n",
        ),
    ],
)
def test_texts_without_secrets_stay_as_they_are(kind: Kind, text: str) -> None:
    assert Secrets().clean_and_count(text, kind) == (text, 0)


def test_our_own_code_and_documentation_hold_no_secret() -> None:
    """Honest code must stay unchanged, as replaced text would run differently."""
    import assay.core
    import assay.engine
    import assay.formats

    for package in (assay.core, assay.engine, assay.formats):
        for path in sorted(p for folder in package.__path__ for p in Path(folder).rglob("*.py")):
            if path.parent.name == "secrets":
                continue
            text = path.read_text(encoding="utf-8")
            assert Secrets().clean_and_count(text, "code") == (text, 0), path


def test_a_known_secret_is_replaced_in_each_of_its_forms() -> None:
    secrets = Secrets(['pass/word "x" 99', "abcdefgh-ijkl"])

    clean = secrets.clean(
        "GET /?p=pass%2Fword%20%22x%22%2099 "
        + json.dumps({"p": 'pass/word "x" 99'})
        + " Basic cGFzcy93b3JkICJ4IiA5OQ== abcdefgh-ijkl"
    )

    assert (
        clean.count(REDACTED) == 4
        and "word" not in clean
        and "cGFzcy93b3Jk" not in clean
        and "ijkl" not in clean
    )


def test_a_word_that_anything_may_contain_is_replaced_behind_its_name_alone() -> None:
    secrets = Secrets.among(
        {"POSTGRES_PASSWORD": "postgres", "PIN_PASSWORD": "1234", "SSH_AUTH_SOCK": "/tmp/agent.1"}
    )

    assert secrets.values == ()
    assert (
        secrets.clean("postgres at /tmp/agent.1, 1234 rows")
        == "postgres at /tmp/agent.1, 1234 rows"
    )
    assert secrets.clean("password=postgres") == f"password={REDACTED}"


def test_values_of_variables_are_learnt_later_too() -> None:
    secrets = Secrets()
    assert secrets.clean("hunter22-hunter22") == "hunter22-hunter22"

    secrets.add(["hunter22-hunter22"])

    assert secrets.clean("hunter22-hunter22") == REDACTED
    assert secrets.without_known(b"a hunter22-hunter22\n") == b"a <redacted>\n"


def test_data_is_cleaned_by_names_and_texts_and_the_rest_stays() -> None:
    data = {
        "root": "/data",
        "db": {"password": 123456, "urls": ["pg://me:pw@h/x"]},
        "n": [1, True, None, 0.5],
    }

    assert Secrets().tree(data) == {
        "root": "/data",
        "db": {"password": REDACTED, "urls": [f"pg://me:{REDACTED}@h/x"]},
        "n": [1, True, None, 0.5],
    }
    assert list(secrets_under({"a": {"api_key": ["x-y-z", "none"], "lr": "1"}})) == ["x-y-z"]


@given(st.text(), st.sampled_from(["text", "data", "code"]))
def test_a_text_keeps_its_lines_and_is_clean_after_once(text: str, kind: Kind) -> None:
    clean = Secrets().clean(text, kind)

    assert clean.count("\n") == text.count("\n")
    assert Secrets().clean(clean, kind) == clean


@given(
    st.lists(st.sampled_from(PLANTED), max_size=4),
    st.text(max_size=40),
    st.sampled_from(["\n", " ", ", ", "\t"]),
)
def test_what_stands_around_a_secret_stays(some: list[Planted], noise: str, gap: str) -> None:
    text = gap.join([noise, *(f"{it.name}={inline(it.text)}" for it in some)])

    found = secrets_in(text, "text")

    assert all(0 <= a < b <= len(text) for a, b in found)
    assert all(a[1] < b[0] for a, b in pairwise(found))


# Texts that make a pattern that backtracks, or looks back, take its time: each is a piece that is
# repeated.
HOSTILE = [
    *(
        "sk-",
        "eyJ",
        "a.",
        "://a:",
        "://",
        "-----BEGIN PRIVATE KEY-----\n",
        "password=",
        "password: '",
        "key=[(",
    ),
    *(
        "token:" + "a" * 50,
        "--password ",
        '"key": "',
        "api_key\\",
        "adobe",
        "adobe=",
        "adobe ....",
        "login password ",
    ),
    *(
        "xoxb-1-",
        "ghp_",
        "bearer ",
        "cookie: a",
        "$2a$",
        "authorization: ",
        "sntrys_eyJpYXQiO",
        "https://",
        "M" * 25 + ".",
    ),
    *("password={", '"""\\', "password:\n", "[password]\n", "password is to ", 'name="password" '),
    *(
        'print("password=%s", ',
        "password:\n  a: b\n",
        '<input name="password" x="a" ',
        "api key is be ",
    ),
    *(
        '"password=%s"%(',
        "password the the ",
        "密码是 ",
        "/*",
        'secret = {"a": "b1c2d3", ',
        "API key ",
    ),
    *("a" * 100, "A1", "\\n", "'''", "key\n", "b:a=", "-u a", "@", "\x00", "ſ", "İ"),
]


@pytest.mark.parametrize("piece", HOSTILE)
@pytest.mark.parametrize(
    "kind", ["text", *(pytest.param(each, marks=pytest.mark.thorough) for each in ("code", "data"))]
)
def test_hostile_texts_are_read_in_the_time_of_a_test(piece: str, kind: Kind) -> None:
    """Quadratic time, 17 s for 50 kB, would take minutes here: the test's time limit ends it."""
    Secrets(["correct-horse-battery"]).clean_and_count(piece * (200_000 // len(piece)), kind)


def test_what_is_opaque_is_no_word() -> None:
    assert [
        is_opaque(text)
        for text in ("q8Zr3LmX0tYv", "0" * 20, "a" * 20, "short1", "two words 1a2b3c4d")
    ] == [*(True, False, False, False, False)]
