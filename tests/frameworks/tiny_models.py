"""Models and tokenizers for tests, created here: nothing is downloaded.

Frameworks are imported inside the functions only.
"""

PHRASES = ("hello world", "the quick", "brown fox", "lazy dog")
TEXT = "hello world the quick brown fox jumps over the lazy dog 0123456789 user assistant"
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] + ' ' + m['content'] + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant ' }}{% endif %}"
)


def tokenizer():
    """A byte-level tokenizer of about 300 tokens, with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE(unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    special = ["<unk>", "<pad>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator([TEXT] * 4, trainer)
    unknown, pad, begin, end = special
    whole = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        unk_token=unknown,
        pad_token=pad,
        bos_token=begin,
        eos_token=end,
    )
    whole.chat_template = TEMPLATE
    return whole


def llama(tokens, *, seed=0, scores=False):
    """Two layers, hidden size 16, always the same weights; `scores` makes it a reward model."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

    config = LlamaConfig(
        vocab_size=len(tokens),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        pad_token_id=tokens.pad_token_id,
        bos_token_id=tokens.bos_token_id,
        eos_token_id=tokens.eos_token_id,
        num_labels=1,
    )
    torch.manual_seed(seed)
    return LlamaForSequenceClassification(config) if scores else LlamaForCausalLM(config)


def saved(directory, tokens, *, seed=0):
    """The same model on disk, for trainers that want a path."""
    llama(tokens, seed=seed).save_pretrained(directory)
    tokens.save_pretrained(directory)
    return str(directory)


def rows(tokens, count=32):
    """Token ids of short texts, all of one length, as a Trainer's data set has them."""
    texts = [PHRASES[at % len(PHRASES)] + " the quick brown fox jumps" for at in range(count)]
    encoded = tokens(texts, padding="max_length", max_length=12, truncation=True)
    return [
        {"input_ids": ids, "attention_mask": mask, "labels": ids}
        for ids, mask in zip(encoded["input_ids"], encoded["attention_mask"], strict=True)
    ]
