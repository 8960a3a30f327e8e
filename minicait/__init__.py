"""CaiT, "Going deeper with Image Transformers", on the `autograd` engine beside this package."""

import autograd

if getattr(autograd, "BELONGS_TO", None) != "minicait":
    raise ImportError(
        f"minicait needs the `autograd` package that it ships with, but found another one at "
        f"{getattr(autograd, '__file__', None)}. Fix: pip uninstall -y autograd, then install minicait again "
        "(pip install -e . in its folder), best in a fresh virtual environment."
    )

__version__ = "0.1.0"
