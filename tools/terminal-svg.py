#!/usr/bin/env python3
"""Draws a recorded session of a terminal as an SVG image.

Usage: tools/terminal-svg.py SESSION.txt > SESSION.svg

Lines of the session that begin with `$ ` are commands, and all others are their output. The image
needs no font file and no program: each line is a text element in a monospace font.
"""

import sys
from pathlib import Path
from xml.sax.saxutils import escape

CHAR_WIDTH, LINE_HEIGHT, MARGIN = 7.8, 18, 16
STYLE = """text { font: 13px monospace; white-space: pre; fill: #d6dae0 }
.command { fill: #ffffff; font-weight: bold }
rect { fill: #1e2229 }"""


def svg(lines):
    """Returns the image of `lines` as text."""
    width = round(max(len(line) for line in lines) * CHAR_WIDTH + 2 * MARGIN)
    height = len(lines) * LINE_HEIGHT + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img">',
        f"<style>{STYLE}</style>",
        f'<rect width="{width}" height="{height}" rx="6"/>',
    ]
    for number, line in enumerate(lines):
        kind = ' class="command"' if line.startswith("$ ") else ""
        y = MARGIN + number * LINE_HEIGHT + 13
        if line:
            place = f'x="{MARGIN}" y="{y}" xml:space="preserve"'
            parts.append(f"<text {place}{kind}>{escape(line)}</text>")
    return "\n".join(parts + ["</svg>", ""])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.stdout.write(svg(Path(sys.argv[1]).read_text(encoding="ascii").splitlines()))
