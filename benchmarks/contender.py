"""A contender is a process that does one round each time it reads a line, and answers with a line of JSON.

    python -m benchmarks.contender ours WORK          this project
    python -m benchmarks.contender trl WORK MICRO     TRL's GRPOTrainer with micro-batches of MICRO completions
    python -m benchmarks.contender genrl WORK         GenRL's GRPOLanguageTrainerModule; WORK names the model's folder

They stay in memory and take turns, so that what else the machine does meets all alike.
"""

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.work import Work, matrix_rate, operations, peak_bytes, prompts, rewards

LEARNING_RATE = 1e-5
SETS = 3  # of questions, asked in turn
ROUNDS = 10_000  # that TRL and GenRL are told to expect; they are ended before


def answer(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def turns() -> Iterator[int]:
    answer({"ready": True})
    for number, _ in enumerate(sys.stdin):
        yield number


def ours(work: Work) -> None:
    from rl_swarm.learning.models import load
    from rl_swarm.learning.policy import Policy
    from rl_swarm.learning.trainer import Trainer
    from rl_swarm.rollout import Question, Rollout

    class Bare(Policy):
        """Asks the text itself, as TRL does with a plain prompt, and never stops early."""

        def _render_prompt(self, prompt: str) -> list[int]:
            return list(self.tokenizer.encode(prompt))

    loaded = load(work.model, cpu_only=True)
    policy = Bare(loaded.model, loaded.tokenizer, max_new_tokens=work.new_tokens)
    policy._sampler = replace(policy._sampler, end_ids=frozenset())
    trainer = Trainer(policy, LEARNING_RATE)
    needed = operations(work, loaded.model)
    asked = [Question(text) for text in prompts(work, policy.tokenizer, SETS * work.questions)]
    for step in turns():
        first = step % SETS * work.questions
        questions = asked[first : first + work.questions]
        rate = matrix_rate()
        began = time.perf_counter()
        groups = list(policy.answer(questions, work.group_size, step))
        generated = time.perf_counter()
        scores = iter(rewards(work.questions * work.group_size, step))
        rollouts = [
            Rollout(question, tuple(replace(done, reward=next(scores)) for done in group), "bench", step, slot=slot)
            for slot, (question, group) in enumerate(zip(questions, groups, strict=True))
        ]
        measured = trainer.update(rollouts)
        ended = time.perf_counter()
        assert measured["tokens_trained"] == work.tokens, measured
        answer(
            {
                "seconds": ended - began,
                "generate": generated - began,
                "update": ended - generated,
                "generate_share": needed.generate / (generated - began) / rate,
                "update_share": needed.update / (ended - generated) / rate,
                "share": (needed.generate + needed.update) / (ended - began) / rate,
                "rate": rate,
                "tokens": work.tokens,
                "peak_bytes": peak_bytes(),
                "parameter_bytes": sum(parameter.nbytes for parameter in loaded.model.parameters()),
            }
        )


def trl_settings(work: Work, micro: int) -> dict[str, Any]:
    return {
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": work.questions * work.group_size // micro,
        "num_generations": work.group_size,
        "max_completion_length": work.new_tokens,
        "generation_kwargs": {"min_new_tokens": work.new_tokens},
        "learning_rate": LEARNING_RATE,
        "lr_scheduler_type": "constant",
        "beta": 0.0,
        "epsilon": 0.2,
        "epsilon_high": 0.28,
        "loss_type": "dapo",
        "temperature": 1.0,
        "gradient_checkpointing": False,
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 10_000,
        "disable_tqdm": True,
        "shuffle_dataset": False,
        "max_steps": ROUNDS,
    }


def trl(work: Work, micro: int) -> None:
    import tempfile

    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from rl_swarm.learning.models.loading import locate

    folder = locate(work.model)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    waiting, clock = turns(), {"step": 0, "began": 0.0, "generate": 0.0}

    def reward(completions: list[str], **_: Any) -> list[float]:
        return rewards(len(completions), clock["step"])

    def timed(generate: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            result = generate(*arguments, **named)
            clock["generate"] += time.perf_counter() - began
            return result

        return call

    class Turns(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            clock["step"] = next(waiting, -1)
            if clock["step"] < 0:
                sys.exit(0)
            clock["began"], clock["generate"] = time.perf_counter(), 0.0

        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds = time.perf_counter() - clock["began"]
            generate = clock["generate"]
            answer(
                {
                    "seconds": seconds,
                    "generate": generate,
                    "update": seconds - generate,
                    "tokens": work.tokens,
                    "peak_bytes": peak_bytes(),
                }
            )

    with tempfile.TemporaryDirectory() as output:
        settings = GRPOConfig(output_dir=output, **trl_settings(work, micro))
        texts = [{"prompt": text} for text in prompts(work, tokenizer, SETS * work.questions)]
        trainer = GRPOTrainer(
            model=model,
            args=settings,
            processing_class=tokenizer,
            reward_funcs=reward,
            train_dataset=Dataset.from_list(texts * 4),
            callbacks=[Turns()],
        )
        trainer._generate = timed(trainer._generate)
        trainer.train()


def load_for_genrl(folder: Path) -> tuple[Any, Any]:
    """Model and tokenizer; what GenRL's older transformers cannot read in the files of a newer one is read here."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    marks = json.loads((folder / "tokenizer_config.json").read_text())
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        padding_side="left",
        chat_template="{{ messages[-1]['content'] }}",  # the text itself, as the others are asked
        **{key: marks[key] for key in ("bos_token", "eos_token", "pad_token")},
    )
    config = AutoConfig.from_pretrained(folder)
    config.rope_theta = config.rope_parameters["rope_theta"]
    return AutoModelForCausalLM.from_pretrained(folder, config=config, torch_dtype=torch.float32), tokenizer


def genrl_trainer(work: Work, model: Any, tokenizer: Any, clock: dict[str, Any]) -> Any:
    """GenRL's own, which tells `clock` how long it generates and how many tokens it trains on."""
    from genrl.trainer.grpo_trainer import GRPOLanguageTrainerModule, GRPOTrainerConfig

    class Measured(GRPOLanguageTrainerModule):  # type: ignore[misc]
        def generate(self, *arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            result = super().generate(*arguments, **named)
            clock["generate"] = time.perf_counter() - began
            return result

        def _process_inputs(self, inputs: Any, with_template: bool = True, for_training: bool = False) -> Any:
            """GenRL trains on tokens made anew from the text, which may be more than were drawn: only as many are kept."""
            encoded = super()._process_inputs(inputs, with_template, for_training)
            if not with_template:
                for key in ("input_ids", "attention_mask"):
                    encoded[key] = encoded[key][:, -work.new_tokens :]
                clock["trained"] = int(encoded["attention_mask"].sum())
            return encoded

    trainer = Measured(
        [model],
        GRPOTrainerConfig(
            enable_gradient_checkpointing=False,
            max_new_tokens=work.new_tokens,
            num_generations=work.group_size,
            learning_rate=LEARNING_RATE,
        ),
        processing_class=tokenizer,
    )
    trainer.generation_config.min_new_tokens = work.new_tokens
    return trainer


def genrl(work: Work) -> None:
    """A round of GenRL's own game manager, alone: one agent, one stage, nothing communicated.

    GenRL's package asks for hivemind too, which nothing here imports: it is left out of the environment, not replaced. GenRL
    trains on all completions at once; gradient checkpointing, its default, is off as it is for the others.
    """
    from datasets import Dataset
    from genrl.communication.local.null_comm import NullCommunicationBackend
    from genrl.data.text_data_managers import SimpleTextDataManager
    from genrl.game import BaseGameManager
    from genrl.rewards import DefaultRewardManager, RewardFnStore, RoundRewardFnStore
    from genrl.state import GameState

    model, tokenizer = load_for_genrl(Path(work.model))
    clock: dict[str, Any] = {"step": 0, "generate": 0.0, "trained": 0}

    trainer = genrl_trainer(work, model, tokenizer, clock)
    asked = [{"question": text, "answer": ""} for text in prompts(work, tokenizer, SETS * work.questions)]
    sets = itertools.cycle(
        Dataset.from_list(asked[first : first + work.questions]) for first in range(0, len(asked), work.questions)
    )

    def reward(state: Any) -> dict[Any, dict[Any, list[list[float]]]]:
        scores = iter(rewards(work.questions * work.group_size, clock["step"]))
        return {
            agent: {item: [[next(scores) for _ in actions] for actions in nodes] for item, nodes in items.items()}
            for agent, items in state.get_stage_actions(0).items()
        }

    manager = BaseGameManager(
        max_stage=1,
        max_round=ROUNDS,
        game_state=GameState(round=0, stage=0),
        reward_manager=DefaultRewardManager(RewardFnStore(ROUNDS, [RoundRewardFnStore(1, [reward])])),
        trainer=trainer,
        data_manager=SimpleTextDataManager(None, data_generator=lambda **_: next(sets)),
        communication=NullCommunicationBackend(),
        run_mode="train",
    )
    pruners, branchers = manager.aggregate_game_state_methods()
    manager.state._init_game(manager.data_manager.get_round_data(), manager.agent_ids, pruners, branchers)
    for step in turns():
        clock["step"] = step
        began = time.perf_counter()
        manager.run_game_round()
        seconds = time.perf_counter() - began
        answer(
            {
                "seconds": seconds,
                "generate": clock["generate"],
                "update": seconds - clock["generate"],
                "tokens": work.tokens,
                "peak_bytes": peak_bytes(),
                "tokens_trained": clock["trained"],
            }
        )


def main() -> None:
    name, work = sys.argv[1], Work(**json.loads(sys.argv[2]))
    if name == "ours":
        ours(work)
    elif name == "genrl":
        genrl(work)
    else:
        trl(work, int(sys.argv[3]))


if __name__ == "__main__":
    main()
