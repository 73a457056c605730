"""Write sentences with people and places into data/."""

import json
import random
from pathlib import Path

WORDS = {"p": "anna bob carl dora emil fred gina hans", "c": "bonn paris rome oslo wien bern"}
TEXTS = [
    "{p} lives in {c}",
    "{p} and {p} fly to {c}",
    "the road to {c} is long",
    "{c} is far from {c}",
]


def document(draw):
    tokens, tags = [], []
    for word in draw.choice(TEXTS).split():
        kind = word[1] if word[0] == "{" else ""
        tokens.append(draw.choice(WORDS[kind].split()) if kind else word)
        tags.append({"p": "PER", "c": "LOC", "": "O"}[kind])
    return {"tokens": tokens, "tags": tags}


for seed, (split, count) in enumerate({"train": 160, "dev": 80, "test": 80}.items()):
    draw = random.Random(seed)
    Path("data").mkdir(exist_ok=True)
    lines = [json.dumps(document(draw)) + "\n" for _ in range(count)]
    Path(f"data/{split}.jsonl").write_text("".join(lines), encoding="utf-8")
