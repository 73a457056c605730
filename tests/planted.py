"""Secrets to be planted: 75 of 42 kinds, drawn from a seed, none of them real."""

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
