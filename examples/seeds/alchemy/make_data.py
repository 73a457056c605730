"""Write sentences with people and places into data/."""

import json
import random
from pathlib import Path

WORDS = {"PER": ["anna", "bob", "carl", "dora", "emil"], "LOC": ["bonn", "rome", "oslo", "wien"]}
Path("data").mkdir(exist_ok=True)
for split, count in {"train": 160, "dev": 80, "test": 80}.items():
    draw, lines = random.Random(split), []
    for kinds in (draw.sample(["PER", "in", "LOC", "by", "PER"], 4) for _ in range(count)):
        tokens = [draw.choice(WORDS.get(kind, [kind])) for kind in kinds]
        tags = [kind if kind in WORDS else "O" for kind in kinds]
        lines.append(json.dumps({"tokens": tokens, "tags": tags}))
    Path(f"data/{split}.jsonl").write_text("\n".join(lines), encoding="utf-8")
