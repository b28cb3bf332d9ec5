"""Files for the user's browser."""

import os
import shutil


def download(filename: str) -> None:
    shutil.copy(filename, os.environ["FAKE_DOWNLOADS"])
