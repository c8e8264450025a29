"""A server for clients of OpenAI and Anthropic: app(models) is an ASGI application, `gomlx serve` runs it.

    import gomlx, gomlx.serve, uvicorn
    uvicorn.run(gomlx.serve.app(gomlx.load()), port=8000)

It needs starlette, uvicorn and prometheus_client: pip install 'gomlx[serve]'."""
try:
    import prometheus_client as _prometheus_client
    import starlette as _starlette
    import uvicorn as _uvicorn
except ModuleNotFoundError as error:
    raise ImportError(f"gomlx.serve needs {error.name}: pip install 'gomlx[serve]'") from error

from gomlx.serve.application import Application, app
from gomlx.serve.running import run

__all__ = ["Application", "app", "run"]
