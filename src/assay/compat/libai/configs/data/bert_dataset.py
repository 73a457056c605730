"""Texts for BERT: `data_prefix` is a file of sentences, `vocab_file` lists the word pieces."""

from assay.config import LazyCall

tokenization = dict(
    tokenizer=LazyCall("libai.tokenizer.BertTokenizer")(vocab_file="vocab.txt", do_lower_case=True),
    append_eod=False,
    make_vocab_size_divisible_by=128,
)

dataloader = dict(
    train=LazyCall("libai.data.build.build_nlp_train_val_test_loader")(
        dataset=[
            LazyCall("libai.data.datasets.BertDataset")(
                name="bert",
                data_prefix="sentences.txt",
                max_seq_length=512,
                mask_lm_prob=0.15,
                seed=1234,
            )
        ],
        splits=[[949.0, 50.0, 1.0]],
        num_workers=4,
    ),
)
