"""POST /v1/completions: texts or token ids are continued, and scored with echo and logprobs."""
from __future__ import annotations

from functools import partial
from typing import Any

from starlette.requests import Request

from gomlx._generation.model import draw_seed
from gomlx._generation.scheduler import Request as Stream
from gomlx._generation.streams import Result
from gomlx.serve import fields
from gomlx.serve.errors import Refused
from gomlx.serve.fields import Fields, flag, integer, mapping, text
from gomlx.serve.jobs import Arrived, Job
from gomlx.serve.openai import REASONS, counted, identifier, needs, now, own, piece_of, samples
from gomlx.serve.sse import EventStream, data, done, dumps, encoded
from gomlx.serve.state import State

MAX_TOKENS = 16                 # OpenAI's default


def prompts(name: str, value: Any) -> list[Any]:
    """A text, several, token ids, or several lists of them, as a list of prompts."""
    if isinstance(value, str):
        return [value]
    many = fields.items(name, value, 1 << 20)
    if many and all(isinstance(one, int) and not isinstance(one, bool) for one in many):
        return [many]
    if not many or len(many) > fields.MAX_LIST:
        raise fields.wrong(name, f"a list of {len(many)}", f"1 to {fields.MAX_LIST} prompts")
    for one in many:
        if not isinstance(one, str) and not (isinstance(one, list) and one and all(
                isinstance(i, int) and not isinstance(i, bool) for i in one)):
            raise fields.wrong(name, one, "texts or lists of token ids")
    return many


FIELDS = Fields(fields.GENERATION | {
    "model": text, "prompt": prompts, "max_tokens": integer(0), "n": integer(1, fields.MAX_SAMPLES),
    "best_of": integer(1, fields.MAX_SAMPLES), "stream": flag, "stream_options": mapping, "echo": flag,
    "logprobs": integer(0, 256)},
    ignored={"user"}, refused={"suffix": "is not supported"})
STREAM_OPTIONS = Fields({"include_usage": flag}, ignored={"include_obfuscation", "continuous_usage_stats"})


async def answer(state: State, request: Request, body: dict[str, Any]) -> Any:
    found = FIELDS.read(body)
    served = state.served(found.get("model"))
    needs(found, "prompt")
    n = found.get("n", 1)
    if found.get("best_of", n) != n:
        raise Refused(400, "best_of: expected as many as n", param="best_of")
    streaming = STREAM_OPTIONS.read(found.get("stream_options", {}), "stream_options.")
    options: dict[str, Any] = {"max_tokens": MAX_TOKENS} | fields.options(found) | fields.constraint(
        fields.structured(found["structured_outputs"]) if "structured_outputs" in found else {})
    options |= {"top_logprobs": found.get("logprobs", 0), "priority": found.get("priority", 0),
                "timeout": state.settings.request_timeout}
    seeds = samples(n, options.pop("seed", draw_seed()))
    if found.get("echo"):
        options["prompt_logprobs"] = found.get("logprobs")
    job = await Job.begun(state, request, served, [
        partial(served.scheduler.generate, prompt, **options | {"seed": seed})
        for prompt in found["prompt"] for seed in seeds])
    voice = Voice(job, found, n, bool(streaming.get("include_usage")))
    if found.get("stream"):
        return EventStream(job, voice)
    return voice.whole(await job.read(request.receive))


class Echo:
    """A prompt as a part of its completion: its text, and with logprobs the numbers of model.score."""

    def __init__(self, tokenizer: Any, stream: Stream) -> None:
        self.text = tokenizer.decode(stream.prompt_ids, skip_special_tokens=False)
        self.tokens, (self.logprobs, top) = list(stream.prompt_ids), stream.prompt_scores or ([], [])
        self.top = [None, *top[1:]] if top else []


class Voice:
    """A job in the words of completions."""

    def __init__(self, job: Job, found: dict[str, Any], n: int, with_usage: bool) -> None:
        self._job, self._tokenizer, self._n = job, job.served.model.tokenizer, n
        self._id, self._created, self._with_usage = identifier("cmpl"), now(), with_usage
        self._top, self._echoes = found.get("logprobs"), found.get("echo", False)
        self._silent = [self._echoes] * len(job.streams)     # whose prompt was not echoed yet
        self._head = dumps({"id": self._id, "object": "text_completion", "created": self._created,
                            "model": job.served.name})[:-1]
        self._at = [0] * len(job.streams)       # characters so far
        self._unsaid: list[list[Any]] = [[] for _ in job.streams]

    def _chunk(self, index, said, logprobs, reason="null", more=""):
        usage = ',"usage":null' if self._with_usage else ""
        return encoded(f'data: {self._head},"choices":[{{"index":{index},"text":{dumps(said)},"logprobs":{logprobs},'
                       f'"finish_reason":{reason}{more}}}]{usage}}}\n\n')

    def begin(self) -> bytes:
        """Without log probabilities, which the first token comes with, prompts are echoed at once."""
        return b"".join([self._echoed(i) for i in range(len(self._job.streams))]) if self._top is None else b""

    def _echoed(self, index):
        """The prompt in a chunk, once."""
        if not self._silent[index]:
            return b""
        self._silent[index] = False
        echo = Echo(self._tokenizer, self._job.streams[index])
        logprobs = self._logprobs(index, echo.tokens, echo.logprobs, echo.top) if self._top is not None else None
        return self._chunk(index, echo.text, dumps(logprobs))

    def arrived(self, index: int, tokens: Arrived) -> bytes:
        said = "".join([one.text for one, _ in tokens])
        if self._top is not None:
            self._unsaid[index] += [one for one, _ in tokens if one.id >= 0]
        echoed = self._echoed(index)
        return echoed + self._chunk(index, said, dumps(self._said(index))) if said else echoed

    def _said(self, index):
        if self._top is None:
            return None
        told, self._unsaid[index] = self._unsaid[index], []
        return self._logprobs(index, [one.id for one in told], [one.logprob for one in told],
                              [one.top_logprobs or () for one in told])

    def _logprobs(self, index, ids, logprobs, tops):
        """OpenAI's four lists; text_offset counts characters of the tokens' own texts."""
        texts, offsets = [piece_of(self._tokenizer, one) for one in ids], []
        for one in texts:
            offsets.append(self._at[index])
            self._at[index] += len(one)
        return {"tokens": texts, "token_logprobs": list(logprobs), "text_offset": offsets,
                "top_logprobs": [None if top is None else {piece_of(self._tokenizer, i): value
                                                           for i, value in reversed(top)} for top in tops]}

    def ended(self, index: int, result: Result) -> bytes:
        return self._echoed(index) + self._chunk(
            index, "", dumps(self._said(index) if self._unsaid[index] else None),
            dumps(REASONS.get(result.finish_reason, "stop")),
            ',"gomlx":' + dumps(own(self._job, index)))

    def end(self) -> bytes:
        return done(self._head, self._usage() if self._with_usage else None)

    def failed(self, refused: Refused) -> bytes:
        return data(refused.as_openai())

    def _usage(self):
        results = self._job.results
        alone = results[::self._n]
        return counted(sum(one.prompt_tokens for one in alone), sum(one.cached_tokens for one in alone), results,
                       sum(self._job.reasoning))

    def whole(self, results: list[Result]) -> dict[str, Any]:
        return {"id": self._id, "object": "text_completion", "created": self._created, "model": self._job.served.name,
                "choices": [self._choice(i, one) for i, one in enumerate(results)], "usage": self._usage()}

    def _choice(self, index, result):
        ids, logprobs = list(result.tokens), list(result.logprobs)
        tops, said = list(result.top_logprobs or [()] * len(ids)), result.text
        if self._echoes:
            echo = Echo(self._tokenizer, self._job.streams[index])
            ids, logprobs, tops = echo.tokens + ids, echo.logprobs + logprobs, echo.top + tops
            said = echo.text + said
        return {"index": index, "text": said, "finish_reason": REASONS.get(result.finish_reason, "stop"),
                "logprobs": self._logprobs(index, ids, logprobs, tops) if self._top is not None else None,
                "gomlx": own(self._job, index)}
