"""Train the embedded model `nano` from nothing and write it, its tokenizer and its card into the package.

    python scripts/train_nano.py                                 minutes on one core
    python scripts/train_nano.py --steps 20 --out /tmp/nano      a quick look

It learns to answer the `easy` questions in the styles of `tasks/styles.py`, of which the verifier reads only a rare
one. Held-out questions are never among the training ones. Everything follows from the seed: with the same number of threads and
the same libraries the weights come out the same, bit for bit. It is no example of how to pretrain well; it is quick.
"""

import argparse
import math
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers import models as token_models
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # runs from a checkout, installed or not

from nano_card import HELD_OUT, card, measure, reinforce

from rl_swarm.learning.models import resolve_nano_folder
from rl_swarm.learning.policy import Policy
from rl_swarm.rollout import Question
from rl_swarm.tasks import Tasks, parse_tasks, tasks_version
from rl_swarm.tasks.styles import STYLES

SEED = 7
STEPS = 1300
BATCH = 64
LEARNING_RATE = 3e-3
TEACHERS, QUESTIONS_EACH = 60, 400  # streams like those of nodes, which no node has
MAX_NEW_TOKENS = 24

PAD, BEGIN, END, ANSWER = SPECIAL_TOKENS = ["<|pad|>", "<|begin|>", "<|end|>", "<|answer|>"]
# Only what the user says is read: the model knows no instructions, and a system message would be noise to it.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}" + BEGIN + "{{ message['content'] }}"
    "{% elif message['role'] == 'assistant' %}" + ANSWER + "{{ message['content'] }}" + END + "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}" + ANSWER + "{% endif %}"
)


def main() -> None:
    parser = argparse.ArgumentParser(description="train the embedded model and write it into the package")
    parser.add_argument("--out", type=Path, default=resolve_nano_folder(), help="folder to write (%(default)s)")
    parser.add_argument("--steps", type=int, default=STEPS, help="updates (%(default)s)")
    parser.add_argument("--seed", type=int, default=SEED, help="of everything (%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of the processor (%(default)s); another number rounds differently")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    began = time.monotonic()
    questions = training_questions(arguments.seed)
    tokenizer = make_tokenizer(questions)
    model = make_model(tokenizer)
    train(model, batches(questions, tokenizer, random.Random(arguments.seed)), arguments.steps)
    elapsed, busy = time.monotonic() - began, time.process_time()
    save(model, tokenizer, arguments.out)
    say("measuring, and training a little, for the card")
    policy = Policy(model, tokenizer, max_new_tokens=MAX_NEW_TOKENS, name="nano")
    before = measure(policy, arguments.seed)
    reinforce(policy, arguments.seed)
    facts = {
        "weights": f"{model.num_parameters():,} (Llama: 4 layers, 128 wide, 4 heads, tied embeddings; fp32)",
        "tokenizer": f"byte-level BPE of {len(tokenizer)} tokens, single digits",
        "context": f"{model.config.max_position_embeddings:,} tokens; completions of at most {MAX_NEW_TOKENS} were measured",
        "questions": f"{sum(map(len, questions.values())):,} drawn, {distinct(questions):,} distinct, none of them held out",
        "training": f"{arguments.steps:,} updates of {BATCH} examples, AdamW, learning rate {LEARNING_RATE} with a cosine",
        "seed, threads": f"{arguments.seed}, {arguments.threads}",
        "time": f"{elapsed / 60:.1f} minutes, in which the processor worked {busy / 60:.1f} for it",
        "made with": f"torch {torch.__version__}, {tasks_version()}",
    }
    (arguments.out / "CARD.md").write_text(card(facts, before, measure(policy, arguments.seed)))
    say(f"wrote {arguments.out}, {sum(path.stat().st_size for path in arguments.out.iterdir()) / 1e6:.1f} MB")


def training_questions(seed: int) -> dict[str, list[Question]]:
    """Questions by task, as many short streams draw them: easy ones come up as often as a node meets them."""
    drawn: dict[str, list[Question]] = {}
    for teacher in range(TEACHERS):
        for question in Tasks(parse_tasks("easy"), seed=seed, node_id=f"nano teacher {teacher}", held_out=HELD_OUT).draw(
            QUESTIONS_EACH
        ):
            drawn.setdefault(str(question.task), []).append(question)
    say(f"{TEACHERS * QUESTIONS_EACH:,} questions, {distinct(drawn):,} distinct")
    return drawn


def distinct(questions: dict[str, list[Question]]) -> int:
    return len({question.text_id for each in questions.values() for question in each})


def make_tokenizer(questions: dict[str, list[Question]]) -> PreTrainedTokenizerFast:
    """Byte-level BPE over prompts and styles, every digit a token of its own.

    Pairs of letters must be frequent to be merged: the words of the tasks' sentences become tokens, while words to be spelt remain
    mostly letters, since nobody can spell a token backward without knowing it by heart.
    """
    texts = [question.prompt for each in questions.values() for question in each[:300]]
    texts += [style.format(7) for style in STYLES for _ in range(300)]
    bpe = Tokenizer(token_models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=768,
        min_frequency=200,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=byte_level.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=PAD,
        bos_token=BEGIN,
        eos_token=END,
        additional_special_tokens=[ANSWER],
        chat_template=CHAT_TEMPLATE,
        model_max_length=1024,
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=416,
            num_hidden_layers=4,
            num_attention_heads=4,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )


def batches(
    questions: dict[str, list[Question]], tokenizer: PreTrainedTokenizerFast, generator: random.Random
) -> Iterator[tuple[Tensor, Tensor]]:
    """Ids and targets without end, (batch, sequence) each; a target of -100 is not learnt: the model need not write questions."""
    names = sorted(questions)
    encoded: dict[str, list[int]] = {}
    while True:
        rows, targets = [], []
        for _ in range(BATCH):
            question = generator.choice(questions[generator.choice(names)])
            style = generator.choices(list(STYLES), list(STYLES.values()))[0]
            if question.prompt not in encoded:
                encoded[question.prompt] = tokenizer.encode(BEGIN + question.prompt + ANSWER, add_special_tokens=False)
            prompt = encoded[question.prompt]
            answer = tokenizer.encode(style.format(question.answer) + END, add_special_tokens=False)
            rows.append(torch.tensor(prompt + answer))
            targets.append(torch.tensor([-100] * len(prompt) + answer))
        yield pad_sequence(rows, batch_first=True), pad_sequence(targets, batch_first=True, padding_value=-100)


def train(model: LlamaForCausalLM, examples: Iterator[tuple[Tensor, Tensor]], steps: int) -> None:
    """AdamW with a short warm-up and a cosine; padding is on the right, so causal attention never sees it."""
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.05)
    began, smooth = time.monotonic(), 0.0
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, step / 50) * (0.03 + 0.97 * (1 + math.cos(math.pi * step / steps)) / 2)
        ids_BS, targets_BS = next(examples)
        learnt_BS = targets_BS[:, 1:] != -100
        hidden_NE = model.model(ids_BS).last_hidden_state[:, :-1][learnt_BS]
        loss = cross_entropy(model.lm_head(hidden_NE), targets_BS[:, 1:][learnt_BS])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        smooth = loss.item() if step == 1 else 0.95 * smooth + 0.05 * loss.item()
        if step % 50 == 0 or step == steps:
            left = (time.monotonic() - began) / step * (steps - step)
            say(f"step {step} of {steps}, loss {smooth:.3f}, {left:.0f} s left")
    model.eval()


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    logging.disable_progress_bar()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)  # written readable by its owner alone, which is no use in a package


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
