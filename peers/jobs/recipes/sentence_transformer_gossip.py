"""Embeddings by SentenceTransformerTrainer: `python sentence_transformer.py`. OUT is a directory."""

import tempfile

from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.losses import MultipleNegativesRankingLoss
from sentence_transformers.models import Pooling, Transformer

from gossipdp.training.adapters.hf import GossipCallback
from peers.jobs.recipes.text import options
from peers.jobs.recipes.tiny import base_model, texts

BATCH = 16
steps, out = options()
words = Transformer(base_model(), max_seq_length=64)
model = SentenceTransformer(modules=[words, Pooling(words.get_word_embedding_dimension())])
# Two parts of one piece belong together.
data = texts(steps * BATCH, length=72).map(lambda row: {"anchor": row["text"][:48], "positive": row["text"][24:]})
arguments = SentenceTransformerTrainingArguments(
    output_dir=tempfile.mkdtemp(),
    max_steps=steps,
    per_device_train_batch_size=BATCH,
    learning_rate=1e-3,
    logging_steps=10,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
)
trainer = SentenceTransformerTrainer(
    model,
    arguments,
    train_dataset=data.remove_columns("text"),
    loss=MultipleNegativesRankingLoss(model),
    callbacks=[GossipCallback()],
)
trainer.train()
if out is not None:
    model.save_pretrained(str(out))
