"""Draw, regenerate and score questions: reasoning-gym's tasks and your own.

    spec.py        the TASKS setting: presets, grammar, canonical text; light
    questions.py   Tasks: a node's stream, the held-out set, verifying peers
    bench.py       make one question, judge one answer, in this process
    gates.py       which answers a verifier that executes them may be given
    helper.py      the same bench in another process, with a deadline
    levels.py      a task's difficulty levels

Importing this package is cheap: reasoning_gym is loaded when a Tasks is made.
"""

from rl_swarm.tasks.questions import HELD_OUT_PER_TASK, Tasks, parsed_answer
from rl_swarm.tasks.spec import PRESETS, TaskSpec, canonical, parse_tasks, tasks_of, tasks_version

__all__ = [
    "HELD_OUT_PER_TASK",
    "PRESETS",
    "TaskSpec",
    "Tasks",
    "canonical",
    "parse_tasks",
    "parsed_answer",
    "tasks_of",
    "tasks_version",
]
