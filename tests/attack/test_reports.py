"""A report is a page about a stranger's file: it runs its own script, loads nothing and sends nothing."""

import base64
import hashlib
import re

from tests.attack.bounded import run


def test_the_policy_of_a_report(whole_run, tmp_path):
    image, weights = whole_run / "example.png", whole_run / "weights/best.safetensors"
    out = tmp_path / "report.html"
    assert run("explain", image, "--weights", weights, "--out", out).code == 0
    page = out.read_text(encoding="utf-8")
    policy = dict(part.split(None, 1) for part in re.search('Policy" content="([^"]*)"', page)[1].split("; "))
    (script,) = re.findall(r'<script type="module">(.*?)</script>', page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy == {"default-src": "'none'", "img-src": "data:", "style-src": "'unsafe-inline'",
                      "script-src": f"'sha256-{digest}'", "base-uri": "'none'", "form-action": "'none'"}  # fmt: skip
    assert page.index("Content-Security-Policy") < page.index("<title>") and not re.search(r'\son\w+="', page)
