"""RL Swarm: people who each own a little compute post-train language models together.

Every node trains its own model and shares decoded rollouts as text (Swarm sAmpling Policy Optimization, arXiv:2509.08721).
"""

__version__ = "0.1.0"
