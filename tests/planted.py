"""Secrets to be planted: 75 of 42 kinds, drawn from a seed, and 60 ways in which texts hold one.

None of them is real.
"""

from __future__ import annotations

import base64
import json
import random
import string
from dataclasses import dataclass

_LOWER, _UPPER, _DIGITS, _HEX = (
    string.ascii_lowercase,
    string.ascii_uppercase,
    string.digits,
    "0123456789abcdef",
)
_ALNUM = string.ascii_letters + _DIGITS


@dataclass(frozen=True)
class Planted:
    """Secret `text`, given under `name`; `found` must be nowhere afterwards."""

    kind: str
    name: str
    text: str
    found: str


def planted() -> list[Planted]:
    """Return all of them."""
    draw = random.Random(20261122)

    def some(letters: str, count: int) -> str:
        return "".join(draw.choices(letters, k=count))

    def uuid() -> str:
        return "-".join(some(_HEX, n) for n in (8, 4, 4, 4, 12))

    def token(data: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(data).encode()).decode().rstrip("=")

    def key(kind: str) -> tuple[str, str]:
        body = [some(_ALNUM + "+/", 64) for _ in range(24)]
        return "\n".join([f"-----BEGIN {kind}-----", *body, f"-----END {kind}-----"]), body[7]

    found: list[Planted] = []

    def add(kind: str, name: str, text: str, part: str = "") -> None:
        found.append(Planted(kind, name, text, part or text))

    for name in ("OPENAI_API_KEY", "openai_key"):
        add("openai", name, f"sk-proj-{some(_ALNUM, 74)}T3BlbkFJ{some(_ALNUM, 74)}")
        add("openai-old", name, f"sk-{some(_ALNUM, 20)}T3BlbkFJ{some(_ALNUM, 20)}")
        add(
            "anthropic",
            name.replace("OPENAI", "ANTHROPIC"),
            f"sk-ant-api03-{some(_ALNUM + '-_', 93)}AA",
        )
    for name in ("HF_TOKEN", "hub_token"):
        add("huggingface", name, f"hf_{some(_ALNUM, 34)}")
        add("github", "GITHUB_TOKEN", f"gh{draw.choice('pousr')}_{some(_ALNUM, 36)}")
        add("github-fine", "GH_PAT", f"github_pat_{some(_ALNUM, 22)}_{some(_ALNUM, 59)}")
        add("gitlab", "GITLAB_TOKEN", f"glpat-{some(_ALNUM, 20)}")
        add("aws-id", "AWS_ACCESS_KEY_ID", f"AKIA{some(_UPPER + '234567', 16)}")
        add("aws-secret", "AWS_SECRET_ACCESS_KEY", some(_ALNUM + "+/", 40))
        add("aws-session", "AWS_SESSION_TOKEN", f"IQoJb3JpZ2luX2Vj{some(_ALNUM + '+/', 300)}==")
        add("gcp", "GOOGLE_API_KEY", f"AIza{some(_ALNUM + '-_', 35)}")
        add("gcp-oauth", "access_token", f"ya29.{some(_ALNUM + '-_', 120)}")
        add("azure-storage", "AccountKey", f"{some(_ALNUM + '+/', 86)}==")
        add("azure-sas", "sas_token", f"sv=2022-11-02&ss=b&sig={(it := some(_ALNUM, 43))}%3D", it)
        add(
            "slack",
            "SLACK_BOT_TOKEN",
            f"xoxb-{some(_DIGITS, 12)}-{some(_DIGITS, 12)}-{some(_ALNUM, 24)}",
        )
        add(
            "slack-webhook",
            "SLACK_WEBHOOK",
            f"https://hooks.slack.com/services/T{some(_UPPER, 8)}/B{some(_UPPER, 8)}/{(it := some(_ALNUM, 26))}",
            it,
        )
        add("discord", "DISCORD_TOKEN", f"M{some(_ALNUM, 24)}.{some(_ALNUM, 6)}.{some(_ALNUM, 38)}")
        add(
            "discord-webhook",
            "webhook",
            f"https://discord.com/api/webhooks/{some(_DIGITS, 18)}/{(it := some(_ALNUM, 68))}",
            it,
        )
        add("telegram", "BOT_TOKEN", f"{some(_DIGITS, 10)}:AA{some(_ALNUM + '-_', 33)}")
        add("stripe", "STRIPE_API_KEY", f"sk_live_{some(_ALNUM, 24)}")
        add("npm", "NPM_TOKEN", f"npm_{some(_ALNUM, 36)}")
        add("pypi", "PYPI_TOKEN", f"pypi-AgEIcHlwaS5vcmc{some(_ALNUM + '-_', 120)}")
        add("wandb", "WANDB_API_KEY", some(_HEX, 40))
        add("kaggle", "KAGGLE_API_KEY", some(_HEX, 32))
        add("comet", "COMET_API_KEY", some(_ALNUM, 25))
    add("twilio", "TWILIO_API_KEY", f"SK{some(_HEX, 32)}")
    add("sendgrid", "SENDGRID_API_KEY", f"SG.{some(_ALNUM, 22)}.{some(_ALNUM, 43)}")
    add("databricks", "DATABRICKS_TOKEN", f"dapi{some(_HEX, 32)}")
    add("vault", "VAULT_TOKEN", f"hvs.{some(_ALNUM, 95)}")
    add("heroku", "HEROKU_API_KEY", uuid())
    add(
        "neptune",
        "NEPTUNE_API_TOKEN",
        token({"api_address": "https://app.neptune.ai", "api_key": some(_HEX, 36)}),
    )
    add("replicate", "REPLICATE_API_TOKEN", f"r8_{some(_ALNUM, 37)}")
    add("nvidia", "NVIDIA_API_KEY", f"nvapi-{some(_ALNUM + '-_', 64)}")
    add(
        "jwt",
        "id_token",
        f"{token({'alg': 'HS256', 'typ': 'JWT'})}.{token({'sub': some(_DIGITS, 10), 'iat': 1})}.{some(_ALNUM, 43)}",
    )
    add("terraform", "TF_TOKEN", f"{some(_ALNUM, 14)}.atlasv1.{some(_ALNUM, 67)}")
    add("digitalocean", "DO_TOKEN", f"dop_v1_{some(_HEX, 64)}")
    add("private-key", "private_key", *key("RSA PRIVATE KEY"))
    add("private-key", "ssh_private_key", *key("OPENSSH PRIVATE KEY"))
    add("private-key", "private_key", *key("PGP PRIVATE KEY BLOCK"))
    for scheme in ("postgresql", "mongodb+srv", "redis", "amqp", "https"):
        word = some(_ALNUM, 12)
        add("address", "DATABASE_URL", f"{scheme}://service:{word}@db.example.com/runs", word)
    add("password", "DB_PASSWORD", "correct-horse-battery")
    add("password", "smtp_password", "Tr0ub4dor&3")
    add("password", "password", some(_ALNUM + "!#%^_+", 16))
    add("bearer", "Authorization", f"Bearer {(it := some(_ALNUM + '-_', 48))}", it)
    add(
        "basic",
        "Authorization",
        f"Basic {(it := base64.b64encode(b'me:' + some(_ALNUM, 16).encode()).decode())}",
        it,
    )
    add("cookie", "Cookie", f"session={(it := some(_ALNUM, 32))}", it)
    return found


PASSWORDS = ("Tr0ub4dor!3", "correct-horse-battery", "q8Zr3LmX0tYvB5nK", "hunter2-hunter2")
"""Secrets of no known kind: only what stands around one says that it is one."""

WAYS: tuple[tuple[str, str, str], ...] = (
    # what it is, the name of a file that says how values are written in it, the text
    ("a print with =", "a.py", 'print("password={}")'),
    ("a print of two", "a.py", 'print("password:", "{}")'),
    ("a logged argument", "a.py", 'log.warning("api_key=%s", "{}")'),
    ("a second argument", "a.py", 'log.info("user=%s api_key=%s of %s", "admin", "{}", host)'),
    ("a % of a tuple", "a.py", 'text = "for %s the password is %s" % (user, "{}")'),
    ("a format", "a.py", 'text = "{{}} has password={{}}".format("me", "{}")'),
    ("a comment", "a.py", "x = 1  # the password is {}"),
    ("a docstring", "a.py", 'def login():\n    """Log in (password={})."""\n'),
    ("a comment of C", "a.cu", "/* api_key: {} */ int x;"),
    ("a define", "a.h", '#define API_KEY "{}"'),
    ("an array of C", "a.c", 'static const char api_key[] = "{}";'),
    (
        "a default of a variable",
        "a.py",
        'key = os.environ.get("DB_PASSWORD") or login(password="{}")',
    ),
    ("a default of an option", "a.py", 'parser.add_argument("--api-key", type=str, default="{}")'),
    ("a default of click", "a.py", '@click.option("--password", default="{}", help="theirs")'),
    ("a field", "a.py", 'password: str = Field(default="{}")'),
    ("a nested dictionary", "a.py", 'client_secret = {{"v": {{"now": "{}"}}, "n": 1}}'),
    ("a template", "a.js", "const clientSecret = `{}`;"),
    ("an assignment of Go", "a.go", 'password := "{}"'),
    ("an inline table", "a.toml", 'client_secret = {{ v = "{}" }}'),
    ("a table", "a.toml", '[service.client_secret]\nv = "{}"\n[train]\nepochs = 3'),
    ("a dotted key", "a.toml", 'service.client_secret.v = "{}"'),
    ("a section of INI", "a.ini", "[passwords]\nalice = {}\n"),
    ("a mapping of YAML", "a.yaml", "client_secret:\n  v: {}\nlr: 0.1\n"),
    ("a list of YAML", "a.yaml", "api_keys:\n  - {}\nlr: 0.1\n"),
    ("the next line of YAML", "a.yaml", "client_secret:\n  {}\n"),
    ("a folded text of YAML", "a.yaml", "client_secret: >-\n  {}\n"),
    ("an anchor of YAML", "a.yaml", "password: &theirs {}\nagain: *theirs\n"),
    ("a tag of YAML", "a.yaml", "password: !!str {}\n"),
    ("a pair of YAML", "a.yaml", "env:\n  - name: DB_PASSWORD\n    value: {}\n"),
    ("a pair of JSON", "a.json", '[{{"name": "DB_PASSWORD", "value": "{}"}}]'),
    ("an object of JSON", "a.json", '{{"client_secret": {{"v": "{}"}}}}'),
    ("a block of Terraform", "a.tf", 'variable "db_password" {{\n  default = "{}"\n}}\n'),
    ("an instruction of Docker", "Dockerfile", "FROM x\nENV DB_PASSWORD {}\n"),
    ("a variable of make", "a.mk", "DB_PASSWORD += {}\n"),
    ("a statement of SQL", "a.sql", "ALTER USER me WITH PASSWORD '{}';"),
    ("an input of HTML", "a.html", '<input name="password" class="wide" value="{}">'),
    ("an input, the other way", "a.html", '<input value="{}" type="hidden" name="api_key">'),
    ("a meta of HTML", "a.html", '<meta name="session-token" content="{}">'),
    ("an attribute of XML", "a.xml", '<add key="Password" value="{}"/>'),
    ("an element of XML", "a.xml", "<password>{}</password>"),
    ("raw text of XML", "a.xml", "<password><![CDATA[{}]]></password>"),
    ("a property list", "a.xml", "<key>Password</key>\n  <string>{}</string>"),
    ("a sentence", "a.md", "Log in as me; the password is {}."),
    ("a sentence of the past", "a.md", "The API key was set to `{}` in May."),
    ("a sentence with a place", "a.md", "The password for the database is now {}, as before."),
    ("two words", "a.md", "API key: {}"),
    ("bold words", "a.md", "**Password:** {}"),
    ("a cell", "a.md", "| password | `{}` |"),
    ("an arrow", "a.txt", "password -> {}"),
    ("a wide colon", "a.txt", "password：{}"),
    ("Chinese", "a.txt", "密码是 {}"),
    ("the next line", "a.txt", "client_secret:\n{}\n"),
    ("a name and a blank", "a.txt", "encryption_key {} loaded"),
    ("a printed table", "a.txt", "{{'client_secret': {{'v': '{}'}}, 'lr': 0.1}}"),
    ("an ODBC address", "a.txt", "Driver=x;Server=h;UID=me;PWD={};Port=1"),
    ("a key of ADO", "a.txt", "Server=h;User Id=me;Password={};"),
    ("an address with a query", "a.txt", "GET https://h/x?user=me&password={}&n=1"),
    ("a header", "a.txt", "X-Api-Key: {}"),
    ("sshpass", "a.txt", "sshpass -p {} ssh me@host"),
    ("an option in a line", "a.txt", "mysql --user me --password {} db"),
    ("a list of words", "a.txt", "['mysql', '--password', '{}']"),
    ("a representation", "a.txt", "Client(url='h', password='{}', n=1)"),
    ("a shell variable", "a.sh", 'export PGPASSWORD="{}"'),
    ("PowerShell", "a.ps1", '$env:API_KEY = "{}"'),
)
"""Ways in which a text says that something is a secret; `{}` stands for it."""
