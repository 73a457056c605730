"""Write sentences with people and places into data/."""

import json
import random
from pathlib import Path

WORDS = {
    "PER": ["anna", "bob", "carl", "dora", "emil", "fred"],
    "LOC": ["bonn", "rome", "oslo", "wien"],
}
TEXTS = ["PER lives in LOC", "PER and PER fly to LOC", "the road to LOC is long"]

Path("data").mkdir(exist_ok=True)
for split, count in {"train": 160, "dev": 80, "test": 80}.items():
    draw = random.Random(split)
    with open(f"data/{split}.jsonl", "w", encoding="utf-8") as file:
        for kinds in (draw.choice(TEXTS).split() for _ in range(count)):
            tokens = [draw.choice(WORDS.get(kind, [kind])) for kind in kinds]
            tags = [kind if kind in WORDS else "O" for kind in kinds]
            file.write(json.dumps({"tokens": tokens, "tags": tags}) + "\n")
