import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_swarm.cli import main
from rl_swarm.config import SETTINGS, Setting, describe, load, shared_settings
from rl_swarm.errors import ConfigError


def test_defaults_follow_the_design() -> None:
    config = load({})
    assert (config.own_count, config.external_count, config.group_size, config.max_rounds) == (8, 0, 8, 2000)
    assert (config.tasks, config.max_new_tokens, config.learning_rate) == ("paper", 256, 1e-5)
    assert (config.window, config.keep_rounds, config.round_interval, config.round_advance) == (3, 10, 60.0, "hybrid")


def test_the_command_line_wins_over_the_environment_and_that_over_the_experiment() -> None:
    shared = {"NUM_TRAIN_SAMPLES": "2", "NUM_GENERATIONS": "3", "MAX_ROUNDS": "4"}
    config = load({"NUM_TRAIN_SAMPLES": "5", "NUM_GENERATIONS": "6"}, {"own_count": "7", "group_size": None}, shared)
    assert (config.own_count, config.group_size, config.max_rounds) == (7, 6, 4)
    assert [config.sources[name] for name in ("own_count", "group_size", "max_rounds")] == [
        "command line",
        "environment",
        "experiment",
    ]


def test_nano_and_test_mode_are_defaults_that_explicit_values_replace() -> None:
    config = load({"MODEL_NAME": "nano", "TEST_MODE": "True", "MAX_NEW_TOKENS": "40", "NUM_GENERATIONS": "6"})
    assert (config.tasks, config.max_new_tokens, config.learning_rate) == ("easy", 40, 2e-4)
    assert (config.max_rounds, config.own_count, config.group_size) == (3, 4, 6)


@pytest.mark.parametrize("word", ["true", "TRUE", "1", "Yes", "on"])
def test_booleans_in_any_case(word: str) -> None:
    assert load({"CPU_ONLY": word}).cpu_only


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("NODE_ROLE", "boss", "worker or coordinator"),
        ("NODE_ID", "../x", "letters, digits"),
        ("NODE_ID", "a\nb", "letters, digits"),
        ("NODE_ID", "a\n", "letters, digits"),
        ("NODE_ID", ".hidden", "not starting with a dot"),
        ("NODE_ID", "a" * 65, "1 to 64"),
        ("NODE_ID", "node.3", "dot and digits"),
        ("EXPERIMENT_NAME", "a/b", "letters, digits"),
        ("NUM_GENERATIONS", "1", "at least 2, got '1': a single completion has nothing to be compared with"),
        ("SEED", "abc", "whole number"),
        ("NUM_TRAIN_SAMPLES", "-1", "at least 1"),
        ("LEARNING_RATE", "nan", "finite"),
        ("LEARNING_RATE", "inf", "finite"),
        ("TOP_P", "1.5", "at most 1"),
        ("TEMPERATURE", "0", "above 0"),
        ("COORDINATOR_ROUND_INTERVAL", "-3", "above 0"),
        ("ROLLOUT_CLEANUP_ENABLED", "maybe", "neither true nor false"),
        ("MAX_STAGES", "2", "must be at most 1"),
        ("MODEL_NAME", " ", "must not be empty"),
        ("ROLLOUT_COMPRESSION", "zip", "use none"),
        ("NUM_TRAIN_SAMPLES", "1000000000", "at most 1,024"),
        ("NUM_TRANSPLANT_TREES", "4097", "at most 4,096"),
        ("MAX_ROUNDS", "1000001", "at most 1,000,000"),
        ("MAX_NEW_TOKENS", "99999999999999999999999", "at most 1,000,000"),
        ("ROLLOUT_WINDOW_ROUNDS", "1001", "at most 1,000"),
        ("ROLLOUT_FETCH_MAX_PEERS", "10001", "at most 10,000"),
        ("COORDINATOR_ROUND_INTERVAL", "1e300", "at most 1,000,000"),
        ("GDRIVE_PATH", "~nouser/x", "write the whole path, from / on"),
    ],
)
def test_a_wrong_value_is_one_line_with_variable_value_and_remedy(variable: str, value: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load({variable: value})
    line = str(caught.value)
    assert line.startswith(variable) and repr(value) in line and says in line and "\n" not in line


def test_every_number_has_an_upper_bound() -> None:
    def is_number(setting: Setting) -> bool:
        try:
            return not isinstance(setting.parse("1"), bool | str)
        except ValueError:
            return False

    numbers = [setting.variable for setting in SETTINGS.values() if is_number(setting)]
    assert len(numbers) >= 19
    for variable in numbers:
        for value in ("9" * 25, "1e300") if variable != "MAX_STAGES" else ("9" * 25,):
            with pytest.raises(ConfigError, match="must be"):
                load({variable: value})


def test_completions_of_a_round_are_bounded_together() -> None:
    assert load({"NUM_TRAIN_SAMPLES": "256", "NUM_GENERATIONS": "256"}).own_count == 256
    with pytest.raises(ConfigError, match=r"NUM_TRAIN_SAMPLES times NUM_GENERATIONS must be at most 65,536, got 257 times 256: "):
        load({"NUM_TRAIN_SAMPLES": "257", "NUM_GENERATIONS": "256"})


def test_cleaning_up_leaves_the_window_and_says_so() -> None:
    """The documents' preset with few resources keeps 3 rounds, as many as the default window reads."""
    documented = {"ROLLOUT_CLEANUP_ENABLED": "true", "ROLLOUT_KEEP_LAST_N_ROUNDS": "3", "ROLLOUT_PUBLISH_FREQUENCY": "round"}
    [line] = load(documented).warnings
    assert line.startswith("ROLLOUT_KEEP_LAST_N_ROUNDS is 3, and 4 rounds are kept: nodes read 3 rounds (ROLLOUT_WINDOW_ROUNDS)")
    assert load(documented).least_kept == 4
    assert not load(documented | {"ROLLOUT_KEEP_LAST_N_ROUNDS": "4"}).warnings
    assert not load(documented | {"ROLLOUT_CLEANUP_ENABLED": "false"}).warnings
    wide = {"ROLLOUT_CLEANUP_ENABLED": "true", "ROLLOUT_WINDOW_ROUNDS": "20"}
    assert len(load(wide).warnings) == 1 and not load(wide | {"ROLLOUT_KEEP_MB": "5"}).warnings, "there the default is no limit"


def test_a_near_miss_is_a_warning_with_the_real_name() -> None:
    config = load({"NUM_GENERATION": "4", "PATH": "/bin", "NODE_VERSION": "20", "LC_ALL": "C"})
    assert len(config.warnings) == 1
    assert "NUM_GENERATION is not" in config.warnings[0] and "NUM_GENERATIONS?" in config.warnings[0]


def test_old_names_are_answered_once() -> None:
    old = ("GENSYN_RESET_CONFIG", "CONNECT_TO_TESTNET", "SWARM_CONTRACT", "PRG_CONTRACT", "PRG_GAME")
    lines = load(dict.fromkeys((*old, "fetch_max_peers", "fetch_timeout_seconds", "cache_rollouts"), "1")).warnings
    assert [line.partition(" has no effect: ")[0] for line in lines[:5]] == list(old) and len(lines) == 8
    assert [line.rpartition(": ")[2] for line in lines[5:]] == [
        "set ROLLOUT_FETCH_MAX_PEERS instead",
        "set ROLLOUT_FETCH_TIMEOUT_SECONDS instead",
        "set ROLLOUT_FETCH_CACHE instead",
    ]


def test_identity_path_is_an_older_name_of_swarm_identity() -> None:
    config = load({"IDENTITY_PATH": "old.pem"})
    assert (config.identity, config.sources["identity"], config.warnings) == ("old.pem", "environment", ())
    assert load({"IDENTITY_PATH": "old.pem", "SWARM_IDENTITY": "new.pem"}).identity == "new.pem"


def test_hf_token_pushes_nothing() -> None:
    assert load({"HF_TOKEN": "hf_x"}).hub_token is None and load({"HF_TOKEN": "hf_x"}).warnings == ()


def test_secrets_are_neither_printed_nor_shared() -> None:
    config = load({"HUGGINGFACE_ACCESS_TOKEN": "hf_verysecret", "MODEL_NAME": "nano"})
    assert "hf_verysecret" not in str(describe(config)) + str(shared_settings(config))
    assert "HUGGINGFACE_ACCESS_TOKEN" not in shared_settings(config)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from([item.variable for item in SETTINGS.values()]), st.text(max_size=20)))
def test_any_text_gives_a_config_or_one_line(environment: dict[str, str]) -> None:
    try:
        config = load(environment)
    except ConfigError as error:
        assert "\n" not in str(error)
    else:
        assert load({}, {}, shared_settings(config)).own_count == config.own_count


CLI_ERRORS = [
    ({"NODE_ROLE": "boss"}, "NODE_ROLE"),
    ({"NODE_ID": "../x"}, "NODE_ID"),
    ({"NODE_ID": "a\nb"}, "NODE_ID"),
    ({"NUM_GENERATIONS": "1"}, "NUM_GENERATIONS"),
    ({"SEED": "abc"}, "SEED"),
    ({"NUM_TRAIN_SAMPLES": "-2"}, "NUM_TRAIN_SAMPLES"),
    ({"LEARNING_RATE": "nan"}, "LEARNING_RATE"),
    ({"ROLLOUT_CLEANUP_ENABLED": "maybe"}, "ROLLOUT_CLEANUP_ENABLED"),
    ({"MAX_STAGES": "2"}, "MAX_STAGES"),
    ({"GDRIVE_PATH": None}, "GDRIVE_PATH is not set"),
    ({"GDRIVE_PATH": "{file}"}, "must be a folder"),
    ({"GDRIVE_PATH": "{missing}/x"}, "does not exist"),
    ({"GDRIVE_PATH": "/proc/rl-swarm"}, "not writable"),
]


@pytest.mark.parametrize(("settings", "says"), CLI_ERRORS, ids=[says for _, says in CLI_ERRORS])
def test_the_program_ends_with_code_2_and_one_line(
    settings: dict[str, str | None],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text("")
    environment: dict[str, str | None] = {"GDRIVE_PATH": str(tmp_path / "store"), "EXPERIMENT_NAME": "e", "HOME": str(tmp_path)}
    environment |= settings
    given = {k: v.format(file=tmp_path / "file", missing=tmp_path / "no") for k, v in environment.items() if v is not None}
    monkeypatch.setattr(os, "environ", given)
    with pytest.raises(SystemExit) as ended:
        main(["coordinate"])
    out, line = capsys.readouterr()
    assert ended.value.code == 2, line
    assert says in line and line.count("\n") == 1 and out == ""


def test_settings_of_the_experiments_model_are_not_taken_for_another_one() -> None:
    shared = {"MODEL_NAME": "nano", "LEARNING_RATE": "0.002", "MAX_NEW_TOKENS": "16"}
    for environment, rate, tokens in (
        ({}, 0.002, 16),
        ({"MODEL_NAME": "nano"}, 0.002, 16),
        ({"MODEL_NAME": "nano", "LEARNING_RATE": "0.1"}, 0.1, 16),
        ({"MODEL_NAME": "Qwen/Qwen3-0.6B"}, 1e-5, 256),
    ):
        config = load(environment, {}, shared)
        assert (config.learning_rate, config.max_new_tokens) == (rate, tokens)
    folder = load({"MODEL_NAME": "/models/mine/"}, {}, {"MODEL_NAME": "./mine", "MAX_NEW_TOKENS": "16"})
    assert folder.max_new_tokens == 16, "an experiment knows only the last part of a folder's name"
