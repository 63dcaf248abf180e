"""A word tokenizer for random checkpoints: id 7 is the word ``w7``."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|> {{ m['content'] }} <|end|> {% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ("<unk>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>")


def write_tokenizer(folder: Path, vocab: int, chat: bool = True) -> None:
    """Writes tokenizer files into a checkpoint folder; ids 0 to 4 are SPECIAL."""
    words = [*SPECIAL, *(f"w{i}" for i in range(len(SPECIAL), vocab))]
    core = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=SPECIAL[0])
    )
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    core.add_special_tokens(list(SPECIAL))
    fast = PreTrainedTokenizerFast(tokenizer_object=core, unk_token=SPECIAL[0])
    if chat:
        fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
