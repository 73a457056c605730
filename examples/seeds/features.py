"""Features of a text, made by the first of two processes and read by the other.

Other than in the text of 2021: no barrier and no rank decides who builds; the lines stand in a
function.
"""

import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

from assay.engine.data.features import cached


def convert_examples_to_features(file: str, max_seq_len: int) -> dict[str, Any]:
    print("Creating features from dataset file at", file, "by", os.environ["RANK"], flush=True)
    time.sleep(0.2)  # long enough for the other to come
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    return {"lengths": [min(len(line.split()), max_seq_len) for line in lines]}


def train(rank: int) -> None:
    os.environ["RANK"] = str(rank)
    features = cached(convert_examples_to_features, "text.txt", 4, folder="cache")
    os.write(1, f"features {features['lengths']}\n".encode())  # at once: two processes write here


if __name__ == "__main__":
    Path("text.txt").write_text(
        "one two three\nfour\nfive six seven eight nine\n", encoding="utf-8"
    )
    both = [
        multiprocessing.get_context("spawn").Process(target=train, args=(rank,))
        for rank in range(2)
    ]
    for process in both:
        process.start()
    for process in both:
        process.join()
    sys.exit(max(process.exitcode or 0 for process in both))
