"""A server of gomlx.serve in this process, in a thread of its own, on a port of the loopback."""
import contextlib
import threading
import time

import uvicorn


@contextlib.contextmanager
def serving(app, **settings):
    """The address of an ASGI application, http://127.0.0.1:PORT."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", lifespan="on", **settings)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.005)
    try:
        yield "http://127.0.0.1:%d" % server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
