"""A language model that answers questions: text, finish reason, and the ids and log-probabilities of what was sampled.

It renders prompts, samples in batches (`sampling.py`), and turns a peer's text into ids of its own tokenizer. It never trains and
never scores. Dropout is off for good: a policy that sampled with it would not be the policy that is trained, and the
ratio of the two would not be 1 (GPT-2 has dropout).
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from rl_swarm.errors import ConfigError, ModelError
from rl_swarm.learning.engine.architecture import packed_decoder
from rl_swarm.learning.engine.sampling import Sampled, Sampler
from rl_swarm.rollout import Completion, Question

SYSTEM_PROMPT = (
    "Solve the problem. Think briefly if you need to, then write only the final answer between <answer> and </answer>, "
    "for example: <answer>42</answer>"
)
PLAIN_PROMPT = "{system}\n\nQuestion: {prompt}\nAnswer:"  # for tokenizers without a chat template
TEMPLATE_CHARACTERS = 100_000  # that a chat template may add to the messages
PROMPTS_KEPT = 1024  # rendered prompts remembered: a question is asked, checked for its length and trained on
# Prompt and completion tokens sampled at once: bounds the cache to 1 or 2 GB for a model of 0.5 B parameters.
BATCH_TOKENS = 1 << 16
LONGEST_TOKEN = 128  # characters: the longest in use stand for runs of spaces


class Policy:
    """The model and its tokenizer behind the few calls that the loop needs; `name` is what peers and people see.

    Log-probabilities are of the tempered distribution before `top_p` cuts it, which is also what the trainer computes: at
    temperature 1 and top_p 1 it is exactly the distribution sampled from.
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
        batch_tokens: int = BATCH_TOKENS,
    ) -> None:
        if max_new_tokens < 1:
            raise ConfigError(f"MAX_NEW_TOKENS must be at least 1, got {max_new_tokens}: a completion needs a token")
        if temperature <= 0:
            raise ConfigError(f"TEMPERATURE must be above 0, got {temperature}: equal completions have nothing to be compared with")
        if not 0 < top_p <= 1:
            raise ConfigError(f"TOP_P must be above 0 and at most 1, got {top_p}")
        self.model, self.tokenizer = model.to(device).eval(), tokenizer
        self.max_new_tokens, self.temperature, self.top_p = max_new_tokens, temperature, top_p
        self.device, self.name = torch.device(device), name
        self.end_ids = _end_ids(model, tokenizer)
        self.end_id = _turn_end(tokenizer, self.end_ids)
        self.pad_id = self.end_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        self.context_tokens = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self._rendered = functools.lru_cache(PROMPTS_KEPT)(self._render_prompt)
        self.decoder = packed_decoder(self.model, self.end_id)
        self._sampler = Sampler(
            self.model, self.decoder, self.pad_id, self.end_ids, max_new_tokens, temperature, top_p, self.device
        )
        self._batch_tokens = batch_tokens
        self._system_role = tokenizer.chat_template is not None and _accepts_system_role(tokenizer)
        self.prompt_ids("1")  # a template that cannot be used is found out now

    def prompt_ids(self, prompt: str) -> list[int]:
        """The question as this model reads it: its chat template where it has one, else `PLAIN_PROMPT`.

        A template that refuses a system role gets the instruction at the head of the user's message. One that merely leaves system
        messages out is its author's choice and stays as it is.
        """
        return list(self._rendered(prompt))

    def _render_prompt(self, prompt: str) -> list[int]:
        if self.tokenizer.chat_template is None:
            ids = self.tokenizer.encode(PLAIN_PROMPT.format(system=SYSTEM_PROMPT, prompt=prompt))
            return ids[:-1] if ids[-1] in self.end_ids else ids  # some tokenizers close every text they encode
        if self._system_role:
            messages = [_message("system", SYSTEM_PROMPT), _message("user", prompt)]
        else:
            messages = [_message("user", f"{SYSTEM_PROMPT}\n\n{prompt}")]
        return _render(self.tokenizer, messages, add_generation_prompt=True)

    def completion_ids(self, completion: Completion) -> tuple[tuple[int, ...], bool]:
        """The ids to train on, and whether they are the whole completion.

        An own completion's are those sampled. A peer's text is encoded anew, and special tokens that are spelt out in it are plain
        text; the end token follows only where the completion stopped by itself, and what exceeds `max_new_tokens` is cut off.
        Of a very long text the rest is not even encoded, which takes a second a megabyte.
        """
        if completion.token_ids:
            return completion.token_ids, True
        text = completion.text[: self.max_new_tokens * LONGEST_TOKEN]
        ids = self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        if completion.finish == "stop":
            ids.append(self.end_id)
        return tuple(ids[: self.max_new_tokens]), len(text) == len(completion.text) and len(ids) <= self.max_new_tokens

    def fits(self, question: Question) -> bool:
        return self.context_tokens is None or len(self.prompt_ids(question.prompt)) + self.max_new_tokens <= self.context_tokens

    def check_fits(self, questions: Sequence[Question]) -> None:
        """Raise ModelError if any of the questions leaves no room for a completion in the model's context."""
        longest = max((len(self.prompt_ids(question.prompt)) for question in questions), default=0)
        if self.context_tokens is not None and longest + self.max_new_tokens > self.context_tokens:
            raise ModelError(
                f"a prompt of {longest} tokens and MAX_NEW_TOKENS {self.max_new_tokens} exceed the {self.context_tokens} tokens "
                f"of context of {self.name or 'the model'}: lower MAX_NEW_TOKENS or choose easier TASKS"
            )

    def answer(self, questions: Sequence[Question], group_size: int, seed: int) -> Iterator[tuple[Completion, ...]]:
        """Sample `group_size` completions of each question, in order; the same seed gives the same completions."""
        # One uniform number a token, drawn beforehand: a row depends on its own numbers only, so that neither its neighbours, nor
        # rows that left the batch, nor a batch cut in two for want of memory change what it samples.
        shape = (len(questions), group_size, self.max_new_tokens)
        uniforms_IGT = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        prompts = [self.prompt_ids(question.prompt) for question in questions]
        for start, stop in self._spans(prompts, group_size):
            rows = self._sample(prompts[start:stop], group_size, uniforms_IGT[start:stop])
            for first in range(0, len(rows), group_size):
                yield tuple(self._completion(row) for row in rows[first : first + group_size])

    def greedy(self, questions: Sequence[Question]) -> list[str]:
        """The completion of each question that takes the most likely token at every step, for held-out evaluation."""
        prompts = [self.prompt_ids(question.prompt) for question in questions]
        spans = self._spans(prompts, 1)
        return [self._completion(row).text for start, stop in spans for row in self._sample(prompts[start:stop], 1, None)]

    def _spans(self, prompts: list[list[int]], group_size: int) -> Iterator[tuple[int, int]]:
        """Cut the questions into runs that are sampled in one batch, as long as the token budget allows."""
        start = longest = 0
        for index, prompt in enumerate(prompts):
            longest = max(longest, len(prompt))
            prompt_tokens = (
                longest * group_size if self.decoder is None else longest
            )  # a packed prompt is kept once for its completions
            row_tokens = prompt_tokens + self.max_new_tokens * group_size
            if index > start and (index + 1 - start) * row_tokens > self._batch_tokens:
                yield start, index
                start, longest = index, len(prompt)
        if prompts:
            yield start, len(prompts)

    def _sample(self, prompts: list[list[int]], group_size: int, uniforms_IGT: Tensor | None) -> list[Sampled]:
        """Sample one batch; when it does not fit in memory, its halves."""
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

    def _completion(self, row: Sampled) -> Completion:
        spoken = row.token_ids[:-1] if row.stopped else row.token_ids
        return Completion(
            text=self.tokenizer.decode(spoken, skip_special_tokens=True, clean_up_tokenization_spaces=False),
            finish="stop" if row.stopped else "length",
            tokens=len(row.token_ids),
            logprob=sum(row.logprobs),
            token_ids=row.token_ids,
            token_logprobs=row.logprobs,
        )


def out_of_memory(error: RuntimeError) -> bool:
    """CUDA has an exception of its own; MPS and the CPU's allocator only say so."""
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in text or "can't allocate memory" in text


def _end_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Every token that ends a completion: the tokenizer's own and those in the model's generation settings."""
    settings = getattr(model, "generation_config", None)
    configured = getattr(settings, "eos_token_id", None)
    ids = {tokenizer.eos_token_id, *(configured if isinstance(configured, list) else [configured])} - {None}
    if tokenizer.eos_token_id is None:
        raise ModelError("the tokenizer has no end-of-sequence token, so no completion could ever stop: choose another MODEL_NAME")
    return frozenset(ids)


def _turn_end(tokenizer: Any, end_ids: frozenset[int]) -> int:
    """The token that ends this model's own answers, to be put after a peer's: some chat templates close a turn with another token
    than the tokenizer's end of sequence (Gemma)."""
    if tokenizer.chat_template is None:
        return tokenizer.eos_token_id
    turn = _render(tokenizer, [_message("user", "1"), _message("assistant", "1")], add_generation_prompt=False)
    return next((token for token in reversed(turn) if token in end_ids), tokenizer.eos_token_id)


def _accepts_system_role(tokenizer: Any) -> bool:
    try:
        _render(tokenizer, [_message("system", "1"), _message("user", "1")], add_generation_prompt=True)
    except ModelError:
        return False
    return True


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _render(tokenizer: Any, messages: list[dict[str, str]], *, add_generation_prompt: bool) -> list[int]:
    """The messages as token ids; raise ModelError for a template that fails, or writes nothing or far more than it was given."""
    try:
        # Templates of models that can think at length before they answer read `enable_thinking`: it would use up MAX_NEW_TOKENS.
        text = tokenizer.apply_chat_template(
            messages, add_generation_prompt=add_generation_prompt, tokenize=False, enable_thinking=False
        )
    except Exception as error:  # a template is a program of whoever made the model: it may raise anything
        reason = (str(error).strip().splitlines() or [""])[0][:200]
        raise ModelError(
            f"the chat template of the model's tokenizer fails ({type(error).__name__}: {reason}): choose another MODEL_NAME"
        ) from error
    most = sum(len(message["content"]) for message in messages) + TEMPLATE_CHARACTERS
    if not isinstance(text, str) or not 0 < len(text) <= most:
        found = f"{len(text)} characters" if isinstance(text, str) else type(text).__name__
        raise ModelError(
            f"the chat template of the model's tokenizer makes {found} of a question, not a text of at most {most}: choose another "
            "MODEL_NAME"
        )
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    if not ids:
        raise ModelError("the chat template of the model's tokenizer makes no tokens of a question: choose another MODEL_NAME")
    return ids
