"""Pictures of the dashboard: every view of a real run in light and dark colours and on a phone, as a browser draws it."""

import base64
import io
import tempfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from tests.support.chromium import CHROMIUM, Tab, tab
from tests.support.web_server import served

VIEWS = ("overview", "nodes", "rollouts", "compare", "experiments")
SIZES = {"light": (1280, 860), "dark": (1280, 860), "phone": (390, 844)}
COLOURS = 128
DRAWN = "document.querySelector('main[data-drawn]:not([aria-busy])') && document.querySelector('#live[data-state=live]')"
OPEN_ONE = "document.querySelector('details.rollout:not([open]) summary')?.click()"


def screenshots(store: Path, experiment: str, target: Path, views: Sequence[str] = VIEWS) -> list[Path]:
    """Write VIEW-light.png, VIEW-dark.png and VIEW-phone.png for each view; return the files."""
    if CHROMIUM is None:
        raise SystemExit("chromium is not installed: apt-get install chromium")
    target.mkdir(parents=True, exist_ok=True)
    made = []
    with tempfile.TemporaryDirectory() as scratch, served(store, Path(scratch)) as server, tab(Path(scratch)) as page:
        for name, (width, height) in SIZES.items():
            mobile = name == "phone"
            page.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1 + mobile, mobile=mobile)
            colours = "dark" if name == "dark" else "light"
            page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": colours}])
            for view in views:
                path = target / f"{view}-{name}.png"
                path.write_bytes(_shown(page, f"{server.url}/?{name}#/{view}?experiment={experiment}"))
                made.append(path)
    return made


def _shown(page: Tab, url: str) -> bytes:
    page.call("Page.navigate", url="about:blank")
    page.call("Page.navigate", url=url)
    page.wait_until(DRAWN)
    page.evaluate(OPEN_ONE)
    page.call("Runtime.evaluate", expression="new Promise(done => setTimeout(done, 600))", awaitPromise=True)
    data = base64.b64decode(page.call("Page.captureScreenshot", format="png")["data"])
    file = io.BytesIO()
    Image.open(io.BytesIO(data)).convert("RGB").quantize(COLOURS, Image.Quantize.FASTOCTREE).save(file, format="png", optimize=True)
    return file.getvalue()
