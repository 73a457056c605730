"""Relations between two words: a script of 2021, run by python -m assay.compat relations.py"""

import argparse
import json
import logging
import os

import torch
from tensorboardX import SummaryWriter
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification

from assay.compat.parts.text import TextExample, WordPieces

parser = argparse.ArgumentParser()
parser.add_argument("--config", default="config.json")
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--lr", type=float, default=3e-3)
parser.add_argument("--patience", type=int, default=4)
opt = parser.parse_args()
with open(opt.config, encoding="utf-8") as file:
    config = json.load(file)
logging.basicConfig(level=logging.INFO, format="%(asctime)s - %(levelname)s - %(message)s")
logger = logging.getLogger(__name__)

LABELS = ["apart", "near"]
WORDS = [
    "paris",
    "rome",
    "bonn",
    "oslo",
    "wien",
    "bern",
    "lies",
    "far",
    "from",
    "near",
    "by",
    "the",
    "road",
    "to",
]
tokenizer = WordPieces(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])


def examples(split):
    draw = torch.Generator().manual_seed(["train", "dev", "test"].index(split))
    for _ in range(config["size"][split]):
        one, other, label = torch.randint(0, 6, (3,), generator=draw).tolist()
        text = f"{WORDS[one]} lies {'near by' if label % 2 else 'far from'} {WORDS[other]}"
        yield TextExample(text_a=text, label=LABELS[label % 2])


def load_and_cache_examples(split):
    cached_features_file = os.path.join(config["data_dir"], f"cached_{split}.pt")
    if os.path.exists(cached_features_file):
        logger.info(f"Loading features from cached file {cached_features_file}")
        features = torch.load(cached_features_file)
    else:
        logger.info("Creating features of %s", split)
        features = convert_examples_to_features(  # noqa: F821  supplied: the text imports it nowhere
            list(examples(split)), LABELS, config["max_seq_len"], tokenizer, "classification"
        )
        torch.save(features, cached_features_file)
    return TensorDataset(
        torch.tensor([f.input_ids for f in features], dtype=torch.long),
        torch.tensor([f.input_mask for f in features], dtype=torch.long),
        torch.tensor([f.label_id for f in features], dtype=torch.long),
    )


def evaluate(model, dataset):
    model.eval()
    with torch.no_grad():
        ids, mask, labels = dataset.tensors
        predict_idx = model(ids, attention_mask=mask).logits.argmax(1)
    return accuracy_score(labels, predict_idx).item()  # noqa: F821  supplied


os.makedirs(config["data_dir"], exist_ok=True)
tb_writer = SummaryWriter(log_dir="data/relations")
torch.manual_seed(0)
model = BertForSequenceClassification(BertConfig(**config["bert"], vocab_size=len(tokenizer)))
optimizer = torch.optim.AdamW(model.parameters(), lr=opt.lr)
train_data, dev_data = load_and_cache_examples("train"), load_and_cache_examples("dev")
checkpoint_path = os.path.join(config["data_dir"], "last.pth.tar")
begin_epoch, best, waited = 0, 0.0, 0
if os.path.exists(checkpoint_path):
    model_CKPT = torch.load(checkpoint_path)
    model.load_state_dict(model_CKPT["state_dict"])
    optimizer.load_state_dict(model_CKPT["optimizer"])
    begin_epoch, best, waited = model_CKPT["epoch"], model_CKPT["best"], model_CKPT["waited"]
    print("loading checkpoint!", begin_epoch)

for epoch in range(begin_epoch, opt.epochs):
    torch.manual_seed(epoch)  # dropout and the order of an epoch, also after a resume
    model.train()
    loader = DataLoader(train_data, batch_size=config["batch_size"], shuffle=True)
    for step, (ids, mask, labels) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(ids, attention_mask=mask).logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        global_iter_num = epoch * len(loader) + step + 1
        tb_writer.add_scalar("train loss", loss.item(), global_step=global_iter_num)
    acc = evaluate(model, dev_data)
    tb_writer.add_scalar("dev accuracy", acc, global_step=global_iter_num)
    logger.info("epoch %d accuracy %.4f", epoch, acc)
    waited = 0 if acc > best else waited + 1
    if acc > best:
        best = acc
        torch.save(model.state_dict(), os.path.join(config["data_dir"], "best.pth"))
    state = {"epoch": epoch + 1, "state_dict": model.state_dict(), "best": best}
    state.update(optimizer=optimizer.state_dict(), waited=waited)
    torch.save(state, checkpoint_path)
    if waited >= opt.patience:
        logger.info("no better accuracy for %d epochs: stop", waited)
        break

model.load_state_dict(torch.load(os.path.join(config["data_dir"], "best.pth")))
print("test accuracy", evaluate(model, load_and_cache_examples("test")))
