"""Draw a changing frame in the cell of a notebook. The last one stays in the notebook's file, also after a reconnect."""

import io
from typing import Any

from rich.console import Console, RenderableType

WIDTH = 88
STYLE = "white-space: pre; line-height: 1.15; font-size: 13px; font-family: Menlo, Consolas, 'DejaVu Sans Mono', monospace"
FORMAT = f'<pre style="{STYLE}; overflow-x: auto"><code style="{STYLE}; padding: 0">{{code}}</code></pre>'


class CellScreen:
    """A place in the output of the running cell, redrawn by each `update`. Has the methods of rich's Live that we use."""

    def __init__(self) -> None:
        self._place: Any = None

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def update(self, frame: RenderableType, *, refresh: bool) -> None:
        from IPython.display import display

        shown = as_data(frame)
        if self._place is None:
            self._place = display(shown, raw=True, display_id=True)
        else:
            self._place.update(shown, raw=True)


def as_data(frame: RenderableType) -> dict[str, str]:
    """The frame as a page shows it, and as plain text."""
    console = Console(
        file=io.StringIO(), record=True, width=WIDTH, force_terminal=True, force_jupyter=False, color_system="truecolor"
    )
    console.print(frame)
    text = console.export_text(clear=False)
    return {"text/html": console.export_html(inline_styles=True, code_format=FORMAT), "text/plain": text}
