"""A picture of a text, for games that only say in words where they stand."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SIDE, MARGIN = 480, 8  # pixels; all pictures of a video have the same size


def picture(text: str) -> NDArray[np.uint8]:
    """A picture rgb uint8 [480, 480, 3] of lines of a text, as large as they fit; what does not is cut off."""
    # Only who watches pays for the import.
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (SIDE, SIDE), (236, 230, 218))
    draw, lines = ImageDraw.Draw(image), text.rstrip().splitlines() or [""]
    room = SIDE - 2 * MARGIN
    size = max(8, min(40, room // (len(lines) + 1), 2 * room // max(1, max(map(len, lines)))))
    draw.multiline_text((MARGIN, MARGIN), "\n".join(lines), (30, 30, 30), ImageFont.load_default(size))
    return np.array(image)
