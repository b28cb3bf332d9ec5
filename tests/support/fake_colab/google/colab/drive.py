"""A Drive at a mount point, with two habits of DriveFS: no rename, and no upload before a flush (needs Debian's bindfs).

Files lie on the runtime's disk, in FAKE_RUNTIME, until `flush_and_unmount` copies them to FAKE_DRIVE, which every runtime sees.
"""

import os
import shutil
import subprocess
from pathlib import Path


def mount(mountpoint: str, force_remount: bool = False, timeout_ms: int = 120_000, readonly: bool = False) -> None:
    point, (drive, disk) = Path(mountpoint), _places()
    if point.is_mount() and not force_remount:
        print(f"Drive already mounted at {point}; to attempt to forcibly remount, call drive.mount with force_remount=True.")
        return
    point.mkdir(parents=True, exist_ok=True)
    if any(point.iterdir()):
        raise ValueError("Mountpoint must not already contain files")
    (drive / "MyDrive").mkdir(parents=True, exist_ok=True)
    shutil.copytree(drive, disk, dirs_exist_ok=True)
    subprocess.run(["bindfs", "--no-allow-other", "--rename-deny", str(disk), str(point)], check=True)
    print(f"Mounted at {point}")


def flush_and_unmount(timeout_ms: int = 86_400_000) -> None:
    drive, disk = _places()
    mounts = [line.split()[:2] for line in Path("/proc/mounts").read_text().splitlines()]
    points = [point for source, point in mounts if source == str(disk)]
    if not points:
        print("Drive not mounted, so nothing to flush and unmount.")
        return
    subprocess.run(["umount", *points], check=True)
    shutil.rmtree(drive)
    shutil.move(disk, drive)


def _places() -> tuple[Path, Path]:
    return Path(os.environ["FAKE_DRIVE"]), Path(os.environ["FAKE_RUNTIME"])
