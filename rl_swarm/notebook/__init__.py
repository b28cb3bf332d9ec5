"""The functions that the cells of our notebooks call, for Colab and for any other Jupyter.

from rl_swarm import notebook

notebook.configure({"GDRIVE_PATH": notebook.shared_folder("/content/drive/MyDrive/rl-swarm", "rl-swarm-data"), ...})
notebook.run_shown("swarm", "--workers", "4")
notebook.show_report()
"""

from rl_swarm.notebook.colab import download, flush, hardware, in_colab, shared_folder, use_secret
from rl_swarm.notebook.commands import CommandFailed, configure, run, run_shown, run_with_live_output
from rl_swarm.notebook.looking import compare, records, show_curves, show_picture, show_report, watch

__all__ = [
    "CommandFailed",
    "compare",
    "configure",
    "download",
    "flush",
    "hardware",
    "in_colab",
    "records",
    "run",
    "run_shown",
    "run_with_live_output",
    "shared_folder",
    "show_curves",
    "show_picture",
    "show_report",
    "use_secret",
    "watch",
]
