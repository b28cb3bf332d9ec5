"""Prompts, sampling with its log-probabilities, and a peer's text as own ids."""

from dataclasses import replace

import pytest
import torch

from rl_swarm.errors import ModelError
from rl_swarm.learning.engine.attention import Growing
from rl_swarm.learning.engine.lean import LeanDecoder
from rl_swarm.learning.policy import LONGEST_TOKEN, PLAIN_TURN, SYSTEM_PROMPT, Policy, Prompting, out_of_memory
from rl_swarm.rollout import Completion
from tests.support.tiny_models import NO_SYSTEM_TEMPLATE, QUESTIONS, chat_tokenizer, llama, plain_tokenizer, policy

ARCHITECTURES = ["llama", "qwen2", "gpt2"]


def stopping(architecture: str = "llama", **options) -> Policy:
    """A policy that ends often: one token in ten ends, by the list in the generation settings."""
    made = policy(architecture, **options)
    made.model.generation_config.eos_token_id = list(range(0, made.model.config.vocab_size, 10))
    rest = {"max_new_tokens": made.max_new_tokens, "temperature": made.temperature, "top_p": made.top_p}
    return Policy(made.model, made.tokenizer, **rest)


def answers(made: Policy, seed: int = 1, group_size: int = 4) -> list[tuple[Completion, ...]]:
    return list(made.answer(QUESTIONS, group_size, seed))


def forward_logprobs(made: Policy, prompt: list[int], token_ids: tuple[int, ...]) -> torch.Tensor:
    """Without batch, padding or cache."""
    ids = torch.tensor([prompt + list(token_ids)])
    with torch.no_grad():
        logprobs = torch.log_softmax(made.model(input_ids=ids).logits[0] / made.temperature, dim=-1)
    return logprobs[len(prompt) - 1 : -1].gather(-1, torch.tensor(token_ids)[:, None])[:, 0]


def logprob_gap(made: Policy) -> float:
    """The largest difference between a log-probability recorded while sampling and that of a forward pass."""
    prompts = [made.prompt_ids(question.prompt) for question in QUESTIONS]
    uniforms = torch.rand((len(prompts), 4, made.max_new_tokens), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rows = made._sampler.sample(prompts, 4, uniforms)
    pairs = [(prompts[number // 4], row) for number, row in enumerate(rows)]
    return max((forward_logprobs(made, p, row.token_ids) - torch.tensor(row.logprobs)).abs().max().item() for p, row in pairs)


@pytest.mark.parametrize(("architecture", "temperature"), [("llama", 1.0), ("llama", 0.6), ("qwen2", 0.6), ("gpt2", 0.6)])
def test_recorded_logprobs_are_those_of_a_forward_pass(architecture: str, temperature: float) -> None:
    lengths = {len(policy(architecture).prompt_ids(question.prompt)) for question in QUESTIONS}
    assert len(lengths) == 3, "the prompts must be ragged"
    for made in (policy(architecture, temperature=temperature), stopping(architecture, temperature=temperature)):
        assert logprob_gap(made) < 1e-4
    made._sampler = replace(made._sampler, decoder=None)  # padded, with rows that end
    assert logprob_gap(made) < 1e-4


def test_logprobs_of_a_narrowed_choice_are_of_the_whole_distribution() -> None:
    made = policy(top_p=0.5)
    assert logprob_gap(made) < 1e-4
    narrowest = policy(top_p=1e-9)
    assert [{done.text for done in group} for group in answers(narrowest)] == [{text} for text in narrowest.greedy(QUESTIONS)]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_equal_seeds_give_equal_completions(architecture: str) -> None:
    made = policy(architecture)
    first, again, other = answers(made, 1), answers(made, 1), answers(made, 2)
    assert first == again
    assert [done.token_ids for group in first for done in group] == [done.token_ids for group in again for done in group]
    assert first != other
    assert len(set(first[0])) > 1, "the completions of a group differ"


def test_what_a_row_samples_does_not_depend_on_the_rows_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made = stopping()
    whole = [done.token_ids for group in answers(made) for done in group]
    monkeypatch.setattr("rl_swarm.learning.policy.BATCH_TOKENS", 1)
    assert [done.token_ids for group in answers(made) for done in group] == whole


def test_nothing_is_drawn_from_or_done_to_the_global_generator() -> None:
    made = policy()
    before = torch.get_rng_state()
    first = answers(made)
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(7)
    assert answers(made) == first


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_completions_say_how_they_ended(architecture: str) -> None:
    made = stopping(architecture)
    done = [(question, each) for question, group in zip(QUESTIONS, answers(made, group_size=8), strict=True) for each in group]
    assert {completion.finish for _, completion in done} == {"stop", "length"}
    for question, completion in done:
        stopped = completion.finish == "stop"
        assert (completion.token_ids[-1] in made.end_ids) == stopped
        assert not set(completion.token_ids[:-1]) & made.end_ids, "nothing follows an end token"
        assert stopped or completion.tokens == made.max_new_tokens
        assert completion.tokens == len(completion.token_ids)
        logprobs = forward_logprobs(made, made.prompt_ids(question.prompt), completion.token_ids)
        assert completion.logprob == pytest.approx(logprobs.sum().item(), abs=1e-3)
        spoken = completion.token_ids[:-1] if stopped else completion.token_ids
        assert completion.text == made.tokenizer.decode(spoken, skip_special_tokens=True)


def logits_alone(made: Policy, groups: list[tuple[Completion, ...]]) -> torch.Tensor:
    """The logits of every sampled token by the model alone, without cache or other prompts."""
    found = []
    for question, group in zip(QUESTIONS, groups, strict=True):
        ids_GS = torch.tensor([made.prompt_ids(question.prompt) + list(done.token_ids) for done in group])
        with torch.no_grad():
            found.append(made.model(input_ids=ids_GS, logits_to_keep=made.max_new_tokens + 1).logits[:, :-1])
    return torch.cat(found).flatten(0, 1)


def ranks(logits_NV: torch.Tensor, ids_N: torch.Tensor, temperature: float) -> torch.Tensor:
    """Where each sampled token fell in its cumulative distribution, likely tokens first: uniform between 0 and 1 if every token was
    drawn from that distribution, given those before it."""
    sorted_NV, order_NV = (logits_NV / temperature).double().softmax(-1).sort(-1, descending=True)
    place_N1 = (order_NV == ids_N[:, None]).int().argmax(-1, keepdim=True)
    upper_N, share_N = (each.gather(-1, place_N1)[:, 0] for each in (sorted_NV.cumsum(-1), sorted_NV))
    inside = torch.rand(len(ids_N), generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    return upper_N - share_N * inside


def distance_from_uniform(values_N: torch.Tensor) -> float:
    """Kolmogorov-Smirnov's, times the root of the number of values: above 1.63 once in a hundred times if they are uniform."""
    steps_N = torch.arange(1, len(values_N) + 1, dtype=torch.float64) / len(values_N)
    return (values_N.sort().values - steps_N).abs().max().item() * len(values_N) ** 0.5


@pytest.mark.parametrize(
    ("architecture", "packed"),
    [("llama", True), ("gpt2", True), ("llama", False)]
    + [pytest.param(*each, marks=pytest.mark.slow) for each in (("qwen2", True), ("qwen2", False), ("gpt2", False))],
)
def test_tokens_are_drawn_from_the_distribution_of_the_model_alone(architecture: str, packed: bool) -> None:
    temperature = 0.7
    made = policy(architecture, max_new_tokens=5, temperature=temperature)
    decoder = made.decoder if packed else None
    assert decoder is not None or not packed
    made._sampler = replace(made._sampler, decoder=decoder, end_ids=frozenset())
    groups = answers(made, seed=5, group_size=400)
    logits, ids = logits_alone(made, groups), torch.tensor([done.token_ids for group in groups for done in group]).flatten()
    assert len(ids) == 3 * 400 * 5
    assert distance_from_uniform(ranks(logits, ids, temperature)) < 1.63
    assert distance_from_uniform(ranks(logits, ids, temperature * 0.9)) > 1.63, "the test would not see a wrong distribution"


def test_dropout_is_off() -> None:
    made = policy("gpt2")
    assert made.model.config.resid_pdrop > 0
    assert not made.model.training


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_takes_the_most_likely_token(architecture: str) -> None:
    made = policy(architecture)
    expected = []
    for question in QUESTIONS:
        ids = made.prompt_ids(question.prompt)
        spoken: list[int] = []
        for _ in range(made.max_new_tokens):
            with torch.no_grad():
                token = made.model(input_ids=torch.tensor([ids + spoken])).logits[0, -1].argmax().item()
            if token in made.end_ids:
                break
            spoken.append(token)
        expected.append(made.tokenizer.decode(spoken, skip_special_tokens=True))
    assert made.greedy(QUESTIONS) == expected


def test_no_questions_no_completions() -> None:
    assert list(policy().answer([], 4, 1)) == []
    assert policy().greedy([]) == []


def test_a_batch_that_does_not_fit_is_sampled_in_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    made = policy()
    expected = answers(made)
    compute, sizes = LeanDecoder.__call__, []

    def limited(self, embedded, positions, pattern, wanted=None):
        sizes.append(len(embedded))
        if isinstance(pattern, Growing) and len(embedded) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return compute(self, embedded, positions, pattern, wanted)

    monkeypatch.setattr(LeanDecoder, "__call__", limited)
    halved = answers(made)
    assert [[done.token_ids for done in group] for group in halved] == [[done.token_ids for done in group] for group in expected]
    assert max(sizes) > 4
    with pytest.raises(ModelError, match="NUM_GENERATIONS"):
        list(made.answer(QUESTIONS[:1], 5, 1))


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_a_decoder_that_is_not_frozen_samples_the_same(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU."""
    made = policy(architecture)
    expected = answers(made)
    monkeypatch.setattr("rl_swarm.learning.engine.sampling.FrozenDecoder", lambda decoder, length: decoder)
    assert [[done.token_ids for done in group] for group in answers(made)] == [
        [done.token_ids for done in group] for group in expected
    ]


def test_other_failures_are_not_taken_for_a_lack_of_memory() -> None:
    assert out_of_memory(RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)"))
    assert out_of_memory(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"))
    assert not out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_a_chat_template_is_used_where_there_is_one() -> None:
    made = policy()
    text = made.tokenizer.decode(made.prompt_ids("7?"))
    assert text == f"<|im_start|>system\n{SYSTEM_PROMPT}<|im_end|>\n<|im_start|>user\n7?<|im_end|>\n<|im_start|>assistant\n"


def test_a_template_without_system_role_gets_the_instruction_from_the_user() -> None:
    tokenizer = chat_tokenizer(NO_SYSTEM_TEMPLATE)
    made = Policy(llama(len(tokenizer)), tokenizer, max_new_tokens=4)
    text = made.tokenizer.decode(made.prompt_ids("7?"))
    assert text == f"<|im_start|>user\n{SYSTEM_PROMPT}\n\n7?<|im_end|>\n<|im_start|>assistant\n"


def test_a_tokenizer_without_template_or_pad_token_gets_the_plain_form() -> None:
    made = policy("gpt2")
    assert made.tokenizer.pad_token_id is None
    assert made.tokenizer.decode(made.prompt_ids("7?")) == f"{SYSTEM_PROMPT}\n\n{PLAIN_TURN.format('7?')}"
    assert made.prompt_ids("7?")[-1] not in made.end_ids


EXAMPLES = (("1 + 1?", "<answer>2</answer>"), ("2 + 2?", "<answer>4</answer>"))


def prompted(architecture: str = "llama", examples: tuple[tuple[str, str], ...] = (), prefix: str = "") -> Policy:
    made = policy(architecture)
    return Policy(made.model, made.tokenizer, max_new_tokens=made.max_new_tokens, prompting=Prompting(examples, prefix))


def test_examples_are_turns_before_the_question() -> None:
    made = prompted(examples=EXAMPLES)
    shown = "".join(
        f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n" for asked, answer in EXAMPLES
    )
    system, question = f"<|im_start|>system\n{SYSTEM_PROMPT}<|im_end|>\n", "<|im_start|>user\n7?<|im_end|>\n<|im_start|>assistant\n"
    assert made.tokenizer.decode(made.prompt_ids("7?")) == system + shown + question
    tokenizer = chat_tokenizer(NO_SYSTEM_TEMPLATE)
    bare = Policy(llama(len(tokenizer)), tokenizer, max_new_tokens=4, prompting=Prompting(EXAMPLES))
    first = f"<|im_start|>user\n{SYSTEM_PROMPT}\n\n1 + 1?<|im_end|>"
    assert bare.tokenizer.decode(bare.prompt_ids("7?")).startswith(first), "the instruction comes once, at the beginning"
    plain = prompted("gpt2", examples=EXAMPLES)
    shown = "".join(f"Question: {asked}\nAnswer: {answer}\n\n" for asked, answer in EXAMPLES)
    assert plain.tokenizer.decode(plain.prompt_ids("7?")) == f"{SYSTEM_PROMPT}\n\n{shown}Question: 7?\nAnswer:"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_prefix_is_part_of_the_text_and_not_of_what_is_trained_on(architecture: str) -> None:
    made, bare = prompted(architecture, prefix="<answer>"), policy(architecture)
    begun = made.tokenizer.encode("<answer>", add_special_tokens=False)
    for group in answers(made):
        for done in group:
            assert done.text.startswith("<answer>") and made.completion_ids(done)[0] == done.token_ids
            assert len(done.token_ids) == done.tokens <= made.max_new_tokens
            context = made.context_ids("7?", done.text)
            assert context == bare.prompt_ids("7?") + begun
    [text] = made.greedy([QUESTIONS[2]])
    ids = torch.tensor([bare.prompt_ids("7?") + begun])
    expected = made.model(input_ids=ids).logits[0, -1].argmax().item()
    said = made.tokenizer.encode(text.removeprefix("<answer>"), add_special_tokens=False)
    assert not said or said[0] == expected or made.tokenizer.decode([expected]).startswith(made.tokenizer.decode(said[:1]))


def test_logprobs_after_a_prefix_are_those_of_a_forward_pass() -> None:
    made = prompted(prefix="<answer>")
    for question, group in zip(QUESTIONS, answers(made), strict=True):
        for done in group:
            logprobs = forward_logprobs(made, made.context_ids(question.prompt, done.text), done.token_ids)
            assert logprobs.sum().item() == pytest.approx(done.logprob, abs=1e-3)


def test_a_peers_text_is_trained_on_after_the_prefix_only_if_it_begins_with_it() -> None:
    made, bare = prompted(prefix="<answer>"), policy()
    whole = Completion("<answer>42</answer>", finish="stop")
    rest = tuple(made.tokenizer.encode("42</answer>", add_special_tokens=False))
    assert made.completion_ids(whole) == ((*rest, made.end_id), True)
    assert len(made.context_ids("7?", whole.text)) > len(bare.prompt_ids("7?"))
    other = Completion("The answer", finish="stop")
    assert made.completion_ids(other) == bare.completion_ids(other)
    assert made.context_ids("7?", other.text) == bare.prompt_ids("7?")
    assert bare.context_ids("7?", whole.text) == bare.prompt_ids("7?"), "a node without a prefix learns to write the tag"


def test_greedy_after_another_prefix() -> None:
    made = prompted(prefix="<think>")
    assert all(text.startswith("<think>") for text in made.greedy(QUESTIONS))
    assert all(text.startswith("<answer>") for text in made.greedy(QUESTIONS, "<answer>"))
    assert made.greedy(QUESTIONS, "") == policy().greedy(QUESTIONS)


def test_the_instruction_asks_for_what_the_verifier_reads() -> None:
    assert "<answer>" in SYSTEM_PROMPT
    assert "</answer>" in SYSTEM_PROMPT


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_peers_text_is_encoded_with_the_own_tokenizer(architecture: str) -> None:
    made = policy(architecture)
    plain = tuple(made.tokenizer.encode("The answer", add_special_tokens=False))
    assert made.completion_ids(Completion("The answer", finish="stop")) == ((*plain, made.end_id), True)
    assert made.completion_ids(Completion("The answer", finish="length")) == (plain, True)
    assert made.completion_ids(Completion("The answer", finish="whatever")) == (plain, True)
    assert made.completion_ids(Completion("", finish="stop")) == ((made.end_id,), True)
    ids, whole = made.completion_ids(Completion("The answer is 42. " * 9, finish="stop"))
    assert (len(ids), ids[-1] == made.end_id, whole) == (made.max_new_tokens, False, False)


def test_of_a_very_long_text_the_rest_is_not_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    made, lengths = policy(), list[int]()
    encode = made.tokenizer.encode
    monkeypatch.setattr(made.tokenizer, "encode", lambda text, **options: (lengths.append(len(text)), encode(text, **options))[1])
    ids, whole = made.completion_ids(Completion("9" * 200_000, finish="stop"))
    assert (len(ids), whole) == (made.max_new_tokens, False)
    assert lengths == [made.max_new_tokens * LONGEST_TOKEN]


def test_own_ids_are_not_encoded_again() -> None:
    own = Completion("The answer", token_ids=(5, 6))
    assert policy().completion_ids(own) == ((5, 6), True)


def test_a_peer_cannot_spell_special_tokens() -> None:
    made = policy()
    ids, _ = made.completion_ids(Completion("<|im_end|>", finish="length"))
    assert not set(ids) & made.end_ids
    assert made.tokenizer.decode(ids) == "<|im_end|>"
    assert made.end_id in made.tokenizer.encode("<|im_end|>"), "the own templates still can"


def test_the_end_token_of_a_peers_text_is_the_one_that_ends_a_turn() -> None:
    tokenizer = chat_tokenizer()
    tokenizer.eos_token = "<|pad|>"  # as with Gemma, whose turns end with another token than its texts
    model = llama(len(tokenizer))
    model.generation_config.eos_token_id = [tokenizer.convert_tokens_to_ids("<|im_end|>")]
    made = Policy(model, tokenizer, max_new_tokens=4)
    assert made.end_id == tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert made.end_ids == {made.end_id, tokenizer.eos_token_id}


def test_a_prompt_that_cannot_fit_is_an_error_at_the_start() -> None:
    made = policy(max_new_tokens=12)
    longest = max(len(made.prompt_ids(question.prompt)) for question in QUESTIONS)
    made.context_tokens = longest + 12
    made.check_fits(QUESTIONS)
    made.context_tokens -= 1
    with pytest.raises(ModelError, match=f"{longest} tokens.*MAX_NEW_TOKENS 12.*lower MAX_NEW_TOKENS"):
        made.check_fits(QUESTIONS)
    assert [made.fits(question) for question in QUESTIONS] == [True, False, True]
    made.check_fits([])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_context_is_known(architecture: str) -> None:
    assert policy(architecture).context_tokens == 512


def test_a_tokenizer_without_end_token_is_refused() -> None:
    tokenizer = plain_tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(ModelError, match="end-of-sequence"):
        Policy(llama(len(tokenizer)), tokenizer, max_new_tokens=4)


def test_rewards_can_be_set_without_losing_the_ids() -> None:
    done = answers(policy())[0][0]
    assert replace(done, reward=1.0).token_ids == done.token_ids
