import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_swarm.errors import BadDocument, Incomplete
from rl_swarm.rollout import BUNDLE_BYTES, LONGEST_TEXT, Bundle, Completion, Question, Rollout, decode, encode, is_plain

numbers = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | numbers | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
completions = st.builds(
    Completion,
    text=st.text(max_size=50),
    reward=numbers,
    finish=st.sampled_from(["stop", "length"]),
    tokens=st.integers(0, 1000),
    logprob=st.none() | numbers,
)


@st.composite
def bundles(draw: Callable[..., Any]) -> Bundle:
    node_id, round_number = draw(st.from_regex(r"[a-z0-9_-]{1,10}", fullmatch=True)), draw(st.integers(0, 10**6))
    rollouts = []
    for slot in draw(st.lists(st.integers(0, 999), unique=True, max_size=3)):
        question = Question(
            prompt=draw(st.text(max_size=50)),
            answer=draw(st.none() | st.text(max_size=20)),
            task=draw(st.text(min_size=1, max_size=20)),
            config=draw(st.dictionaries(st.text(max_size=5), json_values, max_size=3)),
            seed=draw(st.integers(0, 2**52)),
            index=draw(st.integers(0, 2**52)),
        )
        group = tuple(draw(st.lists(completions, min_size=1, max_size=4)))
        rollouts.append(Rollout(question, group, node_id, round_number, 0, slot))
    return Bundle("trial", node_id, round_number, tuple(rollouts), 0, draw(numbers), "some/model", 7, "library 1.0")


@given(bundles())
def test_any_bundle_survives_the_round_trip(bundle: Bundle) -> None:
    assert decode(encode(bundle)) == bundle


def example() -> bytes:
    question = Question("2 + 2 = ?", "4", "sum", {"digits": 1}, 7, 3)
    group = (Completion("<answer>4</answer>", 1.0, "stop", 5, -3.25), Completion("é 🙂", 0.0))
    return encode(Bundle("trial", "w1", 5, (Rollout(question, group, "w1", 5),), timestamp=1.5))


def test_truncation_at_every_byte_is_rejected() -> None:
    data = example()
    for length in range(len(data)):
        with pytest.raises(Incomplete):
            decode(data[:length])
        assert not is_plain(data[:length])


def test_every_flipped_byte_is_rejected() -> None:
    data = example()
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            with pytest.raises(BadDocument):
                decode(bytes(damaged))


@settings(max_examples=300)
@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_foreign_bytes_raise_only_our_error(data: bytes) -> None:
    assert not is_plain(data)
    with pytest.raises(BadDocument):
        decode(data)


def test_the_file_has_the_documented_shape() -> None:
    document = json.loads(example())
    assert {"peer_id", "round", "stage", "timestamp", "rollouts"} <= document.keys()
    assert {"prompt", "response", "reward"} <= document["rollouts"]["0"][0].keys()
    assert document["questions"]["0"] == {"task": "sum", "config": {"digits": 1}, "seed": 7, "index": 3, "answer": "4"}


def test_the_plain_documented_form_is_recognised() -> None:
    plain = {
        "peer_id": "coordinator_0",
        "round": 5,
        "stage": 0,
        "timestamp": 1696800000.0,
        "rollouts": {"0": [{"prompt": "p", "response": "r", "reward": 0.85}], "1": []},
    }
    assert is_plain(json.dumps(plain, indent=2).encode())
    assert not is_plain(json.dumps(plain | {"schema": 1}).encode()), "a damaged bundle of ours"
    with pytest.raises(Incomplete):
        decode(json.dumps(plain).encode())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda document: document.update(schema=2), "schema"),
        (lambda document: document.update(round=-1), "malformed"),
        (lambda document: document.update(round="5"), "malformed"),
        (lambda document: document["rollouts"].update({"1": []}), "malformed"),
        (lambda document: document["rollouts"]["0"].clear(), "malformed"),
        (lambda document: document["rollouts"]["0"][0].update(prompt="another"), "malformed"),
        (lambda document: document["rollouts"]["0"][0].update(response="x" * (LONGEST_TEXT + 1)), "malformed"),
        (lambda document: document["rollouts"].update({"../0": document["rollouts"].pop("0")}), "malformed"),
    ],
)
def test_a_well_sealed_document_with_wrong_content_is_refused(change: Callable[[Any], None], reason: str) -> None:
    import hashlib

    document = json.loads(example())
    del document["sha256"]
    change(document)
    body = json.dumps(document).encode()
    sealed = body[:-1] + b',"sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'"}\n'
    with pytest.raises(BadDocument) as caught:
        decode(sealed)
    assert caught.value.reason == reason


def test_a_giant_file_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(BadDocument) as caught:
        decode(b"[" * (BUNDLE_BYTES + 1))
    assert caught.value.reason == "too_large"


def test_deep_nesting_is_refused() -> None:
    assert not is_plain(b"[" * 100_000 + b"]" * 100_000)


def test_only_checkable_questions_are_published() -> None:
    rollout = Rollout(Question("p"), (Completion("a"), Completion("b")), "w1", 0)
    with pytest.raises(ValueError, match="no task"):
        encode(Bundle("trial", "w1", 0, (rollout,)))
