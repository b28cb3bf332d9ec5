"""Draw, regenerate and score questions: reasoning-gym's tasks and your own.

    spec.py        the TASKS setting: presets, grammar, canonical text; light
    questions.py   Tasks: a node's stream, the held-out set, verifying peers
    helper.py      the node's end of a helper process: deadlines, restarts, sharing
    serving.py     the helper's end: memory limit, silence, one line in, lines out
    bench.py       make one question, judge one answer; runs inside the helper
    gates.py       which answers a verifier may be given
    levels.py      a task's difficulty levels
    styles.py      read an answer in any form, for people and for accuracy

Importing this package is cheap, and a node never imports reasoning_gym: its helper does.
"""

from rl_swarm.tasks.helper import try_loading, warm_up
from rl_swarm.tasks.questions import HELD_OUT, PASS, Tasks, form_bonus, parsed_answer
from rl_swarm.tasks.spec import (
    NOT_INSTALLED,
    TASK_PRESETS,
    TaskSpec,
    canonical,
    named,
    nearest,
    parse_tasks,
    tasks_of,
    tasks_version,
)

__all__ = [
    "HELD_OUT",
    "NOT_INSTALLED",
    "PASS",
    "TASK_PRESETS",
    "TaskSpec",
    "Tasks",
    "canonical",
    "form_bonus",
    "named",
    "nearest",
    "parse_tasks",
    "parsed_answer",
    "tasks_of",
    "tasks_version",
    "try_loading",
    "warm_up",
]
