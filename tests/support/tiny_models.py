"""Random-weight models of the four architectures, and two small tokenizers, so that tests need no hub.

`chat_tokenizer` has a chat template and a pad token; `plain_tokenizer` is like GPT-2's: byte-level, no pad token, no template.
Weights are drawn wide on purpose: with the usual narrow ones every distribution is nearly uniform and a wrong position or mask
would hardly show.
"""

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers import models as token_models
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rl_swarm.learning.policy import Policy
from rl_swarm.rollout import Question

torch.set_num_threads(1)

TEXTS = [
    "Solve the problem. Think briefly if you need to, then write only the final answer between <answer> and </answer>.",
    "Question: What is 12 + 30? Answer: <answer>42</answer>",
    "Find the greatest common divisor of 18 and 24. The answer is 6.",
]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NO_SYSTEM_TEMPLATE = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + CHAT_TEMPLATE
)
QUESTIONS = [
    Question("What is 1 + 1?"),
    Question("Find the greatest common divisor of 18 and 24, and say why the answer is not 12."),
    Question("7?"),
]


def byte_level(specials: list[str], size: int) -> Tokenizer:
    tokenizer = Tokenizer(token_models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=specials, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def chat_tokenizer(template: str = CHAT_TEMPLATE) -> PreTrainedTokenizerFast:
    specials = ["<|im_end|>", "<|pad|>", "<|im_start|>"]
    return PreTrainedTokenizerFast(
        tokenizer_object=byte_level(specials, 320),
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=template,
    )


def plain_tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=byte_level(["<|endoftext|>"], 300), eos_token="<|endoftext|>")


def llama(vocabulary: int, seed: int = 0, wide: float = 0.2) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=wide,
        bos_token_id=None,
        eos_token_id=None,
    )
    return seeded(LlamaForCausalLM, config, seed)


def qwen2(vocabulary: int, seed: int = 0, wide: float = 0.2) -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=wide,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    return seeded(Qwen2ForCausalLM, config, seed)


def qwen3(vocabulary: int, seed: int = 0, wide: float = 0.2) -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        initializer_range=wide,
        bos_token_id=None,
        eos_token_id=None,
    )
    return seeded(Qwen3ForCausalLM, config, seed)


def gpt2(vocabulary: int, seed: int = 0, wide: float = 0.2) -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=vocabulary,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=512,
        initializer_range=wide,
        bos_token_id=None,
        eos_token_id=None,
    )
    return seeded(GPT2LMHeadModel, config, seed)


def seeded(kind, config, seed: int):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return kind(config)


def policy(architecture: str = "llama", *, seed: int = 0, wide: float = 0.2, max_new_tokens: int = 12, **options) -> Policy:
    """GPT-2 goes with the plain tokenizer, the others with the chat tokenizer."""
    tokenizer = plain_tokenizer() if architecture == "gpt2" else chat_tokenizer()
    build = {"llama": llama, "qwen2": qwen2, "qwen3": qwen3, "gpt2": gpt2}[architecture]
    return Policy(
        build(len(tokenizer), seed, wide), tokenizer, max_new_tokens=max_new_tokens, name=f"tiny-{architecture}", **options
    )
