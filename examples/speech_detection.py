"""Find the speech in a recording with Silero's voice activity detector.

The weights come from the package silero-vad (MIT). The network is written out below: a short-time
Fourier transform as a convolution, four convolutions, and an LSTM that remembers from one window
of 32 ms to the next. Without a file, a synthetic recording is examined: noise, a tone, and a buzz
shaped by the resonances of a mouth that says vowels.
"""

import argparse
import dataclasses
import math
import sys
import wave
from pathlib import Path

import common
import torch
from rich.console import Console
from rich.progress import track
from torch import nn

EXAMPLES = """\
examples:
  speech_detection.py
  speech_detection.py --threshold 0.3 recording.wav      16 kHz, 16 bit
"""
RATE = 16_000
WINDOW = 512  # samples that each step judges
CONTEXT = 64  # samples before them that it hears too


class VoiceDetector(nn.Module):
    """Silero VAD at 16 kHz; its parameters have the names of the packaged file."""

    def __init__(self) -> None:
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 258, 256, stride=128, bias=False)
        self.conv1 = nn.Conv1d(129, 128, 3, padding=1)
        self.conv2 = nn.Conv1d(128, 64, 3, stride=2, padding=1)
        self.conv3 = nn.Conv1d(64, 64, 3, stride=2, padding=1)
        self.conv4 = nn.Conv1d(64, 128, 3, padding=1)
        self.lstm_cell = nn.LSTMCell(128, 128)
        self.final_conv = nn.Conv1d(128, 1, 1)

    def encode(self, windows: torch.Tensor) -> torch.Tensor:
        """Turn windows, shape (count, CONTEXT + WINDOW), into features, shape (count, 128)."""
        x = nn.functional.pad(windows, (0, 64), "reflect").unsqueeze(1)
        real, imaginary = self.stft_conv(x).chunk(2, dim=1)
        x = (real.square() + imaginary.square()).sqrt()
        for convolution in (self.conv1, self.conv2, self.conv3, self.conv4):
            x = convolution(x).relu()
        return x.squeeze(-1)

    def forward(self, windows: torch.Tensor) -> torch.Tensor:
        """Return the probability of speech in each window, shape (count,)."""
        features = self.encode(windows)
        state = features.new_zeros(1, 128), features.new_zeros(1, 128)
        heard = []
        for step in track(range(len(features)), "Listening", console=Console(stderr=True)):
            state = self.lstm_cell(features[step : step + 1], state)
            heard.append(state[0])
        hidden = torch.cat(heard).relu().unsqueeze(-1)
        return torch.sigmoid(self.final_conv(hidden)).flatten()


def load_detector() -> VoiceDetector:
    """Load the packaged weights."""
    from safetensors.torch import load_file

    folder = common.package_folder("silero_vad", "silero-vad==6.2.3")
    detector = VoiceDetector()
    detector.load_state_dict(load_file(folder / "data" / "silero_vad_16k.safetensors"))
    return detector.eval()


# ---- recordings -------------------------------------------------------------------------------


def read_wave(path: Path) -> torch.Tensor:
    """Read a WAV file of 16-bit samples at 16 kHz; several channels are averaged."""
    try:
        with wave.open(str(path), "rb") as file:
            if (file.getframerate(), file.getsampwidth()) != (RATE, 2):
                raise common.ExampleError(f"{path} must have 16-bit samples at {RATE} Hz")
            data = bytearray(file.readframes(file.getnframes()))
            channels = file.getnchannels()
    except (OSError, wave.Error, EOFError) as error:
        raise common.ExampleError(f"{path} cannot be read: {error}") from error
    samples = torch.frombuffer(data, dtype=torch.int16).float() / 32768
    return samples.view(-1, channels).mean(1)


def say_vowels(seconds: float) -> torch.Tensor:
    """Make a sound like a voice: a pulse train through the resonances (formants) of vowels."""
    formants = ((730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480))
    syllables = []
    for number in range(math.ceil(seconds / 0.22)):
        count = int(0.18 * RATE)
        time = torch.arange(count) / RATE
        pitch = 120 * (1 + 0.08 * torch.sin(2 * math.pi * 1.5 * time + number))
        cycles = (pitch / RATE).cumsum(0).floor()
        pulses = torch.diff(cycles, prepend=cycles[:1]) + 0.02 * torch.randn(count)
        sound = pulses * torch.minimum(time, time.flip(0)).div(0.03).clamp(max=1)
        for formant, width in zip(formants[number % 4], (80, 90, 120), strict=True):
            sound = resonate(sound, formant, width)
        syllables += [sound, torch.zeros(int(0.04 * RATE))]
    voice = torch.cat(syllables)[: int(seconds * RATE)]
    return voice / voice.abs().max() / 2


def resonate(sound: torch.Tensor, frequency: float, width: float) -> torch.Tensor:
    """Filter a sound by a resonance, as a convolution with its decaying oscillation."""
    time = torch.arange(int(RATE * 0.03)) / RATE
    response = torch.exp(-math.pi * width * time) * torch.sin(2 * math.pi * frequency * time)
    padded = nn.functional.pad(sound.view(1, 1, -1), (len(time) - 1, 0))
    return nn.functional.conv1d(padded, response.flip(0).view(1, 1, -1)).flatten()


def synthetic_recording() -> torch.Tensor:
    """Make two seconds each of noise, of a voice, and of a tone."""
    time = torch.arange(2 * RATE) / RATE
    noise = 0.1 * torch.randn(2 * RATE)
    tone = 0.3 * torch.sin(2 * math.pi * 440 * time)
    return torch.cat([noise, say_vowels(2), tone])


# ---- what was heard ---------------------------------------------------------------------------


@dataclasses.dataclass
class Stretch:
    """A part of the recording with speech, in seconds."""

    start: float
    end: float


def stretches(probabilities: list[float], threshold: float, patience: int = 6) -> list[Stretch]:
    """Join windows above the threshold; gaps of up to `patience` windows do not interrupt."""
    found: list[Stretch] = []
    length = WINDOW / RATE
    for number, probability in enumerate(probabilities):
        if probability < threshold:
            continue
        start = number * length
        if found and start - found[-1].end <= patience * length + 1e-9:
            found[-1].end = start + length
        else:
            found.append(Stretch(start, start + length))
    return found


def main() -> None:
    """Listen to the recording and print where somebody speaks."""
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLES)
    parser.add_argument("file", nargs="?", type=Path, help="a WAV file")
    parser.add_argument("--threshold", type=float, default=0.5, help="default: 0.5")
    options = common.parse(parser)
    common.require_device(options.device)

    sound = read_wave(options.file) if options.file else synthetic_recording()
    sound = nn.functional.pad(sound, (CONTEXT, -len(sound) % WINDOW))
    windows = sound.unfold(0, CONTEXT + WINDOW, WINDOW)
    detector = load_detector().to(options.device)
    with torch.no_grad():
        probabilities = detector(windows.to(options.device)).cpu()

    blocks = " ▁▂▃▄▅▆▇█"
    print("".join(blocks[round(8 * probability)] for probability in probabilities.tolist()))
    found = stretches(probabilities.tolist(), options.threshold)
    for stretch in found:
        print(f"speech from {stretch.start:.2f} s to {stretch.end:.2f} s")
    if not found:
        print("no speech")


if __name__ == "__main__":
    sys.exit(common.run(main))
