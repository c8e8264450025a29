"""Model and TokenStream: a prompt goes in, tokens come out, a result is left behind."""
from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from gomlx import _gomlx, chat
from gomlx.parsing import Parsed, Parser, Part, ThinkingBudget, TokenReader, closing_of, detect
from gomlx.sampling import Sampling
from gomlx.tool_calls import ToolCall


@dataclass(frozen=True)
class Result:
    """What a stream leaves when it has ended or was closed."""
    text: str
    tokens: list[int]           # ids of the tokens that came out; the stop token is not among them
    finish_reason: str          # "stop", "length" (max_tokens), "context" (full) or "cancelled" (also: closed early)
    prompt_tokens: int
    cached_tokens: int          # of the prompt, those the session already held
    generated_tokens: int
    prefill_tps: float | None   # prompt tokens per second; None where no time was spent
    decode_tps: float | None    # steps of one token per second; the first token is prefill's
    seed: int
    stop: str | int | None      # what ended it, if something did: the stop text, or the id of the stop token
    logprobs: list[float]       # of each token, in the model's own distribution
    top_logprobs: list[tuple]   # of each token: (id, logprob) of the likeliest, where they were asked for
    reasoning: str | None = None        # what came between the markers of reasoning; None: there were none
    answer: str = ""                    # the text without reasoning, calls of tools and their markup
    tool_calls: list[ToolCall] = field(default_factory=list)    # one that could not be read has an error and its text

    @property
    def message(self) -> dict:
        """The turn as a message, to go on with: chat(messages + [result.message, ...])."""
        lost = [one.raw for one in self.tool_calls if one.name is None or one.arguments is None]
        made = {"role": "assistant", "content": "\n".join([self.answer] * bool(self.answer) + lost)}
        if self.reasoning:              # templates of different families look for it under different names
            made |= {"reasoning_content": self.reasoning, "thinking": self.reasoning}
        calls = [{"id": f"call{i:05}", "type": "function",         # nine characters, as Mistral's template wants them
                  "function": {"name": one.name, "arguments": one.arguments}}
                 for i, one in enumerate(self.tool_calls) if one.name is not None and one.arguments is not None]
        return made | {"tool_calls": calls} if calls else made


class TokenStream:
    """An iterator of Token(id, text, logprob, finish_reason, top_logprobs). The last one has the finish_reason and the
    text that was held back; its id is -1 when it carries nothing else. Close it (or use `with`) to stop early; cancel()
    may be called from another thread.

    logprob and top_logprobs are of the model's own distribution, the softmax of its logits, before any bias, penalty,
    processor or sampler.

    parts()     iterates Part(channel, text) instead: the text as reasoning, answer and calls of tools, without markup
    channel     where the last token's text went: "reasoning", "answer" or "tool"
    """

    def __init__(self, stream, seed, session, stop_texts, reader=None):
        self._stream = stream
        self._reader = reader                   # of reasoning and calls; None: all text is the answer
        self._parts = []                        # those of the last token
        self._seed = seed
        self._stop_texts = stop_texts
        self._session = session                 # closed with the stream when it was made for it, else None
        self._texts = []
        self._ids = []
        self._logprobs = []
        self._top_logprobs = []
        self._finish_reason = None
        self._result = None

    def __iter__(self) -> Iterator[_gomlx.Token]:
        return self

    def __next__(self) -> _gomlx.Token:
        if self._result is not None:
            raise StopIteration
        try:
            token = next(self._stream)
        except StopIteration:
            self.close()
            raise
        self._texts.append(token.text)
        self._parts = self._reader.feed(token.id, token.text) if self._reader else [Part("answer", token.text)]
        if token.id >= 0:
            self._ids.append(token.id)
            self._logprobs.append(token.logprob)
            self._top_logprobs += [token.top_logprobs] if token.top_logprobs else []
        if token.finish_reason is not None:
            self._finish_reason = token.finish_reason
            self.close()
        return token

    def cancel(self) -> None:
        """Ends the stream at its next token, from any thread."""
        self._stream.cancel()

    def close(self) -> None:
        """Ends the stream now; what it has made so far is in `result`."""
        if self._result is not None:
            return
        self._stream.close()
        try:
            stats = self._stream.stats()
        except ValueError:                      # another thread is in its last step, and comes here after it
            return
        if self._session is not None:
            self._session.close()
        text = "".join(self._texts)
        parsed = Parsed(None, text, [])
        if self._reader is not None:
            self._parts += self._reader.parser.finish()
            parsed = self._reader.parser.parsed
        prefilled = stats["prompt_tokens"] - stats["cached_tokens"]
        self._result = Result(
            text=text, tokens=self._ids, finish_reason=self._finish_reason or "cancelled",
            prompt_tokens=stats["prompt_tokens"], cached_tokens=stats["cached_tokens"],
            generated_tokens=stats["generated_tokens"],
            prefill_tps=rate(prefilled, stats["prefill_seconds"]),
            decode_tps=rate(stats["decode_steps"], stats["decode_seconds"]), seed=self._seed, stop=self._stop(stats),
            logprobs=self._logprobs, top_logprobs=self._top_logprobs, **vars(parsed))

    def _stop(self, stats):
        if stats["stop_text"] >= 0:
            return self._stop_texts[stats["stop_text"]]
        return stats["stop_id"] if stats["stop_id"] >= 0 else None

    def parts(self) -> Iterator[Part]:
        for _ in self:
            yield from self._parts
            self._parts = []

    @property
    def channel(self) -> str:
        if self._reader is None:
            return "answer"
        return self._parts[-1].channel if self._parts else self._reader.parser.channel

    @property
    def result(self) -> Result:
        if self._result is None:
            raise RuntimeError("the stream has not ended: read it to its end or close it first")
        return self._result

    def __enter__(self) -> TokenStream:
        return self

    def __exit__(self, *exc):
        self.close()


def rate(count, seconds):
    return count / seconds if seconds > 0 else None


class Model:
    """A loaded model; gomlx.load makes it. Any number of threads may use it, each stream in one thread at a time.

    info        what is known about it, as a dict; "stop_ids" names each stop id with where it comes from,
                "sampling_ignored" what its files say about generating that is not applied
    sampling    its own Sampling: what generate() does unless told otherwise
    tokenizer   its Tokenizer
    """

    def __init__(self, engine, tokenizer, info, sampling, stops):
        self._engine = engine
        self.sampling = Sampling(**sampling)
        self._stop_ids = [i for i in sorted(stops) if i < engine.vocab_size]
        self.tokenizer = tokenizer
        self.info = info | {
            "sampling": sampling or {"temperature": 0.0},
            "stop_ids": [{"id": i, "text": tokenizer.id_to_token(i), "sources": stops[i]} for i in sorted(stops)],
            "chat_template": tokenizer.chat_template is not None,
        }

    def generate(self, prompt: str | Sequence[int], *, max_tokens: int | None = None, min_tokens: int = 0,
                 sampling: Sampling | None = None, seed: int | None = None, stop: str | Sequence[str] | None = None,
                 stop_ids: Sequence[int] = (), ignore_eos: bool = False, top_logprobs: int = 0,
                 logits_processors: Sequence[Callable] = (), session: _gomlx.Session | None = None,
                 parser: str | Parser | None = None, **changes) -> TokenStream:
        """Continues prompt, a text or token ids; returns a TokenStream.

        max_tokens          None goes on to a stop or to the end of the context; 0 computes the prompt, for the session
        min_tokens          stop ids cannot come before so many tokens
        sampling            a Sampling in place of the model's own (model.sampling)
        temperature=..., top_p=..., top_k=..., min_p=..., repetition_penalty=..., ...
                            any field of Sampling by name changes that field; None changes nothing
        seed                0 to 2**64 - 1; None draws one and leaves it in the result
        stop                a text, or several, that end the stream and are cut from it; the text of a special token is
                            that token's id. Where several are possible, the one that is complete first
        stop_ids            ids that end the stream, besides those of model.info["stop_ids"]
        ignore_eos          the model's own stop ids end nothing
        top_logprobs        so many of the likeliest tokens are reported with each token, up to 256
        logits_processors   callables f(ids, logits), called for each token before any bias, penalty or sampler: ids is
                            an int32 memoryview of prompt and output, logits a writable float32 memoryview [vocab] that
                            numpy.asarray takes without a copy, valid during the call. What f returns, when it is not
                            None, takes its place: float32 [vocab]. An exception ends the stream and is raised there
        session             from model.session(), keeps the KV cache, so that a prompt's beginning that the session
                            already holds is not computed again
        parser              what takes reasoning and calls of tools out of the text, a name of gomlx.parsing.FORMATS or
                            a Parser; None leaves all of it in the answer
        """
        if max_tokens is not None and max_tokens < 0:
            raise ValueError(f"max_tokens is {max_tokens}, expected 0 or more, or None for no limit")
        if isinstance(prompt, (bytes, bytearray)) or not hasattr(prompt, "__iter__"):
            raise TypeError(f"prompt: expected a str or token ids, got {type(prompt).__name__}")
        ids = self.tokenizer.encode_prompt(prompt) if isinstance(prompt, str) else list(prompt)
        options = (sampling or self.sampling).replace(**changes).engine_options(self.tokenizer)
        stop_texts = [stop] if isinstance(stop, str) else list(stop or ())
        if not all(isinstance(one, str) for one in stop_texts):
            raise TypeError(f"stop: expected a text or several, got {stop!r:.80}")
        if isinstance(session, _gomlx.Session) and session.model is not self._engine:
            raise ValueError("the session belongs to another model")
        if isinstance(parser, str):
            parser = Parser(parser, prompt=prompt if isinstance(prompt, str) else self.tokenizer.decode(ids))
        reader = TokenReader(parser, self.tokenizer, ids) if parser is not None else None
        ends = [] if ignore_eos else self._stop_ids
        ends = [*ends, *stop_ids, *self._special_ids(stop_texts)]
        seed = int.from_bytes(os.urandom(4), "little") if seed is None else seed
        own = None if session is not None else self._engine.new_session()
        try:
            stream = _gomlx.stream(
                session or own, self.tokenizer, ids, seed=seed, max_tokens=-1 if max_tokens is None else max_tokens,
                min_tokens=min_tokens, stop_ids=ends, stop_texts=stop_texts, top_logprobs=top_logprobs,
                processors=logits_processors, **options)
        except BaseException:
            if own is not None:
                own.close()
            raise
        return TokenStream(stream, seed, own, stop_texts, reader)

    def _special_ids(self, texts):
        """The ids of those texts that are special tokens: these have no text in the output."""
        ids = [self.tokenizer.token_to_id(text) for text in texts]
        return [i for i in ids if i is not None and i < self.vocab_size and self.tokenizer.is_special(i)]

    def chat(self, messages: Sequence[dict], *, tools: Sequence[dict] | None = None, add_generation_prompt: bool = True,
             template_args: dict | None = None, enable_thinking: bool | None = None,
             thinking_budget: int | None = None, chat_format: str | None = None,
             parser: str | Parser | None = "auto", **options) -> TokenStream:
        """Answers messages, a list of {"role": ..., "content": ...}, through the model's own chat template.

        template_args       further variables for the template
        enable_thinking     the template's switch for reasoning; None is its own default, and a template without one
                            raises ValueError
        thinking_budget     after so many tokens of reasoning the model is made to end it and to answer; ValueError when
                            its template knows no reasoning
        tools               as in OpenAI's API; ValueError when the template takes none
        chat_format         a built-in format (gomlx.chat_formats) instead of the model's template
        parser              "auto" takes reasoning and calls of tools out of the text as the template writes them; else as
                            in generate()
        options             the other ones of generate()
        """
        template = self.tokenizer.template_for(tools, chat_format)
        variables = dict(template_args or {})
        if enable_thinking is not None:
            variables |= chat.thinking_variable(template, enable_thinking)
        if tools and "tools" not in chat.variables(template):
            raise ValueError("tools were given, but this model's chat template takes none")
        text = self.tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=add_generation_prompt,
                                                  chat_format=chat_format, **variables)
        if parser == "auto":
            parser = detect(template, lambda token: self.tokenizer.token_to_id(token) is not None)
        if isinstance(parser, str):
            parser = Parser(parser, tools, text)
        if thinking_budget is not None:
            options["logits_processors"] = [*options.get("logits_processors", ()),
                                            self._thinking_budget(parser, thinking_budget)]
        return self.generate(text, parser=parser, **options)

    def _thinking_budget(self, parser, budget):
        if parser is None:
            raise ValueError(f"thinking_budget is {budget}, but this model's template knows no reasoning")
        if budget < 0:
            raise ValueError(f"thinking_budget is {budget}, expected 0 or more")
        closing = self.tokenizer.encode(closing_of(parser.format), add_special_tokens=False)
        return ThinkingBudget(parser, budget, closing)

    def logits(self, ids: Sequence[int] | Sequence[Sequence[int]]) -> _gomlx.array | list[_gomlx.array]:
        """float32 [n, vocab]: the logits after each of n ids. Several lists of ids give a list of arrays, computed in
        one batch, with the same bits as one by one."""
        ids = list(ids)
        if ids and hasattr(ids[0], "__iter__") and getattr(ids[0], "ndim", 1):   # an array's items are arrays: ndim 0
            return self._engine.logits([list(one) for one in ids])
        return self._engine.logits([ids])[0]

    def restore_session(self, saved: bytes) -> _gomlx.Session:
        """The session that session.save() made of it, here or in another process: goes on with the same bits. The model must
        have the same shape and kv_dtype; gomlx.Error when the bytes are damaged or another model's."""
        return self._engine.restore_session(saved)

    def session(self) -> _gomlx.Session:
        """A sequence that several generations share: its KV cache is kept between them."""
        return self._engine.new_session()

    @property
    def vocab_size(self) -> int:
        return self._engine.vocab_size

    @property
    def context_length(self) -> int:
        return self._engine.context_length

    def close(self) -> None:
        """Frees the model now; closing twice is fine, using it afterwards raises ValueError."""
        self._engine.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *exc):
        self.close()

    def __repr__(self):
        return f"<gomlx.Model {self.info.get('architecture', '?')} from {self.info['path']!r}>"
