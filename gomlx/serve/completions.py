"""POST /v1/completions: texts or token ids are continued, and scored with echo and logprobs."""
from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from starlette.requests import Request

import gomlx.core as mx
from gomlx._generation.model import Model, draw_seed
from gomlx._generation.streams import Result
from gomlx.serve import fields
from gomlx.serve.errors import Refused, refused
from gomlx.serve.fields import Fields, flag, integer, mapping, text
from gomlx.serve.jobs import Arrived, Job
from gomlx.serve.openai import REASONS, counted, identifier, needs, now, own, piece_of, samples
from gomlx.serve.sse import EventStream, data, done, dumps, encoded
from gomlx.serve.state import State

MAX_TOKENS = 16                 # OpenAI's default
ROWS = 256                      # positions whose logits are looked at together


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
    job = await Job.begun(state, request, served, [
        partial(served.scheduler.generate, prompt, **options | {"seed": seed})
        for prompt in found["prompt"] for seed in seeds])
    echoes = None
    if found.get("echo"):
        try:
            echoes = await state.in_turn(partial(Echo.several, served.model, job, n, found.get("logprobs")))
        except BaseException as error:
            job.cancel()
            raise refused(error) from error
    voice = Voice(job, found, n, bool(streaming.get("include_usage")), echoes)
    if found.get("stream"):
        return EventStream(job, voice)
    return voice.whole(await job.read(request.receive))


class Echo:
    """A prompt as a part of its completion: its text, and with logprobs the numbers of model.score."""

    def __init__(self, model: Model, ids: Sequence[int], top: int | None) -> None:
        self.text = model.decode(ids, skip_special_tokens=False)
        self.tokens, self.logprobs, self.top = list(ids), [], []
        if top is not None:
            self.logprobs = list(model.score(ids).logprobs)
            self.top = [None, *likeliest(model, ids, top)]

    @classmethod
    def several(cls, model: Model, job: Job, n: int, top: int | None) -> list[Echo]:
        """Of each stream of the job; the n samples of a prompt have the same one."""
        return [one for stream in job.streams[::n] for one in [cls(model, stream.prompt_ids, top)] * n]


def likeliest(model: Model, ids: Sequence[int], k: int) -> list[list[tuple[int, float]]]:
    """After each of the ids but the last, the k likeliest ones with their log probabilities."""
    if k == 0 or len(ids) < 2:
        return [[] for _ in ids[1:]]
    found = []
    logits = model.logits(ids)
    for start in range(0, len(ids) - 1, ROWS):
        rows = logits[start:min(start + ROWS, len(ids) - 1)]
        rows = rows - mx.logsumexp(rows, axis=-1, keepdims=True)
        order = mx.argsort(-rows, axis=-1)[:, :k]
        values = mx.take_along_axis(rows, order, axis=-1)
        found += [list(zip(*pair, strict=True)) for pair in zip(order.tolist(), values.tolist(), strict=True)]
    return found


class Voice:
    """A job in the words of completions."""

    def __init__(self, job: Job, found: dict[str, Any], n: int, with_usage: bool, echoes: list[Echo] | None) -> None:
        self._job, self._tokenizer, self._n = job, job.served.model.tokenizer, n
        self._id, self._created, self._with_usage = identifier("cmpl"), now(), with_usage
        self._top, self._echoes = found.get("logprobs"), echoes
        self._head = dumps({"id": self._id, "object": "text_completion", "created": self._created,
                            "model": job.served.name})[:-1]
        self._at = [0] * len(job.streams)       # characters so far
        self._unsaid: list[list[Any]] = [[] for _ in job.streams]

    def _chunk(self, index, said, logprobs, reason="null", more=""):
        usage = ',"usage":null' if self._with_usage else ""
        return encoded(f'data: {self._head},"choices":[{{"index":{index},"text":{dumps(said)},"logprobs":{logprobs},'
                       f'"finish_reason":{reason}{more}}}]{usage}}}\n\n')

    def begin(self) -> bytes:
        if self._echoes is None:
            return b""
        pieces = []
        for i, echo in enumerate(self._echoes):
            logprobs = self._logprobs(i, echo.tokens, echo.logprobs, echo.top) if self._top is not None else None
            pieces.append(self._chunk(i, echo.text, dumps(logprobs)))
        return b"".join(pieces)

    def arrived(self, index: int, tokens: Arrived) -> bytes:
        said = "".join([one.text for one, _ in tokens])
        if self._top is not None:
            self._unsaid[index] += [one for one, _ in tokens if one.id >= 0]
        if not said:
            return b""
        return self._chunk(index, said, dumps(self._said(index)))

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
        return self._chunk(index, "", dumps(self._said(index) if self._unsaid[index] else None),
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
        if self._echoes is not None:
            echo = self._echoes[index]
            ids, logprobs, tops = echo.tokens + ids, echo.logprobs + logprobs, echo.top + tops
            said = echo.text + said
        return {"index": index, "text": said, "finish_reason": REASONS.get(result.finish_reason, "stop"),
                "logprobs": self._logprobs(index, ids, logprobs, tops) if self._top is not None else None,
                "gomlx": own(self._job, index)}
