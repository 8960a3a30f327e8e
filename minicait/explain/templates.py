"""Self-contained HTML pages: templates with {{placeholders}}, and pictures and scripts as parts of the page itself."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from importlib.resources import files
from typing import Any

import numpy as np
from PIL import Image

SMALL = 128  # pixels: smaller images are enlarged by repeating pixels, and stored without loss


def page_file(name: str, package: str = __package__) -> str:
    """Read a file of a package's folder page/."""
    return files(package).joinpath("page", name).read_text(encoding="utf-8")


def fill(text: str, parts: dict[str, Any]) -> str:
    """Fill in placeholders, in one pass: inserted text is not searched again."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: str(parts[found[1]]), text)


def script_hash(script: str) -> str:
    """Hash of an inline script, as a Content-Security-Policy names it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def script_data(value: Any) -> str:
    """JSON for a script element, which no text in it can end."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def data_url(picture: Image.Image, kind: str) -> str:
    content = io.BytesIO()
    picture.save(content, kind, quality=90)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(content.getvalue()).decode('ascii')}"


def image_url(pixels: np.ndarray) -> str:
    """Data URL of an image (H, W, 3) in uint8."""
    return data_url(Image.fromarray(pixels), "PNG" if pixels.shape[0] < SMALL else "JPEG")


def sharpness(side: int) -> str:
    """CSS image-rendering of an image with this many pixels on a side."""
    return "pixelated" if side < SMALL else "auto"


def gradient(colours: np.ndarray) -> str:
    """A colour map as a CSS background."""
    return f"linear-gradient(90deg, {', '.join('rgb({:g} {:g} {:g})'.format(*c) for c in colours)})"
