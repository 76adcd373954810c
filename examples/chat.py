"""Talk with a language model in the terminal.

The key-value cache of the conversation stays on the device from turn to turn: only what is new is
computed. Questions come from the keyboard, from a pipe, or from the command line. Ends with an
empty line or Ctrl-D.
"""

import argparse
import sys
from collections.abc import Iterator

import common
import torch
from rich.console import Console

EXAMPLES = """\
examples:
  chat.py
  chat.py --ask "Who wrote Hamlet?" --ask "When was he born?"
  printf 'Name a river.\\nAnd a mountain.\\n' | chat.py --system "Answer in one word."
"""


class Conversation:
    """A model, what has been said, and the cache that remembers it.

    Parameters
    ----------
    model, tokenizer
        Of Transformers; the tokenizer has a chat template.
    system : str
        How the model shall behave.
    """

    def __init__(self, model, tokenizer, system: str) -> None:
        from transformers import DynamicCache

        self.model = model
        self.tokenizer = tokenizer
        self.messages = [{"role": "system", "content": system}]
        self.cache = DynamicCache(config=model.config)
        self.seen: torch.Tensor | None = None  # the ids of the last turn, answer included

    def say(self, question: str, max_new_tokens: int) -> str:
        """Return the answer to a question, and print it while it is written."""
        from transformers import TextStreamer

        self.messages.append({"role": "user", "content": question})
        text = self.tokenizer.apply_chat_template(
            self.messages, add_generation_prompt=True, tokenize=False
        )
        inputs = self.tokenizer(text, return_tensors="pt", add_special_tokens=False)
        ids = inputs["input_ids"].to(self.model.device)
        self._forget_what_differs(ids)
        with torch.no_grad():
            output = self.model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                cache=self.cache,
                max_new_tokens=max_new_tokens,
                do_sample=False,
                streamer=TextStreamer(self.tokenizer, skip_prompt=True, skip_special_tokens=True),
                pad_token_id=self.tokenizer.eos_token_id,
            )
        self.seen = output[0]
        answer = self.tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True).strip()
        self.messages.append({"role": "assistant", "content": answer})
        return answer

    def _forget_what_differs(self, ids: torch.Tensor) -> None:
        """Cut the cache to the tokens that this turn has in common with the last one.

        The answer may be tokenized in another way as text than it was as output.
        """
        if self.seen is None:
            return
        length = min(ids.shape[1] - 1, self.cache.get_seq_length(), self.seen.shape[0])
        same = (ids[0, :length] == self.seen[:length]).int().cumprod(0).sum().item()
        surplus = self.cache.get_seq_length() - same
        if surplus:
            self.cache.crop(-surplus)


def questions(asked: list[str]) -> Iterator[str]:
    """Yield the questions of the command line, else those of the terminal or pipe."""
    if asked:
        for question in asked:
            print(f"> {question}")
            yield question
    elif sys.stdin.isatty():
        while question := input("> ").strip():
            yield question
    else:
        for line in sys.stdin:
            if line.strip():
                print(f"> {line.strip()}")
                yield line.strip()


def main() -> None:
    """Answer questions until there are no more."""
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLES)
    parser.add_argument("--ask", action="append", default=[], metavar="TEXT", help="a question")
    parser.add_argument("--system", default="You are a helpful assistant.", metavar="TEXT")
    parser.add_argument("--max-new-tokens", type=int, default=64, metavar="N", help="default: 64")
    parser.add_argument("--tiny", action="store_true", help="random weights instead of SmolLM2")
    options = common.parse(parser)
    common.require_device(options.device)

    console = Console(stderr=True)
    if options.tiny:
        model, tokenizer = common.tiny_language_model()
    else:
        model, tokenizer = common.load_language_model(console)
    conversation = Conversation(model.to(options.device), tokenizer, options.system)
    try:
        for question in questions(options.ask):
            conversation.say(question, options.max_new_tokens)
    except EOFError:
        print()


if __name__ == "__main__":
    sys.exit(common.run(main))
