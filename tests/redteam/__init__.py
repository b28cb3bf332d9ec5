"""The red team: a hostile peer who can write to the shared folder, against real `rl-swarm` processes.

`attacks.py` has the attacks, `arena.py` the processes and what around them must not change, `syscalls.py` the check that nothing
below the store is opened without the guard. Stores are a plain folder, a bindfs mount and a folder of two Unix users
(`conftest.py`); the last two, and whatever takes more than a few seconds, are marked slow.

Where each of the twenty attacks is tried, or why it needs no process here:

    1  test_experiment.py    code named by experiment.json
    2  test_answers.py       a formula with 58 names
    3  test_links.py         symbolic links
    4  test_experiment.py    names and numbers in experiment.json
    5  test_checkpoints.py   planted checkpoints
    6  test_documents.py     a document that cannot be put
    7  test_users.py         two Unix users
    8  test_answers.py       many slow completions in one rollout
    9  test_documents.py     an empty folder of rewards far ahead
    10 test_links.py         mounts behind links and strange letters
    11 test_documents.py     pipes, folders and files in place of journals
    12 test_checkpoints.py   duplicates as a Drive names them
    13 test_answers.py       escape codes in a verifier's output
    14 test_documents.py, test_users.py, test_nodes.py
    15 test_nodes.py         tracebacks; the chat template and an old transformers are left to the tests of their modules
    16 the spool under its own lock: tests/swarm/test_publisher.py
    17 weights of external completions: tests/learning/test_corrections.py, tests/learning/test_trainer.py
    18 test_nodes.py         a mount that hangs
    19 merging of logs: tests/node/test_journal.py
    20 patience of the launcher, which a process would show only in minutes: tests/tools/test_launch.py
"""
