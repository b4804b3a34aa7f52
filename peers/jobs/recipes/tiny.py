"""What the recipes of Transformers and its relatives begin with: a model, a tokenizer and texts, made on the spot.

A script takes the model from a directory of `save_pretrained`, as if it had been downloaded. Equal seeds give equal
weights on every host. Nothing here may know of gossip.
"""

import tempfile
from pathlib import Path

import torch
import transformers
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from peers.jobs.byte_gpt import data_generator, load_corpus

__all__ = ["base_model", "texts", "tokenizer"]

transformers.logging.set_verbosity_error()


def tokenizer() -> PreTrainedTokenizerFast:
    """A token for each byte, with the byte as its number, and one for the end of a text, which also fills up."""
    # The alphabet has a letter for each byte: itself if it can be printed, and else one of the letters after these.
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    order = [*printed, *(byte for byte in range(256) if byte not in printed)]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytes_alone = Tokenizer(models.BPE(dict(zip(letters, order, strict=True)), []))
    bytes_alone.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytes_alone.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=bytes_alone, eos_token="<end>", pad_token="<end>")
    return made


def base_model(seed: int = 0) -> str:
    """A directory with a Llama of 140,000 parameters that knows nothing, and its tokenizer."""
    torch.manual_seed(seed)
    tokens = tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokens),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
        initializer_range=0.2,
        eos_token_id=tokens.eos_token_id,
        pad_token_id=tokens.pad_token_id,
        bos_token_id=None,
    )
    directory = Path(tempfile.mkdtemp()) / "tiny-llama"
    LlamaForCausalLM(config).save_pretrained(directory)
    tokens.save_pretrained(directory)
    return str(directory)


def texts(count: int, length: int = 64, column: str = "text") -> Dataset:
    """`count` pieces of the standard library's sources, of `length` bytes. They differ between hosts."""
    text = load_corpus().train
    starts = torch.randint(len(text) - length, (count,), generator=data_generator(None, 0))
    pieces = [bytes(text[start : start + length].tolist()).decode(errors="replace") for start in starts]
    return Dataset.from_dict({column: pieces})
