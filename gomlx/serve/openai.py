"""What OpenAI's two older endpoints have in common: usage, reasons, log probabilities, and our own field."""
from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from gomlx._generation.streams import Result
from gomlx.serve.errors import Refused
from gomlx.serve.jobs import Job

REASONS = {"stop": "stop", "length": "length", "context": "length"}


def identifier(kind: str) -> str:
    return f"{kind}-{secrets.token_hex(12)}"


def usage(results: Sequence[Result], reasoning: int) -> dict[str, Any]:
    """Of a request: results that are samples of one prompt count it once."""
    return counted(results[0].prompt_tokens, results[0].cached_tokens, results, reasoning)


def counted(prompt: int, cached: int, results: Sequence[Result], reasoning: int) -> dict[str, Any]:
    generated = sum(one.generated_tokens for one in results)
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {"reasoning_tokens": reasoning}}


def own(job: Job, index: int) -> dict[str, Any]:
    """What the protocols have no field for. truncated: nothing is ever cut from a prompt."""
    stream, result = job.streams[index], job.streams[index].result
    return {"seed": result.seed, "finish_reason": result.finish_reason, "stop": result.stop,
            "cached_tokens": result.cached_tokens, "truncated": False, "incomplete": result.incomplete,
            "timings": {"queue_seconds": stream.queue_seconds, "first_token_seconds": stream.first_token_seconds,
                        "prefill_seconds": result.prefill_seconds, "decode_seconds": result.decode_seconds,
                        "total_seconds": result.total_seconds, "prefill_tokens_per_second": result.prefill_tps,
                        "decode_tokens_per_second": result.decode_tps}}


def piece_of(tokenizer: Any, token_id: int) -> str:
    return tokenizer.decode([token_id], False)


def token_logprob(tokenizer: Any, token_id: int, logprob: float) -> dict[str, Any]:
    """Of chat: a token's text, bytes and log probability in the model's own distribution."""
    return {"token": piece_of(tokenizer, token_id), "logprob": logprob, "bytes": list(tokenizer.token_bytes(token_id))}


def token_logprobs(tokenizer: Any, token_id: int, logprob: float, top: Sequence[tuple[int, float]]) -> dict[str, Any]:
    return token_logprob(tokenizer, token_id, logprob) | {
        "top_logprobs": [token_logprob(tokenizer, i, value) for i, value in top]}


def now() -> int:
    return int(time.time())


def samples(n: int, seed: int) -> list[int]:
    """The seed of each of n samples."""
    return [(seed + i) % 2**63 for i in range(n)]


def needs(found: dict[str, Any], *names: str) -> None:
    for name in names:
        if name not in found:
            raise Refused(400, f"{name} is missing", param=name)
