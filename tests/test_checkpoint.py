"""Checkpoints: what is saved is what is restored, and nothing broken is ever taken for one."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_swarm.checkpoint import Checkpoints, _write
from rl_swarm.errors import CheckpointError
from rl_swarm.trainer import Trainer, TrainerSettings
from tests.test_trainer import PEER, scored
from tests.tiny_models import policy


def save(checkpoints: Checkpoints, number: int) -> Path:
    return checkpoints.save(number, {"cursor": number, "used": ["a/1/0/0"]}, {"weights": torch.full((1000,), float(number))})


def restored(folder: Path, **options: Any) -> tuple[int | None, list[str]]:
    """The round that a fresh start finds, checked against its content, and what it skipped."""
    checkpoints = Checkpoints(folder, **options)
    found = checkpoints.restore()
    if found is None:
        return None, checkpoints.skipped
    number, node, trainer = found
    assert node == {"cursor": number, "used": ["a/1/0/0"]}
    assert torch.equal(trainer["weights"], torch.full((1000,), float(number)))
    return number, checkpoints.skipped


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_newest_is_restored_and_the_last_two_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "on demand"
    assert restored(folder) == (None, [])
    for number in (8, 9, 10, 100):
        assert save(Checkpoints(folder), number) == folder / f"round_{number:06d}.pt"
    assert names(folder) == ["round_000010.pt", "round_000100.pt"]
    assert restored(folder) == (100, [])


def test_more_can_be_kept(tmp_path: Path) -> None:
    for number in range(5):
        save(Checkpoints(tmp_path, keep=3), number)
    assert names(tmp_path) == [f"round_{number:06d}.pt" for number in (2, 3, 4)]
    with pytest.raises(ValueError, match="keep"):
        Checkpoints(tmp_path, keep=0)


def test_a_round_saved_again_replaces_the_first(tmp_path: Path) -> None:
    save(Checkpoints(tmp_path), 1)
    assert Checkpoints(tmp_path).save(1, {"cursor": 2}, {}) == tmp_path / "round_000001.pt"
    assert Checkpoints(tmp_path).restore() == (1, {"cursor": 2}, {})


def test_the_file_is_a_plain_torch_file(tmp_path: Path) -> None:
    document = torch.load(save(Checkpoints(tmp_path), 4), weights_only=True)
    assert (document["schema"], document["round"], document["node"]["cursor"]) == (1, 4, 4)


BREAKAGES = {
    "empty": lambda data: b"",
    "a few bytes": lambda data: data[:20],
    "half": lambda data: data[: len(data) // 2],
    "without its last byte": lambda data: data[:-1],
    "without its checksum": lambda data: data[:-71],
    "a flipped bit in a tensor": lambda data: (
        data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]
    ),
    "a flipped bit in the checksum": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "zeros": lambda data: bytes(len(data)),
    "more after the end": lambda data: data + b"x",
}


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_a_broken_file_falls_back_to_the_one_before(breakage: str, tmp_path: Path) -> None:
    for number in (1, 2):
        path = save(Checkpoints(tmp_path), number)
    path.write_bytes(BREAKAGES[breakage](path.read_bytes()))
    number, skipped = restored(tmp_path)
    assert number == 1
    assert len(skipped) == 1
    assert skipped[0].startswith("round_000002.pt: ")
    assert restored(tmp_path) == (1, []), "it was set aside"
    for number in (3, 4):
        save(Checkpoints(tmp_path), number)
    assert names(tmp_path) == ["round_000002.unusable", "round_000003.pt", "round_000004.pt"]


def test_a_missing_file_falls_back_to_the_one_before(tmp_path: Path) -> None:
    save(Checkpoints(tmp_path), 1)
    save(Checkpoints(tmp_path), 2).unlink()
    assert restored(tmp_path) == (1, [])


def test_a_file_that_vanishes_or_cannot_be_read_is_skipped_and_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(Checkpoints(tmp_path), 1)
    ghost = tmp_path / "round_000002.pt"
    ghost.symlink_to(tmp_path / "nowhere")
    number, skipped = restored(tmp_path)
    assert (number, skipped) == (1, ["round_000002.pt: cannot be read (No such file or directory)"])
    assert ghost.is_symlink()


def test_all_broken_is_none_and_says_so(tmp_path: Path) -> None:
    for number in (1, 2):
        save(Checkpoints(tmp_path), number).write_bytes(b"")
    number, skipped = restored(tmp_path)
    assert (number, len(skipped)) == (None, 2)


def test_a_write_that_was_cut_short_is_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the process is killed between writing and renaming."""
    save(Checkpoints(tmp_path), 1)

    def killed(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            save(Checkpoints(tmp_path), 2)
    assert names(tmp_path) == ["round_000001.pt", "round_000002.partial"]
    assert restored(tmp_path) == (1, [])
    save(Checkpoints(tmp_path), 3)
    assert names(tmp_path) == ["round_000001.pt", "round_000003.pt"]


def test_a_full_disk_costs_the_checkpoint_and_not_the_ones_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(Checkpoints(tmp_path), 1)

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for place in ("rl_swarm.checkpoint._Hashing._put", "os.fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(place, full)
            with pytest.raises(CheckpointError, match=r"round 2.*No space left"):
                save(Checkpoints(tmp_path), 2)
    assert names(tmp_path) == ["round_000001.pt"]


def test_a_disk_that_returns_something_else_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_swarm.checkpoint._verify", lambda path: "another checksum")
    with pytest.raises(CheckpointError, match="does not read back"):
        save(Checkpoints(tmp_path), 1)
    assert names(tmp_path) == []


def test_what_could_not_be_restored_is_refused_when_saving(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="round 1"):
        Checkpoints(tmp_path).save(1, {"where": Path("/")}, {})
    assert names(tmp_path) == []


def test_nothing_is_executed_on_restoring(tmp_path: Path) -> None:
    """Not even with a valid checksum, which anybody who can write to a store can make."""

    class Hostile:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "owned"),)

    with open(tmp_path / "round_000001.pt", "wb") as file:
        _write({"schema": 1, "round": 1, "node": Hostile(), "trainer": {}}, file)
    number, skipped = restored(tmp_path)
    assert number is None
    assert "torch cannot load it" in skipped[0]
    assert not (tmp_path / "owned").exists()


def test_another_schema_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(Checkpoints(tmp_path), 1)
    monkeypatch.setattr("rl_swarm.checkpoint.SCHEMA", 2)
    assert restored(tmp_path) == (None, ["round_000001.pt: it is not a checkpoint of this version"])
    with open(tmp_path / "round_000002.pt", "wb") as file:
        _write({"schema": 2, "round": 2}, file)
    assert restored(tmp_path) == (None, ["round_000002.pt: it is not a checkpoint of this version"])


def test_a_verified_file_is_handed_to_the_store(tmp_path: Path) -> None:
    handed = []
    checkpoints = Checkpoints(tmp_path, upload=lambda number, path: handed.append((number, path, path.read_bytes())))
    path = save(checkpoints, 5)
    assert handed == [(5, path, path.read_bytes())]


def test_the_store_is_asked_when_nothing_on_the_disk_is_usable(tmp_path: Path) -> None:
    stored = {number: save(Checkpoints(tmp_path / "elsewhere"), number).read_bytes() for number in (1, 2, 3)}
    stored[3] = stored[3][:-5]
    here = tmp_path / "here"

    def fetch(folder: Path) -> None:
        for number in (2, 3):
            (folder / Checkpoints.name(number)).write_bytes(stored[number])

    number, skipped = restored(here, fetch=fetch)
    assert (number, len(skipped)) == (2, 1)
    assert skipped[0].startswith("round_000003.pt: half-written")
    assert restored(here, fetch=lambda folder: pytest.fail("the disk has one")) == (2, [])
    (here / Checkpoints.name(2)).write_bytes(b"")
    assert restored(here, fetch=fetch)[0] == 2, "a broken one on the disk is replaced from the store"
    assert restored(tmp_path / "new", fetch=lambda folder: None) == (None, [])


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gpt2"])
def test_a_node_that_resumes_goes_on_to_the_bit(architecture: str, tmp_path: Path) -> None:
    settings = TrainerSettings(learning_rate=1e-3)
    made = policy(architecture)
    trainer = Trainer(made, settings)
    for number in range(2):
        trainer.update([*scored(made, seed=number), PEER])
    Checkpoints(tmp_path).save(2, {}, trainer.state())
    trainer.update([*scored(made, seed=2), PEER])
    resumed = policy(architecture, seed=99)
    again = Trainer(resumed, settings)
    number, _, state = Checkpoints(tmp_path).restore()
    again.restore(state)
    assert (number, again.policy_version) == (2, 2)
    again.update([*scored(resumed, seed=2), PEER])
    for left, right in zip(made.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(left, right)
    moments = [t.state()["optimizer"]["state"][0] for t in (trainer, again)]
    assert all(torch.equal(moments[0][name], moments[1][name]) for name in ("step", "exp_avg", "exp_avg_sq"))
