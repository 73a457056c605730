"""Let a trained model write: python write.py [RUN] [BEGINNING]"""

import sys

import torch
from data import letters_of, text_of

import assay


def main() -> None:
    run, beginning = [*sys.argv[1:], *["last", "The "][len(sys.argv) - 1 :]]
    torch.manual_seed(0)
    model = assay.load_model(run)
    print(text_of(model.write(letters_of(beginning), 300)))


if __name__ == "__main__":
    main()
