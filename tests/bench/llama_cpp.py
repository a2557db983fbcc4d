"""Build of llama.cpp from its PyPI source, and its conversion and quantization of models.

``python tests/bench/llama_cpp.py`` needs pip, CMake, a C++ compiler and ten minutes; it leaves
``llama-server`` in ``.cache/llama.cpp``, ``llama-quantize`` and ``llama-perplexity`` in its
``build/bin``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
from pathlib import Path

PACKAGE = "llama-cpp-python==0.3.36"  # vendors llama.cpp 0c1e570, ggml 0.25.3
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "llama.cpp"
TOOLS = ("llama-server", "llama-quantize", "llama-perplexity")
CMAKE_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
)

# The converter knows tokenizers by a hash of what they do with a text. Ours splits as Llama 3's
# does, but has other tokens, so it is told instead of asked.
CONVERT = """
import runpy, sys
source, model, out, kind = sys.argv[1:]
sys.path[:0] = [source, source + "/gguf-py"]
from conversion.base import TextModel
from conversion.llama import LlamaModel
TextModel.get_vocab_base_pre = lambda self, tokenizer: "llama-bpe"
LlamaModel.set_vocab = lambda self: self._set_vocab_gpt2()
sys.argv = ["convert", model, "--outfile", out, "--outtype", kind]
runpy.run_path(source + "/convert_hf_to_gguf.py", run_name="__main__")
"""


def tool(name: str, cache: Path = CACHE) -> Path:
    """Where one of ``TOOLS`` is, or will be."""
    return cache / "build" / "bin" / name


def source(cache: Path) -> Path:
    """Fetch and unpack the source package; give llama.cpp's folder in it."""
    found = list(cache.glob("llama_cpp_python-*/vendor/llama.cpp/CMakeLists.txt"))
    if not found:
        cache.mkdir(parents=True, exist_ok=True)
        _run(
            *(sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(cache)),
            *("--no-deps", "--no-binary", "llama-cpp-python", PACKAGE),
        )
        with tarfile.open(next(cache.glob("llama_cpp_python-*.tar.gz"))) as archive:
            archive.extractall(cache, filter="data")
        found = list(cache.glob("llama_cpp_python-*/vendor/llama.cpp/CMakeLists.txt"))
    return found[0].parent


def build(cache: Path, jobs: int) -> None:
    """Compile the tools; those that are there already are kept."""
    code, work = source(cache), cache / "build"
    missing = [name for name in TOOLS if not tool(name, cache).exists()]
    if not missing:
        return
    if not (work / "CMakeCache.txt").exists():
        _run("cmake", "-S", str(code), "-B", str(work), *CMAKE_FLAGS)
    _run("cmake", "--build", str(work), "--target", *missing, "--parallel", str(jobs))


def convert(model: Path, out: Path, kind: str, cache: Path = CACHE) -> None:
    """Convert a folder of safetensors to a GGUF file of floats, ``f32`` or ``bf16``."""
    _run(sys.executable, "-c", CONVERT, str(source(cache)), str(model), str(out), kind)


def quantize(floats: Path, out: Path, kind: str, *options: str, cache: Path = CACHE) -> None:
    """Quantize a GGUF file of floats, every matrix to the same type unless options say else."""
    _run(str(tool("llama-quantize", cache)), "--pure", *options, str(floats), str(out), kind)


def _run(*command: str) -> None:
    print("+", *(word if "\n" not in word else "..." for word in command), file=sys.stderr)
    subprocess.run(command, check=True)


def main() -> int:
    """Build what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    try:
        build(args.cache, args.jobs)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"llama.cpp cannot be built here: {error}", file=sys.stderr)
        return 1
    print(tool("llama-server", args.cache))
    return 0


if __name__ == "__main__":
    sys.exit(main())
