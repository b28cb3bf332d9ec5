"""The update: its gradient against plain formulas, external rollouts in it, reproducibility, lack of memory, and learning."""

import copy
import gc
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from rl_swarm.errors import CheckpointError, ModelError, OtherModel
from rl_swarm.learning.corrections import TOKENS_A_GUESS, VANISHING, Guarded
from rl_swarm.learning.engine.lean import LeanDecoder
from rl_swarm.learning.policy import Policy
from rl_swarm.learning.trainer import Trainer, scored_passages
from rl_swarm.learning.weights import trainable
from rl_swarm.rollout import Completion, Question, Rollout
from tests.support.tiny_models import QUESTIONS, plain_tokenizer, policy

ARCHITECTURES = ["llama", "qwen2", "gpt2"]
PEER = Rollout(
    Question("What is 2 + 2?"),
    (
        Completion("4", reward=1.0, finish="stop", tokens=2, logprob=-7.0),
        Completion("<answer>5</answer>", reward=0.0, finish="stop", tokens=9, logprob=-4.0),
        Completion("The answer is 22, and this goes on", reward=0.0, finish="length", tokens=12, logprob=-40.0),
    ),
    "peer",
    3,
)


def scored(made: Policy, group_size: int = 4, seed: int = 1) -> list[Rollout]:
    """Own rollouts with rewards 1, 0, 0, … and so on."""
    groups = made.answer(QUESTIONS, group_size, seed)
    return [
        Rollout(question, tuple(replace(done, reward=float(at == 0)) for at, done in enumerate(group)), "own", 3)
        for question, group in zip(QUESTIONS, groups, strict=True)
    ]


def trainer_of(made: Policy, correction: str = "topr", *, rate: float = 1e-3, token_budget: int | None = None) -> Trainer:
    trainer = Trainer(made, rate, correction)
    trainer._token_budget = token_budget or trainer._token_budget
    return trainer


def gradient(made: Policy, batch: list[Rollout], trainer: Trainer | None = None) -> dict:
    """What one update would step along, before clipping; with TOPR if no trainer is given."""
    trainer, caught = trainer or trainer_of(made), {}

    def catch() -> float:
        caught.update({name: p.grad.clone() for name, p in made.model.named_parameters() if p.grad is not None})
        trainer._optimizer.zero_grad()
        return 0.0

    trainer._step = catch
    trainer.update(batch)
    return caught


def plain_gradient(made: Policy, batch: list[Rollout], weights: dict[tuple[int, int], float | None] | None = None) -> dict:
    """-mean over tokens of weight · advantage · log π, one completion at a time, in the plainest torch; a weight of None leaves a
    completion out of the mean, too."""
    total, tokens = torch.zeros(()), 0
    for row, rollout in enumerate(batch):
        rewards = torch.tensor(rollout.rewards)
        advantages = (rewards - rewards.mean()) / (rewards.std(correction=0) + 1e-8)
        prompt = made.prompt_ids(rollout.question.prompt)
        for column, (completion, advantage) in enumerate(zip(rollout.completions, advantages, strict=True)):
            weight = (weights or {}).get((row, column), 1.0)
            if weight is None:
                continue
            ids = list(made.completion_ids(completion)[0])
            logprobs = torch.log_softmax(made.model(input_ids=torch.tensor([prompt + ids])).logits[0], dim=-1)
            chosen = logprobs[len(prompt) - 1 : -1].gather(-1, torch.tensor(ids)[:, None])
            total = total + weight * advantage * chosen.sum()
            tokens += len(ids)
    names, parameters = zip(*made.model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(-total / tokens, parameters), strict=True))


def same(left: dict, right: dict) -> None:
    assert left.keys() == right.keys()
    torch.testing.assert_close(left, right, rtol=0, atol=1e-5)


def distributions(made: Policy, rollout: Rollout, column: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of all tokens wherever a token of the completion is predicted, and those tokens."""
    prompt, ids = made.prompt_ids(rollout.question.prompt), list(made.completion_ids(rollout.completions[column])[0])
    with torch.no_grad():
        logprobs = torch.log_softmax(made.model(input_ids=torch.tensor([prompt + ids])).logits[0], dim=-1)
    return logprobs[len(prompt) - 1 : -1], torch.tensor(ids)


def is_absurd(made: Policy, rollout: Rollout, column: int, guess: float) -> bool:
    logprobs, ids = distributions(made, rollout, column)
    costs, entropies = -logprobs.gather(-1, ids[:, None]).squeeze(-1), -(logprobs.exp() * logprobs).sum(-1)
    return bool((costs - entropies - guess / 2).clamp(min=0).sum() > guess * max(0.5, len(ids) / TOKENS_A_GUESS))


def sequence_logprob(made: Policy, rollout: Rollout, column: int) -> float:
    logprobs, ids = distributions(made, rollout, column)
    return logprobs.gather(-1, ids[:, None]).sum().item()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_without_peers_the_gradient_is_the_textbooks(architecture: str) -> None:
    made = policy(architecture)
    batch = scored(made)
    same(gradient(made, batch), plain_gradient(made, batch))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_gradient_does_not_depend_on_the_cut(architecture: str) -> None:
    made = policy(architecture)
    batch = [*scored(made), PEER]
    whole = gradient(made, batch, trainer_of(made, token_budget=1 << 20))
    assert max(value.abs().max().item() for value in whole.values()) > 1e-3
    for tokens in (1, 150, 500):  # 1: every completion alone, hence unpadded
        same(gradient(made, batch, trainer_of(made, token_budget=tokens)), whole)


@pytest.mark.parametrize("correction", ["guarded", "topr", "none"])
def test_removing_an_external_rollout_changes_the_gradient(correction: str) -> None:
    made = policy()
    own = scored(made)
    with_peer, without = (gradient(made, batch, trainer_of(made, correction)) for batch in ([*own, PEER], own))
    assert max((with_peer[name] - without[name]).abs().max().item() for name in without) > 1e-3


def test_no_correction_is_the_papers_rule() -> None:
    made = policy()
    batch = [*scored(made), PEER]
    same(gradient(made, batch, trainer_of(made, "none")), plain_gradient(made, batch))


def test_guarded_takes_of_peers_what_was_better_and_is_not_absurd() -> None:
    made = policy(max_new_tokens=40)
    own, paid = scored(made), [replace(PEER.completions[place], reward=float(place < 2)) for place in range(3)]
    peer = replace(PEER, completions=tuple(paid))
    trainer = trainer_of(made, "guarded")
    absurd, trainer._correction = next(
        (verdicts.index(True), Guarded(vocabulary))
        for vocabulary in range(2, 10**6)
        if sum(verdicts := [is_absurd(made, peer, place, math.log(vocabulary)) for place in (0, 1)]) == 1
    )
    weights = {(len(own), absurd): None, (len(own), 2): None}
    same(gradient(made, [*own, peer], trainer=trainer), plain_gradient(made, [*own, peer], weights))


def test_guarded_learns_nothing_from_an_author_who_mostly_writes_what_is_absurd() -> None:
    made = policy(max_new_tokens=40)
    trainer = trainer_of(made, "guarded")
    trainer._correction = Guarded(10**9)  # nothing is absurd any more
    trainer._correction.trust.evidence = {PEER.node_id: (16.0, 1.0)}
    other = replace(PEER, node_id="other")
    same(gradient(made, [*scored(made), PEER, other], trainer), gradient(made, [*scored(made), other], trainer_of(made, "guarded")))


def test_what_the_guard_finds_is_evidence_about_authors() -> None:
    made = policy(max_new_tokens=40)
    trainer, peer = discounting(made, "guarded")
    paid = sum(completion.reward > 0 for completion in peer.completions)
    trainer.update([*scored(made), peer])
    assert trainer.state()["authors"] == {peer.node_id: (float(paid), 0.0)}, "own completions are not judged, nor what cannot count"
    restored = trainer_of(policy(max_new_tokens=40), "guarded")
    restored.restore(trainer.state())
    assert restored.state()["authors"] == trainer.state()["authors"]


def test_guarded_learns_nothing_from_what_had_to_be_cut() -> None:
    """Paid was the whole text; the part that this policy could write has not even the answer."""
    made = policy()
    trainer = trainer_of(made, "guarded")
    trainer._correction = Guarded(10**9)  # nothing is absurd
    longer = tuple(replace(done, text=done.text * 20) for done in PEER.completions)
    assert not any(made.completion_ids(done)[1] for done in longer)
    same(gradient(made, [*scored(made), replace(PEER, completions=longer)], trainer), gradient(made, scored(made)))


def discounting(made: Policy, correction: str, token_budget: int | None = None) -> tuple[Trainer, Rollout]:
    """A trainer, and a peer's rollout of which every completion that it looks at has weight 0."""
    trainer = trainer_of(made, correction, token_budget=token_budget)
    if correction == "guarded":
        trainer._correction = Guarded(2)  # everything is absurd
        return trainer, PEER
    worse = tuple(Completion(done.text * 3, reward=0.0, finish="stop", logprob=-1e-3) for done in PEER.completions)
    # Better than its group, but without a token: only what is worse is left, and hardly likely.
    return trainer, replace(PEER, completions=(Completion("", reward=1.0, finish="length"), *worse))


@pytest.mark.parametrize("token_budget", [None, 150])
@pytest.mark.parametrize("correction", ["guarded", "topr"])
def test_what_counts_for_nothing_dilutes_nothing(correction: str, token_budget: int | None) -> None:
    """To 1e-6 of the largest gradient, single precision's own: sums have another order, and are scaled after they were made."""
    made = policy(max_new_tokens=40)
    own = scored(made)
    trainer, peer = discounting(made, correction, token_budget)
    with_peer = gradient(made, [*own, peer], trainer)
    alone = gradient(made, own, trainer_of(made, correction, token_budget=token_budget))
    largest = max(value.abs().max().item() for value in alone.values())
    assert with_peer.keys() == alone.keys()
    for name, value in alone.items():
        assert (with_peer[name] - value).abs().max().item() <= 1e-6 * largest, name


@pytest.mark.parametrize("correction", ["guarded", "topr"])
def test_an_update_beside_what_counts_for_nothing_is_the_update_alone(correction: str) -> None:
    results = []
    for with_peer in (True, False):
        made = policy(max_new_tokens=40)
        own = scored(made)
        trainer, peer = discounting(made, correction)
        measured = trainer.update([*own, peer] if with_peer else own)
        results.append((measured, everything(trainer)))
    (beside, after), (alone, expected) = results
    assert beside["external_discounted"] == beside["external_weighed"] > 0 == alone["external_weighed"]
    for name in ("loss", "entropy", "tokens_trained"):
        assert beside[name] == pytest.approx(alone[name], rel=1e-6, abs=1e-7), name
    assert after["version"] == expected["version"] == 1
    weights = [name for name in expected if "." in name]
    moved = max((after[name] - expected[name]).abs().max().item() for name in weights)
    assert moved <= 1e-5, "a hundredth of one step, where Adam divides by a gradient that is nearly nothing"


@pytest.mark.parametrize("correction", ["guarded", "topr"])
def test_where_nothing_counts_nothing_changes(correction: str) -> None:
    made = policy(max_new_tokens=40)
    trainer, peer = discounting(made, correction)
    for _ in range(2):
        before = everything(trainer)
        measured = trainer.update([peer])
        assert unchanged(trainer, before), "to the bit, Adam's averages and the policy's version included"
        assert (measured["tokens_trained"], measured["grad_norm"], measured["loss"]) == (0, 0, 0)
        assert measured["external_discounted"] == measured["external_weighed"] > 0
        trainer.update(scored(made))  # and once more when Adam has a state
    assert trainer.policy_version == 2


def test_an_own_batch_is_divided_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """J = 0 is plain GRPO to the bit: nothing is scaled afterwards."""
    made = policy()
    monkeypatch.setattr(Trainer, "_rescale", None)
    assert trainer_of(made, "guarded").update(scored(made))["tokens_trained"] > 0


def test_what_had_to_be_cut_is_counted_as_discounted() -> None:
    made = policy()
    trainer = trainer_of(made, "guarded")
    trainer._correction = Guarded(10**9)
    longer = tuple(replace(done, text=done.text * 20) for done in PEER.completions)
    measured = trainer.update([*scored(made), PEER, replace(PEER, completions=longer)])
    assert (measured["external_weighed"], measured["external_discounted"]) == (2, 1), "of each rollout one is better than the rest"
    only = trainer.update([replace(PEER, completions=longer)])
    assert (only["external_weighed"], only["external_discounted"], only["tokens_trained"]) == (1, 1, 0)


@pytest.mark.parametrize("claim", [0.0, -20.0, math.nan, None])
def test_guarded_believes_no_claim(claim: float | None) -> None:
    made = policy()
    lying = replace(PEER, completions=tuple(replace(done, logprob=claim) for done in PEER.completions))
    found, expected = (gradient(made, [*scored(made), each], trainer_of(made, "guarded")) for each in (lying, PEER))
    same(found, expected)


def test_topr_tapers_what_peers_got_wrong() -> None:
    made = policy(max_new_tokens=40)
    claims = [0.0, sequence_logprob(made, PEER, 1) + math.log(4), sequence_logprob(made, PEER, 2) - 1.0]
    completions = tuple(replace(done, logprob=claim) for done, claim in zip(PEER.completions, claims, strict=True))
    batch = [*scored(made), replace(PEER, completions=completions)]
    weights = {(len(QUESTIONS), 1): 0.25, (len(QUESTIONS), 2): 1.0}  # μ = 4π; μ < π
    same(gradient(made, batch), plain_gradient(made, batch, weights))
    measured = trainer_of(made).update(batch)
    assert measured["weight_mean_negative"] == pytest.approx(0.625, abs=1e-4)
    assert measured["weight_mean"] == pytest.approx(0.75, abs=1e-4)


@pytest.mark.parametrize("claim", [None, math.nan, math.inf, -math.inf, 5.0, -1e12])
def test_a_claim_that_cannot_be_true_gives_the_smallest_weight(claim: float | None) -> None:
    made = policy()
    lying = replace(PEER, completions=tuple(replace(done, logprob=claim) for done in PEER.completions))
    careful = replace(PEER, completions=tuple(replace(done, logprob=0.0) for done in PEER.completions))
    same(gradient(made, [lying]), gradient(made, [careful]))
    assert all(value.isfinite().all() for value in gradient(made, [lying]).values())


def test_own_rollouts_are_never_tapered() -> None:
    made = policy()
    batch = [replace(r, completions=tuple(replace(done, logprob=0.0) for done in r.completions)) for r in scored(made)]
    same(gradient(made, batch), plain_gradient(made, batch))
    assert "weight_mean" not in trainer_of(made).update(batch)


def test_passages_of_a_peer_end_where_the_peer_did() -> None:
    made = policy(max_new_tokens=12)
    passages = scored_passages(made, PEER)
    assert [passage.completion_ids[-1] == made.end_id for passage in passages] == [True, True, False]
    assert [len(passage.completion_ids) <= 12 for passage in passages] == [True] * 3
    assert [passage.whole for passage in passages] == [True, True, False]
    assert all(passage.external for passage in passages)
    assert not any(passage.external for rollout in scored(made) for passage in scored_passages(made, rollout))


def test_a_completion_without_tokens_is_left_out_but_counts_in_its_group() -> None:
    made = policy()
    silent = replace(PEER, completions=(*PEER.completions[:2], Completion("", reward=0.0, finish="length")))
    passages = scored_passages(made, silent)
    assert len(passages) == 2
    assert passages[0].advantage == pytest.approx(math.sqrt(2))
    assert trainer_of(made).update([silent])["tokens_trained"] > 0


def test_groups_of_another_size_are_welcome() -> None:
    made = policy()
    batch = [*scored(made, 2), *scored(made, 5, seed=2), PEER]
    assert trainer_of(made).update(batch)["informative"] == 7


def test_uninformative_rollouts_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = policy()
    own = scored(made)
    dull = [replace(r, completions=tuple(replace(done, reward=0.01 * at) for at, done in enumerate(r.completions))) for r in own]
    same(gradient(made, [*own, *dull]), gradient(made, own))
    trainer = trainer_of(made)
    before = [parameter.clone() for parameter in made.model.parameters()]
    monkeypatch.setattr(LeanDecoder, "__call__", None)
    measured = trainer.update(dull)
    assert trainer.policy_version == 0
    assert (measured["loss"], measured["grad_norm"], measured["informative"], measured["tokens_trained"]) == (0, 0, 0, 0)
    assert all(torch.equal(*pair) for pair in zip(before, made.model.parameters(), strict=True))
    assert trainer.update([])["informative"] == 0


def test_a_peers_question_that_does_not_fit_is_left_out_and_counted() -> None:
    made = policy()
    own = scored(made)
    made.context_tokens = 300
    long = replace(PEER, question=Question("What? " * 200))
    assert trainer_of(made).update([*own, long])["too_long"] == 1
    assert trainer_of(made).update([*own, PEER])["too_long"] == 0


@pytest.mark.parametrize("token_budget", [None, 60], ids=["in one part", "in many parts"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_update_leaves_no_activations_behind(architecture: str, token_budget: int | None) -> None:
    made = policy(architecture)
    trainer, batch = trainer_of(made, token_budget=token_budget), [*scored(made), PEER]

    def living() -> int:
        trainer.update(batch)
        gc.collect()
        return sum(each.nbytes for each in gc.get_objects() if issubclass(type(each), torch.Tensor))

    living()  # makes gradients and Adam's averages
    assert living() == living()


def trained(architecture: str, token_budget: int | None) -> tuple[Policy, dict[str, float]]:
    made = policy(architecture)
    trainer = trainer_of(made, token_budget=token_budget)
    for number in range(2):
        measured = trainer.update([*scored(made, seed=number), PEER])
    return made, measured


@pytest.mark.parametrize(("architecture", "token_budget"), [("llama", None), ("llama", 200), ("qwen2", None), ("gpt2", 200)])
def test_updates_are_reproducible_to_the_bit(architecture: str, token_budget: int | None) -> None:
    (first, measured), (second, again) = (trained(architecture, token_budget) for _ in range(2))
    assert measured == again
    for left, right in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(left, right)


def test_what_is_measured() -> None:
    made = policy()
    batch = [*scored(made), PEER]
    measured = trainer_of(made).update(batch)
    assert set(measured) == {
        *("loss", "grad_norm", "entropy", "informative", "tokens_trained", "too_long"),
        *("weight_mean", "weight_mean_negative", "external_weighed", "external_discounted", "learning_rate"),
    }
    assert all(isinstance(value, float) and math.isfinite(value) for value in measured.values())
    vanishing = [place for place in (1, 2) if sequence_logprob(made, PEER, place) - (-4.0, 0.0)[place - 1] < math.log(VANISHING)]
    counted = [done for r in batch for place, done in enumerate(r.completions) if r is not PEER or place not in vanishing]
    assert measured["tokens_trained"] == sum(len(made.completion_ids(done)[0]) for done in counted)
    assert (measured["external_weighed"], measured["external_discounted"]) == (3, len(vanishing)) and vanishing
    assert 0 < measured["entropy"] < math.log(made.model.config.vocab_size)


def test_the_gradient_is_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_swarm.learning.trainer.MAX_GRAD_NORM", 1e-3)
    made = policy()
    batch, trainer = scored(made), trainer_of(made, rate=1.0)
    trainer._optimizer = torch.optim.SGD(trainer._parameters)
    before = torch.cat([p.detach().flatten() for p in made.model.parameters()])
    assert trainer.update(batch)["grad_norm"] > 1e-2, "what is reported is the norm before"
    after = torch.cat([p.detach().flatten() for p in made.model.parameters()])
    assert (after - before).norm().item() == pytest.approx(1e-3, rel=1e-2)


def test_a_gradient_that_is_not_finite_stops_before_the_weights_are_touched() -> None:
    made = policy()
    batch, trainer = scored(made), trainer_of(made)
    weight = made.model.base_model.norm.weight
    weight.register_hook(lambda grad: grad * math.nan)
    before = weight.detach().clone()
    with pytest.raises(ModelError, match="not finite"):
        trainer.update(batch)
    assert torch.equal(weight, before)
    assert trainer.policy_version == 0


def refuse(made: Policy, tokens: int, monkeypatch: pytest.MonkeyPatch, where: str) -> list[int]:
    """Let passes over more than `tokens` tokens run out of memory, on the way forward or half-way back."""
    assert isinstance(made.decoder, LeanDecoder)
    compute, refused = LeanDecoder.__call__, []

    def fail(size: int) -> None:
        refused.append(size)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    def limited(self, embedded, *rest):
        if len(embedded) > tokens and where == "forward":
            fail(len(embedded))
        hidden = compute(self, embedded, *rest)
        if len(embedded) > tokens:
            # The head's gradient is in place by then: it must not be counted twice.
            hidden.register_hook(lambda grad: fail(len(embedded)))
        return hidden

    monkeypatch.setattr(LeanDecoder, "__call__", limited)
    return refused


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("tokens", [160, 200, 300])
def test_a_batch_that_does_not_fit_is_cut_with_the_same_gradient(tokens: int, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = policy()
    batch = [*scored(made), PEER]
    whole, trainer = trainer_of(made, "guarded"), trainer_of(made, "guarded")
    expected = gradient(made, batch, whole)
    refused = refuse(made, tokens, monkeypatch, where)
    same(gradient(made, batch, trainer), expected)
    assert refused
    assert trainer.state()["authors"] == whole.state()["authors"] != {}, "what was judged twice counts once"
    refused.clear()
    same(gradient(made, batch, trainer), expected)
    assert not refused, "what did not fit once is not tried again"


def test_a_single_completion_that_does_not_fit_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    made = policy()
    batch, trainer = scored(made), trainer_of(made)
    refuse(made, 0, monkeypatch, "forward")
    with pytest.raises(ModelError, match=r"a single completion.*lower MAX_NEW_TOKENS"):
        trainer.update(batch)
    assert all(parameter.grad is None for parameter in made.model.parameters())


def test_other_failures_are_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    made = policy()
    batch, trainer = scored(made), trainer_of(made)

    def broken(*inputs):
        raise RuntimeError("a bug")

    monkeypatch.setattr(LeanDecoder, "__call__", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        trainer.update(batch)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_restored_trainer_continues_to_the_bit(architecture: str, tmp_path) -> None:
    made = policy(architecture)
    trainer = trainer_of(made)
    trainer.update([*scored(made), PEER])
    torch.save(trainer.state(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    other = policy(architecture)
    resumed = trainer_of(other)
    resumed.restore(state)
    assert resumed.policy_version == trainer.policy_version
    for seed in (5, 6):
        assert resumed.update([*scored(other, seed=seed), PEER]) == trainer.update([*scored(made, seed=seed), PEER])
    for left, right in zip(made.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(left, right)
    third = trainer_of(policy(architecture))
    third.restore(state)
    for name, parameter in trainable(third._policy.model).items():
        assert torch.equal(parameter, state["model"][name]), "restoring twice from one state gives the same"
    assert torch.equal(third.state()["optimizer"]["state"][0]["exp_avg"], state["optimizer"]["state"][0]["exp_avg"])


def test_a_restart_can_change_the_learning_rate() -> None:
    made = policy()
    trainer = trainer_of(made)
    trainer.update(scored(made))
    slower = trainer_of(policy(), rate=1e-6)
    slower.restore(trainer.state())
    assert slower.update(scored(made))["learning_rate"] == 1e-6


def test_a_step_has_its_share_of_the_learning_rate() -> None:
    moved = []
    for share in (1.0, 0.25, 0.0):
        made = policy()
        trainer = trainer_of(made, rate=1e-3)
        before = made.model.get_input_embeddings().weight.detach().clone()
        assert trainer.update(scored(made), share)["learning_rate"] == 1e-3 * share
        moved.append((made.model.get_input_embeddings().weight - before).abs().max().item())
    assert moved[0] == pytest.approx(1e-3, rel=0.01) and moved[1] == pytest.approx(moved[0] / 4, rel=0.01) and moved[2] == 0


def test_a_state_of_another_model_is_refused() -> None:
    state = trainer_of(policy("gpt2")).state()
    with pytest.raises(OtherModel, match="MODEL_NAME"):
        trainer_of(policy("llama")).restore(state)


def everything(trainer: Trainer) -> dict[str, torch.Tensor]:
    """All that a trainer is, as copies."""
    state = trainer.state()
    moments = {f"{number} {kind}": t for number, each in state["optimizer"]["state"].items() for kind, t in each.items()}
    version = {"rng": state["rng"], "version": torch.tensor(state["policy_version"])}
    return {name: tensor.clone() for name, tensor in (state["model"] | moments | version).items()}


def unchanged(trainer: Trainer, before: dict[str, torch.Tensor]) -> bool:
    after = everything(trainer)
    return after.keys() == before.keys() and all(torch.equal(tensor, before[name]) for name, tensor in after.items())


WEIGHT, MOMENT = "model.layers.0.mlp.up_proj.weight", 6
HOSTILE: dict[str, tuple[Callable[[dict], object], str]] = {
    "no state": (lambda state: state.clear(), "no trainer state"),
    "no weights": (lambda state: state.update(model=[1, 2]), "no weights by name"),
    "a weight that is a number": (lambda state: state["model"].update({WEIGHT: 1.0}), "no weights by name"),
    "a weight too few": (lambda state: state["model"].pop(WEIGHT), "trainable tensors are not the"),
    "a weight too many": (lambda state: state["model"].update(more=torch.zeros(1)), "trainable tensors are not the"),
    "another shape": (lambda state: state["model"].update({WEIGHT: torch.zeros(3)}), "trainable tensors are not the"),
    "another precision": (lambda state: state["model"].update({WEIGHT: state["model"][WEIGHT].half()}), "not the .* DTYPE"),
    "not a number": (
        lambda state: state["model"][WEIGHT].view(-1)[7].fill_(math.nan),
        "up_proj.weight has values that are not finite",
    ),
    "infinite": (lambda state: state["model"][WEIGHT].view(-1)[7].fill_(-math.inf), "not finite"),
    "absurd": (lambda state: state["model"][WEIGHT].view(-1)[7].fill_(-3e38), "too large to compute with"),
    "zeros": (lambda state: state["model"][WEIGHT].zero_(), "all values of .* are zero"),
    "no optimizer": (lambda state: state.update(optimizer=None), "not by parameter"),
    "an empty optimizer": (lambda state: state.update(optimizer={}), "not by parameter"),
    "an optimizer that never stepped": (
        lambda state: state["optimizer"].update(state={}),
        "no optimizer state of .*, which was trained",
    ),
    "a parameter that does not exist": (lambda state: state["optimizer"]["state"].update({999: {}}), "not by parameter"),
    "half of an optimizer": (lambda state: state["optimizer"]["state"].pop(MOMENT), "no optimizer state of .*, which was trained"),
    "moments of another kind": (lambda state: state["optimizer"]["state"][MOMENT].pop("exp_avg"), "not Adam's"),
    "moments of another shape": (lambda state: state["optimizer"]["state"][MOMENT].update(exp_avg=torch.zeros(2)), "another shape"),
    "a moment that is not a number": (lambda state: state["optimizer"]["state"][MOMENT]["exp_avg"].fill_(math.nan), "not finite"),
    "a negative square": (lambda state: state["optimizer"]["state"][MOMENT]["exp_avg_sq"].fill_(-1), "impossible"),
    "steps that were never done": (lambda state: state["optimizer"]["state"][MOMENT]["step"].fill_(1e9), "impossible"),
    "a random state of another size": (lambda state: state.update(rng=torch.zeros(7, dtype=torch.uint8)), "random generator"),
    "a random state of another type": (lambda state: state.update(rng=state["rng"].float()), "random generator"),
    "an impossible random state": (lambda state: state["rng"].fill_(255), "random generator is impossible"),
    "a version that is true": (lambda state: state.update(policy_version=True), "policy version"),
    "a version below zero": (lambda state: state.update(policy_version=-1), "policy version"),
    "a version beyond reason": (lambda state: state.update(policy_version=10**12), "policy version"),
    "no threads": (lambda state: state.update(threads=0), "number of threads"),
    "threads that are true": (lambda state: state.update(threads=True), "number of threads"),
    "evidence about nobody": (lambda state: state.update(authors=None), "evidence about authors"),
    "threads beyond reason": (lambda state: state.update(threads=10**6), "number of threads"),
}


@pytest.fixture(scope="module")
def once_trained() -> list[Trainer]:
    """Two trainers of one model after different updates."""
    trainers = []
    for seed in (1, 2):
        made = policy()
        trainers.append(trainer_of(made))
        trainers[-1].update(scored(made, seed=seed))
    return trainers


@pytest.mark.parametrize("harm", HOSTILE)
def test_a_state_that_cannot_be_used_is_refused_and_changes_nothing(harm: str, once_trained: list[Trainer]) -> None:
    trainer, resumed = once_trained
    state = copy.deepcopy(trainer.state())
    change, reason = HOSTILE[harm]
    change(state)
    before = everything(resumed)
    with pytest.raises(CheckpointError, match=reason) as refused:
        resumed.restore(state)
    assert "\n" not in str(refused.value)
    assert unchanged(resumed, before)


def test_a_restored_trainer_is_told_how_many_threads_made_its_state() -> None:
    told: list[int] = []
    state = trainer_of(policy()).state()
    Trainer(policy(), 1e-3, use_threads=told.append).restore(state)
    assert told == [torch.get_num_threads()] == [state["threads"]]


def test_settings_of_the_optimizer_are_not_taken_from_a_state() -> None:
    made = policy()
    trainer = trainer_of(made)
    trainer.update(scored(made))
    state = copy.deepcopy(trainer.state())
    state["optimizer"]["param_groups"] = [{"weight_decay": 1e9, "maximize": True, "betas": (math.nan, 2.0)}]
    resumed = trainer_of(policy())
    resumed.restore(state)
    batch = scored(made, seed=4)
    assert resumed.update(batch) == trainer.update(batch)


def test_a_parameter_that_was_never_reached_has_no_moments_and_needs_none() -> None:
    def build() -> Trainer:
        made = policy()
        made.model.register_parameter("idle", torch.nn.Parameter(torch.ones(3)))
        return trainer_of(made)

    trainer, resumed = build(), build()
    trainer.update(scored(trainer._policy))
    assert len(trainer.state()["optimizer"]["state"]) == len(trainer.state()["model"]) - 1
    resumed.restore(copy.deepcopy(trainer.state()))
    assert unchanged(resumed, everything(trainer))


def test_a_trainer_that_has_not_stepped_can_be_restored() -> None:
    trainer = trainer_of(policy())
    trainer.restore(trainer_of(policy()).state())
    assert trainer.policy_version == 0


def lora(made: Policy) -> Policy:
    peft = pytest.importorskip("peft")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "gate_proj"], task_type="CAUSAL_LM")
        model = peft.get_peft_model(made.model, config)
    return Policy(model, made.tokenizer, max_new_tokens=made.max_new_tokens)


def test_an_adapter_is_all_that_is_trained_and_saved() -> None:
    made = lora(policy())
    base = {name: p.clone() for name, p in made.model.named_parameters() if not p.requires_grad}
    trainer = trainer_of(made)
    assert trainer.update([*scored(made), PEER])["grad_norm"] > 0
    assert all(torch.equal(p, base[name]) for name, p in made.model.named_parameters() if not p.requires_grad)
    state = trainer.state()
    assert all("lora" in name for name in state["model"])
    other = lora(policy())
    resumed = trainer_of(other)
    resumed.restore(state)
    batch = [*scored(made, seed=9), PEER]
    assert resumed.update(batch) == trainer.update(batch)


def test_a_model_without_trainable_parameters_is_refused() -> None:
    made = policy()
    made.model.requires_grad_(False)
    with pytest.raises(ModelError, match="trainable"):
        trainer_of(made)


@pytest.mark.parametrize("architecture", ["llama", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_it_learns(architecture: str) -> None:
    """A toy reward: the share of 'e' in the text."""
    made = policy(architecture, wide=0.05, max_new_tokens=8)
    trainer, history = trainer_of(made, rate=1e-2), []
    for number in range(25):
        rollouts = []
        for question, group in zip(QUESTIONS, made.answer(QUESTIONS, 16, seed=number), strict=True):
            done = tuple(replace(d, reward=d.text.count("e") / max(1, len(d.text))) for d in group)
            rollouts.append(Rollout(question, done, "own", number))
        history.append(sum(sum(r.rewards) for r in rollouts) / sum(len(r.rewards) for r in rollouts))
        trainer.update(rollouts)
    assert history[0] < 0.1
    assert sum(history[-3:]) / 3 > 0.5


def test_it_learns_from_peers_alone() -> None:
    """A peer with another tokenizer knows the answer; this policy's own rollouts earn nothing and carry no gradient."""
    made = policy(wide=0.05, max_new_tokens=8)
    assert made.tokenizer.get_vocab() != plain_tokenizer().get_vocab()
    trainer = trainer_of(made, rate=1e-2)
    text = "<answer>42"
    before = made.greedy(QUESTIONS)
    for number in range(20):
        peer = [
            Rollout(q, (Completion(text, 1.0, "stop", 5, -3.0), Completion(f"no {number}", 0.0, "stop", 4, -2.0)), "peer", number)
            for q in QUESTIONS
        ]
        own = [replace(r, completions=tuple(replace(d, reward=0.0) for d in r.completions)) for r in scored(made, seed=number)]
        trainer.update([*own, *peer])
    assert text not in before
    assert made.greedy(QUESTIONS) == [text] * len(QUESTIONS)
