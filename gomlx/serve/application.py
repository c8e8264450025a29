"""The ASGI application: routes, and what every request goes through."""
from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gomlx import _gomlx
from gomlx._generation.model import Model
from gomlx.serve import bodies, chat_completions, completions, embeddings, messages, responses, tokens
from gomlx.serve.errors import Refused, refused
from gomlx.serve.gate import Gate
from gomlx.serve.sse import dumps, encoded
from gomlx.serve.state import Settings, State

Answer = Callable[[State, Request, dict[str, Any]], Awaitable[Any]]
POST: dict[str, Answer] = {
    "/v1/chat/completions": chat_completions.answer, "/v1/completions": completions.answer,
    "/v1/responses": responses.answer, "/v1/embeddings": embeddings.answer, "/v1/messages": messages.answer,
    "/v1/messages/count_tokens": messages.count, "/tokenize": tokens.tokenize, "/detokenize": tokens.detokenize}


def app(models: Model | Mapping[str, Model], **settings: Any) -> Application:
    """An ASGI application that serves a model, or several by their names, to clients of OpenAI and Anthropic.

    max_streams, kv_bytes, queue, gap_ms    of each model's scheduler: Model.scheduler()
    request_timeout     seconds of a request at most; None: no bound
    max_body_bytes      of a request
    keep_responses      of /v1/responses, how many are kept for previous_response_id; 0 refuses it
    keep_responses_bytes    of these, at most, conversations and all
    any_model_name      a name that no model has means the first one
    keys                texts of which a client must show one; (): none is asked for
    cors                origins whose pages may call
    log_prompts         whether the log has the bodies of requests
    heartbeat           seconds of silence after which a stream gets a comment

    Its close(grace) ends the schedulers; so does the end of the server's lifespan. The models stay open."""
    made = Application(Settings(**settings))
    made.state.add(models if isinstance(models, Mapping) else {name_of(models): models})
    return made


def name_of(model: Model) -> str:
    """The name under which a model is served if none is given: its file's or folder's."""
    name = str(model.info["path"]).rstrip("/").rpartition("/")[2]
    return name.removesuffix(".gguf")


class Application:
    """What app() returns: called by an ASGI server."""

    def __init__(self, settings: Settings) -> None:
        self.state = State(settings)
        routes = [Route(path, self._posted(answer), methods=["POST"]) for path, answer in POST.items()]
        routes += [Route(path, self._got(answer), methods=["GET"]) for path, answer in
                   {"/v1/models": self._models, "/v1/models/{name:path}": self._model, "/health": self._health,
                    "/version": self._version, "/metrics": self._metrics}.items()]
        routes += [Route("/v1/responses/{name}", self._got(partial(answer, self.state)), methods=[method])
                   for method, answer in (("GET", responses.get), ("DELETE", responses.delete))]
        middleware = [Middleware(Gate, state=self.state, paths={route.path for route in routes})]
        if settings.cors:
            middleware.insert(0, Middleware(CORSMiddleware, allow_origins=settings.cors, allow_methods=["*"],
                                            allow_headers=["*"]))
        self._app = Starlette(routes=routes, middleware=middleware, lifespan=self._lifespan,
                              exception_handlers={404: self._unknown, 405: self._unknown})

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, send)

    def close(self, grace: float | None = 0) -> None:
        """Takes no more requests, gives those that there are `grace` seconds (None: what they take), and ends the
        schedulers' threads."""
        self.state.close(grace)

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await asyncio.to_thread(self.close)

    def _posted(self, answer: Answer) -> Callable[[Request], Awaitable[Any]]:
        async def run(request: Request) -> Any:
            try:
                body = await bodies.read(request, self.state.settings.max_body_bytes)
                request.scope["gomlx.body"] = body
                made = await answer(self.state, request, body)
            except Exception as error:
                return refusal(request, refused(error))
            return made if not isinstance(made, (dict, list)) else as_json(made)
        return run

    def _got(self, answer: Callable[[Request], Any]) -> Callable[[Request], Awaitable[Any]]:
        async def run(request: Request) -> Any:
            try:
                made = answer(request)
            except Exception as error:
                return refusal(request, refused(error))
            return made if isinstance(made, Response) else as_json(made)
        return run

    # ---- GET ----
    def _models(self, request: Request) -> dict[str, Any]:
        return {"object": "list", "data": [self._shown(one) for one in self.state.models.values()]}

    def _model(self, request: Request) -> dict[str, Any]:
        return self._shown(self.state.served(request.path_params["name"]))

    def _shown(self, served):
        info = served.model.info
        return {"id": served.name, "object": "model", "created": served.created, "owned_by": "gomlx",
                "max_model_len": served.model.context_length,
                "meta": {name: info[name] for name in ("architecture", "parameters", "weight_bytes", "vocab_size")}}

    def _health(self, request: Request) -> Response:
        state = self.state
        status = "loading" if state.loading or not state.models else "draining" if state.draining else "ok"
        stats = [one.scheduler.stats for one in state.models.values()]
        return as_json({"status": status, "models": list(state.models),
                        **{name: sum(one[name] for one in stats) for name in ("running", "waiting")}},
                       200 if status == "ok" else 503)

    def _version(self, request: Request) -> dict[str, Any]:
        return {"version": _gomlx.version}

    def _metrics(self, request: Request) -> Response:
        return Response(self.state.metrics.text(), media_type="text/plain; version=0.0.4")

    async def _unknown(self, request: Request, error: Any) -> Response:
        status = 405 if error.status_code == 405 else 404
        said = f"{request.method} {request.url.path:.200} is no endpoint of this server"
        return refusal(request, Refused(status, said))


def as_json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encoded(dumps(value)), status, headers, "application/json")


def refusal(request: Request, error: Refused) -> Response:
    """The error in the words of the endpoint's protocol."""
    anthropic = request.url.path.startswith("/v1/messages")
    return as_json(error.as_anthropic() if anthropic else error.as_openai(), error.status, error.headers)
