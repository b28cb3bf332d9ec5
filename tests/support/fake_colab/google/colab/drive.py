"""A Drive at a mount point: a FUSE mount that refuses to rename, as DriveFS in effect does (needs Debian's bindfs)."""

import os
import subprocess
from pathlib import Path

_points: list[Path] = []


def mount(mountpoint: str, force_remount: bool = False, timeout_ms: int = 120_000, readonly: bool = False) -> None:
    point, source = Path(mountpoint), Path(os.environ["FAKE_DRIVE"])
    if point.is_mount() and not force_remount:
        print(f"Drive already mounted at {point}; to attempt to forcibly remount, call drive.mount with force_remount=True.")
        return
    point.mkdir(parents=True, exist_ok=True)
    if any(point.iterdir()):
        raise ValueError("Mountpoint must not already contain files")
    (source / "MyDrive").mkdir(parents=True, exist_ok=True)
    subprocess.run(["bindfs", "--no-allow-other", "--rename-deny", str(source), str(point)], check=True)
    _points.append(point)
    print(f"Mounted at {point}")


def flush_and_unmount(timeout_ms: int = 86_400_000) -> None:
    if not _points:
        print("Drive not mounted, so nothing to flush and unmount.")
        return
    subprocess.run(["umount", str(_points.pop())], check=True)
