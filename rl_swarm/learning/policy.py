"""A language model that answers questions: text, finish reason, and the sampled ids with their log-probabilities.

Renders prompts, samples in batches (`engine/sampling.py`), and encodes a peer's text with its own tokenizer. Never trains or
scores. Dropout (GPT-2 has it) is always off: with it, the policy that samples would not be the policy that is trained.
"""

import copy
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rl_swarm.errors import ModelError
from rl_swarm.learning.engine.architecture import packed_decoder
from rl_swarm.learning.engine.sampling import Sampled, Sampler
from rl_swarm.rollout import Completion, Question

SYSTEM_PROMPT = (
    "Solve the problem. Think briefly if you need to, then write only the final answer between <answer> and </answer>, "
    "for example: <answer>42</answer>"
)
PLAIN_TURN = "Question: {}\nAnswer:"  # for tokenizers without a chat template
TEMPLATE_CHARACTERS = 100_000  # that a chat template may add to the messages
PROMPTS_KEPT = 1024  # size of the cache: a question is asked, checked for its length and trained on
# Prompt and completion tokens sampled at once: keeps the key-value cache within 2 GB for a model of 0.5 B parameters.
BATCH_TOKENS = 1 << 16
LONGEST_TOKEN = 128  # characters: the longest tokens in use are runs of spaces


@dataclass(frozen=True)
class Prompting:
    """What a model is shown before it writes: questions answered in the right form, and the beginning of every completion.

    The beginning is part of a completion's text. It is not trained on, since the model does not choose it.
    """

    examples: tuple[tuple[str, str], ...] = ()
    prefix: str = ""


PLAIN = Prompting()


class Policy:
    """A model and its tokenizer behind the few calls that the loop needs; peers and people see `name`.

    Log-probabilities are of the tempered distribution before `top_p` cuts it, as the trainer computes them. At top_p 1 that is
    exactly the distribution sampled from.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        max_new_tokens: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
        device: str = "cpu",
        name: str = "",
        prompting: Prompting = PLAIN,
    ) -> None:
        self.model, self.tokenizer = model.to(device).eval(), tokenizer
        self.max_new_tokens, self.temperature, self.top_p = max_new_tokens, temperature, top_p
        self.device, self.name, self.prompting = torch.device(device), name, prompting
        self.end_ids = _end_ids(model, tokenizer)
        self.end_id = _turn_end(tokenizer, self.end_ids)
        self.pad_id = self.end_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        self.context_tokens = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self._rendered = functools.lru_cache(PROMPTS_KEPT)(self._render_prompt)
        self.decoder = packed_decoder(self.model, self.end_id)
        self._sampler = Sampler(
            self.model, self.decoder, self.pad_id, self.end_ids, max_new_tokens, temperature, top_p, self.device
        )
        self._system_role = tokenizer.chat_template is not None and _accepts_system_role(tokenizer)
        self.prompt_ids("1")  # fails now if the template cannot be used

    def prompted(self, prompting: Prompting) -> "Policy":
        """The same model behind another prompt."""
        other = copy.copy(self)
        other.prompting, other._rendered = prompting, functools.lru_cache(PROMPTS_KEPT)(other._render_prompt)
        return other

    def prompt_ids(self, prompt: str) -> list[int]:
        """Render a question, after the examples, with the tokenizer's chat template, or with `PLAIN_TURN` if it has none.

        If the template refuses a system role, the instruction comes first in the user's message. If it silently drops system
        messages, that is its author's choice.
        """
        return list(self._rendered(prompt))

    def _render_prompt(self, prompt: str) -> list[int]:
        examples = self.prompting.examples
        if self.tokenizer.chat_template is None:
            shown = "".join(f"{PLAIN_TURN.format(asked)} {answer}\n\n" for asked, answer in examples)
            ids = self.tokenizer.encode(f"{SYSTEM_PROMPT}\n\n{shown}{PLAIN_TURN.format(prompt)}")
            return ids[:-1] if ids[-1] in self.end_ids else ids  # some tokenizers end every text they encode
        asked = [asked for asked, _ in examples] + [prompt]
        if not self._system_role:
            asked[0] = f"{SYSTEM_PROMPT}\n\n{asked[0]}"
        turns = [("system", SYSTEM_PROMPT)] if self._system_role else []
        for each, (_, answer) in zip(asked, examples, strict=False):  # the last question has no answer yet
            turns += [("user", each), ("assistant", answer)]
        return _render(self.tokenizer, *turns, ("user", asked[-1]))

    def context_ids(self, prompt: str, text: str) -> list[int]:
        """The ids before those that are trained on: the prompt and, where the text begins with it, the prefix."""
        prefix = self.prompting.prefix
        return self.prompt_ids(prompt) + (self._encode(prefix) if prefix and text.startswith(prefix) else [])

    def _encode(self, text: str) -> list[int]:
        """The ids of a text, with special tokens that are spelt out in it as plain text."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        return ids

    def completion_ids(self, completion: Completion) -> tuple[tuple[int, ...], bool]:
        """The ids to train on, without the prefix, and whether they are the whole completion.

        Own completions keep the sampled ids. A peer's text is encoded, with special tokens that are spelt out in it as plain text,
        and cut after `max_new_tokens`. The end token follows only if the completion stopped by itself. The excess of a very long
        text is not even encoded: that would take a second a megabyte.
        """
        if completion.token_ids:
            return completion.token_ids, True
        text = completion.text.removeprefix(self.prompting.prefix)
        start = text[: self.max_new_tokens * LONGEST_TOKEN]
        ids = self._encode(start)
        if completion.finish == "stop":
            ids.append(self.end_id)
        return tuple(ids[: self.max_new_tokens]), len(start) == len(text) and len(ids) <= self.max_new_tokens

    def fits(self, question: Question) -> bool:
        return self.context_tokens is None or self._needed(question) <= self.context_tokens

    def _needed(self, question: Question) -> int:
        return len(self.context_ids(question.prompt, self.prompting.prefix)) + self.max_new_tokens

    def check_fits(self, questions: Sequence[Question]) -> None:
        """Raise ModelError if a question leaves no room for a completion in the model's context."""
        longest = max(map(self._needed, questions), default=0)
        if self.context_tokens is not None and longest > self.context_tokens:
            raise ModelError(
                f"a prompt of {longest - self.max_new_tokens} tokens and MAX_NEW_TOKENS {self.max_new_tokens} exceed the "
                f"{self.context_tokens} tokens of context of {self.name or 'the model'}: lower MAX_NEW_TOKENS or "
                "PROMPT_EXAMPLES, or choose easier TASKS"
            )

    def answer(self, questions: Sequence[Question], group_size: int, seed: int) -> Iterator[tuple[Completion, ...]]:
        """Sample `group_size` completions of each question, in order; the same seed gives the same completions."""
        # One uniform number a token, drawn beforehand: a row depends on its own numbers only, so neither its neighbours, nor rows
        # that left the batch, nor a batch cut in two for want of memory change its tokens.
        shape = (len(questions), group_size, self.max_new_tokens)
        uniforms_IGT = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return self._groups(questions, group_size, uniforms_IGT, self.prompting.prefix)

    def greedy(self, questions: Sequence[Question], prefix: str | None = None) -> list[str]:
        """Answer each question with the most likely token at every step, after another prefix than usual if one is given."""
        begun = self.prompting.prefix if prefix is None else prefix
        return [completion.text for (completion,) in self._groups(questions, 1, None, begun)]

    def _groups(
        self, questions: Sequence[Question], group_size: int, uniforms_IGT: Tensor | None, prefix: str
    ) -> Iterator[tuple[Completion, ...]]:
        """Sample the completions of each question, in batches as large as `BATCH_TOKENS` allows."""
        begun = self._encode(prefix) if prefix else []
        prompts = [self.prompt_ids(question.prompt) + begun for question in questions]
        start = 0
        while start < len(prompts):
            stop = self._batch_end(prompts, start, group_size)
            uniforms = None if uniforms_IGT is None else uniforms_IGT[start:stop]
            rows = self._sample(prompts[start:stop], group_size, uniforms)
            for first in range(0, len(rows), group_size):
                yield tuple(self._completion(row, prefix) for row in rows[first : first + group_size])
            start = stop

    def _batch_end(self, prompts: list[list[int]], start: int, group_size: int) -> int:
        stop, longest = start, 0
        while stop < len(prompts):
            longest = max(longest, len(prompts[stop]))
            prompt_tokens = longest if self.decoder else longest * group_size  # packed, completions share their prompt
            if stop > start and (stop + 1 - start) * (prompt_tokens + self.max_new_tokens * group_size) > BATCH_TOKENS:
                break
            stop += 1
        return stop

    def _sample(self, prompts: list[list[int]], group_size: int, uniforms_IGT: Tensor | None) -> list[Sampled]:
        """Sample one batch, or its halves if it does not fit in memory."""
        try:
            return self._sampler.sample(prompts, group_size, uniforms_IGT)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
        # Outside the handler, whose exception would keep the failed attempt's tensors alive.
        if len(prompts) == 1:
            raise ModelError(
                f"{group_size} completions of up to {self.max_new_tokens} tokens do not fit in the memory of {self.device}: lower "
                "NUM_GENERATIONS or MAX_NEW_TOKENS, or choose a smaller MODEL_NAME"
            )
        half = len(prompts) // 2
        first, second = (None, None) if uniforms_IGT is None else (uniforms_IGT[:half], uniforms_IGT[half:])
        return self._sample(prompts[:half], group_size, first) + self._sample(prompts[half:], group_size, second)

    def _completion(self, row: Sampled, prefix: str) -> Completion:
        spoken = row.token_ids[:-1] if row.stopped else row.token_ids
        return Completion(
            text=prefix + self.tokenizer.decode(spoken, skip_special_tokens=True, clean_up_tokenization_spaces=False),
            finish="stop" if row.stopped else "length",
            tokens=len(row.token_ids),
            logprob=sum(row.logprobs),
            token_ids=row.token_ids,
        )


def out_of_memory(error: RuntimeError) -> bool:
    """Tell lack of memory from other errors: CUDA has its own exception, MPS and the CPU's allocator only a message."""
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in text or "can't allocate memory" in text


def _end_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Every token that ends a completion: the tokenizer's own and those in the model's generation settings."""
    if tokenizer.eos_token_id is None:
        raise ModelError("the tokenizer has no end-of-sequence token, so no completion could ever stop: choose another MODEL_NAME")
    configured = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    return frozenset({tokenizer.eos_token_id, *(configured if isinstance(configured, list) else [configured])} - {None})


def _turn_end(tokenizer: Any, end_ids: frozenset[int]) -> int:
    """The token that ends this model's own answers: some chat templates close a turn with another token than the tokenizer's end of
    sequence (Gemma)."""
    if tokenizer.chat_template is None:
        return tokenizer.eos_token_id
    turn = _render(tokenizer, ("user", "1"), ("assistant", "1"))
    return next((token for token in reversed(turn) if token in end_ids), tokenizer.eos_token_id)


def _accepts_system_role(tokenizer: Any) -> bool:
    try:
        _render(tokenizer, ("system", "1"), ("user", "1"))
    except ModelError:
        return False
    return True


def _render(tokenizer: Any, *turns: tuple[str, str]) -> list[int]:
    """Turns of (role, content) as token ids, followed by the start of an answer unless the last turn is one.

    Raise ModelError for a template that fails, writes nothing, or writes far more than it was given.
    """
    messages = [{"role": role, "content": content} for role, content in turns]
    try:
        text = tokenizer.apply_chat_template(
            messages,
            add_generation_prompt=turns[-1][0] != "assistant",
            tokenize=False,
            enable_thinking=False,  # read by templates of models that may think at length, which would use up MAX_NEW_TOKENS
        )
    except Exception as error:  # a template is the model author's program and may raise anything
        reason = (str(error).strip().splitlines() or [""])[0][:200]
        raise ModelError(
            f"the chat template of the model's tokenizer fails ({type(error).__name__}: {reason}): choose another MODEL_NAME"
        ) from error
    most = sum(len(content) for _, content in turns) + TEMPLATE_CHARACTERS
    if not isinstance(text, str) or not 0 < len(text) <= most:
        found = f"{len(text)} characters" if isinstance(text, str) else type(text).__name__
        raise ModelError(
            f"the chat template of the model's tokenizer makes {found} of a question, not a text of at most {most}: choose another "
            "MODEL_NAME"
        )
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False, verbose=False)  # `fits` judges the length
    if not ids:
        raise ModelError("the chat template of the model's tokenizer makes no tokens of a question: choose another MODEL_NAME")
    return ids
