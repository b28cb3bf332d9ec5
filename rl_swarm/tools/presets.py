"""Swarms on one GPU by name: how many workers, and their settings. The environment and flags of a user win over them.

`gpt2-5` and `gpt2-8` are the reference documents' 5 and 8 nodes with GPT-2 on one A100, where the first count has a coordinator in
it; `qwen-8` is the paper's swarm. Workers read all that the others write, which teaches most. Weights are float32 where all of them
are trained: steps of 1e-5 vanish in bfloat16, whose neighbours of 0.02 are 1e-4 apart.
"""

_GPT2 = {"MODEL_NAME": "openai-community/gpt2", "DTYPE": "float32", "MAX_ROUNDS": "2000"}
_QWEN = {"MODEL_NAME": "Gensyn/Qwen2.5-0.5B-Instruct", "MAX_ROUNDS": "2000"}
_FOUR_WRITE_2 = {"NUM_TRAIN_SAMPLES": "2", "NUM_TRANSPLANT_TREES": "6", "NUM_GENERATIONS": "4"}
_FOUR_WRITE_4 = {"NUM_TRAIN_SAMPLES": "4", "NUM_TRANSPLANT_TREES": "12", "NUM_GENERATIONS": "8"}
_EIGHT_WRITE_4 = {"NUM_TRAIN_SAMPLES": "4", "NUM_TRANSPLANT_TREES": "28", "NUM_GENERATIONS": "8"}

GPU_PRESETS: dict[str, tuple[int, dict[str, str]]] = {
    "gpt2-5": (4, _GPT2 | _FOUR_WRITE_2),
    "gpt2-8": (8, _GPT2 | _EIGHT_WRITE_4 | {"EVAL_INTERVAL": "0"}),  # the batches of an evaluation would be the largest
    "qwen-4": (4, _QWEN | _FOUR_WRITE_4 | {"DTYPE": "float32"}),
    "qwen-8": (8, _QWEN | _EIGHT_WRITE_4 | {"DTYPE": "bfloat16", "LORA_RANK": "32", "LEARNING_RATE": "1e-4"}),
}
